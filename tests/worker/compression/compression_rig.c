#include "tests/worker/compression/compression_rig.h"

static const struct compression_kind *kind_called(const char *name)
{
    const struct about *about = registry_find(&compression_registry, name);
    REQUIRE(about != NULL);
    return (const struct compression_kind *)about;
}

status compression_rig_open(compression **out, const char *name, const char *ratio, size_t count,
                            const size_t *ends, size_t tensors)
{
    status result = OK;
    options *o = NULL;
    const struct compression_kind *kind = kind_called(name);
    TRY(options_open(&o));
    if (kind->about.options != NULL)
        TRY(options_declare(o, kind->about.options));
    if (ratio != NULL)
        TRY(options_set(o, "compression.ratio", ratio, "test"));
    if (options_declared(o, "compression.momentum")) /* so that codes + residual = gradients */
        TRY(options_set(o, "compression.momentum", "0", "test"));
    TRY(compression_open(out, kind, o, count, ends, tensors));
done:
    options_close(&o);
    return result;
}

float compression_rig_noise(uint32_t *bits)
{
    *bits = *bits * 1664525u + 1013904223u;
    return (float)(int32_t)*bits * 0x1p-31f;
}
