/*
 * correction_dc_asgd_a.c — dc-asgd-c with a λ per parameter that depends on the size of its
 * gradients:
 *
 *   M ← m M + (1 − m) g ⊙ g;   λ = λ₀ / √(M + ε);   g ← g + λ g ⊙ g ⊙ (now − read_at)
 *
 * λ₀ = correction.lambda, m = correction.memory.
 *
 * Zheng et al., "Asynchronous stochastic gradient descent with delay compensation" (ICML 2017,
 * arXiv:1609.08326), section 6, DC-ASGD-a: λ_t = λ₀ / √(MeanSquare(t) + ε), ε = 1e-7, with the
 * running MeanSquare(t) = m MeanSquare(t − 1) + (1 − m) g(w_t)² (equation 14), which includes the
 * current gradient. Its experiments on CIFAR-10 use λ₀ = 2 and m = 0.95, the defaults here; those
 * on ImageNet use m = 0. Checked against the paper's text and second sources.
 *
 * Where we differ: the optimizer's momentum follows the correction. M starts at 0 without a bias
 * correction, which the paper does not discuss; λ is therefore larger at first. All workers share
 * one M, because the paper's t counts updates of all workers. Microsoft's own code, an updater of
 * Multiverso, has this equation, ε and start, but one M per worker. M changes with every gradient
 * that is used, stale or not. A gradient that is not stale is unchanged, bit for bit.
 */
#include "ps/rules/correction/correction.h"
#include "base/vector.h"

#include <math.h>

#define EPSILON 1e-7f

VECTOR_CLONES
static void compensate(float lambda, float memory, size_t count, const float *g, const float *now,
                       const float *read_at, const float *square_in, float *square_out, float *out)
{
    for (size_t i = 0; i < count; i++) {
        float moved = now[i] - read_at[i];
        float square = memory * square_in[i] + (1 - memory) * (g[i] * g[i]);
        square_out[i] = flush_subnormal(square);
        out[i] = moved == 0 ? g[i] : g[i] + lambda / sqrtf(square + EPSILON) * g[i] * g[i] * moved;
    }
}

static void block(const struct correction_call *call, size_t count,
                  const struct correction_vectors *v)
{
    compensate((float)call->parameters[0], (float)call->parameters[1], count, v->gradient, v->now,
               v->read_at, v->shared_in[0], v->shared_out[0], v->out);
}

static const struct option parameters_of[] = {
    {.key = "correction.lambda",
     .type = OPTION_REAL,
     .initial = "2",
     .minimum = 0,
     .maximum = 1e6,
     .help = "compensation weight, divided by the root mean square gradient"},
    {.key = "correction.memory",
     .type = OPTION_REAL,
     .initial = "0.95",
     .minimum = 0,
     .maximum = 0.999999,
     .help = "m: decay of the running mean square, per gradient"},
    {0},
};

const struct correction_rule correction_dc_asgd_a = {
    .about = {"dc-asgd-a",
              "dc-asgd-c with lambda divided by each parameter's root mean square gradient",
              "Zheng et al. 2017, Asynchronous SGD with delay compensation, equation 14",
              parameters_of},
    .shared = 1,
    .block = block,
};
