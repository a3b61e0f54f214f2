#include "experiments/sweep/sweep_search.h"

#include "base/memory.h"
#include "base/text.h"
#include "experiments/sweep/sweep_axis.h"
#include "experiments/run/launch.h"
#include "experiments/print_columns.h"
#include "experiments/sweep/trials.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SHOWN = 5 }; /* best trials of each search in the final table */

struct search_sweep {
    struct settings search, fixed; /* keys of the search; keys with one value */
    struct axis *per;              /* [per_count], of search.per */
    size_t per_count;
    struct space space;
    struct int_list seeds;
    struct trials trials;
    size_t combinations; /* of the values of search.per; each has a search */
    struct plan_part part;
};

static void search_sweep_close(struct search_sweep *h)
{
    trials_close(&h->trials);
    settings_free(&h->search);
    settings_free(&h->fixed);
    for (size_t i = 0; i < h->per_count; i++)
        axis_free(&h->per[i]);
    memory_free(h->per);
    space_close(&h->space);
    memory_free(h->seeds.at);
}

/* ---- reading the command line ------------------------------------------------------------------
 */

/* The next word of a list such as "workers, mode"; length 0: there is none. */
static size_t next_word(const char **list)
{
    *list += strspn(*list, ", ");
    return strcspn(*list, ", ");
}

static bool is_listed(const char *list, const char *key)
{
    for (size_t n; list != NULL && (n = next_word(&list)) > 0; list += n)
        if (n == strlen(key) && strncmp(list, key, n) == 0)
            return true;
    return false;
}

/* Each word of search.per is a key with values of its own. */
static status check_per(const struct search_sweep *h, const char *list)
{
    status result = OK;
    for (size_t n; list != NULL && (n = next_word(&list)) > 0; list += n) {
        bool known = false;
        for (size_t i = 0; i < h->per_count; i++)
            known = known || (n == strlen(h->per[i].key) && strncmp(list, h->per[i].key, n) == 0);
        if (!known) {
            FAIL(ERROR_USAGE,
                 "search.per: '%.*s' is no key with values of this search; each search needs some, "
                 "for example search.per=workers workers=2,4",
                 (int)n, list);
        }
    }
done:
    return result;
}

static status read_seeds(struct search_sweep *h, const struct axis *a)
{
    status result = OK;
    TRY(memory_new(&h->seeds.at, a->count, sizeof *h->seeds.at, "seeds"));
    for (size_t i = 0; i < a->count; i++) {
        int64_t seed;
        bool known = false;
        if (!text_to_integer(a->values[i], &seed))
            FAIL(ERROR_USAGE, "%s: seed=%s is not a whole number", a->origin, a->values[i]);
        for (size_t k = 0; k < h->seeds.count; k++)
            known = known || h->seeds.at[k] == seed;
        if (!known)
            h->seeds.at[h->seeds.count++] = seed;
    }
done:
    return result;
}

static bool is_same_value(const char *a, const char *b)
{
    double x, y;
    return strcmp(a, b) == 0 || (text_to_real(a, &x) && text_to_real(b, &y) && x == y);
}

/* Two searches with the same value are the same runs, which --part could put into two parts. */
static status check_distinct(const struct axis *a)
{
    status result = OK;
    for (size_t i = 0; i < a->count; i++) {
        for (size_t k = 0; k < i; k++) {
            if (is_same_value(a->values[i], a->values[k])) {
                FAIL(ERROR_USAGE,
                     "%s: %s is in search.per and has the value %s twice; give each value once",
                     a->origin, a->key, a->values[i]);
            }
        }
    }
done:
    return result;
}

static status read_values(struct search_sweep *h, const struct setting *s, bool per)
{
    status result = OK;
    struct axis a = {0};
    const bool seed = strcmp(s->key, "seed") == 0;
    if (!per && !seed && search_is_range(s->value)) {
        TRY(space_add_range(&h->space, s->key, s->value, s->origin));
        goto done;
    }
    TRY(axis_read(&a, s));
    if (seed) {
        TRY(read_seeds(h, &a));
    } else if (per) {
        TRY(check_distinct(&a));
        h->per[h->per_count++] = a;
        h->combinations *= a.count;
        a.count = 0;
    } else if (a.count > 1) {
        TRY(space_add_choice(&h->space, s->key, (const char *const *)a.values, a.count, s->origin));
    } else {
        settings_add(&h->fixed, s->key, a.values[0], s->origin);
    }
done:
    axis_free(&a);
    return result;
}

static status read_all(struct search_sweep *h, const struct settings *read)
{
    status result = OK;
    const char *per = settings_find(read, "search.per");
    h->combinations = 1;
    TRY(axes_check_dotted(read));
    TRY(memory_new(&h->per, read->count, sizeof *h->per, "axes"));
    for (size_t i = 0; i < read->count; i++) {
        const struct setting *s = &read->at[i];
        if (search_is_key(s->key))
            settings_add(&h->search, s->key, s->value, s->origin);
        else if (settings_find(read, s->key) == s->value && /* the last setting of the key */
                 !settings_length_is_overruled(read, i))
            TRY(read_values(h, s, is_listed(per, s->key)));
    }
    TRY(check_per(h, per));
    if (h->space.count == 0) {
        FAIL(ERROR_USAGE,
             "sweep: there is nothing to search; give a key several values or a range, "
             "for example lr=0.001..0.3:log%s",
             h->per_count > 0 ? ", besides the keys of search.per" : " or damping=none,inverse");
    }
    if (h->seeds.count == 0) {
        static char first[] = "1";
        struct axis one = {.key = "seed", .origin = "default", .values = {first}, .count = 1};
        TRY(read_seeds(h, &one));
    }
done:
    return result;
}

/* The number of the combination that search `search` of this part has. */
static size_t combination_of(const struct search_sweep *h, size_t search)
{
    size_t at = 0;
    for (size_t before = 0; before < search || !plan_part_has(&h->part, at); at++)
        before += plan_part_has(&h->part, at);
    return at;
}

/* A part has whole searches, because the trials of a search depend on its earlier trials. */
static status begin(struct search_sweep *h)
{
    status result = OK;
    struct settings base = {0};
    size_t added;
    for (size_t i = 0; i < h->per_count; i++)
        plan_vary(&h->trials.plan, h->per[i].key);
    for (size_t i = 0; i < h->space.count; i++)
        plan_vary(&h->trials.plan, h->space.at[i].key);
    if (h->part.of > 1 && h->combinations < 2) {
        FAIL(ERROR_USAGE,
             "sweep: --part divides searches, but this command has only one; omit --part, "
             "or make a search for each value of a key with search.per=KEY");
    }
    for (size_t c = 0; c < h->combinations; c++) {
        if (!plan_part_has(&h->part, c))
            continue;
        settings_free(&base);
        axes_combine(h->per, h->per_count, &h->fixed, c, &base);
        TRY(settings_add_workers_of_hosts(&base));
        TRY(trials_begin(&h->trials, &h->space, &h->search, &base, &h->seeds));
    }
    TRY(trials_extend(&h->trials, &added));
done:
    settings_free(&base);
    return result;
}

/* ---- results ------------------------------------------------------------------------------------
 */

static void print_trial(const struct search_study *c, const struct plan *p, size_t trial, FILE *to)
{
    struct text line = {0};
    struct settings point = {0};
    search_settings(&c->search, &c->search.trials[trial], &point);
    trials_score(c, &c->search.trials[trial], &line);
    fprintf(to, "  %-18s", line.at);
    for (size_t i = 0; i < point.count; i++)
        fprintf(to, " %s=%s", point.at[i].key, point.at[i].value);
    fputs("  (", to);
    for (size_t i = 0; i < c->seeds.count; i++) {
        const struct planned_run *r = &p->runs[c->run_of[trial * c->seeds.count + i]];
        fprintf(to, "%srun %lld", i > 0 ? ", " : "", (long long)r->run_id);
    }
    fprintf(to, ")\n");
    settings_free(&point);
    text_free(&line);
}

static status print_search(const struct search_sweep *h, size_t number, FILE *to)
{
    status result = OK;
    const struct search_study *c = &h->trials.at[number];
    const struct search *s = &c->search;
    const struct trial *best = search_best(s);
    struct text line = {0};
    struct settings per = {0};
    size_t *ranked = NULL, shown = 0;
    TRY(memory_new(&ranked, s->count, sizeof *ranked, "the ranks of trials"));
    axes_choose(h->per, h->per_count, combination_of(h, number), &per);
    for (size_t i = 0; i < per.count; i++)
        text_add(&line, "%s=%s ", per.at[i].key, per.at[i].value);
    if (!search_has_ended(s)) {
        fprintf(to, "%ssome of its trials have not finished\n", line.at != NULL ? line.at : "");
        goto done;
    }
    text_add(&line, "%s on the validation split: ", options_text(s->options, "search"));
    trials_budget(c, &line);
    fprintf(to, "%s%s\n", line.at,
            search_is_at_edge(s, best) ? "; at the edge of the searched values" : "");
    search_rank(s, 0, s->count, ranked);
    for (size_t i = 0; i < s->count && shown < SHOWN; i++) {
        if (s->trials[ranked[i]].part == 1 && !trials_is_repeat(c, ranked[i])) {
            print_trial(c, &h->trials.plan, ranked[i], to);
            shown++;
        }
    }
done:
    memory_free(ranked);
    settings_free(&per);
    text_free(&line);
    return result;
}

static status execute(struct search_sweep *h, const struct plan_options *how, bool again)
{
    status result = OK;
    struct plan *p = &h->trials.plan;
    launch_catch_signals();
    p->again = again;
    for (size_t added = 1; added > 0;) {
        TRY(plan_execute(p, how, stdout));
        TRY(trials_extend(&h->trials, &added));
        if (added > 0 && !again)
            TRY(plan_look_up(p));
    }
    printf("\n");
    for (size_t i = 0; i < h->trials.count; i++)
        TRY(print_search(h, i, stdout));
    if (how->part.of > 0) {
        printf("\n");
        TRY(plan_print_outcome(p, how, stdout));
    }
    TRY(plan_check_failed(p));
done:
    return result;
}

status sweep_search(const struct settings *read, const struct plan_options *how, bool dry,
                    bool again)
{
    status result = OK;
    struct search_sweep h = {.part = how->part};
    TRY(read_all(&h, read));
    TRY(begin(&h));
    for (size_t added = 1; added > 0 && !again;) {
        TRY(plan_look_up(&h.trials.plan));
        TRY(trials_extend(&h.trials, &added));
    }
    TRY(plan_check_files(&h.trials.plan));
    size_t planned = h.trials.plan.count, missing = plan_missing(&h.trials.plan);
    size_t later = trials_remaining_runs(&h.trials), seeds = h.seeds.count;
    size_t trials = trials_total(&h.trials);
    printf("%zu search%s, %zu trial%s", h.trials.count, h.trials.count == 1 ? "" : "es", trials,
           plural(trials));
    if (seeds > 1)
        printf(" with %zu seeds, %zu runs", seeds, planned + later);
    printf(": %zu to run, %zu there already\n", missing + later, planned - missing);
    fflush(stdout);
    plan_warn_of_warmup(&h.trials.plan);
    if (dry) {
        plan_print(&h.trials.plan, stdout);
        if (later > 0)
            printf("to run              %zu more trial%s, chosen from these results\n", later,
                   plural(later));
    } else {
        TRY(execute(&h, how, again));
    }
done:
    search_sweep_close(&h);
    return result;
}
