/*
 * test_communicator.c — conformance of every communicator in the registry, under mpirun: exact
 * sums, the bits of sums, sent bytes, allocations. Late and dead ranks: test_communicator_faults.c.
 */
#include "docs/examples/communicator_gather.c"
#include "base/clock.h"
#include "base/memory.h"
#include "tests/rigs/documented.h"
#include "tests/sync/sync_rig.h"
#include "worker/optimizer/optimizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <cmocka.h>

enum { LARGEST = (1 << 18) + 8192 + 5 }; /* more than a piece and a bucket; odd */
static const size_t SIZES[] = {0, 1, 2, 15, 17, 1000, 1001, 37610, 131071, LARGEST};

/* Bytes that this rank sends by MPI_Isend; collectives of MPI do not call it. */
static size_t bytes_sent;

int MPI_Isend(const void *data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
              MPI_Request *request)
{
    bytes_sent += (size_t)count * sizeof(float);
    return PMPI_Isend(data, count, type, to, tag, comm, request);
}

/* ---- in a rank ----------------------------------------------------------------------------------
 */

static status open_one(communicator **c, const char *kind, const char *reduction)
{
    status result = OK;
    options *o = sync_rig_settings();
    TRY(sync_rig_set(o, "reduction", reduction));
    if (strcmp(kind, "gather") == 0) { /* the example in docs/adding-a-communicator.md */
        TRY(communicator_open_kind(c, &communicator_gather, o, LARGEST, NULL));
    } else {
        TRY(sync_rig_set(o, "communicator", kind));
        TRY(communicator_open(c, o, LARGEST, NULL));
    }
done:
    options_close(&o);
    return result;
}

/* Small integers: their sum over 64 ranks is exact in float32, in any order. */
static float summand(unsigned rank, size_t i, size_t salt)
{
    return (float)(((uint32_t)i * 7 + rank * 13 + (uint32_t)salt) % 1021) - 510;
}

static status mean_is_exact(communicator *c, float *data, size_t count, size_t salt)
{
    status result = OK;
    for (size_t i = 0; i < count; i++)
        data[i] = summand(c->rank, i, salt);
    TRY(communicator_allreduce_mean(c, data, count));
    for (size_t i = 0; i < count; i++) {
        float sum = 0;
        for (unsigned rank = 0; rank < c->size; rank++)
            sum += summand(rank, i, salt);
        if (data[i] != sum * (1.0f / (float)c->size)) {
            FAIL(ERROR_OTHER, "element %zu of %zu is %g, not %g", i, count, (double)data[i],
                 (double)(sum * (1.0f / (float)c->size)));
        }
    }
done:
    return result;
}

static status check_means(communicator *c)
{
    status result = OK;
    float *elsewhere = NULL;
    TRY(memory_new(&elsewhere, LARGEST + COMMUNICATOR_NOTES, sizeof(float), "test"));
    for (size_t i = 0; i < COUNT_OF(SIZES); i++)
        TRY(mean_is_exact(c, i % 2 == 0 ? communicator_buffer(c) : elsewhere, SIZES[i], i));
    TRY(mean_is_exact(c, communicator_buffer(c), LARGEST + COMMUNICATOR_NOTES, 3));
done:
    memory_free(elsewhere);
    return result;
}

/* The cost model of the kind; for ring and naive it is compared with the bytes sent. */
static status check_cost(communicator *c)
{
    status result = OK;
    enum { COUNT = 100003 };
    double own, all[64], together = 0, modelled = communicator_sent_bytes(c);
    bool sends =
        strcmp(c->kind->about.name, "ring") == 0 || strcmp(c->kind->about.name, "naive") == 0;

    bytes_sent = 0;
    TRY(communicator_allreduce_mean(c, communicator_buffer(c), COUNT));
    modelled = communicator_sent_bytes(c) - modelled;
    own = (double)bytes_sent;
    TRY(communicator_gather_all(c, &own, sizeof own, all));
    for (unsigned i = 0; i < c->size; i++)
        together += all[i];
    if (modelled != communicator_mean_bytes(c, COUNT))
        FAIL(ERROR_OTHER, "%g bytes were counted for one mean, %g expected", modelled,
             communicator_mean_bytes(c, COUNT));
    if (sends && (c->in_rank_order || !c->ordered) && together != modelled)
        FAIL(ERROR_OTHER, "the cost model gives %.0f bytes, %.0f were sent", modelled, together);
done:
    return result;
}

/* A mean summed in rank order has the bits of reduce_mean_ordered. Any other mean has the same bits
 * on every rank. */
static status check_bits(communicator *c)
{
    status result = OK;
    enum { COUNT = LARGEST };
    float **all = NULL, *expected = NULL, *data = communicator_buffer(c);
    TRY(memory_new(&all, c->size, sizeof *all, "test"));
    TRY(memory_new(&expected, COUNT, sizeof(float), "test"));
    for (unsigned rank = 0; rank < c->size; rank++) {
        TRY(memory_new(&all[rank], COUNT, sizeof(float), "test"));
        sync_rig_rough(rank, COUNT, 0, all[rank]);
    }
    memcpy(data, all[c->rank], COUNT * sizeof(float));
    TRY(communicator_allreduce_mean(c, data, COUNT));
    if (c->ordered || c->in_rank_order || c->size == 1)
        reduce_mean_ordered((const float *const *)all, c->size, COUNT, expected);
    else
        memcpy(expected, data, COUNT * sizeof(float));
    TRY(communicator_broadcast(c, expected, COUNT * sizeof(float), c->size - 1));
    if (memcmp(expected, data, COUNT * sizeof(float)) != 0)
        FAIL(ERROR_OTHER, "rank %u has other bits than expected", c->rank);
done:
    for (unsigned rank = 0; all != NULL && rank < c->size; rank++)
        memory_free(all[rank]);
    memory_free(all);
    memory_free(expected);
    return result;
}

/* With its factor, the scaled mean has the bits of the mean, and the notes need no factor. */
static status check_scaled(communicator *c)
{
    status result = OK;
    enum { COUNT = 5003, ALL = COUNT + COMMUNICATOR_NOTES };
    static float mean[ALL];
    float *data = communicator_buffer(c);
    double factor = 0;
    sync_rig_rough(c->rank, ALL, 5, mean);
    TRY(communicator_allreduce_mean(c, mean, ALL));
    sync_rig_rough(c->rank, ALL, 5, data);
    TRY(communicator_allreduce_scaled(c, data, COUNT, &factor));
    for (size_t i = 0; i < ALL; i++) {
        const float value = i < COUNT ? (float)factor * data[i] : data[i];
        if (value != mean[i])
            FAIL(ERROR_OTHER, "element %zu is %g, not %g", i, (double)value, (double)mean[i]);
    }
done:
    return result;
}

static status check_gather(communicator *c)
{
    status result = OK;
    uint32_t own[3] = {c->rank, c->rank * c->rank, 7}, all[64 * 3], word = c->rank + 100;
    TRY(communicator_gather_all(c, own, sizeof own, all));
    for (unsigned rank = 0; rank < c->size; rank++)
        if (all[rank * 3] != rank || all[rank * 3 + 1] != rank * rank || all[rank * 3 + 2] != 7)
            FAIL(ERROR_OTHER, "wrong values of rank %u after the gather", rank);
    for (unsigned root = 0; root < c->size; root++) {
        word = c->rank + 100;
        TRY(communicator_broadcast(c, &word, sizeof word, root));
        if (word != root + 100)
            FAIL(ERROR_OTHER, "the broadcast from rank %u gave %u", root, word);
        TRY(communicator_barrier(c));
    }
done:
    return result;
}

/* Whether the kind computes a mean in host memory. Kinds for GPUs: test_communicator_choice.c and
 * test_cuda_nccl.c. */
static bool of_host(const char *kind)
{
    const struct communicator_kind *k =
        (const struct communicator_kind *)registry_find(&communicator_registry, kind);
    return k == NULL || (!k->on_device && !k->exchanges_nothing);
}

static status check_all(communicator *c)
{
    status result = OK;
    TRY(check_means(c));
    TRY(check_bits(c));
    TRY(check_scaled(c));
    TRY(check_cost(c));
    TRY(check_gather(c));
done:
    return result;
}

/* Every communicator and the documented example, with either reduction. */
static status case_conformance(unsigned rank UNUSED, unsigned size UNUSED)
{
    static const char *const reductions[] = {"fast", "ordered"};
    status result = OK;
    communicator *c = NULL;
    for (size_t i = 0; i < (communicator_registry.count + 1) * COUNT_OF(reductions); i++) {
        size_t k = i / COUNT_OF(reductions);
        const char *kind =
            k < communicator_registry.count ? communicator_registry.entries[k]->name : "gather";
        const char *reduction = reductions[i % COUNT_OF(reductions)];
        if (!of_host(kind))
            continue;
        TRY(open_one(&c, kind, reduction));
        result = check_all(c);
        communicator_close(&c);
        if (result != OK) {
            (void)error_add_context(result, "communicator=%s reduction=%s", kind, reduction);
            break;
        }
    }
done:
    return result;
}

/* Ranks exchange often, also about once in a millisecond, with pauses of one rank: all must agree
 * where they wait for each other. */
static status case_often(unsigned rank, unsigned size)
{
    enum { EXCHANGES = 2000, PAUSE_EVERY = 300, SLOW_FROM = 1400 };
    status result = OK;
    communicator *c = NULL;
    TRY(open_one(&c, "mpi", "fast"));
    for (size_t i = 0; i < EXCHANGES; i++) {
        const uint64_t now = clock_ns();
        if (i % PAUSE_EVERY == 0 && i / PAUSE_EVERY % size == rank)
            clock_sleep_until_ns(now + 300000000);
        if (i >= SLOW_FROM)
            clock_sleep_until_ns(now + 800000 + (i + rank) % 4 * 60000);
        TRY(mean_is_exact(c, communicator_buffer(c), 17, i));
    }
done:
    communicator_close(&c);
    return result;
}

/* The ranks of one host, divided into `nodes` nodes. */
static status check_nodes(unsigned nodes, unsigned size, const char *reduction)
{
    status result = OK;
    communicator *c = NULL;
    options *o = sync_rig_settings();
    char number[16];

    snprintf(number, sizeof number, "%u", nodes);
    TRY(sync_rig_set(o, "communicator", "hierarchical"));
    TRY(sync_rig_set(o, "reduction", reduction));
    TRY(sync_rig_set(o, "communicator.nodes", number));
    status opened = communicator_open(&c, o, LARGEST, NULL);
    if (nodes > size) {
        if (opened != ERROR_USAGE)
            FAIL(ERROR_OTHER, "%u nodes of %u ranks: %s", nodes, size, status_name(opened));
        goto done;
    }
    TRY(opened);
    if (c->in_rank_order != (nodes == 1))
        FAIL(ERROR_OTHER, "in_rank_order is %d with %u nodes", c->in_rank_order, nodes);
    double bytes = strcmp(reduction, "ordered") == 0 && nodes > 1 ? 2.0 * (size - 1) * 400
                                                                  : 2.0 * (nodes - 1) * 400;
    if (size > 1 && communicator_mean_bytes(c, 100) != bytes)
        FAIL(ERROR_OTHER, "%g bytes between %u nodes, not %g", communicator_mean_bytes(c, 100),
             nodes, bytes);
    TRY(check_all(c));
done:
    if (result != OK)
        (void)error_add_context(result, "communicator.nodes=%u reduction=%s", nodes, reduction);
    options_close(&o);
    communicator_close(&c);
    return result;
}

static status case_nodes(unsigned rank UNUSED, unsigned size)
{
    status result = OK;
    for (unsigned nodes = 1; nodes <= size + 1; nodes++) {
        TRY(check_nodes(nodes, size, "fast"));
        TRY(check_nodes(nodes, size, "ordered"));
    }
done:
    return result;
}

/* Every rank keeps its vector; the notes become means. */
static status case_dummy(unsigned rank, unsigned size)
{
    status result = OK;
    communicator *c = NULL;
    enum { COUNT = 1000, NOTES = COMMUNICATOR_NOTES };

    if (open_one(&c, "dummy", "ordered") != ERROR_USAGE)
        FAIL(ERROR_OTHER, "reduction=ordered was accepted");
    TRY(open_one(&c, "dummy", "fast"));
    float *data = communicator_buffer(c);
    for (size_t i = 0; i < COUNT + NOTES; i++)
        data[i] = summand(rank, i, 0);
    TRY(communicator_allreduce_mean(c, data, COUNT + NOTES));
    for (size_t i = 0; i < COUNT; i++)
        if (data[i] != summand(rank, i, 0))
            FAIL(ERROR_OTHER, "element %zu has changed", i);
    TRY(mean_is_exact(c, data, NOTES, 5));
    if (size > 1 && communicator_mean_bytes(c, COUNT + NOTES) != 2.0 * (size - 1) * 4 * (NOTES + 1))
        FAIL(ERROR_OTHER, "the cost model gives %g bytes, not those of the notes",
             communicator_mean_bytes(c, COUNT + NOTES));
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

static status case_allocations(unsigned rank UNUSED, unsigned size UNUSED)
{
    static const char *const reductions[] = {"fast", "ordered"};
    status result = OK;
    communicator *c = NULL;
    for (size_t i = 0; i < communicator_registry.count * COUNT_OF(reductions); i++) {
        const char *kind = communicator_registry.entries[i / COUNT_OF(reductions)]->name;
        unsigned before = allocations;
        if (!of_host(kind))
            continue;
        TRY(open_one(&c, kind, reductions[i % COUNT_OF(reductions)]));
        if (allocations == before)
            FAIL(ERROR_OTHER, "allocations are not counted");
        before = allocations;
        for (unsigned step = 0; step < 50; step++)
            TRY(communicator_allreduce_mean(c, communicator_buffer(c), LARGEST));
        if (allocations != before)
            FAIL(ERROR_OTHER, "communicator=%s: %u allocations in 50 exchanges", kind,
                 allocations - before);
        communicator_close(&c);
    }
done:
    communicator_close(&c);
    return result;
}
#endif

static const struct sync_case CASES[] = {
    {"conformance", case_conformance},
    {"nodes", case_nodes},
    {"dummy", case_dummy},
    {"often", case_often},
#if !defined(GRADLAG_SANITIZE)
    {"allocations", case_allocations},
#endif
    {NULL, NULL},
};

/* ---- tests --------------------------------------------------------------------------------------
 */

/* Exact means for every size; the bits of reduce_mean_ordered in rank order, else the same bits on
 * every rank; gathers and broadcasts. */
static void every_communicator_conforms_on_1_to_7_ranks(void **state UNUSED)
{
    static const unsigned ranks[] = {1, 2, 3, 4, 7};
    for (size_t i = 0; i < COUNT_OF(ranks); i++)
        sync_rig_expect_ok(ranks[i], "conformance");
}

static void simulated_nodes_conform(void **state UNUSED)
{
    sync_rig_expect_ok(1, "nodes");
    sync_rig_expect_ok(2, "nodes");
    sync_rig_expect_ok(5, "nodes");
}

static void the_dummy_exchanges_nothing_and_warns(void **state UNUSED)
{
    static struct sync_run run;
    sync_rig_run(3, "dummy", 20, &run);
    if (run.exit_code != 0)
        fail_msg("exit %d:\n%s", run.exit_code, run.output);
    assert_int_equal(sync_rig_lines(&run, ": warning: ", "communicator=dummy"), 1);
}

static void ranks_that_exchange_often_stay_in_step(void **state UNUSED)
{
    sync_rig_expect_ok(2, "often");
    sync_rig_expect_ok(3, "often");
}

static void the_documented_example_is_the_tested_one(void **state UNUSED)
{
    documented_on("docs/adding-a-communicator.md", "docs/examples/communicator_gather.c");
}

static void exchanges_allocate_nothing(void **state UNUSED)
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
        cmocka_unit_test(every_communicator_conforms_on_1_to_7_ranks),
        cmocka_unit_test(simulated_nodes_conform),
        cmocka_unit_test(the_dummy_exchanges_nothing_and_warns),
        cmocka_unit_test(ranks_that_exchange_often_stay_in_step),
        cmocka_unit_test(the_documented_example_is_the_tested_one),
        cmocka_unit_test(exchanges_allocate_nothing),
    };
    int code;
    if (sync_rig_is_rank(argc, argv, CASES, &code))
        return code;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
