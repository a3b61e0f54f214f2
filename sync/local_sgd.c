/* local_sgd.c — see local_sgd.h. */
#include "sync/local_sgd.h"

#include <string.h>

static bool is(const options *o, const char *key, const char *value)
{
    return strcmp(options_text(o, key), value) == 0;
}

unsigned local_sgd_steps_of(const options *o)
{
    return (unsigned)options_integer(o, "local_steps");
}

static enum local_sgd_momentum momentum_of(const options *o)
{
    return is(o, "local_momentum", "average") ? LOCAL_SGD_AVERAGE
           : is(o, "local_momentum", "reset") ? LOCAL_SGD_RESET
                                              : LOCAL_SGD_KEEP;
}

void local_sgd_open(struct local_sgd *a, const options *o, uint64_t epoch_samples)
{
    *a = (struct local_sgd){.steps = local_sgd_steps_of(o),
                            .momentum = momentum_of(o),
                            .after_fall = is(o, "post_local", "decay")};
    if (is(o, "post_local", "epoch"))
        a->from = (uint64_t)(options_real(o, "post_local_epoch") * (double)epoch_samples + 0.5);
}

unsigned local_sgd_steps(const struct local_sgd *a, const struct schedule *s, uint64_t samples)
{
    bool begun = samples >= a->from && (!a->after_fall || schedule_has_fallen(s, samples));
    return begun ? a->steps : 1;
}

unsigned local_sgd_batches_left(uint64_t samples, uint64_t update_samples, unsigned wanted)
{
    uint64_t batches = (samples + update_samples - 1) / update_samples;
    return batches < wanted ? (unsigned)batches : wanted;
}

bool local_sgd_or_growing(const options *o)
{
    return local_sgd_steps_of(o) > 1 || is(o, "decay", "batch");
}

bool local_sgd_keeps_state(const options *o)
{
    return local_sgd_steps_of(o) > 1 && momentum_of(o) == LOCAL_SGD_KEEP;
}

bool local_sgd_resets_state(const options *o)
{
    return local_sgd_steps_of(o) > 1 && momentum_of(o) == LOCAL_SGD_RESET;
}
