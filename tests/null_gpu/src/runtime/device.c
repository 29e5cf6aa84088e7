/* libcudart: errors, devices, and the driver behind. */
#define _GNU_SOURCE
#include "runtime.h"
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

/* Errors */

static const struct { cudaError_t code; const char *name, *text; } errors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {cudaErrorInvalidSymbol, "cudaErrorInvalidSymbol", "invalid device symbol"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorMissingConfiguration, "cudaErrorMissingConfiguration",
     "__global__ function call is not configured"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorIllegalState, "cudaErrorIllegalState",
     "the operation cannot be performed in the present state"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {cudaErrorPeerAccessAlreadyEnabled, "cudaErrorPeerAccessAlreadyEnabled",
     "peer access is already enabled"},
    {cudaErrorPeerAccessUnsupported, "cudaErrorPeerAccessUnsupported",
     "peer access is not supported between these two devices"},
    {cudaErrorHostMemoryAlreadyRegistered, "cudaErrorHostMemoryAlreadyRegistered",
     "part or all of the requested memory range is already mapped"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
};
enum { ERROR_COUNT = sizeof errors / sizeof *errors };

const char *cudaGetErrorName(cudaError_t error) {
    for (int i = 0; i < ERROR_COUNT; i++)
        if (errors[i].code == error) return errors[i].name;
    return "unrecognized error code";
}
const char *cudaGetErrorString(cudaError_t error) {
    for (int i = 0; i < ERROR_COUNT; i++)
        if (errors[i].code == error) return errors[i].text;
    return "unrecognized error code";
}
cudaError_t cudaGetLastError(void) { return ng_last(1); }
cudaError_t cudaPeekAtLastError(void) { return ng_last(0); }

/* Devices */

cudaError_t cudaDriverGetVersion(int *version) { return *version = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int *version) { return *version = CUDART_VERSION, cudaSuccess; }

cudaError_t cudaGetDeviceCount(int *count) {
    *count = ng_device_count();
    return *count ? cudaSuccess : ng_fail(cudaErrorNoDevice);
}
cudaError_t cudaGetDevice(int *device) { return *device = ng_current(), cudaSuccess; }
cudaError_t cudaSetDevice(int device) {
    RUNTIME(cudaSetDevice_v3020);
    if (device < 0 || device >= ng_device_count()) return ng_fail(cudaErrorInvalidDevice);
    ng_set_current(device);
    ng_need_context(); /* since CUDA 12 */
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *out, int device) {
    const ng_card *card = &ng_settings()->card;
    if (device < 0 || device >= ng_device_count()) return ng_fail(cudaErrorInvalidDevice);
    *out = (struct cudaDeviceProp){
        .totalGlobalMem = card->memory_bytes,
        .sharedMemPerBlock = 48 << 10,
        .sharedMemPerBlockOptin = (size_t)card->shared_block_optin,
        .sharedMemPerMultiprocessor = (size_t)card->shared_multiprocessor,
        .reservedSharedMemPerBlock = 1024,
        .regsPerBlock = 65536,
        .regsPerMultiprocessor = 65536,
        .warpSize = 32,
        .memPitch = 0x7fffffff,
        .maxThreadsPerBlock = 1024,
        .maxThreadsDim = {1024, 1024, 64},
        .maxGridSize = {0x7fffffff, 65535, 65535},
        .totalConstMem = 65536,
        .major = card->major,
        .minor = card->minor,
        .textureAlignment = 512,
        .texturePitchAlignment = 32,
        .multiProcessorCount = card->multiprocessors,
        .canMapHostMemory = 1,
        .concurrentKernels = 1,
        .ECCEnabled = card->has_ecc,
        .pciBusID = 0x19 + ng_physical(device),
        .asyncEngineCount = 3,
        .unifiedAddressing = 1,
        .memoryBusWidth = card->bus_bits,
        .l2CacheSize = card->l2_bytes,
        .persistingL2CacheMaxSize = card->l2_bytes / 8 * 5,
        .maxThreadsPerMultiProcessor = card->threads_multiprocessor,
        .maxBlocksPerMultiProcessor = card->blocks_multiprocessor,
        .streamPrioritiesSupported = 1,
        .globalL1CacheSupported = 1,
        .localL1CacheSupported = 1,
        .managedMemory = 1,
        .concurrentManagedAccess = 1,
        .computePreemptionSupported = 1,
        .canUseHostPointerForRegisteredMem = 1,
        .cooperativeLaunch = 1,
        .hostRegisterSupported = 1,
        .memoryPoolsSupported = 1,
        .clusterLaunch = card->major >= 9,
    };
    snprintf(out->name, sizeof out->name, "%s", card->name);
    ng_uuid((unsigned char *)out->uuid.bytes, ng_physical(device));
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr which, int device) {
    RUNTIME(cudaDeviceGetAttribute_v5000);
    const ng_card *card = &ng_settings()->card;
    struct cudaDeviceProp all;
    cudaError_t error = cudaGetDeviceProperties(&all, device);
    if (error) return error;
    switch (which) {
    case cudaDevAttrMaxThreadsPerBlock:
    case cudaDevAttrMaxBlockDimX:
    case cudaDevAttrMaxBlockDimY: *value = 1024; break;
    case cudaDevAttrMaxBlockDimZ: *value = 64; break;
    case cudaDevAttrMaxGridDimX: *value = 0x7fffffff; break;
    case cudaDevAttrMaxGridDimY:
    case cudaDevAttrMaxGridDimZ: *value = 65535; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = (int)all.sharedMemPerBlock; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = card->shared_block_optin; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = card->shared_multiprocessor; break;
    case cudaDevAttrReservedSharedMemoryPerBlock: *value = 1024; break;
    case cudaDevAttrWarpSize: *value = 32; break;
    case cudaDevAttrMaxRegistersPerBlock:
    case cudaDevAttrMaxRegistersPerMultiprocessor: *value = 65536; break;
    case cudaDevAttrClockRate: *value = card->clock_mhz * 1000; break;
    case cudaDevAttrMemoryClockRate: *value = card->memory_clock_mhz * 1000; break;
    case cudaDevAttrGlobalMemoryBusWidth: *value = card->bus_bits; break;
    case cudaDevAttrMultiProcessorCount: *value = card->multiprocessors; break;
    case cudaDevAttrL2CacheSize: *value = card->l2_bytes; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = card->threads_multiprocessor; break;
    case cudaDevAttrMaxBlocksPerMultiprocessor: *value = card->blocks_multiprocessor; break;
    case cudaDevAttrComputeCapabilityMajor: *value = card->major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = card->minor; break;
    case cudaDevAttrPciBusId: *value = all.pciBusID; break;
    case cudaDevAttrAsyncEngineCount: *value = 3; break;
    case cudaDevAttrEccEnabled: *value = card->has_ecc; break;
    case cudaDevAttrConcurrentKernels:
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrCanMapHostMemory:
    case cudaDevAttrStreamPrioritiesSupported:
    case cudaDevAttrManagedMemory:
    case cudaDevAttrCooperativeLaunch:
    case cudaDevAttrComputePreemptionSupported:
    case cudaDevAttrHostRegisterSupported:
    case cudaDevAttrMemoryPoolsSupported:
    case cudaDevAttrConcurrentManagedAccess:
    case cudaDevAttrCanUseHostPointerForRegisteredMem: *value = 1; break;
    default: *value = 0; ng_note("attribute %d answered with 0", (int)which);
    }
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int size, int device) {
    snprintf(text, (size_t)size, "0000:%02X:00.0", 0x19 + ng_physical(device));
    return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) {
    *can = ng_settings()->card.has_peer && device != peer;
    return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
    static int enabled[MOST_DEVICES][MOST_DEVICES];
    if (!ng_settings()->card.has_peer) return ng_fail(cudaErrorPeerAccessUnsupported);
    if (peer < 0 || peer >= ng_device_count()) return ng_fail(cudaErrorInvalidDevice);
    if (enabled[ng_current()][peer]++) return ng_fail(cudaErrorPeerAccessAlreadyEnabled);
    return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize(void) {
    RUNTIME(cudaDeviceSynchronize_v3020);
    NOT_BROKEN;
    ng_need_context();
    u64 from = ng_activity.on ? ng_activity.stamp() : 0;
    ng_finish_device(ng_current());
    if (from && ng_activity.on) ng_activity.sync(4, from, ng_activity.stamp(), -1, ng_correlation());
    return ng_broken();
}
cudaError_t cudaProfilerStart(void) {
    RUNTIME(cudaProfilerStart_v4000);
    return cudaSuccess;
}
cudaError_t cudaProfilerStop(void) {
    RUNTIME(cudaProfilerStop_v4000);
    return cudaSuccess;
}

/* The driver's functions, by the newest version of a name */

static CUresult not_supported(void) { return CUDA_ERROR_NOT_SUPPORTED; }

cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
                                             unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *status) {
    typedef CUresult Lookup(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    Lookup *lookup = driver ? (Lookup *)dlsym(driver, "cuGetProcAddress_v2") : NULL;
    *function = NULL;
    if (lookup) lookup(name, function, CUDA_VERSION, 0, NULL);
    if (!*function) *function = (void *)not_supported;
    if (status) *status = cudaDriverEntryPointSuccess;
    return cudaSuccess;
}
cudaError_t cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long flags,
                                    enum cudaDriverEntryPointQueryResult *status) {
    return cudaGetDriverEntryPointByVersion(name, function, CUDART_VERSION, flags, status);
}
