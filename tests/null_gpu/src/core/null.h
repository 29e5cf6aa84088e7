/* State that all stand-in libraries share: cards, memory, streams, kernels, and what a profiler is
 * reported. Kernels compute nothing; everything else behaves as the host side of CUDA sees it. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <cuda.h>
#include <cuda_runtime_api.h>
#include "card.h"

typedef uint32_t u32;
typedef uint64_t u64;
#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define GRAIN (2 * MIB) /* what the driver hands out physical memory in */
enum { MOST_DEVICES = 16 };

/* settings.c: the environment, read once */

typedef struct {
    ng_card card;             /* the one that was chosen, name and sizes as set */
    int count;
    double pace;              /* factor on every duration */
    u32 queue;                /* launches of a stream before the host waits */
    u64 fail_at;              /* the launch of this process that breaks the context; 0: none */
    size_t kernel_bytes;      /* device memory that the first launch of a kernel takes */
    size_t copy_limit;        /* larger copies between devices touch no page */
    size_t cudnn_version, cudnn_workspace;
    int refuses_cupti;
    u64 nccl_fail_at;         /* the collective that reports a lost peer; 0: none */
} ng_settings_t;
const ng_settings_t *ng_settings(void);
int ng_device_count(void);          /* that CUDA_VISIBLE_DEVICES leaves */
int ng_physical(int device);        /* its index among all cards of the box */
void ng_uuid(unsigned char out[16], int physical);
void ng_note(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* errors.c: the last error of a thread, and the one that breaks the context */

cudaError_t ng_fail(cudaError_t error);
cudaError_t ng_last(int clear);
cudaError_t ng_broken(void);
void ng_break(cudaError_t error, u64 when);
int ng_current(void);
void ng_set_current(int device);
int ng_has_context(int device);
void ng_need_context(void);

/* memory.c: address space that nobody touches, and what is taken of the card */

int ng_take(int device, size_t size);             /* 0 when it fits */
void ng_give(int device, size_t size);
void *ng_reserve(int device, size_t size);        /* addresses alone */
void ng_unreserve(void *at, size_t size);
int ng_allocate(void **at, size_t size);
int ng_release(void *at);
void ng_room(int device, size_t *left, size_t *total);
int ng_device_of(const void *at);                 /* -1: not device memory */
int ng_range_of(const void *at, void **base, size_t *size);
void *ng_host_allocate(size_t size);
int ng_host_release(void *at);
void ng_host_register(void *at, size_t size);
int ng_host_unregister(void *at);
int ng_is_pinned(const void *at);

/* board.c: what every process holds, for NVML */

void ng_board_publish(int physical, size_t bytes);
int ng_board_slot(int index, int physical, unsigned *pid, size_t *bytes);
enum { BOARD_SLOTS = 64 };

/* streams.c: work in order, a clock, a queue of finite length */

typedef enum { NODE_KERNEL, NODE_COPY, NODE_SET } ng_kind;
typedef struct {
    ng_kind kind;
    const char *name;         /* of a kernel, as CUPTI has it */
    u32 grid[3], block[3], shared;
    size_t bytes;
    int copy_kind, pinned, value;
    void *to;                 /* where bytes really move, when the node's turn comes; else NULL */
    const void *from;
    u64 cost;                 /* ns */
} ng_node;

typedef struct ng_graph {
    u64 id;
    ng_node *nodes;
    size_t count, room;
} ng_graph;

typedef struct ng_mark ng_mark; /* a place in a stream, as an event keeps it */
typedef struct ng_stream ng_stream;
struct ng_stream {
    u32 id;
    int device, priority;
    unsigned flags;
    ng_graph *capture;
    u64 capture_id;
    u64 busy_until;           /* ns of the monotonic clock, of all work that is settled */
    struct ng_op *head, *tail; /* work that waits for another stream or process */
    u64 *ends, issued;        /* ring of the last launches' ends */
    struct ng_stream *next;
};
typedef struct {
    unsigned flags;
    ng_mark *mark;
    ng_graph *capture;
    u64 capture_id;
} ng_event;
/* A gate holds a stream until other processes have come. `reach` is asked again and again, with the
 * time at which the stream got there; it returns 1 with the time at which all go on. */
typedef struct ng_gate {
    int (*reach)(struct ng_gate *gate, u64 ready, u64 *end);
    ng_node node;
} ng_gate;

u64 ng_now(void);
void ng_sleep_until(u64 when);
ng_stream *ng_stream_of(cudaStream_t stream);
ng_stream *ng_stream_new(unsigned flags, int priority);
void ng_stream_delete(ng_stream *stream);
void ng_submit(ng_stream *stream, const ng_node *node);
void ng_submit_graph(ng_stream *stream, const ng_graph *graph);
void ng_submit_gate(ng_stream *stream, ng_gate *gate);
void ng_record(ng_event *event, ng_stream *stream);
void ng_wait_event(ng_stream *stream, const ng_event *event);
void ng_forget(ng_event *event);
int ng_event_time(const ng_event *event, u64 *when); /* 1 when settled, -1 never recorded, else 0 */
int ng_is_idle(ng_stream *stream);
void ng_finish(ng_stream *stream);
void ng_finish_device(int device);
void ng_begin_capture(ng_stream *stream, ng_graph *graph);
ng_graph *ng_end_capture(ng_stream *stream);

/* kernels.c: what is launched, and what it is called */

typedef struct {
    const void *host;
    const char *name;
    int max_shared;
    u32 loaded;               /* bit of each device that has it */
} ng_kernel;
void ng_kernel_register(const void *host, const char *name);
ng_kernel *ng_kernel_of(const void *host);
ng_kernel *ng_kernel_named(const char *name);
cudaError_t ng_launch(cudaStream_t stream, ng_kernel *kernel, dim3 grid, dim3 block, size_t shared);
cudaError_t ng_library_launch(cudaStream_t stream, const char *name, double flop, double bytes,
                              double flop_per_second);
const char *ng_intern(const char *text);

/* activity.c: calls and work, as a profiler sees them */

typedef enum { API_RUNTIME, API_DRIVER } ng_api_kind;
typedef struct { u64 start; u32 correlation; int is_on, cbid; ng_api_kind kind; } ng_api;
typedef struct {
    int on;
    u64 (*stamp)(void);
    void (*api)(const ng_api *api, u64 end);
    void (*node)(const ng_node *node, u64 start, u64 end, const ng_stream *stream, u32 correlation,
                 u64 graph);
    void (*sync)(int kind, u64 start, u64 end, int stream, u32 correlation);
} ng_activity_t;
extern ng_activity_t ng_activity;
ng_api ng_api_enter(ng_api_kind kind, int cbid);
void ng_api_leave(ng_api *api);
u32 ng_correlation(void);
#define API_CALL(kind, cbid) \
    __attribute__((cleanup(ng_api_leave))) ng_api api_of_this_call = ng_api_enter(kind, cbid)
#define RUNTIME(name) API_CALL(API_RUNTIME, CUPTI_RUNTIME_TRACE_CBID_##name)
#define DRIVER(name) API_CALL(API_DRIVER, CUPTI_DRIVER_TRACE_CBID_##name)
