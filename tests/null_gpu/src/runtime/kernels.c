/* libcudart: modules, kernels, launches, occupancy. */
#include "runtime.h"
#include <stdlib.h>
#include <string.h>

/* Registration, by the code that the compiler adds to every library with kernels */

void **__cudaRegisterFatBinary(void *code) {
    void **module = malloc(sizeof *module);
    if (!module) abort();
    *module = code;
    return module;
}
void __cudaRegisterFatBinaryEnd(void **module) { (void)module; }
void __cudaUnregisterFatBinary(void **module) { free(module); }
char __cudaInitModule(void **module) { return 1; }
void __cudaRegisterFunction(void **module, const char *host, char *device, const char *name,
                            int thread_limit, void *thread, void *block, void *block_dim,
                            void *grid_dim, int *warp_size) {
    ng_kernel_register(host, name);
}

/* Launches. CUDA 13 compiles `<<<>>>` to three calls of the runtime, each of which CUPTI tells. */

typedef struct { dim3 grid, block; size_t shared; cudaStream_t stream; } Configuration;
static __thread Configuration pushed[16];
static __thread int depth;

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, cudaStream_t stream) {
    API_CALL(API_RUNTIME, NG_CBID_PUSH_CONFIGURATION);
    if (depth < 16) pushed[depth++] = (Configuration){grid, block, shared, stream};
    return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
    API_CALL(API_RUNTIME, NG_CBID_POP_CONFIGURATION);
    if (!depth) return ng_fail(cudaErrorMissingConfiguration);
    const Configuration *top = &pushed[--depth];
    *grid = top->grid;
    *block = top->block;
    *shared = top->shared;
    *(cudaStream_t *)stream = top->stream;
    return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *host) {
    API_CALL(API_RUNTIME, NG_CBID_GET_KERNEL);
    *kernel = (cudaKernel_t)host;
    return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments,
                               size_t shared, cudaStream_t stream) {
    API_CALL(API_RUNTIME, NG_CBID_LAUNCH_KERNEL);
    return ng_launch(stream, ng_kernel_of(kernel), grid, block, shared);
}
cudaError_t __cudaLaunchKernel_ptsz(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments,
                                    size_t shared, cudaStream_t stream) {
    API_CALL(API_RUNTIME, NG_CBID_LAUNCH_KERNEL_PTSZ);
    return ng_launch(stream, ng_kernel_of(kernel), grid, block, shared);
}
cudaError_t cudaLaunchKernel(const void *host, dim3 grid, dim3 block, void **arguments,
                             size_t shared, cudaStream_t stream) {
    RUNTIME(cudaLaunchKernel_v7000);
    return ng_launch(stream, ng_kernel_of(host), grid, block, shared);
}
cudaError_t cudaLaunchCooperativeKernel(const void *host, dim3 grid, dim3 block, void **arguments,
                                        size_t shared, cudaStream_t stream) {
    RUNTIME(cudaLaunchCooperativeKernel_v9000);
    return ng_launch(stream, ng_kernel_of(host), grid, block, shared);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *how, const void *host, void **arguments) {
    RUNTIME(cudaLaunchKernelExC_v11060);
    return ng_launch(how->stream, ng_kernel_of(host), how->gridDim, how->blockDim,
                     how->dynamicSmemBytes);
}

/* Attributes */

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *out, const void *host) {
    RUNTIME(cudaFuncGetAttributes_v3020);
    const ng_card *card = &ng_settings()->card;
    const ng_kernel *kernel = ng_kernel_of(host);
    memset(out, 0, sizeof *out);
    out->maxThreadsPerBlock = 1024;
    out->numRegs = 32;
    out->ptxVersion = out->binaryVersion = card->code;
    out->maxDynamicSharedSizeBytes = kernel->max_shared ? kernel->max_shared : 48 << 10;
    out->preferredShmemCarveout = -1;
    return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void *host, enum cudaFuncAttribute which, int value) {
    RUNTIME(cudaFuncSetAttribute_v9000);
    if (which != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
    if (value > ng_settings()->card.shared_block_optin) return ng_fail(cudaErrorInvalidValue);
    ng_kernel_of(host)->max_shared = value;
    return cudaSuccess;
}
cudaError_t cudaKernelSetAttributeForDevice(cudaKernel_t kernel, enum cudaFuncAttribute which,
                                            int value, int device) {
    return cudaFuncSetAttribute(kernel, which, value);
}

/* Blocks that fit a multiprocessor by threads, by 32 registers a thread, and by shared memory. */
static int resident_blocks(int threads, size_t shared) {
    const ng_card *card = &ng_settings()->card;
    if (threads <= 0) return 0;
    int blocks = card->threads_multiprocessor / threads, by_registers = 65536 / (32 * threads);
    int by_shared = (int)((size_t)card->shared_multiprocessor / (shared + 1024));
    if (by_registers < blocks) blocks = by_registers;
    if (shared && by_shared < blocks) blocks = by_shared;
    return blocks < card->blocks_multiprocessor ? blocks : card->blocks_multiprocessor;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *host, int threads,
                                                          size_t shared) {
    RUNTIME(cudaOccupancyMaxActiveBlocksPerMultiprocessor_v6000);
    *blocks = resident_blocks(threads, shared);
    return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *host,
                                                                   int threads, size_t shared,
                                                                   unsigned flags) {
    RUNTIME(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags_v7000);
    *blocks = resident_blocks(threads, shared);
    return cudaSuccess;
}

/* Libraries of kernels */

cudaError_t cudaLibraryLoadData(cudaLibrary_t *library, const void *code, enum cudaJitOption *options,
                                void **values, unsigned count, enum cudaLibraryOption *more,
                                void **more_values, unsigned more_count) {
    *library = calloc(1, 16);
    return *library ? cudaSuccess : ng_fail(cudaErrorMemoryAllocation);
}
cudaError_t cudaLibraryGetKernel(cudaKernel_t *kernel, cudaLibrary_t library, const char *name) {
    *kernel = (cudaKernel_t)ng_kernel_named(name)->host;
    return cudaSuccess;
}
cudaError_t cudaLibraryUnload(cudaLibrary_t library) {
    free(library);
    return cudaSuccess;
}
