/* Searches: ranges, the contract of every method, and the points that TPE and halving find. */
#include "experiments/sweep/search.h"
#include "experiments/sweep/sweep_search.h"
#include "base/random.h"
#include "tests/rigs/scratch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- ranges -------------------------------------------------------------------------------------
 */

/* The error names the key and the range. */
static void expect_refused(const char *key, const char *range)
{
    struct space s = {0};
    char setting[64];
    snprintf(setting, sizeof setting, "here: %s=%s", key, range);
    assert_int_equal(space_add_range(&s, key, range, "here"), ERROR_USAGE);
    if (strstr(error_message(), setting) == NULL)
        fail_msg("'%s' is not in: %s", setting, error_message());
    space_close(&s);
}

static void a_range_is_read_with_its_scale_and_checked_against_its_key(void **state)
{
    (void)state;
    struct space s = {0};
    assert_true(search_is_range("0.001..0.3:log") && search_is_range("1..2"));
    assert_false(search_is_range("0.5") || search_is_range("../data") || search_is_range("none"));
    assert_false(search_is_range("2024/../data") || search_is_range("info/../x"));
    assert_int_equal(space_add_range(&s, "lr", "0.001..0.1:log:5", "here"), OK);
    assert_int_equal(space_add_range(&s, "batch", "16..256", "here"), OK);
    const struct dimension *lr = &s.at[0], *batch = &s.at[1];
    assert_true(lr->low == 0.001 && lr->high == 0.1 && lr->logarithmic && lr->points == 5);
    assert_true(batch->whole && !batch->logarithmic);
    assert_true(dimension_number(lr, 0.5) == 0.01 && dimension_number(batch, 0.5) == 136);
    assert_true(fabs(dimension_place(lr, 0.01) - 0.5) < 1e-12);
    space_close(&s);
}

static void an_invalid_range_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *key, *range, *valid_key, *valid_range; /* the two differ in one mistake */
    } cases[] = {
        {"lr", "0.1..0.01", "lr", "0.01..0.1"},    {"lr", "0..0.1:log", "lr", "0..0.1"},
        {"lr", "0.1..1:logs", "lr", "0.1..1:log"}, {"lr", "0.1..1e9", "lr", "0.1..1"},
        {"damping", "1..2", "lr", "1..2"},         {"lr", "0.1..", "lr", "0.1..1"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct space s = {0};
        expect_refused(cases[i].key, cases[i].range);
        assert_int_equal(space_add_range(&s, cases[i].valid_key, cases[i].valid_range, "here"), OK);
        space_close(&s);
    }
}

/* ---- the contract of every search
 * ----------------------------------------------------------------
 */

static void open_space(struct space *s)
{
    *s = (struct space){0};
    const char *const names[] = {"none", "inverse", "polynomial"};
    assert_int_equal(space_add_range(s, "lr", "0.001..1:log:3", "here"), OK);
    assert_int_equal(space_add_range(s, "momentum", "0..0.99:2", "here"), OK);
    assert_int_equal(space_add_choice(s, "damping", names, 3, "here"), OK);
    assert_int_equal(space_add_range(s, "batch", "8..64:log:2", "here"), OK);
}

static void open_search(struct search *out, const struct space *space, const char *const *texts)
{
    struct settings settings = {0};
    int count = 0;
    while (texts[count] != NULL)
        count++;
    assert_int_equal(settings_read_arguments(&settings, count, (char **)texts), OK);
    assert_int_equal(search_open(out, space, &settings), OK);
    settings_free(&settings);
}
#define OPEN(out, space, ...) open_search(out, space, (const char *const[]){__VA_ARGS__, NULL})

static void expect_grid(const char *key, const char *range, const char *const values[3])
{
    struct space s = {0};
    struct search grid;
    struct settings point = {0};
    size_t added;
    assert_int_equal(space_add_range(&s, key, range, "here"), OK);
    OPEN(&grid, &s, "search=grid");
    assert_int_equal(search_next(&grid, &added), OK);
    assert_int_equal(added, 3);
    for (size_t i = 0; i < added; i++)
        search_settings(&grid, &grid.trials[i], &point);
    for (size_t i = 0; i < added; i++)
        assert_string_equal(point.at[i].value, values[i]);
    settings_free(&point);
    search_close(&grid);
    space_close(&s);
}

/* The end of the first range needs five digits, and its width is a thousandth of its numbers. The
 * ends of the second one have more digits than the point between them. */
static void a_narrow_range_keeps_its_ends_and_differing_points(void **state)
{
    (void)state;
    expect_grid("momentum", "0.999..0.99999:3",
                (const char *const[3]){"0.999", "0.999495", "0.99999"});
    expect_grid("lr", "0.123456..0.654321:3",
                (const char *const[3]){"0.123456", "0.3889", "0.654321"});
}

/* Minimum at lr 0.03, momentum 0.5, damping inverse; it does not depend on the batch. */
static double some_loss(const double *at)
{
    double a = log10(at[0] / 0.03), b = at[1] - 0.5;
    return a * a + b * b + (at[2] == 1 ? 0 : 0.3);
}

/* Runs a search to its end; returns the best score. */
static double run(struct search *s, double (*loss)(const double *at))
{
    size_t added;
    assert_int_equal(search_next(s, &added), OK);
    while (added > 0) {
        for (size_t i = 0; i < s->count; i++)
            if (isnan(s->trials[i].score))
                s->trials[i].score = -loss(s->trials[i].at);
        assert_int_equal(search_next(s, &added), OK);
    }
    assert_true(search_has_ended(s));
    assert_int_equal(s->count, search_total(s));
    return search_best(s)->score;
}

static void every_search_stays_in_its_space_and_repeats_with_its_seed(void **state)
{
    (void)state;
    struct space space;
    open_space(&space);
    for (size_t k = 0; k < search_registry.count; k++) {
        struct search one, two;
        char name[32];
        snprintf(name, sizeof name, "search=%s", search_registry.entries[k]->name);
        OPEN(&one, &space, name, "search.seed=7");
        OPEN(&two, &space, name, "search.seed=7");
        double best = run(&one, some_loss);
        assert_true(best == run(&two, some_loss));
        assert_memory_equal(one.trials, two.trials, one.count * sizeof *one.trials);
        for (size_t i = 0; i < one.count; i++) {
            const double *at = one.trials[i].at;
            assert_true(at[0] >= 0.001 && at[0] <= 1 && at[1] >= 0 && at[1] <= 0.99);
            assert_true(at[2] == 0 || at[2] == 1 || at[2] == 2);
            assert_true(at[3] >= 8 && at[3] <= 64 && at[3] == nearbyint(at[3]));
            assert_true(one.trials[i].part > 0 && one.trials[i].part <= 1);
        }
        search_close(&one);
        search_close(&two);
    }
    space_close(&space);
}

static void a_round_waits_for_all_scores_of_the_previous_one(void **state)
{
    (void)state;
    struct space space;
    struct search s;
    size_t added;
    open_space(&space);
    OPEN(&s, &space, "search=tpe", "search.trials=6", "search.startup=4", "search.batch=2");
    assert_int_equal(search_next(&s, &added), OK);
    assert_int_equal(added, 4);
    for (size_t i = 0; i < 3; i++)
        s.trials[i].score = 0;
    assert_int_equal(search_next(&s, &added), OK);
    assert_int_equal(added, 0);
    assert_false(search_has_ended(&s));
    s.trials[3].score = -INFINITY;
    assert_int_equal(search_next(&s, &added), OK);
    assert_int_equal(added, 2);
    search_close(&s);
    space_close(&space);
}

static void a_grid_has_every_combination_and_varies_the_last_key_first(void **state)
{
    (void)state;
    struct space space;
    struct search s;
    size_t added;
    open_space(&space);
    OPEN(&s, &space, "search=grid");
    assert_int_equal(search_next(&s, &added), OK);
    assert_int_equal(added, 3 * 2 * 3 * 2);
    assert_true(s.trials[0].at[0] == 0.001 && s.trials[0].at[3] == 8 && s.trials[1].at[3] == 64);
    assert_true(s.trials[35].at[0] == 1 && s.trials[12].at[0] == 0.03162);
    search_close(&s);
    space_close(&space);
}

static void a_grid_over_a_range_without_points_and_a_key_of_another_search_are_refused(void **state)
{
    (void)state;
    struct space space = {0};
    struct search s;
    struct settings settings = {0};
    assert_int_equal(space_add_range(&space, "lr", "0.1..1", "here"), OK);
    assert_int_equal(search_open(&s, &space, &settings), ERROR_USAGE);
    assert_non_null(strstr(error_message(), "here: lr "));
    settings_add(&settings, "search", "random", "here");
    assert_int_equal(search_open(&s, &space, &settings), OK);
    search_close(&s);
    settings_add(&settings, "search.gamma", "0.5", "here");
    assert_int_equal(search_open(&s, &space, &settings), ERROR_USAGE);
    assert_non_null(strstr(error_message(), "search.gamma"));
    settings_free(&settings);
    space_close(&space);
}

/* ---- search.per: one search for each value of a key
 * -----------------------------------------------
 */

/* The status of `gradlag sweep --dry-run search=random search.per=workers,lr` with these values. */
static status dry_run(const char *workers, const char *lr, struct plan_part part)
{
    char file[128], values[2][64];
    const char *const texts[] = {file,
                                 values[0],
                                 values[1],
                                 "momentum=0,0.9",
                                 "search=random",
                                 "mode=async",
                                 "search.per=workers,lr"};
    struct settings read = {0};
    const struct plan_options how = {.jobs = 1, .part = part};
    snprintf(file, sizeof file, "results=%s/none.db", scratch_folder());
    snprintf(values[0], sizeof values[0], "workers=%s", workers);
    snprintf(values[1], sizeof values[1], "lr=%s", lr);
    assert_int_equal(settings_read_arguments(&read, COUNT_OF(texts), (char **)texts), OK);
    const status result = sweep_search(&read, &how, true, false);
    settings_free(&read);
    return result;
}

/* Otherwise --part could put the same runs into two parts. */
static void a_repeated_value_of_search_per_is_refused(void **state)
{
    (void)state;
    for (unsigned number = 1; number <= 2; number++) {
        const struct plan_part part = {number, 2};
        assert_int_equal(dry_run("1,4", "0.1,0.2", part), OK);
        assert_int_equal(dry_run("1,4,1", "0.1,0.2", part), ERROR_USAGE);
        assert_non_null(strstr(error_message(), "workers"));
        assert_int_equal(dry_run("1,4", "0.1,0.2,0.10", part), ERROR_USAGE);
        assert_non_null(strstr(error_message(), "lr"));
    }
}

/* The status of `gradlag sweep --dry-run search=random` with these two settings. */
static status dry_search(const char *first, const char *second)
{
    char file[128];
    const char *const texts[] = {file,           "search=random", "search.trials=2",
                                 "lr=0.01..0.1", first,           second};
    struct settings read = {0};
    const struct plan_options how = {.jobs = 1};
    snprintf(file, sizeof file, "results=%s/none.db", scratch_folder());
    assert_int_equal(settings_read_arguments(&read, COUNT_OF(texts), (char **)texts), OK);
    const status result = sweep_search(&read, &how, true, false);
    settings_free(&read);
    return result;
}

static void a_search_refuses_a_dotted_key_that_no_value_of_its_part_has(void **state)
{
    (void)state;
    assert_int_equal(dry_search("damping=none,polynomial", "damping.power=0.5"), OK);
    assert_int_equal(dry_search("damping.power=0.5", "damping=none,polynomial"), OK);
    static const char *const wrong[][2] = {{"damping=none,inverse", "damping.power=0.5"},
                                           {"damping=none,inverse", "damping.power=0.5,0.6"},
                                           {"damping.power=0.5..1", "damping=none,inverse"},
                                           {"damping=none,polynomial", "damping.powr=0.5"},
                                           {"damping=none,polynomial", "model.size=5"}};
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        const char *key = strstr(wrong[i][0], "damping.p") != NULL ? wrong[i][0] : wrong[i][1];
        char name[32];
        snprintf(name, sizeof name, "%.*s", (int)strcspn(key, "="), key);
        assert_int_equal(dry_search(wrong[i][0], wrong[i][1]), ERROR_USAGE);
        assert_non_null(strstr(error_message(), name));
    }
}

/* ---- results of searches --------------------------------------------------------------------
 */

static double quadratic(const double *at)
{
    return (at[0] - 0.7) * (at[0] - 0.7) + (at[1] - 0.2) * (at[1] - 0.2);
}

/* Branin's function, minimum 0.3979, a test of Bergstra et al. */
static double branin(const double *at)
{
    double x = 15 * at[0] - 5, y = 15 * at[1];
    double a = y - 5.1 / (4 * M_PI * M_PI) * x * x + 5 / M_PI * x - 6;
    return a * a + 10 * (1 - 1 / (8 * M_PI)) * cos(x) + 10;
}

/* The share of seeds for which TPE's best is better than random search's, at equal budgets. */
static double share_won(const struct space *space, double (*loss)(const double *at))
{
    enum { SEEDS = 40 };
    unsigned won = 0;
    for (unsigned seed = 0; seed < SEEDS; seed++) {
        struct search tpe, random;
        char number[32];
        snprintf(number, sizeof number, "search.seed=%u", seed);
        OPEN(&tpe, space, "search=tpe", "search.trials=60", number);
        OPEN(&random, space, "search=random", "search.trials=60", number);
        won += run(&tpe, loss) > run(&random, loss);
        search_close(&tpe);
        search_close(&random);
    }
    return (double)won / SEEDS;
}

/* By chance, TPE would win 30 or more of 40 comparisons about once in a thousand times. */
static void tpe_finds_better_points_than_random_search(void **state)
{
    (void)state;
    struct space mixed, plain = {0};
    open_space(&mixed);
    assert_int_equal(space_add_range(&plain, "momentum", "0..0.999", "here"), OK);
    assert_int_equal(space_add_range(&plain, "label_smoothing", "0..1", "here"), OK);
    assert_true(share_won(&plain, quadratic) >= 0.75);
    assert_true(share_won(&plain, branin) >= 0.75);
    assert_true(share_won(&mixed, some_loss) >= 0.75);
    space_close(&mixed);
    space_close(&plain);
}

static double loss_of_choices(const double *at)
{
    return at[0] + 2 * at[1] + 4 * at[2];
}

static void halving_keeps_the_best_of_each_rung(void **state)
{
    (void)state;
    struct space space;
    struct search s;
    open_space(&space);
    OPEN(&s, &space, "search=halving", "search.trials=27", "search.eta=3");
    run(&s, some_loss);
    assert_int_equal(s.count, 27 + 9 + 3 + 1);
    double cost = 0; /* four rungs, each at the cost of one full run */
    for (size_t i = 0; i < s.count; i++)
        cost += s.trials[i].part;
    assert_true(fabs(cost - 4) < 1e-12);
    static const size_t begins[] = {0, 27, 36, 39, 40};
    for (unsigned rung = 0; rung < 4; rung++)
        for (size_t i = begins[rung]; i < begins[rung + 1]; i++)
            assert_true(fabs(s.trials[i].part - pow(3, (double)rung - 3)) < 1e-12);
    size_t ranked[27];
    search_rank(&s, 0, 27, ranked);
    for (size_t i = 0; i < 9; i++)
        assert_memory_equal(s.trials[27 + i].at, s.trials[ranked[i]].at, sizeof s.trials[0].at);
    assert_ptr_equal(search_best(&s), &s.trials[39]);
    assert_memory_equal(s.trials[39].at, s.trials[ranked[0]].at, sizeof s.trials[0].at);
    search_close(&s);
    OPEN(&s, &space, "search=halving", "search.trials=10", "search.eta=3", "search.rungs=2");
    run(&s, some_loss);
    assert_int_equal(s.count, 10 + 3);
    assert_true(fabs(s.trials[0].part - 1.0 / 3) < 1e-12);
    search_close(&s);
    space_close(&space);
}

/* The space has 8 points. */
static void halving_tries_different_points_in_each_rung(void **state)
{
    (void)state;
    struct space space = {0};
    struct search s;
    const char *const names[] = {"none", "inverse"}, *const rates[] = {"0.01", "0.1"};
    assert_int_equal(space_add_range(&space, "workers", "1..2", "here"), OK);
    assert_int_equal(space_add_choice(&space, "damping", names, 2, "here"), OK);
    assert_int_equal(space_add_choice(&space, "lr", rates, 2, "here"), OK);
    static const size_t rungs[][4] = {{27, 9, 3, 1}, {8, 2, 0, 0}, {6, 2, 0, 0}};
    for (size_t n = 0; n < COUNT_OF(rungs); n++) {
        char trials[32];
        snprintf(trials, sizeof trials, "search.trials=%zu", rungs[n][0]);
        OPEN(&s, &space, "search=halving", trials);
        run(&s, loss_of_choices);
        for (size_t rung = 0, begin = 0; rung < 4; begin += rungs[n][rung++]) {
            size_t different = 0;
            for (size_t i = 0; i < rungs[n][rung]; i++) {
                bool copy = false;
                for (size_t k = 0; k < i; k++)
                    copy = copy || memcmp(s.trials[begin + i].at, s.trials[begin + k].at,
                                          sizeof s.trials[0].at) == 0;
                different += !copy;
            }
            assert_int_equal(different, rungs[n][rung] < 8 ? rungs[n][rung] : 8);
        }
        search_close(&s);
    }
    space_close(&space);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_range_is_read_with_its_scale_and_checked_against_its_key),
        cmocka_unit_test(an_invalid_range_is_refused),
        cmocka_unit_test(a_narrow_range_keeps_its_ends_and_differing_points),
        cmocka_unit_test(every_search_stays_in_its_space_and_repeats_with_its_seed),
        cmocka_unit_test(a_round_waits_for_all_scores_of_the_previous_one),
        cmocka_unit_test(a_grid_has_every_combination_and_varies_the_last_key_first),
        cmocka_unit_test(
            a_grid_over_a_range_without_points_and_a_key_of_another_search_are_refused),
        cmocka_unit_test(a_repeated_value_of_search_per_is_refused),
        cmocka_unit_test(a_search_refuses_a_dotted_key_that_no_value_of_its_part_has),
        cmocka_unit_test(tpe_finds_better_points_than_random_search),
        cmocka_unit_test(halving_keeps_the_best_of_each_rung),
        cmocka_unit_test(halving_tries_different_points_in_each_rung),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
