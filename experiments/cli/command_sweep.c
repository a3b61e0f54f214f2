#include "base/memory.h"
#include "base/text.h"
#include "experiments/command.h"

#include "experiments/sweep/sweep_axis.h"
#include "experiments/config/config.h"
#include "experiments/config/keys.h"
#include "experiments/run/launch.h"
#include "experiments/sweep/plan.h"
#include "experiments/print_columns.h"
#include "experiments/run/queued_run.h"
#include "experiments/sweep/search.h"
#include "experiments/sweep/sweep_search.h"
#include "experiments/sweep/sweep_status.h"
#include "results/run_queue.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char command_sweep_help[] =
    "gradlag sweep [FILE.yaml] key=v1,v2,… [--jobs N] [--dry-run] [--again] [--quiet]\n"
    "gradlag sweep --status | --work | --drop [results=FILE]\n\n"
    "Runs every combination of the values; the last key varies fastest. A combination that has\n"
    "finished in this results file is not run again, so after Ctrl-C the same command continues.\n"
    "A combination in which a setting has no effect is left out. Put a value that contains commas\n"
    "in parentheses: 'schedule.at=(0.5,0.75),(0.3)'. A range with a number of points is a list:\n"
    "lr=0.01..1:log:5.\n\n"
    "  --jobs N         N runs in parallel, each on its own cores (and GPUs)\n"
    "  --oversubscribe  let parallel runs share cores\n"
    "  --part K/N       only the K-th of N parts: give the same command on N machines, each with\n"
    "                   its own results=; then `gradlag merge`\n"
    "  --dry-run        list the combinations, and which of them the results file has already\n"
    "  --again          run everything again, finished or not\n"
    "  --quiet          no progress on stderr\n\n"
    "Runs are queued in the results file. The same command in a second terminal takes runs from\n"
    "the same queue. Runs with a higher priority= start first. A run that crashed is repeated up\n"
    "to retries= times; a diverged run is a result and is not repeated. Exit code: 0; 1 if a run\n"
    "failed, another host still executes one, or --drop in another terminal removed one; 75 after\n"
    "Ctrl-C.\n\n"
    "  --status         print queued and running runs, and the estimated time\n"
    "  --work           process the queue, whichever command filled it\n"
    "  --drop           remove all queued runs\n\n"
    "With search=random, tpe or halving (`gradlag list searches`) the command searches for the\n"
    "values with the best accuracy (data without classes: the lowest loss) on the validation\n"
    "split, of the keys that have several values or a range. Each trial runs with all given\n"
    "seeds. search.per=KEYS does a separate search for each combination of KEYS; --part then\n"
    "assigns whole searches to parts.\n\n"
    "  gradlag sweep mode=async workers=1,2,4,8,16 damping=none,inverse seed=1,2,3\n"
    "  gradlag sweep search=tpe search.per=damping damping=none,inverse lr=0.001..0.3:log --jobs "
    "2\n";

enum { AXES = PLAN_VARIED, COMBINATIONS = 100000 };

struct sweep {
    struct axis axes[AXES + 1];
    size_t count;
};

static void sweep_close(struct sweep *s)
{
    for (size_t i = 0; i < s->count; i++)
        axis_free(&s->axes[i]);
}

/* A setting with several values becomes an axis, in the given order; other settings go to `fixed`.
 * If a key is set several times, the last setting counts. */
static status find_axes(struct sweep *s, const struct settings *read, struct settings *fixed)
{
    status result = OK;
    for (size_t i = 0; i < read->count; i++) {
        const struct setting *each = &read->at[i];
        bool later = settings_length_is_overruled(read, i);
        for (size_t j = i + 1; j < read->count; j++)
            later = later || strcmp(read->at[j].key, each->key) == 0;
        if (later)
            continue;
        struct axis *a = &s->axes[s->count++]; /* one more than AXES fits */
        TRY(axis_read(a, each));
        if (a->count == 1) {
            settings_add(fixed, a->key, a->values[0], a->origin);
            axis_free(a);
            s->count--;
        }
        if (s->count > AXES)
            FAIL(ERROR_USAGE,
                 "sweep: more than %d keys have several values; split the sweep into several "
                 "commands",
                 AXES);
    }
done:
    return result;
}

/* The title: the values of the swept keys, "workers=4 damping=inverse". */
static void set_title(struct planned_run *r, const struct sweep *s)
{
    struct text name = {0};
    for (size_t i = 0; i < s->count; i++) {
        const char *key = s->axes[i].key;
        if (options_declared(r->settings, key)) {
            text_add(&name, "%s%s=%s", name.length > 0 ? " " : "", key,
                     options_value(r->settings, key));
        }
    }
    if (name.length > 0)
        snprintf(r->title, sizeof r->title, "%s", name.at);
    text_free(&name);
}

static status lay_out(const struct sweep *s, const struct settings *fixed, size_t combinations,
                      struct plan *plan, size_t *invalid, struct text *why)
{
    status result = OK;
    options *o = NULL;
    for (size_t c = 0; c < combinations; c++) {
        struct settings one = {0};
        axes_combine(s->axes, s->count, fixed, c, &one);
        result = settings_add_workers_of_hosts(&one);
        if (result == OK)
            result = config_compose_unchecked(&o, &one);
        settings_free(&one);
        TRY(result);
        if (config_check(o) != OK) {
            ++*invalid;
            if (why->length == 0)
                text_add(why, "%s", error_message());
            options_close(&o);
            continue;
        }
        TRY(plan_choose_precision(plan, o));
        if (plan_add(plan, &o))
            set_title(&plan->runs[plan->count - 1], s);
    }
done:
    options_close(&o);
    return result;
}

static status run_plan(struct plan *plan, const struct plan_options *how)
{
    status result = OK;
    launch_catch_signals();
    TRY(plan_execute(plan, how, stdout));
    TRY(plan_print_outcome(plan, how, stdout));
    TRY(plan_check_failed(plan));
done:
    return result;
}

/* ---- the queue ----------------------------------------------------------------------------------
 */

static bool is_in_every_title(const char *key)
{
    static const char *const shown[] = {"mode", "workers", "model", "damping", "seed"};
    for (size_t i = 0; i < COUNT_OF(shown); i++)
        if (strcmp(shown[i], key) == 0)
            return true;
    return false;
}

/* If the runs differ in this key, adds "lr=0.1" to their titles. */
static void add_to_titles(struct plan *plan, const char *key)
{
    const char *first = options_value(plan->runs[0].settings, key);
    bool differ = false;
    for (size_t i = 1; i < plan->count && !differ; i++) {
        const options *o = plan->runs[i].settings;
        differ = options_declared(o, key) && strcmp(options_value(o, key), first) != 0;
    }
    for (size_t i = 0; i < plan->count && differ; i++) {
        struct planned_run *r = &plan->runs[i];
        size_t length = strlen(r->title);
        if (options_declared(r->settings, key)) {
            snprintf(r->title + length, sizeof r->title - length, " %s=%s", key,
                     options_value(r->settings, key));
        }
    }
}

/* The queue stores no titles, so make them from the keys in which the runs differ. */
static void name_queued(struct plan *plan)
{
    const options *first = plan->count > 0 ? plan->runs[0].settings : NULL;
    for (size_t k = 0; first != NULL && k < options_count(first); k++) {
        const char *key = options_at(first, k)->key;
        if (key_defines(key) && !is_in_every_title(key))
            add_to_titles(plan, key);
    }
}

static status process_queue(const char *results, const struct plan_options *how)
{
    status result = OK;
    struct plan plan = {0};
    int64_t *ids = NULL;
    size_t count = 0;
    TRY(queue_waiting(results, &ids, &count));
    for (size_t i = 0; i < count; i++) {
        options *o = NULL;
        TRY(queued_settings(&o, results, ids[i]));
        plan_add_waiting(&plan, &o, ids[i]);
    }
    name_queued(&plan);
    printf("%zu run%s queued\n", count, plural(count));
    fflush(stdout);
    TRY(run_plan(&plan, how));
done:
    plan_close(&plan);
    memory_free(ids);
    return result;
}

struct sweep_request {
    struct plan_options how;
    bool dry, again, status, drop, work;
    struct settings read;
};

static status fail_to_combine(const char *one, const char *other)
{
    return error_set(ERROR_USAGE, __FILE__, __LINE__,
                     "sweep: %s and %s cannot be combined; leave one of them out", one, other);
}

/* --status, --drop, or --work. */
static status queue_command(const struct sweep_request *r)
{
    status result = OK;
    const char *results = settings_find(&r->read, "results");
    const char *own = r->status ? "--status" : r->drop ? "--drop" : "--work";
    const struct {
        bool there;
        const char *name;
    } others[] = {{r->again, "--again"},
                  {r->dry, "--dry-run"},
                  {r->how.part.of > 0, "--part"},
                  {r->how.jobs > 1 && !r->work, "--jobs"},
                  {r->how.oversubscribe && !r->work, "--oversubscribe"},
                  {r->how.quiet && !r->work, "--quiet"},
                  {r->status + r->drop + r->work > 1, "--drop or --work"}};
    for (size_t i = 0; i < COUNT_OF(others); i++)
        if (others[i].there)
            TRY(fail_to_combine(own, others[i].name));
    if (r->read.count > (results != NULL))
        FAIL(ERROR_USAGE, "sweep: --status, --work and --drop accept only results=FILE");
    results = results != NULL ? results : "results.db";
    if (r->status) {
        signal(SIGPIPE, SIG_DFL); /* end if the reader of stdout exits, as `query` does */
        TRY(sweep_status_print(results, stdout));
    } else if (r->drop) {
        size_t count;
        TRY(queue_drop(results, &count));
        printf("%zu run%s removed from the queue\n", count, plural(count));
    } else {
        TRY(process_queue(results, &r->how));
    }
done:
    return result;
}

static status read_request(struct sweep_request *r, int argc, char **argv)
{
    status result = OK;
    TRY(plan_options_read(&r->how, &argc, argv));
    r->dry = command_flag(&argc, argv, "--dry-run");
    r->again = command_flag(&argc, argv, "--again");
    r->how.quiet = command_flag(&argc, argv, "--quiet");
    r->status = command_flag(&argc, argv, "--status");
    r->drop = command_flag(&argc, argv, "--drop");
    r->work = command_flag(&argc, argv, "--work");
    TRY(command_no_flags_left(
        argc, argv, "sweep",
        "--jobs N, --oversubscribe, --part K/N, --dry-run, --again, --quiet, --status, --work and "
        "--drop"));
    if (argc == 0 && !r->status && !r->drop && !r->work) {
        FAIL(ERROR_USAGE, "sweep: name a key with several values, as in `gradlag sweep "
                          "workers=1,2,4 seed=1,2,3`; for a single run use `gradlag run`");
    }
    TRY(settings_read_arguments(&r->read, argc, argv));
    TRY(settings_refuse_internal(&r->read));
done:
    return result;
}

static bool is_search(const struct settings *read)
{
    for (size_t i = 0; i < read->count; i++)
        if (search_is_key(read->at[i].key))
            return true;
    return false;
}

static status count_combinations(const struct sweep *s, size_t *out)
{
    status result = OK;
    *out = 1;
    for (size_t i = 0; i < s->count; i++) {
        *out *= s->axes[i].count;
        if (*out > COMBINATIONS)
            FAIL(ERROR_USAGE,
                 "sweep: more than %d combinations; split the sweep into several commands",
                 COMBINATIONS);
    }
done:
    return result;
}

/* Every combination of the values. */
static status combinations(const struct sweep_request *r, struct sweep *s)
{
    status result = OK;
    struct settings fixed = {0};
    struct plan plan = {.again = r->again};
    struct text why = {0};
    size_t count, invalid = 0;
    TRY(find_axes(s, &r->read, &fixed));
    TRY(count_combinations(s, &count));
    TRY(axes_check_dotted(&r->read));
    for (size_t i = 0; i < s->count; i++)
        plan_vary(&plan, s->axes[i].key);
    TRY(lay_out(s, &fixed, count, &plan, &invalid, &why));
    if (plan.count == 0)
        FAIL(ERROR_USAGE, "sweep: no combination is valid: %s", why.at);
    plan_keep_part(&plan, &r->how.part);
    if (!plan.again)
        TRY(plan_look_up(&plan));
    TRY(plan_check_files(&plan));
    size_t missing = plan_missing(&plan);
    printf("%zu combination%s: %zu to run, %zu there already", plan.count, plural(plan.count),
           missing, plan.count - missing);
    if (invalid > 0)
        printf("; %zu more left out: %s", invalid, why.at);
    printf("\n");
    fflush(stdout);
    plan_warn_of_warmup(&plan);
    if (r->dry)
        plan_print(&plan, stdout);
    else
        TRY(run_plan(&plan, &r->how));
done:
    plan_close(&plan);
    settings_free(&fixed);
    text_free(&why);
    return result;
}

status command_sweep(int argc, char **argv)
{
    status result = OK;
    struct sweep_request r = {0};
    struct sweep *s = NULL;
    TRY(read_request(&r, argc, argv));
    if (r.status || r.drop || r.work) {
        TRY(queue_command(&r));
    } else if (is_search(&r.read)) {
        TRY(sweep_search(&r.read, &r.how, r.dry, r.again));
    } else {
        TRY(memory_new(&s, 1, sizeof *s, "a sweep"));
        TRY(combinations(&r, s));
    }
done:
    if (s != NULL)
        sweep_close(s);
    memory_free(s);
    settings_free(&r.read);
    return result;
}
