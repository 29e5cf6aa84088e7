/* Listens to NVTX as a profiler would, by the injection interface of NVTX 3, and writes
   "push NAME" and "pop" lines to the file that NVTX_STUB_LOG names. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void (*function)(void);
typedef struct {
    size_t struct_size;
    int (*get_module_function_table)(int module, function ***table, unsigned *size);
} callbacks;
typedef struct {
    uint16_t version, size;
    uint32_t category;
    int32_t color_type;
    uint32_t color;
    int32_t payload_type, reserved;
    uint64_t payload;
    int32_t message_type;
    const char *message; /* a registered string's handle is its text here */
} attributes;

enum { CALLBACKS = 1, CORE2 = 5, PUSH = 4, POP = 5, REGISTER_STRING = 10, CREATE_DOMAIN = 12 };

static FILE *out;

static int push(void *domain, const attributes *event) {
    fprintf(out, "push %s\n", event->message);
    fflush(out);
    return 0;
}

static int pop(void *domain) {
    fprintf(out, "pop\n");
    fflush(out);
    return 0;
}

static const char *register_string(void *domain, const char *text) { return strdup(text); }

static const char *create_domain(const char *name) { return strdup(name); }

int InitializeInjectionNvtx2(const callbacks *(*get_export_table)(uint32_t)) {
    const char *path = getenv("NVTX_STUB_LOG");
    function **table;
    unsigned size;
    if (!path || !(out = fopen(path, "a"))) return 0;
    if (!get_export_table(CALLBACKS)->get_module_function_table(CORE2, &table, &size)) return 0;
    *table[PUSH] = (function)push;
    *table[POP] = (function)pop;
    *table[REGISTER_STRING] = (function)register_string;
    *table[CREATE_DOMAIN] = (function)create_domain;
    return 1;
}
