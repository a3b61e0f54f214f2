/*
 * correction_dana_zero.c — one velocity per worker, and workers read parameters ahead of all
 * velocities:
 *
 *   v_i ← γ v_i + s g;   θ ← θ − η v_i;   workers read  θ̂ = θ − η γ Σ_j v_j
 *
 * γ = correction.momentum.
 *
 * Hakimi, Barkai, Gabel, Schuster, "Taming momentum in a distributed asynchronous environment"
 * (arXiv:1907.11612), DANA-Zero: the server sends θ̂, an estimate of θ at the time when the gradient
 * returns.
 *
 * Here the versions that workers read, and that are evaluated and saved, are θ̂. θ itself is θ̂ + L,
 * with L = η γ Σ_j v_j of the last update. L and V = Σ_j v_j are the state. One update moves θ̂ by
 * θ̂' − θ̂ = −η v_i' − (L' − L), so the rule passes u = v_i' + (L' − L) / η to the optimizer. With a
 * constant η this equals dana-slim. With a changing η the look-ahead follows it; that of dana-slim
 * does not.
 *
 * Where we differ: s is the damping's scale. η = 0 moves nothing. The v_i of a lost worker stays in
 * the sum. Weight decay acts on θ̂ and not on θ. The rule requires optimizer=sgd, and a consistency
 * policy that makes every gradient one update.
 *
 * Sources: notes that give these equations, and a simulator of DANA-DC with the same update, sum of
 * velocities and look-ahead, line by line. It also evaluates θ̂, and it decays θ.
 */
#include "ps/rules/correction/correction.h"
#include "base/vector.h"

struct rates {
    float momentum, scale, lr;
};

VECTOR_CLONES
static void look_ahead(struct rates r, size_t count, const struct correction_vectors *v)
{
    const float *gradient = v->gradient, *sum_in = v->shared_in[0], *ahead_in = v->shared_in[1];
    for (size_t i = 0; i < count; i++) {
        float velocity = r.momentum * v->own_in[i] + r.scale * gradient[i];
        float sum = sum_in[i] + (velocity - v->own_in[i]);
        float ahead = r.lr * r.momentum * sum;
        v->out[i] = r.lr > 0 ? velocity + (ahead - ahead_in[i]) / r.lr : 0;
        v->shared_out[1][i] = r.lr > 0 ? ahead : ahead_in[i];
        v->shared_out[0][i] = flush_subnormal(sum);
        v->own_out[i] = flush_subnormal(velocity);
    }
}

static void block(const struct correction_call *call, size_t count,
                  const struct correction_vectors *v)
{
    struct rates r = {(float)call->parameters[0], (float)call->context.scale,
                      (float)call->context.lr};
    look_ahead(r, count, v);
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

const struct correction_rule correction_dana_zero = {
    .about = {"dana-zero", "a velocity per worker, look-ahead over all of them; with optimizer=sgd",
              "Hakimi, Barkai, Gabel, Schuster 2019, Taming momentum, DANA-Zero", parameters_of},
    .shared = 2,
    .own = true,
    .scales = true,
    .single_gradient = true,
    .own_momentum = true,
    .block = block,
};
