/* libcupti: records of calls and work, in buffers that the profiler gives. */
#include "../core/null.h"
#include "names.h"
#include <cupti.h>
#include <pthread.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { KINDS = 256, EXTERNAL_KINDS = 8, DEEPEST = 64 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static CUpti_BuffersCallbackRequestFunc give_buffer;
static CUpti_BuffersCallbackCompleteFunc take_buffer;
static CUpti_TimestampCallbackFunc clock_of_profiler;
static uint8_t *buffer;
static size_t size, filled;
static int is_enabled[KINDS];
static u64 calibrated_ns, calibrated_stamp;
static __thread struct { u64 ids[DEEPEST]; int depth; } external[EXTERNAL_KINDS];

/* The profiler's clock, and that clock at a time of ours: both are read when profiling begins and
 * again now, which tells how fast one goes beside the other. */

static u64 stamp(void) {
    struct timespec now;
    if (clock_of_profiler) return clock_of_profiler();
    clock_gettime(CLOCK_REALTIME, &now);
    return (u64)now.tv_sec * 1000000000u + (u64)now.tv_nsec;
}
/* Both clocks at one moment: read again if the thread was interrupted in between. */
static void read_both(u64 *ns, u64 *at_stamp) {
    for (int attempt = 0; attempt < 20; attempt++) {
        u64 before = ng_now();
        *at_stamp = stamp();
        *ns = before + (ng_now() - before) / 2;
        if (*ns - before < 200) return;
    }
}
static u64 stamp_at(u64 when) {
    u64 now, now_stamp;
    read_both(&now, &now_stamp);
    double rate = 1;
    if (clock_of_profiler && now > calibrated_ns + 1000000)
        rate = (double)(now_stamp - calibrated_stamp) / (double)(now - calibrated_ns);
    return now_stamp + (u64)(int64_t)(((double)when - (double)now) * rate);
}
static void calibrate(void) {
    read_both(&calibrated_ns, &calibrated_stamp);
    ng_sleep_until(calibrated_ns + 3000000);
}

/* Buffers */

static size_t padded(size_t bytes) { return (bytes + 7) & ~(size_t)7; }
static size_t length_of(CUpti_ActivityKind kind) {
    switch (kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: return sizeof(NG_KERNEL_RECORD);
    case CUPTI_ACTIVITY_KIND_MEMCPY: return sizeof(NG_MEMCPY_RECORD);
    case CUPTI_ACTIVITY_KIND_MEMSET: return sizeof(NG_MEMSET_RECORD);
    case CUPTI_ACTIVITY_KIND_RUNTIME:
    case CUPTI_ACTIVITY_KIND_DRIVER: return sizeof(CUpti_ActivityAPI);
    case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION: return sizeof(CUpti_ActivityExternalCorrelation);
    case CUPTI_ACTIVITY_KIND_SYNCHRONIZATION: return sizeof(NG_SYNCHRONIZATION_RECORD);
    default: return 0;
    }
}
static void hand_over(void) {
    if (buffer && take_buffer) take_buffer(NULL, 0, buffer, size, filled);
    buffer = NULL;
    size = filled = 0;
}
static void emit(const void *record, size_t bytes) {
    size_t most = 0;
    pthread_mutex_lock(&lock);
    if (buffer && filled + padded(bytes) > size) hand_over();
    if (!buffer && give_buffer) give_buffer(&buffer, &size, &most);
    if (buffer && filled + padded(bytes) <= size) {
        memcpy(buffer + filled, record, bytes);
        filled += padded(bytes);
    }
    pthread_mutex_unlock(&lock);
}

/* Records */

static void on_call(const ng_api *call, u64 end) {
    for (u32 kind = 0; is_enabled[CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION] && kind < EXTERNAL_KINDS;
         kind++) {
        if (!external[kind].depth) continue;
        CUpti_ActivityExternalCorrelation record = {
            .kind = CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION,
            .externalKind = (CUpti_ExternalCorrelationKind)kind,
            .externalId = external[kind].ids[(external[kind].depth - 1) % DEEPEST],
            .correlationId = call->correlation};
        emit(&record, sizeof record);
    }
    CUpti_ActivityKind kind = call->kind == API_RUNTIME ? CUPTI_ACTIVITY_KIND_RUNTIME
                                                        : CUPTI_ACTIVITY_KIND_DRIVER;
    if (!is_enabled[kind]) return;
    CUpti_ActivityAPI record = {.kind = kind, .cbid = (CUpti_CallbackId)call->cbid,
                                .start = call->start, .end = end, .processId = (u32)getpid(),
                                .threadId = (u32)pthread_self(), .correlationId = call->correlation};
    emit(&record, sizeof record);
}

static u32 copy_kind_of(int kind) {
    return kind == cudaMemcpyHostToDevice   ? CUPTI_ACTIVITY_MEMCPY_KIND_HTOD
           : kind == cudaMemcpyDeviceToHost ? CUPTI_ACTIVITY_MEMCPY_KIND_DTOH
           : kind == cudaMemcpyHostToHost   ? CUPTI_ACTIVITY_MEMCPY_KIND_HTOH
                                            : CUPTI_ACTIVITY_MEMCPY_KIND_DTOD;
}

#define COMMON(record)                                                                             \
    (record).start = stamp_at(start), (record).end = stamp_at(end),                                \
    (record).deviceId = (u32)stream->device, (record).contextId = 1u + (u32)stream->device,        \
    (record).streamId = stream->id, (record).correlationId = correlation,                          \
    (record).graphId = (u32)graph
static void on_node(const ng_node *node, u64 start, u64 end, const ng_stream *stream, u32 correlation,
                    u64 graph) {
    if (node->kind == NODE_KERNEL && is_enabled[CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL]) {
        NG_KERNEL_RECORD record;
        memset(&record, 0, sizeof record);
        record.kind = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
        record.name = node->name;
        record.registersPerThread = 32;
        record.gridX = (int)node->grid[0], record.gridY = (int)node->grid[1];
        record.gridZ = (int)node->grid[2];
        record.blockX = (int)node->block[0], record.blockY = (int)node->block[1];
        record.blockZ = (int)node->block[2];
        record.dynamicSharedMemory = (int)node->shared;
        COMMON(record);
        emit(&record, sizeof record);
    } else if (node->kind == NODE_COPY && is_enabled[CUPTI_ACTIVITY_KIND_MEMCPY]) {
        NG_MEMCPY_RECORD record;
        int host = node->pinned ? CUPTI_ACTIVITY_MEMORY_KIND_PINNED : CUPTI_ACTIVITY_MEMORY_KIND_PAGEABLE;
        memset(&record, 0, sizeof record);
        record.kind = CUPTI_ACTIVITY_KIND_MEMCPY;
        record.copyKind = (uint8_t)copy_kind_of(node->copy_kind);
        record.srcKind = record.dstKind = CUPTI_ACTIVITY_MEMORY_KIND_DEVICE;
        if (node->copy_kind == cudaMemcpyHostToDevice) record.srcKind = (uint8_t)host;
        if (node->copy_kind == cudaMemcpyDeviceToHost) record.dstKind = (uint8_t)host;
        record.bytes = node->bytes;
        COMMON(record);
        emit(&record, sizeof record);
    } else if (node->kind == NODE_SET && is_enabled[CUPTI_ACTIVITY_KIND_MEMSET]) {
        NG_MEMSET_RECORD record;
        memset(&record, 0, sizeof record);
        record.kind = CUPTI_ACTIVITY_KIND_MEMSET;
        record.value = (u32)node->value;
        record.bytes = node->bytes;
        record.memoryKind = CUPTI_ACTIVITY_MEMORY_KIND_DEVICE;
        COMMON(record);
        emit(&record, sizeof record);
    }
}

static void on_wait(int kind, u64 start, u64 end, int stream, u32 correlation) {
    if (!is_enabled[CUPTI_ACTIVITY_KIND_SYNCHRONIZATION]) return;
    NG_SYNCHRONIZATION_RECORD record;
    memset(&record, 0, sizeof record);
    record.kind = CUPTI_ACTIVITY_KIND_SYNCHRONIZATION;
    record.type = (CUpti_ActivitySynchronizationType)kind;
    record.start = start, record.end = end;
    record.correlationId = correlation;
    record.contextId = 1;
    record.streamId = stream < 0 ? (u32)CUPTI_SYNCHRONIZATION_INVALID_VALUE : (u32)stream;
    record.cudaEventId = (u32)CUPTI_SYNCHRONIZATION_INVALID_VALUE;
    emit(&record, sizeof record);
}

static void refresh(void) {
    int any = 0;
    for (int kind = 0; kind < KINDS; kind++) any |= is_enabled[kind];
    ng_activity.stamp = stamp;
    ng_activity.api = on_call;
    ng_activity.node = on_node;
    ng_activity.sync = on_wait;
    __sync_synchronize();
    ng_activity.on = any && give_buffer;
}

/* The interface. Another profiler that has subscribed first is what "refused" means. */

#define REFUSED (ng_settings()->refuses_cupti)

CUptiResult cuptiGetVersion(uint32_t *version) { return *version = CUPTI_API_VERSION, CUPTI_SUCCESS; }
CUptiResult cuptiGetResultString(CUptiResult result, const char **text) {
    *text = result == CUPTI_SUCCESS                              ? "CUPTI_SUCCESS"
            : result == CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED
                ? "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED"
                : "CUPTI_ERROR_UNKNOWN";
    return CUPTI_SUCCESS;
}
CUptiResult cuptiGetErrorMessage(CUptiResult result, const char **text) {
    return cuptiGetResultString(result, text);
}
CUptiResult cuptiSubscribe(CUpti_SubscriberHandle *subscriber, CUpti_CallbackFunc callback, void *data) {
    static int one;
    if (REFUSED) return CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED;
    *subscriber = (CUpti_SubscriberHandle)&one;
    return CUPTI_SUCCESS;
}
CUptiResult cuptiUnsubscribe(CUpti_SubscriberHandle subscriber) { return CUPTI_SUCCESS; }
CUptiResult cuptiEnableCallback(uint32_t on, CUpti_SubscriberHandle subscriber,
                                CUpti_CallbackDomain domain, CUpti_CallbackId id) {
    return CUPTI_SUCCESS;
}
CUptiResult cuptiEnableDomain(uint32_t on, CUpti_SubscriberHandle subscriber,
                              CUpti_CallbackDomain domain) {
    return CUPTI_SUCCESS;
}
CUptiResult cuptiGetCallbackName(CUpti_CallbackDomain domain, uint32_t id, const char **name) {
    if (domain == CUPTI_CB_DOMAIN_RUNTIME_API && id < NG_RUNTIME_NAMES) *name = ng_runtime_names[id];
    else if (domain == CUPTI_CB_DOMAIN_DRIVER_API && id < NG_DRIVER_NAMES) *name = ng_driver_names[id];
    else *name = NULL;
    return *name ? CUPTI_SUCCESS : CUPTI_ERROR_INVALID_PARAMETER;
}
CUptiResult cuptiFinalize(void) { return CUPTI_SUCCESS; }
static CUptiResult enable(CUpti_ActivityKind kind, int on) {
    if (REFUSED) return CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED;
    if ((unsigned)kind < KINDS) is_enabled[kind] = on;
    refresh();
    return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityEnable(CUpti_ActivityKind kind) { return enable(kind, 1); }
CUptiResult cuptiActivityDisable(CUpti_ActivityKind kind) { return enable(kind, 0); }
CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc request,
                                           CUpti_BuffersCallbackCompleteFunc complete) {
    if (REFUSED) return CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED;
    give_buffer = request;
    take_buffer = complete;
    calibrate();
    refresh();
    return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityRegisterTimestampCallback(CUpti_TimestampCallbackFunc callback) {
    clock_of_profiler = callback;
    calibrate();
    return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityFlushAll(uint32_t flag) {
    pthread_mutex_lock(&lock);
    hand_over();
    pthread_mutex_unlock(&lock);
    return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityGetNextRecord(uint8_t *from, size_t valid, CUpti_Activity **record) {
    uint8_t *next = *record ? (uint8_t *)*record + padded(length_of((*record)->kind)) : from;
    if (next >= from + valid) return CUPTI_ERROR_MAX_LIMIT_REACHED;
    *record = (CUpti_Activity *)next;
    return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityGetNumDroppedRecords(CUcontext context, uint32_t stream, size_t *dropped) {
    return *dropped = 0, CUPTI_SUCCESS;
}
CUptiResult cuptiActivityPushExternalCorrelationId(CUpti_ExternalCorrelationKind kind, uint64_t id) {
    if ((unsigned)kind >= EXTERNAL_KINDS) return CUPTI_ERROR_INVALID_PARAMETER;
    external[kind].ids[external[kind].depth++ % DEEPEST] = id;
    return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityPopExternalCorrelationId(CUpti_ExternalCorrelationKind kind, uint64_t *id) {
    if ((unsigned)kind >= EXTERNAL_KINDS || !external[kind].depth) return CUPTI_ERROR_QUEUE_EMPTY;
    u64 popped = external[kind].ids[--external[kind].depth % DEEPEST];
    if (id) *id = popped;
    return CUPTI_SUCCESS;
}
