/*
 * test_sync_steady.c — synchronous runs that are broken off, that begin unlike, or whose numbers go
 * wrong on one rank.
 */
#include "tests/trainer_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

/* What a broken run had at its checkpoint, rank 0 alone, is all that a new one needs. */
static status resume(const char *with, unsigned rank, unsigned size)
{
    status result = OK;
    struct run whole = {0}, rest = {0};
    const char *const settings[] = {with, "checkpoint=x", "checkpoint_every=0.4", "schedule=linear",
                                    NULL};
    TRY(run_open(&whole, settings, rank, size));
    TRY(run_train(&whole));
    TRY(run_open(&rest, settings, rank, size));
    rest.start = &whole.seen.kept;
    TRY(run_train(&rest));
    if (strcmp(whole.outcome.parameters_sha256, rest.outcome.parameters_sha256) != 0)
        FAIL(ERROR_OTHER, "%s: gone on from update %llu it ends with other parameters", with,
             (unsigned long long)whole.seen.kept.updates);
    if (rest.outcome.updates != whole.outcome.updates ||
        rest.outcome.samples_used != whole.outcome.samples_used ||
        (rank == 0 && rest.seen.checkpoints + 1 != whole.seen.checkpoints))
        FAIL(ERROR_OTHER, "%s: %llu updates, not %llu", with,
             (unsigned long long)rest.outcome.updates, (unsigned long long)whole.outcome.updates);
    if (rank == 0 && whole.seen.kept.updates == 0)
        FAIL(ERROR_OTHER, "it began at the beginning");
done:
    run_close(&rest);
    run_close(&whole);
    return result;
}

static status case_resume(unsigned rank, unsigned size)
{
    status result = OK;
    static const char *const optimizers[] = {"optimizer=sgd", "optimizer=momentum",
                                             "optimizer=adamw"};
    for (size_t i = 0; i < COUNT_OF(optimizers); i++)
        TRY(resume(optimizers[i], rank, size));
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

/* Poisons what rank 1 hands in, or is handed, at the fifth exchange and those that follow. */
static struct {
    const struct communicator_kind *real;
    unsigned exchanges, times;
    size_t at; /* which element */
    float value;
    bool after;
} poison;

static status poisoned_mean(communicator *c, float *data, size_t count)
{
    status result = OK;
    poison.exchanges++;
    bool now = c->rank == 1 && poison.exchanges >= 5 && poison.exchanges < 5 + poison.times;
    if (now && !poison.after)
        data[poison.at] = poison.value;
    TRY(poison.real->allreduce_mean(c, data, count));
    if (now && poison.after)
        data[poison.at] = poison.value;
done:
    return result;
}

static status run_poisoned(struct run *r, size_t from_end, float value, unsigned times)
{
    struct communicator_kind kind = *r->communicator->kind;
    poison.real = r->communicator->kind;
    poison.exchanges = 0;
    poison.times = times;
    poison.at = worker_parameter_count(r->worker) + COMMUNICATOR_NOTES - from_end;
    poison.value = value;
    kind.allreduce_mean = poisoned_mean;
    r->communicator->kind = &kind;
    status ended = run_train(r);
    r->communicator->kind = poison.real;
    return ended;
}

static status train_poisoned(unsigned rank, unsigned size, size_t from_end, float value,
                             status expected)
{
    status result = OK;
    struct run r = {0};
    TRY(run_open(&r, SETTINGS("communicator=auto"), rank, size));
    status ended = run_poisoned(&r, from_end, value, 1);
    if (ended != expected || r.outcome.updates != 4 || r.outcome.parameters_sha256[0] == '\0')
        FAIL(ERROR_OTHER, "ended as %s after %llu updates: %s", status_name(ended),
             (unsigned long long)r.outcome.updates, error_message());
done:
    run_close(&r);
    return result;
}

/* Elements from the end: 5 the last of the gradient, 4 the loss, 3 the flag of failure. */
static status case_poison(unsigned rank, unsigned size)
{
    status result = OK;
    TRY(train_poisoned(rank, size, 5, NAN, ERROR_DIVERGED));
    TRY(train_poisoned(rank, size, 5, -INFINITY, ERROR_DIVERGED));
    TRY(train_poisoned(rank, size, 4, NAN, ERROR_DIVERGED));
    TRY(train_poisoned(rank, size, 3, 1, ERROR_PEER));
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
        if (r.outcome.updates != 20 || r.outcome.samples_used != 20 * batch ||
            r.outcome.samples_computed != 23 * batch)
            FAIL(ERROR_OTHER, "%llu updates", (unsigned long long)r.outcome.updates);
        run_close(&r);
    }
    TRY(run_open(&r, SETTINGS("on_nonfinite=skip"), rank, size));
    status ended = run_poisoned(&r, 4, INFINITY, 1000);
    if (ended != ERROR_DIVERGED || r.outcome.updates != 4 ||
        strstr(error_message(), "11th time in a row") == NULL)
        FAIL(ERROR_OTHER, "ended as %s: %s", status_name(ended), error_message());
done:
    run_close(&r);
    return result;
}

/* Rank 1 receives another mean than the rest at update 4: its parameters are others from 5 on. */
static status case_verify(unsigned rank, unsigned size)
{
    status result = OK;
    struct run r = {0};
    TRY(run_open(&r, SETTINGS("verify_every=3"), rank, size));
    poison.after = true;
    status ended = run_poisoned(&r, 5, 1, 1);
    poison.after = false;
    if (ended != ERROR_OTHER || r.outcome.updates != 6 ||
        strstr(error_message(), "after 6 updates rank 1 on ") == NULL)
        FAIL(ERROR_PEER, "ended as %s after %llu updates: %s", status_name(ended),
             (unsigned long long)r.outcome.updates, error_message());
done:
    run_close(&r);
    return result;
}

static const struct sync_case CASES[] = {
    {"resume", case_resume}, {"begin", case_begin},   {"poison", case_poison},
    {"skip", case_skip},     {"verify", case_verify}, {NULL, NULL},
};

/* ---- what is expected of them -------------------------------------------------------------------
 */

static void a_broken_run_goes_on_and_ends_with_the_same_bits(void **state UNUSED)
{
    sync_rig_expect_ok(1, "resume");
    sync_rig_expect_ok(3, "resume");
}

static void all_ranks_begin_with_rank_0s_parameters(void **state UNUSED)
{
    sync_rig_expect_ok(3, "begin");
}

static void told_to_all_ranks_leave_a_bad_update_out(void **state UNUSED)
{
    sync_rig_expect_ok(2, "skip");
}

static void a_replica_that_strays_is_named(void **state UNUSED)
{
    sync_rig_expect_ok(3, "verify");
}

static void one_bad_gradient_ends_all_ranks_and_leaves_their_parameters(void **state UNUSED)
{
    sync_rig_expect_ok(3, "poison");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_broken_run_goes_on_and_ends_with_the_same_bits),
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
