#include "experiments/queued.h"

#include "experiments/config.h"
#include "experiments/recall.h"
#include "results/queue.h"

#include <stdio.h>
#include <string.h>

/* A newer or older gradlag may have put it there, to whom a default meant something else. */
static status check_same(const char *results, int64_t run_id, const options *o)
{
    status result = OK;
    char sql[160], hash[65], begins[20];
    double same = 0;
    bool known;
    config_hash(o, hash);
    snprintf(begins, sizeof begins, "hash=%.12s", hash);
    snprintf(sql, sizeof sql, "SELECT substr(config_hash, 1, 12) = :hash FROM run WHERE id = %lld",
             (long long)run_id);
    TRY(query_number(results, sql, (const char *const[]){begins}, 1, &same, &known));
    if (same == 0) {
        FAIL(ERROR_RESULTS,
             "%s: run %lld was put into the queue by another version of gradlag, to which its "
             "settings came to another run; take it out with `gradlag sweep --drop`, and give the "
             "command again that put it there",
             results, (long long)run_id);
    }
done:
    return result;
}

status queued_settings(options **out, const char *results, int64_t run_id)
{
    status result = OK;
    struct settings all = {0};
    char origin[48], *config = NULL;
    *out = NULL;
    snprintf(origin, sizeof origin, "run %lld", (long long)run_id);
    TRY(queue_config(results, run_id, &config));
    TRY(recall_all(&all, config, origin));
    settings_add(&all, "results", results, origin);
    TRY(config_compose(out, &all));
    TRY(check_same(results, run_id, *out));
done:
    if (result != OK) {
        options_close(out);
    }
    memory_free(config);
    settings_free(&all);
    return result;
}
