/*
 * test_overlap.c — training with overlap, under mpirun: it has the bits of the same training
 * without overlap; its records; how it ends after a failure.
 */
#include "base/memory.h"
#include "base/sha256.h"
#include "sync/communicator/overlap_autotune.h"
#include "tests/sync/trainer_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- a whole run on this rank -------------------------------------------------------------------
 */

/* `rows`: on rank 0, or NULL. A run with checkpoints stops at its first checkpoint. */
static status train(const char *const *settings, unsigned rank, unsigned size, recorder *rows,
                    struct training_outcome *out)
{
    status result = OK;
    struct run r = {.recorder = rows, .seen.stop_after_checkpoints = 1};
    TRY(run_open(&r, settings, rank, size));
    TRY(run_train(&r));
done:
    *out = r.outcome;
    run_close(&r);
    return result;
}

/* ---- cases --------------------------------------------------------------------------------------
 */

static status same_bits(const char *const *with, const char *const *without, unsigned rank,
                        unsigned size)
{
    status result = OK;
    struct training_outcome a, b;
    TRY(train(with, rank, size, NULL, &a));
    TRY(train(without, rank, size, NULL, &b));
    if (a.updates == 0 || a.updates != b.updates ||
        strcmp(a.parameters_sha256, b.parameters_sha256) != 0)
        FAIL(ERROR_OTHER, "%s: %.12s… after %llu updates with overlap, %.12s… after %llu without",
             with[3], a.parameters_sha256, (unsigned long long)a.updates, b.parameters_sha256,
             (unsigned long long)b.updates);
done:
    return result;
}

#define SAME_BITS(length, way, model)                                                              \
    TRY(same_bits(SETTINGS(length, "evaluate_every=0.1", "bucket_kib=4", "communicator=" way,      \
                           "model=" model, "overlap=yes"),                                         \
                  SETTINGS(length, "evaluate_every=0.1", "bucket_kib=4", "communicator=" way,      \
                           "model=" model, "overlap=no"),                                          \
                  rank, size))

static status case_bits(unsigned rank, unsigned size)
{
    status result = OK;
    SAME_BITS("epochs=0.25", "shared", "mlp");
    SAME_BITS("updates=9", "shared", "resnet8");
    TRY(same_bits(
        SETTINGS("updates=50", "bucket_kib=4", "communicator=shared", "model=mlp", "overlap=auto"),
        SETTINGS("updates=50", "bucket_kib=4", "communicator=shared", "model=mlp", "overlap=no"),
        rank, size));
    if (size <= 2)
        SAME_BITS("epochs=0.25", "mpi", "mlp");
    TRY(same_bits(SETTINGS("updates=9", "bucket_kib=4", "reduction=ordered", "communicator=mpi",
                           "model=resnet8", "overlap=yes"),
                  SETTINGS("updates=9", "bucket_kib=64", "reduction=ordered", "communicator=mpi",
                           "model=resnet8", "overlap=no"),
                  rank, size));
#ifdef GRADLAG_CUDA
    if (size > 1) /* one rank on a GPU keeps its gradients there */
        TRY(same_bits(SETTINGS("updates=9", "bucket_kib=4", "reduction=ordered",
                               "communicator=auto", "model=mlp", "overlap=yes", "device=cuda"),
                      SETTINGS("updates=9", "bucket_kib=4", "reduction=ordered",
                               "communicator=auto", "model=mlp", "overlap=no", "device=cuda"),
                      rank, size));
#endif
done:
    return result;
}

/* Hidden time is recorded beside exchange time; the parts of a step still add up to the step. */
static status case_records(unsigned rank, unsigned size)
{
    status result = OK;
    static const struct fact facts[] = {
        {"SELECT count(*) FROM step WHERE run_id = 1 AND hidden_us = 0 AND staleness = 0", "32"},
        {"SELECT count(*) FROM step WHERE run_id = 2 AND staleness = 0", "32"},
        {"SELECT sum(hidden_us) > 0 FROM step WHERE run_id = 2", "1"},
        {"SELECT count(*) FROM step WHERE data_us + forward_us + backward_us > compute_us + 2",
         "0"},
        {"SELECT max(hidden_us <= step_us) FROM where_time_goes WHERE run_id = 2", "1"},
        /* Rank 0 measures the training's time, so its steps take no longer. */
        {"SELECT count(*) FROM (SELECT run_id, worker, sum(compute_us + exchange_us + apply_us) AS "
         "us FROM step WHERE worker = 0 GROUP BY run_id) s JOIN run ON run.id = s.run_id "
         "WHERE us <= run.train_seconds * 1.1e6 + 50000",
         "2"},
    };
    int64_t id;
    if (rank == 0)
        REQUIRE(rig_make_folder(NULL) == 0);
    for (unsigned i = 0; i < 2; i++) {
        struct training_outcome outcome;
        struct run_outcome end = rig_outcome;
        recorder *r = rank == 0 ? rig_begin(&rig_run, &id) : NULL;
        TRY(train(SETTINGS("updates=16", "bucket_kib=16", "communicator=shared", "model=cnn",
                           "dataset.size=16", "batch=64", i == 0 ? "overlap=no" : "overlap=yes"),
                  rank, size, r, &outcome));
        end.train_seconds = outcome.train_seconds;
        if (rank == 0)
            rig_finish(r, &end);
    }
    if (rank == 0)
        TRY(expect_facts(facts, COUNT_OF(facts)));
done:
    if (rank == 0)
        rig_remove_folder(NULL);
    return result;
}

/* The learning rate is too high: all ranks end together. */
static status case_diverges(unsigned rank, unsigned size)
{
    status result = OK;
    struct training_outcome outcome;
    status ended = train(SETTINGS("communicator=shared", "lr=1e6", "warmup_epochs=0", "model=mlp",
                                  "bucket_kib=4", "overlap=yes"),
                         rank, size, NULL, &outcome);
    if (ended != ERROR_DIVERGED || outcome.updates == 0 || outcome.parameters_sha256[0] == '\0')
        FAIL(ERROR_OTHER, "ended as %s after %llu updates: %s", status_name(ended),
             (unsigned long long)outcome.updates, error_message());
done:
    return result;
}

static const struct sync_case CASES[] = {
    {"bits", case_bits},
    {"records", case_records},
    {"diverges", case_diverges},
    {NULL, NULL},
};

/* ---- tests --------------------------------------------------------------------------------------
 */

static void overlap_changes_no_bit(void **state UNUSED)
{
    static const unsigned ranks[] = {1, 2, 3};
    for (size_t i = 0; i < COUNT_OF(ranks); i++)
        sync_rig_expect_ok(ranks[i], "bits");
}

/* The vote of a trial in which the n-th step of either kind takes took(overlaps, n) ns. */
static float vote_after(uint64_t (*took)(bool overlaps, unsigned n))
{
    struct overlap_autotune t = {0};
    unsigned n[2] = {0}, first[2] = {0};
    for (unsigned step = 0; step < AUTOTUNE_STEPS; step++) {
        bool overlaps = autotune_overlaps(&t);
        assert_false(autotune_votes(&t));
        first[overlaps] += step % 2 == 0;
        autotune_took(&t, took(overlaps, n[overlaps]++));
    }
    assert_true(autotune_votes(&t));
    assert_false(autotune_overlaps(&t));
    assert_int_equal(n[0], n[1]);
    assert_int_equal(first[0], first[1]);
    return autotune_vote(&t);
}

static uint64_t a_tenth_faster(bool overlaps, unsigned n)
{
    return (overlaps ? 900000 : 1000000) + n;
}

static uint64_t a_tenth_slower(bool overlaps, unsigned n)
{
    return (overlaps ? 1100000 : 1000000) + n;
}

static uint64_t equally_fast(bool overlaps UNUSED, unsigned n)
{
    return 1000000 + n;
}

/* Slow steps while warming up, and a few slow steps later. */
static uint64_t faster_with_outliers(bool overlaps, unsigned n)
{
    bool disturbed = n < AUTOTUNE_WARM_UP / 2 || n % 4 == 3;
    return overlaps ? (disturbed ? 90000000 : 900000) : 1000000;
}

/* Faster in the median, but only in every other pair. */
static uint64_t faster_in_every_other_pair(bool overlaps, unsigned n)
{
    return overlaps ? 900000 : n % 2 == 0 ? 890000 : 990000 + n;
}

static void a_trial_votes_for_overlap_if_it_gains(void **state UNUSED)
{
    assert_true(vote_after(a_tenth_faster) == 1);
    assert_true(vote_after(a_tenth_slower) == 0);
    assert_true(vote_after(equally_fast) == 0);
    assert_true(vote_after(faster_with_outliers) == 1);
    assert_true(vote_after(faster_in_every_other_pair) == 0);
}

static void hidden_time_is_recorded(void **state UNUSED)
{
    sync_rig_expect_ok(2, "records");
}

static void divergence_ends_all_ranks_together(void **state UNUSED)
{
    sync_rig_expect_ok(3, "diverges");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(overlap_changes_no_bit),
        cmocka_unit_test(a_trial_votes_for_overlap_if_it_gains),
        cmocka_unit_test(hidden_time_is_recorded),
        cmocka_unit_test(divergence_ends_all_ranks_together),
    };
    int code;
    if (sync_rig_is_rank(argc, argv, CASES, &code))
        return code;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
