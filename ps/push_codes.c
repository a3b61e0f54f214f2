/* push_codes.c — see push_codes.h. */
#include "ps/push_codes.h"

#include "base/memory.h"
#include "base/vector.h"
#include "worker/optimizer/optimizer.h"

#include <math.h>

status push_codes_open(struct push_codes *p, const options *settings,
                       const struct optimizer_layers *layers, size_t count, uint64_t epoch_samples)
{
    status result = OK;
    *p = (struct push_codes){0};
    if (compression_of(settings) == NULL)
        goto done;
    TRY(slices_open(&p->slices, settings, layers, count));
    p->epoch_samples = epoch_samples;
    TRY(memory_new(&p->servers, p->slices.servers, sizeof *p->servers, "codes"));
    for (unsigned i = 0; i < p->slices.servers; i++) {
        struct push_code *code = &p->servers[i];
        TRY(slice_code_open(&code->compression, settings, &p->slices, i, layers,
                            SLICE_CODE_ENCODES));
        code->size = compression_bytes_at(code->compression, 0);
        TRY(memory_new(&code->bytes, code->size, 1, "a code"));
    }
done:
    if (result != OK)
        push_codes_close(p);
    return result;
}

void push_codes_close(struct push_codes *p)
{
    for (unsigned i = 0; p->servers != NULL && i < p->slices.servers; i++) {
        compression_close(&p->servers[i].compression);
        memory_free(p->servers[i].bytes);
    }
    memory_free(p->servers);
    *p = (struct push_codes){0};
}

bool push_codes_enabled(const struct push_codes *p)
{
    return p->servers != NULL;
}

void push_codes_reset(struct push_codes *p)
{
    for (unsigned i = 0; p->servers != NULL && i < p->slices.servers; i++)
        compression_reset(p->servers[i].compression);
}

static double epoch_of(const struct push_codes *p, uint64_t samples)
{
    return (double)samples / (double)p->epoch_samples;
}

size_t push_codes_bytes(const struct push_codes *p, unsigned server, uint64_t samples)
{
    return compression_bytes_at(p->servers[server].compression, epoch_of(p, samples));
}

bool push_codes_apply(struct push_codes *p, uint64_t samples, float *gradient, float loss)
{
    const size_t count = p->slices.begin[p->slices.servers];
    if (!isfinite(loss) || !optimizer_takes(vector_sum_of_squares(count, gradient), 1))
        return false;
    for (unsigned i = 0; i < p->slices.servers; i++) {
        struct push_code *code = &p->servers[i];
        float *slice = gradient + p->slices.begin[i];
        compression_set_epoch(code->compression, epoch_of(p, samples));
        code->size = compression_code_bytes(code->compression);
        compression_encode(code->compression, slice, 0, code->compression->count, code->bytes);
        compression_decode(code->compression, code->bytes, slice);
    }
    return true;
}
