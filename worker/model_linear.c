#include "worker/model.h"

/* Without a bias, which would be one more column of the least-squares problem, ten times as long
 * as any of its own. */
static tensor *forward(tape *t, tensor *x, const struct model *m)
{
    return linear_unbiased(t, x, "fc", m->classes);
}

const struct model_kind model_linear = {
    .about = {"linear", "one linear layer without a bias: least squares", "Legendre 1805", NULL},
    .forward = forward,
};
