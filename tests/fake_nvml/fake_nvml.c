/* A stand-in for NVIDIA's libnvidia-ml.so.1: the real ABI, error codes, hangs and forks, without a GPU.
 *
 * Written from the prototypes of nvml.h. The state is the text file named by FAKE_NVML_FILE, read again
 * at every call: lines "<device>.<key>=<integer>", device -1 = global, the last line wins. A test writes
 * a temporary file and renames it, so no call sees half of it. A card without keys supports everything.
 *
 * Every device call first: not initialised in this process -> 1; null handle -> 2; sleeps delay_us,
 * which may be shortened while it sleeps; returns err (any call) or err_<name> if set. A MIG instance is
 * device 100 x (card + 1) + slot. The keys stand beside the calls that tell them; those of the fields are
 * field_<id> and err_field_<id>, those of GPM gpm_<id> in hundredths and err_gpm_<id>.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct { int idx; } device_t;
typedef unsigned int u32;
typedef uint64_t u64;

enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, VERSION_MISMATCH = 25 };
enum { CARDS = 64, SLOTS = 8, MIG_BASE = 100 };

static device_t cards[CARDS];
static device_t slots[CARDS][SLOTS];
static int references;
static pid_t owner;
static int opened;
static int forbidden_calls;
static int samples;

static __thread char state[1 << 16];

/* Read the state; every call does so once, when it begins. Without a file everything has its default. */
static void look(void)
{
    const char *path = getenv("FAKE_NVML_FILE");
    int file = path ? open(path, O_RDONLY) : -1;
    ssize_t length = file < 0 ? 0 : read(file, state, sizeof state - 1);
    state[length > 0 ? length : 0] = 0;
    if (file >= 0)
        close(file);
}

static long long get(int device, const char *key, long long otherwise)
{
    if (!*state)
        return otherwise;
    char wanted[128];
    size_t length = (size_t)snprintf(wanted, sizeof wanted, "%d.%s=", device, key);
    for (const char *line = state; line && *line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (!strncmp(line, wanted, length))
            otherwise = atoll(line + length);
    }
    return otherwise;
}

static int failure(int device, const char *name)
{
    char key[96];
    snprintf(key, sizeof key, "err_%s", name);
    long long error = get(device, "err", 0);
    return (int)(error ? error : get(device, key, 0));
}

/* NVML's state does not survive a fork: a child must initialise for itself. */
static int alive(void) { return references > 0 && owner == getpid(); }

static volatile int sleeping;

/* A hanging driver: the state is looked at again every few milliseconds, so that a test can end it. */
static void hang(int device)
{
    long long slept = 0, left;
    look();
    while ((left = get(device, "delay_us", 0) - slept) > 0) {
        long long slice = left < 5000 ? left : 5000;
        sleeping++;
        usleep((useconds_t)slice);
        sleeping--;
        slept += slice;
        look();
    }
}

static int enter(const device_t *device, const char *name)
{
    if (!alive())
        return UNINITIALIZED;
    if (!device)
        return INVALID;
    hang(device->idx);
    return failure(device->idx, name);
}

/* ---- library ---- */

int nvmlInitWithFlags(u32 flags)
{
    (void)flags;
    hang(-1);
    int error = failure(-1, "init");
    if (error)
        return error;
    if (owner != getpid()) {
        owner = getpid();
        references = 0;
    }
    references++;
    opened++;
    return OK;
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

int nvmlShutdown(void)
{
    if (!alive())
        return UNINITIALIZED;
    references--;
    return OK;
}

const char *nvmlErrorString(int code)
{
    static char text[32];
    snprintf(text, sizeof text, "fake error %d", code);
    return text;
}

/* Questions of the tests, unknown to the real library. */
int fake_opened(void) { return opened; }
int fake_references(void) { return alive() ? references : 0; }
int fake_sleeping(void) { return sleeping; }
int fake_forbidden_calls(void) { return forbidden_calls; }
int fake_samples(void) { return samples; }

/* ---- looking devices up ---- */

static void number(void)
{
    for (int card = 0; card < CARDS; card++) {
        cards[card].idx = card;
        for (int slot = 0; slot < SLOTS; slot++)
            slots[card][slot].idx = MIG_BASE * (card + 1) + slot;
    }
}

int nvmlSystemGetDriverVersion(char *text, u32 size)
{
    if (!alive())
        return UNINITIALIZED;
    look();
    int error = failure(-1, "driver");
    if (!error)
        snprintf(text, size, "%lld.%lld.09", get(-1, "driver_major", 580), get(-1, "driver_minor", 126));
    return error;
}

int nvmlDeviceGetCount_v2(u32 *count)
{
    if (!alive())
        return UNINITIALIZED;
    look();
    *count = (u32)get(-1, "count", 1);
    return failure(-1, "count");
}

int nvmlDeviceGetHandleByIndex_v2(u32 index, device_t **device)
{
    if (!alive())
        return UNINITIALIZED;
    look();
    if (index >= (u32)get(-1, "count", 1) || index >= CARDS)
        return INVALID;
    number();
    *device = &cards[index];
    return failure((int)index, "handle");
}

static void uuid_of(const device_t *device, char *text, size_t size)
{
    int number = (int)get(device->idx, "uuid", device->idx);
    snprintf(text, size, "%s-00000000-0000-0000-0000-%012d", device->idx < MIG_BASE ? "GPU" : "MIG", number);
}

int nvmlDeviceGetHandleByUUID(const char *uuid, device_t **device)
{
    if (!alive())
        return UNINITIALIZED;
    look();
    number();
    for (int card = 0; card < (int)get(-1, "count", 1) && card < CARDS; card++) {
        char text[96];
        uuid_of(&cards[card], text, sizeof text);
        if (!strcmp(uuid, text)) {
            *device = &cards[card];
            return failure(card, "handle");
        }
    }
    return NOT_FOUND;
}

int nvmlDeviceGetUUID(device_t *device, char *text, u32 size)
{
    int error = enter(device, "uuid");
    if (!error)
        uuid_of(device, text, size);
    return error;
}

int nvmlDeviceGetName(device_t *device, char *text, u32 size)
{
    int error = enter(device, "name");
    if (!error)
        snprintf(text, size, "Fake GPU %lld", get(device->idx, "model", 0));
    return error;
}

typedef struct {
    char legacy[16];
    u32 domain, bus, device, id, subsystem;
    char bus_id[32];
} pci_t;

int nvmlDeviceGetPciInfo_v3(device_t *device, pci_t *pci)
{
    int error = enter(device, "pci");
    if (error)
        return error;
    memset(pci, 0, sizeof *pci);
    pci->bus = (u32)get(device->idx, "bus", device->idx + 1);
    snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0", pci->bus);
    return OK;
}

/* ---- readings ---- */

#define NUMBER(function, type, name, key, otherwise)                        \
    int function(device_t *device, type *value)                             \
    {                                                                       \
        int error = enter(device, name);                                    \
        if (!error)                                                         \
            *value = (type)get(device->idx, key, otherwise);                \
        return error;                                                       \
    }

#define KIND_NUMBER(function, name, key, otherwise)                         \
    int function(device_t *device, int kind, u32 *value)                    \
    {                                                                       \
        (void)kind;                                                         \
        int error = enter(device, name);                                    \
        if (!error)                                                         \
            *value = (u32)get(device->idx, key, otherwise);                 \
        return error;                                                       \
    }

NUMBER(nvmlDeviceGetPowerUsage, u32, "power_mw", "power_mw", 100000)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, u32, "limit_mw", "limit_mw", 700000)
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, u32, "limit_default_mw", "limit_default_mw", 700000)
NUMBER(nvmlDeviceGetTotalEnergyConsumption, u64, "energy_mj", "energy_mj", 0)
NUMBER(nvmlDeviceGetCurrentClocksEventReasons, u64, "reasons", "reasons", 0)
KIND_NUMBER(nvmlDeviceGetTemperature, "temp_old", "temp", 40)
KIND_NUMBER(nvmlDeviceGetClockInfo, "clock", "smclk", 1500)
KIND_NUMBER(nvmlDeviceGetMaxClockInfo, "clock_max", "smclk_max", 1980)

typedef struct { u32 gpu, memory; } utilization_t;

int nvmlDeviceGetUtilizationRates(device_t *device, utilization_t *rates)
{
    int error = device && device->idx >= MIG_BASE ? NOT_SUPPORTED : enter(device, "util");
    if (error)
        return error;
    rates->gpu = (u32)get(device->idx, "gpu", 0);
    rates->memory = (u32)get(device->idx, "mem", 0);
    return OK;
}

typedef struct { u64 total, free, used; } memory_t;
typedef struct { u32 version; u64 total, reserved, free, used; } memory2_t;

int nvmlDeviceGetMemoryInfo(device_t *device, memory_t *memory)
{
    int error = enter(device, "memory_old");
    if (error)
        return error;
    u64 reserved = (u64)get(device->idx, "reserved", 0);
    memory->total = (u64)get(device->idx, "total", 1LL << 30);
    memory->used = (u64)get(device->idx, "used", 0) + reserved;
    memory->free = memory->total - memory->used;
    return OK;
}

int nvmlDeviceGetMemoryInfo_v2(device_t *device, memory2_t *memory)
{
    int error = enter(device, "memory");
    if (error)
        return error;
    if (memory->version != (40u | 2u << 24))
        return VERSION_MISMATCH;
    memory->total = (u64)get(device->idx, "total", 1LL << 30);
    memory->reserved = (u64)get(device->idx, "reserved", 0);
    memory->used = (u64)get(device->idx, "used", 0);
    memory->free = memory->total - memory->used - memory->reserved;
    return OK;
}

typedef struct { u32 version; int sensor, degrees; } temperature_t;

int nvmlDeviceGetTemperatureV(device_t *device, temperature_t *temperature)
{
    int error = enter(device, "temp");
    if (error)
        return error;
    if (temperature->version != (12u | 1u << 24))
        return VERSION_MISMATCH;
    temperature->degrees = (int)get(device->idx, "temp", 40);
    return OK;
}

typedef struct { u32 version; int degrees; } margin_t;

int nvmlDeviceGetMarginTemperature(device_t *device, margin_t *margin)
{
    int error = enter(device, "margin");
    if (error)
        return error;
    if (margin->version != (8u | 1u << 24))
        return VERSION_MISMATCH;
    margin->degrees = (int)get(device->idx, "margin", 45);
    return OK;
}

/* The real calls block about 20 ms, or go away with the next CUDA; nobody here may make them. */
static int forbidden(const device_t *device, const char *name)
{
    forbidden_calls++;
    usleep(20000);
    return enter(device, name);
}

int nvmlDeviceGetPcieThroughput(device_t *device, int counter, u32 *value)
{
    (void)counter;
    *value = 0;
    return forbidden(device, "pcie");
}

int nvmlDeviceGetNvLinkUtilizationCounter(device_t *device, u32 link, u32 counter, u64 *rx, u64 *tx)
{
    (void)link;
    (void)counter;
    *rx = *tx = 0;
    return forbidden(device, "nvlink");
}

typedef struct { u64 reference, violation; } violation_t;

int nvmlDeviceGetViolationStatus(device_t *device, int policy, violation_t *time)
{
    (void)policy;
    memset(time, 0, sizeof *time);
    return forbidden(device, "violation");
}

#include "fields_and_gpm.h"

/* ---- MIG ---- */

int nvmlDeviceGetMigMode(device_t *device, u32 *current, u32 *pending)
{
    int error = enter(device, "mig");
    if (!error)
        *current = *pending = (u32)get(device->idx, "mig", 0);
    return error;
}

NUMBER(nvmlDeviceGetMaxMigDeviceCount, u32, "mig", "mig_max", 7)
NUMBER(nvmlDeviceGetGpuInstanceId, u32, "gi", "gi", device->idx % MIG_BASE + 1)
NUMBER(nvmlDeviceGetComputeInstanceId, u32, "ci", "ci", 0)

int nvmlDeviceGetMigDeviceHandleByIndex(device_t *device, u32 slot, device_t **instance)
{
    int error = enter(device, "mig");
    if (error)
        return error;
    if (slot >= (u32)get(device->idx, "mig_count", 0) || slot >= SLOTS)
        return NOT_FOUND;
    *instance = &slots[device->idx][slot];
    return failure((*instance)->idx, "handle");
}

int nvmlDeviceIsMigDeviceHandle(device_t *device, u32 *yes)
{
    int error = enter(device, "mig");
    if (!error)
        *yes = device->idx >= MIG_BASE;
    return error;
}
