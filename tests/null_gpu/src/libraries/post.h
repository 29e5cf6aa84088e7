/* Letters between the ranks of a communicator, in POSIX shared memory. */
#pragma once
#include "../core/null.h"

enum { MOST_RANKS = 16, LETTERS = 4 };
enum { CARRIED = 16 << 10 }; /* bytes of a message that really travel; larger ones leave no value */

/* One letter for each operation: who asks for what, when it is ready, and the bytes if they are few. */
typedef struct {
    u64 ready;                /* ns of the monotonic clock, which all processes of a host share */
    u64 count;
    int kind, type, root, reduction;
    size_t bytes;
    char payload[CARRIED];
} ng_letter;

typedef enum { CHANNEL_ALL, CHANNEL_SEND, CHANNEL_RECEIVE, CHANNELS } ng_channel;

typedef struct ng_office ng_office; /* the segment */

ng_office *ng_office_open(const char *name);
void ng_office_forget(const char *name);
void ng_office_close(ng_office *office, const char *name);
int ng_office_join(ng_office *office, const char *name, int ranks);
int ng_office_is_complete(const ng_office *office, int ranks);
ng_letter *ng_office_blank(ng_office *office, ng_channel channel, int from, int to);
void ng_office_post(ng_office *office, ng_channel channel, int from, int to);
const ng_letter *ng_office_arrived(ng_office *office, ng_channel channel, int from, int to);
void ng_office_taken(ng_office *office, ng_channel channel, int from, int to);
