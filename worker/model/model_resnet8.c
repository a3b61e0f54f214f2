#include "worker/model/model_residual.h"

static tensor *forward(tape *t, tensor *x, const struct model *m)
{
    x = relu(t, batch_norm(t, conv2d_unbiased(t, x, "conv", 16, 3, 1, 1), "bn"));
    x = residual_block(t, x, "stage1", 16, 1);
    x = residual_block(t, x, "stage2", 32, 2);
    x = residual_block(t, x, "stage3", 64, 2);
    return linear(t, global_avg_pool(t, x), "fc", m->classes);
}

const struct model_kind model_resnet8 = {
    .about = {"resnet8", "residual network of three blocks (16, 32, 64 channels) with batch norm",
              "He et al. 2016, section 4.2, with projection shortcuts (option B)", NULL},
    .forward = forward,
};
