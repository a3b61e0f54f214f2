/*
 * model_deep.c — the example of docs/adding-a-model.md: three hidden layers, the last two with a
 * connection that skips them (He et al. 2016).
 */
#include "worker/model/model.h"

enum { SETTING_UNITS };

static status configure(struct model *m, const options *o)
{
    m->settings[SETTING_UNITS] = options_integer(o, "model.units");
    return OK;
}

static tensor *forward(tape *t, tensor *x, const struct model *m)
{
    uint32_t units = (uint32_t)m->settings[SETTING_UNITS];
    x = relu(t, linear(t, x, "fc1", units));
    x = add(t, x, relu(t, linear(t, x, "fc2", units)));
    x = add(t, x, relu(t, linear(t, x, "fc3", units)));
    return linear(t, x, "fc4", m->classes);
}

static const struct option settings[] = {
    {.key = "model.units",
     .type = OPTION_INTEGER,
     .initial = "64",
     .minimum = 1,
     .maximum = 65536,
     .help = "units of each hidden layer"},
    {0},
};

const struct model_kind model_deep = {
    .about = {"deep", "four linear layers, two with a skip connection", "He et al. 2016", settings},
    .configure = configure,
    .forward = forward,
};
