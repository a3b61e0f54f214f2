/*
 * correction_gap_aware.c — g ← g / G, for each parameter G = 1 + |now − read_at| / C, with C how
 * far an update moves that parameter where the rate is at its largest:
 *
 *   C = η_most (√V + ε);   V ← β V + (1 − β) ((θ_k − θ_{k−1}) / η_k)², over 1 − β^k
 *
 * β = correction.memory, ε = 1e-8, η_most the largest learning rate of an update so far.
 *
 * Barkai, Hakimi, Schuster, "Gap-aware mitigation of gradient staleness" (ICLR 2020,
 * arXiv:1909.10802): a gradient is divided by its gap, the distance between the parameters it is
 * applied to and those it was computed at, in units of a typical step, plus 1; parameter by
 * parameter. The divided gradient enters the velocity, v ← γ v + g / G. As C does not fall with the
 * rate, late gradients count the more the smaller the steps have become.
 *
 * Of the paper the abstract was at hand. C is as FTPipe has it (sgd_gap_aware.py), a pipeline
 * trainer of two of its authors that names what it changed of the original, and C is not among it:
 * the largest rate times the root of the running mean of the squared velocity, β = 0.999, its start
 * corrected for. For some weeks of 2020 it had C times the delay, and no longer has.
 *
 * Where we differ from that: the velocity is told from the step that was taken, over its rate, so
 * that any optimizer, weight decay and damping are in it. The start is corrected for the k
 * velocities there are; FTPipe counts one more than its mean has, so that its C begins at √½ of
 * ours and comes up to it within some tens of updates. Weight decay is not divided. G = 1 where
 * a parameter has not moved, so a gradient that is not late stays as it is, bit for bit. τ does not
 * enter: a late gradient of a run that stands still counts in full.
 */
#include "ps/correction.h"
#include "worker/vector.h"

#include <math.h>

#define EPSILON 1e-8f

/* `steps`: how many of it make a velocity, 1 / η. */
VECTOR_CLONES
static void track(float memory, float steps, size_t count, const float *now, const float *before_in,
                  const float *square_in, float *square_out)
{
    for (size_t i = 0; i < count; i++) {
        float velocity = (now[i] - before_in[i]) * steps;
        square_out[i] = memory * square_in[i] + (1 - memory) * (velocity * velocity);
    }
}

/* `share` = 1 − β^k: what the mean's weights add up to. */
VECTOR_CLONES
static void divide(float share, float most, size_t count, const float *g, const float *now,
                   const float *read_at, const float *square, float *out)
{
    for (size_t i = 0; i < count; i++) {
        float gap = fabsf(now[i] - read_at[i]);
        float typical = most * (sqrtf(square[i] / share) + EPSILON);
        out[i] = gap == 0 ? g[i] : g[i] / (1 + gap / typical);
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
        float steps = call->rate > 0 ? (float)(1 / call->rate) : 0; /* at no rate nothing moved */
        track((float)memory, steps, count, v->now, v->shared_in[0], v->shared_in[1],
              v->shared_out[1]);
    } else {
        copy(count, v->shared_in[1], v->shared_out[1]);
    }
    copy(count, v->now, v->shared_out[0]);
    /* Every update is made of gradients that came through here, so there were `version` steps. */
    float share = (float)(1 - pow(memory, (double)call->context.version));
    divide(share, (float)call->most, count, v->gradient, v->now, v->read_at, v->shared_out[1],
           v->out);
}

static const struct option parameters_of[] = {
    {.key = "correction.memory",
     .type = OPTION_REAL,
     .initial = "0.999",
     .minimum = 0,
     .maximum = 0.999999,
     .help = "share of the mean square velocity that is kept at each update"},
    {0},
};

const struct correction_rule correction_gap_aware = {
    .about = {"gap-aware", "each parameter's g / (1 + distance moved / its typical step)",
              "Barkai, Hakimi, Schuster 2020, Gap-aware mitigation of gradient staleness",
              parameters_of},
    .shared = 2,
    .block = block,
};
