/* libcuda: what torch's expandable segments, its own compiled kernels and Triton ask of the driver. */
#define _GNU_SOURCE
#include "../core/null.h"
#include <cupti_driver_cbid.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static int contexts[MOST_DEVICES];
static CUcontext context_of(int device) { return (CUcontext)&contexts[device]; }

static CUresult code_of(cudaError_t error) {
    switch (error) {
    case cudaSuccess: return CUDA_SUCCESS;
    case cudaErrorMemoryAllocation: return CUDA_ERROR_OUT_OF_MEMORY;
    case cudaErrorIllegalAddress: return CUDA_ERROR_ILLEGAL_ADDRESS;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}

/* Errors and devices */

static const struct { CUresult code; const char *name, *text; } errors[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS",
     "an illegal memory access was encountered"},
    {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
};
static int row_of(CUresult error) {
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == error) return (int)i;
    return -1;
}
CUresult cuGetErrorString(CUresult error, const char **text) {
    int row = row_of(error);
    *text = row < 0 ? NULL : errors[row].text;
    return row < 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
CUresult cuGetErrorName(CUresult error, const char **text) {
    int row = row_of(error);
    *text = row < 0 ? NULL : errors[row].name;
    return row < 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
CUresult cuInit(unsigned flags) {
    return ng_device_count() ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}
CUresult cuDriverGetVersion(int *version) { return *version = CUDA_VERSION, CUDA_SUCCESS; }
CUresult cuDeviceGetCount(int *count) { return *count = ng_device_count(), CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    *device = ordinal;
    return ordinal >= 0 && ordinal < ng_device_count() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
CUresult cuDeviceGetName(char *text, int size, CUdevice device) {
    snprintf(text, (size_t)size, "%s", ng_settings()->card.name);
    return CUDA_SUCCESS;
}
CUresult cuDeviceTotalMem(size_t *bytes, CUdevice device) {
    return *bytes = ng_settings()->card.memory_bytes, CUDA_SUCCESS;
}
CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device) {
    ng_uuid((unsigned char *)uuid->bytes, ng_physical(device));
    return CUDA_SUCCESS;
}
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute which, CUdevice device) {
    const ng_card *card = &ng_settings()->card;
    switch (which) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = card->major; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = card->minor; break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = card->multiprocessors; break;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = 1024; break;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR:
        *value = card->threads_multiprocessor;
        break;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE: *value = 32; break;
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK:
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR: *value = 65536; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK: *value = 48 << 10; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
        *value = card->shared_block_optin;
        break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR:
        *value = card->shared_multiprocessor;
        break;
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE: *value = card->clock_mhz * 1000; break;
    case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE: *value = card->memory_clock_mhz * 1000; break;
    case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH: *value = card->bus_bits; break;
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE: *value = card->l2_bytes; break;
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY:
    case CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH: *value = 1; break;
    default: *value = 0;
    }
    return CUDA_SUCCESS;
}

/* Contexts: the primary one of each device */

CUresult cuCtxGetCurrent(CUcontext *context) {
    *context = ng_has_context(ng_current()) ? context_of(ng_current()) : NULL;
    return CUDA_SUCCESS;
}
CUresult cuCtxSetCurrent(CUcontext context) {
    if (!context) return CUDA_SUCCESS;
    ng_set_current((int)((int *)context - contexts));
    ng_need_context();
    return CUDA_SUCCESS;
}
CUresult cuCtxPushCurrent(CUcontext context) { return cuCtxSetCurrent(context); }
CUresult cuCtxPopCurrent(CUcontext *context) {
    if (context) *context = context_of(ng_current());
    return CUDA_SUCCESS;
}
CUresult cuCtxSynchronize(void) {
    DRIVER(cuCtxSynchronize);
    ng_finish_device(ng_current());
    return code_of(ng_broken());
}
CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    *least = 0;
    *greatest = -5;
    return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *is_active) {
    if (flags) *flags = 0;
    *is_active = ng_has_context(device);
    return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    int before = ng_current();
    ng_set_current(device);
    ng_need_context();
    ng_set_current(before);
    *context = context_of(device);
    return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRelease(CUdevice device) { return CUDA_SUCCESS; }
CUresult cuStreamSynchronize(CUstream stream) {
    DRIVER(cuStreamSynchronize);
    ng_finish(ng_stream_of((cudaStream_t)stream));
    return code_of(ng_broken());
}

/* Memory */

CUresult cuPointerGetAttribute(void *out, CUpointer_attribute which, CUdeviceptr at) {
    void *base;
    size_t size;
    int device = ng_device_of((void *)at);
    if (device < 0) return CUDA_ERROR_INVALID_VALUE;
    switch (which) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: *(CUcontext *)out = context_of(device); break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: *(unsigned *)out = CU_MEMORYTYPE_DEVICE; break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: *(CUdeviceptr *)out = at; break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int *)out = device; break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        if (!ng_range_of((void *)at, &base, &size)) return CUDA_ERROR_INVALID_VALUE;
        if (which == CU_POINTER_ATTRIBUTE_RANGE_SIZE) *(size_t *)out = size;
        else *(void **)out = base;
        break;
    default: return CUDA_ERROR_NOT_SUPPORTED;
    }
    return CUDA_SUCCESS;
}
CUresult cuMemGetAddressRange(CUdeviceptr *base, size_t *size, CUdeviceptr at) {
    void *start;
    size_t length;
    if (!ng_range_of((void *)at, &start, &length)) return CUDA_ERROR_INVALID_VALUE;
    if (base) *base = (CUdeviceptr)start;
    if (size) *size = length;
    return CUDA_SUCCESS;
}
CUresult cuMemGetInfo(size_t *left, size_t *total) {
    ng_room(ng_current(), left, total);
    return CUDA_SUCCESS;
}
CUresult cuMemAlloc(CUdeviceptr *at, size_t size) {
    return ng_allocate((void **)at, size) ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}
CUresult cuMemFree(CUdeviceptr at) {
    return ng_release((void *)at) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
CUresult cuMemsetD32Async(CUdeviceptr at, unsigned value, size_t count, CUstream on) {
    ng_node node = {.kind = NODE_SET, .bytes = 4 * count, .value = (int)value, .cost = 2000};
    DRIVER(cuMemsetD32Async);
    ng_submit(ng_stream_of((cudaStream_t)on), &node);
    for (size_t i = 0; 4 * count <= ng_settings()->copy_limit && i < count; i++)
        ((unsigned *)at)[i] = value;
    return CUDA_SUCCESS;
}
CUresult cuStreamWriteValue32(CUstream stream, CUdeviceptr at, cuuint32_t value, unsigned flags) {
    *(cuuint32_t *)at = value;
    return CUDA_SUCCESS;
}

/* Virtual memory: handles take memory of the card, addresses do not */

typedef struct { size_t size; int device, uses; } Handle;

CUresult cuMemGetAllocationGranularity(size_t *bytes, const CUmemAllocationProp *how,
                                       CUmemAllocationGranularity_flags flags) {
    return *bytes = GRAIN, CUDA_SUCCESS;
}
CUresult cuMemAddressReserve(CUdeviceptr *at, size_t size, size_t alignment, CUdeviceptr wanted,
                             unsigned long long flags) {
    *at = (CUdeviceptr)ng_reserve(ng_current(), size);
    return *at ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
CUresult cuMemAddressFree(CUdeviceptr at, size_t size) {
    ng_unreserve((void *)at, size);
    return CUDA_SUCCESS;
}
static void let_go(Handle *handle) {
    if (__sync_sub_and_fetch(&handle->uses, 1)) return;
    ng_give(handle->device, handle->size);
    free(handle);
}
CUresult cuMemCreate(CUmemGenericAllocationHandle *out, size_t size, const CUmemAllocationProp *how,
                     unsigned long long flags) {
    if (ng_take(how->location.id, size)) return CUDA_ERROR_OUT_OF_MEMORY;
    Handle *handle = malloc(sizeof *handle);
    if (!handle) abort();
    *handle = (Handle){size, how->location.id, 1};
    *out = (CUmemGenericAllocationHandle)handle;
    ng_note("create %zu on %d", size, handle->device);
    return CUDA_SUCCESS;
}
/* torch unmaps before it releases, so a release alone gives the memory back. */
CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    let_go((Handle *)handle);
    return CUDA_SUCCESS;
}
CUresult cuMemMap(CUdeviceptr at, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
    return CUDA_SUCCESS;
}
CUresult cuMemUnmap(CUdeviceptr at, size_t size) {
    madvise((void *)at, size, MADV_DONTNEED);
    return CUDA_SUCCESS;
}
CUresult cuMemSetAccess(CUdeviceptr at, size_t size, const CUmemAccessDesc *who, size_t count) {
    return CUDA_SUCCESS;
}

/* Modules and launches: a function is its name */

CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    DRIVER(cuModuleLoadData);
    ng_need_context();
    *module = (CUmodule)calloc(1, 16);
    return *module ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count,
                            CUjit_option *options, void **values) {
    return cuModuleLoadData(module, image);
}
CUresult cuModuleLoad(CUmodule *module, const char *path) {
    return cuModuleLoadData(module, NULL);
}
CUresult cuModuleUnload(CUmodule module) {
    free(module);
    return CUDA_SUCCESS;
}
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    *function = (CUfunction)ng_kernel_named(name);
    return CUDA_SUCCESS;
}
CUresult cuFuncGetAttribute(int *value, CUfunction_attribute which, CUfunction function) {
    *value = which == CU_FUNC_ATTRIBUTE_NUM_REGS                ? 32
             : which == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024
                                                                : 0;
    return CUDA_SUCCESS;
}
CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute which, int value) {
    return CUDA_SUCCESS;
}
CUresult cuFuncSetCacheConfig(CUfunction function, CUfunc_cache how) {
    return CUDA_SUCCESS;
}
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int threads,
                                                     size_t shared) {
    *blocks = ng_settings()->card.threads_multiprocessor / (threads ? threads : 1);
    return CUDA_SUCCESS;
}

static CUresult launch(CUfunction function, dim3 grid, dim3 block, unsigned shared, CUstream stream) {
    return code_of(ng_launch((cudaStream_t)stream, (ng_kernel *)function, grid, block, shared));
}
CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                        unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                        CUstream stream, void **arguments, void **extra) {
    DRIVER(cuLaunchKernel);
    return launch(function, (dim3){grid_x, grid_y, grid_z}, (dim3){block_x, block_y, block_z}, shared,
                  stream);
}
CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned grid_x, unsigned grid_y,
                                   unsigned grid_z, unsigned block_x, unsigned block_y,
                                   unsigned block_z, unsigned shared, CUstream stream,
                                   void **arguments) {
    DRIVER(cuLaunchCooperativeKernel);
    return launch(function, (dim3){grid_x, grid_y, grid_z}, (dim3){block_x, block_y, block_z}, shared,
                  stream);
}
CUresult cuLaunchKernelEx(const CUlaunchConfig *how, CUfunction function, void **arguments,
                          void **extra) {
    DRIVER(cuLaunchKernelEx);
    return launch(function, (dim3){how->gridDimX, how->gridDimY, how->gridDimZ},
                  (dim3){how->blockDimX, how->blockDimY, how->blockDimZ}, how->sharedMemBytes,
                  how->hStream);
}

/* The newest version of a name; a name without a body here is a function that refuses. */
CUresult cuGetProcAddress(const char *name, void **function, int version, cuuint64_t flags,
                          CUdriverProcAddressQueryResult *status) {
    static void *self;
    char versioned[256];
    if (!self) self = dlopen("libcuda.so.1", RTLD_NOW);
    *function = NULL;
    for (int newest = 4; newest > 1 && !*function; newest--) {
        snprintf(versioned, sizeof versioned, "%s_v%d", name, newest);
        *function = dlsym(self, versioned);
    }
    if (!*function) *function = dlsym(self, name);
    if (status)
        *status = *function ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
