/* A library with NVML's names and eight quiet GPUs behind them: two exporters can then be measured side by side, each
 * through the real Python binding. Every call answers at once, unless the file that NVML_STUB_HANG names exists: then the
 * first GPU's memory call does not return until it is gone. What is not here the binding reports as "function not found". */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define GPUS 8
#define OK 0
#define INVALID 2
#define TIMEOUT 10
typedef unsigned int u32;
typedef unsigned long long u64;
typedef void *device;

static device handle(long index) { return (device)(index + 1); }
static long number(device gpu) { return (long)gpu - 1; }

#define GIVES(name, type, value) int name(device gpu, type *out) { *out = (type)(value); return OK; }
#define GIVES_OF(name, type, value) int name(device gpu, u32 kind, type *out) { *out = (type)(value); return OK; }

int nvmlInit_v2(void) { return OK; }
int nvmlInitWithFlags(u32 flags) { return OK; }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { return code == OK ? "Success" : "Stub error"; }
int nvmlSystemGetDriverVersion(char *out, u32 size) { snprintf(out, size, "580.00.00"); return OK; }
int nvmlSystemGetNVMLVersion(char *out, u32 size) { snprintf(out, size, "13.580.00"); return OK; }
int nvmlSystemGetCudaDriverVersion_v2(int *out) { *out = 13000; return OK; }
int nvmlSystemGetCudaDriverVersion(int *out) { *out = 13000; return OK; }
int nvmlDeviceGetCount_v2(u32 *out) { *out = GPUS; return OK; }
int nvmlDeviceGetHandleByIndex_v2(u32 index, device *out) { if (index >= GPUS) return INVALID; *out = handle(index); return OK; }
int nvmlDeviceGetHandleByUUID(const char *uuid, device *out) { *out = handle(atol(uuid + strlen(uuid) - 1)); return OK; }
int nvmlDeviceGetName(device gpu, char *out, u32 size) { snprintf(out, size, "NVIDIA RTX PRO 6000 Blackwell"); return OK; }
int nvmlDeviceGetUUID(device gpu, char *out, u32 size) { snprintf(out, size, "GPU-00000000-0000-0000-0000-00000000000%ld", number(gpu)); return OK; }
int nvmlDeviceGetSerial(device gpu, char *out, u32 size) { snprintf(out, size, "%ld", number(gpu)); return OK; }

struct memory { u64 total, free, used; };
struct memory_v2 { u32 version; u64 total, reserved, free, used; };
static void wait_if_asked(device gpu) {
    const char *path = getenv("NVML_STUB_HANG");
    while (path && number(gpu) == 0 && access(path, F_OK) == 0) usleep(20000);
}
int nvmlDeviceGetMemoryInfo(device gpu, struct memory *out) {
    wait_if_asked(gpu);
    out->total = 97887ull << 20; out->used = 600ull << 20; out->free = out->total - out->used;
    return OK;
}
int nvmlDeviceGetMemoryInfo_v2(device gpu, struct memory_v2 *out) {
    wait_if_asked(gpu);
    out->total = 97887ull << 20; out->reserved = 600ull << 20; out->used = 600ull << 20; out->free = out->total - out->used;
    return OK;
}
struct bar1 { u64 total, free, used; };
int nvmlDeviceGetBAR1MemoryInfo(device gpu, struct bar1 *out) { out->total = 1ull << 37; out->used = 1 << 20; out->free = out->total - out->used; return OK; }
struct utilization { u32 gpu, memory; };
int nvmlDeviceGetUtilizationRates(device gpu, struct utilization *out) { out->gpu = 37; out->memory = 12; return OK; }
int nvmlDeviceGetEncoderUtilization(device gpu, u32 *out, u32 *period) { *out = 0; *period = 1000; return OK; }
int nvmlDeviceGetDecoderUtilization(device gpu, u32 *out, u32 *period) { *out = 0; *period = 1000; return OK; }
int nvmlDeviceGetMigMode(device gpu, u32 *now, u32 *pending) { *now = *pending = 0; return OK; }
int nvmlDeviceGetRemappedRows(device gpu, u32 *a, u32 *b, u32 *c, u32 *d) { *a = *b = *c = *d = 0; return OK; }
int nvmlDeviceGetTotalEccErrors(device gpu, u32 type, u32 counter, u64 *out) { *out = 0; return OK; }
int nvmlDeviceGetTemperature(device gpu, u32 sensor, u32 *out) { *out = 41; return OK; }
int nvmlDeviceGetComputeRunningProcesses_v3(device gpu, u32 *count, void *list) { *count = 0; return OK; }
int nvmlDeviceGetGraphicsRunningProcesses_v3(device gpu, u32 *count, void *list) { *count = 0; return OK; }
int nvmlEventSetCreate(device *out) { *out = handle(0); return OK; }
int nvmlEventSetFree(device set) { return OK; }
int nvmlDeviceRegisterEvents(device gpu, u64 types, device set) { return OK; }
int nvmlEventSetWait_v2(device set, void *event, u32 milliseconds) { return TIMEOUT; }

GIVES(nvmlDeviceGetIndex, u32, number(gpu))
GIVES(nvmlDeviceGetMinorNumber, u32, number(gpu))
GIVES(nvmlDeviceGetPowerUsage, u32, 88500)
GIVES(nvmlDeviceGetEnforcedPowerLimit, u32, 600000)
GIVES(nvmlDeviceGetPowerManagementLimit, u32, 600000)
GIVES(nvmlDeviceGetFanSpeed, u32, 30)
GIVES(nvmlDeviceGetPerformanceState, u32, 0)
GIVES(nvmlDeviceGetPersistenceMode, u32, 1)
GIVES(nvmlDeviceGetComputeMode, u32, 0)
GIVES(nvmlDeviceGetMaxMigDeviceCount, u32, 0)
GIVES(nvmlDeviceGetCurrentClocksThrottleReasons, u64, 1)
GIVES(nvmlDeviceGetSupportedClocksThrottleReasons, u64, 0x7ff)
GIVES(nvmlDeviceGetCurrPcieLinkGeneration, u32, 5)
GIVES(nvmlDeviceGetCurrPcieLinkWidth, u32, 16)
GIVES(nvmlDeviceGetMaxPcieLinkGeneration, u32, 5)
GIVES(nvmlDeviceGetMaxPcieLinkWidth, u32, 16)
GIVES(nvmlDeviceGetPcieReplayCounter, u32, 0)
GIVES_OF(nvmlDeviceGetClockInfo, u32, 2100)
GIVES_OF(nvmlDeviceGetMaxClockInfo, u32, 2600)
GIVES_OF(nvmlDeviceGetPcieThroughput, u32, 1000)
