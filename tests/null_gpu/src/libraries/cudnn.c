/* libcudnn: a version, handles, and the graph interface as far as attention needs it.
 *
 * Descriptors are bags, every graph has one engine, and executing a plan is one kernel. A plan asks
 * for NULL_GPU_CUDNN_WORKSPACE_MIB: what cuDNN itself would ask for is not known here. */
#include "../core/null.h"
#include <stdlib.h>

typedef int Status;
typedef struct { cudaStream_t stream; } Handle;
typedef struct { int type; } Bag;
enum { SUCCESS = 0, ALLOCATION_FAILED = 1003, EXECUTION_FAILED = 5000, NOT_SUPPORTED = 3000 };
enum { TYPE_INT64 = 3, TYPE_DESCRIPTOR = 15, TYPE_INT32 = 23 };
enum { HEURISTIC_RESULTS = 202, KNOB_CHOICES = 302, PLAN_WORKSPACE = 402, FIRST_OF_PLANS = 400 };

size_t cudnnGetVersion(void) { return ng_settings()->cudnn_version; }
size_t cudnnGetCudartVersion(void) { return CUDART_VERSION; }
Status cudnnGetProperty(int which, int *value) {
    int version = (int)ng_settings()->cudnn_version;
    *value = which == 0 ? version / 10000 : which == 1 ? version / 100 % 100 : version % 100;
    return SUCCESS;
}
const char *cudnnGetErrorString(Status status) {
    return status == SUCCESS         ? "CUDNN_STATUS_SUCCESS"
           : status == NOT_SUPPORTED ? "CUDNN_STATUS_NOT_SUPPORTED"
                                     : "CUDNN_STATUS_INTERNAL_ERROR";
}
void cudnnGetLastErrorString(char *text, size_t size) {
    if (size) *text = 0;
}
Status cudnnCreate(Handle **handle) {
    *handle = calloc(1, sizeof **handle);
    return *handle ? SUCCESS : ALLOCATION_FAILED;
}
Status cudnnDestroy(Handle *handle) { return free(handle), SUCCESS; }
Status cudnnSetStream(Handle *handle, cudaStream_t stream) { return handle->stream = stream, SUCCESS; }
Status cudnnGetStream(Handle *handle, cudaStream_t *stream) { return *stream = handle->stream, SUCCESS; }

Status cudnnBackendCreateDescriptor(int type, Bag **bag) {
    *bag = calloc(1, sizeof **bag);
    if (!*bag) return ALLOCATION_FAILED;
    (*bag)->type = type;
    return SUCCESS;
}
Status cudnnBackendDestroyDescriptor(Bag *bag) { return free(bag), SUCCESS; }
Status cudnnBackendInitialize(Bag *bag) { return SUCCESS; }
Status cudnnBackendFinalize(Bag *bag) { return SUCCESS; }
Status cudnnBackendSetAttribute(Bag *bag, int which, int type, int64_t count, const void *values) {
    return SUCCESS;
}
Status cudnnBackendGetAttribute(Bag *bag, int which, int type, int64_t wanted, int64_t *count,
                                void *values) {
    int64_t unasked;
    if (!count) count = &unasked;
    *count = which == HEURISTIC_RESULTS ||
             (which != KNOB_CHOICES && (type == TYPE_INT64 || type == TYPE_INT32 ||
                                        (type == TYPE_DESCRIPTOR && which < FIRST_OF_PLANS)));
    if (!*count || !values || !wanted) return SUCCESS;
    if (type == TYPE_INT32) *(int32_t *)values = 1024; /* shared memory of the engine */
    if (type == TYPE_INT64)
        *(int64_t *)values = which == PLAN_WORKSPACE ? (int64_t)ng_settings()->cudnn_workspace : 0;
    return SUCCESS;
}
Status cudnnBackendExecute(Handle *handle, Bag *plan, Bag *variables) {
    const ng_card *card = &ng_settings()->card;
    double flop = 13e-6 * card->bf16_per_second; /* 20 µs whatever the shapes, which are not kept */
    cudaError_t error =
        ng_library_launch(handle->stream, card->attention, flop, 0, card->bf16_per_second);
    return error ? EXECUTION_FAILED : SUCCESS;
}
