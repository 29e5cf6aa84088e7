/* libcudart: streams and events. */
#include "runtime.h"
#include <stdlib.h>

/* Streams */

static cudaError_t new_stream(cudaStream_t *stream, unsigned flags, int priority) {
    *stream = (cudaStream_t)ng_stream_new(flags, priority);
    return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t *stream) {
    RUNTIME(cudaStreamCreate_v3020);
    return new_stream(stream, 0, 0);
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    RUNTIME(cudaStreamCreateWithFlags_v5000);
    return new_stream(stream, flags, 0);
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority) {
    RUNTIME(cudaStreamCreateWithPriority_v5050);
    return new_stream(stream, flags, priority);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    RUNTIME(cudaStreamDestroy_v5050);
    ng_stream_delete(ng_stream_of(stream));
    return cudaSuccess;
}
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority) {
    *priority = ng_stream_of(stream)->priority;
    return cudaSuccess;
}
cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned *flags) {
    *flags = ng_stream_of(stream)->flags;
    return cudaSuccess;
}
cudaError_t cudaStreamGetDevice(cudaStream_t stream, int *device) {
    *device = ng_stream_of(stream)->device;
    return cudaSuccess;
}
cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long *id) {
    *id = ng_stream_of(stream)->id;
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t on) {
    RUNTIME(cudaStreamSynchronize_v3020);
    NOT_BROKEN;
    ng_stream *stream = ng_stream_of(on);
    u64 from = ng_activity.on ? ng_activity.stamp() : 0;
    ng_finish(stream);
    if (from && ng_activity.on)
        ng_activity.sync(3, from, ng_activity.stamp(), (int)stream->id, ng_correlation());
    return ng_broken();
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
    RUNTIME(cudaStreamQuery_v3020);
    NOT_BROKEN;
    return ng_is_idle(ng_stream_of(stream)) ? cudaSuccess : ng_fail(cudaErrorNotReady);
}

/* Functions of the host run in the caller, after the work before them. */
cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t function, void *data,
                                  unsigned flags) {
    ng_finish(ng_stream_of(stream));
    function(stream, ng_broken(), data);
    return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data) {
    RUNTIME(cudaLaunchHostFunc_v10000);
    if (ng_stream_of(stream)->capture) return ng_fail(cudaErrorNotSupported);
    ng_finish(ng_stream_of(stream));
    function(data);
    return cudaSuccess;
}

/* Events */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags) {
    RUNTIME(cudaEventCreateWithFlags_v3020);
    ng_event *event = calloc(1, sizeof *event);
    if (!event) return ng_fail(cudaErrorMemoryAllocation);
    ng_need_context();
    event->flags = flags;
    *out = (cudaEvent_t)event;
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t *event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
    RUNTIME(cudaEventDestroy_v3020);
    ng_forget((ng_event *)event);
    free(event);
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    RUNTIME(cudaEventRecord_v3020);
    NOT_BROKEN;
    ng_record((ng_event *)event, ng_stream_of(stream));
    return cudaSuccess;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
    RUNTIME(cudaEventRecordWithFlags_v11010);
    NOT_BROKEN;
    ng_record((ng_event *)event, ng_stream_of(stream));
    return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
    RUNTIME(cudaEventQuery_v3020);
    NOT_BROKEN;
    u64 when;
    int state = ng_event_time((ng_event *)event, &when);
    return state < 0 || (state && ng_now() >= when) ? cudaSuccess : ng_fail(cudaErrorNotReady);
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    RUNTIME(cudaEventSynchronize_v3020);
    NOT_BROKEN;
    u64 when = 0, from = ng_activity.on ? ng_activity.stamp() : 0;
    int state;
    while (!(state = ng_event_time((ng_event *)event, &when)) && !ng_broken())
        ng_sleep_until(ng_now() + 20000);
    if (state > 0) ng_sleep_until(when);
    if (from && ng_activity.on) ng_activity.sync(1, from, ng_activity.stamp(), -1, ng_correlation());
    return ng_broken();
}
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t begin, cudaEvent_t end) {
    RUNTIME(cudaEventElapsedTime_v3020);
    NOT_BROKEN;
    const ng_event *first = (ng_event *)begin, *second = (ng_event *)end;
    u64 from, to;
    int begun = ng_event_time(first, &from), ended = ng_event_time(second, &to);
    if (begun < 0 || ended < 0 || (first->flags | second->flags) & cudaEventDisableTiming)
        return ng_fail(cudaErrorInvalidResourceHandle);
    if (!begun || !ended || ng_now() < from || ng_now() < to) return ng_fail(cudaErrorNotReady);
    *ms = (float)(((double)to - (double)from) * 1e-6);
    return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
    RUNTIME(cudaStreamWaitEvent_v3020);
    NOT_BROKEN;
    ng_wait_event(ng_stream_of(stream), (ng_event *)event);
    return cudaSuccess;
}
