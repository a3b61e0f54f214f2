/*
 * correction_gap_aware.c — g ← g / G, for each parameter G = 1 + |now − read_at| / C, with C how
 * far an update moves that parameter where the rate is at its largest:
 *
 *   C = η_most (√(V / (1 − β^k)) + ε);   V ← β V + (1 − β) ((θ_k − θ_{k−1}) / η_k)²
 *
 * β = correction.memory, ε = 1e-8, η_most the largest learning rate of an update so far, k = 1 at
 * the first gradient, whose V is 0. Weight decay, of which the optimizer adds λ θ, is divided, too.
 *
 * Barkai, Hakimi, Schuster, "Gap-aware mitigation of gradient staleness" (ICLR 2020,
 * arXiv:1909.10802): a gradient is divided by its gap, the distance between the parameters it is
 * applied to and those it was computed at, in units of a typical step, plus 1; parameter by
 * parameter. The divided gradient enters the velocity, v ← γ v + g / G. As C does not fall with the
 * rate, late gradients count the more the smaller the steps have become.
 *
 * C is as FTPipe has it (sgd_gap_aware.py), a pipeline trainer of two of the paper's authors: the
 * largest rate times the root of the running mean of the squared velocity, β = 0.999, its start
 * corrected for by all calls. The mean holds one velocity less, so C begins at √½ of the first
 * velocity.
 *
 * Where we differ: the velocity is told from the step that was taken, over its rate, so that any
 * optimizer, weight decay and damping are in it. With damping the gradient is scaled, weight decay
 * is not. With optimizer=adamw, which keeps the decay apart, and lars, whose layers may have none,
 * it is not divided. G = 1 where a parameter has not moved, so a gradient that is not late stays as
 * it is, bit for bit. τ does not enter: a late gradient of a run that stands still counts in full.
 *
 * Held against second sources: FTPipe, by figures worked out from its code.
 */
#include "ps/rules/correction/correction.h"
#include "base/vector.h"

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

struct divisor {
    float share, most; /* 1 − β^k; η_most */
    float scale;       /* of the gradient; 1 where the optimizer applies it */
    float decay;       /* that the optimizer adds: what it adds too much is taken off */
};

VECTOR_CLONES
static void divide(struct divisor d, size_t count, const struct correction_vectors *v)
{
    const float *now = v->now, *square = v->shared_out[1];
    for (size_t i = 0; i < count; i++) {
        float g = d.scale * v->gradient[i], gap = fabsf(now[i] - v->read_at[i]);
        float typical = d.most * (sqrtf(square[i] / d.share) + EPSILON);
        float G = 1 + gap / typical, added = d.decay * now[i];
        v->out[i] = gap == 0 ? g : g / G + (added / G - added);
    }
}

VECTOR_CLONES
static void copy(size_t count, const float *from, float *to)
{
    for (size_t i = 0; i < count; i++)
        to[i] = from[i];
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
    /* Every update is made of gradients that came through here: this is at least the call after
     * `version` steps. */
    double calls = (double)call->context.version + 1;
    struct divisor d = {.share = (float)(1 - pow(memory, calls)),
                        .most = (float)call->most,
                        .scale = call->decay > 0 ? (float)call->context.scale : 1,
                        .decay = (float)call->decay};
    divide(d, count, v);
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
    .scales_decay = true,
    .block = block,
};
