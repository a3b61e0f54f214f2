/* model_external.c — the registry entry of models that another program computes; see
 * worker/external/external.h. */
#include "worker/model/model.h"

static const struct option keys[] = {
    {"model.command", OPTION_TEXT, "", 0, 0, NULL, NULL,
     "the command that starts your program; other keys model.NAME=VALUE are passed on to it"},
    {0},
};

const struct model_kind model_external = {
    .about = {.name = "external",
              .description = "your own program computes loss and gradient, of its own data",
              .options = keys,
              .any_options = true},
    .external = true,
};
