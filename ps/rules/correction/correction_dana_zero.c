/*
 * correction_dana_zero.c — a velocity for each worker, and workers that look ahead of all of them:
 *
 *   v_i ← γ v_i + s g;   θ ← θ − η v_i;   workers read  θ̂ = θ − η γ Σ_j v_j
 *
 * γ = correction.momentum.
 *
 * Hakimi, Barkai, Gabel, Schuster, "Taming momentum in a distributed asynchronous environment"
 * (arXiv:1907.11612), DANA-Zero: the server sends θ̂, an estimate of where θ will be when the
 * gradient comes back.
 *
 * Here the versions that workers read, that are evaluated and saved, are θ̂; θ itself is θ̂ + L with
 * L = η γ Σ_j v_j of the last update, kept as a state beside V = Σ_j v_j. One update moves θ̂ by
 * θ̂' − θ̂ = −η v_i' − (L' − L), so the rule hands the optimizer u = v_i' + (L' − L) / η. With a
 * constant η this is dana-slim; with a changing one the look-ahead keeps in step with it, which
 * dana-slim's does not.
 *
 * Where we differ: s is the damping's scale. η = 0 moves nothing. A worker that is lost keeps its
 * v_i in the sum. Weight decay acts on θ̂, not on θ. Needs optimizer=sgd, and a consistency that
 * makes every gradient an update.
 *
 * Held against second sources: notes that give these equations, and a simulator of DANA-DC whose
 * update, sum of velocities and look-ahead are these, line by line (it evaluates θ̂, too, and decays
 * θ).
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
        v->shared_out[0][i] = sum;
        v->own_out[i] = velocity;
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
     .help = "of each worker's own velocity"},
    {0},
};

const struct correction_rule correction_dana_zero = {
    .about = {"dana-zero", "a velocity per worker, reading ahead of them all; with optimizer=sgd",
              "Hakimi, Barkai, Gabel, Schuster 2019, Taming momentum, DANA-Zero", parameters_of},
    .shared = 2,
    .own = true,
    .scales = true,
    .alone = true,
    .momentum_of_its_own = true,
    .block = block,
};
