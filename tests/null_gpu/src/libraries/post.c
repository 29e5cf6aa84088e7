/* Letters between ranks: a ring for each pair and channel, written by one rank and read by one. */
#define _GNU_SOURCE
#include "post.h"
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct {
    u64 posted, taken;        /* letters so far, by the writer and by the reader */
    ng_letter letters[LETTERS];
} Ring;

struct ng_office {
    int joined;
    Ring rings[CHANNELS][MOST_RANKS][MOST_RANKS]; /* pages come into being as they are used */
};

static u64 read_of(const u64 *counter) { return __atomic_load_n(counter, __ATOMIC_ACQUIRE); }

ng_office *ng_office_open(const char *name) {
    int file = shm_open(name, O_RDWR | O_CREAT, 0600);
    if (file < 0) return NULL;
    ng_office *office = MAP_FAILED;
    if (!ftruncate(file, sizeof *office))
        office = mmap(NULL, sizeof *office, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    return office == MAP_FAILED ? NULL : office;
}

void ng_office_forget(const char *name) { shm_unlink(name); }

void ng_office_close(ng_office *office, const char *name) {
    ng_office_forget(name); /* gone already where all ranks have come */
    munmap(office, sizeof *office);
}

/* The last to come takes the name away: the segment then lives as long as a rank has it. */
int ng_office_join(ng_office *office, const char *name, int ranks) {
    int joined = __atomic_add_fetch(&office->joined, 1, __ATOMIC_ACQ_REL);
    if (joined == ranks) shm_unlink(name);
    return joined <= ranks;
}
int ng_office_is_complete(const ng_office *office, int ranks) {
    return __atomic_load_n(&office->joined, __ATOMIC_ACQUIRE) >= ranks;
}

/* The next letter to fill in, or NULL while the reader has not taken an older one. */
ng_letter *ng_office_blank(ng_office *office, ng_channel channel, int from, int to) {
    Ring *ring = &office->rings[channel][from][to];
    return ring->posted - read_of(&ring->taken) < LETTERS ? ring->letters + ring->posted % LETTERS : NULL;
}
void ng_office_post(ng_office *office, ng_channel channel, int from, int to) {
    __atomic_add_fetch(&office->rings[channel][from][to].posted, 1, __ATOMIC_RELEASE);
}

/* The oldest letter that is not taken yet, or NULL. */
const ng_letter *ng_office_arrived(ng_office *office, ng_channel channel, int from, int to) {
    Ring *ring = &office->rings[channel][from][to];
    return read_of(&ring->posted) > ring->taken ? ring->letters + ring->taken % LETTERS : NULL;
}
void ng_office_taken(ng_office *office, ng_channel channel, int from, int to) {
    __atomic_add_fetch(&office->rings[channel][from][to].taken, 1, __ATOMIC_RELEASE);
}
