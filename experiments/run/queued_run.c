#include "experiments/run/queued_run.h"

#include "base/memory.h"
#include "experiments/config/config.h"
#include "experiments/run/config_from_row.h"
#include "results/run_queue.h"

#include <stdio.h>
#include <string.h>

status queued_settings(options **out, const char *results, int64_t run_id)
{
    status result = OK;
    struct settings all = {0};
    char origin[48], was[65], is[65], *config = NULL;
    *out = NULL;
    snprintf(origin, sizeof origin, "run %lld", (long long)run_id);
    TRY(queue_config(results, run_id, &config, was));
    TRY(config_from_row_all(&all, config, origin));
    settings_add(&all, "results", results, origin);
    TRY(config_compose(out, &all));
    config_hash(*out, is);
    if (strcmp(was, is) != 0) { /* defaults may differ between versions */
        FAIL(ERROR_RESULTS,
             "%s: run %lld was queued by another version of gradlag, for which the same settings "
             "mean another run; remove it with `gradlag sweep --drop`, and queue it again with the "
             "same command",
             results, (long long)run_id);
    }
done:
    if (result != OK)
        options_close(out);
    memory_free(config);
    settings_free(&all);
    return result;
}
