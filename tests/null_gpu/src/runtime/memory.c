/* libcudart: memory and copies. */
#define _GNU_SOURCE
#include "runtime.h"
#include <stdlib.h>
#include <string.h>

/* Allocation */

cudaError_t cudaMalloc(void **at, size_t size) {
    RUNTIME(cudaMalloc_v3020);
    NOT_BROKEN;
    return ng_allocate(at, size) ? ng_fail(cudaErrorMemoryAllocation) : cudaSuccess;
}
cudaError_t cudaFree(void *at) {
    RUNTIME(cudaFree_v3020);
    NOT_BROKEN;
    ng_need_context();
    ng_finish_device(ng_current()); /* it synchronizes */
    return ng_release(at) ? ng_fail(cudaErrorInvalidValue) : cudaSuccess;
}
cudaError_t cudaMallocAsync(void **at, size_t size, cudaStream_t stream) {
    RUNTIME(cudaMallocAsync_v11020);
    return ng_allocate(at, size) ? ng_fail(cudaErrorMemoryAllocation) : cudaSuccess;
}
cudaError_t cudaFreeAsync(void *at, cudaStream_t stream) {
    RUNTIME(cudaFreeAsync_v11020);
    return ng_release(at) ? ng_fail(cudaErrorInvalidValue) : cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t *left, size_t *total) {
    RUNTIME(cudaMemGetInfo_v3020);
    NOT_BROKEN;
    ng_need_context();
    ng_room(ng_current(), left, total);
    return cudaSuccess;
}
cudaError_t cudaHostAlloc(void **at, size_t size, unsigned flags) {
    RUNTIME(cudaHostAlloc_v3020);
    ng_need_context();
    *at = ng_host_allocate(size);
    return *at ? cudaSuccess : ng_fail(cudaErrorMemoryAllocation);
}
cudaError_t cudaFreeHost(void *at) {
    RUNTIME(cudaFreeHost_v3020);
    return ng_host_release(at) ? ng_fail(cudaErrorInvalidValue) : cudaSuccess;
}
cudaError_t cudaHostRegister(void *at, size_t size, unsigned flags) {
    RUNTIME(cudaHostRegister_v4000);
    if (ng_is_pinned(at)) return ng_fail(cudaErrorHostMemoryAlreadyRegistered);
    ng_host_register(at, size);
    return cudaSuccess;
}
cudaError_t cudaHostUnregister(void *at) {
    RUNTIME(cudaHostUnregister_v4000);
    return ng_host_unregister(at) ? ng_fail(cudaErrorInvalidValue) : cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *out, const void *at) {
    RUNTIME(cudaPointerGetAttributes_v4000);
    int device = ng_device_of(at);
    memset(out, 0, sizeof *out);
    out->device = -2;
    if (device >= 0) {
        out->type = cudaMemoryTypeDevice;
        out->device = device;
        out->devicePointer = (void *)at;
    } else {
        out->type = ng_is_pinned(at) ? cudaMemoryTypeHost : cudaMemoryTypeUnregistered;
        out->hostPointer = (void *)at;
        if (out->type == cudaMemoryTypeHost) {
            out->device = ng_current();
            out->devicePointer = (void *)at;
        }
    }
    return cudaSuccess;
}

/* Copies: bytes that the host reads, and small ones, really move; the rest would only touch pages */

static int kind_of(const void *to, const void *from, enum cudaMemcpyKind kind) {
    if (kind != cudaMemcpyDefault) return kind;
    if (ng_device_of(to) >= 0)
        return ng_device_of(from) >= 0 ? cudaMemcpyDeviceToDevice : cudaMemcpyHostToDevice;
    return ng_device_of(from) >= 0 ? cudaMemcpyDeviceToHost : cudaMemcpyHostToHost;
}

static int moves(int kind, size_t size) {
    return size <= ng_settings()->copy_limit || kind == cudaMemcpyDeviceToHost ||
           kind == cudaMemcpyHostToHost;
}

static ng_node copy_node(int kind, int is_pinned, size_t size) {
    const ng_card *card = &ng_settings()->card;
    double rate = kind == cudaMemcpyDeviceToDevice ? card->bytes_per_second * 0.4
                  : is_pinned                      ? 50e9
                                                   : 12e9;
    return (ng_node){.kind = NODE_COPY, .bytes = size, .copy_kind = kind, .pinned = is_pinned,
                     .cost = (u64)(1200 + (double)size / rate * 1e9)};
}

static cudaError_t copy(void *to, const void *from, size_t size, enum cudaMemcpyKind asked,
                        cudaStream_t on, int has_to_wait) {
    NOT_BROKEN;
    if (!size) return cudaSuccess;
    int kind = kind_of(to, from, asked);
    int is_pinned = kind == cudaMemcpyHostToDevice   ? ng_is_pinned(from)
                    : kind == cudaMemcpyDeviceToHost ? ng_is_pinned(to)
                                                     : 1;
    ng_stream *stream = ng_stream_of(on);
    ng_node node = copy_node(kind, is_pinned, size);
    if (moves(kind, size)) node.to = to, node.from = from;
    if (node.to && !is_pinned && kind == cudaMemcpyHostToDevice) {
        memmove(to, from, size); /* the caller may drop these bytes as soon as this returns */
        node.to = NULL;
    }
    ng_submit(stream, &node);
    if (stream->capture) return cudaSuccess;
    if (has_to_wait || (!is_pinned && kind == cudaMemcpyDeviceToHost)) ng_finish(stream);
    return ng_broken();
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t size, enum cudaMemcpyKind kind) {
    RUNTIME(cudaMemcpy_v3020);
    return copy(to, from, size, kind, NULL, 1);
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, enum cudaMemcpyKind kind,
                            cudaStream_t stream) {
    RUNTIME(cudaMemcpyAsync_v3020);
    return copy(to, from, size, kind, stream, 0);
}
cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device,
                                size_t size, cudaStream_t stream) {
    RUNTIME(cudaMemcpyPeerAsync_v4000);
    return copy(to, from, size, cudaMemcpyDeviceToDevice, stream, 0);
}
cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                              size_t width, size_t height, enum cudaMemcpyKind asked,
                              cudaStream_t on) {
    RUNTIME(cudaMemcpy2DAsync_v3020);
    NOT_BROKEN;
    int kind = kind_of(to, from, asked);
    ng_node node = copy_node(kind, 1, width * height);
    ng_submit(ng_stream_of(on), &node);
    for (size_t row = 0; moves(kind, width * height) && row < height; row++)
        memmove((char *)to + row * to_pitch, (const char *)from + row * from_pitch, width);
    return cudaSuccess;
}

static cudaError_t fill(void *at, int value, size_t size, cudaStream_t on) {
    NOT_BROKEN;
    if (!size) return cudaSuccess;
    ng_stream *stream = ng_stream_of(on);
    double seconds = (double)size / (ng_settings()->card.bytes_per_second * 0.8);
    ng_node node = {.kind = NODE_SET, .bytes = size, .value = value,
                    .to = size <= ng_settings()->copy_limit ? at : NULL,
                    .cost = (u64)(1200 + seconds * 1e9)};
    ng_submit(stream, &node);
    return cudaSuccess;
}
cudaError_t cudaMemset(void *at, int value, size_t size) {
    RUNTIME(cudaMemset_v3020);
    return fill(at, value, size, NULL);
}
cudaError_t cudaMemsetAsync(void *at, int value, size_t size, cudaStream_t stream) {
    RUNTIME(cudaMemsetAsync_v3020);
    return fill(at, value, size, stream);
}

/* Variables of the device code */

typedef struct Symbol { const void *host; void *device; size_t size; struct Symbol *next; } Symbol;
static Symbol *symbols;

void __cudaRegisterVar(void **module, char *host, char *device, const char *name, int is_extern,
                       size_t size, int is_constant, int is_global) {
    Symbol *symbol = malloc(sizeof *symbol);
    if (!symbol) abort();
    *symbol = (Symbol){host, NULL, size, symbols};
    symbols = symbol;
}
void __cudaRegisterManagedVar(void **module, void **host, char *device, const char *name,
                              int is_extern, size_t size, int is_constant, int is_global) {
    *host = ng_reserve(0, size);
}

static Symbol *symbol_of(const void *host) {
    for (Symbol *symbol = symbols; symbol; symbol = symbol->next)
        if (symbol->host == host) {
            if (!symbol->device) symbol->device = ng_reserve(ng_current(), symbol->size);
            return symbol;
        }
    return NULL;
}
cudaError_t cudaGetSymbolAddress(void **at, const void *host) {
    Symbol *symbol = symbol_of(host);
    if (!symbol) return ng_fail(cudaErrorInvalidSymbol);
    *at = symbol->device;
    return cudaSuccess;
}
cudaError_t cudaMemcpyToSymbol(const void *host, const void *from, size_t size, size_t offset,
                               enum cudaMemcpyKind kind) {
    Symbol *symbol = symbol_of(host);
    if (!symbol) return ng_fail(cudaErrorInvalidSymbol);
    return copy((char *)symbol->device + offset, from, size, kind, NULL, 1);
}

/* Pools of cudaMallocAsync, as far as torch asks of them */

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device) {
    static int pools[MOST_DEVICES];
    *pool = (cudaMemPool_t)&pools[device];
    return cudaSuccess;
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr which, void *value) {
    return cudaSuccess;
}
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr which, void *value) {
    *(u64 *)value = 0;
    return cudaSuccess;
}
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t keep) {
    return cudaSuccess;
}
cudaError_t cudaMemPoolSetAccess(cudaMemPool_t pool, const struct cudaMemAccessDesc *list,
                                 size_t count) {
    return cudaSuccess;
}

/* Memory of other processes */

#define REFUSED { return ng_fail(cudaErrorNotSupported); }
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *at) REFUSED
cudaError_t cudaIpcOpenMemHandle(void **at, cudaIpcMemHandle_t handle, unsigned flags) REFUSED
cudaError_t cudaIpcCloseMemHandle(void *at) REFUSED
cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t *handle, cudaEvent_t event) REFUSED
cudaError_t cudaIpcOpenEventHandle(cudaEvent_t *event, cudaIpcEventHandle_t handle) REFUSED
