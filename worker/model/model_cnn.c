#include "worker/model/model.h"

static tensor *forward(tape *t, tensor *x, const struct model *m)
{
    x = relu(t, conv2d(t, x, "conv1", 32, 5, 1, 2));
    x = max_pool(t, x, 2, 2);
    x = relu(t, conv2d(t, x, "conv2", 64, 5, 1, 2));
    x = max_pool(t, x, 2, 2);
    x = relu(t, linear(t, x, "fc1", 512));
    return linear(t, x, "fc2", m->classes);
}

const struct model_kind model_cnn = {
    .about = {"cnn", "two padded 5x5 convolutions (32, 64), each max-pooled, and two linear layers",
              "McMahan et al. 2017, section 3", NULL},
    .forward = forward,
};
