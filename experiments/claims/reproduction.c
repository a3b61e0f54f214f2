#include "experiments/claims/reproduction.h"

#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "experiments/config/keys.h"
#include "experiments/print_columns.h"
#include "results/query/query.h"
#include "results/query/statistics.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- runs ---------------------------------------------------------------------------------------
 */

/* The uuid of the finished run that a fitted arm takes its pace from (owned); NULL: there is none.
 * A merge keeps the uuid, but may change the number. */
static char *run_to_fit(const struct reproduction *w, const struct arm *arm, int64_t column,
                        int64_t seed)
{
    for (const struct run_use *use = w->uses.at; use < w->uses.at + w->uses.count; use++) {
        const struct planned_run *r = &w->plan.runs[use->run];
        if (r->state == PLANNED_FINISHED && strcmp(use->arm->name, arm->fit) == 0 &&
            use->column == column && options_integer(r->settings, "seed") == seed) {
            char number[32], *uuid = NULL;
            snprintf(number, sizeof number, "run=%lld", (long long)r->run_id);
            if (query_value(options_text(r->settings, "results"),
                            "SELECT uuid FROM run WHERE id = :run", (const char *const[]){number},
                            1, &uuid) != OK)
                log_warning("arm %s: %s", arm->name, error_message());
            return uuid;
        }
    }
    return NULL;
}

/* Adds the tuned and fitted settings of the arm; false: they are not known yet. */
static bool add_dependent(const struct reproduction *r, const struct arm *arm, int64_t column,
                          int64_t seed, bool quick, struct settings *all)
{
    if (experiment_tune_space(arm, quick) != NULL) {
        const struct settings *tuned = tuning_settings(&r->tuning, arm, column);
        if (tuned == NULL)
            return false;
        settings_add_dotted_first(all, tuned);
    }
    if (arm->fit != NULL) {
        char *run = run_to_fit(r, arm, column, seed);
        struct settings fitted = {0};
        if (run == NULL)
            return false;
        settings_add(&fitted, "pace", "fit", r->e.file);
        settings_add(&fitted, "pace.run", run, r->e.file);
        settings_add_layer(all, &fitted);
        settings_free(&fitted);
        memory_free(run);
    }
    return true;
}

/* Adds a use once: the same runs are laid out again after other runs have ended. */
static void add_use(struct reproduction *w, size_t run, const struct arm *arm, int64_t column,
                    bool further)
{
    for (size_t i = 0; i < w->uses.count; i++) {
        const struct run_use *use = &w->uses.at[i];
        if (use->run == run && use->arm == arm && use->column == column)
            return;
    }
    *(struct run_use *)memory_append(&w->uses.at, &w->uses.count, sizeof *w->uses.at) =
        (struct run_use){.run = run, .arm = arm, .column = column, .further = further};
}

/* "async ×8 seed 1 one 10g": a title has the number of workers already. */
static void name_levels(const struct experiment *e, int64_t column, struct planned_run *r)
{
    for (size_t i = 0; i < e->axis_count; i++) {
        const struct experiment_axis *a = &e->axes[i];
        const size_t length = strlen(r->title);
        if (strcmp(a->name, "workers") != 0)
            snprintf(r->title + length, sizeof r->title - length, " %s",
                     a->levels[experiment_level(e, column, i)].name);
    }
}

static status add_run(struct reproduction *r, const struct arm *arm, int64_t column, int64_t seed,
                      bool further, bool quick, const struct settings *more)
{
    status result = OK;
    struct settings all = {0};
    options *o = NULL;
    experiment_settings(&r->e, arm, column, seed, quick, more, &all);
    if (!add_dependent(r, arm, column, seed, quick, &all)) {
        r->later++;
        goto done;
    }
    result = config_compose(&o, &all);
    if (result != OK) {
        char text[64];
        experiment_column_text(&r->e, column, text);
        result = error_add_context(result, "arm %s with %s", arm->name, text);
        goto done;
    }
    TRY(plan_choose_precision(&r->plan, o));
    const size_t before = r->plan.count, run = plan_find_or_add(&r->plan, &o);
    if (run == before)
        name_levels(&r->e, column, &r->plan.runs[run]);
    add_use(r, run, arm, column, further);
done:
    options_close(&o);
    settings_free(&all);
    return result;
}

/* Whether this part has the run. Single runs are numbered after the choices of the tuning. The
 * answer must not depend on the content of the results file, because each part has its own. */
static status is_of_part(struct reproduction *r, const struct arm *arm, int64_t column,
                         int64_t seed, bool quick, const struct settings *more, bool *out)
{
    status result = OK;
    struct settings all = {0};
    size_t position = 0;
    *out = r->part.of == 0;
    if (r->part.of > 0 && arm->fit != NULL) {
        r->fitted++;
    } else if (r->part.of > 0 && experiment_tune_space(arm, quick) != NULL) {
        *out = tuning_has(&r->tuning, arm, column);
    } else if (r->part.of > 0) {
        experiment_settings(&r->e, arm, column, seed, quick, more, &all);
        TRY(plan_position(&r->seen, &all, &position));
        *out = plan_part_has(&r->part, r->tuning.seen.count + position);
    }
done:
    settings_free(&all);
    return result;
}

status reproduction_lay_out(struct reproduction *r, bool quick, const struct settings *more)
{
    status result = OK;
    const struct experiment *e = &r->e;
    const struct int_list *columns = experiment_columns(e, quick);
    struct int_list seeds;
    bool wanted;
    experiment_seeds(e, quick, &seeds);
    r->later = r->fitted = 0;
    for (size_t s = 0; s < seeds.count; s++) {
        for (size_t w = 0; w < columns->count; w++) {
            for (size_t a = 0; a < e->arm_count; a++) {
                const struct arm *arm = &e->arms[a];
                if (!experiment_has(e, arm, columns->at[w], seeds.at[s], quick))
                    continue;
                TRY(is_of_part(r, arm, columns->at[w], seeds.at[s], quick, more, &wanted));
                if (wanted)
                    TRY(add_run(r, arm, columns->at[w], seeds.at[s], false, quick, more));
            }
        }
    }
done:
    free(seeds.at);
    return result;
}

/* Adds the runs of one column of the map with seeds that the experiment does not have. */
static status add_further(struct reproduction *r, const struct lead *lead, int64_t column,
                          const struct int_list *seeds, const struct settings *more)
{
    status result = OK;
    int64_t last = 0;
    for (size_t i = 0; i < seeds->count; i++)
        last = seeds->at[i] > last ? seeds->at[i] : last;
    for (size_t n = seeds->count; n < r->e.map_seeds; n++) {
        last++;
        TRY(add_run(r, lead->best->arm, column, last, true, false, more));
        TRY(add_run(r, lead->second->arm, column, last, true, false, more));
    }
done:
    return result;
}

/* A column gets further seeds when its own runs have ended, even if runs of other columns are
 * missing. */
status reproduction_add_seeds(struct reproduction *r, const struct settings *more)
{
    status result = OK;
    struct cells c = {0};
    struct int_list seeds = {0};
    if (r->e.map_seeds == 0 || r->part.of > 0 || r->has_further)
        goto done;
    TRY(cells_open(&c, &r->e, &r->plan, &r->uses, false));
    r->has_further = r->later == 0;
    experiment_seeds(&r->e, false, &seeds);
    for (size_t i = 0; i < c.column_count; i++) {
        struct lead lead;
        cells_lead(&c, c.columns[i], &lead);
        if (lead.best == NULL || lead.missing > 0)
            r->has_further = false;
        else if (lead.seeds <= r->e.map_seeds) /* false if it is NaN */
            TRY(add_further(r, &lead, c.columns[i], &seeds, more));
    }
    if (!r->plan.again)
        TRY(plan_look_up(&r->plan));
done:
    free(seeds.at);
    cells_close(&c);
    return result;
}

status reproduction_look_up(struct reproduction *r, bool quick, bool again,
                            const struct settings *more)
{
    status result = OK;
    TRY(experiment_check_override(&r->e, more));
    TRY(tuning_lay_out(&r->tuning, &r->e, quick, &r->part, more));
    for (size_t added = 1; added > 0 && !again;) {
        TRY(plan_look_up(&r->tuning.trials.plan));
        TRY(trials_extend(&r->tuning.trials, &added));
    }
    tuning_choose(&r->tuning);
    TRY(reproduction_lay_out(r, quick, more));
    if (!again) {
        TRY(plan_look_up(&r->plan));
        TRY(reproduction_lay_out(r, quick, more)); /* now with runs fitted to finished ones */
        TRY(plan_look_up(&r->plan));
        if (!quick)
            TRY(reproduction_add_seeds(r, more));
    }
    if (r->plan.count + r->later == 0 && r->part.of == 0)
        FAIL(ERROR_USAGE, "%s: no arm has a column; add one to the experiment or to an arm",
             r->e.file);
done:
    return result;
}

const char *reproduction_results(const struct reproduction *r)
{
    const struct plan *p = r->plan.count > 0 ? &r->plan : &r->tuning.trials.plan;
    return options_text(p->runs[0].settings, "results");
}

/* ---- claims -------------------------------------------------------------------------------------
 */

/* A wrong name in a claim must be found before the runs. */
static status check_claims(const struct experiment *e)
{
    status result = OK;
    for (size_t i = 0; i < e->claim_count; i++) {
        const struct claim *c = &e->claims[i];
        if ((c->value != NULL ? cells_check(e, c->value) : query_check(c->sql)) != OK) {
            result = error_add_context(ERROR_USAGE, "%s:%u", e->file, c->line);
            goto done;
        }
    }
done:
    return result;
}

/* The value without the runs of one seed. */
static status value_without(const struct cells *whole, const struct claim *c, int64_t seed,
                            double *out)
{
    status result = OK;
    struct cells part = {0};
    struct cells_reading reading = {.cells = &part};
    TRY(cells_without(&part, whole, seed));
    const struct measures m = cells_measures(&reading);
    TRY(expression_value(c->value, &m, out));
done:
    free(reading.seeds.at);
    cells_close(&part);
    return result;
}

/* The jackknife: the pseudo-value of a seed is n v − (n − 1) v', where v' is the value without that
 * seed. Pseudo-values are treated as independent observations. If a cell has fewer seeds than the
 * others, they do not underestimate its variance, but Student's t must have the degrees of freedom
 * of that cell. For means and sums of means, the mean of the pseudo-values equals v. If it lies
 * outside the interval around v (the minimum of two nearly equal means), v is too far from linear
 * for a jackknife. */
static status interval_of(struct judged_claim *j, const struct cells_reading *read)
{
    status result = OK;
    struct sample pseudo = {0};
    const struct int_list *seeds = &read->seeds;
    const double n = (double)seeds->count, rounding = 1e-9 * (1 + fabs(j->value));
    for (size_t i = 0; i < seeds->count && read->fewest > 1; i++) {
        double without;
        TRY(value_without(read->cells, j->claim, seeds->at[i], &without));
        sample_add(&pseudo, n * j->value - (n - 1) * without);
    }
    if (pseudo.n < 2 || pseudo.n < seeds->count)
        goto done;
    const double half = student_95(read->fewest - 1) * sample_deviation(&pseudo) / sqrt(n);
    j->no_jackknife = fabs(sample_mean(&pseudo) - j->value) > half + rounding;
    if (!j->no_jackknife)
        j->interval = half;
done:
    return result;
}

/* Sets reading->incomplete if runs that the claim reads have not finished. */
static status claim_value(const struct claim *c, struct cells_reading *reading, const char *results,
                          double *value)
{
    if (c->value != NULL) {
        struct measures m = cells_measures(reading);
        return expression_value(c->value, &m, value);
    }
    bool known = false;
    status result = OK;
    if (access(results, F_OK) == 0) /* without a file nothing is measured */
        result = query_single_number(results, c->sql, value, &known);
    *value = known ? *value : NAN;
    return result;
}

/* Failed runs fail a claim, and so do finished runs without a figure; runs that were not executed
 * leave it open. */
static bool is_open(const struct judged_claim *j)
{
    const struct cell *c = j->incomplete;
    const bool lacks_runs =
        c != NULL ? c->finished + c->diverged + c->failed < c->planned : j->absent;
    return isnan(j->value) && (lacks_runs || (c == NULL && j->single != NULL));
}

static void set_outcome(struct judged_claim *j)
{
    const bool all_in =
        j->value - j->interval >= j->low && j->value + j->interval <= j->high; /* false for NaN */
    const bool in = j->value >= j->low && j->value <= j->high;
    const bool tested = j->claim->equivalence && (isfinite(j->interval) || j->no_jackknife);
    j->outcome = is_open(j) ? CLAIM_OPEN : (tested ? all_in : in) ? CLAIM_PASS : CLAIM_FAIL;
    j->borderline =
        j->outcome == CLAIM_PASS && !all_in && (isfinite(j->interval) || j->claim->equivalence);
}

status reproduction_judge(const struct reproduction *r, bool quick, struct judged_claim *out)
{
    status result = OK;
    struct cells_reading reading = {0};
    const bool lacks_runs = plan_missing(&r->plan) + r->later > 0;
    TRY(query_begin(reproduction_results(r)));
    for (size_t i = 0; i < r->e.claim_count; i++) {
        const struct claim *c = &r->e.claims[i];
        struct judged_claim *j = &out[i];
        reading = (struct cells_reading){.cells = &r->cells};
        *j = (struct judged_claim){.claim = c,
                                   .value = NAN,
                                   .interval = NAN,
                                   .low = quick ? c->quick_low : c->low,
                                   .high = quick ? c->quick_high : c->high};
        TRY(claim_value(c, &reading, reproduction_results(r), &j->value));
        if (c->value == NULL && lacks_runs)
            j->value = NAN; /* the SQL may read runs that are not there yet */
        j->incomplete = reading.incomplete;
        j->delayed = reading.delayed;
        j->without_value = reading.without_value;
        j->single = reading.single;
        j->absent = c->value != NULL ? reading.absent : quick || lacks_runs;
        if (c->value != NULL && isfinite(j->value))
            TRY(interval_of(j, &reading));
        set_outcome(j);
        free(reading.seeds.at);
        reading.seeds.at = NULL;
    }
done:
    free(reading.seeds.at);
    query_end();
    return result;
}

void reproduction_explain(const struct judged_claim *j, bool by_label, struct text *out)
{
    const struct cell *c = j->incomplete;
    if (c == NULL) {
        if (j->outcome == CLAIM_OPEN && j->single != NULL)
            text_add(out,
                     "not measured: %s with %s has too few seeds (a deviation or an interval needs "
                     "two, a comparison a common one)",
                     by_label ? j->single->arm->label : j->single->arm->name, j->single->title);
        else if (j->outcome == CLAIM_OPEN)
            text_add(out, j->claim->value == NULL ? "not measured: runs are missing"
                                                  : "not measured in this part");
        else if (isnan(j->value) && j->without_value != NULL)
            text_add(out,
                     "no value: in a finished run of %s with %s the figure is infinite (never "
                     "reached) or missing",
                     by_label ? j->without_value->arm->label : j->without_value->arm->name,
                     j->without_value->title);
        else if (isnan(j->value) && j->claim->value == NULL)
            text_add(out, "no value: the SQL yields none");
        return;
    }
    const char *arm = by_label ? c->arm->label : c->arm->name;
    unsigned ended = c->finished + c->diverged + c->failed;
    if (j->outcome == CLAIM_OPEN) {
        text_add(out, "not measured: %u of %u run%s of %s with %s ended", ended, c->planned,
                 plural(c->planned), arm, c->title);
    } else {
        text_add(out, "%s with %s: of %u run%s %u finished, %u diverged, %u failed", arm, c->title,
                 c->planned, plural(c->planned), c->finished, c->diverged, c->failed);
    }
}

void reproduction_remark(const struct judged_claim *j, bool by_label, struct text *out)
{
    const struct cell *c = j->delayed;
    if (j->borderline || j->no_jackknife)
        text_add(out,
                 j->no_jackknife ? "no interval: the jackknife does not fit this value; compare "
                                   "arms one by one%s"
                 : isfinite(j->interval)
                     ? "borderline: not all of its 95 %% interval is in the band%s"
                     : "borderline: too few seeds to test equivalence%s",
                 c != NULL ? "; " : "");
    if (c != NULL) {
        text_add(out,
                 "%s with %s: in %u of %u runs staleness spreads wider than the pace explains; "
                 "other work on the machine delayed the steps",
                 by_label ? c->arm->label : c->arm->name, c->title, c->staleness_spread_too_wide,
                 c->finished);
    }
}

/* ---- opening ------------------------------------------------------------------------------------
 */

/* Columns that differ only in a label, the order in the queue or a limit of time share runs. */
static bool is_shared(const char *key)
{
    static const char *const keys[] = {"results", "tag", "priority", "retries", "timeout_s"};
    for (size_t i = 0; i < COUNT_OF(keys); i++)
        if (strcmp(keys[i], key) == 0)
            return true;
    return false;
}

static void vary(struct reproduction *r, const char *key)
{
    if (experiment_varies(&r->e, key) && !is_shared(key)) {
        plan_vary(&r->plan, key);
        plan_vary(&r->tuning.trials.plan, key);
    }
}

status reproduction_open(struct reproduction *out, const char *name_or_path)
{
    status result = OK;
    *out = (struct reproduction){0};
    TRY(experiment_open(&out->e, name_or_path));
    TRY(check_claims(&out->e));
    for (const struct option *o = global_keys; o->key != NULL; o++)
        vary(out, o->key);
    vary(out, "device.index");
done:
    if (result != OK)
        reproduction_close(out);
    return result;
}

void reproduction_close(struct reproduction *r)
{
    cells_close(&r->cells);
    free(r->uses.at);
    plan_close(&r->plan);
    plan_close(&r->seen);
    tuning_close(&r->tuning);
    experiment_close(&r->e);
}
