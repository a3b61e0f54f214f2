/*
 * compression_topk.c — sends the k largest floats of the whole vector by absolute value; the others
 * stay in the residual (Stich et al. 2018, definition 2.1, with memory: algorithm 1).
 * k = compression.ratio × count, rounded, at least 1. The code: sparse.h.
 *
 * A code has 8·k bytes. Between P ranks, every rank sends its code to all others:
 * P·(P − 1)·8·k bytes, fewer than float32 while ratio × P < 1.
 * Values that are not finite count as the largest, so they are sent.
 */
#include "base/memory.h"
#include "worker/compression/sparse.h"

struct topk_state {
    size_t k;
    struct sparse *sparse;
};

static status topk_open(compression *z, const options *o)
{
    status result = OK;
    struct topk_state *s = NULL;
    TRY(memory_new(&s, 1, sizeof *s, "the compression"));
    z->state = s;
    s->k = sparse_k(options_real(o, "compression.ratio"), z->count);
    TRY(sparse_open(&s->sparse, z->kind, z->count));
done:
    return result;
}

static void topk_close(compression *z)
{
    struct topk_state *s = z->state;
    memory_free(s->sparse);
    memory_free(s);
}

static size_t topk_code_bytes(const compression *z)
{
    const struct topk_state *s = z->state;
    return sparse_bytes(s->k);
}

static void topk_encode(compression *z, float *values, size_t count, void *code)
{
    const struct topk_state *s = z->state;
    sparse_encode(s->sparse, s->k, values, count, code);
}

static void topk_add(const compression *z, const void *code, size_t count, float *sum)
{
    const struct topk_state *s = z->state;
    sparse_add(s->k, code, count, sum);
}

static bool topk_is_valid(const compression *z, const void *code)
{
    const struct topk_state *s = z->state;
    return sparse_is_valid(s->k, code, z->count);
}

static const struct option topk_options[] = {
    {.key = "compression.ratio",
     .type = OPTION_REAL,
     .initial = "0.01",
     .minimum = 1e-9,
     .maximum = 1,
     .help = "share of the gradient's floats that is sent"},
    {0},
};

const struct compression_kind compression_topk = {
    .about = {.name = "topk",
              .description =
                  "the largest floats by absolute value, a share compression.ratio of all",
              .source = "Stich et al. 2018, Sparsified SGD with memory, algorithm 1",
              .options = topk_options},
    .code_bytes = topk_code_bytes,
    .open = topk_open,
    .close = topk_close,
    .encode = topk_encode,
    .add = topk_add,
    .is_valid = topk_is_valid,
};
