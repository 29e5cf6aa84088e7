/* A small stand-in for libnvidia-ml.so.1, so that the real pynvml runs in tests.
 *
 * Driven by the environment:
 *   NVML_STUB_GPUS=2                     how many GPUs (1)
 *   NVML_STUB_INIT=9                     what initialising returns (0)
 *   NVML_STUB_REFUSE=NAME:3,field186:3   what a function, or one batched field, returns
 *   NVML_STUB_LOST=1:20                  GPU 1 is lost once it answered 20 calls
 *   NVML_STUB_MIG=0                      GPU 0 is in MIG mode
 *   NVML_STUB_REASONS=0x24               clock event reasons (0)
 *   NVML_STUB_CAPPED=1:450              power limit of GPU 1 in W, which holds its clock (none)
 *   NVML_STUB_HELD=74:250000,269:7       nanoseconds that counter fields grow by at each reading
 *   NVML_STUB_PROCESSES=4211:1024,77:-   pid and bytes on GPU 0; - is "not available"
 *   NVML_STUB_GRAPHICS=4211:1024         the same of processes with a graphics context
 *   NVML_STUB_BUSY=4211:35               pid and its share of GPU 0's time, %
 *   NVML_STUB_CUDA=12040                 CUDA version of the driver (13000)
 *   NVML_STUB_LOG=FILE                   one line for each call on a GPU: its name and index
 * Compiled with -DOLD_DRIVER it lacks the functions that came with newer drivers.
 *
 * Also pynvml, torch itself opens the library: its caching allocator looks up the functions of
 * the last part when it first needs one, at the latest when memory runs out, and takes a missing
 * one or a refusal for a fault of its own.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SUCCESS = 0, INVALID = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6, TOO_SMALL = 7, GPU_IS_LOST = 15 };
enum { LARGEST = 8 };
typedef unsigned long long u64;
typedef struct { unsigned index, calls, locked_mhz, held_readings; u64 millijoules; } Gpu;

static Gpu gpus[LARGEST];

static long number(const char *name, long otherwise) {
    const char *text = getenv(name);
    return text && *text ? strtol(text, NULL, 0) : otherwise;
}

/* The number that a variable such as NVML_STUB_REFUSE holds for a name, or what is given. */
static long long listed(const char *variable, const char *name, long long otherwise) {
    const char *at = getenv(variable);
    size_t length = strlen(name);
    while (at && *at) {
        if (!strncmp(at, name, length) && at[length] == ':') return atoll(at + length + 1);
        at = strchr(at, ',');
        if (at) at++;
    }
    return otherwise;
}

/* The code that NVML_STUB_REFUSE holds for a name, or 0. */
static int refusal(const char *name) { return (int)listed("NVML_STUB_REFUSE", name, SUCCESS); }

/* Watts that NVML_STUB_CAPPED holds for the GPU, or 0. */
static unsigned capped_watts(const Gpu *gpu) {
    char index[4];
    snprintf(index, sizeof index, "%u", gpu->index);
    return (unsigned)listed("NVML_STUB_CAPPED", index, 0);
}

static u64 clock_reasons(const Gpu *gpu) {
    return (u64)number("NVML_STUB_REASONS", 0) | (capped_watts(gpu) ? 0x4 : 0);
}

static int in_mig_mode(const Gpu *gpu) { return number("NVML_STUB_MIG", -1) == (long)gpu->index; }

static int enter(Gpu *gpu, const char *name) {
    const char *path = getenv("NVML_STUB_LOG"), *lost = getenv("NVML_STUB_LOST");
    unsigned which, after;
    gpu->calls++;
    if (path) {
        FILE *file = fopen(path, "a");
        if (file) {
            fprintf(file, "%s %u\n", name, gpu->index);
            fclose(file);
        }
    }
    if (lost && sscanf(lost, "%u:%u", &which, &after) == 2 && which == gpu->index &&
        gpu->calls > after)
        return GPU_IS_LOST;
    return refusal(name);
}

#define ENTER(gpu) do { int code = enter(gpu, __func__); if (code) return code; } while (0)

/* Life and system */

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    for (unsigned i = 0; i < LARGEST; i++) gpus[i].index = i;
    return (int)number("NVML_STUB_INIT", SUCCESS);
}
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) { (void)code; return "stub error"; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) {
    snprintf(text, size, "580.95.05");
    return SUCCESS;
}
int nvmlSystemGetNVMLVersion(char *text, unsigned size) {
    snprintf(text, size, "13.580.95.05");
    return SUCCESS;
}
int nvmlSystemGetCudaDriverVersion(int *version) {
    *version = (int)number("NVML_STUB_CUDA", 13000);
    return SUCCESS;
}

/* Handles */

int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = (unsigned)number("NVML_STUB_GPUS", 1);
    return SUCCESS;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Gpu **gpu) {
    if (index >= (unsigned)number("NVML_STUB_GPUS", 1)) return INVALID;
    *gpu = &gpus[index];
    ENTER(*gpu);
    return SUCCESS;
}
int nvmlDeviceGetName(Gpu *gpu, char *text, unsigned size) {
    ENTER(gpu);
    snprintf(text, size, "NVIDIA Stub [red]H[/]");
    return SUCCESS;
}
int nvmlDeviceGetUUID(Gpu *gpu, char *text, unsigned size) {
    ENTER(gpu);
    snprintf(text, size, "GPU-%08x-0000-4000-8000-000000000000", 0xa0 + gpu->index);
    return SUCCESS;
}
/* Load, power, clocks */

int nvmlDeviceGetUtilizationRates(Gpu *gpu, unsigned rates[2]) {
    ENTER(gpu);
    if (in_mig_mode(gpu)) return NOT_SUPPORTED;
    rates[0] = gpu->index < 6 ? 40 + 10 * gpu->index : 100;
    rates[1] = 20;
    return SUCCESS;
}
typedef struct { unsigned version; u64 total, reserved, free, used; } Memory;

int nvmlDeviceGetMemoryInfo_v2(Gpu *gpu, Memory *memory) {
    ENTER(gpu);
    if (memory->version != 0x02000028) return 25;
    if (gpu->index == LARGEST + 1) return NO_PERMISSION;
    memory->total = 80ull << 30;
    memory->reserved = 1ull << 30;
    memory->used = (10ull + gpu->index) << 30;
    memory->free = memory->total - memory->reserved - memory->used;
    return SUCCESS;
}
int nvmlDeviceGetPowerUsage(Gpu *gpu, unsigned *milliwatts) {
    ENTER(gpu);
    *milliwatts = 300000;
    return SUCCESS;
}
int nvmlDeviceGetEnforcedPowerLimit(Gpu *gpu, unsigned *milliwatts) {
    ENTER(gpu);
    *milliwatts = capped_watts(gpu) ? capped_watts(gpu) * 1000 : 700000;
    return SUCCESS;
}
int nvmlDeviceGetTemperature(Gpu *gpu, int sensor, unsigned *celsius) {
    ENTER(gpu);
    if (sensor != 0) return INVALID;
    *celsius = 61;
    return SUCCESS;
}
int nvmlDeviceGetClockInfo(Gpu *gpu, int clock, unsigned *mhz) {
    ENTER(gpu);
    unsigned own = capped_watts(gpu) ? 1410 : 1755;
    *mhz = clock == 2 ? 2619 : gpu->locked_mhz ? gpu->locked_mhz : own;
    return SUCCESS;
}
int nvmlDeviceSetGpuLockedClocks(Gpu *gpu, unsigned least, unsigned most) {
    ENTER(gpu);
    if (least > most) return INVALID;
    gpu->locked_mhz = most;
    return SUCCESS;
}
int nvmlDeviceResetGpuLockedClocks(Gpu *gpu) {
    ENTER(gpu);
    gpu->locked_mhz = 0;
    return SUCCESS;
}
int nvmlDeviceGetMaxClockInfo(Gpu *gpu, int clock, unsigned *mhz) {
    ENTER(gpu);
    *mhz = clock == 2 ? 2619 : 1980;
    return SUCCESS;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(Gpu *gpu, u64 *reasons) {
    ENTER(gpu);
    *reasons = clock_reasons(gpu);
    return SUCCESS;
}

/* Power 186 (mW, unsigned int) and energy 83 (mJ, unsigned long long, growing by 500 J a call);
 * the others are NVML_STUB_HELD's. */

typedef struct {
    unsigned field, scope;
    long long timestamp, latency;
    int type, code;
    union { unsigned ui; u64 ull; } value;
} FieldValue;

int nvmlDeviceGetFieldValues(Gpu *gpu, int count, FieldValue *values) {
    ENTER(gpu);
    gpu->held_readings++;
    for (int i = 0; i < count; i++) {
        char name[32];
        snprintf(name, sizeof name, "field%u", values[i].field);
        values[i].code = refusal(name);
        if (values[i].field == 186) {
            values[i].type = 1;
            values[i].value.ui = 612000;
        } else if (values[i].field == 83) {
            values[i].type = 3;
            values[i].value.ull = gpu->millijoules += 500000;
        } else {
            char id[16];
            snprintf(id, sizeof id, "%u", values[i].field);
            long long grows = listed("NVML_STUB_HELD", id, -1);
            if (grows < 0) values[i].code = NOT_SUPPORTED;
            values[i].type = 3;
            values[i].value.ull = (u64)grows * gpu->held_readings;
        }
    }
    return SUCCESS;
}

/* Modes and facts */

int nvmlDeviceGetMigMode(Gpu *gpu, unsigned *current, unsigned *pending) {
    ENTER(gpu);
    *current = *pending = (unsigned)in_mig_mode(gpu);
    return SUCCESS;
}
int nvmlDeviceGetEccMode(Gpu *gpu, int *current, int *pending) {
    ENTER(gpu);
    *current = *pending = 1;
    return SUCCESS;
}
int nvmlDeviceGetComputeMode(Gpu *gpu, int *mode) {
    ENTER(gpu);
    *mode = (int)number("NVML_STUB_COMPUTE_MODE", 0);
    return SUCCESS;
}
int nvmlDeviceGetPersistenceMode(Gpu *gpu, int *mode) {
    ENTER(gpu);
    *mode = (int)number("NVML_STUB_PERSISTENCE", 1);
    return SUCCESS;
}
int nvmlDeviceGetRemappedRows(Gpu *gpu, unsigned *corrected, unsigned *uncorrected,
                              unsigned *pending, unsigned *failed) {
    ENTER(gpu);
    *corrected = 0, *uncorrected = 1, *failed = 0;
    *pending = (unsigned)number("NVML_STUB_REMAP_PENDING", 0);
    return SUCCESS;
}
int nvmlDeviceGetMemoryBusWidth(Gpu *gpu, unsigned *bits) {
    ENTER(gpu);
    *bits = 5120;
    return SUCCESS;
}
int nvmlDeviceGetCudaComputeCapability(Gpu *gpu, int *major, int *minor) {
    ENTER(gpu);
    *major = 9;
    *minor = 0;
    return SUCCESS;
}

typedef struct {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char text[32];
} Pci;

int nvmlDeviceGetPciInfo_v3(Gpu *gpu, Pci *pci) {
    ENTER(gpu);
    *pci = (Pci){.bus = gpu->index};
    snprintf(pci->legacy, sizeof pci->legacy, "0000:%02X:00.0", gpu->index);
    snprintf(pci->text, sizeof pci->text, "00000000:%02X:00.0", gpu->index);
    return SUCCESS;
}
int nvmlDeviceGetPerformanceState(Gpu *gpu, unsigned *state) {
    ENTER(gpu);
    *state = 0;
    return SUCCESS;
}
int nvmlDeviceGetFanSpeed(Gpu *gpu, unsigned *percent) {
    ENTER(gpu);
    (void)percent;
    return NOT_SUPPORTED;
}
int nvmlDeviceGetTotalEccErrors(Gpu *gpu, int type, int counter, u64 *count) {
    ENTER(gpu);
    (void)type, (void)counter;
    *count = (u64)number("NVML_STUB_ECC_ERRORS", 0);
    return SUCCESS;
}

/* MIG: two instances of a GPU in that mode, the second of which this user may not query */

static Gpu slices[2];

int nvmlDeviceGetMaxMigDeviceCount(Gpu *gpu, unsigned *count) {
    ENTER(gpu);
    *count = in_mig_mode(gpu) ? 7 : 0;
    return SUCCESS;
}
int nvmlDeviceGetMigDeviceHandleByIndex(Gpu *gpu, unsigned index, Gpu **slice) {
    ENTER(gpu);
    if (index >= 2) return NOT_FOUND;
    slices[index].index = LARGEST + index;
    *slice = &slices[index];
    return SUCCESS;
}
int nvmlDeviceGetGpuInstanceId(Gpu *slice, unsigned *id) {
    if (slice->index < LARGEST) return INVALID;
    *id = slice->index - LARGEST + 1;
    return SUCCESS;
}

/* Processes */

typedef struct { unsigned pid; u64 bytes; unsigned gpu_instance, compute_instance; } Process;

/* One entry of NVML_STUB_PROCESSES: returns what follows it, NULL after the last. */
static const char *next_process(const char *at, Process *process) {
    char *end;
    unsigned pid = (unsigned)strtoul(at, &end, 10);
    u64 bytes = end[1] == '-' ? ~0ull : strtoull(end + 1, NULL, 10);
    *process = (Process){pid, bytes, ~0u, ~0u};
    at = strchr(end, ',');
    return at && at[1] ? at + 1 : NULL;
}

static int list_processes(const char *at, unsigned *count, Process *processes) {
    unsigned found = 0, room = processes ? *count : 0;
    while (at && *at) {
        Process process;
        at = next_process(at, &process);
        if (found < room) processes[found] = process;
        found++;
    }
    *count = found;
    return found > room ? TOO_SMALL : SUCCESS;
}
int nvmlDeviceGetComputeRunningProcesses_v3(Gpu *gpu, unsigned *count, Process *processes) {
    ENTER(gpu);
    return list_processes(gpu->index ? NULL : getenv("NVML_STUB_PROCESSES"), count, processes);
}
int nvmlDeviceGetMPSComputeRunningProcesses_v3(Gpu *gpu, unsigned *count, Process *processes) {
    ENTER(gpu);
    return list_processes(gpu->index ? NULL : getenv("NVML_STUB_MPS"), count, processes);
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(Gpu *gpu, unsigned *count, Process *processes) {
    ENTER(gpu);
    return list_processes(gpu->index ? NULL : getenv("NVML_STUB_GRAPHICS"), count, processes);
}

/* One sample of each process in NVML_STUB_BUSY: an old one with 99 %, and one of now. */
typedef struct { unsigned pid; u64 t_us; unsigned sm, memory, encoder, decoder; } Utilization;

int nvmlDeviceGetProcessUtilization(Gpu *gpu, Utilization *rows, unsigned *count, u64 since) {
    const char *at = gpu->index ? NULL : getenv("NVML_STUB_BUSY");
    u64 now_us = (u64)time(NULL) * 1000000;
    unsigned found = 0, room = rows ? *count : 0;
    ENTER(gpu);
    (void)since;
    while (at && *at) {
        Process process;
        at = next_process(at, &process);
        for (int old = 1; old >= 0; old--, found++)
            if (found < room)
                rows[found] = (Utilization){process.pid, old ? now_us - 60000000 : now_us,
                                            old ? 99 : (unsigned)process.bytes, 0, 0, 0};
    }
    *count = found;
    return found > room ? TOO_SMALL : found ? SUCCESS : NOT_FOUND;
}

/* What torch asks for: c10/cuda/driver_api.h, torch/cuda/__init__.py and our memory pass */

int nvmlInit(void) { return nvmlInitWithFlags(0); }
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    return nvmlSystemGetCudaDriverVersion(version);
}
int nvmlDeviceGetHandleByPciBusId_v2(const char *id, Gpu **gpu) {
    unsigned domain, bus;
    /* GPU n sits at 0000:0n:00.0. */
    if (sscanf(id, "%x:%x:", &domain, &bus) != 2) return INVALID;
    return nvmlDeviceGetHandleByIndex_v2(bus, gpu);
}
int nvmlDeviceGetHandleByUUID(const char *uuid, Gpu **gpu) {
    unsigned number;
    if (sscanf(uuid, "GPU-%x-", &number) != 1 || number < 0xa0) return INVALID;
    return nvmlDeviceGetHandleByIndex_v2(number - 0xa0, gpu);
}

/* The first form of the list, which torch reads when memory has run out: pid and bytes alone. */
typedef struct { unsigned pid; u64 bytes; } OldProcess;

int nvmlDeviceGetComputeRunningProcesses(Gpu *gpu, unsigned *count, OldProcess *processes) {
    const char *at = gpu->index == 0 ? getenv("NVML_STUB_PROCESSES") : NULL;
    unsigned found = 0, room = processes ? *count : 0;
    ENTER(gpu);
    while (at && *at) {
        Process process;
        at = next_process(at, &process);
        if (found < room) processes[found] = (OldProcess){process.pid, process.bytes};
        found++;
    }
    *count = found;
    return found > room ? TOO_SMALL : SUCCESS;
}
int nvmlDeviceGetNvLinkRemoteDeviceType(Gpu *gpu, unsigned link, unsigned *type) {
    ENTER(gpu);
    (void)link, (void)type;
    return NOT_SUPPORTED;
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(Gpu *gpu, unsigned link, void *pci) {
    ENTER(gpu);
    (void)link, (void)pci;
    return NOT_SUPPORTED;
}

#ifndef OLD_DRIVER

int nvmlDeviceGetCurrentClocksEventReasons(Gpu *gpu, u64 *reasons) {
    ENTER(gpu);
    *reasons = clock_reasons(gpu);
    return SUCCESS;
}
typedef struct { unsigned version; int sensor, celsius; } Temperature;

int nvmlDeviceGetTemperatureV(Gpu *gpu, Temperature *asked) {
    ENTER(gpu);
    if (asked->version != 0x0100000C || asked->sensor != 0) return INVALID;
    asked->celsius = 61;
    return SUCCESS;
}

int nvmlDeviceGetGpuFabricInfoV(Gpu *gpu, void *info) {
    ENTER(gpu);
    (void)info;
    return NOT_SUPPORTED;
}

/* GPM: two samples, then metrics between them */

typedef struct { unsigned id; int code; double value; const char *words[3]; } Metric;
typedef struct { unsigned version, count; int *first, *second; Metric metrics[]; } MetricsGet;

int nvmlGpmQueryDeviceSupport(Gpu *gpu, unsigned support[2]) {
    ENTER(gpu);
    support[1] = !in_mig_mode(gpu);
    return SUCCESS;
}
int nvmlGpmSampleAlloc(int **sample) {
    *sample = calloc(1, sizeof **sample);
    return SUCCESS;
}
int nvmlGpmSampleFree(int *sample) {
    free(sample);
    return SUCCESS;
}
int nvmlGpmSampleGet(Gpu *gpu, int *sample) {
    static int taken = 0;
    ENTER(gpu);
    *sample = ++taken;
    return SUCCESS;
}
int nvmlGpmMetricsGet(MetricsGet *asked) {
    if (asked->version != 1 || !*asked->first || *asked->first >= *asked->second) return INVALID;
    for (unsigned i = 0; i < asked->count; i++) {
        Metric *metric = &asked->metrics[i];
        char name[32];
        snprintf(name, sizeof name, "metric%u", metric->id);
        metric->code = refusal(name);
        metric->value = metric->id == 2 ? 92.5 : metric->id == 5 ? 61.0 : 38.0;
    }
    return SUCCESS;
}

#endif
