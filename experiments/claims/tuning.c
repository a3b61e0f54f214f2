#include "experiments/claims/tuning.h"

#include "base/memory.h"
#include "base/text.h"
#include "experiments/print_columns.h"

#include <stdlib.h>
#include <string.h>

enum { LABEL_WIDTH = 40 };

/* Whether the arm has any run in this column. */
static bool has_runs(const struct experiment *e, const struct arm *arm, int64_t column, bool quick)
{
    struct int_list seeds;
    bool wanted = false;
    experiment_seeds(e, quick, &seeds);
    for (size_t i = 0; i < seeds.count; i++)
        wanted = wanted || experiment_has(e, arm, column, seeds.at[i], quick);
    free(seeds.at);
    return wanted;
}

/* If the search is a grid of one point, adds this point; else false. */
static bool add_single_point(const struct tune_space *g, struct settings *out)
{
    const char *method = settings_find(&g->search, "search");
    bool single = method == NULL || strcmp(method, "grid") == 0;
    for (size_t i = 0; i < g->space.count; i++)
        single = single && g->space.at[i].count == 1;
    for (size_t i = 0; i < g->space.count && single; i++) {
        const struct dimension *d = &g->space.at[i];
        settings_add(out, d->key, d->values[0], d->origin);
    }
    return single;
}

/* The seeds of the trials. Without key `seeds` there is one, which is stored in *single. */
static struct int_list trial_seeds(const struct experiment *e, const struct tune_space *g,
                                   int64_t *single)
{
    *single = experiment_trial_seed(e);
    return g->seeds.count > 0 ? g->seeds : (struct int_list){.at = single, .count = 1};
}

/* Adds the settings that all trials of a choice share, with the first of their seeds. */
static void trial_settings(const struct tuning *t, const struct arm *arm, int64_t column,
                           bool quick, const struct settings *more, struct settings *out)
{
    const struct experiment *e = t->experiment;
    int64_t single;
    struct text name = {0};
    const struct int_list seeds = trial_seeds(e, experiment_tune_space(arm, quick), &single);
    experiment_settings(e, arm, column, seeds.at[0], quick, more, out);
    text_add(&name, "%s/tuning", e->name);
    settings_add(out, "experiment", name.at, e->file);
    text_free(&name);
}

static status add_choice(struct tuning *t, const struct arm *arm, int64_t column, bool quick,
                         const struct settings *more)
{
    status result = OK;
    const struct experiment *e = t->experiment;
    const struct tune_space *g = experiment_tune_space(arm, quick);
    int64_t single;
    const struct int_list seeds = trial_seeds(e, g, &single);
    struct settings base = {0};
    struct choice *c = memory_append(&t->choices, &t->count, sizeof *c);
    *c = (struct choice){.arm = arm, .grid = g, .column = column, .study = SIZE_MAX};
    if (add_single_point(g, &c->settings))
        goto done;
    trial_settings(t, arm, column, quick, more, &base);
    c->study = t->trials.count;
    TRY(trials_begin(&t->trials, &g->space, &g->search, &base, &seeds));
    t->trials.at[c->study].by_loss = e->metric != METRIC_ACCURACY;
done:
    if (result != OK) {
        char text[64];
        experiment_column_text(e, column, text);
        result = error_add_context(result, "the tuning of arm %s with %s", arm->name, text);
    }
    settings_free(&base);
    return result;
}

/* Whether `part` has the choice. */
static status is_of_part(struct tuning *t, const struct arm *arm, int64_t column, bool quick,
                         const struct plan_part *part, const struct settings *more, bool *out)
{
    status result = OK;
    struct settings base = {0};
    size_t position = 0;
    if (part->of > 0) {
        trial_settings(t, arm, column, quick, more, &base);
        TRY(plan_position(&t->seen, &base, &position));
    }
    *out = plan_part_has(part, position);
done:
    settings_free(&base);
    return result;
}

/* Whether the columns differ at most in levels that share a choice. */
static bool shares_choice(const struct experiment *e, const struct tune_space *g, int64_t a,
                          int64_t b)
{
    bool shares = a == b || e->axis_count > 0;
    for (size_t i = 0; i < e->axis_count && shares; i++) {
        const size_t first = experiment_level(e, a, i), second = experiment_level(e, b, i);
        shares = first == second || (first < 64 && second < 64 &&
                                     (g->shared[i] >> first & g->shared[i] >> second & 1) != 0);
    }
    return shares;
}

/* Notes the choice in t->all. False: a column with the same choice was noted before. */
static bool note_choice(struct tuning *t, const struct arm *arm, const struct tune_space *g,
                        int64_t column)
{
    for (size_t i = 0; i < t->all.count; i++)
        if (t->all.at[i].arm == arm && shares_choice(t->experiment, g, t->all.at[i].column, column))
            return false;
    *(struct choice_place *)memory_append(&t->all.at, &t->all.count, sizeof *t->all.at) =
        (struct choice_place){arm, column};
    return true;
}

status tuning_lay_out(struct tuning *out, const struct experiment *e, bool quick,
                      const struct plan_part *part, const struct settings *more)
{
    status result = OK;
    const struct int_list *columns = experiment_columns(e, quick);
    size_t added;
    out->experiment = e;
    for (size_t w = 0; w < columns->count; w++) {
        for (size_t a = 0; a < e->arm_count; a++) {
            const struct arm *arm = &e->arms[a];
            const struct tune_space *g = experiment_tune_space(arm, quick);
            bool wanted;
            if (g == NULL || !has_runs(e, arm, columns->at[w], quick) ||
                !note_choice(out, arm, g, columns->at[w]))
                continue;
            TRY(is_of_part(out, arm, columns->at[w], quick, part, more, &wanted));
            if (wanted)
                TRY(add_choice(out, arm, columns->at[w], quick, more));
        }
    }
    TRY(trials_extend(&out->trials, &added));
done:
    return result;
}

void tuning_close(struct tuning *t)
{
    trials_close(&t->trials);
    plan_close(&t->seen);
    for (size_t i = 0; i < t->count; i++)
        settings_free(&t->choices[i].settings);
    free(t->choices);
    free(t->all.at);
    *t = (struct tuning){0};
}

void tuning_choose(struct tuning *t)
{
    for (size_t i = 0; i < t->count; i++) {
        struct choice *c = &t->choices[i];
        const struct search *s = c->study == SIZE_MAX ? NULL : &t->trials.at[c->study].search;
        if (s != NULL && search_has_ended(s)) {
            settings_free(&c->settings);
            search_settings(s, search_best(s), &c->settings);
        }
    }
}

static const struct choice *find(const struct tuning *t, const struct arm *arm, int64_t column)
{
    for (size_t i = 0; i < t->count; i++) {
        const struct choice *c = &t->choices[i];
        if (c->arm == arm && shares_choice(t->experiment, c->grid, c->column, column))
            return c;
    }
    return NULL;
}

bool tuning_has(const struct tuning *t, const struct arm *arm, int64_t column)
{
    return find(t, arm, column) != NULL;
}

const struct settings *tuning_settings(const struct tuning *t, const struct arm *arm,
                                       int64_t column)
{
    const struct choice *c = find(t, arm, column);
    return c != NULL && c->settings.count > 0 ? &c->settings : NULL;
}

static void print_choice(const struct experiment *e, const struct choice *c,
                         const struct search_study *study, FILE *to)
{
    char column[64];
    struct text line = {0};
    const struct search *s = &study->search;
    for (size_t k = 0; k < c->settings.count; k++)
        text_add(&line, " %s=%s", c->settings.at[k].key, c->settings.at[k].value);
    text_add(&line, " (");
    trials_score(study, search_best(s), &line);
    text_add(&line, ", ");
    trials_budget(study, &line);
    text_add(&line, "%s)",
             search_is_at_edge(s, search_best(s)) ? "; at the edge of the searched values" : "");
    print_padded(to, c->arm->label, LABEL_WIDTH);
    experiment_column_text(e, c->column, column);
    fprintf(to, "%13s:%s\n", column, line.at);
    text_free(&line);
}

void tuning_print(const struct tuning *t, FILE *to)
{
    if (t->trials.count == 0)
        return;
    size_t searched = 0, open = 0;
    fprintf(to, "\nTuned on the validation split\n");
    for (size_t i = 0; i < t->count; i++) {
        const struct choice *c = &t->choices[i];
        if (c->study == SIZE_MAX)
            continue;
        searched++;
        if (c->settings.count == 0)
            open++;
        else
            print_choice(t->experiment, c, &t->trials.at[c->study], to);
    }
    if (open > 0)
        fprintf(to, "%zu of %zu choices are open: some of their trials have not finished\n", open,
                searched);
}
