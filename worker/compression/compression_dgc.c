/*
 * compression_dgc.c — deep gradient compression: the largest floats, with momentum at the sender.
 *
 * Momentum correction of Lin et al. 2018, with the sender's velocity u, residual v and gradient g,
 * and m = compression.momentum:
 *
 *     u ← m·u + g;  v ← v + u;  code ← the k largest of v by absolute value
 *     u and v ← 0 at the indices of the code                      (momentum factor masking)
 *
 * Momentum at the receiver would count twice, so the optimizer is sgd. Warm-up: in epoch e (0, 1,
 * …) before compression.warmup_epochs, k is max(ratio, 4^−(e + 1)) of the vector, as in the paper:
 * 25 %, 6.25 %, 1.56 %, 0.4 %. The epoch counts the samples used so far (ranks), or the samples
 * used before the version that the worker read (asynchronous mode).
 *
 * Differences from the paper: the k largest floats are selected from the whole vector (or from a
 * server's slice of it), not from each layer. They are found exactly, not by sampling. There is no
 * local clipping of gradients. Weight decay is added by the optimizer, so it is not in u.
 */
#include "base/memory.h"
#include "worker/compression/sparse.h"

#include <math.h>

struct dgc_state {
    double ratio, warmup;
    struct sparse *sparse;
};

static size_t k_of(const compression *z)
{
    const struct dgc_state *s = z->state;
    double ratio = s->ratio;
    if (z->epoch < s->warmup)
        ratio = fmax(ratio, ldexp(1, -2 * ((int)fmin(z->epoch, 100) + 1)));
    return sparse_k(ratio, z->count);
}

static status dgc_open(compression *z, const options *o)
{
    status result = OK;
    struct dgc_state *s = NULL;
    TRY(memory_new(&s, 1, sizeof *s, "the compression"));
    z->state = s;
    s->ratio = options_real(o, "compression.ratio");
    s->warmup = options_real(o, "compression.warmup_epochs");
    z->momentum = (float)options_real(o, "compression.momentum");
    TRY(sparse_open(&s->sparse, z->kind, z->count));
done:
    return result;
}

static void dgc_close(compression *z)
{
    struct dgc_state *s = z->state;
    memory_free(s->sparse);
    memory_free(s);
}

static size_t dgc_code_bytes(const compression *z)
{
    return sparse_bytes(k_of(z));
}

static void dgc_encode(compression *z, float *values, size_t count, void *code)
{
    const struct dgc_state *s = z->state;
    const uint32_t *indices = code;
    const size_t k = k_of(z);
    sparse_encode(s->sparse, k, values, count, code);
    for (size_t n = 0; n < k; n++)
        z->velocity[indices[n]] = 0;
}

static void dgc_add(const compression *z, const void *code, size_t count, float *sum)
{
    sparse_add(k_of(z), code, count, sum);
}

static bool dgc_is_valid(const compression *z, const void *code)
{
    return sparse_is_valid(k_of(z), code, z->count);
}

static const struct option dgc_options[] = {
    {.key = "compression.ratio",
     .type = OPTION_REAL,
     .initial = "0.001",
     .minimum = 1e-9,
     .maximum = 1,
     .help = "share of the gradient's floats that is sent after the warm-up"},
    {.key = "compression.momentum",
     .type = OPTION_REAL,
     .initial = "0.9",
     .minimum = 0,
     .maximum = 0.999999,
     .help = "momentum coefficient of each sender, in place of the optimizer's"},
    {.key = "compression.warmup_epochs",
     .type = OPTION_REAL,
     .initial = "4",
     .minimum = 0,
     .maximum = 1e6,
     .help = "epochs in which the share falls from 1/4 by a factor of 4 each (0: none)"},
    {0},
};

const struct compression_kind compression_dgc = {
    .about = {.name = "dgc",
              .description = "the largest floats, with momentum correction and warm-up",
              .source = "Lin et al. 2018, Deep Gradient Compression, arXiv:1712.01887",
              .options = dgc_options},
    .has_momentum = true,
    .code_bytes = dgc_code_bytes,
    .open = dgc_open,
    .close = dgc_close,
    .encode = dgc_encode,
    .add = dgc_add,
    .is_valid = dgc_is_valid,
};
