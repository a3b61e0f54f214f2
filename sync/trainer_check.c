/*
 * trainer_check.c — settings of mode=sync that exclude each other, all in one table.
 *
 * Most of them need exactly one gradient between two exchanges: the gradient that was computed last
 * is the one that is exchanged. local_steps exchanges parameters after several gradients, and
 * decay=batch sums several gradients before the exchange.
 */
#include "sync/local_sgd.h"
#include "sync/trainer.h"

#include <string.h>

enum other { LOCAL_STEPS = 1, GROWING_BATCHES = 2, COMPRESSION = 4, SYNC_BATCH_NORM = 8 };

static const struct {
    unsigned other; /* one of enum other */
    const char *name;
} others[] = {{LOCAL_STEPS, "local_steps"},
              {GROWING_BATCHES, "decay=batch"},
              {COMPRESSION, "compression"},
              {SYNC_BATCH_NORM, "batch_norm=synchronised"}};

static const struct {
    const char *key, *value; /* NULL: any value but 0 */
    unsigned excludes;       /* of enum other */
    const char *because;
} rules[] = {
    {"delay", NULL, LOCAL_STEPS, "between two averagings ranks apply their own gradients at once"},
    {"overlap", "yes", LOCAL_STEPS | GROWING_BATCHES | COMPRESSION | SYNC_BATCH_NORM,
     "the gradient can be exchanged only when it is complete"},
    {"on_nonfinite", "skip", LOCAL_STEPS, "ranks have to skip the same update together"},
    {"decay", "batch", LOCAL_STEPS, "a local step uses one batch, so batches cannot grow"},
    {"batch_norm", "synchronised", LOCAL_STEPS,
     "between two averagings the ranks have different parameters"},
};

static bool is_set(const options *o, const char *key, const char *value)
{
    if (!options_declared(o, key))
        return false;
    return value != NULL ? strcmp(options_text(o, key), value) == 0 : options_integer(o, key) > 0;
}

static unsigned others_of(const options *o)
{
    const bool coded = options_declared(o, "compression") && !is_set(o, "compression", "none");
    return (local_sgd_steps_of(o) > 1 ? LOCAL_STEPS : 0) |
           (is_set(o, "decay", "batch") ? GROWING_BATCHES : 0) | (coded ? COMPRESSION : 0) |
           (is_set(o, "batch_norm", "synchronised") ? SYNC_BATCH_NORM : 0);
}

status sync_trainer_check(const options *o)
{
    status result = OK;
    const unsigned chosen = others_of(o);
    /* Ranks that mpirun or srun started may have no key workers. */
    if (options_declared(o, "communicator.nodes") && !options_is_initial(o, "workers") &&
        options_integer(o, "communicator.nodes") > options_integer(o, "workers"))
        FAIL(ERROR_USAGE,
             "%s: communicator.nodes=%s: there are only %s ranks; use at most as many nodes",
             options_origin(o, "communicator.nodes"), options_value(o, "communicator.nodes"),
             options_value(o, "workers"));
    for (size_t i = 0; i < COUNT_OF(rules); i++) {
        if (!is_set(o, rules[i].key, rules[i].value))
            continue;
        for (size_t k = 0; k < COUNT_OF(others); k++)
            if ((chosen & rules[i].excludes & others[k].other) != 0)
                FAIL(ERROR_USAGE, "%s=%s does not work with %s: %s; remove one of them",
                     rules[i].key, options_value(o, rules[i].key), others[k].name,
                     rules[i].because);
    }
done:
    return result;
}
