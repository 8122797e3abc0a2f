/* SPDX-License-Identifier: Apache-2.0 */
/* The NVML functions themselves, as far as monitoring needs them.
 *
 * Signatures, structures and error codes are those of NVIDIA's NVML API reference; the versioned
 * structures are checked for size below. Each function first gives the state file the chance to
 * delay it or to let it fail.
 */
#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    ARGUMENT_VERSION_MISMATCH = 25,
};

typedef struct device {
    int index;
} *device_t;

struct utilization {
    unsigned gpu, memory;
};
struct memory {
    uint64_t total, free, used;
};
struct memory_v2 {
    unsigned version;
    uint64_t total, reserved, free, used;
};
struct process {
    unsigned pid;
    uint64_t used;
    unsigned gpu_instance, compute_instance;
};
struct pci {
    char bus_id_legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
};
struct temperature {
    unsigned version, sensor;
    int celsius;
};

_Static_assert(sizeof(struct utilization) == 8, "nvmlUtilization_t");
_Static_assert(sizeof(struct memory) == 24, "nvmlMemory_t");
_Static_assert(sizeof(struct memory_v2) == 40, "nvmlMemory_v2_t");
_Static_assert(sizeof(struct process) == 24, "nvmlProcessInfo_t");
_Static_assert(sizeof(struct pci) == 68, "nvmlPciInfo_t");
_Static_assert(sizeof(struct temperature) == 12, "nvmlTemperature_v1_t");

#define MEMORY_V2 (sizeof(struct memory_v2) | 2u << 24)
#define TEMPERATURE_V1 (sizeof(struct temperature) | 1u << 24)

static struct device devices[MAX_GPUS];
static int initialized;

static int enter(const char *function, const struct device *device) {
    int gpu = device != NULL ? device->index : -1;
    uint64_t no_driver = 0;
    state_delay(function, gpu);
    if (state_number(&no_driver, "no_driver") && no_driver != 0)
        return DRIVER_NOT_LOADED;
    int code = state_error(function, gpu);
    if (code == SUCCESS && initialized == 0 && strncmp(function, "nvmlInit", 8) != 0)
        code = UNINITIALIZED;
    return code;
}

#define ENTER(device)                           \
    do {                                        \
        int code_ = enter(__func__, (device));  \
        if (code_ != SUCCESS)                   \
            return code_;                       \
    } while (0)

/* The real library dereferences whatever handle it gets; so does this one, for tests to notice. */
#define ENTER_DEVICE(device)     \
    do {                         \
        if ((device) == NULL)    \
            abort();             \
        ENTER(device);           \
    } while (0)

static unsigned count_gpus(void) {
    uint64_t count = 0;
    state_number(&count, "count");
    return count > MAX_GPUS ? MAX_GPUS : (unsigned)count;
}

static bool in_mig_mode(const struct device *device) {
    uint64_t mig = 0;
    return state_number(&mig, "%d.mig", device->index) && mig != 0;
}

static int number(const struct device *device, const char *key, unsigned *value) {
    uint64_t wide;
    if (!state_number(&wide, "%d.%s", device->index, key))
        return NOT_SUPPORTED; /* this board can't tell */
    *value = (unsigned)wide;
    return SUCCESS;
}

/* ---------------------------------------------------------------------------- library and system */

EXPORT int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    ENTER(NULL);
    for (int i = 0; i < MAX_GPUS; i++)
        devices[i].index = i;
    initialized++;
    return SUCCESS;
}

EXPORT int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

EXPORT int nvmlShutdown(void) {
    ENTER(NULL);
    initialized--;
    char path[1024];
    if (state_text(path, sizeof path, "shutdown_log")) { /* lets a test see that it was called */
        FILE *log = fopen(path, "ae");
        if (log != NULL) {
            fputs("nvmlShutdown\n", log);
            fclose(log);
        }
    }
    return SUCCESS;
}

EXPORT const char *nvmlErrorString(int code) {
    static _Thread_local char text[40];
    snprintf(text, sizeof text, "Fake NVML error %d", code);
    return text;
}

EXPORT int nvmlSystemGetDriverVersion(char *version, unsigned length) {
    ENTER(NULL);
    if (!state_text(version, length, "driver"))
        snprintf(version, length, "580.65.06");
    return SUCCESS;
}

EXPORT int nvmlSystemGetNVMLVersion(char *version, unsigned length) {
    ENTER(NULL);
    snprintf(version, length, "13.580.65.06");
    return SUCCESS;
}

EXPORT int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    ENTER(NULL);
    *version = 13000;
    return SUCCESS;
}

/* ------------------------------------------------------------------------------ finding a device */

EXPORT int nvmlDeviceGetCount_v2(unsigned *count) {
    ENTER(NULL);
    *count = count_gpus();
    return SUCCESS;
}

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, device_t *device) {
    if (index >= count_gpus())
        return INVALID_ARGUMENT;
    ENTER(&devices[index]);
    uint64_t null_handle = 0;
    state_number(&null_handle, "%u.null_handle", index);
    *device = null_handle ? NULL : &devices[index];
    return SUCCESS;
}

static void uuid_of(const struct device *device, char *uuid, size_t length) {
    if (!state_text(uuid, length, "%d.uuid", device->index))
        snprintf(uuid, length, "GPU-fa4e0000-0000-4000-8000-%012d", device->index);
}

EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, device_t *device) {
    ENTER(NULL);
    for (unsigned i = 0; i < count_gpus(); i++) {
        char own[96];
        uuid_of(&devices[i], own, sizeof own);
        if (strcmp(own, uuid) == 0) {
            ENTER(&devices[i]);
            *device = &devices[i];
            return SUCCESS;
        }
    }
    return NOT_FOUND;
}

EXPORT int nvmlDeviceGetIndex(device_t device, unsigned *index) {
    ENTER_DEVICE(device);
    *index = (unsigned)device->index;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetMinorNumber(device_t device, unsigned *minor) {
    ENTER_DEVICE(device);
    *minor = (unsigned)device->index;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetUUID(device_t device, char *uuid, unsigned length) {
    ENTER_DEVICE(device);
    uuid_of(device, uuid, length);
    return SUCCESS;
}

EXPORT int nvmlDeviceGetName(device_t device, char *name, unsigned length) {
    ENTER_DEVICE(device);
    if (!state_text(name, length, "%d.name", device->index))
        snprintf(name, length, "Fake GPU");
    return SUCCESS;
}

EXPORT int nvmlDeviceGetPciInfo_v3(device_t device, struct pci *pci) {
    ENTER_DEVICE(device);
    memset(pci, 0, sizeof *pci);
    pci->bus = 0x10u + (unsigned)device->index;
    snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0", pci->bus);
    snprintf(pci->bus_id_legacy, sizeof pci->bus_id_legacy, "0000:%02X:00.0", pci->bus);
    return SUCCESS;
}

EXPORT int nvmlDeviceGetMigMode(device_t device, unsigned *current, unsigned *pending) {
    ENTER_DEVICE(device);
    int code = number(device, "mig", current);
    if (code == SUCCESS)
        *pending = *current;
    return code;
}

/* ---------------------------------------------------------------------------------------- readings */

EXPORT int nvmlDeviceGetUtilizationRates(device_t device, struct utilization *utilization) {
    ENTER_DEVICE(device);
    if (in_mig_mode(device))
        return NOT_SUPPORTED; /* as documented: there is none for a device split into instances */
    utilization->memory = 0;
    number(device, "util_memory", &utilization->memory);
    if (number(device, "util", &utilization->gpu) == SUCCESS)
        return SUCCESS;
    struct activity activity;
    activity_read(device->index, &activity);
    utilization->gpu = activity.utilization;
    return activity.named ? SUCCESS : NOT_SUPPORTED;
}

static int read_memory(const struct device *device, struct memory_v2 *memory) {
    struct activity activity;
    activity_read(device->index, &activity);
    memory->used = memory->reserved = 0;
    state_number(&memory->used, "%d.memory_used", device->index);
    state_number(&memory->reserved, "%d.memory_reserved", device->index);
    for (unsigned i = 0; i < activity.trainer_count; i++)
        memory->used += activity.trainers[i].memory_bytes;
    if (!state_number(&memory->total, "%d.memory_total", device->index))
        return NOT_SUPPORTED;
    memory->free = memory->total - memory->reserved - memory->used;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetMemoryInfo(device_t device, struct memory *memory) {
    ENTER_DEVICE(device);
    struct memory_v2 newer;
    int code = read_memory(device, &newer);
    if (code == SUCCESS) /* since R510, version 1 counts what the driver reserves as used */
        *memory = (struct memory){newer.total, newer.free, newer.used + newer.reserved};
    return code;
}

EXPORT int nvmlDeviceGetMemoryInfo_v2(device_t device, struct memory_v2 *memory) {
    ENTER_DEVICE(device);
    if (memory->version != MEMORY_V2)
        return ARGUMENT_VERSION_MISMATCH;
    return read_memory(device, memory);
}

EXPORT int nvmlDeviceGetTemperature(device_t device, unsigned sensor, unsigned *celsius) {
    (void)sensor;
    ENTER_DEVICE(device);
    return number(device, "temperature", celsius);
}

EXPORT int nvmlDeviceGetTemperatureV(device_t device, struct temperature *temperature) {
    ENTER_DEVICE(device);
    if (temperature->version != TEMPERATURE_V1)
        return ARGUMENT_VERSION_MISMATCH;
    unsigned celsius;
    int code = number(device, "temperature", &celsius);
    if (code == SUCCESS)
        temperature->celsius = (int)celsius;
    return code;
}

EXPORT int nvmlDeviceGetPowerUsage(device_t device, unsigned *milliwatts) {
    ENTER_DEVICE(device);
    return number(device, "power_mw", milliwatts);
}

EXPORT int nvmlDeviceGetEnforcedPowerLimit(device_t device, unsigned *milliwatts) {
    ENTER_DEVICE(device);
    return number(device, "power_limit_mw", milliwatts);
}

/* --------------------------------------------------------------------------------------- processes */

struct process_list {
    unsigned count;
    struct process entries[MAX_PROCESSES];
};

static bool add_process(const char *value, void *context) {
    struct process_list *list = context;
    struct process *entry = &list->entries[list->count];
    char bytes[32] = "unknown";
    *entry = (struct process){0, UINT64_MAX, UINT32_MAX, UINT32_MAX};
    sscanf(value, "%u %31s %u %u", &entry->pid, bytes, &entry->gpu_instance,
           &entry->compute_instance);
    if (strcmp(bytes, "unknown") != 0) /* UINT64_MAX is NVML_VALUE_NOT_AVAILABLE */
        entry->used = strtoull(bytes, NULL, 0);
    return ++list->count < MAX_PROCESSES;
}

static int list_processes(const struct device *device, unsigned *count, struct process *entries) {
    static _Thread_local struct process_list list;
    struct activity activity;
    char key[32];
    list.count = 0;
    snprintf(key, sizeof key, "%d.process", device->index);
    state_each(key, add_process, &list);
    activity_read(device->index, &activity);
    for (unsigned i = 0; i < activity.trainer_count && list.count < MAX_PROCESSES; i++)
        list.entries[list.count++] = (struct process){
            activity.trainers[i].pid, activity.trainers[i].memory_bytes, UINT32_MAX, UINT32_MAX};

    bool fits = list.count <= *count && (entries != NULL || list.count == 0);
    if (fits && list.count > 0)
        memcpy(entries, list.entries, list.count * sizeof *entries);
    *count = list.count;
    return fits ? SUCCESS : INSUFFICIENT_SIZE;
}

EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(device_t device, unsigned *count,
                                                   struct process *entries) {
    ENTER_DEVICE(device);
    return list_processes(device, count, entries);
}

EXPORT int nvmlDeviceGetComputeRunningProcesses_v2(device_t device, unsigned *count,
                                                   struct process *entries) {
    ENTER_DEVICE(device);
    return list_processes(device, count, entries);
}
