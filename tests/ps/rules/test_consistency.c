/* Consistency policies: traces worked out by hand from the papers. A trace is a list of events,
 * each with the actions that the core must return, as text: see actions_text(). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ps/rules/consistency/consistency.h"
#include "tests/ps/core/core_bench.h"

static const char *const outcomes[] = {[PUSH_APPLIED] = "applied",
                                       [PUSH_AGGREGATED] = "aggregated",
                                       [PUSH_DROPPED_STALE] = "dropped",
                                       [PUSH_DROPPED_LATE] = "dropped late",
                                       [PUSH_NOT_FINITE] = "not finite"};
static const char *const reasons[] = {[PUSH_USED] = "",
                                      [PUSH_BY_DAMPING] = " by damping",
                                      [PUSH_BY_CONSISTENCY] = " by consistency",
                                      [PUSH_AFTER_END] = " after the end",
                                      [PUSH_WORKER_LOST] = " worker lost",
                                      [PUSH_RUN_ENDED] = " run ended",
                                      [PUSH_RUN_DIVERGED] = " run diverged",
                                      [PUSH_BAD_GRADIENT] = " bad gradient",
                                      [PUSH_BAD_LOSS] = " bad loss",
                                      [PUSH_BAD_UPDATE] = " bad update"};

/* "0 applied t2 v3": worker 0's gradient of staleness 2 was applied in version 3. For a dropped
 * gradient v is the version at that time. "0 released at 3 after 1": worker 0 is released with
 * version 3 by an event of worker 1. In the order of the actions. */
static const char *actions_text(struct server_actions actions)
{
    static char text[1024];
    size_t n = 0;
    text[0] = '\0';
    for (size_t i = 0; i < actions.count; i++) {
        const struct server_action *a = &actions.at[i];
        const struct push_record *r = &a->record;
        const char *comma = n > 0 ? ", " : "";
        if (a->kind == SERVER_RECORD) {
            n += (size_t)snprintf(text + n, sizeof text - n, "%s%u %s%s t%d v%d", comma, a->worker,
                                  outcomes[r->outcome], reasons[r->reason], (int)r->staleness,
                                  (int)r->update_version);
        } else if (a->kind == SERVER_RELEASE) {
            n += (size_t)snprintf(text + n, sizeof text - n, "%s%u released at %d", comma,
                                  a->worker, (int)a->version);
            if (r->waited_for != NO_WORKER)
                n += (size_t)snprintf(text + n, sizeof text - n, " after %d", (int)r->waited_for);
        } else if (a->kind == SERVER_DIVERGED) {
            n += (size_t)snprintf(text + n, sizeof text - n, "%sdiverged", comma);
        }
        REQUIRE(n < sizeof text);
    }
    return text;
}

struct traced {
    const char *event; /* "push 0", "lost 0", "hello 0", "end" */
    const char *expected;
};

static void follow(struct core_bench *b, const struct traced *steps, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const char *space = strchr(steps[i].event, ' ');
        unsigned w = space != NULL ? (unsigned)atoi(space + 1) : 0;
        struct server_actions actions = {0};
        if (steps[i].event[0] == 'p') {
            struct server_push push = bench_push_of(b, w);
            assert_int_equal(server_core_push(b->rig.core, &push, &actions), OK);
            b->next[w]++;
        } else if (steps[i].event[0] == 'l') {
            actions = server_core_lost(b->rig.core, w);
        } else if (steps[i].event[0] == 'h') {
            b->next[w] = 0;
            actions = server_core_hello(b->rig.core, w);
        } else {
            actions = server_core_end(b->rig.core);
        }
        if (strcmp(actions_text(actions), steps[i].expected) != 0) {
            fail_msg("step %zu, %s: '%s', not '%s'", i, steps[i].event, actions_text(actions),
                     steps[i].expected);
        }
        bench_absorb(b, actions);
    }
}

static void trace(unsigned workers, const char *const *settings, const struct traced *steps,
                  size_t count)
{
    struct core_bench b;
    bench_open(&b, (struct server_core_options){.workers = workers}, settings);
    bench_hello_all(&b);
    follow(&b, steps, count);
    core_rig_close(&b.rig);
}

/* ---- decisions ---- */

static void asp_applies_every_gradient_on_arrival(void **state)
{
    (void)state;
    static const struct traced steps[] = {
        {"push 0", "0 applied t0 v1, 0 released at 1"},
        {"push 0", "0 applied t0 v2, 0 released at 2"},
        {"push 1", "1 applied t2 v3, 1 released at 3"},
        {"push 0", "0 applied t1 v4, 0 released at 4"},
    };
    trace(2, RIG("consistency=asp"), steps, COUNT_OF(steps));
}

static void bsp_waits_for_all_workers_and_records_the_last_one(void **state)
{
    (void)state;
    static const struct traced steps[] = {
        {"push 2", ""},
        {"push 0", ""},
        {"push 1", "0 aggregated t0 v1, 1 aggregated t0 v1, 2 aggregated t0 v1, "
                   "0 released at 1 after 1, 1 released at 1, 2 released at 1 after 1"},
        {"push 1", ""},
        {"push 2", ""},
        {"lost 0", "1 aggregated t0 v2, 2 aggregated t0 v2, 1 released at 2 after 0, "
                   "2 released at 2 after 0"},
    };
    trace(3, RIG("consistency=bsp"), steps, COUNT_OF(steps));
}

static void ssp_blocks_workers_further_ahead_than_the_slack(void **state)
{
    (void)state;
    static const struct traced steps[] = {
        {"push 0", "0 applied t0 v1, 0 released at 1"}, /* clocks 1 0 0 */
        {"push 0", "0 applied t0 v2"},                  /* 2 0 0: two ahead, waits */
        {"push 1", "1 applied t2 v3, 1 released at 3"}, /* 2 1 0: worker 2 is the slowest */
        {"push 2", "2 applied t3 v4, 0 released at 4 after 2, 2 released at 4"}, /* 2 1 1 */
        {"push 0", "0 applied t0 v5"},                                           /* 3 1 1 */
        {"lost 1", ""},                                 /* 3 – 1: worker 2 is the slowest */
        {"lost 2", "0 released at 5 after 2"},          /* 3 – –: no worker is slower */
        {"hello 1", "1 released at 5"},                 /* 3 3 –: starts at the slowest clock */
        {"push 1", "1 applied t0 v6, 1 released at 6"}, /* 3 4 – */
        {"push 1", "1 applied t0 v7"},                  /* 3 5 – */
        {"push 0", "0 applied t2 v8, 0 released at 8, 1 released at 8 after 0"}, /* 4 5 – */
    };
    trace(3, RIG("consistency=ssp", "consistency.slack=1"), steps, COUNT_OF(steps));
}

static void ssp_without_slack_completes_each_iteration_before_the_next(void **state)
{
    (void)state;
    static const struct traced steps[] = {
        {"push 1", "1 applied t0 v1"},
        {"push 0", "0 applied t1 v2, 0 released at 2, 1 released at 2 after 0"},
        {"push 0", "0 applied t0 v3"},
        {"push 1", "1 applied t1 v4, 0 released at 4 after 1, 1 released at 4"},
    };
    trace(2, RIG("consistency=ssp", "consistency.slack=0"), steps, COUNT_OF(steps));
}

static unsigned per_update_of(unsigned workers, const char *const *assignments)
{
    options *o = NULL;
    struct consistency c;
    unsigned out = 0;
    assert_int_equal(core_rig_settings(&o, assignments), OK);
    assert_int_equal(consistency_open(&c, o), OK);
    assert_int_equal(consistency_per_update(&c, workers, &out), OK);
    options_close(&o);
    return out;
}

/* Updates of groups of 2, 1, 1 and 1 workers have 1.25 gradients in the mean. */
static void the_mean_counts_groups_of_all_sizes(void **state UNUSED)
{
    static const struct {
        const char *policy, *parameter;
        double mean;
    } cases[] = {{"consistency=groups", "consistency.groups=4", 1.25},
                 {"consistency=groups", "consistency.groups=1", 5},
                 {"consistency=groups", "consistency.groups=7", 1},
                 {"consistency=bsp", NULL, 5},
                 {"consistency=asp", NULL, 1},
                 {"consistency=softsync", "consistency.n=2", 2}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        options *o = NULL;
        struct consistency c;
        double mean = 0;
        assert_int_equal(core_rig_settings(&o, RIG(cases[i].policy, cases[i].parameter)), OK);
        assert_int_equal(consistency_open(&c, o), OK);
        assert_int_equal(consistency_mean_gradients(&c, 5, &mean), OK);
        assert_true(mean == cases[i].mean);
        options_close(&o);
    }
}

static void groups_wait_for_their_own_workers_only(void **state)
{
    (void)state;
    static const struct traced steps[] = {
        /* groups {0, 1, 2} and {3, 4} */
        {"push 0", ""},
        {"push 3", ""},
        {"push 4", "3 aggregated t0 v1, 4 aggregated t0 v1, 3 released at 1 after 4, "
                   "4 released at 1"},
        {"push 2", ""},
        {"push 1", "0 aggregated t1 v2, 1 aggregated t1 v2, 2 aggregated t1 v2, "
                   "0 released at 2 after 1, 1 released at 2, 2 released at 2 after 1"},
        {"lost 3", ""},
        {"push 4", "4 applied t1 v3, 4 released at 3"},
        {"hello 3", "3 released at 3"},
        {"push 4", ""},
        {"lost 4", "4 dropped late worker lost t0 v3"},
        {"push 0", ""},
        {"push 3", "3 applied t0 v4, 3 released at 4"},
        {"push 2", ""},
        {"lost 1", "0 aggregated t2 v5, 2 aggregated t2 v5, 0 released at 5 after 1, "
                   "2 released at 5 after 1"},
    };
    trace(5, RIG("consistency=groups", "consistency.groups=2"), steps, COUNT_OF(steps));
    assert_int_equal(per_update_of(5, RIG("consistency=groups", "consistency.groups=2")), 3);
    assert_int_equal(per_update_of(6, RIG("consistency=groups", "consistency.groups=2")), 3);
    assert_int_equal(per_update_of(2, RIG("consistency=groups", "consistency.groups=9")), 1);
}

static void softsync_updates_after_workers_over_n_gradients_of_any_workers(void **state)
{
    (void)state;
    static const struct traced steps[] = {
        {"push 0", "0 released at 0"},
        {"push 0", "0 aggregated t0 v1, 0 aggregated t0 v1, 0 released at 1"},
        {"push 3", "3 released at 1"},
        {"lost 3", ""}, /* its gradient stays in the sum */
        {"push 1", "3 aggregated t1 v2, 1 aggregated t1 v2, 1 released at 2"},
        {"push 2", "2 released at 2"}, /* still two of four */
        {"push 1", "2 aggregated t2 v3, 1 aggregated t0 v3, 1 released at 3"},
    };
    trace(5, RIG("consistency=softsync", "consistency.n=2"), steps, COUNT_OF(steps));
    static const struct traced single[] = {
        {"push 0", "0 applied t0 v1, 0 released at 1"},
        {"push 2", "2 applied t1 v2, 2 released at 2"},
    };
    trace(3, RIG("consistency=softsync", "consistency.n=2"), single, COUNT_OF(single));
    trace(3, RIG("consistency=softsync", "consistency.n=7"), single, COUNT_OF(single));
    /* Zhang et al., section 2.4: 30 learners */
    assert_int_equal(per_update_of(30, RIG("consistency=softsync", "consistency.n=1")), 30);
    assert_int_equal(per_update_of(30, RIG("consistency=softsync", "consistency.n=15")), 2);
    assert_int_equal(per_update_of(30, RIG("consistency=softsync", "consistency.n=30")), 1);
}

static void backup_drops_late_gradients(void **state)
{
    (void)state;
    static const struct traced steps[] = {
        {"push 2", ""},
        {"push 0",
         "0 aggregated t0 v1, 2 aggregated t0 v1, 0 released at 1, 2 released at 1 after 0"},
        {"push 1", "1 dropped by consistency t1 v1, 1 released at 1"},
        {"lost 0", ""}, /* two workers are left: one gradient is enough */
        {"push 1", "1 applied t0 v2, 1 released at 2"},
        {"push 2", "2 dropped by consistency t1 v2, 2 released at 2"},
        {"hello 0", "0 released at 2"},
        {"push 0", ""},
        {"lost 1", "0 applied t0 v3, 0 released at 3 after 1"},
        {"lost 2", ""},
        {"push 0", "0 applied t0 v4, 0 released at 4"}, /* an update needs at least one gradient */
    };
    trace(3, RIG("consistency=backup", "consistency.backups=1"), steps, COUNT_OF(steps));
}

static void buffered_counts_gradients_not_workers(void **state)
{
    (void)state;
    static const struct traced steps[] = {
        {"push 0", "0 released at 0"},
        {"push 1", "1 released at 0"},
        {"push 0", "0 aggregated t0 v1, 1 aggregated t0 v1, 0 aggregated t0 v1, 0 released at 1"},
        {"push 1", "1 released at 1"},
        {"push 0", "0 released at 1"},
        {"end", "1 dropped late run ended t1 v1, 0 dropped late run ended t0 v1"},
        {"push 1", "1 dropped late after the end t0 v1"},
    };
    trace(2, RIG("consistency=buffered", "consistency.size=3"), steps, COUNT_OF(steps));
}

static void rennala_uses_only_gradients_of_the_latest_version(void **state)
{
    (void)state;
    static const struct traced steps[] = {
        {"push 0", "0 released at 0"},
        {"push 0", "0 aggregated t0 v1, 0 aggregated t0 v1, 0 released at 1"},
        {"push 1", "1 dropped by consistency t1 v1, 1 released at 1"},
        {"push 1", "1 released at 1"},
        {"push 0", "1 aggregated t0 v2, 0 aggregated t0 v2, 0 released at 2"},
        {"push 1", "1 dropped by consistency t1 v2, 1 released at 2"},
    };
    trace(2, RIG("consistency=rennala", "consistency.size=2"), steps, COUNT_OF(steps));
}

static void ringmaster_drops_gradients_from_its_limit_on(void **state)
{
    (void)state;
    static const struct traced steps[] = {
        {"push 0", "0 applied t0 v1, 0 released at 1"},
        {"push 1", "1 applied t1 v2, 1 released at 2"}, /* 1 < R */
        {"push 0", "0 applied t1 v3, 0 released at 3"},
        {"push 0", "0 applied t0 v4, 0 released at 4"},
        {"push 1", "1 dropped by consistency t2 v4, 1 released at 4"}, /* 2 = R */
        {"push 1", "1 applied t0 v5, 1 released at 5"},
    };
    trace(2, RIG("consistency=ringmaster", "consistency.limit=2"), steps, COUNT_OF(steps));
}

/* ---- numbers ---- */

static void set_gradient(struct core_bench *b, unsigned worker, float value)
{
    for (unsigned i = 0; i < BENCH_COUNT; i++)
        b->gradient[worker][i] = value;
}

/* c = ⌊4 / 2⌋ = 2 with α(τ) = 1/τ. First 1 and 2 at τ = 0; then 1 and 8 at τ = 1; then 4 at τ = 2
 * with scale ½, and 2 at τ = 1: means 1.5, 4.5 and 2. */
static void softsync_takes_the_mean_of_damped_gradients(void **state)
{
    (void)state;
    static const float values[] = {1, 2, 8, 4};
    static const unsigned order[] = {0, 1, 0, 2, 3, 1};
    static const float means[] = {1.5f, 4.5f, 2};
    static const double scales[] = {1, 1, 1, 1, 0.5, 1};
    struct core_bench b;
    bench_open(&b, (struct server_core_options){.workers = 4},
               RIG("consistency=softsync", "consistency.n=2", "damping=inverse", "optimizer=sgd",
                   "lr=0.25"));
    bench_hello_all(&b);
    float expected = b.rig.initial[3];
    for (unsigned w = 0; w < 4; w++)
        set_gradient(&b, w, values[w]);
    for (unsigned i = 0; i < COUNT_OF(order); i++) {
        bench_push(&b, order[i]);
        assert_int_equal(b.applied, i % 2);
        if (i % 2 == 1) {
            expected = expected - 0.25f * means[i / 2];
            assert_true(bench_latest(&b)[3] == expected);
            assert_int_equal(b.records, 2);
            for (unsigned k = 0; k < 2; k++) {
                assert_int_equal(b.record[k].worker, order[i - 1 + k]);
                assert_int_equal(b.record[k].arrival, i - 1 + k);
                assert_true(b.record[k].scale == scales[i - 1 + k]);
                assert_true(b.record[k].rate == 0.25 * scales[i - 1 + k]);
            }
        }
    }
    assert_int_equal(server_core_samples_used(b.rig.core), 60);
    core_rig_close(&b.rig);
}

/* A dropped gradient is neither in K nor in the divisor: the mean of 1 and 4 is 2.5. */
static void dropped_gradients_do_not_count_in_the_mean(void **state)
{
    (void)state;
    struct core_bench b;
    bench_open(&b, (struct server_core_options){.workers = 2},
               RIG("consistency=buffered", "consistency.size=2", "damping=cutoff",
                   "damping.after=0", "optimizer=sgd", "lr=1"));
    bench_hello_all(&b);
    set_gradient(&b, 0, 0);
    bench_push(&b, 0);
    bench_push(&b, 0);
    float before = bench_latest(&b)[0];
    set_gradient(&b, 0, 1);
    set_gradient(&b, 1, 64);
    bench_push(&b, 0);
    bench_push(&b, 1);
    assert_int_equal(b.record[0].outcome, PUSH_DROPPED_STALE);
    assert_int_equal(b.record[0].reason, PUSH_BY_DAMPING);
    assert_int_equal(b.applied, 0);
    set_gradient(&b, 1, 4);
    bench_push(&b, 1);
    assert_int_equal(b.applied, 1);
    assert_true(bench_latest(&b)[0] == before - 2.5f);
    assert_int_equal(server_core_samples_used(b.rig.core), 40);
    assert_int_equal(server_core_samples_computed(b.rig.core), 50);
    core_rig_close(&b.rig);
}

/* Both get the same pushes in the same order and must release the same workers. */
static void expect_equal(unsigned workers, const char *const *one, const char *const *other,
                         bool barrier)
{
    struct core_bench a, b;
    uint64_t seed = 5;
    bench_open(&a, (struct server_core_options){.workers = workers}, one);
    bench_open(&b, (struct server_core_options){.workers = workers}, other);
    bench_hello_all(&a);
    bench_hello_all(&b);
    for (unsigned i = 0; i < 400; i++) {
        unsigned w = barrier ? i % workers : (unsigned)(core_rig_random(&seed) % workers);
        core_rig_fill(a.gradient[w], BENCH_COUNT, i);
        core_rig_fill(b.gradient[w], BENCH_COUNT, i);
        bench_push(&a, w);
        bench_push(&b, w);
        assert_int_equal(a.releases, b.releases);
        assert_int_equal(a.records, b.records);
        assert_memory_equal(bench_latest(&a), bench_latest(&b), BENCH_COUNT * sizeof(float));
        for (unsigned k = 0; k < a.records; k++) {
            assert_int_equal(a.record[k].outcome, b.record[k].outcome);
            assert_true(a.record[k].gap == b.record[k].gap);
        }
    }
    assert_true(server_core_version(a.rig.core) >= 400 / workers);
    core_rig_close(&a.rig);
    core_rig_close(&b.rig);
}

static void policies_at_their_limits_equal_asp_or_bsp_bit_for_bit(void **state)
{
    (void)state;
    const char *const *asp = RIG("consistency=asp", "damping=polynomial");
    expect_equal(4, asp, RIG("consistency=softsync", "consistency.n=4", "damping=polynomial"),
                 false);
    expect_equal(4, asp, RIG("consistency=buffered", "consistency.size=1", "damping=polynomial"),
                 false);
    expect_equal(4, asp, RIG("consistency=ssp", "consistency.slack=1000", "damping=polynomial"),
                 false);
    expect_equal(4, asp,
                 RIG("consistency=ringmaster", "consistency.limit=1000", "damping=polynomial"),
                 false);
    expect_equal(4, asp, RIG("consistency=groups", "consistency.groups=4", "damping=polynomial"),
                 false);
    expect_equal(4, RIG("consistency=bsp"), RIG("consistency=groups", "consistency.groups=1"),
                 true);
    expect_equal(4, RIG("consistency=bsp"), RIG("consistency=backup", "consistency.backups=0"),
                 true);
    expect_equal(1, RIG("consistency=asp"), RIG("consistency=rennala", "consistency.size=1"),
                 false);
}

/* ---- errors and bounds ---- */

static void a_bad_gradient_changes_neither_parameters_nor_sum(void **state)
{
    (void)state;
    struct core_bench b;
    bench_open(&b, (struct server_core_options){.workers = 3},
               RIG("consistency=buffered", "consistency.size=3"));
    bench_hello_all(&b);
    static const struct traced first[] = {{"push 0", "0 released at 0"}};
    follow(&b, first, 1);
    b.gradient[1][30] = NAN;
    static const struct traced bad[] = {
        {"push 1", "1 not finite bad gradient t0 v0, 0 dropped late run diverged t0 v0, diverged"}};
    follow(&b, bad, 1);
    assert_memory_equal(bench_latest(&b), b.rig.initial, BENCH_COUNT * sizeof(float));
    assert_int_equal(server_core_samples_used(b.rig.core), 0);
    core_rig_close(&b.rig);
}

static void a_sum_that_overflows_is_no_update(void **state)
{
    (void)state;
    struct core_bench b;
    bench_open(&b, (struct server_core_options){.workers = 2},
               RIG("consistency=buffered", "consistency.size=2"));
    bench_hello_all(&b);
    set_gradient(&b, 0, 0.75f * FLT_MAX);
    set_gradient(&b, 1, 0.75f * FLT_MAX);
    static const struct traced steps[] = {
        {"push 0", "0 released at 0"},
        {"push 1", "1 not finite bad update t0 v0, 0 dropped late run diverged t0 v0, diverged"}};
    follow(&b, steps, COUNT_OF(steps));
    assert_memory_equal(bench_latest(&b), b.rig.initial, BENCH_COUNT * sizeof(float));
    core_rig_close(&b.rig);
}

/* The bound of consistency_ssp.c holds, and two workers reach it: one reads while it is s clocks
 * ahead. The other one then pushes 2 s + 1 times before the first one pushes. */
static void staleness_under_ssp_is_bounded_by_its_slack(void **state)
{
    (void)state;
    for (unsigned slack = 0; slack < 4; slack++) {
        for (unsigned workers = 2; workers <= 6; workers++) {
            char setting[40];
            uint64_t seed = slack * 10 + workers, greatest = 0;
            struct core_bench b;
            snprintf(setting, sizeof setting, "consistency.slack=%u", slack);
            bench_open(&b, (struct server_core_options){.workers = workers},
                       RIG("consistency=ssp", setting));
            bench_hello_all(&b);
            for (unsigned i = 0; i < 20000; i++) {
                /* Draws a computing worker; workers with higher numbers are faster. */
                unsigned w = (unsigned)(core_rig_random(&seed) % workers);
                unsigned again = (unsigned)(core_rig_random(&seed) % workers);
                w = again > w && i / 100 % 2 == 0 ? again : w;
                while (!server_core_awaits(b.rig.core, w))
                    w = (w + 1) % workers;
                bench_push(&b, w);
                greatest = b.record[0].staleness > greatest ? b.record[0].staleness : greatest;
            }
            assert_true(greatest <= (workers - 1) * (2 * slack + 1));
            assert_true(workers > 2 || greatest == 2 * slack + 1);
            core_rig_close(&b.rig);
        }
    }
}

static void backups_must_be_fewer_than_workers(void **state)
{
    (void)state;
    options *settings = NULL;
    struct consistency c;
    unsigned n;
    assert_int_equal(
        core_rig_settings(&settings, RIG("consistency=backup", "consistency.backups=4")), OK);
    assert_int_equal(consistency_open(&c, settings), OK);
    assert_int_equal(consistency_per_update(&c, 5, &n), OK);
    assert_int_equal(n, 1);
    assert_int_equal(consistency_per_update(&c, 4, &n), ERROR_USAGE);
    assert_non_null(strstr(error_message(), "consistency.backups=4"));
    options_close(&settings);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(asp_applies_every_gradient_on_arrival),
        cmocka_unit_test(bsp_waits_for_all_workers_and_records_the_last_one),
        cmocka_unit_test(ssp_blocks_workers_further_ahead_than_the_slack),
        cmocka_unit_test(ssp_without_slack_completes_each_iteration_before_the_next),
        cmocka_unit_test(groups_wait_for_their_own_workers_only),
        cmocka_unit_test(the_mean_counts_groups_of_all_sizes),
        cmocka_unit_test(softsync_updates_after_workers_over_n_gradients_of_any_workers),
        cmocka_unit_test(backup_drops_late_gradients),
        cmocka_unit_test(buffered_counts_gradients_not_workers),
        cmocka_unit_test(rennala_uses_only_gradients_of_the_latest_version),
        cmocka_unit_test(ringmaster_drops_gradients_from_its_limit_on),
        cmocka_unit_test(softsync_takes_the_mean_of_damped_gradients),
        cmocka_unit_test(dropped_gradients_do_not_count_in_the_mean),
        cmocka_unit_test(policies_at_their_limits_equal_asp_or_bsp_bit_for_bit),
        cmocka_unit_test(a_bad_gradient_changes_neither_parameters_nor_sum),
        cmocka_unit_test(a_sum_that_overflows_is_no_update),
        cmocka_unit_test(staleness_under_ssp_is_bounded_by_its_slack),
        cmocka_unit_test(backups_must_be_fewer_than_workers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
