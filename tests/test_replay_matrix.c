/*
 * Recorded runs under every consistency × damping × correction of the registries, on real processes
 * and in the virtual cluster: each replays bit for bit, or is refused for the reason its marks
 * give. And what replay is for: another rule on the same arrivals is the run under that rule, and
 * an exported trace drives a cluster to the same end.
 *
 *   GRADLAG_REPLAY_MATRIX=full   every combination at 1, 3 and 9 virtual and at 4 real workers
 *                                (`make nightly`); the name of a consistency: all of that one;
 *                                not set: every rule a few times
 */
#include "tests/process_rig.h"

#include "ps/consistency.h"
#include "ps/correction.h"
#include "ps/damping.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct combination {
    const struct consistency_policy *policy;
    const struct damping_rule *damping;
    const struct correction_rule *correction;
};

static struct combination combination_of(size_t policy, size_t damping, size_t correction)
{
    const struct registry *c = &consistency_registry, *d = &damping_registry;
    const struct registry *r = &correction_registry;
    return (struct combination){(const struct consistency_policy *)c->entries[policy % c->count],
                                (const struct damping_rule *)d->entries[damping % d->count],
                                (const struct correction_rule *)r->entries[correction % r->count]};
}

static bool is_none(const struct about *about)
{
    return strcmp(about->name, "none") == 0;
}

static bool goes_together(const struct combination *c)
{
    bool fresh = c->policy->never_stale;
    bool idle_damping = fresh && !is_none(&c->damping->about) && !c->damping->ageless;
    bool idle_correction = fresh && !is_none(&c->correction->about);
    bool sums = c->policy->holds || c->policy->takes;
    return !idle_damping && !idle_correction && !(c->correction->alone && sums) &&
           !(c->policy->even && c->damping->balances);
}

enum { ARGUMENTS = 24 };

/* "run", what all have, and the combination. */
struct line {
    char text[4][48];
    const char *at[ARGUMENTS];
    size_t count;
};

static void begin_line(struct line *l, const struct combination *c)
{
    static const char *const all[] = {"run", RIG_SMALL};
    *l = (struct line){.count = 0};
    for (size_t i = 0; i < COUNT_OF(all); i++) {
        l->at[l->count++] = all[i];
    }
    snprintf(l->text[0], sizeof l->text[0], "consistency=%s", c->policy->about.name);
    snprintf(l->text[1], sizeof l->text[1], "damping=%s", c->damping->about.name);
    snprintf(l->text[2], sizeof l->text[2], "correction=%s", c->correction->about.name);
    snprintf(l->text[3], sizeof l->text[3], "optimizer=%s",
             c->correction->momentum_of_its_own ? "sgd" : "momentum");
    for (size_t i = 0; i < COUNT_OF(l->text); i++) {
        l->at[l->count++] = l->text[i];
    }
}

static void add(struct line *l, const char *argument)
{
    REQUIRE(l->count + 1 < ARGUMENTS);
    l->at[l->count++] = argument;
}

static int run_line(struct rig *r, struct line *l)
{
    l->at[l->count] = NULL;
    return process_run(r, l->at);
}

static void forget_runs(struct rig *r)
{
    remove(process_path(r, "results.db"));
}

static void add_cluster(struct line *l, bool real, unsigned workers, char room[24])
{
    snprintf(room, 24, "workers=%u", workers);
    add(l, room);
    add(l, "pace=gamma");
    if (real) {
        add(l, "pace.mean_ms=1");
    } else {
        add(l, "engine=virtual");
        add(l, "crash.mtbf_s=2");
        add(l, "crash.down_s=0.1");
    }
}

/* ---- replay ---------------------------------------------------------------------------------- */

struct matrix {
    unsigned runs, refused, gradients, stale;
};

/* True: it replays, or was rightly refused. */
static bool record_and_replay(struct rig *r, const struct combination *c, bool real,
                              unsigned workers, struct matrix *m)
{
    struct line l;
    char room[24];
    begin_line(&l, c);
    add_cluster(&l, real, workers, room);
    forget_runs(r);
    int code = run_line(r, &l);
    if (!goes_together(c)) {
        m->refused++;
        return code == ERROR_USAGE;
    }
    bool ran = code == OK || code == ERROR_DIVERGED;
    if (!ran || RIG_RUN(r, "replay", "last") != OK) {
        return false;
    }
    m->runs++;
    m->gradients += (unsigned)atoi(process_ask(r, "SELECT count(*) FROM push"));
    m->stale += (unsigned)atoi(process_ask(r, "SELECT count(*) FROM push WHERE staleness > 0"));
    return true;
}

static void expect_replayed(struct rig *r, const struct combination *c, bool real, unsigned workers,
                            struct matrix *m)
{
    bool too_few = c->policy->per_update != NULL && c->policy->holds && !c->policy->even;
    if (!(too_few && workers == 1) && !record_and_replay(r, c, real, workers, m)) {
        fail_msg("%s processes, %u workers, consistency=%s damping=%s correction=%s: %s",
                 real ? "real" : "virtual", workers, c->policy->about.name, c->damping->about.name,
                 c->correction->about.name, process_errors(r));
    }
}

static void tell(const struct matrix *m)
{
    print_message("%u runs replayed bit for bit, %u gradients, %u of them stale; %u combinations "
                  "refused\n",
                  m->runs, m->gradients, m->stale, m->refused);
}

/* Under policies of that name, or any ("full"). */
static void replay_all(struct rig *r, const char *wanted, struct matrix *m)
{
    static const unsigned virtual[] = {1, 3, 9};
    for (size_t i = 0; i < consistency_registry.count; i++) {
        bool other = strcmp(consistency_registry.entries[i]->name, wanted) != 0;
        if (other && strcmp(wanted, "full") != 0) {
            continue;
        }
        for (size_t d = 0; d < damping_registry.count; d++) {
            for (size_t k = 0; k < correction_registry.count; k++) {
                struct combination c = combination_of(i, d, k);
                for (size_t w = 0; w < COUNT_OF(virtual); w++) {
                    expect_replayed(r, &c, false, virtual[w], m);
                }
                expect_replayed(r, &c, true, 4, m);
            }
        }
    }
}

/* Each damping with some correction, each correction with some damping, each with some policy that
 * lets gradients be stale; each policy alone and, for its refusals, with whatever comes. */
static void replay_some(struct rig *r, struct matrix *m)
{
    for (size_t i = 0; i < damping_registry.count || i < correction_registry.count; i++) {
        struct combination c = combination_of(0, i, i);
        for (size_t p = i; p < i + consistency_registry.count; p++) {
            c.policy = combination_of(p, 0, 0).policy;
            if (!c.policy->never_stale && goes_together(&c)) {
                break;
            }
        }
        expect_replayed(r, &c, i % 3 == 0, 2 + (unsigned)i % 3, m);
    }
    for (size_t p = 0; p < consistency_registry.count; p++) {
        struct combination alone = combination_of(p, 0, 0), other = combination_of(p, p + 1, p);
        expect_replayed(r, &alone, p % 2 == 0, 3, m);
        if (!goes_together(&other)) {
            expect_replayed(r, &other, false, 3, m);
        }
    }
}

static void recorded_runs_under_every_rule_replay_bit_for_bit(void **state)
{
    struct rig *r = *state;
    struct matrix m = {0};
    const char *wanted = getenv("GRADLAG_REPLAY_MATRIX");
    if (wanted != NULL) {
        replay_all(r, wanted, &m);
    } else {
        replay_some(r, &m);
        assert_true(m.runs > 15 && m.stale > m.gradients / 4 && m.refused > 0);
    }
    tell(&m);
    assert_true(m.runs > 0);
}

/* ---- what if --------------------------------------------------------------------------------- */

/* With asp the order of arrivals does not depend on the rule. So under another rule a recorded run
 * must come to what a run under that rule comes to, unless that drops gradients: then it lacks as
 * many at the end. */
static void expect_what_if(struct rig *r, const struct combination *c)
{
    struct line truth, replay = {.count = 0};
    begin_line(&truth, c);
    add(&truth, "engine=virtual");
    add(&truth, "pace=gamma");
    add(&truth, "workers=5");
    forget_runs(r);
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "engine=virtual", "pace=gamma", "workers=5"), OK);
    assert_int_equal(run_line(r, &truth), OK);
    add(&replay, "replay");
    add(&replay, "1");
    for (size_t i = 1; i < COUNT_OF(truth.text); i++) {
        add(&replay, truth.text[i]);
    }
    assert_int_equal(run_line(r, &replay), OK);
    bool drops = atoi(process_ask(r, "SELECT count(*) FROM push WHERE run_id = 2 AND "
                                     "outcome = 'dropped_stale'")) > 0;
    const char *same = process_ask(r, "SELECT a.parameters_sha256 = b.parameters_sha256 AND "
                                      "a.updates = b.updates FROM run a JOIN run b ON a.id = 2 "
                                      "AND b.id = 3");
    if ((strcmp(same, "1") == 0) == drops) {
        fail_msg("what if %s %s: not what a run under it comes to", truth.text[1], truth.text[2]);
    }
    process_expect_answer(r,
                          "SELECT count(*) FROM push a JOIN push b ON a.run_id = 2 AND "
                          "b.run_id = 3 AND a.arrival = b.arrival WHERE a.scale <> b.scale OR "
                          "a.loss <> b.loss OR a.gap <> b.gap OR a.worker <> b.worker",
                          "0");
    assert_int_equal(RIG_RUN(r, "replay", "3"), OK); /* and it replays itself */
}

static void another_rule_on_the_same_arrivals_is_the_run_under_that_rule(void **state)
{
    struct rig *r = *state;
    for (size_t d = 0; d < damping_registry.count; d++) {
        struct combination c = combination_of(0, d, 0);
        expect_what_if(r, &c);
    }
    for (size_t k = 1; k < correction_registry.count; k++) {
        struct combination c = combination_of(0, k, k);
        expect_what_if(r, &c);
    }
}

/* ---- traces ---------------------------------------------------------------------------------- */

/* Whole microseconds stand in the file, so that times differ a little; the order does not. */
static void expect_driven(struct rig *r, const struct combination *c)
{
    struct line recorded, driven;
    begin_line(&recorded, c);
    add(&recorded, "engine=virtual");
    add(&recorded, "workers=3");
    driven = recorded;
    for (size_t i = 0; i < COUNT_OF(driven.text); i++) {
        driven.at[recorded.count - 2 - COUNT_OF(driven.text) + i] = driven.text[i];
    }
    add(&recorded, "pace=gamma");
    add(&driven, "pace=trace");
    add(&driven, "pace.path=trace.csv");
    forget_runs(r);
    assert_int_equal(run_line(r, &recorded), OK);
    assert_int_equal(RIG_RUN(r, "replay", "1", "--export", "trace.csv"), OK);
    assert_int_equal(run_line(r, &driven), OK);
    const char *same = process_ask(r, "SELECT count(DISTINCT parameters_sha256) FROM run");
    if (strcmp(same, "1") != 0) {
        fail_msg("a trace of %s %s %s leads elsewhere", recorded.text[0], recorded.text[1],
                 recorded.text[2]);
    }
}

static void an_exported_trace_drives_a_cluster_to_the_same_end(void **state)
{
    struct rig *r = *state;
    for (size_t p = 0; p < consistency_registry.count; p++) {
        struct combination c = combination_of(p, 0, 0);
        expect_driven(r, &c);
    }
    for (size_t d = 1; d < damping_registry.count || d < correction_registry.count; d++) {
        struct combination c = combination_of(0, d, d);
        expect_driven(r, &c);
    }
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, process_set_up, process_tear_down)
    const struct CMUnitTest tests[] = {
        TEST(recorded_runs_under_every_rule_replay_bit_for_bit),
        TEST(another_rule_on_the_same_arrivals_is_the_run_under_that_rule),
        TEST(an_exported_trace_drives_a_cluster_to_the_same_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
