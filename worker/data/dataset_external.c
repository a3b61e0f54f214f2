/* dataset_external.c — the registry entry of data that an external model brings; see
 * worker/external/external.h. */
#include "worker/data/dataset.h"

static status describe(const options *o, struct dataset *out)
{
    (void)o;
    *out = (struct dataset){0};
    return error_set(ERROR_USAGE, __FILE__, __LINE__,
                     "dataset=external is the data of model=external; set that model, or choose "
                     "another dataset");
}

const struct dataset_kind dataset_external = {
    .about = {.name = "external",
              .description = "the data that the program of model=external brings; implied by it"},
    .describe = describe,
};
