/* Device memory: address space without pages behind it, accounted as the driver accounts it.
 *
 * One arena is reserved; a page comes into being only where somebody writes, and is dropped when
 * its allocation is freed. So 80 GB of tensors cost the host what its copies into them touch. */
#define _GNU_SOURCE
#include "null.h"
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

#define ARENA ((size_t)24 << 40)

typedef struct { char *at; size_t size; int device; } Piece;
typedef struct { Piece *pieces; size_t count, room; } Pieces;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char *arena, *fresh;
static size_t used[MOST_DEVICES];
static Pieces live, ranges, idle, pinned;

static size_t grains(size_t size) { return (size + GRAIN - 1) / GRAIN * GRAIN; }

static void add(Pieces *list, void *at, size_t size, int device) {
    if (list->count == list->room) {
        list->room = list->room ? 2 * list->room : 256;
        list->pieces = realloc(list->pieces, list->room * sizeof *list->pieces);
        if (!list->pieces) abort();
    }
    list->pieces[list->count++] = (Piece){at, size, device};
}

static Piece removed(Pieces *list, const void *at) {
    for (size_t i = list->count; i-- > 0;)
        if (list->pieces[i].at == at) {
            Piece piece = list->pieces[i];
            list->pieces[i] = list->pieces[--list->count];
            return piece;
        }
    return (Piece){0};
}

static const Piece *around(const Pieces *list, const void *at) {
    for (size_t i = 0; i < list->count; i++) {
        const Piece *piece = list->pieces + i;
        if ((char *)at >= piece->at && (char *)at < piece->at + piece->size) return piece;
    }
    return NULL;
}

/* Give a range new, untouched pages; what it held is gone. */
static void repage(void *at, size_t size, int protection) {
    mmap(at, size, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    madvise(at, size, MADV_NOHUGEPAGE);
    madvise(at, size, MADV_DONTDUMP);
}

static void *addresses(size_t size) {
    if (!arena) {
        arena = mmap(NULL, ARENA, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (arena == MAP_FAILED) arena = NULL;
        if (!arena) return NULL;
        fresh = (char *)grains((size_t)arena);
    }
    for (size_t i = idle.count; i-- > 0;)
        if (idle.pieces[i].size == size) return removed(&idle, idle.pieces[i].at).at;
    if (fresh + size > arena + ARENA) return NULL;
    fresh += size;
    return fresh - size;
}

static void *mapped(Pieces *list, int device, size_t size) {
    pthread_mutex_lock(&lock);
    void *at = addresses(size);
    if (at) {
        repage(at, size, PROT_READ | PROT_WRITE);
        add(list, at, size, device);
    }
    pthread_mutex_unlock(&lock);
    return at;
}

static Piece unmapped(Pieces *list, void *at) {
    pthread_mutex_lock(&lock);
    Piece piece = removed(list, at);
    if (piece.at) {
        repage(at, piece.size, PROT_NONE);
        add(&idle, at, piece.size, 0);
    }
    pthread_mutex_unlock(&lock);
    return piece;
}

int ng_take(int device, size_t size) {
    const ng_card *card = &ng_settings()->card;
    size = grains(size);
    pthread_mutex_lock(&lock);
    int is_full = used[device] + card->context_bytes + size > card->memory_bytes;
    if (!is_full) used[device] += size;
    ng_board_publish(ng_physical(device), used[device] + card->context_bytes);
    pthread_mutex_unlock(&lock);
    return is_full;
}

void ng_give(int device, size_t size) {
    pthread_mutex_lock(&lock);
    used[device] -= grains(size);
    ng_board_publish(ng_physical(device), used[device] + ng_settings()->card.context_bytes);
    pthread_mutex_unlock(&lock);
}

void *ng_reserve(int device, size_t size) { return mapped(&ranges, device, grains(size)); }
void ng_unreserve(void *at, size_t size) {
    unmapped(&ranges, at);
}

int ng_allocate(void **at, size_t size) {
    int device = ng_current();
    *at = NULL;
    ng_need_context();
    if (!size) return 0;
    if (ng_take(device, size)) return 1;
    *at = mapped(&live, device, grains(size));
    if (!*at) ng_give(device, size);
    ng_note("malloc %p %zu on %d", *at, size, device);
    return !*at;
}

int ng_release(void *at) {
    if (!at) return 0;
    Piece piece = unmapped(&live, at);
    if (!piece.at) return 1;
    ng_give(piece.device, piece.size);
    ng_note("free %p %zu on %d", at, piece.size, piece.device);
    return 0;
}

void ng_room(int device, size_t *left, size_t *total) {
    const ng_card *card = &ng_settings()->card;
    pthread_mutex_lock(&lock);
    *total = card->memory_bytes;
    *left = card->memory_bytes - card->context_bytes - used[device];
    pthread_mutex_unlock(&lock);
}

int ng_range_of(const void *at, void **base, size_t *size) {
    pthread_mutex_lock(&lock);
    const Piece *piece = around(&live, at);
    if (!piece) piece = around(&ranges, at);
    if (piece) *base = piece->at, *size = piece->size;
    pthread_mutex_unlock(&lock);
    return piece != NULL;
}

int ng_device_of(const void *at) {
    if (!arena || (char *)at < arena || (char *)at >= arena + ARENA) return -1;
    pthread_mutex_lock(&lock);
    const Piece *piece = around(&live, at);
    if (!piece) piece = around(&ranges, at);
    int device = piece ? piece->device : -1;
    pthread_mutex_unlock(&lock);
    return device;
}

/* Pinned memory of the host */

void *ng_host_allocate(size_t size) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void *at = mmap(NULL, size ? size : 1, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (at == MAP_FAILED) return NULL;
    ng_host_register(at, size ? size : 1);
    return at;
}

void ng_host_register(void *at, size_t size) {
    pthread_mutex_lock(&lock);
    add(&pinned, at, size, 0);
    pthread_mutex_unlock(&lock);
}

static size_t unpinned(void *at) {
    pthread_mutex_lock(&lock);
    Piece piece = removed(&pinned, at);
    pthread_mutex_unlock(&lock);
    return piece.size;
}

int ng_host_release(void *at) {
    size_t size = unpinned(at);
    if (size) munmap(at, size);
    return !size;
}

int ng_host_unregister(void *at) { return !unpinned(at); }

int ng_is_pinned(const void *at) {
    pthread_mutex_lock(&lock);
    int found = around(&pinned, at) != NULL;
    pthread_mutex_unlock(&lock);
    return found;
}
