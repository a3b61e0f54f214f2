#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "experiments/command.h"

#include "experiments/claims/scoreboard.h"
#include "experiments/run/launch.h"
#include "experiments/print_columns.h"
#include "experiments/claims/reproduction.h"
#include "worker/cpu/onednn_instructions.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The built-in experiments give the same bits, and thus the figures of the board, on each x86
 * processor that has this set. */
#define BOARD_INSTRUCTIONS "AVX2"

const char command_reproduce_help[] =
    "gradlag reproduce NAME|FILE.yaml [key=value…] [--quick] [--jobs N] [--dry-run] [--no-run]\n"
    "                  [--again] [--quiet] [--markdown] [--part K/N]\n"
    "gradlag reproduce --all …\n\n"
    "Runs the missing runs of an experiment, then prints its table, the observed value, band and\n"
    "PASS or FAIL of each claim, and the verdict. Settings on the command line override the\n"
    "file's; keys that its arms or axes decide are refused. The exit code is 1 if a claim or a\n"
    "run failed.\n\n"
    "  --quick    only the quick part of the experiment, which takes a few minutes\n"
    "  --jobs N   N runs in parallel, each on its own cores (see `gradlag sweep --help`)\n"
    "  --oversubscribe  let parallel runs share cores\n"
    "  --part K/N only the K-th of N parts of the runs, without a verdict. Give the same command\n"
    "             on N machines, each with its own results=; then `gradlag merge` and `gradlag\n"
    "             reproduce` with the merged file. One part does the tuning of an arm in\n"
    "             one column; arms fitted to other arms run with the merged file\n"
    "  --dry-run  list the runs, and which of them the results file has already\n"
    "  --no-run   start no runs; judge the recorded ones\n"
    "  --again    run everything again, finished or not\n"
    "  --quiet    no progress on stderr\n"
    "  --markdown print tables, claims and the file's notes as Markdown on stdout\n"
    "  --all      every built-in experiment, then one board of all verdicts (with --markdown the\n"
    "             board comes first: docs/reproduction.md). A claim without runs is left open. If\n"
    "             a dataset is missing (CIFAR-10), the next experiment follows; the error is\n"
    "             printed at the end\n\n"
    "Built-in experiments compute with AVX2 on processors that have more, for the same figures\n"
    "everywhere. ONEDNN_MAX_CPU_ISA=ALL, or a setting of precision, lifts that limit.\n\n"
    "`gradlag list experiments` lists the built-in experiments; docs/experiment-files.md\n"
    "describes the format of FILE.yaml.\n\n"
    "  gradlag reproduce stale-gradients --quick\n";

struct reproduce {
    bool quick, dry, no_run, again, markdown;
    struct plan_options how;
    struct settings more; /* of the command line */
    struct scoreboard board;
    FILE *info; /* counts and progress: stdout; stderr with --markdown */
    FILE *to;   /* tables and verdicts */
};

/* Claims about arms that the quick part leaves out are only counted. */
static void print_claims(const struct reproduction *w, const struct judged_claim *judged, FILE *to)
{
    size_t counts[CLAIM_OUTCOMES] = {0};
    if (w->e.claim_count == 0)
        return;
    fprintf(to, "\nClaims\n");
    for (size_t i = 0; i < w->e.claim_count; i++) {
        const struct judged_claim *j = &judged[i];
        counts[j->outcome]++;
        if (j->outcome == CLAIM_OPEN && j->incomplete == NULL && j->single == NULL &&
            j->claim->value != NULL)
            continue;
        print_padded(to, scoreboard_mark(j->outcome), 6);
        bool known = j->incomplete == NULL && j->outcome != CLAIM_OPEN;
        fprintf(to, "%s\n      %s", j->claim->text, known ? "observed " : "");
        scoreboard_print_observed(j, to);
        if (known)
            fprintf(to, ", band [%g, %g]", j->low, j->high);
        fprintf(to, "%s%s\n", j->claim->source != NULL ? "; source: " : "",
                j->claim->source != NULL ? j->claim->source : "");
    }
    fprintf(to, "%zu passed, %zu failed, %zu not measured\n", counts[CLAIM_PASS],
            counts[CLAIM_FAIL], counts[CLAIM_OPEN]);
}

static status run_plan(struct plan *plan, const struct reproduce *r)
{
    status result = OK;
    if (!r->no_run) {
        launch_catch_signals();
        plan->again = r->again;
        TRY(plan_execute(plan, &r->how, r->info));
    }
done:
    return result;
}

static void print_counts(const char *what, const struct plan *plan, size_t later, FILE *to)
{
    const size_t count = plan->count + later, open = plan_missing(plan) + plan_failed(plan);
    fprintf(to, "%zu %s%s: %zu to make, %zu there already\n", count, what, plural(count),
            open + later, plan->count - open);
    fflush(to);
}

static status lay_out(struct reproduction *w, const struct reproduce *r)
{
    status result = OK;
    TRY(reproduction_look_up(w, r->quick, r->again, &r->more));
    if (!r->no_run) {
        TRY(plan_check_files(&w->tuning.trials.plan));
        TRY(plan_check_files(&w->plan));
    }
    fprintf(r->info, "%s%s: %s\n", w->e.name, r->quick ? " (the quick part)" : "", w->e.question);
    if (w->tuning.trials.count > 0)
        print_counts("trial", &w->tuning.trials.plan, trials_remaining_runs(&w->tuning.trials),
                     r->info);
    print_counts("run", &w->plan, w->later, r->info);
done:
    return result;
}

/* The order: trials of a tuning, runs that depend on no others, runs fitted to those, runs with
 * further seeds of a map. */
static status run_all(struct reproduction *w, const struct reproduce *r)
{
    status result = OK;
    for (size_t added = 1; added > 0;) {
        TRY(run_plan(&w->tuning.trials.plan, r));
        TRY(trials_extend(&w->tuning.trials, &added));
        if (added > 0 && !r->again)
            TRY(plan_look_up(&w->tuning.trials.plan));
    }
    tuning_choose(&w->tuning);
    TRY(run_plan(&w->plan, r));
    for (size_t before = SIZE_MAX; w->later > 0 && w->later < before;) {
        before = w->later;
        TRY(reproduction_lay_out(w, r->quick, &r->more));
        if (!r->again)
            TRY(plan_look_up(&w->plan));
        TRY(run_plan(&w->plan, r));
    }
    if (!r->quick) {
        TRY(reproduction_add_seeds(w, &r->more));
        TRY(run_plan(&w->plan, r));
    }
done:
    return result;
}

/* The quick part gets no warning, because it is short on purpose. */
static void warn_of_few_seeds(const struct cells *c)
{
    size_t few = 0;
    for (size_t i = 0; i < c->count; i++)
        few += c->at[i].planned < EXPERIMENT_SEEDS;
    if (few > 0) {
        log_warning("%s: %zu of %zu cells have fewer than %d seeds; differences between them may "
                    "be chance, and their intervals are unreliable",
                    c->experiment->name, few, c->count, EXPERIMENT_SEEDS);
    }
}

static status report(struct reproduction *w, struct reproduce *r)
{
    status result = OK;
    struct judged_claim *judged = NULL;
    size_t lost = plan_failed(&w->tuning.trials.plan) + plan_failed(&w->plan);
    TRY(cells_open(&w->cells, &w->e, &w->plan, &w->uses, r->quick));
    if (!r->quick)
        warn_of_few_seeds(&w->cells);
    TRY(memory_new(&judged, w->e.claim_count + 1, sizeof *judged, "claims"));
    TRY(reproduction_judge(w, r->quick, judged));
    TRY(scoreboard_add(&r->board, w, judged));
    if (r->markdown) {
        scoreboard_print_experiment(w, r->quick, judged, r->to);
    } else {
        tuning_print(&w->tuning, r->to);
        fprintf(r->to, "\n");
        cells_print(&w->cells, r->to);
        print_claims(w, judged, r->to);
        verdict_print(&w->cells, r->to);
    }
    size_t failed = r->board.lines[r->board.count - 1].claims[CLAIM_FAIL];
    if (failed > 0 && lost == 0) {
        FAIL(ERROR_OTHER, "%s: %zu claim%s failed; `gradlag show RUN` shows details of a run",
             w->e.name, failed, plural(failed));
    }
    if (lost > 0) {
        FAIL(ERROR_OTHER,
             "%s: %zu claim%s and %zu run%s failed; `gradlag show RUN` shows details of a run",
             w->e.name, failed, plural(failed), lost, plural(lost));
    }
done:
    memory_free(judged);
    return result;
}

/* The runs of one part are too few for a verdict. */
static status report_part(const struct reproduction *w, const struct reproduce *r)
{
    status result = OK;
    TRY(plan_print_outcome(&w->plan, &r->how, r->info));
    TRY(plan_check_failed(&w->tuning.trials.plan));
    TRY(plan_check_failed(&w->plan));
    if (w->fitted > 0) {
        fprintf(
            r->info,
            "%zu run%s fitted to other runs belong%s to no part: run `gradlag reproduce` with the "
            "merged file\n",
            w->fitted, plural(w->fitted), w->fitted == 1 ? "s" : "");
    }
done:
    return result;
}

static status reproduce(const char *name, struct reproduce *r)
{
    status result = OK;
    struct reproduction w = {0};
    TRY(reproduction_open(&w, name));
    w.part = r->how.part;
    w.plan.reads_only = w.tuning.trials.plan.reads_only = r->no_run;
    TRY(lay_out(&w, r));
    if (r->dry) {
        plan_print(&w.tuning.trials.plan, r->info);
        plan_print(&w.plan, r->info);
        if (w.later > 0) {
            fprintf(r->info, "to run              later, with what these runs measure: %zu run%s\n",
                    w.later, plural(w.later));
        }
        goto done;
    }
    TRY(run_all(&w, r));
    TRY(r->how.part.of > 0 ? report_part(&w, r) : report(&w, r));
done:
    reproduction_close(&w);
    return result;
}

/* Returns the first error that is not a failed claim (ERROR_OTHER); else ERROR_OTHER or OK. */
static status reproduce_each(struct reproduce *r)
{
    status result = OK, worst = OK;
    struct text message = {0};
    char name[64];
    for (size_t i = 0; experiment_at(i, name); i++) {
        result = reproduce(name, r);
        if (result == STOPPED || result == ERROR_RESULTS)
            goto done;
        if (result != OK) {
            worst = worst == OK || worst == ERROR_OTHER ? result : worst;
            text_add(&message, "%s%s", message.length > 0 ? "; " : "", error_message());
        }
        fprintf(r->info, "\n");
    }
    result = worst == OK ? OK : error_set(worst, __FILE__, __LINE__, "%s", message.at);
done:
    text_free(&message);
    return result;
}

/* With --markdown the board comes first, so the experiments are buffered until it is complete. */
static status reproduce_all(struct reproduce *r)
{
    char *page = NULL;
    size_t length = 0;
    if (r->markdown) {
        r->to = open_memstream(&page, &length);
        REQUIRE(r->to != NULL);
    }
    status result = reproduce_each(r);
    if (r->markdown)
        REQUIRE(fclose(r->to) == 0); /* a stream in memory cannot fail */
    if (r->markdown && !r->dry)
        scoreboard_print_page(&r->board, page, stdout);
    else if (r->board.count > 0)
        scoreboard_print(&r->board, stdout);
    free(page);
    return result;
}

/* --no-run would judge a mistyped file as one without runs. */
static status require_results(const struct settings *s)
{
    status result = OK;
    const char *path = settings_find(s, "results");
    if (path != NULL && access(path, F_OK) != 0) {
        FAIL(ERROR_RESULTS,
             "reproduce: %s: %s; give results=FILE the path of a results file, or leave out "
             "--no-run to make one",
             path, strerror(errno));
    }
done:
    return result;
}

status command_reproduce(int argc, char **argv)
{
    status result = OK;
    struct reproduce r = {.info = stdout, .to = stdout};
    bool all = command_flag(&argc, argv, "--all");
    TRY(plan_options_read(&r.how, &argc, argv));
    r.quick = command_flag(&argc, argv, "--quick");
    r.dry = command_flag(&argc, argv, "--dry-run");
    r.no_run = command_flag(&argc, argv, "--no-run");
    r.again = command_flag(&argc, argv, "--again");
    r.how.quiet = command_flag(&argc, argv, "--quiet");
    r.markdown = command_flag(&argc, argv, "--markdown");
    r.info = r.markdown ? stderr : stdout;
    TRY(command_no_flags_left(argc, argv, "reproduce",
                              "--all, --quick, --jobs N, --oversubscribe, --part K/N, --dry-run, "
                              "--no-run, --again, --quiet and --markdown"));
    if (r.how.part.of > 0 && (r.no_run || r.markdown)) {
        FAIL(ERROR_USAGE,
             "reproduce: --part only runs and judges nothing, so it cannot be combined with %s; "
             "merge the results files of all parts (`gradlag merge`), then run `gradlag reproduce` "
             "with the merged file",
             r.no_run ? "--no-run" : "--markdown");
    }
    if (r.no_run && r.again) {
        FAIL(
            ERROR_USAGE,
            "reproduce: --again runs everything again and --no-run runs nothing; give one of them");
    }
    if (!all && (argc == 0 || (strchr(argv[0], '=') != NULL && !settings_is_file(argv[0]))))
        FAIL(ERROR_USAGE, "reproduce: name an experiment; `gradlag list experiments` lists them");
    int first = all ? 0 : 1;
    TRY(settings_read_arguments(&r.more, argc - first, argv + first));
    TRY(settings_refuse_internal(&r.more));
    if (r.no_run && !r.dry)
        TRY(require_results(&r.more));
    if ((all || !settings_is_file(argv[0])) && settings_find(&r.more, "precision") == NULL)
        onednn_limit(BOARD_INSTRUCTIONS);
    TRY(all ? reproduce_all(&r) : reproduce(argv[0], &r));
done:
    scoreboard_close(&r.board);
    settings_free(&r.more);
    return result;
}
