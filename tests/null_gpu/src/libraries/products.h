/* A product of matrices, as cuBLAS and cuBLASLt launch it. */
#pragma once
#include "../core/null.h"

enum { BLAS_SUCCESS = 0, BLAS_NOT_SUPPORTED = 15, BLAS_EXECUTION_FAILED = 13 };
enum { COMPUTE_32F_FAST_TF32 = 77, MATH_TF32 = 3 };
typedef struct {
    int type;                 /* cudaDataType of the operands */
    int is_tf32;
    int is_a_transposed, is_b_transposed;
    double m, n, k, batch;
} ng_product;
int ng_multiply(cudaStream_t stream, const ng_product *product);
