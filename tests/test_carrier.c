/*
 * test_carrier.c — vectors that are exchanged while they are made where ranks have a processor to
 * spare for it, under mpirun: with every communicator, by a thread.
 */
#include "sync/ranks.h"
#include "tests/exchange_rig.h"
#include "tests/sync_rig.h"

#include <stdio.h>
#include <string.h>

#include <setjmp.h>
#include <cmocka.h>

/* What waits for rank 0's peers while it waits, too, is not hidden, nor is what it did before. */
static status check_waited(communicator *c)
{
    status result = OK;
    uint64_t hidden_ns;
    TRY(communicator_barrier(c));
    if (c->rank > 0)
        clock_sleep_until_ns(clock_ns() + 1000000000);
    communicator_begin(c, communicator_buffer(c), 4 * EXCHANGE_BUCKET);
    communicator_advance(c, 0);
    TRY(communicator_finish(c, 0, &hidden_ns));
    if (c->rank == 0 && hidden_ns != 0)
        FAIL(ERROR_OTHER, "%llu ns of waiting are hidden", (unsigned long long)hidden_ns);
done:
    return result;
}

/* As if every rank had a processor to spare; which one claims only where they are. */
static status check_spare(communicator *c)
{
    status result = OK;
    if (c->has_processor && c->ranks->processors < 2 * c->size)
        FAIL(ERROR_OTHER, "%u ranks on %u processors have some to spare", c->size,
             c->ranks->processors);
    TRY(communicator_spare_processors(c, true));
    if (!communicator_overlaps(c))
        FAIL(ERROR_OTHER, "nothing travels while ranks compute");
    for (unsigned round = 0; round < 10; round++) {
        if (c->rank == round % c->size)
            clock_sleep_until_ns(clock_ns() + 3000000);
        TRY(exchange_rig_check(c, EXCHANGE_LARGEST, round));
    }
    if (!c->ordered)
        TRY(exchange_rig_check_moved(c));
    TRY(communicator_spare_processors(c, false));
    TRY(exchange_rig_check(c, EXCHANGE_LARGEST, 11));
done:
    return result;
}

static status case_waited(unsigned rank UNUSED, unsigned size UNUSED)
{
    status result = OK;
    communicator *c = NULL;
    TRY(exchange_rig_open(&c, "mpi", "fast"));
    TRY(communicator_spare_processors(c, true));
    TRY(exchange_rig_check_moved(c)); /* hides something */
    TRY(check_waited(c));
done:
    communicator_close(&c);
    return result;
}

static status case_spare(unsigned rank UNUSED, unsigned size UNUSED)
{
    return exchange_rig_every_kind(check_spare);
}

/* Parts of what lies in a node's memory, which its leader exchanges with another's. */
static status case_spare_nodes(unsigned rank UNUSED, unsigned size UNUSED)
{
    status result = OK;
    communicator *c = NULL;
    options *o = sync_rig_settings();
    TRY(sync_rig_set(o, "communicator", "hierarchical"));
    TRY(sync_rig_set(o, "communicator.nodes", "2"));
    TRY(communicator_open(&c, o, EXCHANGE_LARGEST, NULL));
    TRY(check_spare(c));
done:
    options_close(&o);
    communicator_close(&c);
    return result;
}

/* As between hosts, whose gate is MPI's: the thread's and its owner's calls have one order. */
static status case_spare_hosts(unsigned rank UNUSED, unsigned size UNUSED)
{
    status result = OK;
    communicator *c = NULL;
    for (size_t i = 0; i < COUNT_OF(exchange_rig_reductions); i++) {
        TRY(exchange_rig_open(&c, "mpi", exchange_rig_reductions[i]));
        struct gate_page *page = sync_rig_set_gate(c, NULL);
        result = check_spare(c);
        (void)sync_rig_set_gate(c, page);
        communicator_close(&c);
        if (result != OK)
            break;
    }
done:
    return result;
}

/* An owner that ends while the thread waits for others does not wait with it. */
static status case_given_up(unsigned rank, unsigned size UNUSED)
{
    status result = OK;
    communicator *c = NULL;
    TRY(exchange_rig_open(&c, "mpi", "fast"));
    TRY(communicator_spare_processors(c, true));
    if (rank != 0)
        goto done;
    communicator_begin(c, communicator_buffer(c), EXCHANGE_LARGEST);
    communicator_advance(c, 0);
    clock_sleep_until_ns(clock_ns() + 300000000);
    const uint64_t began = clock_ns();
    communicator_close(&c);
    FAIL(ERROR_DATA, "given up in time: %s", clock_ns() - began < 5000000000u ? "yes" : "no");
done:
    communicator_close(&c);
    return result;
}

static status case_late_carried(unsigned rank UNUSED, unsigned size UNUSED)
{
    return exchange_rig_late("ring", "fast", true);
}

/* As between hosts, whose gate is MPI's: the thread gives up while its owner still computes. */
static status case_gone_meanwhile(unsigned rank, unsigned size UNUSED)
{
    status result = OK;
    communicator *c = NULL;
    uint64_t hidden_ns;
    TRY(exchange_rig_open(&c, "mpi", "fast"));
    TRY(communicator_spare_processors(c, true));
    (void)sync_rig_set_gate(c, NULL);
    c->timeout_s = 1;
    communicator_begin(c, communicator_buffer(c), EXCHANGE_LARGEST);
    for (unsigned k = 0; k < 400; k++) {
        if (rank != 1)
            communicator_advance(c, EXCHANGE_LARGEST - EXCHANGE_LARGEST / 400 * k);
        clock_sleep_until_ns(clock_ns() + 10000000);
    }
    TRY(communicator_finish(c, 0, &hidden_ns));
done:
    communicator_close(&c);
    return result;
}

static const struct sync_case CASES[] = {
    {"spare", case_spare},
    {"spare nodes", case_spare_nodes},
    {"spare hosts", case_spare_hosts},
    {"waited", case_waited},
    {"given up", case_given_up},
    {"late", case_late_carried},
    {"gone meanwhile", case_gone_meanwhile},
    {NULL, NULL},
};

/* ---- what is expected of them -------------------------------------------------------------------
 */

static void with_processors_to_spare_parts_move_by_themselves(void **state UNUSED)
{
    sync_rig_expect_ok(2, "spare");
    sync_rig_expect_ok(3, "spare");
    sync_rig_expect_ok(3, "spare nodes");
    sync_rig_expect_ok(3, "spare hosts");
}

static void who_ends_does_not_wait_for_what_travels(void **state UNUSED)
{
    static struct sync_run run;
    sync_rig_run(3, "given up", 20, &run);
    if (run.exit_code != ERROR_DATA || strstr(run.output, "given up in time: yes") == NULL)
        fail_msg("exit %d:\n%s", run.exit_code, run.output);
}

static void a_rank_that_does_not_come_is_given_up(void **state UNUSED)
{
    static struct sync_run run;
    static const char *const cases[] = {"late", "gone meanwhile"};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        sync_rig_run(3, cases[i], 20, &run);
        if (run.exit_code != ERROR_PEER)
            fail_msg("%s: exit %d:\n%s", cases[i], run.exit_code, run.output);
        sync_rig_expect_waited(&run, 1, 5, "for rank 1");
    }
}

static void who_waits_hides_nothing(void **state UNUSED)
{
    sync_rig_expect_ok(2, "waited");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(with_processors_to_spare_parts_move_by_themselves),
        cmocka_unit_test(who_waits_hides_nothing),
        cmocka_unit_test(who_ends_does_not_wait_for_what_travels),
        cmocka_unit_test(a_rank_that_does_not_come_is_given_up),
    };
    int code;
    if (sync_rig_is_rank(argc, argv, CASES, &code))
        return code;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
