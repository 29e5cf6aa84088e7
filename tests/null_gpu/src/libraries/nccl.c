/* libnccl: operations that end when all ranks have come to them, and match.
 *
 * An operation is a gate in its stream. It posts a letter to each peer as the stream reaches it, and
 * is over when theirs have arrived. Values travel only where they fit a letter: what DDP compares
 * and what the objects of torch.distributed are made of; gradients and parameters do not. */
#define _GNU_SOURCE
#include "post.h"
#include <cupti_driver_cbid.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef enum { SUCCESS, UNHANDLED_CUDA, SYSTEM, INTERNAL, INVALID_ARGUMENT, INVALID_USAGE, REMOTE,
               IN_PROGRESS } Result;
typedef struct { char text[128]; } UniqueId;
typedef enum { ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, BROADCAST, REDUCE, ALL_TO_ALL, SEND, RECEIVE,
               SPLIT } Operation;
enum { SPLIT_NO_COLOR = -1, MOST_IN_GROUP = 4096 };
static const int widths[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
static const char *const type_names[] = {"i8", "u8", "i32", "u32", "i64", "u64", "f16", "f32", "f64",
                                         "bf16", "f8e4m3", "f8e5m2"};
enum { TYPES = sizeof widths / sizeof *widths };

typedef struct {
    char name[128];
    ng_office *office;
    int rank, ranks, device;
    u64 submitted, done;      /* operations of this rank: they pass one after another */
    int is_aborted, splits;
    Result error;
} Communicator;

/* One part of a gate: an operation of this rank with one peer, or with all. */
typedef struct {
    Operation kind;
    const void *from;
    void *to;
    u64 count;
    int type, root, reduction;
    int peer;                 /* of SEND and RECEIVE */
    char is_posted[MOST_RANKS], is_over[MOST_RANKS];
} Leg;

typedef struct {
    ng_gate gate; /* first: a gate is handed around by its address */
    Communicator *of;
    u64 turn, end;
    size_t count;
    Leg legs[];
} Work;

static u64 operations; /* of this process */
static __thread Result last_error;
static __thread struct {
    int depth;
    size_t count;
    struct { Communicator *of; cudaStream_t stream; Leg leg; } items[MOST_IN_GROUP];
} *group;

static size_t bytes_of(const Leg *leg) { return (size_t)leg->count * (size_t)widths[leg->type]; }

/* Letters */

static size_t carried(const Leg *leg) { return bytes_of(leg) <= CARRIED ? bytes_of(leg) : 0; }

static int post_to(const Communicator *of, Leg *leg, ng_channel channel, int peer, u64 ready) {
    if (leg->is_posted[peer]) return 1;
    ng_letter *letter = ng_office_blank(of->office, channel, of->rank, peer);
    if (!letter) return 0;
    letter->ready = ready;
    letter->count = leg->count;
    letter->kind = leg->kind == RECEIVE ? SEND : (int)leg->kind; /* both ends of one operation */
    letter->type = leg->type;
    letter->root = leg->root;
    letter->reduction = leg->reduction;
    letter->bytes = leg->from ? carried(leg) : 0;
    const char *from = leg->from;
    if (leg->kind == ALL_TO_ALL) from += (size_t)peer * bytes_of(leg);
    if (letter->bytes) memcpy(letter->payload, from, letter->bytes);
    ng_office_post(of->office, channel, of->rank, peer);
    return leg->is_posted[peer] = 1;
}

static void put(const Leg *leg, int peer, const void *from, size_t bytes) {
    char *to = leg->to;
    if (!to || !bytes) return;
    if (leg->kind == ALL_GATHER || leg->kind == ALL_TO_ALL) to += (size_t)peer * bytes;
    memmove(to, from, bytes);
}

static int receive_from(Communicator *of, Leg *leg, ng_channel channel, int peer, u64 *end) {
    if (leg->is_over[peer]) return 1;
    const ng_letter *letter = ng_office_arrived(of->office, channel, peer, of->rank);
    if (!letter) return 0;
    int kind = leg->kind == RECEIVE ? SEND : (int)leg->kind;
    if (letter->kind != kind || letter->count != leg->count || letter->type != leg->type ||
        letter->root != leg->root || letter->reduction != leg->reduction) {
        of->error = INVALID_USAGE;
        fprintf(stderr, "null GPU: NCCL operation %llu of %s does not match: rank %d has kind %d of "
                "%llu x type %d, rank %d kind %d of %llu x type %d\n", (unsigned long long)of->done,
                of->name, of->rank, kind, (unsigned long long)leg->count, leg->type, peer,
                letter->kind, (unsigned long long)letter->count, letter->type);
    } else if (leg->kind == ALL_GATHER || leg->kind == ALL_TO_ALL || leg->kind == RECEIVE ||
               (leg->kind == BROADCAST && peer == leg->root)) {
        put(leg, peer, letter->payload, letter->bytes);
    }
    if (letter->ready > *end) *end = letter->ready;
    ng_office_taken(of->office, channel, peer, of->rank);
    return leg->is_over[peer] = 1;
}

/* By channel and peer, what an earlier leg of the group still waits for: a place in the ring, or a
 * letter. A later leg must not take it, though it may come between the two. */
typedef struct { char to_post[CHANNELS][MOST_RANKS], to_take[CHANNELS][MOST_RANKS]; } Waiting;

static int pass_between_two(Communicator *of, Leg *leg, u64 ready, u64 *end, Waiting *waiting) {
    int peer = leg->peer;
    ng_channel out = leg->kind == SEND ? CHANNEL_SEND : CHANNEL_RECEIVE;
    ng_channel in = leg->kind == SEND ? CHANNEL_RECEIVE : CHANNEL_SEND;
    if (!waiting->to_post[out][peer] && !post_to(of, leg, out, peer, ready))
        waiting->to_post[out][peer] = 1;
    if (!waiting->to_take[in][peer] && !receive_from(of, leg, in, peer, end))
        waiting->to_take[in][peer] = 1;
    return leg->is_posted[peer] & leg->is_over[peer];
}

/* Move one leg on; 1 when it is over. */
static int pass(Communicator *of, Leg *leg, u64 ready, u64 *end, Waiting *waiting) {
    if (leg->kind == SEND || leg->kind == RECEIVE)
        return pass_between_two(of, leg, ready, end, waiting);
    int is_over = 1;
    for (int peer = 0; peer < of->ranks; peer++) {
        if (peer == of->rank) continue;
        is_over &= post_to(of, leg, CHANNEL_ALL, peer, ready);
        is_over &= receive_from(of, leg, CHANNEL_ALL, peer, end);
    }
    if (is_over && leg->from) {
        const char *own = leg->from;
        if (leg->kind == ALL_TO_ALL || leg->kind == REDUCE_SCATTER)
            own += (size_t)of->rank * bytes_of(leg);
        if (leg->kind != BROADCAST || leg->root == of->rank) put(leg, of->rank, own, carried(leg));
    }
    return is_over;
}

static int is_between_two(const Leg *leg) { return leg->kind == SEND || leg->kind == RECEIVE; }

/* Duration by the slowest link: a ring moves 2 (n - 1) / n of an all-reduce's bytes through it. */
static u64 duration_of(const Work *work) {
    double moved = 0, n = work->of->ranks;
    for (size_t i = 0; i < work->count; i++) {
        const Leg *leg = work->legs + i;
        double bytes = (double)bytes_of(leg);
        switch (leg->kind) {
        case ALL_REDUCE: moved += 2 * (n - 1) / n * bytes; break;
        case ALL_GATHER:
        case REDUCE_SCATTER:
        case ALL_TO_ALL: moved += (n - 1) * bytes; break;
        default: moved += bytes;
        }
    }
    return (u64)((20e-6 + moved / ng_settings()->card.link_per_second) * 1e9 * ng_settings()->pace);
}

static int reach(ng_gate *gate, u64 ready, u64 *end) {
    Work *work = (Work *)gate;
    Communicator *of = work->of;
    if (of->is_aborted) {
        *end = ready;
        free(work);
        return 1;
    }
    if (of->done != work->turn) return 0;
    if (work->end < ready) work->end = ready;
    /* All of a group's sends and receives go on together: either may be what its peer waits for. */
    int is_over = 1;
    Waiting waiting = {0};
    for (size_t i = 0; i < work->count; i++) {
        if (!is_over && !is_between_two(work->legs + i)) return 0;
        is_over &= pass(of, work->legs + i, ready, &work->end, &waiting);
    }
    if (!is_over) return 0;
    *end = work->end + duration_of(work);
    if (++operations == ng_settings()->nccl_fail_at) of->error = REMOTE;
    of->done++;
    free(work);
    return 1;
}

/* Submission */

static const char *kernel_name(const Leg *leg) {
    static const char *const names[] = {"AllReduce_Sum", "AllGather", "ReduceScatter_Sum", "Broadcast",
                                        "Reduce_Sum", "SendRecv", "SendRecv", "SendRecv"};
    char plain[96], mangled[160];
    int has_type = leg->kind == ALL_REDUCE || leg->kind == REDUCE_SCATTER || leg->kind == REDUCE;
    snprintf(plain, sizeof plain, "ncclDevKernel_%s%s%s%s", names[leg->kind], has_type ? "_" : "",
             has_type ? type_names[leg->type] : "",
             is_between_two(leg) || leg->kind == ALL_TO_ALL ? "" : "_RING_LL");
    snprintf(mangled, sizeof mangled, "_Z%zu%s24ncclDevKernelArgsStorageILm4096EE", strlen(plain), plain);
    return ng_intern(mangled);
}

static Result submit(Communicator *of, cudaStream_t on, const Leg *legs, size_t count) {
    ng_stream *stream = ng_stream_of(on);
    if (of->error) return of->error;
    if (stream->capture) return last_error = INVALID_USAGE; /* graphs of operations: not here */
    Work *work = calloc(1, sizeof *work + count * sizeof *legs);
    if (!work) return last_error = SYSTEM;
    *work = (Work){.of = of, .turn = of->submitted++, .count = count};
    memcpy(work->legs, legs, count * sizeof *legs);
    work->gate = (ng_gate){reach, {.kind = NODE_KERNEL, .name = kernel_name(legs), .grid = {24, 1, 1},
                                   .block = {544, 1, 1}}};
    DRIVER(cuLaunchKernelEx);
    ng_note("nccl %s of %d ranks, operation %llu", work->gate.node.name, of->ranks,
            (unsigned long long)work->turn);
    ng_submit_gate(stream, &work->gate);
    return SUCCESS;
}

/* The default stream is that of the communicator's device, whichever one is current. */
static cudaStream_t stream_of(const Communicator *of, cudaStream_t stream) {
    int before = ng_current();
    ng_set_current(of->device);
    ng_stream *found = ng_stream_of(stream);
    ng_set_current(before);
    return (cudaStream_t)found;
}

static Result enqueue(Communicator *of, cudaStream_t stream, Leg leg) {
    if (!of || leg.type < 0 || leg.type >= TYPES) return last_error = INVALID_ARGUMENT;
    stream = stream_of(of, stream);
    if (!group || !group->depth) return submit(of, stream, &leg, 1);
    if (group->count == MOST_IN_GROUP) return last_error = INTERNAL;
    group->items[group->count].of = of;
    group->items[group->count].stream = stream;
    group->items[group->count++].leg = leg;
    return SUCCESS;
}

Result ncclGroupStart(void) {
    if (!group && !(group = calloc(1, sizeof *group))) return SYSTEM;
    group->depth++;
    return SUCCESS;
}

/* One kernel for all operations of one communicator and stream, as NCCL fuses them. */
Result ncclGroupEnd(void) {
    if (!group || !group->depth) return last_error = INVALID_USAGE;
    if (--group->depth) return SUCCESS;
    size_t count = group->count;
    group->count = 0;
    Result result = SUCCESS;
    Leg *legs = malloc((count + 1) * sizeof *legs);
    if (!legs) return SYSTEM;
    for (size_t i = 0; i < count && result == SUCCESS; i++) {
        Communicator *of = group->items[i].of;
        cudaStream_t stream = group->items[i].stream;
        size_t alike = 0;
        for (size_t k = i; of && k < count; k++)
            if (group->items[k].of == of && group->items[k].stream == stream) {
                legs[alike++] = group->items[k].leg;
                group->items[k].of = NULL;
            }
        if (alike) result = submit(of, stream, legs, alike);
    }
    free(legs);
    return result;
}
Result ncclGroupSimulateEnd(void *info) { return ncclGroupEnd(); }

/* Operations */

Result ncclAllReduce(const void *from, void *to, size_t count, int type, int reduction,
                     Communicator *of, cudaStream_t stream) {
    return enqueue(of, stream, (Leg){ALL_REDUCE, from, to, count, type, 0, reduction});
}
Result ncclReduce(const void *from, void *to, size_t count, int type, int reduction, int root,
                  Communicator *of, cudaStream_t stream) {
    return enqueue(of, stream, (Leg){REDUCE, from, to, count, type, root, reduction});
}
Result ncclReduceScatter(const void *from, void *to, size_t count, int type, int reduction,
                         Communicator *of, cudaStream_t stream) {
    return enqueue(of, stream, (Leg){REDUCE_SCATTER, from, to, count, type, 0, reduction});
}
Result ncclAllGather(const void *from, void *to, size_t count, int type, Communicator *of,
                     cudaStream_t stream) {
    return enqueue(of, stream, (Leg){ALL_GATHER, from, to, count, type});
}
Result ncclAlltoAll(const void *from, void *to, size_t count, int type, Communicator *of,
                    cudaStream_t stream) {
    return enqueue(of, stream, (Leg){ALL_TO_ALL, from, to, count, type});
}
Result ncclBroadcast(const void *from, void *to, size_t count, int type, int root, Communicator *of,
                     cudaStream_t stream) {
    return enqueue(of, stream, (Leg){BROADCAST, from, to, count, type, root});
}
Result ncclBcast(void *at, size_t count, int type, int root, Communicator *of, cudaStream_t stream) {
    return ncclBroadcast(at, at, count, type, root, of, stream);
}
static Result between_two(Leg leg, int peer, Communicator *of, cudaStream_t stream) {
    if (!of || peer < 0 || peer >= of->ranks) return last_error = INVALID_ARGUMENT;
    leg.peer = peer;
    return enqueue(of, stream, leg);
}
Result ncclSend(const void *from, size_t count, int type, int peer, Communicator *of,
                cudaStream_t stream) {
    return between_two((Leg){SEND, from, NULL, count, type}, peer, of, stream);
}
Result ncclRecv(void *to, size_t count, int type, int peer, Communicator *of, cudaStream_t stream) {
    return between_two((Leg){RECEIVE, NULL, to, count, type}, peer, of, stream);
}

/* A reduction of one's own is taken for a sum: no value is reduced. */
Result ncclRedOpCreatePreMulSum(int *reduction, void *scalar, int type, int where, Communicator *of) {
    return *reduction = 5, SUCCESS;
}
Result ncclRedOpDestroy(int reduction, Communicator *of) { return SUCCESS; }

/* Communicators */

Result ncclGetVersion(int *version) { return *version = NG_NCCL_VERSION, SUCCESS; }
const char *ncclGetErrorString(Result result) {
    static const char *const texts[] = {
        "no error", "unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
        "unhandled system error (run with NCCL_DEBUG=INFO for details)", "internal error",
        "invalid argument", "invalid usage", "remote process exited or there was a network error",
        "NCCL operation in progress"};
    return (unsigned)result < 8 ? texts[result] : "unknown result code";
}
const char *ncclGetLastError(Communicator *of) {
    return ncclGetErrorString(of && of->error ? of->error : last_error);
}
Result ncclGetUniqueId(UniqueId *id) {
    static u64 last;
    memset(id, 0, sizeof *id);
    snprintf(id->text, sizeof id->text, "/null-gpu-nccl-%d-%llu-%llu", getpid(),
             (unsigned long long)ng_now(), (unsigned long long)__sync_add_and_fetch(&last, 1));
    return SUCCESS;
}

static Result join(Communicator **out, const char *name, int ranks, int rank) {
    if (ranks < 1 || ranks > MOST_RANKS || rank < 0 || rank >= ranks) return INVALID_ARGUMENT;
    Communicator *of = calloc(1, sizeof *of);
    if (!of) return SYSTEM;
    *of = (Communicator){.rank = rank, .ranks = ranks, .device = ng_current()};
    snprintf(of->name, sizeof of->name, "%s", name);
    of->office = ng_office_open(name);
    if (!of->office) return free(of), last_error = SYSTEM;
    *out = of;
    ng_need_context();
    return ng_office_join(of->office, name, ranks) ? SUCCESS : (last_error = INVALID_USAGE);
}

/* Meets the other ranks: like NCCL, it waits for them for ever. */
static Result meet(Communicator **out, const char *name, int ranks, int rank) {
    Result result = join(out, name, ranks, rank);
    if (result != SUCCESS) return result;
    Communicator *of = *out;
    while (!ng_office_is_complete(of->office, ranks) && !of->is_aborted) ng_sleep_until(ng_now() + 200000);
    ng_note("nccl joined %s as %d of %d", name, rank, ranks);
    return SUCCESS;
}
Result ncclCommInitRankConfig(Communicator **out, int ranks, UniqueId id, int rank, void *config) {
    return meet(out, id.text, ranks, rank);
}
Result ncclCommInitRank(Communicator **out, int ranks, UniqueId id, int rank) {
    return ncclCommInitRankConfig(out, ranks, id, rank, NULL);
}
Result ncclCommInitRankScalable(Communicator **out, int ranks, int rank, int ids, UniqueId *id,
                                void *config) {
    return meet(out, id->text, ranks, rank);
}

/* All ranks are of this process, one a device: none has to be waited for. */
Result ncclCommInitAll(Communicator **out, int count, const int *devices) {
    UniqueId id;
    int before = ng_current();
    Result result = ncclGetUniqueId(&id);
    for (int rank = 0; rank < count && result == SUCCESS; rank++) {
        ng_set_current(devices ? devices[rank] : rank);
        result = join(out + rank, id.text, count, rank);
    }
    ng_set_current(before);
    return result;
}

/* The ranks tell each other colour and key, in letters beside those of the operations before. */
Result ncclCommSplit(Communicator *of, int color, int key, Communicator **out, void *config) {
    int colors[MOST_RANKS], keys[MOST_RANKS], rank = 0, ranks = 0;
    *out = NULL;
    while (of->done != of->submitted && !of->is_aborted) ng_sleep_until(ng_now() + 50000);
    colors[of->rank] = color;
    keys[of->rank] = key;
    for (int peer = 0; peer < of->ranks; peer++) {
        if (peer == of->rank) continue;
        ng_letter *letter = ng_office_blank(of->office, CHANNEL_ALL, of->rank, peer);
        letter->kind = SPLIT, letter->root = color, letter->reduction = key;
        ng_office_post(of->office, CHANNEL_ALL, of->rank, peer);
    }
    for (int peer = 0; peer < of->ranks; peer++) {
        const ng_letter *letter = NULL;
        if (peer == of->rank) continue;
        while (!(letter = ng_office_arrived(of->office, CHANNEL_ALL, peer, of->rank)) && !of->is_aborted)
            ng_sleep_until(ng_now() + 50000);
        if (!letter || letter->kind != SPLIT) return last_error = of->error = INVALID_USAGE;
        colors[peer] = letter->root, keys[peer] = letter->reduction;
        ng_office_taken(of->office, CHANNEL_ALL, peer, of->rank);
    }
    int number = of->splits++;
    if (color == SPLIT_NO_COLOR) return SUCCESS;
    for (int peer = 0; peer < of->ranks; peer++) {
        if (colors[peer] != color) continue;
        ranks++;
        rank += keys[peer] < key || (keys[peer] == key && peer < of->rank);
    }
    UniqueId id;
    snprintf(id.text, sizeof id.text, "%.90s-s%d-%d", of->name, number, color);
    return meet(out, id.text, ranks, rank);
}
Result ncclCommFinalize(Communicator *of) {
    while (of->done != of->submitted && !of->is_aborted) ng_sleep_until(ng_now() + 50000);
    return SUCCESS;
}
Result ncclCommDestroy(Communicator *of) {
    ncclCommFinalize(of);
    if (!of->is_aborted) ng_office_close(of->office, of->name);
    return SUCCESS;
}
/* Kernels under way return at once; what they hold is left to the end of the process. */
Result ncclCommAbort(Communicator *of) {
    of->is_aborted = 1;
    if (!ng_office_is_complete(of->office, of->ranks)) ng_office_forget(of->name);
    return SUCCESS;
}
Result ncclCommGetAsyncError(Communicator *of, Result *error) { return *error = of->error, SUCCESS; }
Result ncclCommCount(const Communicator *of, int *count) { return *count = of->ranks, SUCCESS; }
Result ncclCommUserRank(const Communicator *of, int *rank) { return *rank = of->rank, SUCCESS; }
Result ncclCommCuDevice(const Communicator *of, int *device) { return *device = of->device, SUCCESS; }
