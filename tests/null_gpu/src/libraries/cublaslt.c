/* libcublasLt: descriptors, one usable algorithm, one kernel a product. */
#include "products.h"
#include <stdlib.h>
#include <string.h>

typedef int Status;
typedef struct { int compute, scale, ta, tb; } Operation;
typedef struct { int type; u64 rows, columns; int64_t leading; int batch; } Layout;
typedef struct { u64 algorithm[8]; size_t workspace; Status state; float waves; int unused[4]; } Found;
enum { TRANSPOSE_A = 3, TRANSPOSE_B = 4, BATCH_COUNT = 5 };

size_t cublasLtGetVersion(void) { return NG_CUBLAS_VERSION; }
Status cublasLtCreate(void **handle) { return *handle = calloc(1, 64), BLAS_SUCCESS; }
Status cublasLtDestroy(void *handle) { return free(handle), BLAS_SUCCESS; }

Status cublasLtMatmulDescCreate(Operation **out, int compute, int scale) {
    *out = calloc(1, sizeof **out);
    if (!*out) return 3;
    (*out)->compute = compute;
    (*out)->scale = scale;
    return BLAS_SUCCESS;
}
Status cublasLtMatmulDescDestroy(Operation *operation) { return free(operation), BLAS_SUCCESS; }
Status cublasLtMatmulDescSetAttribute(Operation *operation, int which, const void *value, size_t size) {
    if (which == TRANSPOSE_A && size >= sizeof(int)) operation->ta = *(const int *)value;
    if (which == TRANSPOSE_B && size >= sizeof(int)) operation->tb = *(const int *)value;
    return BLAS_SUCCESS;
}
Status cublasLtMatrixLayoutCreate(Layout **out, int type, u64 rows, u64 columns, int64_t leading) {
    *out = calloc(1, sizeof **out);
    if (!*out) return 3;
    **out = (Layout){type, rows, columns, leading, 1};
    return BLAS_SUCCESS;
}
Status cublasLtMatrixLayoutDestroy(Layout *layout) { return free(layout), BLAS_SUCCESS; }
Status cublasLtMatrixLayoutSetAttribute(Layout *layout, int which, const void *value, size_t size) {
    if (which == BATCH_COUNT && size >= sizeof(int)) layout->batch = *(const int *)value;
    return BLAS_SUCCESS;
}
Status cublasLtMatmulPreferenceCreate(void **out) { return *out = calloc(1, 64), BLAS_SUCCESS; }
Status cublasLtMatmulPreferenceDestroy(void *preference) { return free(preference), BLAS_SUCCESS; }
Status cublasLtMatmulPreferenceSetAttribute(void *preference, int which, const void *value,
                                            size_t size) {
    return BLAS_SUCCESS;
}
Status cublasLtMatmulAlgoGetHeuristic(void *handle, Operation *operation, Layout *a, Layout *b,
                                      Layout *c, Layout *d, void *preference, int wanted, Found *found,
                                      int *count) {
    *count = wanted > 0;
    if (*count) *found = (Found){.algorithm = {1}, .waves = 1};
    return BLAS_SUCCESS;
}
Status cublasLtMatmul(void *handle, Operation *operation, const void *alpha, const void *a, Layout *al,
                      const void *b, Layout *bl, const void *beta, const void *c, Layout *cl, void *d,
                      Layout *dl, const void *algorithm, void *workspace, size_t size,
                      cudaStream_t stream) {
    double m = (double)dl->rows, n = (double)dl->columns;
    double k = (double)al->rows * (double)al->columns / (m > 0 ? m : 1);
    ng_product product = {al->type, operation->compute == COMPUTE_32F_FAST_TF32, operation->ta,
                          operation->tb, m, n, k, dl->batch};
    return ng_multiply(stream, &product);
}
