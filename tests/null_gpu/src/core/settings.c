/* The environment, read once: which card, how many, and what goes wrong. README.md has the list. */
#define _GNU_SOURCE
#include "null.h"
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

static ng_settings_t settings;
static int visible[MOST_DEVICES], visible_count;
static FILE *log_file;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static double number(const char *name, double otherwise) {
    const char *text = getenv(name);
    return text && *text ? strtod(text, NULL) : otherwise;
}

static ng_card chosen_card(void) {
    const char *wanted = getenv("NULL_GPU_CARD");
    if (!wanted || !*wanted) return ng_cards[0];
    for (size_t i = 0; i < ng_card_count; i++)
        for (const char *const *alias = ng_cards[i].aliases; *alias; alias++)
            if (!strcasecmp(wanted, *alias)) return ng_cards[i];
    fprintf(stderr, "null GPU: NULL_GPU_CARD=%s is not in cards.toml\n", wanted);
    exit(2); /* any other card would answer a question that nobody asked */
}

void ng_uuid(unsigned char out[16], int physical) {
    memcpy(out, "null-gpu-card-00", 16);
    out[15] = (unsigned char)('0' + physical);
}

/* The card that one entry of CUDA_VISIBLE_DEVICES names: an index, or the start of a UUID. */
static int named_card(const char *text, size_t length) {
    char *end;
    long index = strtol(text, &end, 10);
    if (length && end == text + length) return index >= 0 && index < settings.count ? (int)index : -1;
    for (int i = 0; i < settings.count; i++) {
        unsigned char raw[16];
        char uuid[48];
        ng_uuid(raw, i);
        int at = snprintf(uuid, sizeof uuid, "GPU-");
        for (int k = 0; k < 16; k++)
            at += snprintf(uuid + at, sizeof uuid - at, "%s%02x",
                           k == 4 || k == 6 || k == 8 || k == 10 ? "-" : "", raw[k]);
        if (length > 4 && !strncasecmp(text, uuid, length)) return i;
    }
    return -1;
}

static void read_visible(void) {
    const char *text = getenv("CUDA_VISIBLE_DEVICES");
    if (!text) {
        for (; visible_count < settings.count; visible_count++) visible[visible_count] = visible_count;
        return;
    }
    while (*text && visible_count < MOST_DEVICES) {
        size_t length = strcspn(text, ",");
        int card = named_card(text, length);
        if (card < 0) return; /* CUDA, too, ends the list at the first that is none */
        visible[visible_count++] = card;
        text += length;
        if (*text) text++;
    }
}

static void begin(void) {
    settings.card = chosen_card();
    double mib = number("NULL_GPU_MEMORY_MIB", 0);
    if (mib > 0) {
        settings.card.board_bytes += (size_t)mib * MIB - settings.card.memory_bytes;
        settings.card.memory_bytes = (size_t)mib * MIB;
    }
    settings.card.context_bytes =
        (size_t)(number("NULL_GPU_CONTEXT_MIB", (double)settings.card.context_bytes / MIB) * MIB);
    settings.count = (int)number("NULL_GPU_COUNT", 1);
    if (settings.count > MOST_DEVICES) settings.count = MOST_DEVICES;
    settings.pace = number("NULL_GPU_PACE", 1);
    settings.queue = (u32)number("NULL_GPU_QUEUE", 1024);
    if (!settings.queue) settings.queue = 1;
    settings.fail_at = (u64)number("NULL_GPU_FAIL_AT_LAUNCH", 0);
    settings.kernel_bytes = (size_t)(number("NULL_GPU_KERNEL_KIB", 0) * KIB);
    settings.copy_limit = (size_t)(number("NULL_GPU_COPY_LIMIT_MIB", 4) * MIB);
    settings.cudnn_version = (size_t)number("NULL_GPU_CUDNN", NG_CUDNN_VERSION);
    settings.cudnn_workspace = (size_t)(number("NULL_GPU_CUDNN_WORKSPACE_MIB", 0) * MIB);
    settings.nccl_fail_at = (u64)number("NULL_GPU_NCCL_FAIL_AT", 0);
    const char *cupti = getenv("NULL_GPU_CUPTI");
    settings.refuses_cupti = cupti && !strcmp(cupti, "refused");
    const char *path = getenv("NULL_GPU_LOG");
    if (path && *path) {
        char name[4096];
        snprintf(name, sizeof name, "%s.%d", path, getpid());
        log_file = fopen(name, "w");
    }
    read_visible();
}

const ng_settings_t *ng_settings(void) {
    pthread_once(&once, begin);
    return &settings;
}

int ng_device_count(void) {
    ng_settings();
    return visible_count;
}

int ng_physical(int device) {
    ng_settings();
    return device >= 0 && device < visible_count ? visible[device] : 0;
}

void ng_note(const char *format, ...) {
    if (!log_file) return;
    va_list arguments;
    va_start(arguments, format);
    vfprintf(log_file, format, arguments);
    fputc('\n', log_file);
    va_end(arguments);
    fflush(log_file); /* workers leave by _exit */
}
