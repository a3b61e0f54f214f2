#include "experiments/sweep/trials.h"

#include "base/memory.h"
#include "base/text.h"
#include "results/query/query.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DIVERGED   (-1e300) /* a trial's score: this × the share of its runs that diverged */
#define NOT_FINITE (-1e290) /* the score of finished runs whose figure is not finite */

status trials_begin(struct trials *t, const struct space *space, const struct settings *search,
                    const struct settings *base, const struct int_list *seeds)
{
    status result = OK;
    REQUIRE(seeds->count > 0);
    struct search_study *c = memory_append(&t->at, &t->count, sizeof *c);
    t->plan.of_trials = true;
    TRY(search_open(&c->search, space, search));
    settings_add_all(&c->base, base);
    TRY(memory_new(&c->seeds.at, seeds->count, sizeof *c->seeds.at, "seeds"));
    memcpy(c->seeds.at, seeds->at, seeds->count * sizeof *seeds->at);
    c->seeds.count = seeds->count;
done:
    return result;
}

void trials_close(struct trials *t)
{
    for (size_t i = 0; i < t->count; i++) {
        search_close(&t->at[i].search);
        settings_free(&t->at[i].base);
        memory_free(t->at[i].seeds.at);
        free(t->at[i].run_of);
    }
    free(t->at);
    plan_close(&t->plan);
    *t = (struct trials){0};
}

/* ---- scores -------------------------------------------------------------------------------------
 */

static bool has_ended(const struct search_study *c, const struct plan *p, size_t trial)
{
    for (size_t s = 0; s < c->seeds.count; s++) {
        enum planned_state state = p->runs[c->run_of[trial * c->seeds.count + s]].state;
        if (state != PLANNED_FINISHED && state != PLANNED_DIVERGED)
            return false;
    }
    return true;
}

static status score(struct search_study *c, const struct plan *p, size_t trial)
{
    status result = OK;
    double accuracy = 0, loss = 0, diverged = 0, n = (double)c->seeds.count;
    for (size_t s = 0; s < c->seeds.count; s++) {
        const struct planned_run *r = &p->runs[c->run_of[trial * c->seeds.count + s]];
        struct plan_score run_score;
        if (r->state == PLANNED_DIVERGED) {
            diverged++;
            continue;
        }
        TRY(plan_score(r, &run_score));
        accuracy += run_score.accuracy / n;
        loss += run_score.loss / n;
    }
    if (diverged == 0 && !c->scored) { /* one scale for all trials */
        c->by_loss = c->by_loss || isnan(accuracy);
        c->scored = true;
    }
    const double figure = c->by_loss ? -loss : accuracy;
    c->search.trials[trial].score = diverged > 0        ? DIVERGED * diverged / n
                                    : !isfinite(figure) ? NOT_FINITE
                                                        : figure;
done:
    return result;
}

static status score_ended_trials(struct trials *t)
{
    status result = OK;
    if (t->plan.count > 0)
        TRY(query_begin(options_text(t->plan.runs[0].settings, "results")));
    for (size_t i = 0; i < t->count; i++) {
        struct search_study *c = &t->at[i];
        for (size_t k = c->search.round_begin; k < c->search.count; k++)
            if (isnan(c->search.trials[k].score) && has_ended(c, &t->plan, k))
                TRY(score(c, &t->plan, k));
    }
done:
    query_end();
    return result;
}

/* ---- runs ---------------------------------------------------------------------------------------
 */

static bool is_whole(const options *o, const char *key)
{
    for (size_t i = 0; i < options_count(o); i++)
        if (strcmp(options_at(o, i)->key, key) == 0)
            return options_at(o, i)->type == OPTION_INTEGER;
    return false;
}

static void add_scaled(const options *o, const char *key, double part, struct settings *out)
{
    char value[32];
    const bool whole = is_whole(o, key);
    double number = options_real(o, key) * part;
    snprintf(value, sizeof value, whole ? "%.0f" : "%.6g",
             whole ? fmax(1, nearbyint(number)) : number);
    settings_add(out, key, value, "search");
}

/* Multiplies the length of the run, and of its phases, by `part`. */
static status shorten(struct settings *all, double part)
{
    static const char *const phases[] = {"post_local_epoch", "delay_annealing",
                                         "compression.warmup_epochs", "optimizer.center",
                                         "optimizer.period"};
    status result = OK;
    options *o = NULL;
    TRY(config_compose(&o, all));
    const char *length = options_integer(o, "updates") > 0   ? "updates"
                         : options_integer(o, "samples") > 0 ? "samples"
                         : options_real(o, "seconds") > 0    ? "seconds"
                                                             : "epochs";
    const char *warmup = options_integer(o, "warmup_updates") > 0 ? "warmup_updates"
                         : options_real(o, "warmup_seconds") > 0  ? "warmup_seconds"
                                                                  : "warmup_epochs";
    add_scaled(o, length, part, all);
    add_scaled(o, warmup, part, all);
    for (size_t i = 0; i < COUNT_OF(phases); i++)
        if (options_declared(o, phases[i]) && options_real(o, phases[i]) > 0)
            add_scaled(o, phases[i], part, all);
done:
    options_close(&o);
    return result;
}

/* "async ×16 seed 1 lr=0.03" */
static void add_to_title(const struct settings *point, double part, struct planned_run *r)
{
    struct text more = {0};
    text_add(&more, "%s", r->title);
    for (size_t i = 0; i < point->count; i++)
        text_add(&more, " %s=%s", point->at[i].key, point->at[i].value);
    if (part < 1)
        text_add(&more, " 1/%.3g", 1 / part);
    snprintf(r->title, sizeof r->title, "%s", more.at);
    text_free(&more);
}

static status add_run(struct trials *t, struct search_study *c, size_t trial, size_t seed)
{
    status result = OK;
    struct settings all = {0}, point = {0};
    const struct trial *tried = &c->search.trials[trial];
    options *o = NULL;
    struct text of = {0};
    char text[24];
    snprintf(text, sizeof text, "%lld", (long long)c->seeds.at[seed]);
    search_settings(&c->search, tried, &point);
    settings_add_all(&all, &c->base);
    settings_add_dotted_first(&all, &point);
    settings_add(&all, "seed", text, "search");
    text_add(&of, "%s", options_text(c->search.options, "search"));
    if (options_text(c->search.options, "search.per")[0] != '\0')
        text_add(&of, " per=%s", options_text(c->search.options, "search.per"));
    settings_add(&all, "trial_of", of.at, "search");
    if (tried->part < 1)
        TRY(shorten(&all, tried->part));
    TRY(config_compose(&o, &all));
    TRY(plan_choose_precision(&t->plan, o));
    size_t *run = &c->run_of[trial * c->seeds.count + seed], before = t->plan.count;
    *run = plan_find_or_add(&t->plan, &o);
    if (t->plan.count > before)
        add_to_title(&point, tried->part, &t->plan.runs[*run]);
done:
    options_close(&o);
    text_free(&of);
    settings_free(&all);
    settings_free(&point);
    return result;
}

static status extend(struct trials *t, struct search_study *c)
{
    status result = OK;
    size_t added;
    TRY(search_next(&c->search, &added));
    c->run_of = realloc(c->run_of, (c->search.count * c->seeds.count + 1) * sizeof *c->run_of);
    REQUIRE(c->run_of != NULL);
    for (size_t s = 0; s < c->seeds.count; s++)
        for (size_t i = c->search.count - added; i < c->search.count; i++)
            TRY(add_run(t, c, i, s));
done:
    return result;
}

status trials_extend(struct trials *t, size_t *added)
{
    status result = OK;
    size_t before = t->plan.count;
    bool more;
    do { /* if a round adds no run, its scores are known already */
        more = false;
        TRY(score_ended_trials(t));
        for (size_t i = 0; i < t->count; i++) {
            const size_t last = t->at[i].search.count;
            TRY(extend(t, &t->at[i]));
            more = more || t->at[i].search.count > last;
        }
    } while (more && t->plan.count == before);
    *added = t->plan.count - before;
done:
    return result;
}

size_t trials_remaining_runs(const struct trials *t)
{
    size_t count = 0;
    for (size_t i = 0; i < t->count; i++) {
        const struct search_study *c = &t->at[i];
        count += (search_total(&c->search) - c->search.count) * c->seeds.count;
    }
    return count;
}

size_t trials_total(const struct trials *t)
{
    size_t count = 0;
    for (size_t i = 0; i < t->count; i++)
        count += search_total(&t->at[i].search);
    return count;
}

/* ---- texts --------------------------------------------------------------------------------------
 */

void trials_score(const struct search_study *c, const struct trial *trial, struct text *out)
{
    if (trial->score <= DIVERGED / 1e6)
        text_add(out, "diverged");
    else if (trial->score <= NOT_FINITE)
        text_add(out, "%s not finite", c->by_loss ? "loss" : "accuracy");
    else if (c->by_loss)
        text_add(out, "loss %.6g", -trial->score);
    else
        text_add(out, "accuracy %.2f%%", 100 * trial->score);
}

bool trials_is_repeat(const struct search_study *c, size_t trial)
{
    for (size_t i = 0; i < trial; i++)
        if (c->run_of[i * c->seeds.count] == c->run_of[trial * c->seeds.count])
            return true;
    return false;
}

void trials_budget(const struct search_study *c, struct text *out)
{
    double cost = 0;
    size_t different = 0;
    for (size_t i = 0; i < c->search.count; i++) {
        if (!trials_is_repeat(c, i)) {
            different++;
            cost += c->search.trials[i].part;
        }
    }
    text_add(out, "best of %zu", c->search.count);
    if (different < c->search.count)
        text_add(out, ", %zu of them different", different);
    if (cost < (double)different)
        text_add(out, ", at the cost of %.3g full runs", cost);
    if (c->seeds.count > 1)
        text_add(out, ", %zu seeds each", c->seeds.count);
}
