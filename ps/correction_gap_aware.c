/*
 * correction_gap_aware.c — g ← g / G, for each parameter G = 1 + |now − read_at| / C, with C the
 * running mean of how far an update moves that parameter:
 *
 *   C ← β C + (1 − β) |θ_k − θ_{k−1}|, over 1 − β^k;   β = correction.memory
 *
 * Barkai, Hakimi, Schuster, "Gap-aware mitigation of gradient staleness" (ICLR 2020,
 * arXiv:1909.10802): a gradient is divided by its gap, the distance between the parameters it is
 * applied to and those it was computed at, in units of a typical step, plus 1; parameter by
 * parameter. The divided gradient enters the velocity, v ← γ v + g / G.
 *
 * Where we differ: C is the mean of the steps that were in fact taken, so that momentum, schedule,
 * damping and weight decay are in it, with its start at 0 corrected for; no largest learning rate
 * has to be known. Weight decay is not divided. G = 1 where a parameter has not moved, so a
 * gradient that is not late stays as it is, bit for bit. τ does not enter: a late gradient of a run
 * that stands still counts in full.
 *
 * Of the paper the abstract was at hand, and FTPipe, a pipeline trainer of two of its authors:
 * there C is the largest rate times the root of the running mean (β = 0.999, its start corrected
 * for) of the squared velocity, and weight decay is divided, too.
 */
#include "ps/correction.h"
#include "worker/vector.h"

#include <math.h>

VECTOR_CLONES
static void track(float memory, size_t count, const float *now, const float *before_in,
                  const float *step_in, float *step_out)
{
    for (size_t i = 0; i < count; i++) {
        step_out[i] = memory * step_in[i] + (1 - memory) * fabsf(now[i] - before_in[i]);
    }
}

/* `share` = 1 − β^k: what the mean's weights add up to. */
VECTOR_CLONES
static void divide(float share, size_t count, const float *g, const float *now,
                   const float *read_at, const float *step, float *out)
{
    for (size_t i = 0; i < count; i++) {
        float gap = fabsf(now[i] - read_at[i]);
        out[i] = gap == 0 ? g[i] : g[i] / (1 + gap * share / step[i]);
    }
}

VECTOR_CLONES
static void copy(size_t count, const float *from, float *to)
{
    for (size_t i = 0; i < count; i++) {
        to[i] = from[i];
    }
}

static void block(const struct correction_call *call, size_t count,
                  const struct correction_vectors *v)
{
    double memory = call->parameters[0];
    if (call->moved_on) {
        track((float)memory, count, v->now, v->shared_in[0], v->shared_in[1], v->shared_out[1]);
    } else {
        copy(count, v->shared_in[1], v->shared_out[1]);
    }
    copy(count, v->now, v->shared_out[0]);
    /* Every update is made of gradients that came through here, so there were `version` steps. */
    float share = (float)(1 - pow(memory, (double)call->context.version));
    divide(share, count, v->gradient, v->now, v->read_at, v->shared_out[1], v->out);
}

static const struct option parameters_of[] = {
    {.key = "correction.memory",
     .type = OPTION_REAL,
     .initial = "0.999",
     .minimum = 0,
     .maximum = 0.999999,
     .help = "share of the mean step that is kept at each update"},
    {0},
};

const struct correction_rule correction_gap_aware = {
    .about = {"gap-aware", "each parameter's g / (1 + distance moved / its mean step)",
              "Barkai, Hakimi, Schuster 2020, Gap-aware mitigation of gradient staleness",
              parameters_of},
    .shared = 2,
    .block = block,
};
