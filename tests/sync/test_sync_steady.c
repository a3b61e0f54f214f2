/*
 * test_sync_steady.c — synchronous runs that are resumed, that begin with different parameters, or
 * in which values of one rank are not finite; settings that exclude each other.
 */
#include "sync/pending.h"
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

/* Changes one element of rank 1's vector, before or after exchange `first` and those that follow.
 */
static struct {
    const struct communicator_kind *real;
    unsigned exchanges, first, times;
    unsigned spares; /* every `spares`-th exchange is unchanged; 0: none */
    size_t at;       /* the element */
    float value;
    bool after;       /* change it after the exchange, not before */
    unsigned stop_at; /* exchange at which rank 0 gets a request to stop; 0: none */
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

/* `place`: a note, or LAST for the last element of the gradient. */
enum { LAST = -1 };

static status run_poisoned_from(struct run *r, unsigned first, int place, float value,
                                unsigned times)
{
    struct communicator_kind kind = *r->communicator->kind;
    poison.real = r->communicator->kind;
    poison.exchanges = 0;
    poison.first = first;
    poison.times = times;
    poison.at = (size_t)((int64_t)worker_parameter_count(r->worker) + place);
    poison.value = value;
    kind.allreduce_mean = poisoned_mean;
    kind.mean_of_share = NULL; /* so that ranks do not share updates */
    r->communicator->kind = &kind;
    status ended = run_train(r);
    r->communicator->kind = poison.real;
    return ended;
}

static status run_poisoned(struct run *r, int place, float value, unsigned times)
{
    return run_poisoned_from(r, 5, place, value, times);
}

/* A run resumes from the first checkpoint of another run, which only rank 0 has, and ends like that
 * run. `spoilt`: number of gradients that are not finite in the first run, from exchange `first`
 * on. */
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
    TRY(spoilt > 0 ? run_poisoned_from(&whole, first, LAST, NAN, spoilt) : run_train(&whole));
    TRY(run_open(&rest, settings, rank, size));
    whole.seen.kept.seconds += 1000;
    rest.start = &whole.seen.kept;
    TRY(run_train(&rest));
    if (rest.outcome.train_seconds < 1000)
        FAIL(ERROR_OTHER, "the training time of the first run is lost");
    if (strcmp(whole.outcome.parameters_sha256, rest.outcome.parameters_sha256) != 0)
        FAIL(ERROR_OTHER, "%s: resumed from update %llu, the run ends with other parameters",
             settings[4], (unsigned long long)whole.seen.kept.updates);
    if (rest.outcome.updates != whole.outcome.updates ||
        rest.outcome.samples_used != whole.outcome.samples_used ||
        rest.outcome.samples_computed != whole.outcome.samples_computed ||
        (rank == 0 && rest.seen.checkpoints + 1 != whole.seen.checkpoints))
        FAIL(ERROR_OTHER, "%s: %llu updates, not %llu", settings[4],
             (unsigned long long)rest.outcome.updates, (unsigned long long)whole.outcome.updates);
    if (rank == 0 && whole.seen.kept.updates == 0)
        FAIL(ERROR_OTHER, "the checkpoint is of update 0");
    if (whole.outcome.samples_computed == whole.outcome.samples_used && spoilt > 0)
        FAIL(ERROR_OTHER, "no update was skipped");
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

/* With these settings each rank has its own state, or a gradient waits. */
static status case_resume_own(unsigned rank, unsigned size)
{
    status result = OK;
    TRY(resume(SETTINGS("compression=fp16"), 0, 0, rank, size));
    TRY(resume(SETTINGS("compression=topk", "compression.ratio=0.1"), 0, 0, rank, size));
    TRY(resume(SETTINGS("compression=sign", "delay=1"), 0, 0, rank, size));
    TRY(resume(SETTINGS("optimizer=sgd", "compression=dgc"), 0, 0, rank, size));
    TRY(resume(SETTINGS("delay=1", "evaluate_every=0.3"), 0, 0, rank, size));
    TRY(resume(SETTINGS("delay=1", "overlap=yes", "bucket_kib=1"), 0, 0, rank, size));
    TRY(resume(SETTINGS("delay=7", "optimizer=adamw", "compression=fp16"), 0, 0, rank, size));
    TRY(resume(SETTINGS("delay=4", "delay_correction=error-feedback", "delay_annealing=50"), 0, 0,
               rank, size));
    TRY(resume(SETTINGS("delay=64", "delay_correction=error-feedback"), 0, 0, rank, size));
    TRY(resume(SETTINGS("local_steps=8"), 0, 0, rank, size));
    TRY(resume(SETTINGS("local_steps=3", "optimizer=adamw"), 0, 0, rank, size));
    TRY(resume(SETTINGS("local_steps=3", "local_momentum=average"), 0, 0, rank, size));
    TRY(resume(SETTINGS("local_steps=3", "local_momentum=reset", "optimizer=adamw"), 0, 0, rank,
               size));
done:
    return result;
}

/* After a third of the run an update has two batches of each rank: a skipped update skips both.
 * Updates have 20 samples; the 34th reaches 680, the checkpoint is at 800. */
static status case_resume_grown(unsigned rank, unsigned size)
{
    status result = OK;
    TRY(resume(SETTINGS("decay=batch", "on_nonfinite=skip", "evaluate_every=0.3"), 2, 36, rank,
               size));
    TRY(resume(SETTINGS("delay=1", "on_nonfinite=skip", "overlap=no"), 2, 20, rank, size));
    TRY(resume(SETTINGS("delay=3", "on_nonfinite=skip", "overlap=no"), 2, 36, rank, size));
    TRY(resume(SETTINGS("delay=3", "decay=batch", "on_nonfinite=skip"), 2, 38, rank, size));
done:
    return result;
}

/* All ranks begin with rank 0's parameters, although their seeds give others. The trainer compares
 * the parameters at the end. */
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

static status train_poisoned(const char *way, unsigned rank, unsigned size, int place, float value,
                             status expected)
{
    status result = OK;
    struct run r = {0};
    TRY(run_open(&r, SETTINGS(way), rank, size));
    TRY(run_expect(&r, run_poisoned(&r, place, value, 1), expected, NULL));
    TRY(run_expect_updates(&r, 4));
    if (r.outcome.parameters_sha256[0] == '\0')
        FAIL(ERROR_OTHER, "the outcome has no digest of the parameters");
done:
    run_close(&r);
    return result;
}

static status case_poison(unsigned rank, unsigned size)
{
    status result = OK;
    TRY(train_poisoned("communicator=auto", rank, size, LAST, NAN, ERROR_DIVERGED));
    TRY(train_poisoned("communicator=auto", rank, size, LAST, -INFINITY, ERROR_DIVERGED));
    TRY(train_poisoned("communicator=auto", rank, size, NOTE_LOSS, NAN, ERROR_DIVERGED));
    TRY(train_poisoned("communicator=dummy", rank, size, LAST, NAN, ERROR_DIVERGED));
done:
    return result;
}

/* With on_nonfinite=skip all ranks skip a bad update and continue with the next batch. More than 10
 * in a row end the run. */
static status case_skip(unsigned rank, unsigned size)
{
    status result = OK;
    struct run r = {0};
    static const int places[] = {LAST, NOTE_LOSS};
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
    TRY(run_expect(&r, run_poisoned(&r, NOTE_LOSS, INFINITY, 1000), ERROR_DIVERGED, NULL));
    TRY(run_expect_updates(&r, 4));
    TRY(run_expect_skipped(&r, 11, size));
    run_close(&r);
    /* Many bad updates, but at most 10 in a row. */
    TRY(run_open(&r, SETTINGS("on_nonfinite=skip", "updates=8"), rank, size));
    poison.spares = 11;
    status ended = run_poisoned(&r, LAST, NAN, 1000);
    poison.spares = 0;
    TRY(run_expect(&r, ended, OK, NULL));
    TRY(run_expect_updates(&r, 8));
done:
    run_close(&r);
    return result;
}

/* A run that stops within a row of bad updates resumes within it: after 6 skipped updates, 5 more
 * are too many. */
static status case_skip_resumed(unsigned rank, unsigned size)
{
    status result = OK;
    struct run begun = {0}, rest = {0};
    const char *const *settings = SETTINGS("on_nonfinite=skip", "checkpoint=x");
    TRY(run_open(&begun, settings, rank, size));
    poison.stop = &begun.seen.stop;
    poison.stop_at = 9; /* the next exchange tells all ranks */
    status ended = run_poisoned(&begun, LAST, NAN, 1000);
    poison.stop_at = 0;
    TRY(run_expect(&begun, ended, STOPPED, NULL));
    TRY(run_open(&rest, settings, rank, size));
    rest.start = &begun.seen.kept;
    TRY(run_expect(&rest, run_poisoned_from(&rest, 1, LAST, NAN, 1000), ERROR_DIVERGED, NULL));
    TRY(run_expect_skipped(&rest, 11, size));
done:
    run_close(&rest);
    run_close(&begun);
    return result;
}

/* Rank 1 receives another mean than the other ranks. `updates`: the number in the message. */
static status train_with_another_mean(const char *more, const char *updates, unsigned rank,
                                      unsigned size)
{
    status result = OK;
    struct run r = {0};
    TRY(run_open(&r, SETTINGS("verify_every=3", more), rank, size));
    poison.after = true;
    status ended = run_poisoned(&r, LAST, 1, 1);
    poison.after = false;
    TRY(run_expect(&r, ended, ERROR_OTHER, "rank 1"));
    if (strstr(error_message(), updates) == NULL)
        FAIL(ERROR_OTHER, "'%s' does not name update%s", error_message(), updates);
done:
    run_close(&r);
    return result;
}

/* Its parameters differ from update 5 on; verify_every=3 detects that after update 6. */
static status case_verify(unsigned rank, unsigned size)
{
    return train_with_another_mean("communicator=mpi", " 6 ", rank, size);
}

/* With local_steps ranks are equal only after an averaging, so verify_every is checked there. The
 * fifth averaging, after update 40, is the changed one. */
static status case_verify_local(unsigned rank, unsigned size)
{
    return train_with_another_mean("local_steps=8", " 40 ", rank, size);
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

/* Settings that exclude each other are refused before training. */
static status case_refused(unsigned rank, unsigned size)
{
    status result = OK;
    struct run r = {0};
    static const struct {
        const char *settings[4]; /* the first two exclude each other */
    } known[] = {
        {{"delay=3", "local_steps=2"}},
        {{"on_nonfinite=skip", "local_steps=2"}},
        {{"overlap=yes", "local_steps=2"}},
        {{"overlap=yes", "decay=batch"}},
        {{"decay=batch", "local_steps=2"}},
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

/* With an exchange on GPUs, as NCCL's, settings that need host memory are refused. */
static status case_refused_on_device(unsigned rank, unsigned size)
{
    status result = OK;
    struct run r = {0};
    static const char *const settings[] = {"delay=2", "optimizer=adamw", "local_steps=2"};
    for (size_t i = 0; i < COUNT_OF(settings); i++) {
        replica *made = NULL;
        TRY(run_open(&r, SETTINGS("device=cuda", "communicator=mpi", settings[i]), rank, size));
        const struct communicator_kind *real = r.communicator->kind;
        struct communicator_kind on_gpu = *real;
        on_gpu.about.name = "nccl";
        on_gpu.on_device = true;
        r.communicator->kind = &on_gpu;
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
    {"skip resumed", case_skip_resumed},
    {"verify", case_verify},
    {"verify local", case_verify_local},
    {"refused", case_refused},
    {"refused on device", case_refused_on_device},
    {NULL, NULL},
};

/* ---- tests --------------------------------------------------------------------------------------
 */

static void a_resumed_run_ends_with_the_same_bits(void **state UNUSED)
{
    sync_rig_expect_ok(1, "resume");
    sync_rig_expect_ok(3, "resume");
}

static void the_own_state_of_each_rank_is_resumed(void **state UNUSED)
{
    sync_rig_expect_ok(2, "resume own");
    sync_rig_expect_ok(3, "resume own");
}

static void skipped_updates_of_grown_batches_are_resumed(void **state UNUSED)
{
    sync_rig_expect_ok(2, "resume grown");
}

static void settings_that_exclude_each_other_are_refused(void **state UNUSED)
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

static void all_ranks_skip_a_bad_update(void **state UNUSED)
{
    sync_rig_expect_ok(2, "skip");
    sync_rig_expect_ok(2, "skip resumed");
}

static void a_replica_with_other_parameters_is_named(void **state UNUSED)
{
    sync_rig_expect_ok(3, "verify");
    sync_rig_expect_ok(2, "verify local");
}

static void one_bad_gradient_ends_all_ranks_and_keeps_their_parameters(void **state UNUSED)
{
    sync_rig_expect_ok(3, "poison");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_resumed_run_ends_with_the_same_bits),
        cmocka_unit_test(the_own_state_of_each_rank_is_resumed),
        cmocka_unit_test(skipped_updates_of_grown_batches_are_resumed),
        cmocka_unit_test(settings_that_exclude_each_other_are_refused),
        cmocka_unit_test(all_ranks_begin_with_rank_0s_parameters),
        cmocka_unit_test(one_bad_gradient_ends_all_ranks_and_keeps_their_parameters),
        cmocka_unit_test(all_ranks_skip_a_bad_update),
        cmocka_unit_test(a_replica_with_other_parameters_is_named),
    };
    int code;
    if (sync_rig_is_rank(argc, argv, CASES, &code))
        return code;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
