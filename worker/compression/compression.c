/* compression.c — the registry of codes, and the code that all kinds share. */
#include "worker/compression/compression.h"

#include "base/memory.h"

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
    memset((*out)->residual, 0, count * sizeof(float));
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
    memory_free(*z);
    *z = NULL;
}

size_t compression_code_bytes(const compression *z)
{
    return z->kind->code_bytes != NULL ? z->kind->code_bytes(z) : z->kind->float_bytes * z->count;
}

void compression_encode(compression *z, const float *gradient, size_t from, size_t count,
                        void *code)
{
    float *p = z->residual + from;
    REQUIRE(from + count <= z->count && (z->kind->float_bytes > 0 || count == z->count));
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
