#include "experiments/command.h"

#include "experiments/cells.h"
#include "experiments/launch.h"
#include "experiments/tuning.h"
#include "results/query.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
    "gradlag reproduce NAME|FILE.yaml|--all [key=value…] [--quick] [--dry-run] [--no-run] "
    "[--again] [--quiet]\n\n"
    "Makes the runs of an experiment that are missing in the results file, then prints its table,\n"
    "each claim with observed value, band, PASS or FAIL, and the verdict. Settings given here "
    "come\n"
    "after the file's. Exit code 1 if a claim failed, or could not be judged for failed runs.\n\n"
    "  --quick    the part that the file says fits into a few minutes\n"
    "  --dry-run  the runs, and which are there already\n"
    "  --no-run   no new runs: the table of what is there\n"
    "  --again    make all runs, finished or not\n"
    "  --quiet    no progress on stderr\n\n"
    "`gradlag list experiments` shows what is compiled in; docs/experiment-files.md the format.\n";

struct reproduce {
    bool quick, dry, no_run, again, quiet;
    struct settings more; /* of the command line */
};

/* What a reproduction consists of. */
struct work {
    struct experiment e;
    struct tuning tuning;
    struct plan plan;
    struct cells cells;
    size_t later; /* runs whose settings depend on runs that are not there yet */
};

/* The run that a fitted arm's pace is taken from; 0: not there. */
static int64_t run_to_fit(const struct plan *plan, const struct arm *arm, int64_t workers,
                          int64_t seed)
{
    for (size_t i = 0; i < plan->count; i++) {
        const struct planned_run *r = &plan->runs[i];
        if (r->state == PLANNED_FINISHED &&
            strcmp(options_text(r->settings, "arm"), arm->fit) == 0 &&
            options_integer(r->settings, "workers") == workers &&
            options_integer(r->settings, "seed") == seed) {
            return r->run_id;
        }
    }
    return 0;
}

/* Adds what the arm tunes and fits; false where that is not known yet. */
static bool add_found(const struct work *w, const struct arm *arm, int64_t workers, int64_t seed,
                      bool quick, struct settings *all)
{
    char number[32];
    if (experiment_grid(arm, quick) != NULL) {
        const struct settings *tuned = tuning_settings(&w->tuning, arm, workers);
        if (tuned == NULL) {
            return false;
        }
        settings_add_all(all, tuned);
    }
    if (arm->fit != NULL) {
        int64_t run = run_to_fit(&w->plan, arm, workers, seed);
        snprintf(number, sizeof number, "%lld", (long long)run);
        settings_add(all, "pace", "fit", w->e.file);
        settings_add(all, "pace.run", number, w->e.file);
        return run > 0;
    }
    return true;
}

static status add_run(struct work *w, const struct arm *arm, int64_t workers, int64_t seed,
                      const struct reproduce *r)
{
    status result = OK;
    struct settings all = {0};
    options *o = NULL;
    experiment_settings(&w->e, arm, workers, seed, r->quick, &r->more, &all);
    if (!add_found(w, arm, workers, seed, r->quick, &all)) {
        w->later++;
        goto done;
    }
    result = config_compose(&o, &all);
    if (result != OK) {
        result =
            error_add_context(result, "arm %s with %lld workers", arm->name, (long long)workers);
        goto done;
    }
    plan_add(&w->plan, &o);
done:
    settings_free(&all);
    return result;
}

/* Seed by seed, so that an experiment that was cut short has every arm. Runs that are in the plan
 * already stay as they are. */
static status lay_out(struct work *work, const struct reproduce *r)
{
    status result = OK;
    const struct experiment *e = &work->e;
    const struct int_list *workers = experiment_workers(e, r->quick);
    struct int_list seeds;
    experiment_seeds(e, r->quick, &seeds);
    work->later = 0;
    for (size_t s = 0; s < seeds.count; s++) {
        for (size_t w = 0; w < workers->count; w++) {
            for (size_t a = 0; a < e->arm_count; a++) {
                const struct arm *arm = &e->arms[a];
                if (experiment_has(e, arm, workers->at[w], seeds.at[s], r->quick)) {
                    TRY(add_run(work, arm, workers->at[w], seeds.at[s], r));
                }
            }
        }
    }
done:
    free(seeds.at);
    return result;
}

/* Wrong names in claims show before the runs, not after an hour of them. */
static status check_claims(const struct experiment *e)
{
    status result = OK;
    for (size_t i = 0; i < e->claim_count; i++) {
        const struct claim *c = &e->claims[i];
        if (c->value != NULL && cells_check(e, c->value) != OK) {
            result = error_add_context(ERROR_USAGE, "%s:%u", e->file, c->line);
            goto done;
        }
    }
done:
    return result;
}

/* *reading.lacking is set where runs that the claim needs did not finish. */
static status claim_value(const struct claim *c, struct cells_reading *reading, const char *results,
                          double *value)
{
    if (c->value != NULL) {
        struct measures m = cells_measures(reading);
        return expression_value(c->value, &m, value);
    }
    bool known = false;
    status result = query_number(results, c->sql, NULL, 0, value, &known);
    *value = known ? *value : NAN;
    return result;
}

/* *failed counts claims outside their band; those that this part does not measure are said to be
 * so. */
static status print_claims(const struct cells *cells, const char *results, bool quick, FILE *to,
                           size_t *failed)
{
    status result = OK;
    const struct experiment *e = cells->experiment;
    size_t passed = 0, unknown = 0;
    if (e->claim_count == 0) {
        goto done;
    }
    fprintf(to, "\nClaims\n");
    for (size_t i = 0; i < e->claim_count; i++) {
        const struct claim *c = &e->claims[i];
        double value = NAN, low = quick ? c->quick_low : c->low;
        double high = quick ? c->quick_high : c->high;
        struct cells_reading reading = {.cells = cells};
        TRY(claim_value(c, &reading, results, &value));
        const struct cell *lacking = reading.lacking;
        bool holds = value >= low && value <= high;
        bool open = isnan(value) && lacking == NULL;
        fprintf(to, "%s  %s\n", open ? "–   " : holds ? "PASS" : "FAIL", c->text);
        unknown += open;
        passed += holds;
        *failed += !open && !holds;
        if (open) {
            fprintf(to, "      not measured in this part");
        } else if (lacking != NULL) {
            fprintf(to,
                    "      %s with %lld workers: of %u runs %u finished, %u diverged, %u failed",
                    lacking->arm->name, (long long)lacking->workers, lacking->planned,
                    lacking->finished, lacking->diverged, lacking->failed);
        } else {
            fprintf(to, "      observed %.2f, band [%g, %g]", value, low, high);
        }
        fprintf(to, "%s%s\n", c->source != NULL ? "; source: " : "",
                c->source != NULL ? c->source : "");
    }
    fprintf(to, "%zu passed, %zu failed, %zu not measured\n", passed, *failed, unknown);
done:
    return result;
}

static status make(struct plan *plan, const struct reproduce *r)
{
    status result = OK;
    if (!r->no_run) {
        launch_catch_signals();
        TRY(plan_make(plan, r->quiet, stdout));
    }
done:
    return result;
}

static size_t failures(const struct plan *plan)
{
    size_t failed = 0;
    for (size_t i = 0; i < plan->count; i++) {
        failed += plan->runs[i].state == PLANNED_FAILED;
    }
    return failed;
}

static void print_counts(const char *what, const struct plan *plan, size_t later)
{
    printf("%zu %s: %zu to make, %zu there already\n", plan->count + later, what,
           plan_missing(plan) + later, plan->count - plan_missing(plan));
    fflush(stdout);
}

static status lay_out_first(struct work *w, const struct reproduce *r)
{
    status result = OK;
    TRY(tuning_lay_out(&w->tuning, &w->e, r->quick, &r->more));
    if (!r->again) {
        TRY(plan_look_up(&w->tuning.trials));
        TRY(tuning_choose(&w->tuning));
    }
    TRY(lay_out(w, r));
    if (!r->again) {
        TRY(plan_look_up(&w->plan));
        TRY(lay_out(w, r)); /* those that are fitted to runs that are there */
        TRY(plan_look_up(&w->plan));
    }
    if (w->plan.count + w->later == 0) {
        FAIL(ERROR_USAGE, "%s: no arm has any of the worker counts", w->e.file);
    }
    printf("%s%s: %s\n", w->e.name, r->quick ? " (the quick part)" : "", w->e.question);
    if (w->tuning.trials.count > 0) {
        print_counts("trials", &w->tuning.trials, 0);
    }
    print_counts("runs", &w->plan, w->later);
done:
    return result;
}

/* Trials first, then what does not depend on other runs, then what is fitted to them. */
static status make_all(struct work *w, const struct reproduce *r)
{
    status result = OK;
    TRY(make(&w->tuning.trials, r));
    TRY(tuning_choose(&w->tuning));
    TRY(make(&w->plan, r));
    for (size_t before = SIZE_MAX; w->later > 0 && w->later < before;) {
        before = w->later;
        TRY(lay_out(w, r));
        if (!r->again) {
            TRY(plan_look_up(&w->plan));
        }
        TRY(make(&w->plan, r));
    }
done:
    return result;
}

static status report(struct work *w, const struct reproduce *r)
{
    status result = OK;
    size_t failed = 0, lost = failures(&w->tuning.trials) + failures(&w->plan);
    TRY(cells_open(&w->cells, &w->e, &w->plan));
    tuning_print(&w->tuning, stdout);
    printf("\n");
    cells_print(&w->cells, stdout);
    const char *results = w->plan.count > 0
                              ? options_text(w->plan.runs[0].settings, "results")
                              : options_text(w->tuning.trials.runs[0].settings, "results");
    TRY(print_claims(&w->cells, results, r->quick, stdout, &failed));
    verdict_print(&w->cells, stdout);
    if (failed > 0 || lost > 0) {
        FAIL(ERROR_OTHER,
             "%s: %zu claims failed and %zu runs failed; `gradlag show RUN` shows what "
             "a run did",
             w->e.name, failed, lost);
    }
done:
    return result;
}

static status reproduce(const char *name, const struct reproduce *r)
{
    status result = OK;
    struct work w = {0};
    TRY(experiment_open(&w.e, name));
    TRY(check_claims(&w.e));
    TRY(lay_out_first(&w, r));
    if (r->dry) {
        plan_print(&w.tuning.trials, stdout);
        plan_print(&w.plan, stdout);
        if (w.later > 0) {
            printf("to run              %zu runs at what these find\n", w.later);
        }
        goto done;
    }
    TRY(make_all(&w, r));
    TRY(report(&w, r));
done:
    cells_close(&w.cells);
    plan_close(&w.plan);
    tuning_close(&w.tuning);
    experiment_close(&w.e);
    return result;
}

static status reproduce_all(const struct reproduce *r)
{
    status result = OK, worst = OK;
    struct text message = {0};
    char name[64];
    for (size_t i = 0; experiment_at(i, name); i++) {
        result = reproduce(name, r);
        if (result == STOPPED || result == ERROR_RESULTS) {
            goto done;
        }
        if (result != OK) {
            worst = result;
            text_add(&message, "%s%s", message.length > 0 ? "; " : "", error_message());
        }
        printf("\n");
    }
    result = worst == OK ? OK : error_set(worst, __FILE__, __LINE__, "%s", message.at);
done:
    text_free(&message);
    return result;
}

status command_reproduce(int argc, char **argv)
{
    status result = OK;
    struct reproduce r = {0};
    if (command_flag(&argc, argv, "--help")) {
        fputs(help, stdout);
        goto done;
    }
    bool all = command_flag(&argc, argv, "--all");
    r.quick = command_flag(&argc, argv, "--quick");
    r.dry = command_flag(&argc, argv, "--dry-run");
    r.no_run = command_flag(&argc, argv, "--no-run");
    r.again = command_flag(&argc, argv, "--again");
    r.quiet = command_flag(&argc, argv, "--quiet");
    TRY(command_no_flags_left(argc, argv, "reproduce",
                              "--all, --quick, --dry-run, --no-run, --again and --quiet"));
    if (!all && (argc == 0 || strchr(argv[0], '=') != NULL)) {
        FAIL(ERROR_USAGE, "reproduce: which experiment? `gradlag list experiments` shows them");
    }
    int first = all ? 0 : 1;
    TRY(settings_read_arguments(&r.more, argc - first, argv + first));
    TRY(all ? reproduce_all(&r) : reproduce(argv[0], &r));
done:
    settings_free(&r.more);
    return result;
}
