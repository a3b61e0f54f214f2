/* The parts of a plan, and of every compiled-in experiment, are disjoint and complete. */
#include "base/text.h"
#include "experiments/claims/reproduction.h"
#include "tests/rigs/scratch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void every_item_is_in_one_part_and_sizes_differ_by_one_at_most(void **state)
{
    (void)state;
    for (unsigned of = 1; of <= 30; of++) {
        for (size_t items = 0; items <= 100; items += 1 + items / 10) {
            size_t all = 0, most = 0, least = items;
            for (unsigned number = 1; number <= of; number++) {
                const struct plan_part part = {number, of};
                size_t own = 0;
                for (size_t i = 0; i < items; i++)
                    own += plan_part_has(&part, i);
                all += own;
                most = own > most ? own : most;
                least = own < least ? own : least;
            }
            assert_int_equal(all, items);
            assert_true(most - least <= 1);
        }
    }
}

/* Even if the number of arms equals the number of parts. */
static void a_part_has_items_of_every_arm(void **state)
{
    (void)state;
    for (unsigned of = 2; of <= 8; of++) {
        for (unsigned number = 1; number <= of; number++) {
            const struct plan_part part = {number, of};
            unsigned arms = 0;
            for (unsigned i = 0; i < of * of; i++)
                arms |= plan_part_has(&part, i) ? 1U << (i % of) : 0;
            assert_int_equal(arms, (1U << of) - 1);
        }
    }
}

/* ---- experiments --------------------------------------------------------------------------------
 */

/* One line for each run: experiment, arm and hash. */
struct lines {
    char **at;
    size_t count, later, fitted;
};

static void add_runs(struct lines *all, const struct plan *p)
{
    for (size_t i = 0; i < p->count; i++) {
        struct text line = {0};
        struct run_key key;
        plan_key(&p->runs[i], &key);
        text_add(&line, "%s %s %s", key.experiment, key.arm, key.config_hash);
        all->at = realloc(all->at, (all->count + 1) * sizeof *all->at);
        assert_non_null(all->at);
        all->at[all->count++] = line.at;
    }
}

static void add_part(struct lines *all, const char *name, bool quick, struct plan_part part)
{
    struct reproduction r;
    struct settings more = {0};
    char results[128];
    snprintf(results, sizeof results, "%s/none.db", scratch_folder());
    settings_add(&more, "results", results, COMMAND_LINE);
    assert_int_equal(reproduction_open(&r, name), OK);
    r.part = part;
    assert_int_equal(reproduction_look_up(&r, quick, false, &more), OK);
    add_runs(all, &r.tuning.trials.plan);
    add_runs(all, &r.plan);
    all->later += r.later;
    all->fitted = r.fitted;
    reproduction_close(&r);
    settings_free(&more);
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void free_lines(struct lines *l)
{
    for (size_t i = 0; i < l->count; i++)
        free(l->at[i]);
    free(l->at);
}

static void expect_whole(const struct lines *whole, const char *name, bool quick, unsigned parts)
{
    struct lines all = {0};
    for (unsigned number = 1; number <= parts; number++)
        add_part(&all, name, quick, (struct plan_part){number, parts});
    assert_int_equal(all.count, whole->count);
    assert_int_equal(all.later + all.fitted, whole->later);
    qsort(all.at, all.count, sizeof *all.at, by_text);
    for (size_t i = 0; i < all.count; i++) {
        assert_string_equal(all.at[i], whole->at[i]);
        assert_true(i == 0 || strcmp(all.at[i], all.at[i - 1]) != 0);
    }
    free_lines(&all);
}

#if defined(GRADLAG_SANITIZE)
enum { EVERY = 5 };
#else
enum { EVERY = 1 };
#endif

static void the_parts_of_every_experiment_are_together_its_runs(void **state)
{
    (void)state;
    char name[64];
    for (size_t i = 0; experiment_at(i / 2, name); i += EVERY) {
        const bool quick = i % 2 == 1;
        struct lines whole = {0};
        add_part(&whole, name, quick, (struct plan_part){0});
        assert_true(whole.count > 0);
        qsort(whole.at, whole.count, sizeof *whole.at, by_text);
        expect_whole(&whole, name, quick, quick ? 7 : 2);
        free_lines(&whole);
    }
}

/* Damping has no effect on arms of mode=sync: their runs with both levels are the same. */
static void runs_of_several_columns_are_in_one_part(void **state)
{
    (void)state;
    static const char text[] =
        "name: shared\nquestion: q\n"
        "settings: {engine: virtual, pace: gamma, dataset: gaussian, model: softmax, updates: 5}\n"
        "axes: {damping: [none, inverse], workers: [2, 4]}\nseeds: [1, 2, 3]\n"
        "arms:\n"
        "  sync: {label: s, settings: {mode: sync}}\n"
        "  async: {label: a, settings: {mode: async}}\n"
        "  tuned: {label: t, settings: {mode: sync}, tune: {lr: [0.1, 0.2]}}\n";
    char path[128];
    struct lines whole = {0};
    snprintf(path, sizeof path, "%s/shared.yaml", scratch_folder());
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
    add_part(&whole, path, false, (struct plan_part){0});
    /* sync 2 × 3, async 4 × 3, trials 2 × 2; the runs of tuned are not known yet. */
    assert_int_equal(whole.count, 6 + 12 + 4);
    qsort(whole.at, whole.count, sizeof *whole.at, by_text);
    for (unsigned parts = 2; parts <= 5; parts++)
        expect_whole(&whole, path, false, parts);
    free_lines(&whole);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_item_is_in_one_part_and_sizes_differ_by_one_at_most),
        cmocka_unit_test(a_part_has_items_of_every_arm),
        cmocka_unit_test(the_parts_of_every_experiment_are_together_its_runs),
        cmocka_unit_test(runs_of_several_columns_are_in_one_part),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
