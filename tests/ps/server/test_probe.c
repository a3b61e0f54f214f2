/* Probes compare every n-th gradient with a fresh one of the same batch, and change no result. */
#include "tests/rigs/process_rig.h"

#include "ps/core/arithmetic.h"
#include "tests/ps/core/core_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <math.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COUNT = 1003 };

/* (3, 4) and (4, 3): 24 / 25 */
static void the_cosine_is_that_of_the_angle(void **state)
{
    (void)state;
    static float a[COUNT], b[COUNT], c[COUNT];
    a[5] = b[900] = 3;
    a[900] = b[5] = 4;
    c[6] = -7;
    assert_true(fabs(vector_cosine(COUNT, a, b) - 0.96) < 1e-15);
    assert_true(vector_cosine(COUNT, a, c) == 0);
    c[6] = 0;
    c[5] = -6e-20f;
    c[900] = -8e-20f;
    assert_true(fabs(vector_cosine(COUNT, a, c) + 1) < 1e-6);
    memset(c, 0, sizeof c);
    assert_true(isnan(vector_cosine(COUNT, a, c)));
    core_rig_fill(a, COUNT, 3);
    assert_true(vector_cosine(COUNT, a, a) == 1);
}

static void expect_same_runs(struct process_rig *r)
{
    process_expect_answer(r, "SELECT count(*) || ' ' || count(DISTINCT parameters_sha256) FROM run",
                          "2 1");
    process_expect_answer(r, "SELECT count(*) FROM push WHERE run_id = 1 AND cosine IS NOT NULL",
                          "0");
}

static void a_probe_changes_neither_bits_nor_virtual_times(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "engine=virtual", "pace=gamma", "workers=5",
                             "damping=rescaled", "correction=dc-asgd-a", "virtual.threads=2"),
                     OK);
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "engine=virtual", "pace=gamma", "workers=5",
                             "damping=rescaled", "correction=dc-asgd-a", "virtual.threads=2",
                             "probe_every=3"),
                     OK);
    expect_same_runs(r);
    process_expect_answer(r, "SELECT count(DISTINCT train_seconds) FROM run", "1");
    process_expect_answer(
        r,
        "SELECT count(*) FROM push a JOIN push b ON a.number = b.number AND a.run_id = 1 AND "
        "b.run_id = 2 WHERE a.at_seconds <> b.at_seconds OR a.worker <> b.worker OR "
        "a.pull_us <> b.pull_us OR a.queue_us <> b.queue_us OR a.gap <> b.gap",
        "0");
    process_expect_answer(r,
                          "SELECT count(*) FROM push WHERE run_id = 2 AND "
                          "(cosine IS NOT NULL) <> (arrival % 3 = 0)",
                          "0");
    process_expect_answer(r, "SELECT min(cosine) >= -1 AND max(cosine) <= 1 FROM push", "1");
    /* The cosine is 1 exactly for gradients that are not stale. */
    process_expect_answer(r, "SELECT count(*) FROM push WHERE staleness = 0 AND cosine <> 1", "0");
    process_expect_answer(r, "SELECT count(*) FROM push WHERE staleness > 0 AND cosine = 1", "0");
    process_expect_answer(r, "SELECT count(*) > 10 FROM push WHERE cosine < 1", "1");
    assert_int_equal(RIG_RUN(r, "query", "cosine-by-staleness", "run=2"), OK);
    assert_non_null(strstr(process_output(r), "mean_cosine"));
}

static void probes_do_not_change_repeatable_real_runs(void **state)
{
    struct process_rig *r = *state;
    static const char *const settings[][2] = {{"workers=1", "consistency=asp"},
                                              {"workers=3", "consistency=bsp"}};
    char *file = strdup(process_path(r, "results.db"));
    for (size_t i = 0; i < COUNT_OF(settings); i++) {
        assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, settings[i][0], settings[i][1]), OK);
        assert_int_equal(
            RIG_RUN(r, "run", RIG_SMALL, settings[i][0], settings[i][1], "probe_every=1"), OK);
        expect_same_runs(r);
        /* The server's fresh gradient equals the worker's, bit for bit. */
        process_expect_answer(r, "SELECT count(*) FROM push WHERE run_id = 2 AND cosine = 1", "60");
        assert_int_equal(remove(file), 0);
    }
    free(file);
}

static void a_replay_computes_the_same_cosines(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "workers=3", "pace=gamma", "pace.mean_ms=1",
                             "consistency=softsync", "probe_every=2"),
                     OK);
    process_expect_answer(r, "SELECT count(cosine) >= 30 FROM push", "1");
    assert_int_equal(RIG_RUN(r, "replay", "1"), OK);
    assert_int_equal(RIG_RUN(r, "replay", "1", "probe_every=5"), OK);
    sqlite3 *db = NULL;
    assert_int_equal(sqlite3_open(process_path(r, "results.db"), &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db,
                                  "UPDATE push SET cosine = cosine - 0.001 WHERE number = "
                                  "(SELECT number FROM push WHERE arrival = 20)",
                                  NULL, NULL, NULL),
                     SQLITE_OK);
    sqlite3_close(db);
    assert_int_equal(RIG_RUN(r, "replay", "1"), ERROR_OTHER);
    process_expect_error(r, "cosine");
}

static void a_run_may_end_during_a_probe(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "model=mlp", "workers=4", "lr=1e6",
                             "schedule=constant", "samples=60000", "probe_every=1"),
                     ERROR_DIVERGED);
    assert_int_equal(RIG_RUN(r, "replay", "last"), OK);
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "mode=sync", "probe_every=1"), ERROR_USAGE);
    process_expect_error(r, "mode=sync");
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, process_set_up, process_tear_down)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_cosine_is_that_of_the_angle),
        TEST(a_probe_changes_neither_bits_nor_virtual_times),
        TEST(probes_do_not_change_repeatable_real_runs),
        TEST(a_replay_computes_the_same_cosines),
        TEST(a_run_may_end_during_a_probe),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
