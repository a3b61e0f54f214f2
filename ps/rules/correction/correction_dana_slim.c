/*
 * correction_dana_slim.c — Nesterov momentum with a velocity for each worker:
 *
 *   v_i ← γ v_i + s g;   u = γ v_i + s g;   θ ← θ − η u      γ = correction.momentum
 *
 * Hakimi, Barkai, Gabel, Schuster, "Taming momentum in a distributed asynchronous environment"
 * (arXiv:1907.11612), DANA-Slim: worker i keeps v_i and sends u, the server only subtracts η u. In
 * the variables of Bengio et al. θ is the look-ahead of DANA-Zero, θ₀ − η γ Σ_j v_j, as long as η
 * does not change.
 *
 * Where we differ: the server keeps v_i, which gives the same numbers and leaves the workers as
 * they are; s is the damping's scale. A worker that is lost and comes back goes on with its v_i.
 * Needs optimizer=sgd, or there would be two momenta. With one worker this is optimizer=nesterov,
 * bit for bit.
 *
 * Held against second sources: notes that give these equations. What a worker sends is γ v_i + g,
 * with the v_i that g is in already.
 */
#include "ps/rules/correction/correction.h"
#include "base/vector.h"

VECTOR_CLONES
static void look_ahead(float momentum, float scale, size_t count, const float *gradient,
                       const float *own_in, float *own_out, float *out)
{
    for (size_t i = 0; i < count; i++) {
        float g = scale * gradient[i];
        float velocity = momentum * own_in[i] + g;
        own_out[i] = velocity;
        out[i] = g + momentum * velocity;
    }
}

static void block(const struct correction_call *call, size_t count,
                  const struct correction_vectors *v)
{
    look_ahead((float)call->parameters[0], (float)call->context.scale, count, v->gradient,
               v->own_in, v->own_out, v->out);
}

static const struct option parameters_of[] = {
    {.key = "correction.momentum",
     .type = OPTION_REAL,
     .initial = "0.9",
     .minimum = 0,
     .maximum = 0.999999,
     .help = "of each worker's own velocity"},
    {0},
};

const struct correction_rule correction_dana_slim = {
    .about = {"dana-slim", "Nesterov momentum with a velocity per worker; with optimizer=sgd",
              "Hakimi, Barkai, Gabel, Schuster 2019, Taming momentum, DANA-Slim", parameters_of},
    .own = true,
    .scales = true,
    .momentum_of_its_own = true,
    .block = block,
};
