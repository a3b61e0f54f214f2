#include "experiments/tuning.h"

#include "experiments/print.h"
#include "results/query.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_POINTS = 10000, LABEL_WIDTH = 40 };

/* ---- trials ------------------------------------------------------------------------------------
 */

static size_t point_count(const struct grid *g)
{
    size_t count = 1;
    for (size_t i = 0; i < g->count && count <= MOST_POINTS; i++) {
        count *= g->axes[i].count;
    }
    return count;
}

/* Which value of axis i stands at a point: the last axis varies fastest. */
static size_t place(const struct grid *g, size_t point, size_t axis)
{
    for (size_t i = g->count - 1; i > axis; i--) {
        point /= g->axes[i].count;
    }
    return point % g->axes[axis].count;
}

static void add_point(const struct grid *g, size_t point, struct settings *out)
{
    for (size_t i = 0; i < g->count; i++) {
        const struct grid_axis *axis = &g->axes[i];
        settings_add(out, axis->key, axis->values[place(g, point, i)], axis->origin);
    }
}

/* "sync ×16 seed 1 lr=0.03" */
static void add_to_title(const struct grid *g, size_t point, struct planned_run *r)
{
    for (size_t i = 0; i < g->count; i++) {
        size_t length = strlen(r->title);
        snprintf(r->title + length, sizeof r->title - length, " %s=%s", g->axes[i].key,
                 g->axes[i].values[place(g, point, i)]);
    }
}

static status add_trial(struct tuning *t, size_t choice, size_t point, int64_t seed, bool quick,
                        const struct settings *more)
{
    status result = OK;
    const struct choice *c = &t->choices[choice];
    struct settings all = {0};
    struct text name = {0};
    options *o = NULL;
    experiment_settings(t->experiment, c->arm, c->workers, seed, quick, more, &all);
    add_point(c->grid, point, &all);
    text_add(&name, "%s/tuning", t->experiment->name);
    settings_add(&all, "experiment", name.at, t->experiment->file);
    result = config_compose(&o, &all);
    if (result != OK) {
        result = error_add_context(result, "a trial of arm %s with %lld workers", c->arm->name,
                                   (long long)c->workers);
        goto done;
    }
    if (t->trials.count == t->room) {
        t->room = t->room == 0 ? 64 : 2 * t->room;
        t->choice_of = realloc(t->choice_of, t->room * sizeof *t->choice_of);
        t->point_of = realloc(t->point_of, t->room * sizeof *t->point_of);
        REQUIRE(t->choice_of != NULL && t->point_of != NULL);
    }
    if (plan_add(&t->trials, &o)) {
        t->choice_of[t->trials.count - 1] = choice;
        t->point_of[t->trials.count - 1] = point;
        add_to_title(c->grid, point, &t->trials.runs[t->trials.count - 1]);
    }
done:
    settings_free(&all);
    text_free(&name);
    return result;
}

/* Whether any run of the arm with these workers is to be made. */
static bool is_wanted(const struct experiment *e, const struct arm *arm, int64_t workers,
                      bool quick)
{
    struct int_list seeds;
    bool wanted = false;
    experiment_seeds(e, quick, &seeds);
    for (size_t i = 0; i < seeds.count; i++) {
        wanted = wanted || experiment_has(e, arm, workers, seeds.at[i], quick);
    }
    free(seeds.at);
    return wanted;
}

static status add_choice(struct tuning *t, const struct arm *arm, int64_t workers, bool quick,
                         const struct settings *more)
{
    status result = OK;
    const struct grid *g = experiment_grid(arm, quick);
    const struct int_list first = {.at = t->experiment->seeds.at, .count = 1};
    const struct int_list *seeds = g->seeds.count > 0 ? &g->seeds : &first;
    size_t points = point_count(g);
    if (points > MOST_POINTS) {
        FAIL(ERROR_USAGE, "%s: arm %s tunes over more than %d points", t->experiment->file,
             arm->name, MOST_POINTS);
    }
    t->choices = realloc(t->choices, (t->count + 1) * sizeof *t->choices);
    REQUIRE(t->choices != NULL);
    t->choices[t->count++] = (struct choice){
        .arm = arm, .grid = g, .workers = workers, .points = points, .accuracy = NAN, .loss = NAN};
    if (points == 1) {
        add_point(g, 0, &t->choices[t->count - 1].settings);
    }
    for (size_t s = 0; points > 1 && s < seeds->count; s++) {
        for (size_t p = 0; p < points; p++) {
            TRY(add_trial(t, t->count - 1, p, seeds->at[s], quick, more));
        }
    }
done:
    return result;
}

status tuning_lay_out(struct tuning *out, const struct experiment *e, bool quick,
                      const struct settings *more)
{
    status result = OK;
    const struct int_list *workers = experiment_workers(e, quick);
    out->experiment = e;
    for (size_t w = 0; w < workers->count; w++) {
        for (size_t a = 0; a < e->arm_count; a++) {
            const struct arm *arm = &e->arms[a];
            if (experiment_grid(arm, quick) != NULL && is_wanted(e, arm, workers->at[w], quick)) {
                TRY(add_choice(out, arm, workers->at[w], quick, more));
            }
        }
    }
done:
    return result;
}

void tuning_close(struct tuning *t)
{
    plan_close(&t->trials);
    for (size_t i = 0; i < t->count; i++) {
        settings_free(&t->choices[i].settings);
    }
    free(t->choices);
    free(t->choice_of);
    free(t->point_of);
    *t = (struct tuning){0};
}

/* ---- the choice --------------------------------------------------------------------------------
 */

struct score { /* sums, then means */
    double accuracy, loss;
    size_t trials, ended, diverged;
};

static status number(const struct planned_run *r, const char *what, double *out)
{
    char sql[256];
    bool known = false;
    snprintf(sql, sizeof sql,
             "SELECT %s FROM evaluation WHERE run_id = %lld ORDER BY updates DESC LIMIT 1", what,
             (long long)r->run_id);
    status result = query_number(options_text(r->settings, "results"), sql, NULL, 0, out, &known);
    *out = known ? *out : NAN;
    return result;
}

static status add_score(const struct planned_run *r, struct score *s)
{
    status result = OK;
    double accuracy = NAN, loss = NAN;
    s->trials++;
    s->diverged += r->state == PLANNED_DIVERGED;
    s->ended += r->state == PLANNED_DIVERGED || r->state == PLANNED_FINISHED;
    if (r->state == PLANNED_FINISHED) {
        TRY(number(r, "validation_accuracy", &accuracy));
        TRY(number(r, "validation_loss", &loss));
        s->accuracy += accuracy;
        s->loss += loss;
    }
done:
    return result;
}

/* Classes decide where there are some; NaN is worse than any number. */
static bool better(const struct score *a, const struct score *b)
{
    if (b->trials == 0 || b->diverged > 0) {
        return b->trials == 0 || a->diverged < b->diverged;
    }
    if (a->diverged > 0) {
        return false;
    }
    bool classes = !isnan(a->accuracy) && !isnan(b->accuracy);
    return classes ? a->accuracy > b->accuracy
                   : !isnan(a->loss) && (isnan(b->loss) || a->loss < b->loss);
}

static bool is_at_edge(const struct grid *g, size_t point)
{
    bool edge = false;
    for (size_t i = 0; i < g->count; i++) {
        size_t at = place(g, point, i);
        edge = edge || (g->axes[i].count > 2 && (at == 0 || at == g->axes[i].count - 1));
    }
    return edge;
}

static status choose(struct tuning *t, size_t index, struct score *scores)
{
    status result = OK;
    struct choice *c = &t->choices[index];
    struct score best = {0};
    size_t point = 0;
    bool whole = c->points > 1;
    for (size_t i = 0; i < t->trials.count; i++) {
        if (t->choice_of[i] == index) {
            TRY(add_score(&t->trials.runs[i], &scores[t->point_of[i]]));
        }
    }
    for (size_t p = 0; p < c->points; p++) {
        struct score *s = &scores[p];
        whole = whole && s->ended == s->trials;
        if (s->trials > 0 && better(s, &best)) {
            best = *s;
            point = p;
        }
    }
    if (whole) {
        settings_free(&c->settings);
        add_point(c->grid, point, &c->settings);
        c->edge = is_at_edge(c->grid, point);
        c->accuracy = best.accuracy / (double)best.trials;
        c->loss = best.loss / (double)best.trials;
    }
done:
    return result;
}

status tuning_choose(struct tuning *t)
{
    status result = OK;
    struct score *scores = NULL;
    for (size_t i = 0; i < t->count; i++) {
        TRY(memory_new(&scores, t->choices[i].points, sizeof *scores, "scores"));
        TRY(choose(t, i, scores));
        memory_free(scores);
        scores = NULL;
    }
done:
    memory_free(scores);
    return result;
}

const struct settings *tuning_settings(const struct tuning *t, const struct arm *arm,
                                       int64_t workers)
{
    for (size_t i = 0; i < t->count; i++) {
        const struct choice *c = &t->choices[i];
        if (c->arm == arm && c->workers == workers) {
            return c->settings.count > 0 ? &c->settings : NULL;
        }
    }
    return NULL;
}

void tuning_print(const struct tuning *t, FILE *to)
{
    if (t->trials.count == 0) {
        return;
    }
    fprintf(to, "\nTuned on the validation split\n");
    for (size_t i = 0; i < t->count; i++) {
        const struct choice *c = &t->choices[i];
        if (c->points == 1) {
            continue;
        }
        print_padded(to, c->arm->label, LABEL_WIDTH);
        fprintf(to, "%5lld workers:", (long long)c->workers);
        for (size_t k = 0; k < c->settings.count; k++) {
            fprintf(to, " %s=%s", c->settings.at[k].key, c->settings.at[k].value);
        }
        if (c->settings.count == 0) {
            fprintf(to, " not all of its trials are there");
        } else if (!isnan(c->accuracy)) {
            fprintf(to, " (accuracy %.2f%%, best of %zu", 100 * c->accuracy, c->points);
        } else {
            fprintf(to, " (loss %.6g, best of %zu", c->loss, c->points);
        }
        fprintf(to, "%s%s\n", c->edge ? "; at the edge of the grid" : "",
                c->settings.count > 0 ? ")" : "");
    }
}
