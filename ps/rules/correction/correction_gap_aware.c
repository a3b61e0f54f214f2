/*
 * correction_gap_aware.c — g ← g / G, with G = 1 + |now − read_at| / C for each parameter. C is the
 * distance that one update moves the parameter at the largest learning rate:
 *
 *   C = η_max (√(V / (1 − β^k)) + ε);   V ← β V + (1 − β) ((θ_k − θ_{k−1}) / η_k)²
 *
 * β = correction.memory, ε = 1e-8, η_max the largest learning rate of an update so far. k = 1 at
 * the first gradient, where V is 0. Weight decay, which the optimizer adds as λ θ, is divided as
 * well.
 *
 * Barkai, Hakimi, Schuster, "Gap-aware mitigation of gradient staleness" (ICLR 2020,
 * arXiv:1909.10802): each parameter's gradient is divided by its gap plus 1. The gap is the
 * distance between the parameters it is applied to and those it was computed at, in units of a
 * typical step. The divided gradient enters the velocity, v ← γ v + g / G. C does not fall with the
 * learning rate, so stale gradients have more weight when steps are smaller.
 *
 * C follows FTPipe (sgd_gap_aware.py), a pipeline trainer of two of the paper's authors: the
 * largest rate times the root of the running mean of the squared velocity, β = 0.999, with a bias
 * correction by the number of calls. The mean contains one velocity less, so C starts at √½ of the
 * first velocity.
 *
 * Where we differ: the velocity is the step divided by its learning rate, so it includes any
 * optimizer, weight decay and damping. With damping the gradient is scaled and weight decay is not.
 * Weight decay is not divided with optimizer=adamw, which applies it separately, nor where layers
 * may have none: with optimizer=lars and weight_decay_of=matrices. G = 1 for a parameter that has
 * not moved, so a gradient that is not stale is unchanged, bit for bit. τ is not used: if
 * parameters do not move, a stale gradient has full weight.
 *
 * Sources: FTPipe; checked with numbers computed by its code.
 */
#include "ps/rules/correction/correction.h"
#include "base/vector.h"

#include <math.h>

#define EPSILON 1e-8f

/* `steps` = 1 / η: velocity = step · steps. */
VECTOR_CLONES
static void track(float memory, float steps, size_t count, const float *now, const float *before_in,
                  const float *square_in, float *square_out)
{
    for (size_t i = 0; i < count; i++) {
        float velocity = (now[i] - before_in[i]) * steps;
        square_out[i] =
            flush_subnormal(memory * square_in[i] + (1 - memory) * (velocity * velocity));
    }
}

struct divisor {
    float share, largest_rate; /* 1 − β^k; η_max */
    float scale;               /* of the gradient; 1 if the optimizer applies the scale */
    float decay; /* λ; the optimizer adds λ θ, so λ θ / G − λ θ is added here */
};

VECTOR_CLONES
static void divide(struct divisor d, size_t count, const struct correction_vectors *v)
{
    const float *now = v->now, *square = v->shared_out[1];
    for (size_t i = 0; i < count; i++) {
        float g = d.scale * v->gradient[i], gap = fabsf(now[i] - v->read_at[i]);
        float typical = d.largest_rate * (sqrtf(square[i] / d.share) + EPSILON);
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
    if (call->parameters_changed) {
        float steps = call->rate > 0 ? (float)(1 / call->rate) : 0; /* at rate 0 nothing moved */
        track((float)memory, steps, count, v->now, v->shared_in[0], v->shared_in[1],
              v->shared_out[1]);
    } else {
        copy(count, v->shared_in[1], v->shared_out[1]);
    }
    copy(count, v->now, v->shared_out[0]);
    /* All gradients of all updates are corrected here, so this is at least call version + 1. */
    double calls = (double)call->context.version + 1;
    struct divisor d = {.share = (float)(1 - pow(memory, calls)),
                        .largest_rate = (float)call->largest_rate,
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
     .help = "beta: decay of the running mean square velocity, per update"},
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
