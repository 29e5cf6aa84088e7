/* Streams: work in order on a clock that is waited for.
 *
 * Work is settled, that is given its begin and end, as soon as it is submitted, unless something
 * before it in its stream waits for another process (a gate) or for a stream that does. Then it
 * queues, and is settled when somebody looks, or by a thread that lives for that. */
#define _GNU_SOURCE
#include "null.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define UNSETTLED UINT64_MAX
enum { LAUNCH_NS = 2000, GAP_NS = 700, MARK_NS = 1000, SPIN_NS = 60000, LOOK_NS = 20000 };

struct ng_mark { int holders, is_settled; u64 when; };

typedef enum { OP_WORK, OP_GATE, OP_MARK, OP_WAIT } Kind;
typedef struct ng_op {
    struct ng_op *next;
    Kind kind;
    u64 asked, graph, slot;
    u32 correlation;
    ng_node node;
    ng_mark *mark;
    ng_gate *gate;
} Op;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t something_queued = PTHREAD_COND_INITIALIZER;
static ng_stream defaults[MOST_DEVICES], *streams;
static u32 stream_count;
static size_t queued;
static u64 captures;

/* The clock */

u64 ng_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (u64)now.tv_sec * 1000000000u + (u64)now.tv_nsec;
}

static void pause_for(u64 ns) {
    struct timespec pause = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    nanosleep(&pause, NULL);
}

/* The last stretch is spun, as the driver does: a sleep is late by tens of microseconds. */
void ng_sleep_until(u64 when) {
    for (u64 now = ng_now(); now < when; now = ng_now())
        if (when - now > SPIN_NS) pause_for(when - now - SPIN_NS + 5000);
}

/* Settling */

static u64 later(u64 a, u64 b) { return a > b ? a : b; }

static void move_bytes(const ng_node *node) {
    if (node->to && node->kind == NODE_COPY) memmove(node->to, node->from, node->bytes);
    if (node->to && node->kind == NODE_SET) memset(node->to, node->value, node->bytes);
}

static void finished(ng_stream *stream, const Op *op, u64 start, u64 end) {
    move_bytes(&op->node);
    stream->busy_until = end;
    stream->ends[op->slot % ng_settings()->queue] = end;
    if (ng_activity.on && ng_activity.node)
        ng_activity.node(&op->node, start, end, stream, op->correlation, op->graph);
}

static void drop(ng_mark *mark) {
    if (mark && !--mark->holders) free(mark);
}

/* Give the operation its time; 0 if that cannot be known yet. The caller holds the lock. */
static int settle(ng_stream *stream, Op *op) {
    u64 ready, end;
    switch (op->kind) {
    case OP_WORK:
        ready = later(op->asked + LAUNCH_NS, stream->busy_until + GAP_NS);
        finished(stream, op, ready, ready + (u64)((double)op->node.cost * ng_settings()->pace));
        return 1;
    case OP_GATE:
        ready = later(op->asked + LAUNCH_NS, stream->busy_until + GAP_NS);
        if (!op->gate->reach(op->gate, ready, &end)) return 0;
        finished(stream, op, ready, end);
        return 1;
    case OP_MARK:
        op->mark->when = later(op->asked + MARK_NS, stream->busy_until);
        op->mark->is_settled = 1;
        drop(op->mark);
        return 1;
    case OP_WAIT:
        if (!op->mark->is_settled) return 0;
        stream->busy_until = later(stream->busy_until, op->mark->when);
        drop(op->mark);
        return 1;
    }
    return 1;
}

/* Settle whatever can be, in all streams; the caller holds the lock. */
static void settle_all(void) {
    for (int has_moved = queued > 0; has_moved;) {
        has_moved = 0;
        for (ng_stream *stream = streams; stream; stream = stream->next)
            while (stream->head && settle(stream, stream->head)) {
                Op *op = stream->head;
                stream->head = op->next;
                free(op);
                queued--;
                has_moved = 1;
            }
    }
}

static void *keep_settling(void *unused) {
    for (;;) {
        pthread_mutex_lock(&lock);
        while (!queued) pthread_cond_wait(&something_queued, &lock);
        settle_all();
        pthread_mutex_unlock(&lock);
        pause_for(LOOK_NS);
    }
    return NULL;
}

static void submit(ng_stream *stream, Op *op) {
    static int is_settling;
    op->asked = ng_now();
    pthread_mutex_lock(&lock);
    settle_all();
    if (stream->head || !settle(stream, op)) {
        Op *kept = malloc(sizeof *kept);
        if (!kept) abort();
        *kept = *op;
        kept->next = NULL;
        if (stream->head) stream->tail->next = kept;
        else stream->head = kept;
        stream->tail = kept;
        queued++;
        pthread_t thread;
        if (!is_settling && !pthread_create(&thread, NULL, keep_settling, NULL)) {
            is_settling = 1;
            pthread_detach(thread);
        }
        pthread_cond_signal(&something_queued);
    }
    pthread_mutex_unlock(&lock);
}

/* Wait for room in the stream's queue, as the driver lets the host wait; returns the place. */
static u64 admitted(ng_stream *stream) {
    u32 room = ng_settings()->queue;
    for (;;) {
        pthread_mutex_lock(&lock);
        settle_all();
        u64 place = stream->issued, end = stream->ends[place % room];
        if (end != UNSETTLED || ng_broken()) {
            stream->issued++;
            stream->ends[place % room] = UNSETTLED;
            pthread_mutex_unlock(&lock);
            if (end != UNSETTLED) ng_sleep_until(end);
            return place;
        }
        pthread_mutex_unlock(&lock);
        pause_for(LOOK_NS);
    }
}

/* Streams */

static void enlist(ng_stream *stream, int device, u32 id) {
    stream->ends = calloc(ng_settings()->queue, sizeof *stream->ends);
    if (!stream->ends) abort();
    stream->device = device;
    stream->id = id;
    stream->next = streams;
    streams = stream;
}

ng_stream *ng_stream_of(cudaStream_t stream) {
    if ((uintptr_t)stream > 2) return (ng_stream *)stream; /* 0 to 2 are CUDA's own handles */
    int device = ng_current();
    pthread_mutex_lock(&lock);
    if (!defaults[device].ends) enlist(&defaults[device], device, 7);
    pthread_mutex_unlock(&lock);
    return &defaults[device];
}

ng_stream *ng_stream_new(unsigned flags, int priority) {
    ng_stream *stream = calloc(1, sizeof *stream);
    if (!stream) abort();
    ng_need_context();
    stream->flags = flags;
    stream->priority = priority;
    pthread_mutex_lock(&lock);
    enlist(stream, ng_current(), 13 + 4 * stream_count++);
    pthread_mutex_unlock(&lock);
    return stream;
}

void ng_stream_delete(ng_stream *stream) {
    ng_finish(stream);
    pthread_mutex_lock(&lock);
    ng_stream **link = &streams;
    while (*link && *link != stream) link = &(*link)->next;
    if (*link) *link = stream->next;
    pthread_mutex_unlock(&lock);
    free(stream->ends);
    free(stream);
}

void ng_submit(ng_stream *stream, const ng_node *node) {
    ng_need_context();
    ng_graph *graph = stream->capture;
    if (!graph) {
        Op op = {.kind = OP_WORK, .node = *node, .correlation = ng_correlation()};
        op.slot = admitted(stream);
        submit(stream, &op);
        return;
    }
    pthread_mutex_lock(&lock);
    if (graph->count == graph->room) {
        graph->room = graph->room ? 2 * graph->room : 64;
        graph->nodes = realloc(graph->nodes, graph->room * sizeof *graph->nodes);
        if (!graph->nodes) abort();
    }
    graph->nodes[graph->count++] = *node;
    pthread_mutex_unlock(&lock);
}

/* A graph takes one place in the queue, however many kernels it holds. */
void ng_submit_graph(ng_stream *stream, const ng_graph *graph) {
    Op op = {.kind = OP_WORK, .graph = graph->id, .correlation = ng_correlation()};
    op.slot = admitted(stream);
    for (size_t i = 0; i < graph->count; i++) {
        op.node = graph->nodes[i];
        submit(stream, &op);
    }
    if (!graph->count) stream->ends[op.slot % ng_settings()->queue] = 0;
}

void ng_submit_gate(ng_stream *stream, ng_gate *gate) {
    ng_need_context();
    Op op = {.kind = OP_GATE, .gate = gate, .node = gate->node, .correlation = ng_correlation()};
    op.slot = admitted(stream);
    submit(stream, &op);
}

/* Events */

void ng_forget(ng_event *event) {
    pthread_mutex_lock(&lock);
    drop(event->mark);
    event->mark = NULL;
    pthread_mutex_unlock(&lock);
}

void ng_record(ng_event *event, ng_stream *stream) {
    ng_forget(event);
    event->capture = stream->capture;
    event->capture_id = stream->capture_id;
    if (event->capture) return;
    event->mark = calloc(1, sizeof *event->mark);
    if (!event->mark) abort();
    event->mark->holders = 2; /* the event, and the operation */
    Op op = {.kind = OP_MARK, .mark = event->mark};
    submit(stream, &op);
}

void ng_wait_event(ng_stream *stream, const ng_event *event) {
    if (event->capture && !stream->capture) { /* the other stream joins the capture */
        stream->capture = event->capture;
        stream->capture_id = event->capture_id;
    }
    if (!event->mark) return;
    pthread_mutex_lock(&lock);
    event->mark->holders++;
    pthread_mutex_unlock(&lock);
    Op op = {.kind = OP_WAIT, .mark = event->mark};
    submit(stream, &op);
}

int ng_event_time(const ng_event *event, u64 *when) {
    if (!event->mark) return -1;
    pthread_mutex_lock(&lock);
    settle_all();
    int is_settled = event->mark->is_settled;
    *when = event->mark->when;
    pthread_mutex_unlock(&lock);
    return is_settled;
}

/* Waiting */

/* The end of all work of one stream, or of one device's streams; 0 if it is not known yet. */
static int known_end(const ng_stream *only, int device, u64 *end) {
    int is_known = 1;
    *end = 0;
    pthread_mutex_lock(&lock);
    settle_all();
    for (const ng_stream *stream = streams; stream; stream = stream->next) {
        if (only ? stream != only : stream->device != device) continue;
        if (stream->head) is_known = 0;
        *end = later(*end, stream->busy_until);
    }
    pthread_mutex_unlock(&lock);
    return is_known;
}

int ng_is_idle(ng_stream *stream) {
    u64 end;
    return known_end(stream, 0, &end) && ng_now() >= end;
}

static void finish(const ng_stream *stream, int device) {
    u64 end;
    while (!known_end(stream, device, &end)) {
        if (ng_broken()) return;
        pause_for(LOOK_NS);
    }
    ng_sleep_until(end);
}

void ng_finish(ng_stream *stream) { finish(stream, 0); }
void ng_finish_device(int device) { finish(NULL, device); }

/* Captures */

void ng_begin_capture(ng_stream *stream, ng_graph *graph) {
    stream->capture = graph;
    stream->capture_id = __sync_add_and_fetch(&captures, 1);
}

ng_graph *ng_end_capture(ng_stream *stream) {
    ng_graph *graph = stream->capture;
    u64 id = stream->capture_id;
    pthread_mutex_lock(&lock);
    for (ng_stream *each = streams; each; each = each->next)
        if (each->capture && each->capture_id == id) each->capture = NULL, each->capture_id = 0;
    pthread_mutex_unlock(&lock);
    return graph;
}
