/* Links, racks and slow-downs of the virtual cluster, and what it does not model. */
#include "base/status.h"
#include "tests/ps/virtual/virtual_rig.h"
#include "tests/rigs/process_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* 2 600 bytes take 2.6 ms at 8 Mbit/s; 10 ms for computing, 4 ms of latency. */
#define LINKS                                                                                      \
    RIG_SMALL, "engine=virtual", "pace=constant", "pace.mean_ms=10", "network.latency_ms=4",       \
        "network.gbps=0.008"

static void a_transfer_takes_its_bytes_divided_by_the_bandwidth(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", LINKS), OK);
    assert_close(atof(process_ask(r, "SELECT train_seconds FROM run")), 60 * 0.0232, 1e-6);
    assert_string_equal(process_ask(r, "SELECT count(*) FROM push WHERE compute_us = 10000 AND "
                                       "pull_us = CASE sequence WHEN 0 THEN 0 ELSE 13200 END"),
                        "60");
}

/* Each update needs 2.6 ms in each direction of the server's link: a gradient in, parameters out.
 */
static void workers_share_the_servers_link(void **state)
{
    struct process_rig *r = *state;
    char last[80];
    assert_int_equal(RIG_RUN(r, "run", LINKS, "workers=20"), OK);
    assert_true(atof(process_ask(r, "SELECT train_seconds FROM run")) > 60 * 0.0026);
    assert_int_equal(RIG_RUN(r, "run", LINKS, "workers=20", "network.server_gbps=1000"), OK);
    copy_answer(r, "SELECT train_seconds FROM run WHERE id = 2", last);
    assert_close(atof(last), 3 * 0.0232, 1e-6); /* every worker is as fast as alone */
    assert_int_equal(RIG_RUN(r, "run", LINKS, "workers=20", "network.server_in_gbps=1000"), OK);
    assert_true(atof(process_ask(r, "SELECT train_seconds FROM run WHERE id = 3")) > atof(last));
    assert_string_equal(process_ask(r, "SELECT max(train_seconds) FROM run WHERE id IN (1, 3)"),
                        process_ask(r, "SELECT train_seconds FROM run WHERE id = 1"));
}

#define ALL_PUSHES                                                                                 \
    "SELECT sum(number * 31 + update_version * 7 + worker * read_version + at_seconds * 1e3 + "    \
    "queue_us + loss) FROM push WHERE run_id = (SELECT max(id) FROM run)"

static void threads_do_not_change_a_virtual_run(void **state)
{
    struct process_rig *r = *state;
    char alone[80];
    const char *const modes[] = {"mode=async", "mode=sync"};
    for (size_t i = 0; i < COUNT_OF(modes); i++) {
        assert_int_equal(RIG_RUN(r, "run", VIRTUAL, modes[i], "workers=12", "virtual.threads=1"),
                         OK);
        copy_answer(r, ALL_PUSHES, alone);
        assert_int_equal(RIG_RUN(r, "run", VIRTUAL, modes[i], "workers=12", "virtual.threads=3"),
                         OK);
        expect_last_two_runs_equal(r);
        assert_string_equal(process_ask(r, ALL_PUSHES), alone);
    }
}

#define RACK_SERVERS                                                                               \
    "network.rack_servers=true", "network.racks=3", "consistency=groups", "consistency.groups=3"

static void run_limited(struct process_rig *r, const char *threads, const char *const more[6])
{
    const char *all[32] = {"run",   VIRTUAL, "network.gbps=0.008", "workers=7", "lr=0.01",
                           threads, NULL};
    size_t n = 0;
    while (all[n] != NULL)
        n++;
    for (size_t i = 0; i < 6 && more[i] != NULL; i++)
        all[n++] = more[i];
    assert_int_equal(process_run(r, all), OK);
}

static void runs_with_limited_links_repeat_and_replay(void **state)
{
    static const char *const cases[][6] = {{"servers=1"},
                                           {"servers=3", "network.jitter_ms=5"},
                                           {"servers=3", "network.jitter_ms=5", "read=torn"},
                                           {"crash.mtbf_s=0.2", "crash.down_s=0.05", "servers=2"},
                                           {"network.gbps=0", "network.server_in_gbps=0.008"},
                                           {RACK_SERVERS, "network.jitter_ms=5"},
                                           {RACK_SERVERS, "network.uplink_gbps=0.004", "servers=3"},
                                           {RACK_SERVERS, "servers=2", "read=torn"}};
    struct process_rig *r = *state;
    char alone[80];
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        run_limited(r, "virtual.threads=1", cases[i]);
        copy_answer(r, ALL_PUSHES, alone);
        run_limited(r, "virtual.threads=3", cases[i]);
        expect_last_two_runs_equal(r);
        assert_string_equal(process_ask(r, ALL_PUSHES), alone);
        assert_int_equal(RIG_RUN(r, "replay", "last"), OK);
    }
}

/* Two workers whose paths share no link: 10.4 ms over an uplink of 2 Mbit/s, in each direction.
 * Then eight workers behind one uplink. */
static void a_rack_is_as_fast_as_its_uplink(void **state)
{
    struct process_rig *r = *state;
    char last[80];
    assert_int_equal(RIG_RUN(r, "run", LINKS, "workers=2", "network.server_gbps=1000",
                             "network.racks=2", "network.uplink_gbps=0.002"),
                     OK);
    copy_answer(r, "SELECT train_seconds FROM run", last);
    assert_close(atof(last), 30 * 0.0388, 1e-6);
    assert_int_equal(RIG_RUN(r, "run", LINKS, "workers=8", "network.server_gbps=1000",
                             "network.racks=1", "network.uplink_gbps=0.002"),
                     OK);
    /* Each of 60 updates takes 10.4 ms of the shared uplink, in each direction. */
    const double shared = atof(process_ask(r, "SELECT train_seconds FROM run WHERE id = 2"));
    assert_true(shared > 60 * 0.0104);
}

/* Each message takes two hops. First two racks of one worker: 2.6 ms of transfer and 4 ms of
 * latency per hop. Then two racks of two workers, whose links have no limit: only the sums and the
 * parameters on the uplinks take 2.6 ms, so a rack is as fast with two workers as with one. */
static void a_rack_server_passes_on_one_sum_for_its_rack(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", LINKS, "workers=2", "network.server_gbps=1000",
                             "network.racks=2", "network.rack_servers=true", "consistency=groups"),
                     OK);
    assert_close(atof(process_ask(r, "SELECT train_seconds FROM run")), 30 * (10 + 4 * 6.6) * 1e-3,
                 1e-6);
    for (unsigned workers = 2; workers <= 4; workers += 2) {
        assert_int_equal(RIG_RUN(r, "run", LINKS, workers == 2 ? "workers=2" : "workers=4",
                                 "network.gbps=0", "network.uplink_gbps=0.008", "network.racks=2",
                                 "network.rack_servers=true", "consistency=groups"),
                         OK);
        assert_close(atof(process_ask(r, "SELECT train_seconds FROM run ORDER BY id DESC LIMIT 1")),
                     60 / workers * (10 + 2 * 4 + 2 * 6.6) * 1e-3, 1e-6);
    }
    assert_string_equal(process_ask(r, "SELECT count(DISTINCT update_version) || ' ' || count(*) "
                                       "FROM push WHERE run_id = 3"),
                        "30 60");
}

/* Two slices of equal size. No link but the rack's limits them, and they get equal shares of it. */
static void the_parts_of_a_racks_sum_arrive_together(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", LINKS, "workers=4", "network.server_gbps=1000", "servers=2",
                             "read=torn", "network.racks=2", "network.rack_servers=true",
                             "consistency=groups"),
                     OK);
    process_expect_answer(r,
                          "SELECT count(*) || ' ' || (max(apart) < 1e-7) FROM (SELECT "
                          "max(at_seconds) - min(at_seconds) AS apart FROM push "
                          "WHERE reason IS NULL GROUP BY worker, batch)",
                          "60 1");
}

/* With a barrier the network does not change the parameters. */
static void rack_servers_do_not_change_what_a_barrier_computes(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", LINKS, "workers=5", "consistency=bsp"), OK);
    assert_int_equal(RIG_RUN(r, "run", LINKS, "workers=5", "consistency=bsp", "network.racks=2",
                             "network.rack_servers=true", "network.jitter_ms=3"),
                     OK);
    assert_string_equal(process_ask(r, "SELECT count(DISTINCT parameters_sha256) || ' ' || "
                                       "count(DISTINCT train_seconds) FROM run"),
                        "1 2");
}

/* 15 updates of 4 ranks; a step of 10 ms, 2 600 bytes, 1 byte/µs in a rack and ½ byte/µs up. */
static void an_allreduce_over_racks_takes_the_time_of_its_formula(void **state)
{
    struct process_rig *r = *state;
    static const struct {
        const char *allreduce;
        double ms;
    } known[] = {{"network.allreduce=ring", 6 * (2 + 1.3)},
                 {"network.allreduce=hierarchical", 2 * (2 + 1.3) + 2 * (2 + 2.6)}};
    for (size_t i = 0; i < COUNT_OF(known); i++) {
        assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "engine=virtual", "mode=sync", "workers=4",
                                 "pace=constant", "pace.mean_ms=10", "network.latency_ms=2",
                                 "network.gbps=0.008", "network.racks=2",
                                 "network.uplink_gbps=0.004", known[i].allreduce),
                         OK);
        assert_close(atof(process_ask(r, "SELECT train_seconds FROM run ORDER BY id DESC LIMIT 1")),
                     15 * (10 + known[i].ms) * 1e-3, 1e-6);
    }
}

#define SLOW_DOWNS                                                                                 \
    RIG_DATA, "batch=10", "samples=6000", "engine=virtual", "pace=constant", "pace.mean_ms=7",     \
        "workers=6", "pace.window_s=0.0503", "pace.window_share=0.4", "pace.window_factor=3"
#define SLOW_RACKS SLOW_DOWNS, "pace.window_of=rack", "network.racks=3"

/* The largest number of different step lengths in one window, among the steps of one rack or of all
 * racks. */
#define LENGTHS_IN(rack)                                                                           \
    "SELECT max(n) FROM (SELECT count(DISTINCT round(compute_us)) AS n FROM push WHERE run_id = "  \
    "(SELECT max(id) FROM run) GROUP BY " rack                                                     \
    ", CAST((at_seconds - (queue_us + compute_us) / 1e6) / 0.0503 AS INTEGER))"
#define LENGTHS                                                                                    \
    "SELECT group_concat(us, ' ') FROM (SELECT DISTINCT round(compute_us) AS us FROM push "        \
    "WHERE run_id = (SELECT max(id) FROM run) ORDER BY 1)"

static void workers_of_a_rack_are_slow_together(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", SLOW_RACKS), OK);
    assert_string_equal(process_ask(r, LENGTHS), "7000.0 21000.0");
    assert_string_equal(process_ask(r, LENGTHS_IN("worker / 2")), "1");
    assert_string_equal(process_ask(r, LENGTHS_IN("0 * worker")), "2");
    assert_int_equal(RIG_RUN(r, "run", SLOW_DOWNS, "pace.window_of=all"), OK);
    assert_string_equal(process_ask(r, LENGTHS), "7000.0 21000.0");
    assert_string_equal(process_ask(r, LENGTHS_IN("0 * worker")), "1");
}

#define RANK_LENGTHS(rack)                                                                         \
    "SELECT max(n) FROM (SELECT count(DISTINCT compute_us) AS n FROM step WHERE run_id = "         \
    "(SELECT max(id) FROM run) GROUP BY update_version, " rack ")"

static void ranks_of_a_rack_are_slow_together(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", SLOW_RACKS, "mode=sync"), OK);
    assert_string_equal(process_ask(r, RANK_LENGTHS("worker / 2")), "1");
    assert_string_equal(process_ask(r, RANK_LENGTHS("0 * worker")), "2");
    assert_int_equal(RIG_RUN(r, "run", SLOW_DOWNS, "mode=sync", "pace.window_of=all"), OK);
    assert_string_equal(process_ask(r, RANK_LENGTHS("0 * worker")), "1");
    /* Not all updates are slow. */
    assert_string_equal(process_ask(r, "SELECT count(DISTINCT compute_us) FROM step "
                                       "WHERE run_id = 2"),
                        "2");
}

static void runs_with_racks_and_slow_downs_repeat_and_replay(void **state)
{
    struct process_rig *r = *state;
    static const char *const modes[] = {"mode=async", "mode=sync"};
    char alone[80];
    for (size_t i = 0; i < COUNT_OF(modes); i++) {
        assert_int_equal(RIG_RUN(r, "run", SLOW_RACKS, "pace=gamma", "network.gbps=0.008",
                                 "network.uplink_gbps=0.01", modes[i], "virtual.threads=1"),
                         OK);
        copy_answer(r, ALL_PUSHES, alone);
        assert_int_equal(RIG_RUN(r, "run", SLOW_RACKS, "pace=gamma", "network.gbps=0.008",
                                 "network.uplink_gbps=0.01", modes[i], "virtual.threads=3"),
                         OK);
        expect_last_two_runs_equal(r);
        assert_string_equal(process_ask(r, ALL_PUSHES), alone);
        assert_string_equal(process_ask(r, "SELECT count(DISTINCT train_seconds) FROM run "
                                           "WHERE id > (SELECT max(id) FROM run) - 2"),
                            "1");
        if (i == 0)
            assert_int_equal(RIG_RUN(r, "replay", "last"), OK);
    }
}

#define NOT_MODELLED                                                                               \
    "SELECT ' ' || detail || ' ' FROM event WHERE code = 'not_modelled' AND run_id = "             \
    "(SELECT max(id) FROM run)"

static void a_virtual_run_names_what_it_does_not_model(void **state)
{
    struct process_rig *r = *state;
    static const char *const optional[] = {" latency ", " bandwidth ", " shared_uplinks ",
                                           " correlated_slowdowns ", " update_time "};
    char names[600];
    assert_int_equal(RIG_RUN(r, "run", VIRTUAL), OK);
    snprintf(names, sizeof names, "%s", process_ask(r, NOT_MODELLED));
    assert_non_null(strstr(names, " packet_loss "));
    for (size_t i = 0; i < COUNT_OF(optional); i++)
        assert_non_null(strstr(names, optional[i]));
    assert_int_equal(RIG_RUN(r, "run", SLOW_RACKS, "network.gbps=1", "network.latency_ms=1",
                             "network.uplink_gbps=1", "server.apply_ms=1"),
                     OK);
    snprintf(names, sizeof names, "%s", process_ask(r, NOT_MODELLED));
    assert_non_null(strstr(names, " packet_loss "));
    for (size_t i = 0; i < COUNT_OF(optional); i++)
        assert_null(strstr(names, optional[i]));
    assert_non_null(strstr(names, " server_tree "));
    assert_int_equal(RIG_RUN(r, "show", "last"), OK);
    assert_non_null(strstr(process_output(r), "not_modelled"));
    assert_int_equal(RIG_RUN(r, "run", VIRTUAL, "workers=6", RACK_SERVERS), OK);
    snprintf(names, sizeof names, "%s", process_ask(r, NOT_MODELLED));
    assert_null(strstr(names, " server_tree "));
    assert_int_equal(RIG_RUN(r, "run", VIRTUAL, "network.server_in_gbps=1"), OK);
    assert_null(strstr(process_ask(r, NOT_MODELLED), " bandwidth "));
}

static void racks_and_slow_downs_without_effect_are_a_usage_error(void **state)
{
    struct process_rig *r = *state;
    static const struct {
        const char *one, *two, *error;
    } cases[] = {
        {"network.uplink_gbps=1", "workers=4", "network.racks=0"},
        {"network.racks=5", "workers=4", "workers=4"},
        {"network.racks=2", "workers=4", "network.uplink_gbps"},
        {"network.allreduce=hierarchical", "mode=sync", "network.racks=0"},
        {"network.allreduce=hierarchical", "mode=async", "mode=sync"},
        {"network.racks=16385", "workers=4", "16384"},
        {"pace.window_s=1", "workers=4", "pace.window_share"},
        {"pace.window_s=1", "pace.window_share=0.5", "pace.window_factor"},
        {"pace.window_of=rack", "workers=4", "pace.window_s"},
        {"pace.window_share=1.5", "workers=4", "from 0 to 1"},
        {"network.rack_servers=true", "workers=4", "network.racks=0"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        assert_int_equal(RIG_RUN(r, "run", VIRTUAL, cases[i].one, cases[i].two), ERROR_USAGE);
        process_expect_error(r, cases[i].error);
    }
    assert_int_equal(RIG_RUN(r, "run", VIRTUAL, "workers=4", "pace.window_s=1",
                             "pace.window_share=0.5", "pace.window_factor=2",
                             "pace.window_of=rack"),
                     ERROR_USAGE);
    process_expect_error(r, "network.racks=0");
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "workers=4", "network.racks=2"), ERROR_USAGE);
    process_expect_error(r, "engine=real");
    static const struct {
        const char *setting, *error;
    } refused[] = {{"consistency=softsync", "consistency=softsync"},
                   {"network.racks=3", "consistency.groups=2"},
                   {"crash.mtbf_s=5", "crash.mtbf_s"},
                   {"compression=fp16", "compression=none"},
                   {"on_nonfinite=skip", "on_nonfinite"},
                   {"correction=dc-asgd-c", "correction=dc-asgd-c"},
                   {"correction=dc-asgd-a", "correction=dc-asgd-a"},
                   {"damping=rescaled", "damping=rescaled"},
                   {"damping=trim", "damping=trim"}};
    for (size_t i = 0; i < COUNT_OF(refused); i++) {
        assert_int_equal(RIG_RUN(r, "run", VIRTUAL, "workers=4", "network.rack_servers=true",
                                 "network.racks=2", "consistency=groups", refused[i].setting),
                         ERROR_USAGE);
        process_expect_error(r, refused[i].error);
    }
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, process_set_up, process_tear_down)
    const struct CMUnitTest tests[] = {
        TEST(a_transfer_takes_its_bytes_divided_by_the_bandwidth),
        TEST(workers_share_the_servers_link),
        TEST(threads_do_not_change_a_virtual_run),
        TEST(runs_with_limited_links_repeat_and_replay),
        TEST(a_rack_is_as_fast_as_its_uplink),
        TEST(a_rack_server_passes_on_one_sum_for_its_rack),
        TEST(the_parts_of_a_racks_sum_arrive_together),
        TEST(rack_servers_do_not_change_what_a_barrier_computes),
        TEST(an_allreduce_over_racks_takes_the_time_of_its_formula),
        TEST(workers_of_a_rack_are_slow_together),
        TEST(ranks_of_a_rack_are_slow_together),
        TEST(runs_with_racks_and_slow_downs_repeat_and_replay),
        TEST(a_virtual_run_names_what_it_does_not_model),
        TEST(racks_and_slow_downs_without_effect_are_a_usage_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
