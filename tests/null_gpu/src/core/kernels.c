/* Kernels: names as they were registered, and launches of them. */
#define _GNU_SOURCE
#include "null.h"
#include <cupti_runtime_cbid.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* By the host's address, in a hash table with open addresses: torch registers some 40,000. */
static ng_kernel **table;
static size_t size, count;
static u64 launches;
static size_t loaded[MOST_DEVICES];

static ng_kernel **slot_of(ng_kernel **slots, size_t slot_count, const void *host) {
    size_t at = ((uintptr_t)host * 0x9E3779B97F4A7C15ull) >> 20;
    for (at &= slot_count - 1; slots[at] && slots[at]->host != host;) at = (at + 1) & (slot_count - 1);
    return slots + at;
}

static void grow(void) {
    size_t larger = size ? 2 * size : 1 << 16;
    ng_kernel **slots = calloc(larger, sizeof *slots);
    if (!slots) abort();
    for (size_t i = 0; i < size; i++)
        if (table[i]) *slot_of(slots, larger, table[i]->host) = table[i];
    free(table);
    table = slots;
    size = larger;
}

static ng_kernel *kernel_at(const void *host, const char *name) {
    pthread_mutex_lock(&lock);
    if (2 * count >= size) grow();
    ng_kernel **slot = slot_of(table, size, host);
    if (!*slot) {
        *slot = calloc(1, sizeof **slot);
        if (!*slot) abort();
        **slot = (ng_kernel){.host = host, .name = "unregistered_kernel"};
        count++;
    }
    if (name) (*slot)->name = name;
    ng_kernel *kernel = *slot;
    pthread_mutex_unlock(&lock);
    return kernel;
}

void ng_kernel_register(const void *host, const char *name) { kernel_at(host, name); }
ng_kernel *ng_kernel_of(const void *host) { return kernel_at(host, NULL); }

ng_kernel *ng_kernel_named(const char *name) {
    const char *kept = ng_intern(name);
    return kernel_at(kept, kept); /* its own name stands for a function of the host */
}

const char *ng_intern(const char *text) {
    typedef struct Text { struct Text *next; char text[]; } Text;
    static Text *buckets[256];
    unsigned hash = 5381;
    for (const char *at = text; *at; at++) hash = hash * 33 + (unsigned char)*at;
    Text **first = buckets + hash % 256, *found;
    pthread_mutex_lock(&lock);
    for (found = *first; found && strcmp(found->text, text); found = found->next) {}
    if (!found) {
        found = malloc(sizeof *found + strlen(text) + 1);
        if (!found) abort();
        strcpy(found->text, text);
        found->next = *first;
        *first = found;
    }
    pthread_mutex_unlock(&lock);
    return found->text;
}

/* Launches */

/* Nothing is known of the work but its threads; each is taken to move 32 bytes. */
static u64 cost_of(dim3 grid, dim3 block) {
    double threads = (double)grid.x * grid.y * grid.z * block.x * block.y * block.z;
    return (u64)(1500 + threads * 32 / (ng_settings()->card.bytes_per_second * 0.8) * 1e9);
}

/* A module is loaded when a kernel of it is first launched: its code takes device memory that the
 * allocator of torch does not see, in the driver's grains. */
static cudaError_t load(ng_kernel *kernel, int device) {
    size_t each = ng_settings()->kernel_bytes;
    u32 bit = 1u << device;
    if (!each || __sync_fetch_and_or(&kernel->loaded, bit) & bit) return cudaSuccess;
    pthread_mutex_lock(&lock);
    size_t before = (loaded[device] + GRAIN - 1) / GRAIN;
    size_t after = (loaded[device] += each, (loaded[device] + GRAIN - 1) / GRAIN);
    pthread_mutex_unlock(&lock);
    if (after == before || !ng_take(device, (after - before) * GRAIN)) return cudaSuccess;
    return cudaErrorMemoryAllocation;
}

static cudaError_t launch(ng_stream *stream, const ng_node *node) {
    if (ng_broken()) return ng_broken();
    ng_submit(stream, node);
    if (stream->capture) return cudaSuccess;
    u64 number = __sync_add_and_fetch(&launches, 1);
    ng_note("kernel %s grid %u,%u,%u block %u,%u,%u stream %u of %d", node->name, node->grid[0],
            node->grid[1], node->grid[2], node->block[0], node->block[1], node->block[2], stream->id,
            stream->device);
    if (number == ng_settings()->fail_at) ng_break(cudaErrorIllegalAddress, stream->busy_until);
    return cudaSuccess;
}

cudaError_t ng_launch(cudaStream_t on, ng_kernel *kernel, dim3 grid, dim3 block, size_t shared) {
    if (!grid.x || !grid.y || !grid.z || !block.x || !block.y || !block.z ||
        (u64)block.x * block.y * block.z > 1024 || grid.x > 0x7fffffff || grid.y > 65535 ||
        grid.z > 65535)
        return ng_fail(cudaErrorInvalidConfiguration);
    if (shared > (size_t)ng_settings()->card.shared_block_optin) return ng_fail(cudaErrorInvalidValue);
    ng_stream *stream = ng_stream_of(on);
    cudaError_t error = load(kernel, stream->device);
    if (error) return ng_fail(error);
    ng_node node = {.kind = NODE_KERNEL, .name = kernel->name, .grid = {grid.x, grid.y, grid.z},
                    .block = {block.x, block.y, block.z}, .shared = (u32)shared,
                    .cost = cost_of(grid, block)};
    error = launch(stream, &node);
    return error ? ng_fail(error) : cudaSuccess;
}

/* A kernel of NVIDIA's libraries, which launch through the runtime: one wave of blocks. */
cudaError_t ng_library_launch(cudaStream_t on, const char *name, double flop, double bytes,
                              double flop_per_second) {
    RUNTIME(cudaLaunchKernelExC_v11060);
    const ng_card *card = &ng_settings()->card;
    double computing = flop / (flop_per_second * 0.65);
    double moving = bytes / (card->bytes_per_second * 0.8);
    ng_node node = {.kind = NODE_KERNEL, .name = name, .grid = {(u32)card->multiprocessors, 1, 1},
                    .block = {384, 1, 1},
                    .cost = 2000 + (u64)(1e9 * (computing > moving ? computing : moving))};
    return launch(ng_stream_of(on), &node);
}
