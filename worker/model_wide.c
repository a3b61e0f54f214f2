#include "worker/model.h"

enum { SETTING_WIDTH, DEFAULT_WIDTH = 1024 };

static status configure(struct model *m, const options *o)
{
    m->settings[SETTING_WIDTH] =
        options_declared(o, "model.width") ? options_integer(o, "model.width") : DEFAULT_WIDTH;
    return OK;
}

/* One product that dwarfs the rest: width × width. */
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
    .about = {"wide", "three linear layers, width-width-classes, ReLU: one large product", NULL,
              settings},
    .configure = configure,
    .forward = forward,
};
