#include "worker/model/model.h"

enum { SETTING_WIDTH };

static status configure(struct model *m, const options *o)
{
    m->settings[SETTING_WIDTH] = options_integer(o, "model.width");
    return OK;
}

/* The width × width product takes almost all of the time. */
static tensor *forward(tape *t, tensor *x, const struct model *m)
{
    uint32_t width = (uint32_t)m->settings[SETTING_WIDTH];
    x = relu(t, linear(t, x, "fc1", width));
    x = relu(t, linear(t, x, "fc2", width));
    return linear(t, x, "fc3", m->classes);
}

static const struct option settings[] = {
    {"model.width", OPTION_INTEGER, "1024", 1, 65536, NULL, NULL, "units of both hidden layers"},
    {0},
};

const struct model_kind model_wide = {
    .about = {"wide",
              "three linear layers, width-width-classes, ReLU, for benchmarks of one large matrix "
              "product",
              NULL, settings},
    .configure = configure,
    .forward = forward,
};
