/* compression.c — the registry of codes, and the code that all kinds share. */
#include "worker/compression/compression.h"

#include "base/memory.h"
#include "base/vector.h"

#include <string.h>

#define COMPRESSION(name) extern const struct compression_kind compression_##name;
#include "worker/compression/compression.def"
#undef COMPRESSION

static const struct about *const entries[] = {
#define COMPRESSION(name) &compression_##name.about,
#include "worker/compression/compression.def"
#undef COMPRESSION
};
const struct registry compression_registry = {"compression", entries, COUNT_OF(entries)};

const struct compression_kind *compression_of(const options *o)
{
    const struct compression_kind *kind = (const struct compression_kind *)registry_find(
        &compression_registry, options_text(o, "compression"));
    return kind != NULL && kind->encode != NULL ? kind : NULL;
}

status compression_open_decoder(compression **out, const struct compression_kind *kind,
                                const options *o, size_t count, const size_t *ends, size_t tensors)
{
    status result = OK;
    compression *z = NULL;

    *out = NULL;
    TRY(memory_new(&z, 1, sizeof *z, "the compression"));
    z->kind = kind;
    z->count = count;
    z->tensors = tensors > 0 ? tensors : 1;
    TRY(memory_new(&z->ends, z->tensors, sizeof *z->ends, "the compression"));
    if (tensors > 0)
        memcpy(z->ends, ends, tensors * sizeof *ends);
    else
        z->ends[0] = count;
    REQUIRE(z->ends[z->tensors - 1] == count);
    if (kind->open != NULL)
        TRY(kind->open(z, o));
    *out = z;
    z = NULL;
done:
    compression_close(&z);
    return result;
}

status compression_open(compression **out, const struct compression_kind *kind, const options *o,
                        size_t count, const size_t *ends, size_t tensors)
{
    status result = OK;
    TRY(compression_open_decoder(out, kind, o, count, ends, tensors));
    TRY(memory_new(&(*out)->residual, count, sizeof(float), "the compression's residual"));
    if (kind->has_momentum)
        TRY(memory_new(&(*out)->velocity, count, sizeof(float), "the compression's velocity"));
    compression_reset(*out);
done:
    if (result != OK)
        compression_close(out);
    return result;
}

void compression_close(compression **z)
{
    if (z == NULL || *z == NULL)
        return;
    if ((*z)->state != NULL)
        (*z)->kind->close(*z);
    memory_free((*z)->ends);
    memory_free((*z)->residual);
    memory_free((*z)->velocity);
    memory_free(*z);
    *z = NULL;
}

size_t compression_code_bytes(const compression *z)
{
    return z->kind->code_bytes != NULL ? z->kind->code_bytes(z) : z->kind->float_bytes * z->count;
}

void compression_set_epoch(compression *z, double epoch)
{
    z->epoch = epoch;
}

size_t compression_bytes_at(const compression *z, double epoch)
{
    compression then = *z;
    then.epoch = epoch;
    return compression_code_bytes(&then);
}

size_t compression_state_count(const compression *z)
{
    return z->velocity != NULL ? 2 * z->count : z->count;
}

void compression_state_read(const compression *z, float *out)
{
    memcpy(out, z->residual, z->count * sizeof *out);
    if (z->velocity != NULL)
        memcpy(out + z->count, z->velocity, z->count * sizeof *out);
}

void compression_state_write(compression *z, const float *in)
{
    memcpy(z->residual, in, z->count * sizeof *in);
    if (z->velocity != NULL)
        memcpy(z->velocity, in + z->count, z->count * sizeof *in);
}

void compression_reset(compression *z)
{
    memset(z->residual, 0, z->count * sizeof *z->residual);
    if (z->velocity != NULL)
        memset(z->velocity, 0, z->count * sizeof *z->velocity);
}

status compression_check_momentum(const options *o)
{
    status result = OK;
    const struct compression_kind *kind = compression_of(o);
    const bool sync = strcmp(options_text(o, "mode"), "sync") == 0;
    if (kind == NULL || !kind->has_momentum)
        goto done;
    if (strcmp(options_text(o, "optimizer"), "sgd") != 0) {
        FAIL(ERROR_USAGE,
             "%s: compression=%s has the momentum of each sender (compression.momentum), and "
             "optimizer=%s would add another; set optimizer=sgd",
             options_origin(o, "compression"), kind->about.name, options_text(o, "optimizer"));
    }
    if (!sync && strcmp(options_text(o, "outer"), "none") != 0) {
        FAIL(ERROR_USAGE,
             "%s: compression=%s needs gradients, but with outer=%s a worker pushes sums of steps; "
             "set outer=none",
             options_origin(o, "compression"), kind->about.name, options_text(o, "outer"));
    }
    if (!sync && options_integer(o, "servers") > 1 &&
        strcmp(options_text(o, "read"), "torn") == 0) {
        FAIL(ERROR_USAGE,
             "%s: with compression=%s the size of a code follows from the version that a worker "
             "read, but with read=torn a worker reads several; set read=snapshot",
             options_origin(o, "compression"), kind->about.name);
    }
    if (sync && options_integer(o, "workers") == 1) {
        FAIL(ERROR_USAGE,
             "%s: with workers=1 no rank compresses, so compression=%s would have no momentum; set "
             "workers=2 or more, or optimizer=momentum without compression",
             options_origin(o, "compression"), kind->about.name);
    }
    if (sync && options_integer(o, "local_steps") > 1) {
        FAIL(
            ERROR_USAGE,
            "%s: with local_steps=%s ranks exchange parameters after the switch, so compression=%s "
            "would have no momentum; set local_steps=1 or another compression",
            options_origin(o, "compression"), options_value(o, "local_steps"), kind->about.name);
    }
done:
    return result;
}

static void accumulate_with_momentum(float momentum, const float *restrict gradient, size_t count,
                                     float *restrict u, float *restrict v)
{
    for (size_t i = 0; i < count; i++) {
        float velocity = momentum * u[i] + gradient[i];
        u[i] = flush_subnormal(velocity);
        v[i] += velocity;
    }
}

void compression_encode(compression *z, const float *gradient, size_t from, size_t count,
                        void *code)
{
    float *p = z->residual + from;
    REQUIRE(from + count <= z->count && (z->kind->float_bytes > 0 || count == z->count));
    if (z->velocity != NULL)
        accumulate_with_momentum(z->momentum, gradient, count, z->velocity, p);
    else
        for (size_t i = 0; i < count; i++)
            p[i] += gradient[from + i];
    z->kind->encode(z, p, count, code);
}

bool compression_is_valid(const compression *z, const void *code)
{
    return z->kind->is_valid == NULL || z->kind->is_valid(z, code);
}

void compression_decode(const compression *z, const void *code, float *out)
{
    memset(out, 0, z->count * sizeof *out);
    z->kind->add(z, code, z->count, out);
}
