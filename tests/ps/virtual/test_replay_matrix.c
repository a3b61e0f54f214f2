/*
 * Recorded runs under every consistency × damping × (correction or outer rule) of the registries,
 * in the virtual cluster and on real processes, with one server and several: each replays bit for
 * bit, or is refused as the properties of its rules require. A replay under another rule equals a
 * run under that rule, and an exported trace reproduces a run in the virtual cluster.
 *
 *   GRADLAG_REPLAY_MATRIX  full: every combination at every place of places[] (`make nightly`);
 *                          the name of a consistency: all of that one; not set: every rule, and
 *                          every place, a few times
 *   GRADLAG_REPLAY_EVERY   n: only every n-th of these
 */
#include "tests/rigs/process_rig.h"
#include "tests/ps/rules/rule_combinations.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_none(const struct about *about)
{
    return strcmp(about->name, "none") == 0;
}

/* The command line also refuses rules without effect. */
static bool has_effect(const struct combination *c)
{
    bool fresh = c->policy->never_stale;
    bool idle_damping = fresh && !is_none(&c->damping->about) && !c->damping->scales_fresh;
    bool idle_correction = fresh && !is_none(&c->correction->about);
    return !idle_damping && !idle_correction && !(c->policy->even && c->damping->equalizes_workers);
}

/* A place to run; with several servers, reads are snapshots or torn. */
struct matrix_place {
    bool real; /* some of its runs use processes, see is_of_processes(); false: all are virtual */
    unsigned workers, servers;
    const char *read;
};

static const struct matrix_place places[] = {
    {true, 4, 1, NULL},       {false, 3, 1, NULL},       {false, 9, 1, NULL},
    {false, 1, 1, NULL},      {false, 4, 2, "snapshot"}, {false, 5, 3, "torn"},
    {true, 3, 2, "snapshot"}, {false, 9, 5, "torn"},     {true, 4, 3, "torn"},
};

static bool can_be_there(const struct combination *c, const struct matrix_place *at)
{
    bool torn = at->read != NULL && strcmp(at->read, "torn") == 0;
    static const double initial[DAMPING_PARAMETERS] = {0}; /* damping.drop=0 */
    bool drops = c->policy->drops || (c->damping->drops != NULL && c->damping->drops(initial));
    bool whole = c->damping->needs_norm || c->correction->adjust != NULL;
    return at->servers == 1 || !(whole || (torn && (drops || c->outer != NULL)));
}

static bool is_run(const struct combination *c, const struct matrix_place *at)
{
    return combination_is_valid(c) && has_effect(c) && can_be_there(c, at);
}

/* Whether a combination at a real place runs with processes: each consistency with each damping,
 * and each consistency with each correction and outer rule (with one damping that fits). Processes
 * add waiting, late gradients and local steps to the core. The other combinations run in a virtual
 * cluster with as many workers and servers. */
static bool is_of_processes(uint64_t number, const struct matrix_place *at)
{
    size_t policies = consistency_registry.count, dampings = damping_registry.count;
    size_t policy = number % policies, damping = number / policies % dampings;
    size_t third = number / policies / dampings;
    struct combination c = combination_of(number);
    if (!at->real || third == 0 || (c.outer != NULL && c.outer->elastic))
        return at->real;
    for (size_t i = policy + third; i < policy + third + dampings; i++) {
        c = combination_at(policy, i, third);
        if (is_run(&c, at))
            return i % dampings == damping;
    }
    return false; /* no damping fits */
}

enum { ARGUMENTS = 32 };

/* A command line: "run", the common settings, and the combination. */
struct line {
    struct combination_settings rules;
    char room[3][24];
    const char *at[ARGUMENTS];
    size_t count;
};

static void begin_line(struct line *l, const struct combination *c)
{
    static const char *const all[] = {"run", RIG_SMALL};
    *l = (struct line){.rules = settings_of(c)};
    for (size_t i = 0; i < COUNT_OF(all); i++)
        l->at[l->count++] = all[i];
    for (size_t i = 0; i < COMBINATION_SETTINGS; i++)
        l->at[l->count++] = l->rules.text[i];
    if (c->outer != NULL)
        l->at[l->count++] = "samples=3000"; /* a push is of ten batches */
}

static void add(struct line *l, const char *argument)
{
    REQUIRE(l->count + 1 < ARGUMENTS);
    l->at[l->count++] = argument;
}

static int run_line(struct process_rig *r, struct line *l, bool processes)
{
    l->at[l->count] = NULL;
    return processes ? process_run(r, l->at) : process_run_inside(r, l->at);
}

static void forget_runs(struct process_rig *r)
{
    remove(process_path(r, "results.db"));
}

static void add_place(struct line *l, const struct matrix_place *p, bool real)
{
    snprintf(l->room[0], sizeof l->room[0], "workers=%u", p->workers);
    snprintf(l->room[1], sizeof l->room[1], "servers=%u", p->servers);
    add(l, l->room[0]);
    add(l, "pace=gamma");
    if (p->servers > 1) {
        snprintf(l->room[2], sizeof l->room[2], "read=%s", p->read);
        add(l, l->room[1]);
        add(l, l->room[2]);
    }
    if (real) {
        add(l, "pace.mean_ms=1");
        return;
    }
    add(l, "engine=virtual");
    add(l, "crash.mtbf_s=0.5");
    add(l, "crash.down_s=0.1");
    if (p->servers > 1)
        add(l, "network.jitter_ms=20"); /* messages overtake each other */
}

/* ---- replay ---------------------------------------------------------------------------------- */

struct matrix {
    unsigned runs, refused, gradients, stale, deaths;
    unsigned servers, processes; /* of `runs`: with several servers; with processes */
    unsigned real_servers;       /* of `runs`: with both */
};

static void count_rows(struct process_rig *r, struct matrix *m)
{
    unsigned all = 0, stale = 0, deaths = 0;
    const char *counts = process_ask(
        r, "SELECT count(*) || ' ' || count(*) FILTER (WHERE staleness > 0) || ' ' || "
           "(SELECT count(*) FROM event WHERE code = 'worker_lost' AND server = 0) FROM push");
    assert_int_equal(sscanf(counts, "%u %u %u", &all, &stale, &deaths), 3);
    m->gradients += all;
    m->stale += stale;
    m->deaths += deaths;
}

/* True: it replays, or was refused as expected. */
static bool record_and_replay(struct process_rig *r, const struct combination *c,
                              const struct matrix_place *at, bool real, struct matrix *m)
{
    struct line l;
    begin_line(&l, c);
    add_place(&l, at, real);
    forget_runs(r);
    int code = run_line(r, &l, real);
    if (!is_run(c, at)) {
        m->refused++;
        return code == ERROR_USAGE;
    }
    bool ran = code == OK || code == ERROR_DIVERGED;
    if (!ran || RIG_RUN_INSIDE(r, "replay", "last") != OK)
        return false;
    m->runs++;
    m->servers += at->servers > 1;
    m->processes += real;
    m->real_servers += at->servers > 1 && real;
    count_rows(r, m);
    return true;
}

static void expect_replayed(struct process_rig *r, const struct combination *c,
                            const struct matrix_place *at, bool real, struct matrix *m)
{
    bool too_few = c->policy->per_update != NULL && c->policy->holds && !c->policy->even;
    if (!(too_few && at->workers == 1) && !record_and_replay(r, c, at, real, m)) {
        struct combination_settings s = settings_of(c);
        fail_msg("%s, workers=%u servers=%u %s %s %s %s %s: %s", real ? "processes" : "virtual",
                 at->workers, at->servers, at->read != NULL ? at->read : "", s.text[0], s.text[1],
                 s.text[2], s.text[3], process_errors(r));
    }
}

static void print_summary(const struct matrix *m)
{
    print_message(
        "%u runs replayed bit for bit, %u of them of several servers, %u of processes "
        "(%u both); %u gradients, %u of them stale; %u deaths of workers; %u combinations "
        "refused\n",
        m->runs, m->servers, m->processes, m->real_servers, m->gradients, m->stale, m->deaths,
        m->refused);
}

/* Elastic averaging is tested once, because it always uses asp and no damping. */
static bool is_repetition(uint64_t number, const struct combination *c)
{
    return c->outer != NULL && c->outer->elastic &&
           number % (combinations() / third_rule_count()) > 0;
}

/* All combinations with the policy of that name, or with any ("full"). */
static void replay_all(struct process_rig *r, const char *wanted, struct matrix *m)
{
    const char *text = getenv("GRADLAG_REPLAY_EVERY");
    uint64_t every = text != NULL && atoi(text) > 0 ? (uint64_t)atoi(text) : 1;
    for (uint64_t i = 0; i < combinations() * COUNT_OF(places); i += every) {
        uint64_t number = i / COUNT_OF(places);
        const struct matrix_place *at = &places[i % COUNT_OF(places)];
        struct combination c = combination_of(number);
        bool other = strcmp(c.policy->about.name, wanted) != 0;
        if (!is_repetition(number, &c) && (!other || strcmp(wanted, "full") == 0))
            expect_replayed(r, &c, at, is_of_processes(number, at), m);
    }
}

/* Combines the i-th damping and the i-th third rule with the first policy, from the i-th on, under
 * which both have an effect. */
static struct combination combination_with_effect(size_t i)
{
    struct combination c = combination_at(i, i, i);
    for (size_t p = i; p < i + consistency_registry.count; p++) {
        c = combination_at(p, i, i);
        if (!c.policy->never_stale && combination_is_valid(&c) && has_effect(&c))
            break;
    }
    return c;
}

/* Each damping with some third rule, each third rule with some damping, each policy alone, and some
 * combinations that are refused; each at the next place. */
static void replay_some(struct process_rig *r, struct matrix *m)
{
    for (size_t i = 0; i < damping_registry.count || i < third_rule_count(); i++) {
        struct combination c = combination_with_effect(i);
        const struct matrix_place *at = &places[i % COUNT_OF(places)];
        at = can_be_there(&c, at) ? at : &places[i % 3];
        expect_replayed(r, &c, at, at->real, m);
    }
    for (size_t p = 0; p < consistency_registry.count; p++) {
        struct combination alone = combination_at(p, 0, 0), other = combination_at(p, p + 1, p);
        const struct matrix_place *at = &places[(p + 4) % COUNT_OF(places)];
        at = can_be_there(&alone, at) ? at : &places[1];
        expect_replayed(r, &alone, at, at->real, m);
        if (!combination_is_valid(&other) || !has_effect(&other))
            expect_replayed(r, &other, &places[1], false, m);
    }
}

static void recorded_runs_under_every_rule_replay_bit_for_bit(void **state)
{
    struct process_rig *r = *state;
    struct matrix m = {0};
    const char *wanted = getenv("GRADLAG_REPLAY_MATRIX");
    if (wanted != NULL) {
        replay_all(r, wanted, &m);
    } else {
        replay_some(r, &m);
        assert_true(m.runs > 15 && m.servers > 4 && m.real_servers > 1);
        assert_true(m.stale > m.gradients / 4 && m.refused > 0);
    }
    print_summary(&m);
    assert_true(m.runs > 0);
}

/* ---- what if --------------------------------------------------------------------------------- */

/* `sql` has the ids of two runs in it. */
static const char *ask_of(struct process_rig *r, const char *sql, unsigned first, unsigned second)
{
    char text[512];
    snprintf(text, sizeof text, "WITH a AS (SELECT %u AS id), b AS (SELECT %u AS id) %s", first,
             second, sql);
    return process_ask(r, text);
}

/* With asp the order of arrivals does not depend on the rule. So a replay of run 1 under another
 * rule must equal a run under that rule. If that rule drops gradients, the replay lacks the same
 * number of gradients at its end. `run`: the id of the next run. */
static void expect_what_if(struct process_rig *r, const struct combination *c, unsigned run)
{
    struct line truth, replay = {.count = 0};
    begin_line(&truth, c);
    add(&truth, "engine=virtual");
    add(&truth, "pace=gamma");
    add(&truth, "workers=5");
    assert_int_equal(run_line(r, &truth, false), OK);
    add(&replay, "replay");
    add(&replay, "1");
    for (size_t i = 1; i < COMBINATION_SETTINGS; i++)
        add(&replay, truth.rules.text[i]);
    assert_int_equal(run_line(r, &replay, false), OK);
    bool drops = atoi(ask_of(r,
                             "SELECT count(*) FROM push, a WHERE run_id = a.id AND "
                             "outcome = 'dropped_stale'",
                             run, run + 1)) > 0;
    const char *same = ask_of(r,
                              "SELECT x.parameters_sha256 = y.parameters_sha256 AND x.updates = "
                              "y.updates FROM a, b, run x, run y WHERE x.id = a.id AND y.id = b.id",
                              run, run + 1);
    if ((strcmp(same, "1") == 0) == drops) {
        fail_msg("what if %s %s: not what a run under it comes to", truth.rules.text[1],
                 truth.rules.text[2]);
    }
    assert_string_equal(ask_of(r,
                               "SELECT count(*) FROM a, b, push x JOIN push y ON x.run_id = a.id "
                               "AND y.run_id = b.id AND x.arrival = y.arrival WHERE x.scale <> "
                               "y.scale OR x.loss <> y.loss OR x.gap <> y.gap OR x.worker <> "
                               "y.worker",
                               run, run + 1),
                        "0");
    assert_int_equal(RIG_RUN_INSIDE(r, "replay", "last"), OK); /* the new run replays, too */
}

static void a_replay_under_another_rule_equals_a_run_under_that_rule(void **state)
{
    struct process_rig *r = *state;
    unsigned run = 2;
    assert_int_equal(
        RIG_RUN_INSIDE(r, "run", RIG_SMALL, "engine=virtual", "pace=gamma", "workers=5"), OK);
    for (size_t d = 1; d < damping_registry.count; d++, run += 2) {
        struct combination c = combination_at(0, d, 0);
        expect_what_if(r, &c, run);
    }
    for (size_t k = 1; k < correction_registry.count; k++, run += 2) {
        struct combination c = combination_at(0, k, k);
        expect_what_if(r, &c, run);
    }
}

/* ---- traces ---------------------------------------------------------------------------------- */

/* The file has whole microseconds, so times differ slightly; the order does not. */
static void expect_driven(struct process_rig *r, const struct combination *c)
{
    struct line recorded, driven;
    begin_line(&recorded, c);
    begin_line(&driven, c);
    add(&recorded, "engine=virtual");
    add(&recorded, "workers=3");
    add(&recorded, "pace=gamma");
    add(&driven, "engine=virtual");
    add(&driven, "workers=3");
    add(&driven, "pace=trace");
    add(&driven, "pace.path=trace.csv");
    forget_runs(r);
    assert_int_equal(run_line(r, &recorded, false), OK);
    assert_int_equal(RIG_RUN_INSIDE(r, "replay", "1", "--export", "trace.csv"), OK);
    assert_int_equal(run_line(r, &driven, false), OK);
    const char *same = process_ask(r, "SELECT count(DISTINCT parameters_sha256) FROM run");
    if (strcmp(same, "1") != 0) {
        fail_msg("a trace of %s %s %s leads elsewhere", recorded.rules.text[0],
                 recorded.rules.text[1], recorded.rules.text[2]);
    }
}

/* Only policies, and rules with a history, depend on when a gradient arrives. */
static void an_exported_trace_drives_a_cluster_to_the_same_end(void **state)
{
    struct process_rig *r = *state;
    for (size_t p = 0; p < consistency_registry.count; p++) {
        struct combination c = combination_at(p, 0, 0);
        expect_driven(r, &c);
    }
    for (size_t d = 0; d < damping_registry.count; d++) {
        struct combination c = combination_at(0, d, 0);
        if (c.damping->needs_history)
            expect_driven(r, &c);
    }
}

static void a_recorded_run_without_some_rows_is_incomplete(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN_INSIDE(r, "run", RIG_SMALL, "engine=virtual", "pace=gamma"), OK);
    assert_int_equal(process_shell(r, "sqlite3 results.db 'DELETE FROM push WHERE number > 50'"),
                     OK);
    assert_int_equal(RIG_RUN_INSIDE(r, "replay", "1"), ERROR_RESULTS);
    /* Rows of one server are missing, as after its death. */
    assert_int_equal(RIG_RUN_INSIDE(r, "run", RIG_SMALL, "engine=virtual", "pace=gamma",
                                    "servers=2", "read=torn"),
                     OK);
    assert_int_equal(process_shell(r, "sqlite3 results.db 'DELETE FROM push WHERE run_id = 2 AND "
                                      "server = 1 AND sequence > 20'"),
                     OK);
    assert_int_equal(RIG_RUN_INSIDE(r, "replay", "2"), ERROR_RESULTS);
    /* A row before others is missing. */
    assert_int_equal(RIG_RUN_INSIDE(r, "run", RIG_SMALL, "engine=virtual", "pace=gamma"), OK);
    assert_int_equal(
        process_shell(r, "sqlite3 results.db 'DELETE FROM push WHERE run_id = 3 AND arrival = 40'"),
        OK);
    assert_int_equal(RIG_RUN_INSIDE(r, "replay", "3"), ERROR_RESULTS);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, process_set_up, process_tear_down)
    const struct CMUnitTest tests[] = {
        TEST(recorded_runs_under_every_rule_replay_bit_for_bit),
        TEST(a_replay_under_another_rule_equals_a_run_under_that_rule),
        TEST(an_exported_trace_drives_a_cluster_to_the_same_end),
        TEST(a_recorded_run_without_some_rows_is_incomplete),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
