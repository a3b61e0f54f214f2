/*
 * test_exchange.c — overlap.c under mpirun: a vector is exchanged in parts while the rank computes
 * it. Means and bits equal those of one exchange of the whole vector; hidden time; missing ranks.
 */
#include "base/clock.h"
#include "base/random.h"
#include "sync/communicator/ranks.h"
#include "tests/sync/sync_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <cmocka.h>

enum { LARGEST = 300007, BUCKET = 64 * 1024 / 4 };

/* ---- shared by the cases ------------------------------------------------------------------------
 */

/* For vectors of up to LARGEST floats, in parts of BUCKET. `more`: NULL, or a key and its value. */
static status open_with(communicator **c, const char *kind, const char *reduction,
                        const char *const *more)
{
    status result = OK;
    options *o = sync_rig_settings();
    TRY(sync_rig_set(o, "communicator", kind));
    TRY(sync_rig_set(o, "reduction", reduction));
    TRY(sync_rig_set(o, "bucket_kib", "64"));
    if (more != NULL)
        TRY(sync_rig_set(o, more[0], more[1]));
    TRY(communicator_open(c, o, LARGEST, NULL));
done:
    options_close(&o);
    return result;
}

static status open_kind(communicator **c, const char *kind, const char *reduction)
{
    return open_with(c, kind, reduction, NULL);
}

/* The vector becomes final from its end, in steps of random size, different on each rank. */
static status exchange_in_parts(communicator *c, float *data, size_t count, uint64_t round,
                                uint64_t *hidden_ns)
{
    struct random_stream stream;
    random_open(&stream, RANDOM_TEST, round, c->rank, 0);
    communicator_begin(c, data, count);
    for (size_t final_from = count; final_from > 0;) {
        size_t piece = random_below(&stream, 50000);
        communicator_advance(c, final_from);
        final_from = piece < final_from ? final_from - piece : 0;
        if (piece % 3 == 0)
            communicator_advance(c, final_from);
    }
    return communicator_finish(c, COMMUNICATOR_NOTES, hidden_ns);
}

/* The mean in parts has the bits of the mean of the whole vector if the order of the sum is the
 * same. It is always close to it, and the same on every rank. */
static status check_bits(communicator *c, size_t count, uint64_t round)
{
    status result = OK;
    static float at_once[LARGEST + COMMUNICATOR_NOTES], first[LARGEST + COMMUNICATOR_NOTES];
    float *data = communicator_buffer(c);
    const size_t all = count + COMMUNICATOR_NOTES;
    uint64_t hidden_ns;
    sync_rig_rough(c->rank, all, round, data);
    TRY(communicator_allreduce_mean(c, data, all));
    memcpy(at_once, data, all * sizeof(float));
    sync_rig_rough(c->rank, all, round, data);
    TRY(exchange_in_parts(c, data, count, round, &hidden_ns));
    if (communicator_same_in_parts(c) && memcmp(data, at_once, all * sizeof(float)) != 0)
        FAIL(ERROR_OTHER, "%zu floats in parts have other bits than the whole vector", count);
    for (size_t i = 0; i < all; i++)
        if (!(data[i] - at_once[i] < 1e-3f && at_once[i] - data[i] < 1e-3f))
            FAIL(ERROR_OTHER, "element %zu of %zu is %g, not %g", i, count, (double)data[i],
                 (double)at_once[i]);
    memcpy(first, data, all * sizeof(float));
    TRY(communicator_broadcast(c, first, all * sizeof(float), 0));
    if (memcmp(first, data, all * sizeof(float)) != 0)
        FAIL(ERROR_OTHER, "rank %u has other bits than rank 0", c->rank);
done:
    return result;
}

static bool takes_part(const char *kind)
{
    const struct about *about = registry_find(&communicator_registry, kind);
    const struct communicator_kind *k = (const struct communicator_kind *)about;
    return !k->on_device && !k->exchanges_nothing;
}

static const char *const reductions[2] = {"fast", "ordered"};

/* Calls `check` for every kind that computes means in host memory, with both reductions. */
static status every_kind(status (*check)(communicator *c))
{
    status result = OK;
    communicator *c = NULL;
    for (size_t i = 0; result == OK && i < communicator_registry.count * 2; i++) {
        const char *kind = communicator_registry.entries[i / 2]->name;
        if (!takes_part(kind))
            continue;
        TRY(open_kind(&c, kind, reductions[i % 2]));
        result = check(c);
        communicator_close(&c);
        if (result != OK)
            (void)error_add_context(result, "communicator=%s reduction=%s", kind,
                                    reductions[i % 2]);
    }
done:
    return result;
}

/* *number ← its mean over the ranks. */
static status mean_over_ranks(communicator *c, double *number)
{
    status result = OK;
    communicator_buffer(c)[0] = (float)*number;
    TRY(communicator_allreduce_mean(c, communicator_buffer(c), 1));
    *number = (double)communicator_buffer(c)[0];
done:
    return result;
}

/* The whole vector is final at once; then the ranks compute for `computing_ns`. *mean_ns ← the
 * hidden time, as the mean over the ranks. */
static status hidden_beside(communicator *c, uint64_t computing_ns, double *mean_ns)
{
    status result = OK;
    const size_t count = 8 * BUCKET;
    uint64_t hidden_ns;
    for (size_t i = 0; i < count; i++)
        communicator_buffer(c)[i] = (float)c->rank;
    TRY(communicator_barrier(c));
    communicator_begin(c, communicator_buffer(c), count);
    communicator_advance(c, 0);
    clock_sleep_until_ns(clock_ns() + computing_ns);
    TRY(communicator_finish(c, 0, &hidden_ns));
    if (communicator_buffer(c)[count / 2] != (float)(c->size - 1) / 2)
        FAIL(ERROR_OTHER, "the mean is %g", (double)communicator_buffer(c)[count / 2]);
    *mean_ns = (double)hidden_ns;
    TRY(mean_over_ranks(c, mean_ns));
done:
    return result;
}

/* Parts complete while the ranks compute, and time after the last part is not hidden: if the ranks
 * compute for long enough (seconds on a busy machine), less than half of that time is hidden. */
static status check_moved(communicator *c)
{
    status result = OK;
    double seconds = 0.05, mean_ns = 0;
    do {
        seconds *= 2;
        TRY(hidden_beside(c, (uint64_t)(seconds * 1e9), &mean_ns));
    } while (seconds < 10 && !(mean_ns > 0 && mean_ns < 0.5e9 * seconds));
    if (!(mean_ns > 0 && mean_ns < 0.5e9 * seconds))
        FAIL(ERROR_OTHER, "%g ns of %g s are hidden, as the mean over the ranks", mean_ns, seconds);
done:
    return result;
}

/* ---- cases --------------------------------------------------------------------------------------
 */

static status check_sizes(communicator *c)
{
    static const size_t sizes[] = {0, 1, 17, BUCKET - 1, BUCKET, BUCKET + 1, 100000, LARGEST};
    status result = OK;
    for (unsigned spare = 0; spare < 2; spare++) {
        communicator_spare_processors(c, spare == 1);
        for (size_t k = 0; result == OK && k < 2 * COUNT_OF(sizes); k++)
            result = check_bits(c, sizes[k % COUNT_OF(sizes)], k);
    }
    return result;
}

static status case_conformance(unsigned rank UNUSED, unsigned size UNUSED)
{
    return every_kind(check_sizes);
}

/* Each rank in turn is late, with and without a free processor. */
static status check_turns(communicator *c)
{
    status result = OK;
    if (c->has_processor && c->ranks->processors < 2 * c->size)
        FAIL(ERROR_OTHER, "has_processor is true for %u ranks on %u processors", c->size,
             c->ranks->processors);
    if (!communicator_overlaps(c))
        FAIL(ERROR_OTHER, "nothing is exchanged while ranks compute");
    enum { ROUNDS = 12 };
    for (unsigned round = 0; round < ROUNDS; round++) {
        communicator_spare_processors(c, round < ROUNDS / 2);
        if (c->rank == round % c->size)
            clock_sleep_until_ns(clock_ns() + 3000000);
        TRY(check_bits(c, LARGEST, round));
        if (round % (ROUNDS / 2) == 0 && !c->ordered)
            TRY(check_moved(c));
    }
done:
    return result;
}

static status case_turns(unsigned rank UNUSED, unsigned size UNUSED)
{
    return every_kind(check_turns);
}

/* Parts in the memory of a node, which its leader exchanges with the other leader. */
static status case_nodes(unsigned rank UNUSED, unsigned size UNUSED)
{
    status result = OK;
    communicator *c = NULL;
    static const char *const nodes[2] = {"communicator.nodes", "2"};
    TRY(open_with(&c, "hierarchical", "fast", nodes));
    TRY(check_turns(c));
done:
    communicator_close(&c);
    return result;
}

/* As between hosts, where the gate is MPI_Ibarrier: with reduction=fast several parts are under way
 * at a time. */
static status case_hosts(unsigned rank UNUSED, unsigned size UNUSED)
{
    status result = OK;
    communicator *c = NULL;
    for (size_t i = 0; result == OK && i < COUNT_OF(reductions); i++) {
        TRY(open_kind(&c, "mpi", reductions[i]));
        struct gate_page *page = sync_rig_set_gate(c, NULL);
        result = check_turns(c);
        (void)sync_rig_set_gate(c, page);
        communicator_close(&c);
    }
done:
    return result;
}

/* Rank 0 calls communicator_finish before the others begin, which is after late_s. Its parts are
 * under way, and none is complete. *hidden_ns ← the hidden time of rank 0, on all ranks. */
static status hidden_before_others(communicator *c, double late_s, double *hidden_ns)
{
    status result = OK;
    const size_t count = 4 * BUCKET;
    uint64_t own_ns;
    TRY(communicator_barrier(c));
    if (c->rank > 0)
        clock_sleep_until_ns(clock_ns() + (uint64_t)(late_s * 1e9));
    communicator_begin(c, communicator_buffer(c), count);
    communicator_advance(c, 0);
    if (c->rank == 0)
        clock_sleep_until_ns(clock_ns() + 2000000);
    TRY(communicator_finish(c, 0, &own_ns));
    *hidden_ns = (double)own_ns;
    TRY(communicator_broadcast(c, hidden_ns, sizeof *hidden_ns, 0));
done:
    return result;
}

/* A part that waits for other ranks hides nothing. On a busy machine rank 0 may come late itself,
 * so the others then begin even later. Nothing is hidden either if nothing was queued before
 * communicator_finish. */
static status check_only_begun(communicator *c)
{
    status result = OK;
    const size_t count = 4 * BUCKET;
    double late_s = 0.05, waiting_ns = 1;
    uint64_t hidden_ns;
    for (; late_s < 4 && waiting_ns > 0; late_s *= 2)
        TRY(hidden_before_others(c, late_s, &waiting_ns));
    if (waiting_ns > 0)
        FAIL(ERROR_OTHER, "%g ns of waiting are hidden", waiting_ns);
    communicator_begin(c, communicator_buffer(c), count);
    clock_sleep_until_ns(clock_ns() + 2000000);
    TRY(communicator_finish(c, 0, &hidden_ns));
    if (hidden_ns != 0)
        FAIL(ERROR_OTHER, "%llu ns are hidden of nothing", (unsigned long long)hidden_ns);
done:
    return result;
}

static status case_only_begun(unsigned rank UNUSED, unsigned size UNUSED)
{
    return every_kind(check_only_begun);
}

/* Closing while the helper thread waits for other ranks does not wait. */
static status case_close_early(unsigned rank, unsigned size UNUSED)
{
    status result = OK;
    communicator *c = NULL;
    TRY(open_kind(&c, "mpi", "fast"));
    if (rank != 0)
        goto done;
    communicator_begin(c, communicator_buffer(c), LARGEST);
    communicator_advance(c, 0);
    clock_sleep_until_ns(clock_ns() + 300000000);
    const uint64_t began = clock_ns();
    communicator_close(&c);
    FAIL(ERROR_DATA, "closed in time: %s", clock_ns() - began < 5000000000u ? "yes" : "no");
done:
    communicator_close(&c);
    return result;
}

/* Rank 1 computes for 2.5 s; the limit of the others is 1 s. */
static status late_rank(const char *kind, const char *reduction, bool spare)
{
    status result = OK;
    communicator *c = NULL;
    uint64_t hidden_ns;
    TRY(open_kind(&c, kind, reduction));
    communicator_spare_processors(c, spare);
    c->timeout_s = 1;
    communicator_begin(c, communicator_buffer(c), LARGEST);
    if (c->rank == 1)
        clock_sleep_until_ns(clock_ns() + 2500000000u);
    communicator_advance(c, 0);
    TRY(communicator_finish(c, 0, &hidden_ns));
done:
    communicator_close(&c);
    return result;
}

static status case_late_mpi(unsigned rank UNUSED, unsigned size UNUSED)
{
    return late_rank("mpi", "fast", false);
}

static status case_late_ordered(unsigned rank UNUSED, unsigned size UNUSED)
{
    return late_rank("mpi", "ordered", false);
}

static status case_late_shared(unsigned rank UNUSED, unsigned size UNUSED)
{
    return late_rank("shared", "fast", false);
}

static status case_late_ring(unsigned rank UNUSED, unsigned size UNUSED)
{
    return late_rank("ring", "fast", true);
}

/* As between hosts: the helper thread times out while its owner still computes. */
static status case_late_while_computing(unsigned rank, unsigned size UNUSED)
{
    status result = OK;
    communicator *c = NULL;
    uint64_t hidden_ns;
    TRY(open_kind(&c, "mpi", "fast"));
    (void)sync_rig_set_gate(c, NULL);
    c->timeout_s = 1;
    communicator_begin(c, communicator_buffer(c), LARGEST);
    for (unsigned k = 0; k < 400; k++) {
        if (rank != 1)
            communicator_advance(c, LARGEST - LARGEST / 400 * k);
        clock_sleep_until_ns(clock_ns() + 10000000);
    }
    TRY(communicator_finish(c, 0, &hidden_ns));
done:
    communicator_close(&c);
    return result;
}

#if !defined(GRADLAG_SANITIZE)
/* Replaces the C library's function, which memory_allocate() calls. MPI's allocations are not
 * counted. */
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
    TRY(exchange_in_parts(c, communicator_buffer(c), LARGEST, 0, &hidden_ns));
    const unsigned before = allocations;
    for (unsigned step = 0; step < 30; step++)
        TRY(exchange_in_parts(c, communicator_buffer(c), LARGEST, step, &hidden_ns));
    if (allocations != before)
        FAIL(ERROR_OTHER, "%u allocations in 30 exchanges", allocations - before);
done:
    return result;
}

static status case_allocations(unsigned rank UNUSED, unsigned size UNUSED)
{
    return every_kind(check_allocations);
}
#endif

static const struct sync_case CASES[] = {
    {"conformance", case_conformance},
    {"turns", case_turns},
    {"nodes", case_nodes},
    {"hosts", case_hosts},
    {"only begun", case_only_begun},
    {"close early", case_close_early},
    {"late mpi", case_late_mpi},
    {"late ordered", case_late_ordered},
    {"late shared", case_late_shared},
    {"late ring", case_late_ring},
    {"late while computing", case_late_while_computing},
#if !defined(GRADLAG_SANITIZE)
    {"allocations", case_allocations},
#endif
    {NULL, NULL},
};

/* ---- tests --------------------------------------------------------------------------------------
 */

static void means_in_parts_equal_means_of_the_whole_vector(void **state UNUSED)
{
    static const unsigned ranks[] = {1, 2, 3, 5};
    for (size_t i = 0; i < COUNT_OF(ranks); i++)
        sync_rig_expect_ok(ranks[i], "conformance");
}

static void parts_complete_while_ranks_compute(void **state UNUSED)
{
    sync_rig_expect_ok(2, "turns");
    sync_rig_expect_ok(3, "turns");
    sync_rig_expect_ok(3, "nodes");
}

static void between_hosts_parts_complete_in_one_order(void **state UNUSED)
{
    sync_rig_expect_ok(2, "hosts");
    sync_rig_expect_ok(3, "hosts");
}

static void a_part_that_is_only_begun_hides_nothing(void **state UNUSED)
{
    sync_rig_expect_ok(2, "only begun");
    sync_rig_expect_ok(3, "only begun");
}

static void a_rank_that_ends_does_not_wait_for_its_parts(void **state UNUSED)
{
    static struct sync_run run;
    sync_rig_run(3, "close early", 20, &run);
    if (run.exit_code != ERROR_DATA || sync_rig_lines(&run, "error: ", "closed in time: yes") != 1)
        fail_msg("exit %d:\n%s", run.exit_code, run.output);
}

static void a_wait_for_a_missing_rank_times_out(void **state UNUSED)
{
    static const char *const cases[] = {"late mpi", "late ordered", "late shared", "late ring",
                                        "late while computing"};
    enum { CASES_LATE = COUNT_OF(cases) };
    static struct sync_run runs[CASES_LATE];
    struct sync_start starts[CASES_LATE];
    for (size_t i = 0; i < CASES_LATE; i++)
        starts[i] = (struct sync_start){3, cases[i]};
    sync_rig_run_together(starts, CASES_LATE, 30, runs);
    for (size_t i = 0; i < CASES_LATE; i++) {
        if (runs[i].exit_code != ERROR_PEER)
            fail_msg("%s: exit %d:\n%s", cases[i], runs[i].exit_code, runs[i].output);
        sync_rig_expect_timeout(&runs[i], 1, 5, "rank 1");
    }
}

static void exchanges_in_parts_allocate_nothing(void **state UNUSED)
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
        cmocka_unit_test(means_in_parts_equal_means_of_the_whole_vector),
        cmocka_unit_test(parts_complete_while_ranks_compute),
        cmocka_unit_test(between_hosts_parts_complete_in_one_order),
        cmocka_unit_test(a_part_that_is_only_begun_hides_nothing),
        cmocka_unit_test(a_rank_that_ends_does_not_wait_for_its_parts),
        cmocka_unit_test(a_wait_for_a_missing_rank_times_out),
        cmocka_unit_test(exchanges_in_parts_allocate_nothing),
    };
    int code;
    if (sync_rig_is_rank(argc, argv, CASES, &code))
        return code;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
