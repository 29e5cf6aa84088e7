/* libcublas: handles; each product is one kernel, with the name that the card's table has for it. */
#include "products.h"
#include <library_types.h>
#include <stdlib.h>

typedef int Status;
typedef long long Stride;
typedef struct { cudaStream_t stream; int math, pointers; } Handle;

int ng_multiply(cudaStream_t stream, const ng_product *of) {
    const ng_card *card = &ng_settings()->card;
    const char *const *names = card->gemm_fp32;
    double rate = card->fp32_per_second, width = 4;
    if (of->type == CUDA_R_32F && of->is_tf32) {
        names = card->gemm_tf32, rate = card->tf32_per_second;
    } else if (of->type == CUDA_R_16BF) {
        names = card->gemm_bf16, rate = card->bf16_per_second, width = 2;
    } else if (of->type == CUDA_R_16F) {
        names = card->gemm_fp16, rate = card->bf16_per_second, width = 2;
    } else if (of->type == CUDA_R_64F) {
        rate = card->fp32_per_second / 2, width = 8;
    }
    const char *name = names[2 * (of->is_a_transposed != 0) + (of->is_b_transposed != 0)];
    double moved = width * of->batch * (of->m * of->k + of->k * of->n + of->m * of->n);
    double flop = 2 * of->m * of->n * of->k * of->batch;
    return ng_library_launch(stream, name, flop, moved, rate) ? BLAS_EXECUTION_FAILED : BLAS_SUCCESS;
}

Status cublasCreate_v2(Handle **handle) {
    ng_need_context();
    *handle = calloc(1, sizeof **handle);
    return *handle ? BLAS_SUCCESS : 3;
}
Status cublasDestroy_v2(Handle *handle) { return free(handle), BLAS_SUCCESS; }
Status cublasSetStream_v2(Handle *handle, cudaStream_t stream) {
    handle->stream = stream;
    return BLAS_SUCCESS;
}
Status cublasGetStream_v2(Handle *handle, cudaStream_t *stream) {
    *stream = handle->stream;
    return BLAS_SUCCESS;
}
/* torch gives the workspace, 32 MiB on cc 9.0: its allocator holds it whatever is done here. */
Status cublasSetWorkspace_v2(Handle *handle, void *at, size_t size) {
    return BLAS_SUCCESS;
}
Status cublasSetMathMode(Handle *handle, int mode) { return handle->math = mode, BLAS_SUCCESS; }
Status cublasGetMathMode(Handle *handle, int *mode) { return *mode = handle->math, BLAS_SUCCESS; }
Status cublasSetPointerMode_v2(Handle *handle, int mode) {
    handle->pointers = mode;
    return BLAS_SUCCESS;
}
Status cublasGetPointerMode_v2(Handle *handle, int *mode) {
    *mode = handle->pointers;
    return BLAS_SUCCESS;
}
Status cublasGetVersion_v2(Handle *handle, int *version) {
    return *version = NG_CUBLAS_VERSION, BLAS_SUCCESS;
}
Status cublasLoggerConfigure(int a, int b, int c, const char *d) {
    return BLAS_SUCCESS;
}

/* Products */

#define SIZES Handle *h, int ta, int tb, int m, int n, int k, const void *alpha
static Status product(const Handle *handle, int ta, int tb, double m, double n, double k, double batch,
                      int type, int compute) {
    ng_product it = {type, handle->math == MATH_TF32 || compute == COMPUTE_32F_FAST_TF32, ta, tb, m, n,
                     k, batch};
    return ng_multiply(handle->stream, &it);
}
Status cublasGemmEx(SIZES, const void *a, int a_type, int lda, const void *b, int b_type, int ldb,
                    const void *beta, void *c, int c_type, int ldc, int compute, int algorithm) {
    return product(h, ta, tb, m, n, k, 1, a_type, compute);
}
Status cublasSgemmEx(SIZES, const void *a, int a_type, int lda, const void *b, int b_type, int ldb,
                     const void *beta, void *c, int c_type, int ldc) {
    return product(h, ta, tb, m, n, k, 1, a_type, 0);
}
Status cublasGemmStridedBatchedEx(SIZES, const void *a, int a_type, int lda, Stride sa, const void *b,
                                  int b_type, int ldb, Stride sb, const void *beta, void *c, int c_type,
                                  int ldc, Stride sc, int batch, int compute, int algorithm) {
    return product(h, ta, tb, m, n, k, batch, a_type, compute);
}
#define OF_LETTER(letter, type)                                                                    \
    Status cublas##letter##gemm_v2(SIZES, const void *a, int lda, const void *b, int ldb,          \
                                   const void *beta, void *c, int ldc) {                           \
        return product(h, ta, tb, m, n, k, 1, type, 0);                                            \
    }                                                                                              \
    Status cublas##letter##gemmStridedBatched(SIZES, const void *a, int lda, Stride sa,            \
                                              const void *b, int ldb, Stride sb, const void *beta, \
                                              void *c, int ldc, Stride sc, int batch) {            \
        return product(h, ta, tb, m, n, k, batch, type, 0);                                        \
    }                                                                                              \
    Status cublas##letter##gemmBatched(SIZES, const void *a, int lda, const void *b, int ldb,      \
                                       const void *beta, void *c, int ldc, int batch) {            \
        return product(h, ta, tb, m, n, k, batch, type, 0);                                        \
    }
OF_LETTER(S, CUDA_R_32F)
OF_LETTER(D, CUDA_R_64F)
Status cublasSgemv_v2(Handle *h, int ta, int m, int n, const void *alpha, const void *a, int lda,
                      const void *x, int step_x, const void *beta, void *y, int step_y) {
    return product(h, ta, 0, m, 1, n, 1, CUDA_R_32F, 0);
}
Status cublasDgemv_v2(Handle *h, int ta, int m, int n, const void *alpha, const void *a, int lda,
                      const void *x, int step_x, const void *beta, void *y, int step_y) {
    return product(h, ta, 0, m, 1, n, 1, CUDA_R_64F, 0);
}
Status cublasSdot_v2(Handle *h, int n, const void *x, int step_x, const void *y, int step_y,
                     void *result) {
    return product(h, 0, 0, 1, 1, n, 1, CUDA_R_32F, 0);
}
Status cublasDotEx(Handle *h, int n, const void *x, int x_type, int step_x, const void *y, int y_type,
                   int step_y, void *result, int result_type, int compute) {
    return product(h, 0, 0, 1, 1, n, 1, x_type, 0);
}
