/* slice_code.c — see slice_code.h. */
#include "ps/core/slice_code.h"

#include "base/memory.h"

/* ends[0..result) ← where each tensor of the slice ends, counted from the slice's begin. */
static size_t tensor_ends(const struct slices *s, unsigned server,
                          const struct optimizer_layers *layers, size_t *ends)
{
    const size_t begin = s->begin[server], end = s->begin[server + 1];
    size_t tensors = 0;
    for (size_t i = 0, from = 0, to; i < layers->count; i++, from = to) {
        to = from + layers->at[i].count;
        if (to > begin && from < end)
            ends[tensors++] = (to < end ? to : end) - begin;
    }
    return tensors;
}

status slice_code_open(compression **out, const options *settings, const struct slices *s,
                       unsigned server, const struct optimizer_layers *layers,
                       enum slice_code_use use)
{
    status result = OK;
    size_t *ends = NULL;
    const struct compression_kind *kind = compression_of(settings);
    *out = NULL;
    if (kind == NULL)
        goto done;
    TRY(memory_new(&ends, layers->count + 1, sizeof *ends, "the compression"));
    const size_t tensors = tensor_ends(s, server, layers, ends), count = slice_count(s, server);
    TRY(use == SLICE_CODE_ENCODES
            ? compression_open(out, kind, settings, count, ends, tensors)
            : compression_open_decoder(out, kind, settings, count, ends, tensors));
done:
    memory_free(ends);
    return result;
}

size_t slice_push_bytes(const compression *z, const struct slices *s, unsigned server, double epoch)
{
    return z != NULL ? compression_bytes_at(z, epoch) : slice_count(s, server) * sizeof(float);
}
