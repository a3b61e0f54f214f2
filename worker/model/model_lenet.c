#include "worker/model/model.h"

#include <string.h>

enum { SETTING_ACTIVATION };

static status configure(struct model *m, const options *o)
{
    bool tanh_wanted = strcmp(options_text(o, "model.activation"), "tanh") == 0;
    m->settings[SETTING_ACTIVATION] = tanh_wanted ? ACTIVATION_TANH : ACTIVATION_RELU;
    return OK;
}

/* Shapes on 28×28×1; 37 610 parameters. */
static tensor *forward(tape *t, tensor *x, const struct model *m)
{
    enum activation a = (enum activation)m->settings[SETTING_ACTIVATION];
    x = conv2d(t, x, "conv1", 8, 5, 1, 0); /* 8×24×24 */
    x = activate(t, max_pool(t, x, 2, 2), a);
    x = conv2d(t, x, "conv2", 16, 5, 1, 0); /* 16×8×8 */
    x = activate(t, max_pool(t, x, 2, 2), a);
    x = activate(t, linear(t, x, "fc1", 128), a);
    return linear(t, x, "fc2", m->classes);
}

static const struct option settings[] = {
    {"model.activation", OPTION_NAME, "relu", 0, 0, "relu|tanh", NULL,
     "nonlinearity after each layer"},
    {0},
};

const struct model_kind model_lenet = {
    .about = {"lenet", "two 5x5 convolutions (8, 16), each max-pooled, and two linear layers (128)",
              "after LeCun et al. 1998", settings},
    .configure = configure,
    .forward = forward,
};
