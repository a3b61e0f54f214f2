/*
 * test_communicator.c — conformance of every communicator in the registry, under mpirun: exactly
 * summable data, ranks that are late, dead or stopped, and what waiting costs.
 */
#include "docs/examples/communicator_gather.c"
#include "tests/sync_rig.h"
#include "worker/optimizer.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <setjmp.h>
#include <cmocka.h>

enum { LARGEST = (1 << 18) + 8192 + 5 }; /* more than a piece and a bucket, and odd */
static const size_t SIZES[] = {0, 1, 2, 15, 17, 1000, 1001, 37610, 131071, LARGEST};

/* ---- what a rank does ---------------------------------------------------------------------------
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

/* Small whole numbers: their sum over 64 ranks is exact in float32, in any order. */
static float summand(unsigned rank, size_t i, size_t salt)
{
    return (float)((i * 7 + rank * 13 + salt) % 1021) - 510;
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

/* Numbers whose sum depends on the order it is taken in. */
static void rough_gradient(unsigned rank, size_t count, float *out)
{
    uint32_t bits = rank + 1;
    for (size_t i = 0; i < count; i++) {
        bits = bits * 1664525u + 1013904223u;
        out[i] = (float)(int32_t)bits * (i % 3 == 0 ? 1e-9f : 1e-6f);
    }
}

/* With reduction=ordered: the bits of reduce_mean_ordered. Else: the same bits on every rank. */
static status check_bits(communicator *c)
{
    status result = OK;
    enum { COUNT = LARGEST };
    float **all = NULL, *expected = NULL, *data = communicator_buffer(c);
    TRY(memory_new(&all, c->size, sizeof *all, "test"));
    TRY(memory_new(&expected, COUNT, sizeof(float), "test"));
    for (unsigned rank = 0; rank < c->size; rank++) {
        TRY(memory_new(&all[rank], COUNT, sizeof(float), "test"));
        rough_gradient(rank, COUNT, all[rank]);
    }
    memcpy(data, all[c->rank], COUNT * sizeof(float));
    TRY(communicator_allreduce_mean(c, data, COUNT));
    if (c->ordered || c->kind->in_rank_order || c->size == 1)
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

static status check_gather(communicator *c)
{
    status result = OK;
    uint32_t own[3] = {c->rank, c->rank * c->rank, 7}, all[64 * 3], word = c->rank + 100;
    TRY(communicator_gather_all(c, own, sizeof own, all));
    for (unsigned rank = 0; rank < c->size; rank++)
        if (all[rank * 3] != rank || all[rank * 3 + 1] != rank * rank || all[rank * 3 + 2] != 7)
            FAIL(ERROR_OTHER, "rank %u's words came out wrong", rank);
    for (unsigned root = 0; root < c->size; root++) {
        word = c->rank + 100;
        TRY(communicator_broadcast(c, &word, sizeof word, root));
        if (word != root + 100)
            FAIL(ERROR_OTHER, "the broadcast from rank %u brought %u", root, word);
        TRY(communicator_barrier(c));
    }
done:
    return result;
}

/* Not those that work on GPUs alone: see test_communicator_choice.c and test_cuda_nccl.c. */
static bool of_host(const char *kind)
{
    const struct about *about = registry_find(&communicator_registry, kind);
    return about == NULL || !((const struct communicator_kind *)about)->on_device;
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
        result = check_means(c);
        if (result == OK)
            result = check_bits(c);
        if (result == OK)
            result = check_gather(c);
        communicator_close(&c);
        if (result != OK) {
            (void)error_add_context(result, "communicator=%s reduction=%s", kind, reduction);
            break;
        }
    }
done:
    return result;
}

/* Rank 1 comes 2.5 s late; the others wait for 1 s. */
static status case_late(unsigned rank, unsigned size UNUSED)
{
    status result = OK;
    communicator *c = NULL;
    TRY(open_one(&c, "auto", "fast"));
    c->timeout_s = 1;
    c->warn_after_s = 0.2;
    if (rank == 1)
        clock_sleep_until_ns(clock_ns() + 2500000000u);
    TRY(communicator_allreduce_mean(c, communicator_buffer(c), 100));
done:
    communicator_close(&c);
    return result;
}

static status case_death(unsigned rank, unsigned size UNUSED)
{
    status result = OK;
    communicator *c = NULL;
    TRY(open_one(&c, "auto", "fast"));
    TRY(communicator_barrier(c));
    if (rank == 1)
        raise(SIGKILL);
    TRY(communicator_barrier(c));
done:
    communicator_close(&c);
    return result;
}

/* One rank fails alone; the others would wait for 30 s. */
static status case_failure(unsigned rank, unsigned size UNUSED)
{
    status result = OK;
    communicator *c = NULL;
    TRY(open_one(&c, "mpi", "fast"));
    if (rank == 1)
        FAIL(ERROR_DATA, "the data of this rank is not there");
    TRY(communicator_barrier(c));
done:
    if (result != ERROR_DATA)
        communicator_close(&c);
    return result;
}

static status case_diverged(unsigned rank UNUSED, unsigned size UNUSED)
{
    status result = OK;
    FAIL(ERROR_DIVERGED, "all ranks together");
done:
    return result;
}

static long processor_us(void)
{
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1000000 + used.ru_utime.tv_usec +
           used.ru_stime.tv_usec;
}

/* Rank 0 is busy elsewhere for 0.6 s, as in an evaluation; the others must not burn that time. */
static status case_idle(unsigned rank, unsigned size)
{
    status result = OK;
    communicator *c = NULL;
    TRY(open_one(&c, "auto", "fast"));
    TRY(communicator_barrier(c));
    long before = processor_us();
    if (rank == 0)
        clock_sleep_until_ns(clock_ns() + 600000000u);
    TRY(communicator_barrier(c));
    long burnt = processor_us() - before;
    if (burnt > 60000)
        FAIL(ERROR_OTHER, "rank %u of %u burnt %ld us of 600 ms of waiting", rank, size, burnt);
done:
    communicator_close(&c);
    return result;
}

/* Rank 1 loads for longer than the other, rank 0 writes results at the end. Opening and closing
 * take some processor time themselves. */
static status case_ends(unsigned rank, unsigned size UNUSED)
{
    status result = OK;
    communicator *c = NULL;
    const uint64_t busy_ns = 1500000000;
    long before = processor_us();
    if (rank == 1)
        clock_sleep_until_ns(clock_ns() + busy_ns);
    TRY(open_one(&c, "auto", "fast"));
    long opening = processor_us() - before;
    if (rank == 0)
        clock_sleep_until_ns(clock_ns() + busy_ns);
    before = processor_us();
    communicator_close(&c);
    long closing = processor_us() - before;
    if (opening > 500000 || closing > 500000)
        FAIL(ERROR_OTHER, "rank %u burnt %ld us of 1.5 s while opening, %ld us while closing", rank,
             opening, closing);
done:
    communicator_close(&c);
    return result;
}

/* Rank 1 never gets as far as its communicator. */
static status case_absent(unsigned rank, unsigned size UNUSED)
{
    status result = OK;
    communicator *c = NULL;
    options *o = sync_rig_settings();
    TRY(sync_rig_set(o, "timeout_s", "0.1"));
    if (rank == 1)
        clock_sleep_until_ns(clock_ns() + 30000000000u);
    TRY(communicator_open(&c, o, LARGEST, NULL));
done:
    options_close(&o);
    communicator_close(&c);
    return result;
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

/* Says its process id, then waits to be ended. */
static status case_orphan(unsigned rank UNUSED, unsigned size UNUSED)
{
    status result = OK;
    communicator *c = NULL;
    TRY(open_one(&c, "auto", "fast"));
    TRY(communicator_barrier(c));
    printf("pid %d\n", (int)getpid());
    fflush(stdout);
    clock_sleep_until_ns(clock_ns() + 20000000000u);
done:
    communicator_close(&c);
    return result;
}

static const struct sync_case CASES[] = {
    {"conformance", case_conformance},
    {"late", case_late},
    {"death", case_death},
    {"failure", case_failure},
    {"diverged", case_diverged},
    {"idle", case_idle},
    {"ends", case_ends},
    {"absent", case_absent},
#if !defined(GRADLAG_SANITIZE)
    {"allocations", case_allocations},
#endif
    {"orphan", case_orphan},
    {NULL, NULL},
};

/* ---- what is expected of them -------------------------------------------------------------------
 */

/* Exact means for every size; the bits of reduce_mean_ordered where the sum is ordered, the same
 * bits on every rank where it is not; gathers and broadcasts. */
static void every_communicator_keeps_its_promises_on_1_to_7_ranks(void **state UNUSED)
{
    static const unsigned ranks[] = {1, 2, 3, 4, 7};
    for (size_t i = 0; i < COUNT_OF(ranks); i++)
        sync_rig_expect_ok(ranks[i], "conformance");
}

static size_t read_text(const char *path, char *out, size_t size)
{
    FILE *f = fopen(path, "r");
    size_t length = f != NULL ? fread(out, 1, size - 1, f) : 0;
    out[length] = '\0';
    if (f != NULL)
        fclose(f);
    return length;
}

static void the_documented_example_is_the_tested_one(void **state UNUSED)
{
    static char code[8192], page[16384];
    assert_true(read_text("docs/examples/communicator_gather.c", code, sizeof code) > 100);
    assert_true(read_text("docs/adding-a-communicator.md", page, sizeof page) > 100);
    assert_non_null(strstr(page, code));
}

static void a_late_rank_is_named_and_then_given_up(void **state UNUSED)
{
    static struct sync_run run;
    sync_rig_run(3, "late", 20, &run);
    if (run.exit_code != ERROR_PEER)
        fail_msg("exit %d:\n%s", run.exit_code, run.output);
    assert_non_null(strstr(run.output, "rank 0: warning: has waited"));
    assert_non_null(strstr(run.output, "for rank 1 (the mean gradient)"));
    assert_null(strstr(run.output, "rank 2: warning: has waited")); /* one rank speaks */
}

static void a_rank_that_dies_ends_the_others(void **state UNUSED)
{
    static struct sync_run run;
    sync_rig_run(3, "death", 15, &run);
    assert_true(run.exit_code > 0);
    assert_true(run.seconds < 10);
}

static void a_rank_that_fails_alone_ends_the_others_with_its_code(void **state UNUSED)
{
    static struct sync_run run;
    sync_rig_run(3, "failure", 20, &run);
    if (run.exit_code != ERROR_DATA)
        fail_msg("exit %d:\n%s", run.exit_code, run.output);
    assert_true(run.seconds < 15);
}

static void ranks_that_fail_together_end_with_their_code(void **state UNUSED)
{
    static struct sync_run run;
    sync_rig_run(3, "diverged", 20, &run);
    if (run.exit_code != ERROR_DIVERGED)
        fail_msg("exit %d:\n%s", run.exit_code, run.output);
    assert_null(strstr(run.output, "MPI_ABORT"));
}

static void waiting_costs_no_processor_time(void **state UNUSED)
{
    sync_rig_expect_ok(2, "idle");
    sync_rig_expect_ok(9, "idle");
    sync_rig_expect_ok(2, "ends");
}

static void a_rank_that_never_opens_does_not_hold_the_others(void **state UNUSED)
{
    static struct sync_run run;
    sync_rig_run(2, "absent", 25, &run);
    if (run.exit_code != ERROR_PEER)
        fail_msg("exit %d:\n%s", run.exit_code, run.output);
    assert_non_null(strstr(run.output, "rank 0 waited 2.0 s for another rank (opening"));
}

static void exchanges_allocate_nothing(void **state UNUSED)
{
#if defined(GRADLAG_SANITIZE)
    skip();
#else
    sync_rig_expect_ok(3, "allocations");
#endif
}

static void no_rank_outlives_its_launcher(void **state UNUSED)
{
    int fd, pids[2], found = 0;
    char output[4096] = "";
    size_t length = 0;
    uint64_t deadline = clock_ns() + 15000000000u;
    pid_t launcher = sync_rig_start(2, "orphan", &fd);

    while (found < 2 && clock_ns() < deadline) {
        struct pollfd readable = {.fd = fd, .events = POLLIN};
        ssize_t n = poll(&readable, 1, 100) > 0 ? read(fd, output + length, 4095 - length) : 0;
        length += n > 0 ? (size_t)n : 0;
        output[length] = '\0';
        found = 0;
        for (const char *at = output; (at = strstr(at, "pid ")) != NULL && found < 2; at += 4)
            found += strchr(at, '\n') != NULL && sscanf(at, "pid %d", &pids[found]) == 1;
    }
    kill(launcher, SIGKILL);
    waitpid(launcher, NULL, 0);
    close(fd);
    assert_int_equal(found, 2);
    for (int i = 0; i < 2; i++) {
        while (kill(pids[i], 0) == 0 && clock_ns() < deadline)
            clock_sleep_until_ns(clock_ns() + 10000000);
        assert_int_not_equal(kill(pids[i], 0), 0);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_communicator_keeps_its_promises_on_1_to_7_ranks),
        cmocka_unit_test(the_documented_example_is_the_tested_one),
        cmocka_unit_test(a_late_rank_is_named_and_then_given_up),
        cmocka_unit_test(a_rank_that_dies_ends_the_others),
        cmocka_unit_test(a_rank_that_fails_alone_ends_the_others_with_its_code),
        cmocka_unit_test(ranks_that_fail_together_end_with_their_code),
        cmocka_unit_test(waiting_costs_no_processor_time),
        cmocka_unit_test(a_rank_that_never_opens_does_not_hold_the_others),
        cmocka_unit_test(exchanges_allocate_nothing),
        cmocka_unit_test(no_rank_outlives_its_launcher),
    };
    int code;
    if (sync_rig_is_rank(argc, argv, CASES, &code))
        return code;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
