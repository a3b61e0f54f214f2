/*
 * correction_dc_asgd_c.c — g ← g + λ g ⊙ g ⊙ (now − read_at), λ = correction.lambda.
 *
 * Zheng, Meng, Wang, Chen, Yu, Ma, Liu, "Asynchronous stochastic gradient descent with delay
 * compensation" (ICML 2017, arXiv:1609.08326), equation 10: w_{t+τ+1} = w_{t+τ} − η (g(w_t) +
 * λ g(w_t) ⊙ g(w_t) ⊙ (w_{t+τ} − w_t)). This is a first-order Taylor step of the gradient with the
 * diagonal of g gᵀ in place of the Hessian. DC-ASGD-c keeps λ constant; its experiments on CIFAR-10
 * use 0.04 (section 6.1), the default here.
 *
 * Where we differ: the optimizer's momentum follows the correction. The paper's algorithm has none;
 * its authors report similar results with momentum (footnote 10). g is the mean over a batch, as
 * there. A gradient that is not stale is unchanged, bit for bit.
 *
 * Checked against the paper's text: equation 10, and algorithm 2, where read_at is the server's
 * copy of the parameters that it last sent to the worker.
 */
#include "ps/rules/correction/correction.h"
#include "base/vector.h"

VECTOR_CLONES
static void compensate(float lambda, size_t count, const float *g, const float *now,
                       const float *read_at, float *out)
{
    for (size_t i = 0; i < count; i++) {
        float moved = now[i] - read_at[i];
        out[i] = moved == 0 ? g[i] : g[i] + lambda * g[i] * g[i] * moved;
    }
}

static void block(const struct correction_call *call, size_t count,
                  const struct correction_vectors *v)
{
    compensate((float)call->parameters[0], count, v->gradient, v->now, v->read_at, v->out);
}

static const struct option parameters_of[] = {
    {.key = "correction.lambda",
     .type = OPTION_REAL,
     .initial = "0.04",
     .minimum = 0,
     .maximum = 1e6,
     .help = "compensation weight"},
    {0},
};

const struct correction_rule correction_dc_asgd_c = {
    .about = {"dc-asgd-c", "g + lambda g g (now - read), lambda constant",
              "Zheng et al. 2017, Asynchronous SGD with delay compensation, equation 10",
              parameters_of},
    .block = block,
};
