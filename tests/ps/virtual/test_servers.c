/* Parameters on several servers: torn reads, snapshots, and their records. */
#include "tests/rigs/process_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ps/core/slices.h"

#define VIRTUAL RIG_SMALL, "engine=virtual", "pace=gamma", "workers=5"
/* Messages overtake each other. */
#define JITTER "network.jitter_ms=20"

#define LAST "run_id = (SELECT max(id) FROM run)"

/* The number of gradients that were computed at slices of different versions. */
static int torn_reads(struct process_rig *r)
{
    return atoi(process_ask(r, "SELECT count(*) FROM (SELECT 1 FROM push WHERE " LAST
                               " GROUP BY worker, batch"
                               " HAVING max(read_version) > min(read_version))"));
}

/* The number of gradients that servers took in different orders. */
static int out_of_order(struct process_rig *r)
{
    return atoi(process_ask(r, "SELECT count(*) FROM (SELECT 1 FROM push WHERE " LAST
                               " AND reason IS NULL GROUP BY worker, batch"
                               " HAVING max(update_version) > min(update_version))"));
}

static int rows_of(struct process_rig *r, unsigned server)
{
    char sql[128];
    snprintf(sql, sizeof sql, "SELECT count(*) FROM push WHERE " LAST " AND server = %u", server);
    return atoi(process_ask(r, sql));
}

static void expect_replayed(struct process_rig *r)
{
    assert_int_equal(RIG_RUN(r, "replay", "last"), OK);
}

static void expect_one_hash(struct process_rig *r)
{
    assert_string_equal(process_ask(r, "SELECT count(DISTINCT parameters_sha256) FROM run"), "1");
    assert_string_equal(process_ask(r, "SELECT length(parameters_sha256) FROM run"), "64");
}

static void slices_cover_all_parameters_once(void **state)
{
    (void)state;
    static const size_t counts[] = {1, 7, 64, 65, 1001, 37610, 1048577, 1100000};
    for (size_t c = 0; c < COUNT_OF(counts); c++) {
        for (unsigned servers = 1; servers <= SERVERS_MAX && servers <= counts[c]; servers++) {
            size_t least = SIZE_MAX, most = 0, next = 0;
            struct slices slices;
            slices_cut(&slices, servers, counts[c], NULL);
            for (unsigned i = 0; i < servers; i++) {
                size_t count = slice_count(&slices, i);
                assert_int_equal(slices.begin[i], next);
                if (counts[c] / servers >= (size_t)SLICE_PAGES * SLICE_PAGE)
                    assert_int_equal(next % SLICE_PAGE, 0);
                next += count;
                least = count < least ? count : least;
                most = count > most ? count : most;
            }
            assert_int_equal(next, counts[c]);
            bool pages = counts[c] / servers >= (size_t)SLICE_PAGES * SLICE_PAGE;
            assert_true(least >= 1 && most - least < (pages ? 2 * SLICE_PAGE : 2));
        }
    }
}

/* Even cuts are at 8; 6 and 11; 4, 8 and 12. The boundaries are at 1, 2, 10 and 14. */
static void slices_for_whole_layers_are_cut_at_the_nearest_boundary(void **state)
{
    (void)state;
    static const struct optimizer_layer table[] = {
        {.count = 1}, {.count = 1}, {.count = 8}, {.count = 4}, {.count = 2}};
    const struct optimizer_layers layers = {table, COUNT_OF(table)};
    static const struct {
        unsigned servers;
        size_t begin[6];
    } known[] = {{1, {0, 16}},
                 {2, {0, 10, 16}},
                 {3, {0, 2, 10, 16}},
                 {4, {0, 2, 10, 14, 16}},
                 {5, {0, 1, 2, 10, 14, 16}}};
    for (size_t k = 0; k < COUNT_OF(known); k++) {
        struct slices slices;
        size_t next = 0;
        slices_cut(&slices, known[k].servers, 16, &layers);
        for (unsigned i = 0; i < known[k].servers; i++) {
            const struct optimizer_layers own = slice_layers(&slices, &layers, i);
            size_t count = 0;
            assert_int_equal(slices.begin[i], known[k].begin[i]);
            assert_ptr_equal(own.at, table + next);
            for (size_t l = 0; l < own.count; l++)
                count += own.at[l].count;
            assert_int_equal(slice_count(&slices, i), count);
            next += own.count;
        }
        assert_int_equal(next, COUNT_OF(table));
    }
}

/* Layer-wise and whole-matrix rules compute the same when layers are distributed. */
static void whole_layers_on_several_servers_compute_the_same_as_on_one(void **state)
{
    struct process_rig *r = *state;
    static const char *const rules[][3] = {
        {"optimizer=muon", "lr=0.005", "model=mlp"},
        {"optimizer=lars", "optimizer.trust=0.01", "model=mlp"},
        {"optimizer=momentum", "weight_decay=0.01", "weight_decay_of=matrices"},
        {"outer=heloco", "outer.steps=2", "optimizer=sgd"}};
    static const char *const servers[] = {"servers=1", "servers=2", "servers=3"};
    for (size_t k = 0; k < COUNT_OF(rules); k++) {
        const char *const *set = rules[k];
        const unsigned most = k < 2 ? 3 : 2; /* model=softmax has two layers */
        for (unsigned i = 0; i < most; i++) {
            assert_int_equal(RIG_RUN(r, "run", VIRTUAL, servers[i], set[0], set[1], set[2]), OK);
            expect_replayed(r);
        }
        assert_string_equal(
            process_ask(r, "SELECT count(DISTINCT parameters_sha256) || ' ' || count(*) FROM run "
                           "WHERE config ->> 'optimizer' = (SELECT config ->> 'optimizer' "
                           "FROM run ORDER BY id DESC LIMIT 1)"),
            k < 2 ? "1 3" : "1 2");
    }
    assert_int_equal(RIG_RUN(r, "run", VIRTUAL, "servers=3", "optimizer=muon"), ERROR_USAGE);
    process_expect_error(r, "servers=2");
}

/* With one order for all servers, each slice has the history that it has with one server. */
static void snapshots_of_several_servers_compute_the_same_as_one_server(void **state)
{
    struct process_rig *r = *state;
    static const char *const servers[] = {"servers=1", "servers=2", "servers=3", "servers=9"};
    for (size_t i = 0; i < COUNT_OF(servers); i++)
        assert_int_equal(RIG_RUN(r, "run", VIRTUAL, servers[i], "damping=inverse"), OK);
    assert_int_equal(torn_reads(r), 0);
    assert_int_equal(out_of_order(r), 0);
    assert_int_equal(rows_of(r, 8), 60);
    expect_one_hash(r);
    assert_string_equal(process_ask(r, "SELECT count(DISTINCT final_loss) FROM run"), "1");
}

/* If no message overtakes another, reads are whole, and evaluations and the final parameters have
 * each gradient at all servers. Without a schedule the last update is not smaller than others. */
static void without_jitter_torn_reads_compute_the_same_as_one_server(void **state)
{
    struct process_rig *r = *state;
    static const char *const servers[][2] = {
        {"servers=1", "read=snapshot"}, {"servers=2", "read=torn"}, {"servers=5", "read=torn"}};
    for (size_t i = 0; i < COUNT_OF(servers); i++) {
        assert_int_equal(RIG_RUN(r, "run", VIRTUAL, servers[i][0], servers[i][1],
                                 "schedule=constant", "evaluate_every=0.1", "server.apply_ms=1"),
                         OK);
    }
    assert_int_equal(torn_reads(r), 0);
    assert_int_equal(rows_of(r, 4), 60);
    expect_replayed(r);
    expect_one_hash(r);
    process_expect_answer(r,
                          "SELECT count(DISTINCT validation_loss || test_loss) = count(*) / 3 AND "
                          "count(*) >= 15 FROM evaluation",
                          "1");
}

/* By the named query: one row for each spread of versions, with its number of gradients. */
static int torn_gradients_by_query(struct process_rig *r)
{
    int run, spread, gradients, torn = 0;
    assert_int_equal(RIG_RUN(r, "query", "torn-reads", "--csv"), OK);
    for (const char *line = strchr(process_output(r), '\n'); line != NULL && line[1] != '\0';
         line = strchr(line + 1, '\n')) {
        assert_int_equal(sscanf(line + 1, "%d,%d,%d", &run, &spread, &gradients), 3);
        torn += spread > 0 ? gradients : 0;
    }
    return torn;
}

static void reads_are_torn_if_messages_overtake_each_other(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", VIRTUAL, JITTER, "servers=3", "read=torn"), OK);
    assert_true(torn_reads(r) > 10);
    assert_true(out_of_order(r) > 10);
    assert_int_equal(torn_gradients_by_query(r), torn_reads(r));
    assert_int_equal(RIG_RUN(r, "query", "servers"), OK);
    assert_int_equal(RIG_RUN(r, "run", VIRTUAL, JITTER, "servers=3"), OK);
    assert_int_equal(torn_reads(r), 0);
    assert_int_equal(out_of_order(r), 0);
}

/* 10 ms for computing, 4 ms per message, 1 ms for an update; no bandwidth limit. */
static void a_snapshot_takes_two_messages_more_than_a_torn_read(void **state)
{
#define TIMED                                                                                      \
    RIG_SMALL, "engine=virtual", "pace=constant", "pace.mean_ms=10", "network.latency_ms=4",       \
        "server.apply_ms=1", "servers=2"
#define SECONDS                                                                                    \
    "SELECT CAST(round(1e6 * train_seconds) AS INTEGER) FROM run ORDER BY id DESC LIMIT 1"
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", TIMED, "read=torn"), OK);
    process_expect_answer(r, SECONDS, "1140000"); /* 60 × (4 + 10 + 4 + 1) ms */
    assert_int_equal(RIG_RUN(r, "run", TIMED), OK);
    process_expect_answer(r, SECONDS,
                          "1620000"); /* 8 ms more: the message to server 0, and its order */
    process_expect_answer(r,
                          "SELECT count(*) FROM push WHERE " LAST
                          " AND apply_us = 1000 AND queue_us = 4000 + 4000 * server"
                          " AND pull_us = CASE sequence WHEN 0 THEN 0 ELSE 17000 END",
                          "120");
}

/* With one worker and no other times, the time from a gradient's arrival to the arrival of its
 * reply is the reply's jitter. Two consecutive ones are equal only if they use the same random
 * number. */
static void each_message_has_its_own_jitter(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "engine=virtual", "pace=constant", "servers=2",
                             "read=torn", JITTER),
                     OK);
    process_expect_answer(
        r,
        "WITH got AS (SELECT sequence AS round, sum(pull_us + compute_us) OVER (ORDER BY sequence)"
        " - compute_us AS at FROM push WHERE server = 0), reply AS (SELECT p.sequence AS round,"
        " p.server, got.at - 1e6 * p.at_seconds AS took FROM push p JOIN got"
        " ON got.round = p.sequence + 1) SELECT count(DISTINCT a.server) || ' ' ||"
        " min(coalesce(abs(a.took - b.took) >= 2, 0)) FROM reply a JOIN reply b"
        " ON b.server = a.server AND b.round = a.round + 1",
        "2 1");
}

/* Two slices of 325 parameters, 10.4 ms each on a worker's link: both parts have arrived after 20.8
 * ms and 4 ms of latency; 10 ms for computing. */
static void parts_for_several_servers_share_the_workers_link(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "engine=virtual", "pace=constant",
                             "pace.mean_ms=10", "network.latency_ms=4", "servers=2", "read=torn",
                             "network.gbps=0.001", "network.server_gbps=1"),
                     OK);
    process_expect_answer(r,
                          "SELECT count(*) FROM push WHERE sequence = 0"
                          " AND abs(1e6 * at_seconds - 59600) < 1",
                          "2"); /* 24.8 + 10 + 24.8 ms */
    process_expect_answer(r,
                          "SELECT count(*) FROM push WHERE server = 0 AND sequence > 0"
                          " AND abs(pull_us - 49600) < 1",
                          "59");
}

/* A barrier waits for all workers at every server, so no worker can read different versions. */
static void barriers_are_never_torn(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", VIRTUAL, JITTER, "consistency=bsp"), OK);
    assert_int_equal(
        RIG_RUN(r, "run", VIRTUAL, JITTER, "consistency=bsp", "servers=4", "read=torn"), OK);
    assert_int_equal(torn_reads(r), 0);
    /* When server 0 ends training, the last update may not have reached all servers. */
    assert_string_equal(process_ask(r,
                                    "SELECT count(*) FROM push a JOIN push b ON a.run_id = 1 AND "
                                    "b.run_id = 2 AND a.worker = b.worker AND "
                                    "a.batch = b.batch AND a.loss = b.loss "
                                    "AND a.server = 0 AND b.server = 0"),
                        "60");
}

static void every_rule_replays_with_several_servers(void **state)
{
    struct process_rig *r = *state;
    static const char *const rules[] = {
        "consistency=asp",      "consistency=bsp",        "consistency=ssp",
        "consistency=softsync", "consistency=backup",     "consistency=buffered",
        "consistency=rennala",  "consistency=ringmaster", "damping=cutoff",
        "damping=inverse",      "correction=dc-asgd-a",   "optimizer=nesterov",
        "damping=tail"};
    static const char *const reads[] = {"read=torn", "read=snapshot"};
    for (size_t i = 0; i < COUNT_OF(rules); i++) {
        /* They are refused with torn reads, see below. */
        static const char dropping[] =
            "consistency=backup consistency=rennala consistency=ringmaster damping=cutoff";
        bool whole = strstr(dropping, rules[i]) != NULL;
        assert_int_equal(RIG_RUN(r, "run", VIRTUAL, JITTER, "servers=3", rules[i],
                                 reads[whole ? 1 : i % COUNT_OF(reads)], "crash.mtbf_s=0.3",
                                 "crash.down_s=0.1"),
                         OK);
        expect_replayed(r);
    }
}

static void other_rules_on_the_same_arrivals_of_several_servers(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", VIRTUAL, JITTER, "servers=2", "read=torn"), OK);
    assert_int_equal(RIG_RUN(r, "replay", "1", "damping=none"), OK); /* the recorded rule */
    expect_one_hash(r);
    assert_int_equal(RIG_RUN(r, "replay", "1", "damping=inverse"), OK);
    assert_string_equal(process_ask(r, "SELECT count(DISTINCT parameters_sha256) FROM run"), "2");
    assert_int_equal(RIG_RUN(r, "replay", "3"), OK);
}

/* When server 0 evaluates, the other servers have the same version. */
static void a_replay_evaluates_the_versions_that_the_run_did(void **state)
{
#define EVALUATIONS(run) "SELECT updates, samples, test_loss FROM evaluation WHERE run_id = " run
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", RIG_DATA, "samples=600", "batch=10", "evaluate_every=0.1",
                             "engine=virtual", "pace=gamma", "workers=5", JITTER, "servers=3"),
                     OK);
    assert_int_equal(RIG_RUN(r, "replay", "1", "damping=none"), OK); /* the recorded rule */
    process_expect_answer(r,
                          "SELECT min(n) > 3 FROM (SELECT count(*) AS n FROM evaluation "
                          "GROUP BY run_id)",
                          "1");
    process_expect_answer(
        r, "SELECT count(*) FROM (" EVALUATIONS("1") " EXCEPT " EVALUATIONS("2") ")", "0");
}

static void what_several_servers_cannot_do_is_a_usage_error(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "read=torn"), ERROR_USAGE);
    process_expect_error(r, "read=torn");
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "servers=2", "mode=sync"), ERROR_USAGE);
    process_expect_error(r, "servers=2");
    static const char *const torn[][2] = {{"consistency=backup"},
                                          {"consistency=rennala"},
                                          {"consistency=ringmaster"},
                                          {"damping=cutoff"},
                                          {"damping=koloskova", "damping.drop=1"}};
    for (size_t i = 0; i < COUNT_OF(torn); i++) {
        assert_int_equal(
            RIG_RUN(r, "run", VIRTUAL, "servers=2", "read=torn", torn[i][0], torn[i][1]),
            ERROR_USAGE);
        process_expect_error(r, "read=snapshot");
    }
    static const char *const whole[] = {"clip_norm=1", "damping=trim",
                                        "correction=closed-loop-momentum", "probe_every=5",
                                        "on_nonfinite=skip"};
    for (size_t i = 0; i < COUNT_OF(whole); i++) {
        assert_int_equal(RIG_RUN(r, "run", VIRTUAL, "servers=2", "optimizer=momentum", whole[i]),
                         ERROR_USAGE);
        process_expect_error(r, whole[i]);
        process_expect_error(r, "servers=1");
    }
    assert_int_equal(RIG_RUN(r, "run", VIRTUAL, "servers=65"), ERROR_USAGE);
    assert_int_equal(RIG_RUN(r, "run", VIRTUAL, "dataset=gaussian", "dataset.size=1",
                             "dataset.channels=1", "dataset.classes=2", "servers=64"),
                     ERROR_USAGE);
    process_expect_error(r, "servers=64");
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, process_set_up, process_tear_down)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slices_cover_all_parameters_once),
        cmocka_unit_test(slices_for_whole_layers_are_cut_at_the_nearest_boundary),
        TEST(whole_layers_on_several_servers_compute_the_same_as_on_one),
        TEST(snapshots_of_several_servers_compute_the_same_as_one_server),
        TEST(without_jitter_torn_reads_compute_the_same_as_one_server),
        TEST(reads_are_torn_if_messages_overtake_each_other),
        TEST(a_snapshot_takes_two_messages_more_than_a_torn_read),
        TEST(each_message_has_its_own_jitter),
        TEST(parts_for_several_servers_share_the_workers_link),
        TEST(barriers_are_never_torn),
        TEST(every_rule_replays_with_several_servers),
        TEST(other_rules_on_the_same_arrivals_of_several_servers),
        TEST(a_replay_evaluates_the_versions_that_the_run_did),
        TEST(what_several_servers_cannot_do_is_a_usage_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
