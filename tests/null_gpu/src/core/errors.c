/* The last error of a thread, the error that breaks the context, and the current device. */
#include "null.h"

static __thread cudaError_t last;
static __thread int current;
static int contexts[MOST_DEVICES];
static cudaError_t breaking;
static u64 broken_at;

cudaError_t ng_fail(cudaError_t error) {
    if (error) last = error;
    return error;
}

/* A kernel's fault shows when the kernel has run, whatever the host did during this. */
void ng_break(cudaError_t error, u64 when) {
    broken_at = when;
    breaking = error;
}

cudaError_t ng_broken(void) { return breaking && ng_now() >= broken_at ? breaking : cudaSuccess; }

cudaError_t ng_last(int clear) {
    cudaError_t was = last;
    if (ng_broken()) return breaking;
    if (clear) last = cudaSuccess;
    return was;
}

int ng_current(void) { return current; }
void ng_set_current(int device) { current = device; }
int ng_has_context(int device) { return contexts[device]; }
void ng_need_context(void) {
    if (contexts[current]) return;
    contexts[current] = 1;
    ng_take(current, 0); /* the board learns of the context itself */
}
