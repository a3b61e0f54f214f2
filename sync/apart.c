/* apart.c — see apart.h. */
#include "sync/apart.h"

#include <string.h>

static bool is(const options *o, const char *key, const char *value)
{
    return options_declared(o, key) && strcmp(options_text(o, key), value) == 0;
}

static unsigned steps_of(const options *o)
{
    return options_declared(o, "local_steps") ? (unsigned)options_integer(o, "local_steps") : 1;
}

void apart_open(struct apart *a, const options *o, uint64_t epoch_samples)
{
    *a = (struct apart){.steps = steps_of(o),
                        .momentum = is(o, "local_momentum", "average") ? APART_AVERAGE
                                    : is(o, "local_momentum", "reset") ? APART_RESET
                                                                       : APART_KEEP,
                        .after_fall = is(o, "post_local", "decay")};
    if (is(o, "post_local", "epoch"))
        a->from = (uint64_t)(options_real(o, "post_local_epoch") * (double)epoch_samples + 0.5);
}

unsigned apart_steps(const struct apart *a, const struct schedule *s, uint64_t samples)
{
    bool begun = samples >= a->from && (!a->after_fall || schedule_has_fallen(s, samples));
    return begun ? a->steps : 1;
}

unsigned apart_batches_left(uint64_t samples, uint64_t update_samples, unsigned wanted)
{
    uint64_t batches = (samples + update_samples - 1) / update_samples;
    return batches < wanted ? (unsigned)batches : wanted;
}

bool apart_or_growing(const options *o)
{
    return steps_of(o) > 1 || is(o, "decay", "batch");
}

bool apart_keeps_state(const options *o)
{
    return steps_of(o) > 1 && !is(o, "local_momentum", "average") &&
           !is(o, "local_momentum", "reset");
}
