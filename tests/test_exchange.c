/*
 * test_exchange.c — a vector that is exchanged while it is being made, under mpirun: the same means
 * and bits as at once, parts that come back meanwhile, ranks that do not come.
 */
#include "sync/ranks.h"
#include "tests/exchange_rig.h"
#include "tests/sync_rig.h"
#include "worker/random.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <cmocka.h>

static status check_sizes(communicator *c)
{
    static const size_t sizes[] = {0,
                                   1,
                                   17,
                                   EXCHANGE_BUCKET - 1,
                                   EXCHANGE_BUCKET,
                                   EXCHANGE_BUCKET + 1,
                                   100000,
                                   EXCHANGE_LARGEST};
    status result = OK;
    for (size_t k = 0; result == OK && k < 3 * COUNT_OF(sizes); k++)
        result = exchange_rig_check(c, sizes[k % COUNT_OF(sizes)], k);
    return result;
}

static status case_conformance(unsigned rank UNUSED, unsigned size UNUSED)
{
    return exchange_rig_every_kind(check_sizes);
}

/* Every part is final at once, and there is time enough to bring all of them back: nothing is left
 * at the end. Where nobody lends a moment, nothing is hidden. Rank 0 begins before the others, so
 * it has something to hide; the last may find all that it waits for when it begins. */
static status check_hidden(communicator *c)
{
    status result = OK;
    const size_t count = 4 * EXCHANGE_BUCKET;
    const uint64_t a_moment = 200000;
    uint64_t began, hidden_ns, whole_ns;
    double mean_ns;
    /* On a busy machine ranks come here far apart: past this they begin together. */
    TRY(communicator_allreduce_mean(c, communicator_buffer(c), count));
    for (size_t i = 0; i < count; i++)
        communicator_buffer(c)[i] = (float)c->rank;
    if (c->rank > 0)
        clock_sleep_until_ns(clock_ns() + 10 * a_moment);
    began = clock_ns();
    communicator_begin(c, communicator_buffer(c), count);
    for (unsigned k = 0; k < 2500; k++) {
        communicator_advance(c, 0);
        clock_sleep_until_ns(clock_ns() + a_moment);
    }
    whole_ns = clock_ns() - began;
    TRY(communicator_finish(c, 0, &hidden_ns));
    if (communicator_buffer(c)[count - 1] != (float)(c->size - 1) / 2)
        FAIL(ERROR_OTHER, "the mean is %g", (double)communicator_buffer(c)[count - 1]);
    if (hidden_ns > whole_ns)
        FAIL(ERROR_OTHER, "%llu ns of %llu ns are said to be hidden", (unsigned long long)hidden_ns,
             (unsigned long long)whole_ns);
    mean_ns = (double)hidden_ns;
    TRY(exchange_rig_mean(c, &mean_ns));
    if (mean_ns < (double)a_moment / c->size)
        FAIL(ERROR_OTHER, "%g ns are said to be hidden on the mean of the ranks", mean_ns);
    communicator_begin(c, communicator_buffer(c), count);
    clock_sleep_until_ns(clock_ns() + 10 * a_moment);
    TRY(communicator_finish(c, 0, &hidden_ns));
    if (hidden_ns != 0)
        FAIL(ERROR_OTHER, "%llu ns are said to be hidden of nothing",
             (unsigned long long)hidden_ns);
done:
    return result;
}

/* Rank 0 is done computing before the others begin: all is under way, and nothing has come back. */
static status check_only_begun(communicator *c)
{
    status result = OK;
    const size_t count = 4 * EXCHANGE_BUCKET;
    const int tag = 7;
    uint64_t hidden_ns;
    char word = 0;
    if (c->rank > 0)
        MPI_Recv(&word, 1, MPI_CHAR, 0, tag, c->ranks->world, MPI_STATUS_IGNORE);
    communicator_begin(c, communicator_buffer(c), count);
    for (unsigned k = 0; k < 10 && c->rank == 0; k++) {
        communicator_advance(c, 0);
        clock_sleep_until_ns(clock_ns() + 200000);
    }
    for (unsigned i = 1; i < c->size && c->rank == 0; i++)
        MPI_Send(&word, 1, MPI_CHAR, (int)i, tag, c->ranks->world);
    TRY(communicator_finish(c, 0, &hidden_ns));
    if (hidden_ns != 0)
        FAIL(ERROR_OTHER, "%llu ns are said to be hidden of what has only begun",
             (unsigned long long)hidden_ns);
done:
    return result;
}

static status case_hidden(unsigned rank UNUSED, unsigned size UNUSED)
{
    static const char *const ways[][2] = {{"mpi", "fast"}, {"mpi", "ordered"}, {"shared", "fast"}};
    status result = OK;
    communicator *c = NULL;
    for (size_t i = 0; i < COUNT_OF(ways); i++) {
        TRY(exchange_rig_open(&c, ways[i][0], ways[i][1]));
        TRY(communicator_spare_processors(c, false)); /* no thread moves it */
        if (!communicator_overlaps(c))
            FAIL(ERROR_OTHER, "communicator=%s has no parts", ways[i][0]);
        result = check_hidden(c);
        if (result == OK)
            result = check_only_begun(c);
        communicator_close(&c);
        if (result != OK) {
            (void)error_add_context(result, "communicator=%s reduction=%s", ways[i][0], ways[i][1]);
            break;
        }
    }
done:
    communicator_close(&c);
    return result;
}

/* A communicator whose parts come back one at a time, whenever it is looked after. */
static unsigned come_back;

static status slow_open(communicator *c UNUSED, const options *o UNUSED, size_t count UNUSED)
{
    return OK;
}

static void slow_close(communicator *c UNUSED) {}

static status slow_begin(communicator *c UNUSED, unsigned part UNUSED, float *data UNUSED,
                         size_t count UNUSED)
{
    return OK;
}

static status slow_advance(communicator *c UNUSED, unsigned *complete)
{
    *complete = ++come_back;
    return OK;
}

static status slow_finish(communicator *c UNUSED)
{
    return OK;
}

/* Time is hidden once, however many parts were under way in it. */
static status case_one_by_one(unsigned rank UNUSED, unsigned size UNUSED)
{
    static const struct communicator_kind slow = {.about = {.name = "slow"},
                                                  .in_rank_order = true,
                                                  .open = slow_open,
                                                  .close = slow_close,
                                                  .part_begin = slow_begin,
                                                  .parts_advance = slow_advance,
                                                  .parts_finish = slow_finish};
    status result = OK;
    enum { PARTS = 8 };
    communicator *c = NULL;
    options *o = sync_rig_settings();
    uint64_t hidden_ns;
    TRY(sync_rig_set(o, "bucket_kib", "64"));
    TRY(communicator_open_kind(&c, &slow, o, PARTS * EXCHANGE_BUCKET, NULL));
    TRY(communicator_spare_processors(c, false)); /* as above */
    const uint64_t began = clock_ns();
    communicator_begin(c, communicator_buffer(c), PARTS * EXCHANGE_BUCKET);
    for (unsigned k = 0; k < PARTS; k++) {
        communicator_advance(c, 0);
        clock_sleep_until_ns(clock_ns() + 5000000);
    }
    const uint64_t whole_ns = clock_ns() - began;
    TRY(communicator_finish(c, 0, &hidden_ns));
    if (hidden_ns > whole_ns || hidden_ns < (PARTS - 1) * 5000000u)
        FAIL(ERROR_OTHER, "%llu ns of %llu ns are said to be hidden", (unsigned long long)hidden_ns,
             (unsigned long long)whole_ns);
done:
    options_close(&o);
    communicator_close(&c);
    return result;
}

/* As if ranks were on several hosts: their gate is MPI's, and a thread moves what is under way. */
static struct gate_page *set_apart(communicator *c)
{
    c->waits_for_links = true;
    return sync_rig_set_gate(c, NULL);
}

static status check_hosts(communicator *c)
{
    status result = OK;
    struct gate_page *page = set_apart(c);
    for (unsigned round = 0; round < 20; round++) {
        if (c->rank == round % c->size) /* others find parts complete that it has not begun */
            clock_sleep_until_ns(clock_ns() + 3000000);
        TRY(exchange_rig_check(c, EXCHANGE_LARGEST, round));
    }
    TRY(exchange_rig_check_moved(c));
done:
    (void)sync_rig_set_gate(c, page);
    return result;
}

static status case_hosts(unsigned rank UNUSED, unsigned size UNUSED)
{
    status result = OK;
    communicator *c = NULL;
    for (size_t i = 0; i < COUNT_OF(exchange_rig_reductions); i++) {
        TRY(exchange_rig_open(&c, "mpi", exchange_rig_reductions[i]));
        TRY(communicator_spare_processors(c, false)); /* sync/mover.c moves it */
        TRY(check_hosts(c));
        communicator_close(&c);
    }
done:
    communicator_close(&c);
    return result;
}

static status case_late_mpi(unsigned rank UNUSED, unsigned size UNUSED)
{
    return exchange_rig_late("mpi", "fast", false);
}

static status case_late_ordered(unsigned rank UNUSED, unsigned size UNUSED)
{
    return exchange_rig_late("mpi", "ordered", false);
}

static status case_late_shared(unsigned rank UNUSED, unsigned size UNUSED)
{
    return exchange_rig_late("shared", "fast", false);
}

#if !defined(GRADLAG_SANITIZE)
/* In place of the C library's: memory_allocate() comes here. (MPI's own are another matter.) */
static unsigned allocations;

void *aligned_alloc(size_t alignment, size_t bytes)
{
    void *p = NULL;
    allocations++;
    return posix_memalign(&p, alignment, bytes) == 0 ? p : NULL;
}

static status check_allocations(communicator *c)
{
    status result = OK;
    uint64_t hidden_ns;
    for (unsigned spare = 0; spare < 2; spare++) {
        TRY(communicator_spare_processors(c, spare == 1));
        TRY(exchange_rig_in_pieces(c, communicator_buffer(c), EXCHANGE_LARGEST, 0, &hidden_ns));
        const unsigned before = allocations;
        for (unsigned step = 0; step < 30; step++)
            TRY(exchange_rig_in_pieces(c, communicator_buffer(c), EXCHANGE_LARGEST, step,
                                       &hidden_ns));
        if (allocations != before)
            FAIL(ERROR_OTHER, "%u allocations in 30 exchanges", allocations - before);
    }
done:
    return result;
}

static status case_allocations(unsigned rank UNUSED, unsigned size UNUSED)
{
    return exchange_rig_every_kind(check_allocations);
}
#endif

static const struct sync_case CASES[] = {
    {"conformance", case_conformance},
    {"hidden", case_hidden},
    {"one by one", case_one_by_one},
    {"hosts", case_hosts},
    {"late mpi", case_late_mpi},
    {"late ordered", case_late_ordered},
    {"late shared", case_late_shared},
#if !defined(GRADLAG_SANITIZE)
    {"allocations", case_allocations},
#endif
    {NULL, NULL},
};

/* ---- what is expected of them -------------------------------------------------------------------
 */

static void in_pieces_every_communicator_gives_the_mean_it_gives_at_once(void **state UNUSED)
{
    static const unsigned ranks[] = {1, 2, 3, 5};
    for (size_t i = 0; i < COUNT_OF(ranks); i++)
        sync_rig_expect_ok(ranks[i], "conformance");
}

static void what_comes_back_while_ranks_compute_is_hidden_and_nothing_else(void **state UNUSED)
{
    sync_rig_expect_ok(2, "one by one");
    sync_rig_expect_ok(2, "hidden");
    sync_rig_expect_ok(3, "hidden");
}

static void between_hosts_parts_move_by_themselves_in_one_order(void **state UNUSED)
{
    sync_rig_expect_ok(2, "hosts");
    sync_rig_expect_ok(3, "hosts");
}

static void a_rank_that_does_not_come_is_given_up(void **state UNUSED)
{
    static const char *const cases[] = {"late mpi", "late ordered", "late shared"};
    static struct sync_run run;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        sync_rig_run(3, cases[i], 20, &run);
        if (run.exit_code != ERROR_PEER)
            fail_msg("%s: exit %d:\n%s", cases[i], run.exit_code, run.output);
        sync_rig_expect_waited(&run, 1, 5, "for rank 1 (the mean gradient)");
    }
}

static void exchanges_in_pieces_allocate_nothing(void **state UNUSED)
{
#if defined(GRADLAG_SANITIZE)
    skip();
#else
    sync_rig_expect_ok(3, "allocations");
#endif
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(in_pieces_every_communicator_gives_the_mean_it_gives_at_once),
        cmocka_unit_test(what_comes_back_while_ranks_compute_is_hidden_and_nothing_else),
        cmocka_unit_test(between_hosts_parts_move_by_themselves_in_one_order),
        cmocka_unit_test(a_rank_that_does_not_come_is_given_up),
        cmocka_unit_test(exchanges_in_pieces_allocate_nothing),
    };
    int code;
    if (sync_rig_is_rank(argc, argv, CASES, &code))
        return code;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
