#include "ps/core/late_workers.h"

#include "ps/rules/consistency/consistency.h"

#include <string.h>

unsigned workers_max_of(const options *o)
{
    const unsigned workers = (unsigned)options_integer(o, "workers");
    const unsigned most = (unsigned)options_integer(o, "workers.max");
    return most > workers ? most : workers;
}

status late_workers_check(const options *o)
{
    status result = OK;
    const char *most = options_value(o, "workers.max");
    const struct consistency_policy *policy = (const struct consistency_policy *)registry_find(
        &consistency_registry, options_text(o, "consistency"));
    if (options_integer(o, "workers.max") == 0)
        return OK;
    if (options_integer(o, "workers.max") < options_integer(o, "workers")) {
        FAIL(ERROR_USAGE,
             "%s: workers.max=%s is below workers=%s; training begins with `workers`, so set "
             "workers.max=%s or more",
             options_origin(o, "workers.max"), most, options_value(o, "workers"),
             options_value(o, "workers"));
    }
    if (strcmp(options_text(o, "engine"), "virtual") == 0 && options_real(o, "join.after_s") == 0) {
        FAIL(
            ERROR_USAGE,
            "%s: workers.max=%s: a virtual run has to know when late workers join; set for example "
            "join.after_s=10 (a mean, in virtual seconds)",
            options_origin(o, "workers.max"), most);
    }
    if (policy->holds) {
        FAIL(ERROR_USAGE,
             "%s: workers.max=%s: consistency=%s waits for a fixed number of workers; set "
             "consistency=asp or workers.max=0",
             options_origin(o, "workers.max"), most, policy->about.name);
    }
    if (strcmp(options_text(o, "sampler"), "reshuffled") == 0) {
        FAIL(ERROR_USAGE,
             "%s: workers.max=%s: sampler=reshuffled deals out each epoch to `workers` workers and "
             "has no samples for others; set sampler=partition or sampler=whole",
             options_origin(o, "workers.max"), most);
    }
done:
    return result;
}
