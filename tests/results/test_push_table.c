/* Table push: exact values, declared types, size; and the totals that are written when a run ends.
 */
#include "tests/results/results_rig.h"

#include "results/query/push_reader.h"
#include "base/random.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- rows ---------------------------------------------------------------------------------------
 */

enum { ROWS = 3000 };

static double drawn(struct random_stream *r)
{
    static const double odd[] = {0, 1, 0.5, INFINITY, -INFINITY, 1e-300, 1e300, 0.1};
    uint32_t kind = random_below(r, 12);
    return kind == 0   ? NAN
           : kind == 1 ? NOT_MEASURED
           : kind == 2 ? odd[random_below(r, COUNT_OF(odd))]
           : kind < 6  ? (float)random_normal(r)
                       : random_normal(r);
}

static double whole(double value)
{
    return isfinite(value) ? nearbyint(value) : value;
}

static struct push_record random_push(struct random_stream *r)
{
    static const enum push_outcome outcomes[] = {PUSH_APPLIED, PUSH_AGGREGATED, PUSH_DROPPED_STALE,
                                                 PUSH_DROPPED_LATE, PUSH_NOT_FINITE};
    struct push_record p = {
        .arrival = random_below(r, 1u << 31),
        .update_version = random_below(r, 1u << 20),
        .worker = random_below(r, 4),
        .waited_for = (int32_t)random_below(r, 5) - 1,
        .batch = random_below(r, 1000),
        .sequence = random_below(r, 1000),
        .read_version = random_below(r, 1u << 20),
        .staleness = random_below(r, 100),
        .scale = random_below(r, 2) == 0 ? 1.0 / (1 + random_below(r, 150)) : drawn(r),
        .gap = drawn(r),
        .gradient_norm = drawn(r),
        .loss = drawn(r),
        .outcome = outcomes[random_below(r, COUNT_OF(outcomes))],
        .reason = (enum push_reason)random_below(r, PUSH_BAD_UPDATE + 1),
        .pull_us = whole(1e4 * drawn(r)),
        .compute_us = 7,
        .queue_us = 0,
        .apply_us = 123,
        .at_seconds = random_below(r, 1u << 31) / 1e9,
        .cosine = drawn(r),
        .momentum = drawn(r),
        .total_momentum = drawn(r),
        .server = random_below(r, 3),
    };
    p.rate = random_below(r, 2) == 0 ? 0.02 * p.scale : drawn(r);
    return p;
}

static bool is_not_measured(double a)
{
    static const double nothing = NOT_MEASURED;
    return memcmp(&a, &nothing, sizeof a) == 0;
}

/* NaN and NOT_MEASURED differ; the sign of zero is not stored. */
static void assert_equal_numbers(double a, double b, const char *what, size_t row)
{
    bool same = isnan(a) ? isnan(b) && is_not_measured(a) == is_not_measured(b) : a == b;
    if (!same)
        fail_msg("row %zu: %s was %.17g and was read as %.17g", row, what, a, b);
}

static void every_row_is_read_back_bit_for_bit(void **state)
{
    (void)state;
    static struct push_record rows[ROWS];
    struct random_stream random;
    struct recorded_run run;
    int64_t id;
    random_open(&random, RANDOM_TEST, 2, 0, 0);
    recorder *r = rig_begin(&rig_run, &id);
    for (size_t i = 0; i < ROWS; i++) {
        rows[i] = random_push(&random);
        recorder_push(r, &rows[i]);
    }
    rig_finish(r, &rig_outcome);
    assert_int_equal(recorded_run_read(&run, rig_path, "1"), OK);
    assert_int_equal(run.push_count, ROWS);
    for (size_t i = 0; i < ROWS; i++) {
        const struct push_record *a = &rows[i], *b = &run.pushes[i].record;
        assert_int_equal(run.pushes[i].number, i);
        assert_int_equal(a->arrival, b->arrival);
        assert_int_equal(a->update_version, b->update_version);
        assert_int_equal(a->worker, b->worker);
        assert_int_equal(a->waited_for, b->waited_for);
        assert_int_equal(a->batch, b->batch);
        assert_int_equal(a->sequence, b->sequence);
        assert_int_equal(a->read_version, b->read_version);
        assert_int_equal(a->staleness, b->staleness);
        assert_int_equal(a->outcome, b->outcome);
        assert_int_equal(a->reason, b->reason);
        assert_int_equal(a->server, b->server);
        assert_equal_numbers(a->scale, b->scale, "scale", i);
        assert_equal_numbers(a->rate, b->rate, "rate", i);
        assert_equal_numbers(a->gap, b->gap, "gap", i);
        assert_equal_numbers(a->gradient_norm, b->gradient_norm, "gradient_norm", i);
        assert_equal_numbers(a->loss, b->loss, "loss", i);
        assert_equal_numbers(a->at_seconds, b->at_seconds, "at_seconds", i);
        assert_equal_numbers(a->cosine, b->cosine, "cosine", i);
        assert_equal_numbers(a->momentum, b->momentum, "momentum", i);
        assert_equal_numbers(a->total_momentum, b->total_momentum, "total_momentum", i);
    }
    recorded_run_free(&run);
    assert_string_equal(rig_in_the_file("PRAGMA integrity_check"), "ok");
}

/* Readers such as pandas and DuckDB use the declared types. */
static void every_column_has_its_declared_type(void **state)
{
    (void)state;
    int64_t id;
    struct random_stream random;
    random_open(&random, RANDOM_TEST, 4, 0, 0);
    recorder *r = rig_begin(&rig_run, &id);
    for (size_t i = 0; i < 100; i++) {
        struct push_record p = random_push(&random);
        recorder_push(r, &p);
    }
    rig_finish(r, &rig_outcome);
    assert_string_equal(rig_in_the_file("SELECT type FROM sqlite_master WHERE name = 'push'"),
                        "table");
    sqlite3 *db = NULL;
    sqlite3_stmt *s = NULL;
    assert_int_equal(sqlite3_open(rig_path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(db, "SELECT * FROM push", -1, &s, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_column_count(s), 30);
    while (sqlite3_step(s) == SQLITE_ROW) {
        for (int i = 0; i < sqlite3_column_count(s); i++) {
            const char *declared = sqlite3_column_decltype(s, i);
            const int wanted = strcmp(declared, "INTEGER") == 0 ? SQLITE_INTEGER
                               : strcmp(declared, "REAL") == 0  ? SQLITE_FLOAT
                                                                : SQLITE_TEXT;
            const int type = sqlite3_column_type(s, i);
            assert_true(type == wanted || type == SQLITE_NULL);
        }
    }
    sqlite3_finalize(s);
    sqlite3_close(db);
}

static void a_resumed_run_continues_its_rows(void **state)
{
    (void)state;
    int64_t id;
    recorder *r = rig_begin(&rig_run, &id);
    for (uint64_t i = 0; i < 4; i++) {
        struct push_record p = rig_push(i);
        recorder_push(r, &p);
    }
    recorder_close(&r);
    assert_int_equal(recorder_open(&r, rig_path), OK);
    assert_int_equal(recorder_resume(r, id), OK);
    for (uint64_t i = 4; i < 8; i++) {
        struct push_record p = rig_push(i);
        recorder_push(r, &p);
    }
    rig_finish(r, &rig_outcome);
    assert_string_equal(rig_ask("SELECT group_concat(number, ' ') FROM push"), "0 1 2 3 4 5 6 7");
    assert_string_equal(rig_ask("SELECT sum(pushes) FROM run_staleness"), "8");
}

static void rows_with_impossible_values_are_refused(void **state)
{
    (void)state;
    static const char *const changes[] = {"UPDATE push SET worker = 1000",
                                          "UPDATE push SET worker = 4294967296",
                                          "UPDATE push SET worker = 0, outcome = 'eaten'",
                                          "UPDATE push SET outcome = 'applied', reason = 'hunger'"};
    struct recorded_run run;
    int64_t id;
    recorder *r = rig_begin(&rig_run, &id);
    struct push_record push = rig_push(0);
    recorder_push(r, &push);
    rig_finish(r, &rig_outcome);
    for (size_t i = 0; i < COUNT_OF(changes); i++) {
        assert_int_equal(recorded_run_read(&run, rig_path, "1"), OK);
        assert_int_equal(run.push_count, 1);
        recorded_run_free(&run);
        rig_change(changes[i]);
        assert_int_equal(recorded_run_read(&run, rig_path, "1"), ERROR_RESULTS);
        rig_assert_error_names(rig_path);
        rig_change("UPDATE push SET worker = 0, outcome = 'applied', reason = NULL");
    }
}

/* ---- size ---------------------------------------------------------------------------------------
 */

/* Values as in undamped (rule 0) and damped (rule 1) runs. */
static void record_realistic(unsigned rule, uint64_t pushes)
{
    int64_t id;
    struct random_stream random;
    random_open(&random, RANDOM_TEST, 3, rule, 0);
    recorder *r = rig_begin(&rig_run, &id);
    for (uint64_t i = 0; i < pushes; i++) {
        struct push_record p = rig_push(i);
        uint64_t age = 1 + random_below(&random, 30);
        p.staleness = age > i ? i : age;
        p.read_version = i - p.staleness;
        p.worker = random_below(&random, 16);
        p.batch = p.sequence = i / 16;
        p.scale = rule == 0 || p.staleness == 0 ? 1 : pow((double)p.staleness, -0.5);
        p.rate = 0.02 * (1 - (double)i / (double)pushes) * p.scale;
        p.gap = 1e-4 * random_uniform(&random);
        p.gradient_norm = 1 + random_uniform(&random);
        p.loss = (float)(2.3 * random_uniform(&random));
        p.pull_us = 100 + random_below(&random, 900);
        p.compute_us = 500 + random_below(&random, 900);
        p.queue_us = random_below(&random, 60);
        p.apply_us = random_below(&random, 60);
        p.at_seconds = 1e-3 * ((double)i + random_uniform(&random));
        p.cosine = p.momentum = p.total_momentum = NOT_MEASURED;
        recorder_push(r, &p);
    }
    rig_finish(r, &rig_outcome);
}

/* The table and its index. */
static void a_row_takes_128_bytes_at_most(void **state)
{
    (void)state;
    if (atoi(rig_in_the_file("SELECT sqlite_compileoption_used('ENABLE_DBSTAT_VTAB')")) == 0)
        skip();
    for (unsigned rule = 0; rule < 4; rule++)
        record_realistic(rule % 2, 10000);
    const char *bytes = rig_in_the_file("SELECT sum(pgsize) / 40000.0 FROM dbstat WHERE aggregate "
                                        "= 1 AND name IN (SELECT name FROM sqlite_master WHERE "
                                        "tbl_name = 'push')");
    print_message("%s bytes per row\n", bytes);
    assert_true(atof(bytes) > 40 && atof(bytes) <= 128);
}

/* ---- totals at the end of a run ---------------------------------------------------------------
 */

static const char *const views =
    "SELECT (SELECT group_concat(run_id || ':' || staleness || ':' || pushes || ':' || share || "
    "':' "
    "|| mean_scale, ' ') FROM (SELECT * FROM staleness_histogram ORDER BY 1, 2)) || "
    "(SELECT group_concat(run_id || ':' || worker || ':' || steps || ':' || step_us || "
    "coalesce(pull_us, '-') || coalesce(exchange_us, '-'), ' ') FROM "
    "(SELECT * FROM where_time_goes ORDER BY 1, 2))";

static void record_both_kinds(void)
{
    int64_t id;
    struct run_description sync = rig_run;
    recorder *r = rig_begin(&rig_run, &id);
    for (uint64_t i = 0; i < 9; i++) {
        struct push_record p = rig_push(i);
        p.scale = 1.0 / (double)(1 + i);
        p.outcome = i == 8 ? PUSH_DROPPED_STALE : PUSH_APPLIED;
        recorder_push(r, &p);
    }
    rig_finish(r, &rig_outcome);
    sync.mode = "sync";
    r = rig_begin(&sync, &id);
    for (uint64_t i = 0; i < 4; i++) {
        recorder_step(r, &(struct step_record){.update_version = i / 2,
                                               .worker = (uint32_t)(i % 2),
                                               .compute_us = 10 * (double)i,
                                               .exchange_us = 5});
    }
    rig_finish(r, &rig_outcome);
}

static void views_are_equal_with_and_without_totals(void **state)
{
    (void)state;
    char summarized[512];
    record_both_kinds();
    snprintf(summarized, sizeof summarized, "%s", rig_in_the_file(views));
    assert_non_null(strstr(summarized, "1:0:1:0.125:1.0"));
    rig_change("UPDATE run SET summarized = NULL; DELETE FROM run_staleness; "
               "DELETE FROM run_worker_time");
    assert_string_equal(rig_in_the_file(views), summarized);
}

static void views_do_not_read_the_rows_of_ended_runs(void **state)
{
    (void)state;
    char before[512];
    record_both_kinds();
    snprintf(before, sizeof before, "%s", rig_in_the_file(views));
    rig_change("DELETE FROM push; DELETE FROM step");
    assert_string_equal(rig_in_the_file(views), before);
}

static void rows_after_the_end_are_in_the_totals(void **state)
{
    (void)state;
    int64_t id;
    struct push_record p = rig_push(0);
    recorder *r = rig_begin(&rig_run, &id);
    recorder_push(r, &p);
    assert_int_equal(recorder_finish(r, &rig_outcome), OK);
    p = rig_push(1);
    recorder_push(r, &p);
    recorder_close(&r);
    assert_string_equal(rig_ask("SELECT sum(pushes) FROM staleness_histogram"), "2");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RIG_TEST(every_row_is_read_back_bit_for_bit),
        RIG_TEST(every_column_has_its_declared_type),
        RIG_TEST(a_resumed_run_continues_its_rows),
        RIG_TEST(rows_with_impossible_values_are_refused),
        RIG_TEST(a_row_takes_128_bytes_at_most),
        RIG_TEST(views_are_equal_with_and_without_totals),
        RIG_TEST(views_do_not_read_the_rows_of_ended_runs),
        RIG_TEST(rows_after_the_end_are_in_the_totals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
