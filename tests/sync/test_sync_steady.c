/*
 * test_sync_steady.c — synchronous runs that are broken off, that begin unlike, or whose numbers go
 * wrong on one rank.
 */
#include "sync/replica.h"
#include "tests/sync/trainer_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Poisons what rank 1 hands in, or is handed, at exchange `first` and those that follow. */
static struct {
    const struct communicator_kind *real;
    unsigned exchanges, first, times;
    unsigned spares; /* every so many-th exchange is left alone; 0: none */
    size_t at;       /* which element */
    float value;
    bool after;
    unsigned stop_at; /* exchange, at which rank 0 is told to stop; 0: at none */
    volatile sig_atomic_t *stop;
} poison;

static status poisoned_mean(communicator *c, float *data, size_t count)
{
    status result = OK;
    if (++poison.exchanges == poison.stop_at)
        *poison.stop = 1;
    bool now = c->rank == 1 && poison.exchanges >= poison.first &&
               poison.exchanges < poison.first + poison.times &&
               (poison.spares == 0 || poison.exchanges % poison.spares != 0);
    if (now && !poison.after)
        data[poison.at] = poison.value;
    TRY(poison.real->allreduce_mean(c, data, count));
    if (now && poison.after)
        data[poison.at] = poison.value;
done:
    return result;
}

/* Elements from the end: 5 the last of the gradient, 4 the loss, 3 the flag of failure. */
static status run_poisoned_from(struct run *r, unsigned first, size_t from_end, float value,
                                unsigned times)
{
    struct communicator_kind kind = *r->communicator->kind;
    poison.real = r->communicator->kind;
    poison.exchanges = 0;
    poison.first = first;
    poison.times = times;
    poison.at = worker_parameter_count(r->worker) + COMMUNICATOR_NOTES - from_end;
    poison.value = value;
    kind.allreduce_mean = poisoned_mean;
    kind.mean_of_share = NULL; /* every rank has all of the mean then */
    r->communicator->kind = &kind;
    status ended = run_train(r);
    r->communicator->kind = poison.real;
    return ended;
}

static status run_poisoned(struct run *r, size_t from_end, float value, unsigned times)
{
    return run_poisoned_from(r, 5, from_end, value, times);
}

/* What a broken run had at its first checkpoint, where rank 0 alone hands it on, is all that a new
 * one needs. `spoilt`: so many gradients of the first are not finite, from that exchange on. */
static status resume(const char *const *more, unsigned spoilt, unsigned first, unsigned rank,
                     unsigned size)
{
    status result = OK;
    struct run whole = {0}, rest = {0};
    const char *settings[16] = {"checkpoint=x", "checkpoint_every=0.4", "schedule=linear",
                                "communicator=auto"};
    for (size_t at = 4; *more != NULL; more++)
        settings[at++] = *more;
    TRY(run_open(&whole, settings, rank, size));
    TRY(spoilt > 0 ? run_poisoned_from(&whole, first, 5, NAN, spoilt) : run_train(&whole));
    TRY(run_open(&rest, settings, rank, size));
    whole.seen.kept.seconds += 1000;
    rest.start = &whole.seen.kept;
    TRY(run_train(&rest));
    if (rest.outcome.train_seconds < 1000)
        FAIL(ERROR_OTHER, "it has forgotten how long it had trained");
    if (strcmp(whole.outcome.parameters_sha256, rest.outcome.parameters_sha256) != 0)
        FAIL(ERROR_OTHER, "%s: gone on from update %llu it ends with other parameters", settings[4],
             (unsigned long long)whole.seen.kept.updates);
    if (rest.outcome.updates != whole.outcome.updates ||
        rest.outcome.samples_used != whole.outcome.samples_used ||
        rest.outcome.samples_computed != whole.outcome.samples_computed ||
        (rank == 0 && rest.seen.checkpoints + 1 != whole.seen.checkpoints))
        FAIL(ERROR_OTHER, "%s: %llu updates, not %llu", settings[4],
             (unsigned long long)rest.outcome.updates, (unsigned long long)whole.outcome.updates);
    if (rank == 0 && whole.seen.kept.updates == 0)
        FAIL(ERROR_OTHER, "it began at the beginning");
    if (whole.outcome.samples_computed == whole.outcome.samples_used && spoilt > 0)
        FAIL(ERROR_OTHER, "nothing was left out");
done:
    run_close(&rest);
    run_close(&whole);
    return result;
}

static status case_resume(unsigned rank, unsigned size)
{
    status result = OK;
    TRY(resume(SETTINGS("optimizer=sgd"), 0, 0, rank, size));
    TRY(resume(SETTINGS("optimizer=momentum"), 0, 0, rank, size));
    TRY(resume(SETTINGS("optimizer=adamw"), 0, 0, rank, size));
done:
    return result;
}

/* Each rank has something of its own then, or a gradient is on its way. */
static status case_resume_own(unsigned rank, unsigned size)
{
    status result = OK;
    TRY(resume(SETTINGS("compression=fp16"), 0, 0, rank, size));
    TRY(resume(SETTINGS("compression=topk", "compression.ratio=0.1"), 0, 0, rank, size));
    TRY(resume(SETTINGS("compression=sign", "double_buffering=yes"), 0, 0, rank, size));
    TRY(resume(SETTINGS("double_buffering=yes", "evaluate_every=0.3"), 0, 0, rank, size));
    TRY(resume(SETTINGS("double_buffering=yes", "overlap=yes", "bucket_kib=1"), 0, 0, rank, size));
    TRY(resume(SETTINGS("local_steps=8"), 0, 0, rank, size));
    TRY(resume(SETTINGS("local_steps=3", "optimizer=adamw"), 0, 0, rank, size));
    TRY(resume(SETTINGS("local_steps=3", "local_momentum=average"), 0, 0, rank, size));
done:
    return result;
}

/* From a third of the run on an update has two batches of each rank: one that is left out leaves
 * out both. Updates are of 20 samples, the 34th brings 680, the checkpoint is at 800. */
static status case_resume_grown(unsigned rank, unsigned size)
{
    status result = OK;
    TRY(resume(SETTINGS("decay=batch", "on_nonfinite=skip", "evaluate_every=0.3"), 2, 36, rank,
               size));
    TRY(resume(SETTINGS("double_buffering=yes", "on_nonfinite=skip", "overlap=no"), 2, 20, rank,
               size));
done:
    return result;
}

/* Rank 0's parameters are everybody's, whatever the others would begin with: else those that drew
 * others would be found out at the end. */
static status case_begin(unsigned rank, unsigned size)
{
    status result = OK;
    struct run r = {0};
    TRY(run_open(&r, SETTINGS("updates=5", rank == 0 ? "seed=1" : "seed=2"), rank, size));
    TRY(run_train(&r));
done:
    run_close(&r);
    return result;
}

static status train_poisoned(const char *way, unsigned rank, unsigned size, size_t from_end,
                             float value, status expected)
{
    status result = OK;
    struct run r = {0};
    TRY(run_open(&r, SETTINGS(way), rank, size));
    TRY(run_expect(&r, run_poisoned(&r, from_end, value, 1), expected, NULL));
    TRY(run_expect_updates(&r, 4));
    if (r.outcome.parameters_sha256[0] == '\0')
        FAIL(ERROR_OTHER, "its parameters are not told");
done:
    run_close(&r);
    return result;
}

static status case_poison(unsigned rank, unsigned size)
{
    status result = OK;
    TRY(train_poisoned("communicator=auto", rank, size, 5, NAN, ERROR_DIVERGED));
    TRY(train_poisoned("communicator=auto", rank, size, 5, -INFINITY, ERROR_DIVERGED));
    TRY(train_poisoned("communicator=auto", rank, size, 4, NAN, ERROR_DIVERGED));
    TRY(train_poisoned("communicator=auto", rank, size, 3, 1, ERROR_PEER));
    TRY(train_poisoned("communicator=dummy", rank, size, 5, NAN, ERROR_DIVERGED));
done:
    return result;
}

/* Told to, all ranks leave the update out together and go on with the next batch; but not for
 * ever. */
static status case_skip(unsigned rank, unsigned size)
{
    status result = OK;
    struct run r = {0};
    static const size_t places[] = {5, 4};
    for (size_t i = 0; i < COUNT_OF(places); i++) {
        TRY(run_open(&r, SETTINGS("on_nonfinite=skip", "updates=20"), rank, size));
        TRY(run_poisoned(&r, places[i], NAN, 3));
        const uint64_t batch = 10 * (uint64_t)size;
        TRY(run_expect_updates(&r, 20));
        if (r.outcome.samples_used != 20 * batch || r.outcome.samples_computed != 23 * batch)
            FAIL(ERROR_OTHER, "%llu samples", (unsigned long long)r.outcome.samples_computed);
        run_close(&r);
    }
    TRY(run_open(&r, SETTINGS("on_nonfinite=skip"), rank, size));
    TRY(run_expect(&r, run_poisoned(&r, 4, INFINITY, 1000), ERROR_DIVERGED, NULL));
    TRY(run_expect_updates(&r, 4));
    TRY(run_expect_skipped(&r, 11, size));
    run_close(&r);
    /* Many, but never so many in a row. */
    TRY(run_open(&r, SETTINGS("on_nonfinite=skip", "updates=8"), rank, size));
    poison.spares = 11;
    status ended = run_poisoned(&r, 5, NAN, 1000);
    poison.spares = 0;
    TRY(run_expect(&r, ended, OK, NULL));
    TRY(run_expect_updates(&r, 8));
done:
    run_close(&r);
    return result;
}

/* Stopped in a row of bad updates, a run goes on in the middle of it: 6 were left out, 5 more are
 * one too many. */
static status case_skip_on(unsigned rank, unsigned size)
{
    status result = OK;
    struct run begun = {0}, rest = {0};
    const char *const *settings = SETTINGS("on_nonfinite=skip", "checkpoint=x");
    TRY(run_open(&begun, settings, rank, size));
    poison.stop = &begun.seen.stop;
    poison.stop_at = 9; /* the next one tells all */
    status ended = run_poisoned(&begun, 5, NAN, 1000);
    poison.stop_at = 0;
    TRY(run_expect(&begun, ended, STOPPED, NULL));
    TRY(run_open(&rest, settings, rank, size));
    rest.start = &begun.seen.kept;
    TRY(run_expect(&rest, run_poisoned_from(&rest, 1, 5, NAN, 1000), ERROR_DIVERGED, NULL));
    TRY(run_expect_skipped(&rest, 11, size));
done:
    run_close(&rest);
    run_close(&begun);
    return result;
}

/* Rank 1 receives another mean than the rest. */
static status train_astray(const char *more, const char *updates, unsigned rank, unsigned size)
{
    status result = OK;
    struct run r = {0};
    TRY(run_open(&r, SETTINGS("verify_every=3", more), rank, size));
    poison.after = true;
    status ended = run_poisoned(&r, 5, 1, 1);
    poison.after = false;
    TRY(run_expect(&r, ended, ERROR_OTHER, "rank 1"));
    if (strstr(error_message(), updates) == NULL)
        FAIL(ERROR_OTHER, "'%s' does not name update%s", error_message(), updates);
done:
    run_close(&r);
    return result;
}

/* At update 4, so that its parameters are others from 5 on. */
static status case_verify(unsigned rank, unsigned size)
{
    return train_astray("communicator=mpi", " 6 ", rank, size);
}

/* Ranks that are apart are alike after each averaging, whatever verify_every is a multiple of; the
 * fifth is after update 40, and at the sixth they would be alike again. */
static status case_verify_apart(unsigned rank, unsigned size)
{
    return train_astray("local_steps=8", " 40 ", rank, size);
}

/* The last error message names the key of "key=value". */
static status expect_key(const char *setting)
{
    status result = OK;
    char key[64];
    snprintf(key, sizeof key, "%.*s", (int)strcspn(setting, "="), setting);
    if (strstr(error_message(), key) == NULL)
        FAIL(ERROR_OTHER, "'%s' does not name %s", error_message(), key);
done:
    return result;
}

/* What does not go together is said before anything is computed. */
static status case_refused(unsigned rank, unsigned size)
{
    status result = OK;
    struct run r = {0};
    static const struct {
        const char *settings[4]; /* the first two exclude each other */
    } known[] = {
        {{"double_buffering=yes", "local_steps=2"}},
        {{"double_buffering=yes", "decay=batch"}},
        {{"on_nonfinite=skip", "local_steps=2"}},
        {{"overlap=yes", "local_steps=2"}},
        {{"overlap=yes", "decay=batch"}},
        {{"overlap=yes", "batch_norm=synchronised", "model=resnet8"}},
        {{"batch_norm=synchronised", "local_steps=2", "model=resnet8"}},
        {{"batch_norm=synchronised", "communicator=dummy", "model=resnet8"}},
    };
    for (size_t i = 0; i < COUNT_OF(known); i++) {
        TRY(run_open(&r, known[i].settings, rank, size));
        TRY(run_expect(&r, run_train(&r), ERROR_USAGE, known[i].settings[0]));
        TRY(expect_key(known[i].settings[1]));
        run_close(&r);
    }
done:
    run_close(&r);
    return result;
}

/* Of an exchange on GPUs, as NCCL's: what the host would have to do. */
static status case_refused_on_device(unsigned rank, unsigned size)
{
    status result = OK;
    struct run r = {0};
    static const char *const settings[] = {"double_buffering=yes", "optimizer=adamw",
                                           "local_steps=2"};
    for (size_t i = 0; i < COUNT_OF(settings); i++) {
        replica *made = NULL;
        TRY(run_open(&r, SETTINGS("device=cuda", "communicator=mpi", settings[i]), rank, size));
        const struct communicator_kind *real = r.communicator->kind;
        struct communicator_kind there = *real;
        there.about.name = "nccl";
        there.on_device = true;
        r.communicator->kind = &there;
        status opened = replica_open(&made, r.settings, r.worker, r.communicator);
        r.communicator->kind = real;
        if (opened != ERROR_USAGE || made != NULL)
            FAIL(ERROR_OTHER, "%s: %s, %s", settings[i], status_name(opened),
                 opened == OK ? "" : error_message());
        TRY(expect_key(settings[i]));
        run_close(&r);
    }
done:
    run_close(&r);
    return result;
}

static const struct sync_case CASES[] = {
    {"resume", case_resume},
    {"resume own", case_resume_own},
    {"resume grown", case_resume_grown},
    {"begin", case_begin},
    {"poison", case_poison},
    {"skip", case_skip},
    {"skip on", case_skip_on},
    {"verify", case_verify},
    {"verify apart", case_verify_apart},
    {"refused", case_refused},
    {"refused on device", case_refused_on_device},
    {NULL, NULL},
};

/* ---- what is expected of them -------------------------------------------------------------------
 */

static void a_broken_run_goes_on_and_ends_with_the_same_bits(void **state UNUSED)
{
    sync_rig_expect_ok(1, "resume");
    sync_rig_expect_ok(3, "resume");
}

static void what_each_rank_has_of_its_own_goes_on_too(void **state UNUSED)
{
    sync_rig_expect_ok(2, "resume own");
    sync_rig_expect_ok(3, "resume own");
}

static void a_grown_batch_that_was_left_out_is_left_out_after_going_on_too(void **state UNUSED)
{
    sync_rig_expect_ok(2, "resume grown");
}

static void what_does_not_go_together_is_refused(void **state UNUSED)
{
    sync_rig_expect_ok(2, "refused");
#ifdef GRADLAG_CUDA
    sync_rig_expect_ok(1, "refused on device");
#endif
}

static void all_ranks_begin_with_rank_0s_parameters(void **state UNUSED)
{
    sync_rig_expect_ok(3, "begin");
}

static void told_to_all_ranks_leave_a_bad_update_out(void **state UNUSED)
{
    sync_rig_expect_ok(2, "skip");
    sync_rig_expect_ok(2, "skip on");
}

static void a_replica_that_strays_is_named(void **state UNUSED)
{
    sync_rig_expect_ok(3, "verify");
    sync_rig_expect_ok(2, "verify apart");
}

static void one_bad_gradient_ends_all_ranks_and_leaves_their_parameters(void **state UNUSED)
{
    sync_rig_expect_ok(3, "poison");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_broken_run_goes_on_and_ends_with_the_same_bits),
        cmocka_unit_test(what_each_rank_has_of_its_own_goes_on_too),
        cmocka_unit_test(a_grown_batch_that_was_left_out_is_left_out_after_going_on_too),
        cmocka_unit_test(what_does_not_go_together_is_refused),
        cmocka_unit_test(all_ranks_begin_with_rank_0s_parameters),
        cmocka_unit_test(one_bad_gradient_ends_all_ranks_and_leaves_their_parameters),
        cmocka_unit_test(told_to_all_ranks_leave_a_bad_update_out),
        cmocka_unit_test(a_replica_that_strays_is_named),
    };
    int code;
    if (sync_rig_is_rank(argc, argv, CASES, &code))
        return code;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
