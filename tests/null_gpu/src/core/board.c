/* What every process holds of every card, in shared memory: NVML tells of them all. */
#include "null.h"
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct { int pid; size_t bytes[MOST_DEVICES]; } Slot;

static Slot *board, *mine;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void open_board(void) {
    const char *given = getenv("NULL_GPU_BOARD");
    char name[256];
    if (given && *given) snprintf(name, sizeof name, "/%s", given);
    else snprintf(name, sizeof name, "/null-gpu-%u", getuid());
    int file = shm_open(name, O_RDWR | O_CREAT, 0600);
    if (file < 0) return;
    if (!ftruncate(file, BOARD_SLOTS * sizeof(Slot)))
        board = mmap(NULL, BOARD_SLOTS * sizeof(Slot), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (board == MAP_FAILED) board = NULL;
    close(file);
}

static int is_alive(int pid) { return pid && !kill(pid, 0); }

/* Claim the first slot that is free or whose process is gone. */
static Slot *claim(void) {
    for (int i = 0; board && i < BOARD_SLOTS; i++) {
        int owner = board[i].pid;
        if (is_alive(owner) || !__sync_bool_compare_and_swap(&board[i].pid, owner, getpid())) continue;
        for (int k = 0; k < MOST_DEVICES; k++) board[i].bytes[k] = 0;
        return board + i;
    }
    return NULL;
}

void ng_board_publish(int physical, size_t bytes) {
    pthread_once(&once, open_board);
    if (!mine) mine = claim();
    if (mine) mine->bytes[physical] = bytes;
}

int ng_board_slot(int index, int physical, unsigned *pid, size_t *bytes) {
    pthread_once(&once, open_board);
    if (!board || !is_alive(board[index].pid) || !board[index].bytes[physical]) return 0;
    *pid = (unsigned)board[index].pid;
    *bytes = board[index].bytes[physical];
    return 1;
}

__attribute__((destructor)) static void leave(void) {
    if (mine) mine->pid = 0;
}
