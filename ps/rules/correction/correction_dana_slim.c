/*
 * correction_dana_slim.c — Nesterov momentum with one velocity per worker:
 *
 *   v_i ← γ v_i + s g;   u = γ v_i + s g;   θ ← θ − η u      γ = correction.momentum
 *
 * Hakimi, Barkai, Gabel, Schuster, "Taming momentum in a distributed asynchronous environment"
 * (arXiv:1907.11612), DANA-Slim: worker i keeps v_i and sends u; the server only subtracts η u. In
 * the variables of Bengio et al. θ is the look-ahead of DANA-Zero, θ₀ − η γ Σ_j v_j, while η is
 * constant.
 *
 * Where we differ: the server keeps v_i. The numbers are the same, and workers need no change. s is
 * the damping's scale. A worker that joins again after a loss keeps its v_i. optimizer=sgd is
 * required; another optimizer would add a second momentum. With one worker the rule equals
 * optimizer=nesterov, bit for bit.
 *
 * Sources: notes that give these equations. A worker sends γ v_i + g, where v_i already includes g.
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
        own_out[i] = flush_subnormal(velocity);
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
     .help = "momentum of each worker's velocity"},
    {0},
};

const struct correction_rule correction_dana_slim = {
    .about = {"dana-slim", "Nesterov momentum with a velocity per worker; with optimizer=sgd",
              "Hakimi, Barkai, Gabel, Schuster 2019, Taming momentum, DANA-Slim", parameters_of},
    .own = true,
    .scales = true,
    .own_momentum = true,
    .block = block,
};
