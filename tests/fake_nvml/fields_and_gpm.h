/* The part of fake_nvml.c that tells several numbers in one call: field values, and metrics of GPM. */

/* ---- fields: several numbers in one call, each with an error of its own ---- */

typedef struct {
    u32 id, scope;
    int64_t taken_us, latency_us;
    u32 type, code;
    union { u64 whole; double real; } value;
} field_t;

enum { POWER_INSTANT = 186, NVLINK_TX = 138, NVLINK_RX = 139, UNSIGNED_LONG_LONG = 3 };

static int field_error(const device_t *device, const field_t *field)
{
    char name[32];
    snprintf(name, sizeof name, "field_%u", field->id);
    if ((field->id == NVLINK_TX || field->id == NVLINK_RX) && field->scope != ~0u)
        return INVALID; /* one link, where all were to be asked for */
    return failure(device->idx, name);
}

int nvmlDeviceGetFieldValues(device_t *device, int count, field_t *fields)
{
    int error = enter(device, "fields");
    for (int one = 0; !error && one < count; one++) {
        field_t *field = &fields[one];
        char key[32];
        snprintf(key, sizeof key, "field_%u", field->id);
        long long otherwise = field->id == POWER_INSTANT ? get(device->idx, "power_mw", 100000) : 0;
        field->code = (u32)field_error(device, field);
        field->type = UNSIGNED_LONG_LONG;
        field->value.whole = (u64)get(device->idx, key, otherwise);
    }
    return error;
}

/* ---- GPM: metrics are differences of two samples ---- */

typedef struct { int filled, device; } sample_t;
typedef struct { u32 id, code; double value; const char *names[3]; } metric_t;
typedef struct { u32 version, count; sample_t *first, *second; metric_t metrics[]; } metrics_t;
typedef struct { u32 version, supported; } support_t;

static int fillings;

int nvmlGpmQueryDeviceSupport(device_t *device, support_t *support)
{
    int error = enter(device, "gpm_support");
    if (error)
        return error;
    if (support->version != 1)
        return VERSION_MISMATCH;
    support->supported = (u32)get(device->idx, "gpm", 1);
    return OK;
}

int nvmlGpmSampleAlloc(sample_t **sample)
{
    if (!alive())
        return UNINITIALIZED;
    look();
    int error = failure(-1, "gpm_alloc");
    if (error)
        return error;
    *sample = calloc(1, sizeof **sample);
    samples++;
    return OK;
}

int nvmlGpmSampleFree(sample_t *sample)
{
    if (!alive())
        return UNINITIALIZED;
    look();
    free(sample);
    samples--;
    return failure(-1, "gpm_free");
}

static int fill(sample_t *sample, int device)
{
    sample->filled = ++fillings;
    sample->device = device;
    return OK;
}

int nvmlGpmSampleGet(device_t *device, sample_t *sample)
{
    int error = enter(device, "gpm");
    return error ? error : fill(sample, device->idx);
}

int nvmlGpmMigSampleGet(device_t *device, u32 instance, sample_t *sample)
{
    int error = enter(device, "gpm");
    for (int slot = 0; !error && slot < SLOTS; slot++) {
        int number = MIG_BASE * (device->idx + 1) + slot;
        if ((u32)get(number, "gi", slot + 1) == instance) {
            error = failure(number, "gpm");
            return error ? error : fill(sample, number);
        }
    }
    return error ? error : INVALID;
}

int nvmlGpmMetricsGet(metrics_t *wanted)
{
    if (!alive())
        return UNINITIALIZED;
    if (wanted->version != 1)
        return VERSION_MISMATCH;
    const sample_t *first = wanted->first, *second = wanted->second;
    if (!first->filled || first->filled >= second->filled || first->device != second->device)
        return INVALID;
    look();
    int error = failure(second->device, "gpm_metrics");
    for (u32 one = 0; !error && one < wanted->count; one++) {
        metric_t *metric = &wanted->metrics[one];
        char key[32];
        snprintf(key, sizeof key, "gpm_%u", metric->id);
        metric->code = (u32)failure(second->device, key);
        metric->value = (double)get(second->device, key, 0) / 100.0;
    }
    return error;
}
