/*
 * optimizer_muon.c — Muon: momentum, orthogonalised. For each hidden matrix of r rows and c columns
 *
 *   v ← μ v + g;  O ← orthogonal factor of g + μ v;  θ ← θ − η (0.2 √max(r, c) O + λ θ)
 *
 * Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks"
 * (kellerjordan.github.io/posts/muon), with Nesterov momentum; newton_schulz.h computes O. The
 * scale 0.2 √max(r, c) and the decay are those of Liu et al. 2025, "Muon is scalable for LLM
 * training" (arXiv:2502.16982), section 2.2: the root mean square of an update is then about 0.2,
 * near that of AdamW, so both share η and λ. λ is key weight_decay.
 *
 * All other layers (vectors, embeddings, the output layer) use AdamW at the same rate. A kernel of
 * a convolution is a matrix with one row for each output channel.
 *
 * O does not depend on a factor that all gradients share. Damping scales the rate of an update, as
 * in optimizer_adamw.c. The second state vector of a hidden matrix stays 0.
 *
 * Differences: the products are in float32 (the authors: bfloat16).
 */
#include "worker/optimizer/newton_schulz.h"

#include <math.h>

#define OPTIMIZER_STATES 1
#define OPTIMIZER_DECAY_APART
#define OPTIMIZER_STEP                                                                             \
    v = k[0] * v + g;                                                                              \
    out = g + k[0] * v
#include "worker/optimizer/optimizer_loop.h"

enum { MOMENTUM = 3 }; /* parameters before it are those of adamw, in its order */

extern const struct optimizer_kind optimizer_adamw;

static void update_others(struct optimizer_call *c)
{
    optimizer_adamw.update(c);
}

static void constants(const struct optimizer_moment *now, float own[OPTIMIZER_CONSTANTS])
{
    if (!now->matrix) {
        optimizer_adamw.constants(now, own);
        return;
    }
    own[0] = (float)now->parameters[MOMENTUM];
    own[1] = (float)(1 - now->lr * now->decay);
}

VECTOR_CLONES
static void move(size_t count, float kept, float rate, const float *in, const float *direction,
                 float *out)
{
    for (size_t i = 0; i < count; i++)
        out[i] = kept * in[i] - rate * direction[i];
}

static void matrix(const struct optimizer_matrix *m)
{
    const double longest = m->rows > m->columns ? m->rows : m->columns;
    const float rate = (float)(0.2 * sqrt(longest) * (double)m->rates.lr);
    newton_schulz(m->rows, m->columns, m->direction, m->scratch, m->threads);
    move((size_t)m->rows * m->columns, m->rates.own[1], rate, m->in, m->direction, m->out);
}

static const struct option parameters_of[] = {
    {"optimizer.beta1", OPTION_REAL, "0.9", 0, 0.999999, NULL, NULL,
     "layers that adamw updates: decay of the mean gradient"},
    {"optimizer.beta2", OPTION_REAL, "0.95", 0, 0.9999999, NULL, NULL,
     "layers that adamw updates: decay of the mean squared gradient"},
    {"optimizer.epsilon", OPTION_REAL, "1e-8", 1e-30, 1e3, NULL, NULL,
     "layers that adamw updates: added to the square root of the mean squared gradient"},
    {"optimizer.momentum", OPTION_REAL, "0.95", 0, 0.999999, NULL, NULL,
     "momentum of the hidden matrices"},
    {0},
};

const struct optimizer_kind optimizer_muon = {
    .about = {"muon",
              "momentum with orthogonalised steps for hidden matrices, adamw for other layers",
              "Jordan et al. 2024; Liu et al. 2025", parameters_of},
    .states = 2,
    .decay_apart = true,
    .scale_free = true,
    .update = update_others,
    .constants = constants,
    .direction = optimizer_loop,
    .matrix = matrix,
    .matrix_scratch = newton_schulz_scratch,
};
