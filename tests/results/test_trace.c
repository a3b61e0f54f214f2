/* Traces of runs in every mode: valid JSON, nested spans, and times equal to the recorded rows. */
#include "base/memory.h"
#include "base/text.h"
#include "tests/rigs/process_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "results/query/trace.h"

enum { NAMES = 11, PROCESSES = 8, LANES = 3 };
static const char *const names[NAMES] = {
    "step",    "data",      "forward", "backward",        "exchange",  "apply",
    "compute", "push-pull", "pace",    "hidden exchange", "evaluation"};

struct trace_seen {
    unsigned processes; /* number of named processes */
    char first[16];     /* name of the first process */
    unsigned count[NAMES];
    double total_us[NAMES], last_us[NAMES]; /* last_us: the latest end */
};

static unsigned number_of(const char *name)
{
    for (unsigned i = 0; i < NAMES; i++)
        if (strcmp(names[i], name) == 0)
            return i;
    fail_msg("unexpected span '%s'", name);
    return 0;
}

static double number(const json_t *event, const char *key)
{
    const json_t *value = json_object_get(event, key);
    assert_true(json_is_number(value));
    return json_number_value(value);
}

/* Spans of one lane in file order: each begins after the previous one has ended, or lies inside it.
 */
struct seen_lane {
    double from[4], to[4];
    unsigned depth;
};

static void nest(struct seen_lane *l, double from, double to)
{
    while (l->depth > 0 && from >= l->to[l->depth - 1])
        l->depth--;
    if (l->depth > 0)
        assert_true(from >= l->from[l->depth - 1] && to <= l->to[l->depth - 1]);
    assert_true(l->depth < 4);
    l->from[l->depth] = from;
    l->to[l->depth++] = to;
}

static struct trace_seen read_trace(struct process_rig *r, const char *name)
{
    struct trace_seen seen = {0};
    static struct seen_lane lanes[PROCESSES][LANES];
    json_error_t error;
    json_t *root = json_load_file(process_path(r, name), JSON_REJECT_DUPLICATES, &error);
    if (root == NULL)
        fail_msg("%s:%d: %s", name, error.line, error.text);
    const json_t *events = json_object_get(root, "traceEvents"), *event;
    size_t i;
    memset(lanes, 0, sizeof lanes);
    assert_true(json_is_array(events));
    json_array_foreach(events, i, event)
    {
        const char *phase = json_string_value(json_object_get(event, "ph"));
        const char *what = json_string_value(json_object_get(event, "name"));
        size_t process = (size_t)number(event, "pid"), lane = (size_t)number(event, "tid");
        assert_true(process < PROCESSES && lane < LANES);
        if (strcmp(phase, "M") == 0) {
            assert_string_equal(what, "process_name");
            const json_t *name_of = json_object_get(json_object_get(event, "args"), "name");
            if (seen.processes == 0)
                snprintf(seen.first, sizeof seen.first, "%s", json_string_value(name_of));
            seen.processes++;
            continue;
        }
        assert_string_equal(phase, "X");
        assert_true(process < seen.processes);
        double from = number(event, "ts"), length = number(event, "dur");
        assert_true(from >= 0 && length >= 0);
        nest(&lanes[process][lane], from, from + length);
        unsigned k = number_of(what);
        seen.count[k]++;
        seen.total_us[k] += length;
        const double end = number(event, "ts") + length;
        seen.last_us[k] = end > seen.last_us[k] ? end : seen.last_us[k];
    }
    json_decref(root);
    return seen;
}

/* Asserts that the spans of this name sum to the value in the rows. Rounding may make neighbours
 * overlap, so the sum may be slightly smaller. */
static void expect_total(struct process_rig *r, const struct trace_seen *seen, const char *name,
                         const char *sql)
{
    double wanted = strtod(process_ask(r, sql), NULL), is = seen->total_us[number_of(name)];
    double rounded = 1 + 0.5 * seen->count[number_of(name)];
    if (!(is <= wanted + rounded && is >= 0.9 * wanted - 1000))
        fail_msg("%s: %g us in the trace, %g in the rows", name, is, wanted);
}

static void synchronous_ranks_have_steps_with_all_parts(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "mode=sync", "workers=3", "trace=t.json"), OK);
    struct trace_seen seen = read_trace(r, "t.json");
    assert_int_equal(seen.processes, 3);
    assert_int_equal(seen.count[number_of("step")], 60);
    assert_true(seen.count[number_of("forward")] > 50 && seen.count[number_of("backward")] > 50);
    assert_true(seen.count[number_of("exchange")] > 50);
    assert_int_equal(seen.count[number_of("compute")], 0);
    expect_total(r, &seen, "forward", "SELECT sum(forward_us) FROM step");
    expect_total(r, &seen, "backward", "SELECT sum(backward_us) FROM step");
    expect_total(r, &seen, "exchange", "SELECT sum(exchange_us) FROM step");
    assert_int_equal(seen.count[number_of("pace")], 0);
}

static void evaluations_are_spans_of_the_first_process(void **state)
{
    struct process_rig *r = *state;
    static const char *const modes[] = {"mode=sync", "mode=async", "mode=pipeline"};
    for (size_t i = 0; i < COUNT_OF(modes); i++) {
        char sql[96];
        assert_int_equal(RIG_RUN(r, "run", RIG_DATA, "model=mlp", "epochs=1", "batch=10", modes[i],
                                 "workers=2", "evaluate_every=0.25", "trace=t.json"),
                         OK);
        struct trace_seen seen = read_trace(r, "t.json");
        assert_int_equal(seen.count[number_of("evaluation")], 4);
        snprintf(sql, sizeof sql,
                 "SELECT sum(took_seconds) * 1e6 FROM evaluation WHERE run_id = %zu", i + 1);
        assert_true(seen.total_us[number_of("evaluation")] > 0);
        expect_total(r, &seen, "evaluation", sql);
        process_expect_answer(r,
                              "SELECT count(*) FROM evaluation WHERE took_seconds > 0 AND run_id "
                              "= (SELECT max(id) FROM run)",
                              "4");
    }
    assert_int_equal(RIG_RUN(r, "query", "where-time-goes", "--csv"), OK);
    assert_non_null(strstr(process_output(r), "evaluation_seconds"));
}

static void stages_have_a_span_for_each_pass(void **state)
{
    struct process_rig *r = *state;
    static const char *const orders[] = {"pipeline=gpipe", "pipeline=1f1b"};
    for (size_t i = 0; i < COUNT_OF(orders); i++) {
        assert_int_equal(RIG_RUN(r, "run", RIG_DATA, "mode=pipeline", "model=mlp", "workers=3",
                                 "batch=20", "micro_batches=4", "samples=200", "evaluate_every=0.1",
                                 orders[i], "trace=t.json"),
                         OK);
        struct trace_seen seen = read_trace(r, "t.json");
        assert_int_equal(seen.processes, 3);
        assert_string_equal(seen.first, "rank 0");
        assert_int_equal(seen.count[number_of("step")], 30);
        assert_true(seen.count[number_of("forward")] > 110);
        assert_true(seen.count[number_of("forward")] <= 120);
        assert_true(seen.count[number_of("backward")] > 110);
        char sql[96];
        static const char *const parts[] = {"forward", "backward", "apply"};
        for (size_t k = 0; k < COUNT_OF(parts); k++) {
            snprintf(sql, sizeof sql, "SELECT sum(%s_us) FROM step WHERE run_id = %zu", parts[k],
                     i + 1);
            expect_total(r, &seen, parts[k], sql);
        }
    }
    process_expect_answer(r, "SELECT count(*) || ' ' || count(DISTINCT micro_batch) FROM pass",
                          "480 4");
    process_expect_answer(
        r,
        "SELECT count(*) FROM (SELECT s.forward_us, s.backward_us, sum(CASE p.backward "
        "WHEN 0 THEN p.compute_us ELSE 0 END) AS f, sum(CASE p.backward WHEN 1 THEN "
        "p.compute_us ELSE 0 END) AS b FROM step s JOIN pass p USING (run_id, "
        "update_version, worker) GROUP BY run_id, update_version, worker) WHERE "
        "abs(f - forward_us) > 4 OR abs(b - backward_us) > 4",
        "0");
}

/* Without flushes updates overlap. */
static void stages_without_flushes_are_ranks(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", RIG_DATA, "mode=pipeline", "pipeline=pipedream", "model=mlp",
                             "workers=3", "batch=10", "samples=6000", "evaluate_every=2",
                             "trace=t.json"),
                     OK);
    struct trace_seen seen = read_trace(r, "t.json");
    assert_int_equal(seen.processes, 3);
    assert_string_equal(seen.first, "rank 0");
    process_expect_answer(r,
                          "SELECT group_concat(passes, ' ') FROM (SELECT count(*) AS passes FROM "
                          "pass GROUP BY worker)",
                          "1200 1200 1200");
    expect_total(r, &seen, "forward", "SELECT sum(forward_us) FROM push");
    expect_total(r, &seen, "backward", "SELECT sum(backward_us) FROM push");
    expect_total(r, &seen, "apply", "SELECT sum(apply_us) FROM push");
    process_expect_answer(r,
                          "SELECT abs(sum(compute_us) - (SELECT sum(compute_us) FROM pass)) < "
                          "count(*) FROM push",
                          "1");
}

static void asynchronous_workers_and_their_server_are_in_one_trace(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "mode=async", "workers=3", "trace=t-{run}.json"),
                     OK);
    struct trace_seen seen = read_trace(r, "t-1.json");
    assert_int_equal(seen.processes, 4);
    assert_int_equal(seen.count[number_of("compute")],
                     atoi(process_ask(r, "SELECT count(*) FROM push")));
    assert_int_equal(seen.count[number_of("apply")],
                     atoi(process_ask(r, "SELECT count(*) FROM push")));
    assert_true(seen.count[number_of("push-pull")] > 30);
    assert_true(seen.total_us[number_of("compute")] > 0);
    expect_total(r, &seen, "forward", "SELECT sum(forward_us) FROM push");
    expect_total(r, &seen, "backward", "SELECT sum(backward_us) FROM push");
    process_expect_answer(r,
                          "SELECT count(*) FROM push WHERE data_us + forward_us + backward_us > "
                          "compute_us + 2",
                          "0");
    process_expect_answer(r,
                          "SELECT min(forward_us) > 0 AND min(backward_us) > 0 FROM "
                          "where_time_goes",
                          "1");
}

/* Training goes on during evaluations: they do not stop the clocks of others. */
static void an_evaluation_beside_training_is_no_pause(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "mode=async", "workers=2", "pace=constant",
                             "pace.mean_ms=5", "evaluate_every=0.02", "evaluation_pause=no",
                             "trace=t.json"),
                     OK);
    process_expect_answer(
        r, "SELECT count(*) > 1 FROM event, evaluation WHERE code = 'evaluation_beside'", "1");
    struct trace_seen seen = read_trace(r, "t.json");
    assert_true(seen.total_us[number_of("evaluation")] > 1000);
    const double last_us =
        strtod(process_ask(r, "SELECT max(1e6 * at_seconds + apply_us) FROM push"), NULL);
    assert_true(seen.last_us[number_of("apply")] < last_us + 1000);
}

/* The parts are sums over the local steps of a push. */
static void local_steps_have_parts_of_their_time(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "mode=async", "workers=2", "optimizer=sgd",
                             "outer=sgd", "outer.steps=5", "trace=t.json"),
                     OK);
    process_expect_answer(r, "SELECT min(forward_us) > 0 AND min(backward_us) > 0 FROM push", "1");
    /* Without trace= the parts are not recorded. */
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "mode=async", "workers=2"), OK);
    process_expect_answer(r, "SELECT count(forward_us) FROM push WHERE run_id = 2", "0");
}

static void virtual_clusters_use_virtual_time(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "engine=virtual", "mode=async", "workers=3",
                             "pace=constant", "pace.mean_ms=10", "network.latency_ms=1",
                             "trace=a.json"),
                     OK);
    struct trace_seen seen = read_trace(r, "a.json");
    assert_int_equal(seen.processes, 4);
    expect_total(r, &seen, "compute", "SELECT sum(compute_us) FROM push");
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "engine=virtual", "mode=sync", "workers=3",
                             "pace=constant", "pace.mean_ms=10", "network.latency_ms=1",
                             "trace=s.json"),
                     OK);
    seen = read_trace(r, "s.json");
    assert_int_equal(seen.processes, 3);
    assert_int_equal(seen.count[number_of("step")], 60);
    assert_true(seen.total_us[number_of("compute")] == 60 * 10000);
    expect_total(r, &seen, "exchange", "SELECT sum(exchange_us) FROM step");
}

static void impossible_traces_are_refused_or_reported(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "trace=t.json", "record=evaluations"),
                     ERROR_USAGE);
    process_expect_error(r, "record=all");
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "trace=nowhere/t.json"), ERROR_USAGE);
    process_expect_error(r, "trace=nowhere/t.json");
    assert_int_not_equal(access(process_path(r, "results.db"), F_OK), 0); /* no run was started */
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "trace=/dev/full"), ERROR_RESULTS);
    process_expect_error(r, "trace=/dev/full");
    process_expect_answer(r, "SELECT status FROM run ORDER BY id DESC LIMIT 1", "finished");
}

/* Rows of workers that cannot exist: too many, or negative. */
static void damaged_rows_do_no_harm(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "mode=sync", "workers=2", "samples=6000"), OK);
    char *results = text_copy(process_path(r, "results.db"));
    char *trace = text_copy(process_path(r, "t.json"));
    assert_int_equal(process_shell(r, "sqlite3 results.db 'UPDATE step SET worker = -7 "
                                      "WHERE update_version = 1 AND worker = 1'"),
                     OK);
    assert_int_equal(trace_write(results, "1", trace), OK);
    assert_int_equal(process_shell(r, "sqlite3 results.db 'UPDATE step SET worker = 4294967296 "
                                      "WHERE update_version = 2 AND worker = 1'"),
                     OK);
    assert_int_equal(trace_write(results, "1", trace), ERROR_RESULTS);
    memory_free(results);
    memory_free(trace);
}

static void an_incomplete_trace_is_removed(void **state)
{
    struct process_rig *r = *state;
    struct rlimit kept, little;
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "workers=2", "samples=6000"), OK);
    char *results = text_copy(process_path(r, "results.db"));
    char *trace = text_copy(process_path(r, "t.json"));
    getrlimit(RLIMIT_FSIZE, &kept);
    little = kept;
    little.rlim_cur = 40000; /* SQLite's -shm file takes 32 768 bytes */
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &little);
    status code = trace_write(results, "1", trace);
    setrlimit(RLIMIT_FSIZE, &kept);
    assert_int_equal(code, ERROR_RESULTS);
    assert_non_null(strstr(error_message(), trace));
    assert_int_not_equal(access(trace, F_OK), 0);
    memory_free(results);
    memory_free(trace);
}

#define TRACE_TEST(name) cmocka_unit_test_setup_teardown(name, process_set_up, process_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TRACE_TEST(synchronous_ranks_have_steps_with_all_parts),
        TRACE_TEST(evaluations_are_spans_of_the_first_process),
        TRACE_TEST(stages_have_a_span_for_each_pass),
        TRACE_TEST(stages_without_flushes_are_ranks),
        TRACE_TEST(an_evaluation_beside_training_is_no_pause),
        TRACE_TEST(local_steps_have_parts_of_their_time),
        TRACE_TEST(asynchronous_workers_and_their_server_are_in_one_trace),
        TRACE_TEST(virtual_clusters_use_virtual_time),
        TRACE_TEST(damaged_rows_do_no_harm),
        TRACE_TEST(an_incomplete_trace_is_removed),
        TRACE_TEST(impossible_traces_are_refused_or_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
