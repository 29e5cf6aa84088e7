/* libcudart: captures and graphs. A graph is the list of what was captured, in order. */
#include "runtime.h"
#include <stdlib.h>

static cudaError_t begin(cudaStream_t stream, ng_graph *graph) {
    if ((uintptr_t)stream <= 2) return ng_fail(cudaErrorStreamCaptureUnsupported);
    ng_begin_capture(ng_stream_of(stream), graph);
    return cudaSuccess;
}
static ng_graph *new_graph(void) {
    static u64 last;
    ng_graph *graph = calloc(1, sizeof *graph);
    if (!graph) abort();
    graph->id = __sync_add_and_fetch(&last, 1);
    return graph;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
    RUNTIME(cudaStreamBeginCapture_v10000);
    return begin(stream, new_graph());
}
cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t stream, cudaGraph_t graph,
                                          const cudaGraphNode_t *after, const cudaGraphEdgeData *edges,
                                          size_t count, enum cudaStreamCaptureMode mode) {
    return begin(stream, (ng_graph *)graph);
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
    RUNTIME(cudaStreamEndCapture_v10000);
    if (!ng_stream_of(stream)->capture) return ng_fail(cudaErrorIllegalState);
    *graph = (cudaGraph_t)ng_end_capture(ng_stream_of(stream));
    return cudaSuccess;
}

static enum cudaStreamCaptureStatus status_of(const ng_stream *stream) {
    return stream->capture ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
    RUNTIME(cudaStreamIsCapturing_v10000);
    *status = status_of(ng_stream_of(stream));
    return cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t on, enum cudaStreamCaptureStatus *status,
                                     unsigned long long *id, cudaGraph_t *graph,
                                     const cudaGraphNode_t **after, const cudaGraphEdgeData **edges,
                                     size_t *count) {
    const ng_stream *stream = ng_stream_of(on);
    *status = status_of(stream);
    if (id) *id = stream->capture_id;
    if (graph) *graph = (cudaGraph_t)stream->capture;
    if (after) *after = NULL;
    if (edges) *edges = NULL;
    if (count) *count = 0;
    return cudaSuccess;
}
cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t stream, cudaGraphNode_t *nodes,
                                                const cudaGraphEdgeData *edges, size_t count,
                                                unsigned flags) {
    return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) {
    static __thread enum cudaStreamCaptureMode now = cudaStreamCaptureModeGlobal;
    enum cudaStreamCaptureMode was = now;
    now = *mode;
    *mode = was;
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *out, cudaGraph_t graph,
                                          unsigned long long flags) {
    RUNTIME(cudaGraphInstantiateWithFlags_v11040);
    *out = (cudaGraphExec_t)graph;
    return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags) {
    return cudaGraphInstantiateWithFlags(out, graph, flags);
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
    RUNTIME(cudaGraphLaunch_v10000);
    NOT_BROKEN;
    ng_submit_graph(ng_stream_of(stream), (ng_graph *)graph);
    return cudaSuccess;
}
/* Graph and executable are one list here, and torch destroys the graph first: neither frees it. */
cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return cudaSuccess; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) { return cudaSuccess; }
cudaError_t cudaGraphGetNodes(cudaGraph_t of, cudaGraphNode_t *nodes, size_t *count) {
    const ng_graph *graph = (ng_graph *)of;
    for (size_t i = 0; nodes && i < graph->count && i < *count; i++)
        nodes[i] = (cudaGraphNode_t)(graph->nodes + i);
    *count = graph->count;
    return cudaSuccess;
}
cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t node, cudaGraphNode_t *after,
                                         cudaGraphEdgeData *edges, size_t *count) {
    *count = 0;
    return cudaSuccess;
}
cudaError_t cudaGraphDebugDotPrint(cudaGraph_t graph, const char *path, unsigned flags) {
    return ng_fail(cudaErrorNotSupported);
}
cudaError_t cudaGraphAddNode(cudaGraphNode_t *node, cudaGraph_t graph, const cudaGraphNode_t *after,
                             const cudaGraphEdgeData *edges, size_t count,
                             struct cudaGraphNodeParams *how) {
    return ng_fail(cudaErrorNotSupported);
}
cudaError_t cudaGraphConditionalHandleCreate(cudaGraphConditionalHandle *handle, cudaGraph_t graph,
                                             unsigned value, unsigned flags) {
    return ng_fail(cudaErrorNotSupported);
}
