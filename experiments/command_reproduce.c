#include "experiments/command.h"

#include "experiments/launch.h"
#include "experiments/reproduction.h"

#include <stdio.h>
#include <string.h>

static const char help[] =
    "gradlag reproduce NAME|FILE.yaml|--all [key=value…] [--quick] [--jobs N] [--dry-run] "
    "[--no-run] [--again] [--quiet]\n\n"
    "Makes the runs of an experiment that are missing in the results file, then prints its table,\n"
    "each claim with observed value, band, PASS or FAIL, and the verdict. Settings given here "
    "come\n"
    "after the file's. Exit code 1 if a claim failed, or could not be judged for failed runs.\n\n"
    "  --quick    the part that the file says fits into a few minutes\n"
    "  --jobs N   so many runs at a time, on cores of their own (see `gradlag sweep --help`)\n"
    "  --dry-run  the runs, and which are there already\n"
    "  --no-run   no new runs: the table of what is there\n"
    "  --again    make all runs, finished or not\n"
    "  --quiet    no progress on stderr\n\n"
    "`gradlag list experiments` shows what is compiled in; docs/experiment-files.md the format.\n";

struct reproduce {
    bool quick, dry, no_run, again;
    struct plan_options how;
    struct settings more; /* of the command line */
};

/* *failed counts claims outside their band; those that this part does not measure are said to be
 * so. */
static status print_claims(const struct reproduction *w, bool quick, FILE *to, size_t *failed)
{
    static const char *const marks[] = {"PASS", "FAIL", "–   "};
    status result = OK;
    size_t counts[CLAIM_OPEN + 1] = {0};
    struct judged_claim *judged = NULL;
    if (w->e.claim_count == 0) {
        goto done;
    }
    TRY(memory_new(&judged, w->e.claim_count, sizeof *judged, "claims"));
    TRY(reproduction_judge(w, quick, judged));
    fprintf(to, "\nClaims\n");
    for (size_t i = 0; i < w->e.claim_count; i++) {
        const struct judged_claim *j = &judged[i];
        const struct cell *lacking = j->lacking;
        counts[j->outcome]++;
        fprintf(to, "%s  %s\n", marks[j->outcome], j->claim->text);
        if (j->outcome == CLAIM_OPEN) {
            fprintf(to, "      not measured in this part");
        } else if (lacking != NULL) {
            fprintf(to,
                    "      %s with %lld workers: of %u runs %u finished, %u diverged, %u failed",
                    lacking->arm->name, (long long)lacking->workers, lacking->planned,
                    lacking->finished, lacking->diverged, lacking->failed);
        } else {
            fprintf(to, "      observed %.2f, band [%g, %g]", j->value, j->low, j->high);
        }
        fprintf(to, "%s%s\n", j->claim->source != NULL ? "; source: " : "",
                j->claim->source != NULL ? j->claim->source : "");
    }
    *failed += counts[CLAIM_FAIL];
    fprintf(to, "%zu passed, %zu failed, %zu not measured\n", counts[CLAIM_PASS],
            counts[CLAIM_FAIL], counts[CLAIM_OPEN]);
done:
    memory_free(judged);
    return result;
}

static status make(struct plan *plan, const struct reproduce *r)
{
    status result = OK;
    if (!r->no_run) {
        launch_catch_signals();
        plan->again = r->again;
        TRY(plan_make(plan, &r->how, stdout));
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

static status lay_out_first(struct reproduction *w, const struct reproduce *r)
{
    status result = OK;
    TRY(reproduction_look_up(w, r->quick, r->again, &r->more));
    printf("%s%s: %s\n", w->e.name, r->quick ? " (the quick part)" : "", w->e.question);
    if (w->tuning.trials.count > 0) {
        print_counts("trials", &w->tuning.trials.plan, trials_to_come(&w->tuning.trials));
    }
    print_counts("runs", &w->plan, w->later);
done:
    return result;
}

/* Trials first, then what does not depend on other runs, then what is fitted to them. */
static status make_all(struct reproduction *w, const struct reproduce *r)
{
    status result = OK;
    for (size_t added = 1; added > 0;) {
        TRY(make(&w->tuning.trials.plan, r));
        TRY(trials_extend(&w->tuning.trials, &added));
        if (added > 0 && !r->again) {
            TRY(plan_look_up(&w->tuning.trials.plan));
        }
    }
    tuning_choose(&w->tuning);
    TRY(make(&w->plan, r));
    for (size_t before = SIZE_MAX; w->later > 0 && w->later < before;) {
        before = w->later;
        TRY(reproduction_lay_out(w, r->quick, &r->more));
        if (!r->again) {
            TRY(plan_look_up(&w->plan));
        }
        TRY(make(&w->plan, r));
    }
done:
    return result;
}

/* Of the whole experiment; its quick part is short on purpose, and its verdict says so. */
static void warn_of_few_seeds(const struct cells *c)
{
    size_t few = 0;
    for (size_t i = 0; i < c->count; i++) {
        few += c->at[i].planned < EXPERIMENT_SEEDS;
    }
    if (few > 0) {
        log_warning(
            "%s: %zu of %zu cells have fewer than %d seeds: differences there may be chance, "
            "and their intervals say little",
            c->experiment->name, few, c->count, EXPERIMENT_SEEDS);
    }
}

static status report(struct reproduction *w, const struct reproduce *r)
{
    status result = OK;
    size_t failed = 0, lost = failures(&w->tuning.trials.plan) + failures(&w->plan);
    TRY(cells_open(&w->cells, &w->e, &w->plan));
    if (!r->quick) {
        warn_of_few_seeds(&w->cells);
    }
    tuning_print(&w->tuning, stdout);
    printf("\n");
    cells_print(&w->cells, stdout);
    TRY(print_claims(w, r->quick, stdout, &failed));
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
    struct reproduction w = {0};
    TRY(reproduction_open(&w, name));
    TRY(lay_out_first(&w, r));
    if (r->dry) {
        plan_print(&w.tuning.trials.plan, stdout);
        plan_print(&w.plan, stdout);
        if (w.later > 0) {
            printf("to run              %zu runs at what these find\n", w.later);
        }
        goto done;
    }
    TRY(make_all(&w, r));
    TRY(report(&w, r));
done:
    reproduction_close(&w);
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
    TRY(plan_options_read(&r.how, &argc, argv));
    r.quick = command_flag(&argc, argv, "--quick");
    r.dry = command_flag(&argc, argv, "--dry-run");
    r.no_run = command_flag(&argc, argv, "--no-run");
    r.again = command_flag(&argc, argv, "--again");
    r.how.quiet = command_flag(&argc, argv, "--quiet");
    TRY(command_no_flags_left(argc, argv, "reproduce",
                              "--all, --quick, --jobs N, --oversubscribe, --dry-run, --no-run, "
                              "--again and --quiet"));
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
