#include "experiments/command.h"

#include "experiments/axis.h"
#include "experiments/config.h"
#include "experiments/keys.h"
#include "experiments/launch.h"
#include "experiments/plan.h"
#include "experiments/queued.h"
#include "experiments/search.h"
#include "experiments/sweep_search.h"
#include "experiments/sweep_status.h"
#include "results/queue.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
    "gradlag sweep [FILE.yaml] key=v1,v2,… [--jobs N] [--dry-run] [--again] [--quiet]\n"
    "gradlag sweep --status | --work | --drop [results=FILE]\n\n"
    "Every combination of the values, the last key running fastest. Combinations that finished\n"
    "before, in the same results file, are not run again; after Ctrl-C the same command goes on.\n"
    "A value that has commas itself goes in parentheses: schedule.at=(0.5,0.75),(0.3). A range\n"
    "with points is a list, too: lr=0.01..1:log:5.\n\n"
    "  --jobs N         so many runs at a time, each on cores (and GPUs) of its own\n"
    "  --oversubscribe  more than there are cores for, on all of them\n"
    "  --part K/N       the K-th of N equal parts alone: a machine each, then `gradlag merge`\n"
    "  --dry-run        the combinations, and which are there already\n"
    "  --again          run all of them, finished or not\n"
    "  --quiet          no progress on stderr\n\n"
    "What is to be made waits in the results file. Runs with a higher priority= come first; one\n"
    "that crashes is made again up to retries= times, one that diverges is not. The same command\n"
    "in a second terminal takes its runs from the same queue.\n\n"
    "  --status         what waits, what is being made, and how long that may take\n"
    "  --work           makes what waits, whichever command put it there\n"
    "  --drop           takes out what waits\n\n"
    "With search=random, tpe or halving (`gradlag list searches`) keys with several values or a\n"
    "range are tried for the best accuracy on the validation split; several seeds are those of "
    "each\n"
    "trial; search.per=KEYS makes a search, of the same size, for each of their combinations.\n\n"
    "  gradlag sweep mode=async workers=1,2,4,8,16 damping=none,inverse seed=1,2,3\n"
    "  gradlag sweep search=tpe search.per=damping damping=none,inverse lr=0.001..0.3:log --jobs "
    "2\n";

enum { AXES = PLAN_VARIED, COMBINATIONS = 100000 };

struct sweep {
    struct axis axes[AXES];
    size_t count;
};

static void sweep_close(struct sweep *s)
{
    for (size_t i = 0; i < s->count; i++) {
        axis_free(&s->axes[i]);
    }
}

/* Settings with several values become axes, in the order they stand; of a key that stands twice the
 * last counts. The others stay in `fixed`. */
static status find_axes(struct sweep *s, const struct settings *read, struct settings *fixed)
{
    status result = OK;
    for (size_t i = 0; i < read->count; i++) {
        const struct setting *each = &read->at[i];
        bool later = false;
        for (size_t j = i + 1; j < read->count; j++) {
            later = later || strcmp(read->at[j].key, each->key) == 0;
        }
        if (later) {
            continue;
        }
        if (s->count == AXES) {
            FAIL(ERROR_USAGE, "more than %d keys with several values", AXES);
        }
        struct axis *a = &s->axes[s->count++];
        TRY(axis_read(a, each));
        if (a->count == 1) {
            settings_add(fixed, a->key, a->values[0], a->origin);
            memory_free(a->values[0]);
            s->count--;
        }
    }
done:
    return result;
}

/* A dotted key of a part that no combination chooses would be left out everywhere: an error. */
static status check_dotted(const struct settings *chosen, const char *key, bool *used)
{
    status result = OK;
    options *o = NULL;
    TRY(config_compose_unchecked(&o, chosen));
    *used = *used || options_declared(o, key);
done:
    options_close(&o);
    return result;
}

/* Settings of combination `number`: dotted keys first, so that those of a part that this
 * combination does not choose fall away. */
static void combine(const struct sweep *s, const struct settings *fixed, size_t number,
                    struct settings *out)
{
    for (int dotted = 1; dotted >= 0; dotted--) {
        for (size_t i = 0; i < fixed->count; i++) {
            if ((strchr(fixed->at[i].key, '.') != NULL) == dotted) {
                settings_add(out, fixed->at[i].key, fixed->at[i].value, fixed->at[i].origin);
            }
        }
        size_t rest = number;
        for (size_t i = s->count; i-- > 0;) {
            const struct axis *a = &s->axes[i];
            if ((strchr(a->key, '.') != NULL) == dotted) {
                settings_add(out, a->key, a->values[rest % a->count], a->origin);
            }
            rest /= a->count;
        }
    }
}

static status check_all_dotted(const struct sweep *s, const struct settings *fixed,
                               const struct settings *read, size_t combinations)
{
    status result = OK;
    struct settings one = {0};
    for (size_t i = 0; i < read->count; i++) {
        bool used = strchr(read->at[i].key, '.') == NULL;
        for (size_t c = 0; c < combinations && !used; c++) {
            settings_free(&one);
            combine(s, fixed, c, &one);
            TRY(check_dotted(&one, read->at[i].key, &used));
        }
        if (!used) {
            /* Once more as it was written, for the message that fits. */
            settings_add(&one, read->at[i].key, read->at[i].value, read->at[i].origin);
            options *o = NULL;
            result = config_compose_unchecked(&o, &one);
            options_close(&o);
            goto done;
        }
    }
done:
    settings_free(&one);
    return result;
}

/* "workers=4 damping=inverse": what makes this combination differ from the others. */
static void name_run(struct planned_run *r, const struct sweep *s)
{
    struct text name = {0};
    for (size_t i = 0; i < s->count; i++) {
        const char *key = s->axes[i].key;
        if (options_declared(r->settings, key)) {
            text_add(&name, "%s%s=%s", name.length > 0 ? " " : "", key,
                     options_value(r->settings, key));
        }
    }
    if (name.length > 0) {
        snprintf(r->title, sizeof r->title, "%s", name.at);
    }
    text_free(&name);
}

/* Keys that do not define what is computed tell runs apart all the same where the user varies them:
 * payload=shm,frames compares the two. */
static void note_varied(const struct sweep *s, struct plan *plan)
{
    for (size_t i = 0; i < s->count; i++) {
        if (key_use_of(s->axes[i].key) == KEY_BESIDE) {
            plan->varied[plan->varied_count++] = s->axes[i].key;
        }
    }
}

static status lay_out(const struct sweep *s, const struct settings *fixed, size_t combinations,
                      struct plan *plan, size_t *unfit, struct text *why)
{
    status result = OK;
    for (size_t c = 0; c < combinations; c++) {
        struct settings one = {0};
        options *o = NULL;
        combine(s, fixed, c, &one);
        result = config_compose_unchecked(&o, &one);
        settings_free(&one);
        TRY(result);
        if (config_check(o) != OK) {
            ++*unfit;
            if (why->length == 0) {
                text_add(why, "%s", error_message());
            }
            options_close(&o);
        } else if (plan_add(plan, &o)) {
            name_run(&plan->runs[plan->count - 1], s);
        }
    }
done:
    return result;
}

static status make(struct plan *plan, const struct plan_options *how)
{
    status result = OK;
    size_t counts[PLANNED_STATES] = {0};
    launch_catch_signals();
    TRY(plan_make(plan, how, stdout));
    for (size_t i = 0; i < plan->count; i++) {
        counts[plan->runs[i].state]++;
    }
    printf("%zu finished, %zu diverged, %zu failed", counts[PLANNED_FINISHED],
           counts[PLANNED_DIVERGED], counts[PLANNED_FAILED]);
    if (counts[PLANNED_ELSEWHERE] > 0) {
        printf(", %zu going on elsewhere", counts[PLANNED_ELSEWHERE]);
    }
    printf("\n");
    if (counts[PLANNED_FAILED] > 0) {
        FAIL(ERROR_OTHER,
             "%zu of %zu runs failed; their rows in the results file say why, and the "
             "same command tries them again",
             counts[PLANNED_FAILED], plan->count);
    }
done:
    return result;
}

/* ---- the queue ----------------------------------------------------------------------------------
 */

static status work_off(const char *results, const struct plan_options *how)
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
    printf("%zu run%s wait%s\n", count, count == 1 ? "" : "s", count == 1 ? "s" : "");
    fflush(stdout);
    TRY(make(&plan, how));
done:
    plan_close(&plan);
    memory_free(ids);
    return result;
}

/* --status, --drop, or --work. */
static status on_queue(const struct settings *read, const struct plan_options *how, bool ask,
                       bool drop)
{
    status result = OK;
    const char *results = settings_find(read, "results");
    if (read->count > (results != NULL)) {
        FAIL(ERROR_USAGE, "sweep: --status, --work and --drop take results=FILE alone");
    }
    results = results != NULL ? results : "results.db";
    if (ask) {
        TRY(sweep_status_print(results, stdout));
    } else if (drop) {
        size_t count;
        TRY(queue_drop(results, &count));
        printf("%zu run%s taken out of the queue\n", count, count == 1 ? "" : "s");
    } else {
        TRY(work_off(results, how));
    }
done:
    return result;
}

/* "--part 2/4" */
static status read_part(int *argc, char **argv, unsigned *part, unsigned *parts)
{
    status result = OK;
    const char *text;
    char after;
    *part = *parts = 1;
    TRY(command_value(argc, argv, "--part", &text));
    if (text != NULL &&
        (sscanf(text, "%u/%u%c", part, parts, &after) != 2 || *part < 1 || *part > *parts)) {
        FAIL(ERROR_USAGE, "--part %s: which of how many parts, as in 2/4", text);
    }
done:
    return result;
}

status command_sweep(int argc, char **argv)
{
    status result = OK;
    struct settings read = {0}, fixed = {0};
    struct sweep *s = NULL;
    struct plan plan = {0};
    struct text why = {0};
    struct plan_options how;
    unsigned part, parts;
    size_t combinations = 1, unfit = 0;
    if (command_flag(&argc, argv, "--help")) {
        fputs(help, stdout);
        goto done;
    }
    TRY(plan_options_read(&how, &argc, argv));
    bool dry = command_flag(&argc, argv, "--dry-run");
    plan.again = command_flag(&argc, argv, "--again");
    how.quiet = command_flag(&argc, argv, "--quiet");
    bool ask = command_flag(&argc, argv, "--status"), drop = command_flag(&argc, argv, "--drop");
    bool rest = command_flag(&argc, argv, "--work");
    TRY(read_part(&argc, argv, &part, &parts));
    TRY(command_no_flags_left(
        argc, argv, "sweep",
        "--jobs N, --oversubscribe, --part K/N, --dry-run, --again, --quiet, --status, "
        "--work and --drop"));
    if (ask || drop || rest) {
        TRY(settings_read_arguments(&read, argc, argv));
        TRY(on_queue(&read, &how, ask, drop));
        goto done;
    }
    if (argc == 0) {
        FAIL(ERROR_USAGE, "sweep: over what? Name a key with several values, as in "
                          "`gradlag sweep workers=1,2,4 seed=1,2,3`; `gradlag run` makes one run");
    }
    TRY(settings_read_arguments(&read, argc, argv));
    for (size_t i = 0; i < read.count; i++) {
        if (search_owns(read.at[i].key)) {
            if (parts > 1) {
                FAIL(ERROR_USAGE, "--part: what a search tries follows from all of its trials; "
                                  "make it on one machine, with --jobs");
            }
            TRY(sweep_search(&read, &how, dry, plan.again));
            goto done;
        }
    }
    TRY(memory_new(&s, 1, sizeof *s, "a sweep"));
    TRY(find_axes(s, &read, &fixed));
    for (size_t i = 0; i < s->count; i++) {
        combinations *= s->axes[i].count;
        if (combinations > COMBINATIONS) {
            FAIL(ERROR_USAGE, "more than %d combinations; sweep over less at a time", COMBINATIONS);
        }
    }
    TRY(check_all_dotted(s, &fixed, &read, combinations));
    note_varied(s, &plan);
    TRY(lay_out(s, &fixed, combinations, &plan, &unfit, &why));
    if (plan.count == 0) {
        FAIL(ERROR_USAGE, "nothing to run: %s", why.at);
    }
    plan_keep_part(&plan, part, parts);
    if (!plan.again) {
        TRY(plan_look_up(&plan));
    }
    size_t missing = plan_missing(&plan);
    printf("%zu combination%s: %zu to run, %zu there already", plan.count,
           plan.count == 1 ? "" : "s", missing, plan.count - missing);
    if (unfit > 0) {
        printf("; %zu more left out: %s", unfit, why.at);
    }
    printf("\n");
    fflush(stdout);
    if (dry) {
        plan_print(&plan, stdout);
    } else {
        TRY(make(&plan, &how));
    }
done:
    plan_close(&plan);
    if (s != NULL) {
        sweep_close(s);
    }
    memory_free(s);
    settings_free(&read);
    settings_free(&fixed);
    text_free(&why);
    return result;
}
