/* libnvidia-ml: the tests' stand-in, with the null card's name, memory and processes.
 *
 * Linked before ../../nvml_stub/stub.c, of which it replaces the functions of the same name. The
 * stub's handle begins with the index of the GPU. */
#define _GNU_SOURCE
#include "../core/null.h"
#include <stdio.h>
#include <stdlib.h>

enum { SUCCESS = 0, INVALID = 2, TOO_SMALL = 7, VERSION_MISMATCH = 25 };
typedef struct { unsigned index; } Gpu;
extern int nvmlDeviceGetHandleByIndex_v2(unsigned index, Gpu **gpu);

__attribute__((constructor)) static void as_many_as_cards(void) {
    char count[16];
    snprintf(count, sizeof count, "%d", ng_settings()->count);
    setenv("NVML_STUB_GPUS", count, 1);
}

int nvmlDeviceGetName(Gpu *gpu, char *text, unsigned size) {
    snprintf(text, size, "%s", ng_settings()->card.name);
    return SUCCESS;
}
static void print_uuid(char *text, unsigned size, unsigned index) {
    unsigned char raw[16];
    ng_uuid(raw, (int)index);
    int at = snprintf(text, size, "GPU-");
    for (int i = 0; i < 16 && at < (int)size; i++)
        at += snprintf(text + at, size - (unsigned)at, "%s%02x",
                       i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", raw[i]);
}
int nvmlDeviceGetUUID(Gpu *gpu, char *text, unsigned size) {
    print_uuid(text, size, gpu->index);
    return SUCCESS;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char *id, Gpu **gpu) {
    unsigned domain, bus;
    if (sscanf(id, "%x:%x:", &domain, &bus) != 2 || bus < 0x19) return INVALID;
    return nvmlDeviceGetHandleByIndex_v2(bus - 0x19, gpu);
}
int nvmlDeviceGetHandleByUUID(const char *uuid, Gpu **gpu) {
    for (unsigned i = 0; i < (unsigned)ng_settings()->count; i++) {
        char own[64];
        print_uuid(own, sizeof own, i);
        for (const char *a = own, *b = uuid; *a == *b; a++, b++)
            if (!*a) return nvmlDeviceGetHandleByIndex_v2(i, gpu);
    }
    return INVALID;
}
int nvmlDeviceGetCudaComputeCapability(Gpu *gpu, int *major, int *minor) {
    *major = ng_settings()->card.major;
    *minor = ng_settings()->card.minor;
    return SUCCESS;
}
int nvmlDeviceGetMemoryBusWidth(Gpu *gpu, unsigned *bits) {
    *bits = (unsigned)ng_settings()->card.bus_bits;
    return SUCCESS;
}
int nvmlDeviceGetMaxClockInfo(Gpu *gpu, int clock, unsigned *mhz) {
    const ng_card *card = &ng_settings()->card;
    *mhz = (unsigned)(clock == 2 ? card->memory_clock_mhz : card->clock_mhz);
    return SUCCESS;
}

/* Memory and processes, from the board on which every process writes */

typedef struct { unsigned version; u64 total, reserved, free, used; } Memory;
typedef struct { u64 total, free, used; } OldMemory;
typedef struct { unsigned pid; u64 bytes; unsigned instance, compute_instance; } Process;
typedef struct { unsigned pid; u64 bytes; } OldProcess;

static u64 used_of(const Gpu *gpu) {
    unsigned pid;
    size_t bytes;
    u64 used = 0;
    for (int i = 0; i < BOARD_SLOTS; i++)
        if (ng_board_slot(i, (int)gpu->index, &pid, &bytes)) used += bytes;
    return used;
}
/* Busy while a process has the card, so that an idle one is not taken for somebody else's. */
int nvmlDeviceGetUtilizationRates(Gpu *gpu, unsigned rates[2]) {
    rates[0] = used_of(gpu) ? 100 : 0;
    rates[1] = used_of(gpu) ? 50 : 0;
    return SUCCESS;
}
int nvmlDeviceGetMemoryInfo_v2(Gpu *gpu, Memory *memory) {
    const ng_card *card = &ng_settings()->card;
    if (memory->version != 0x02000028) return VERSION_MISMATCH;
    memory->total = card->board_bytes;
    memory->reserved = card->board_bytes - card->memory_bytes;
    memory->used = used_of(gpu);
    memory->free = card->memory_bytes - memory->used;
    return SUCCESS;
}
int nvmlDeviceGetMemoryInfo(Gpu *gpu, OldMemory *memory) {
    const ng_card *card = &ng_settings()->card;
    u64 used = used_of(gpu);
    memory->total = card->board_bytes;
    memory->free = card->memory_bytes - used;
    memory->used = card->board_bytes - memory->free;
    return SUCCESS;
}
int nvmlDeviceGetComputeRunningProcesses_v3(Gpu *gpu, unsigned *count, Process *rows) {
    unsigned pid, found = 0, room = rows ? *count : 0;
    size_t bytes;
    for (int i = 0; i < BOARD_SLOTS; i++) {
        if (!ng_board_slot(i, (int)gpu->index, &pid, &bytes)) continue;
        if (found < room) rows[found] = (Process){pid, bytes, ~0u, ~0u};
        found++;
    }
    *count = found;
    return found > room ? TOO_SMALL : SUCCESS;
}
/* The first version, which torch asks when memory runs out, has shorter rows. */
int nvmlDeviceGetComputeRunningProcesses(Gpu *gpu, unsigned *count, OldProcess *rows) {
    Process found[BOARD_SLOTS];
    unsigned all = BOARD_SLOTS, room = rows ? *count : 0;
    nvmlDeviceGetComputeRunningProcesses_v3(gpu, &all, found);
    for (unsigned i = 0; i < all && i < room; i++) rows[i] = (OldProcess){found[i].pid, found[i].bytes};
    *count = all;
    return all > room ? TOO_SMALL : SUCCESS;
}
/* A card that belongs to no fabric answers, and says so in its state. */
typedef struct {
    unsigned version;
    unsigned char cluster[16];
    int status;
    unsigned clique;
    unsigned char state;
} Fabric;
int nvmlDeviceGetGpuFabricInfoV(Gpu *gpu, Fabric *fabric) {
    fabric->status = SUCCESS;
    fabric->clique = 0;
    fabric->state = 0; /* not supported */
    return SUCCESS;
}
