#include "worker/model/model.h"

static tensor *forward(tape *t, tensor *x, const struct model *m)
{
    x = relu(t, linear(t, x, "fc1", 256));
    x = relu(t, linear(t, x, "fc2", 128));
    return linear(t, x, "fc3", m->classes);
}

const struct model_kind model_mlp = {
    .about = {"mlp", "three linear layers, 256-128-classes, ReLU",
              "Rumelhart, Hinton & Williams 1986", NULL},
    .forward = forward,
};
