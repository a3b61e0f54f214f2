#include "experiments/claims/claims_for_report.h"

#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "experiments/claims/reproduction.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One experiment, planned as a whole (part[0]) and as its quick part (part[1]). */
struct report_claim_set {
    struct reproduction part[2];
    bool quick; /* part[1] is judged */
    struct report_arm *arms;
    struct report_expected *expected; /* of all arms, one after the other */
    struct report_claim *claims;
    char *verdict, *tuning;      /* free() */
    struct report_map_cell *map; /* [map_size] */
    struct text *panels;         /* [map_size] */
    size_t map_size;
    struct report_panel *runs; /* [run_count] */
    struct text *names;        /* [run_count]: of the panels of `runs` */
    size_t run_count;
    struct text *whys;     /* one per claim */
    struct text described; /* the part that was judged */
};

/* ---- which part ---------------------------------------------------------------------------------
 */

static size_t ended(const struct plan *p)
{
    return p->count - plan_missing(p);
}

/* The share of the runs that have ended. */
static double share_ended(const struct reproduction *r)
{
    return (double)ended(&r->plan) / (double)(r->plan.count + r->later);
}

/* If all arms have `quick: false`, there is no quick part. */
static bool has_quick_part(const struct experiment *e)
{
    const struct int_list *columns = experiment_columns(e, true);
    struct int_list seeds;
    bool any = false;
    experiment_seeds(e, true, &seeds);
    for (size_t a = 0; a < e->arm_count; a++)
        for (size_t i = 0; i < columns->count * seeds.count && !any; i++)
            any = experiment_has(e, &e->arms[a], columns->at[i / seeds.count],
                                 seeds.at[i % seeds.count], true);
    free(seeds.at);
    return any;
}

static status lay_out(struct report_claim_set *j, const char *name, const char *results)
{
    status result = OK;
    struct settings more = {0};
    settings_add(&more, "results", results, COMMAND_LINE);
    for (int quick = 0; quick <= 1; quick++) {
        struct reproduction *part = &j->part[quick];
        TRY(reproduction_open(part, name));
        part->plan.reads_only = part->tuning.trials.plan.reads_only = true;
        if (quick && !has_quick_part(&part->e))
            break;
        TRY(reproduction_look_up(part, quick, false, &more));
    }
    /* Compare the numbers of ended runs, too: most runs of the quick part also belong to the
     * whole. */
    j->quick = j->part[1].plan.count > 0 && share_ended(&j->part[1]) > share_ended(&j->part[0]) &&
               ended(&j->part[1].plan) >= ended(&j->part[0].plan);
    const struct reproduction *r = &j->part[j->quick];
    text_add(&j->described, "%s: %zu of its %zu runs have ended",
             j->quick ? "the quick part" : "the whole experiment", ended(&r->plan),
             r->plan.count + r->later);
    if (ended(&r->plan) == 0)
        text_add(&j->described, "; the runs in the file have other settings than the experiment");
done:
    settings_free(&more);
    return result;
}

/* ---- texts --------------------------------------------------------------------------------------
 */

/* The output of `print`, without its heading. */
static char *printed(const char *heading, const void *what, void (*print)(const void *, FILE *))
{
    char *text = NULL;
    size_t length = 0, skipped = strlen(heading);
    FILE *memory = open_memstream(&text, &length);
    REQUIRE(memory != NULL);
    print(what, memory);
    REQUIRE(fclose(memory) == 0);
    if (strncmp(text, heading, skipped) == 0)
        memmove(text, text + skipped, length - skipped + 1);
    return text;
}

static void print_verdict(const void *cells, FILE *to)
{
    verdict_print(cells, to);
}

static void print_tuning(const void *tuning, FILE *to)
{
    tuning_print(tuning, to);
}

static void describe_claim(const struct judged_claim *j, struct text *why, struct report_claim *out)
{
    static const enum report_outcome outcomes[] = {
        [CLAIM_PASS] = REPORT_PASS, [CLAIM_FAIL] = REPORT_FAIL, [CLAIM_OPEN] = REPORT_OPEN};
    *out = (struct report_claim){.text = j->claim->text,
                                 .source = j->claim->source,
                                 .outcome = outcomes[j->outcome],
                                 .observed = j->value,
                                 .interval = j->interval,
                                 .low = j->low,
                                 .high = j->high};
    reproduction_explain(j, true, why);
    if (why->length > 0 && j->delayed != NULL)
        text_add(why, "; ");
    reproduction_remark(j, true, why);
    out->why = why->at;
}

/* The report shows expected values of experiments with a single axis. */
static size_t expected_count(const struct experiment *e, const struct arm *arm)
{
    return e->axis != NULL ? arm->expected_count : 0;
}

static status describe_arms(struct report_claim_set *j, const struct experiment *e)
{
    status result = OK;
    size_t count = 0;
    for (size_t i = 0; i < e->arm_count; i++)
        count += expected_count(e, &e->arms[i]);
    TRY(memory_new(&j->arms, e->arm_count, sizeof *j->arms, "arms"));
    TRY(memory_new(&j->expected, count, sizeof *j->expected, "arms"));
    count = 0;
    for (size_t i = 0; i < e->arm_count; i++) {
        const struct arm *arm = &e->arms[i];
        j->arms[i] = (struct report_arm){.name = arm->name,
                                         .label = arm->label,
                                         .expected = &j->expected[count],
                                         .expected_count = expected_count(e, arm)};
        for (size_t k = 0; k < expected_count(e, arm); k++) {
            j->expected[count++] = (struct report_expected){.column = arm->expected[k].column,
                                                            .value = arm->expected[k].value};
        }
    }
done:
    return result;
}

static const char *level_name(const struct experiment *e, int64_t column, size_t axis)
{
    return e->axes[axis].levels[experiment_level(e, column, axis)].name;
}

/* Adds the level of an axis: "alike", or "delay=1" if levels are values. */
static void add_level(const struct experiment *e, int64_t column, size_t axis, struct text *out)
{
    const struct experiment_axis *a = &e->axes[axis];
    text_add(out, "%s%s%s%s", out->length > 0 ? ", " : "", a->named ? "" : a->name,
             a->named ? "" : "=", level_name(e, column, axis));
}

/* The levels of a column, as a place in the report's map. */
static void place_column(const struct experiment *e, int64_t column, struct text *panel,
                         struct report_map_cell *out)
{
    const size_t n = e->axis_count;
    for (size_t i = 0; i + 2 < n; i++)
        add_level(e, column, i, panel);
    out->panel = panel->at != NULL ? panel->at : "";
    out->row = n > 1 ? level_name(e, column, n - 2) : "";
    out->column = level_name(e, column, n - 1);
}

static void describe_lead(const struct cells *c, int64_t column, struct report_map_cell *out)
{
    struct lead lead;
    cells_lead(c, column, &lead);
    out->ahead = out->best_side = -1;
    out->margin = lead.margin.mean;
    out->interval = lead.margin.interval;
    if (lead.ahead == NULL)
        return;
    out->best_side = (int)(lead.ahead - c->experiment->sides);
    out->ahead = lead.decided ? out->best_side : -1;
    out->seeds = lead.margin.n;
    out->best = lead.best->arm->label;
    out->other = lead.second->arm->label;
    out->arms = lead.arms;
    out->missing = lead.missing;
}

/* Whether a cell with the column's level of this axis was measured. */
static bool is_level_measured(const struct experiment *e, const bool *measured, size_t count,
                              int64_t column, size_t axis)
{
    for (size_t i = 0; i < count; i++)
        if (measured[i] &&
            experiment_level(e, (int64_t)i, axis) == experiment_level(e, column, axis))
            return true;
    return false;
}

/* Data with classes have a cross-entropy, in nats, and an accuracy. */
static const char *unit_of_margin(const struct cells *c)
{
    bool classes = false;
    for (size_t i = 0; i < c->count; i++)
        classes = classes || isfinite(c->at[i].accuracy) || isfinite(c->at[i].validation);
    switch (c->metric) {
    case METRIC_ACCURACY:
        return "points of test accuracy";
    case METRIC_VALIDATION_LOSS:
        return classes ? "nats of validation loss" : "units of validation loss";
    case METRIC_LOSS:
        break;
    }
    return classes ? "nats of test loss" : "units of test loss";
}

/* Describes the columns whose levels each have a measured cell. The quick part measures few
 * levels. */
static status describe_map(struct report_claim_set *j, const struct experiment *e,
                           struct report_map *out)
{
    status result = OK;
    const struct cells *c = &j->part[j->quick].cells;
    bool *measured = NULL;
    size_t count = 1;
    for (size_t i = 0; i < e->axis_count; i++)
        count *= e->axes[i].count;
    if (e->side_count == 0 || e->side_count > REPORT_SIDES || e->axis_count == 0)
        goto done;
    TRY(memory_new(&measured, count, sizeof *measured, "map"));
    TRY(memory_new(&j->map, count, sizeof *j->map, "map"));
    TRY(memory_new(&j->panels, count, sizeof *j->panels, "map"));
    j->map_size = count;
    for (size_t i = 0; i < count; i++) {
        describe_lead(c, (int64_t)i, &j->map[i]);
        measured[i] = j->map[i].best_side >= 0;
    }
    for (size_t i = 0; i < count; i++) {
        bool shown = true;
        for (size_t axis = 0; axis < e->axis_count; axis++)
            shown = shown && is_level_measured(e, measured, count, (int64_t)i, axis);
        if (!shown)
            continue;
        const size_t at = out->cell_count++;
        j->map[at] = j->map[i];
        place_column(e, (int64_t)i, &j->panels[at], &j->map[at]);
    }
    for (size_t i = 0; i < e->side_count; i++)
        out->sides[i] = e->sides[i].name;
    out->side_count = e->side_count;
    out->by_loss = c->metric != METRIC_ACCURACY;
    out->unit = unit_of_margin(c);
    out->column_axis = e->axes[e->axis_count - 1].name;
    out->cells = j->map;
done:
    memory_free(measured);
    return result;
}

static bool has_whole_numbers(const struct experiment_axis *a)
{
    bool whole = !a->named;
    for (size_t i = 0; i < a->count; i++)
        whole = whole && a->levels[i].name[strspn(a->levels[i].name, "0123456789")] == '\0';
    return whole;
}

/* The key of the columns of the plots: `workers`, or else the last axis of whole numbers. NULL:
 * there is none. */
static const char *plot_axis(const struct experiment *e)
{
    const char *found = e->axis;
    for (size_t i = 0; i < e->axis_count; i++) {
        if (strcmp(e->axes[i].name, "workers") == 0)
            return "workers";
        if (has_whole_numbers(&e->axes[i]))
            found = e->axes[i].name;
    }
    return found;
}

static int by_run_and_name(const void *a, const void *b)
{
    const struct report_panel *x = a, *y = b;
    return x->run != y->run ? (x->run > y->run) - (x->run < y->run) : strcmp(x->name, y->name);
}

/* Lists the panel of each run that is in the file. A run that columns share may be in several
 * panels. */
static status describe_panels(struct report_claim_set *j, struct report_experiment *out)
{
    status result = OK;
    const struct reproduction *r = &j->part[j->quick];
    const struct experiment *e = &r->e;
    if (out->axis == NULL || e->axis_count < 2)
        goto done;
    TRY(memory_new(&j->runs, r->uses.count, sizeof *j->runs, "panels"));
    TRY(memory_new(&j->names, r->uses.count, sizeof *j->names, "panels"));
    for (size_t i = 0; i < r->uses.count; i++) {
        const struct run_use *u = &r->uses.at[i];
        struct text *name = &j->names[j->run_count];
        if (r->plan.runs[u->run].run_id == 0)
            continue;
        for (size_t k = 0; k < e->axis_count; k++)
            if (strcmp(e->axes[k].name, out->axis) != 0)
                add_level(e, u->column, k, name);
        j->runs[j->run_count++] =
            (struct report_panel){.run = r->plan.runs[u->run].run_id, .name = name->at};
    }
    qsort(j->runs, j->run_count, sizeof *j->runs, by_run_and_name);
    out->panels = j->runs;
    out->panel_count = j->run_count;
done:
    return result;
}

static status describe(struct report_claim_set *j, struct report_experiment *out)
{
    status result = OK;
    struct reproduction *r = &j->part[j->quick];
    const struct experiment *e = &r->e;
    struct judged_claim *judged = NULL;
    TRY(memory_new(&judged, e->claim_count, sizeof *judged, "claims"));
    TRY(memory_new(&j->claims, e->claim_count, sizeof *j->claims, "claims"));
    TRY(memory_new(&j->whys, e->claim_count, sizeof *j->whys, "claims"));
    TRY(cells_open(&r->cells, e, &r->plan, &r->uses, j->quick));
    TRY(reproduction_judge(r, j->quick, judged));
    for (size_t i = 0; i < e->claim_count; i++)
        describe_claim(&judged[i], &j->whys[i], &j->claims[i]);
    TRY(describe_arms(j, e));
    j->verdict = printed("\nVerdict\n", &r->cells, print_verdict);
    j->tuning = printed("\nTuned on the validation split\n", &r->tuning, print_tuning);
    *out = (struct report_experiment){.name = e->name,
                                      .question = e->question,
                                      .by_loss = e->metric != METRIC_ACCURACY,
                                      .of_validation = e->metric == METRIC_VALIDATION_LOSS,
                                      .source = e->source,
                                      .axis = plot_axis(e),
                                      .part = j->described.at,
                                      .verdict = j->verdict,
                                      .discussion = e->discussion,
                                      .tuning = j->tuning,
                                      .arms = j->arms,
                                      .arm_count = e->arm_count,
                                      .claims = j->claims,
                                      .claim_count = e->claim_count};
    TRY(describe_map(j, e, &out->map));
    TRY(describe_panels(j, out));
done:
    memory_free(judged);
    return result;
}

/* ---- which experiments --------------------------------------------------------------------------
 */

struct names {
    char **at;
    size_t count;
    const char *only;
};

static void add_name(void *context, const char *name)
{
    struct names *n = context;
    if (n->only != NULL && strcmp(n->only, name) != 0)
        return;
    char **copy = memory_append(&n->at, &n->count, sizeof *n->at);
    *copy = text_copy(name);
}

/* The names of the experiments in the user's files. */
static status read_names(struct names *out, const char *const *files, size_t count)
{
    status result = OK;
    for (size_t i = 0; i < count; i++) {
        struct experiment e;
        TRY(experiment_open(&e, files[i]));
        add_name(out, e.name);
        experiment_close(&e);
    }
done:
    return result;
}

/* The file of an experiment, or its name if it is compiled in; else NULL. */
static const char *find_file(const char *name, const struct names *of_files,
                             const char *const *files)
{
    for (size_t i = 0; i < of_files->count; i++)
        if (strcmp(of_files->at[i], name) == 0)
            return files[i];
    return config_is_experiment(name) ? name : NULL;
}

static void names_free(struct names *n)
{
    for (size_t i = 0; i < n->count; i++)
        memory_free(n->at[i]);
    free(n->at);
}

static void report_claim_set_close(struct report_claim_set *j)
{
    for (size_t i = 0; j->whys != NULL && i < j->part[j->quick].e.claim_count; i++)
        text_free(&j->whys[i]);
    memory_free(j->whys);
    for (size_t i = 0; j->panels != NULL && i < j->map_size; i++)
        text_free(&j->panels[i]);
    memory_free(j->panels);
    memory_free(j->map);
    for (size_t i = 0; j->names != NULL && i < j->run_count; i++)
        text_free(&j->names[i]);
    memory_free(j->names);
    memory_free(j->runs);
    memory_free(j->claims);
    memory_free(j->arms);
    memory_free(j->expected);
    free(j->verdict);
    free(j->tuning);
    text_free(&j->described);
    reproduction_close(&j->part[0]);
    reproduction_close(&j->part[1]);
    *j = (struct report_claim_set){0};
}

static void judge(struct report_claims *out, const char *file, const char *results)
{
    struct report_claim_set *j = &out->own[out->count];
    status result = lay_out(j, file, results);
    if (result == OK)
        result = describe(j, &out->at[out->count]);
    if (result == OK) {
        out->count++;
    } else {
        log_warning("report: cannot judge the claims of %s: %s", file, error_message());
        report_claim_set_close(j);
    }
}

status report_claims_read(struct report_claims *out, const char *results, const char *only,
                          const char *const *files, size_t file_count)
{
    status result = OK;
    struct names names = {.only = only}, of_files = {0};
    *out = (struct report_claims){0};
    TRY(read_names(&of_files, files, file_count));
    TRY(report_experiments(results, add_name, &names));
    TRY(memory_new(&out->at, names.count, sizeof *out->at, "experiments"));
    TRY(memory_new(&out->own, names.count, sizeof *out->own, "experiments"));
    for (size_t i = 0; i < names.count; i++) {
        const char *file = find_file(names.at[i], &of_files, files);
        if (file != NULL)
            judge(out, file, results);
    }
done:
    names_free(&names);
    names_free(&of_files);
    return result;
}

void report_claims_close(struct report_claims *j)
{
    for (size_t i = 0; i < j->count; i++)
        report_claim_set_close(&j->own[i]);
    memory_free(j->own);
    memory_free(j->at);
    *j = (struct report_claims){0};
}
