/*
 * model_resnet20.c — the 20-layer network of He et al. 2016, section 4.2, for 32×32×3: a 3×3
 * convolution, three stages of three blocks with 16, 32 and 64 channels, global average pooling,
 * one linear layer.
 *
 * Difference from the paper: where the shape changes (twice), the paper's CIFAR networks take every
 * second position and pad with zero channels (option A, no parameters). The tape has no such
 * operation, so this model uses a 1×1 convolution with batch norm (option B). It has 272 474
 * parameters; the paper's has 269 722 ("0.27M" in its Table 6).
 */
#include "worker/model/model_residual.h"

#include <stdio.h>

static tensor *forward(tape *t, tensor *x, const struct model *m)
{
    static const uint32_t channels[] = {16, 32, 64};
    char name[32];
    x = relu(t, batch_norm(t, conv2d_unbiased(t, x, "conv", 16, 3, 1, 1), "bn"));
    for (unsigned stage = 0; stage < 3; ++stage) {
        for (unsigned block = 0; block < 3; ++block) {
            snprintf(name, sizeof name, "stage%u.block%u", stage + 1, block + 1);
            x = residual_block(t, x, name, channels[stage], stage > 0 && block == 0 ? 2 : 1);
        }
    }
    return linear(t, global_avg_pool(t, x), "fc", m->classes);
}

const struct model_kind model_resnet20 = {
    .about = {"resnet20",
              "residual network of nine blocks (16, 32, 64 channels) with batch norm, for CIFAR-10",
              "He et al. 2016, section 4.2, with projection shortcuts (option B)", NULL},
    .forward = forward,
};
