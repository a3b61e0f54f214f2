/* Traces of whole runs, in every mode: what a JSON parser reads, that spans nest, that they say
 * what the rows say. */
#include "tests/process_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAMES = 9, PROCESSES = 8, LANES = 2 };
static const char *const names[NAMES] = {"step",      "data",     "forward",
                                         "backward",  "exchange", "apply",
                                         "push-pull", "compute",  "hidden exchange"};

struct seen {
    unsigned processes; /* that were named */
    unsigned count[NAMES];
    double total_us[NAMES];
};

static unsigned number_of(const char *name)
{
    for (unsigned i = 0; i < NAMES; i++)
        if (strcmp(names[i], name) == 0)
            return i;
    assert_string_equal(name, "pace"); /* the only other one */
    return NAMES;
}

static double number(const json_t *event, const char *key)
{
    const json_t *value = json_object_get(event, key);
    assert_true(json_is_number(value));
    return json_number_value(value);
}

/* Of one lane, in the file's order: each begins where the one before has ended, or lies in it. */
struct lane {
    double from[4], to[4];
    unsigned depth;
};

static void nest(struct lane *l, double from, double to)
{
    while (l->depth > 0 && from >= l->to[l->depth - 1])
        l->depth--;
    if (l->depth > 0)
        assert_true(from >= l->from[l->depth - 1] && to <= l->to[l->depth - 1]);
    assert_true(l->depth < 4);
    l->from[l->depth] = from;
    l->to[l->depth++] = to;
}

static struct seen read_trace(struct rig *r, const char *name)
{
    struct seen seen = {0};
    static struct lane lanes[PROCESSES][LANES];
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
            seen.processes++;
            continue;
        }
        assert_string_equal(phase, "X");
        assert_true(process < seen.processes);
        double from = number(event, "ts"), length = number(event, "dur");
        assert_true(from >= 0 && length >= 0);
        nest(&lanes[process][lane], from, from + length);
        unsigned k = number_of(what);
        if (k < NAMES) {
            seen.count[k]++;
            seen.total_us[k] += length;
        }
    }
    json_decref(root);
    return seen;
}

/* Spans of a name last, together, as long as the column says; where neighbours overlapped by a
 * rounding of clocks a little was cut off. */
static void expect_total(struct rig *r, const struct seen *seen, const char *name, const char *sql)
{
    double wanted = strtod(process_ask(r, sql), NULL), is = seen->total_us[number_of(name)];
    if (!(is <= wanted + 1 && is >= 0.9 * wanted - 1000))
        fail_msg("%s: %g us in the trace, %g in the rows", name, is, wanted);
}

static void synchronous_ranks_have_steps_of_all_their_parts(void **state)
{
    struct rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "mode=sync", "workers=3", "trace=t.json"), OK);
    struct seen seen = read_trace(r, "t.json");
    assert_int_equal(seen.processes, 3);
    assert_int_equal(seen.count[number_of("step")], 60);
    assert_true(seen.count[number_of("forward")] > 50 && seen.count[number_of("backward")] > 50);
    assert_true(seen.count[number_of("exchange")] > 50);
    assert_int_equal(seen.count[number_of("compute")], 0);
    expect_total(r, &seen, "forward", "SELECT sum(forward_us) FROM step");
    expect_total(r, &seen, "backward", "SELECT sum(backward_us) FROM step");
    expect_total(r, &seen, "exchange", "SELECT sum(exchange_us) FROM step");
}

static void asynchronous_workers_and_their_server_share_a_file(void **state)
{
    struct rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "mode=async", "workers=3", "trace=t-{run}.json"),
                     OK);
    struct seen seen = read_trace(r, "t-1.json");
    assert_int_equal(seen.processes, 4);
    assert_int_equal(seen.count[number_of("compute")],
                     atoi(process_ask(r, "SELECT count(*) FROM push")));
    assert_int_equal(seen.count[number_of("apply")],
                     atoi(process_ask(r, "SELECT count(*) FROM push")));
    assert_true(seen.count[number_of("push-pull")] > 30);
    assert_true(seen.total_us[number_of("compute")] > 0);
}

static void virtual_clusters_have_virtual_time(void **state)
{
    struct rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "engine=virtual", "mode=async", "workers=3",
                             "pace=constant", "pace.mean_ms=10", "network.latency_ms=1",
                             "trace=a.json"),
                     OK);
    struct seen seen = read_trace(r, "a.json");
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

static void traces_that_cannot_be_are_refused_or_said(void **state)
{
    struct rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "trace=t.json", "record=evaluations"),
                     ERROR_USAGE);
    process_expect_error(r, "record=all");
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "trace=nowhere/t.json"), ERROR_RESULTS);
    process_expect_error(r, "trace=nowhere/t.json: No such file");
    process_expect_answer(r, "SELECT status FROM run", "finished");
}

#define TRACE_TEST(name) cmocka_unit_test_setup_teardown(name, process_set_up, process_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TRACE_TEST(synchronous_ranks_have_steps_of_all_their_parts),
        TRACE_TEST(asynchronous_workers_and_their_server_share_a_file),
        TRACE_TEST(virtual_clusters_have_virtual_time),
        TRACE_TEST(traces_that_cannot_be_are_refused_or_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
