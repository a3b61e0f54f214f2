/*
 * test_sync_trainer.c — whole synchronous runs under mpirun: the bits of the parameter server's
 * core, evaluations at their updates, rows of every rank, ends of runs.
 */
#include "base/log.h"
#include "base/memory.h"
#include "base/sha256.h"
#include "ps/core/server_core.h"
#include "tests/sync/trainer_rig.h"
#include "worker/optimizer/optimizer.h"
#include "worker/optimizer/schedule.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the same training by the parameter server's core, in one process ---------------------------
 */

struct sync_trainer_mirror {
    server_core *core;
    unsigned workers, slots[8];
    uint64_t versions[8];
    worker *worker[8];
    float *slot[16], *gradient[8], *initial;
    bool finished;
};

static void mirror_take(struct sync_trainer_mirror *m, struct server_actions actions)
{
    for (size_t i = 0; i < actions.count; i++) {
        const struct server_action *a = &actions.at[i];
        if (a->kind == SERVER_RELEASE) {
            m->slots[a->worker] = a->slot;
            m->versions[a->worker] = a->version;
        } else if (a->kind == SERVER_FINISHED) {
            m->finished = true;
        } else if (a->kind == SERVER_EVALUATE) {
            mirror_take(m, server_core_evaluated(m->core));
            return;
        }
    }
}

static status mirror_open(struct sync_trainer_mirror *m, const options *o, unsigned workers)
{
    status result = OK;
    struct training_length length;
    m->workers = workers;
    for (unsigned w = 0; w < workers; w++)
        TRY(worker_open(&m->worker[w],
                        &(struct worker_options){.settings = o, .index = w, .count = workers}));
    size_t count = worker_parameter_count(m->worker[0]);
    uint64_t epoch = worker_epoch_samples(m->worker[0]);
    for (unsigned i = 0; i < workers + 2; i++)
        TRY(memory_new(&m->slot[i], count, sizeof(float), "test"));
    for (unsigned w = 0; w < workers; w++)
        TRY(memory_new(&m->gradient[w], count, sizeof(float), "test"));
    TRY(memory_new(&m->initial, count, sizeof(float), "test"));
    TRY(worker_initial_parameters(m->worker[0], m->initial, count));
    uint64_t batch = (uint64_t)options_integer(o, "batch");
    TRY(training_length_of(o, epoch, (double)(batch * workers), &length));
    TRY(server_core_open(&m->core,
                         &(struct server_core_options){.settings = o,
                                                       .workers = workers,
                                                       .count = count,
                                                       .slots = m->slot,
                                                       .slot_count = workers + 2,
                                                       .initial = m->initial,
                                                       .epoch_samples = epoch,
                                                       .total_samples = length.total_samples,
                                                       .evaluate_every = length.evaluate_every}));
done:
    return result;
}

static void mirror_close(struct sync_trainer_mirror *m)
{
    server_core_close(&m->core);
    for (unsigned w = 0; w < m->workers; w++) {
        worker_close(&m->worker[w]);
        memory_free(m->gradient[w]);
    }
    for (unsigned i = 0; i < m->workers + 2; i++)
        memory_free(m->slot[i]);
    memory_free(m->initial);
}

/* Trains to the end; hex ← the digest of the parameters. */
static status mirror_train(const options *o, unsigned workers, char hex[65])
{
    status result = OK;
    struct sync_trainer_mirror m = {0};
    struct sha256 digest;
    TRY(mirror_open(&m, o, workers));
    for (unsigned w = 0; w < workers; w++)
        mirror_take(&m, server_core_hello(m.core, w));
    for (uint64_t batch = 0; !m.finished; batch++) {
        for (unsigned w = 0; w < workers && !m.finished; w++) {
            struct step_stats stats;
            struct server_actions actions;
            TRY(worker_gradient(m.worker[w], m.slot[m.slots[w]], batch, m.gradient[w], &stats));
            TRY(server_core_push(m.core,
                                 &(struct server_push){.worker = w,
                                                       .sequence = batch,
                                                       .read_version = m.versions[w],
                                                       .gradient = m.gradient[w],
                                                       .samples = stats.samples,
                                                       .loss = stats.loss},
                                 &actions));
            mirror_take(&m, actions);
        }
    }
    sha256_begin(&digest);
    sha256_add(&digest, m.slot[server_core_latest_slot(m.core)],
               worker_parameter_count(m.worker[0]) * sizeof(float));
    sha256_end(&digest, hex);
done:
    mirror_close(&m);
    return result;
}

/* ---- cases --------------------------------------------------------------------------------------
 */

static status train_and_compare(const char *const *settings, unsigned rank, unsigned size)
{
    status result = OK;
    struct run r = {0};
    char hex[65];
    TRY(run_open(&r, settings, rank, size));
    TRY(run_train(&r));
    if (r.outcome.samples_used != (2000 + 10 * size - 1) / (10 * size) * (10 * size))
        FAIL(ERROR_OTHER, "%llu samples were used", (unsigned long long)r.outcome.samples_used);
    if (rank == 0) {
        TRY(mirror_train(r.settings, size, hex));
        if (strcmp(hex, r.outcome.parameters_sha256) != 0)
            FAIL(ERROR_OTHER, "%s here, %s with the server's core", r.outcome.parameters_sha256,
                 hex);
    }
done:
    run_close(&r);
    return result;
}

static status case_bsp(unsigned rank, unsigned size)
{
    status result = OK;
    TRY(train_and_compare(SETTINGS("communicator=mpi", "reduction=ordered"), rank, size));
    TRY(train_and_compare(SETTINGS("communicator=shared", "evaluate_every=0.3"), rank, size));
    TRY(train_and_compare(SETTINGS("communicator=ring", "reduction=ordered"), rank, size));
    TRY(train_and_compare(SETTINGS("communicator=naive"), rank, size));
    TRY(train_and_compare(SETTINGS("communicator=hierarchical"), rank, size));
    TRY(train_and_compare(
        SETTINGS("communicator=hierarchical", "communicator.nodes=2", "reduction=ordered"), rank,
        size));
done:
    return result;
}

/* The definition of local SGD: every rank trains alone with its own optimizer. After H steps, and
 * at the end, all ranks continue from the mean of the parameters; with local_momentum=reset each
 * has a new optimizer from then on. */
enum { MIRRORED = 4 };
struct local_mirror {
    worker *worker[MIRRORED];
    optimizer *optimizer[MIRRORED];
    float *theta[MIRRORED], *gradient;
    size_t count;
};

static status local_mirror_open(struct local_mirror *m, const options *o, unsigned ranks)
{
    status result = OK;
    REQUIRE(ranks <= MIRRORED);
    for (unsigned r = 0; r < ranks; r++) {
        TRY(worker_open(&m->worker[r],
                        &(struct worker_options){.settings = o, .index = r, .count = ranks}));
        m->count = worker_parameter_count(m->worker[r]);
        TRY(optimizer_open(&m->optimizer[r], o, m->count));
        TRY(memory_new(&m->theta[r], m->count, sizeof(float), "test"));
        TRY(worker_initial_parameters(m->worker[r], m->theta[r], m->count));
    }
    TRY(memory_new(&m->gradient, m->count, sizeof(float), "test"));
done:
    return result;
}

static void local_mirror_close(struct local_mirror *m)
{
    for (unsigned r = 0; r < MIRRORED; r++) {
        worker_close(&m->worker[r]);
        optimizer_close(&m->optimizer[r]);
        memory_free(m->theta[r]);
    }
    memory_free(m->gradient);
}

static status mirror_local(const options *o, unsigned ranks, unsigned steps, char hex[65])
{
    status result = OK;
    struct local_mirror m = {0};
    struct schedule schedule;
    struct sha256 digest;
    const uint64_t used = 10 * (uint64_t)ranks;
    const bool resets = strcmp(options_text(o, "local_momentum"), "reset") == 0;
    TRY(local_mirror_open(&m, o, ranks));
    TRY(schedule_open(&schedule, o, ranks, 2000, worker_epoch_samples(m.worker[0])));
    for (uint64_t k = 0; k * used < 2000; k++) {
        double lr = schedule_rate(&schedule, k * used, (k + 1) * used);
        for (unsigned r = 0; r < ranks; r++) {
            struct step_stats stats;
            struct optimizer_pass pass;
            TRY(worker_gradient(m.worker[r], m.theta[r], k, m.gradient, &stats));
            optimizer_apply(m.optimizer[r], m.theta[r], m.gradient, 1, lr, NULL, m.theta[r], &pass);
        }
        if ((k + 1) % steps != 0 && (k + 1) * used < 2000)
            continue;
        reduce_mean_ordered((const float *const *)m.theta, ranks, m.count, m.gradient);
        for (unsigned r = 0; r < ranks; r++) {
            memcpy(m.theta[r], m.gradient, m.count * sizeof(float));
            if (!resets)
                continue;
            optimizer_close(&m.optimizer[r]);
            TRY(optimizer_open(&m.optimizer[r], o, m.count));
        }
    }
    sha256_begin(&digest);
    sha256_add(&digest, m.theta[0], m.count * sizeof(float));
    sha256_end(&digest, hex);
done:
    local_mirror_close(&m);
    return result;
}

static status train_locally(const char *kind, const char *momentum, unsigned rank, unsigned size)
{
    status result = OK;
    struct run r = {0};
    char hex[65];
    TRY(run_open(&r,
                 SETTINGS("communicator=mpi", "reduction=ordered", "local_steps=8",
                          "evaluate_every=0.25", kind, momentum),
                 rank, size));
    TRY(run_train(&r));
    if (rank == 0) {
        TRY(mirror_local(r.settings, size, 8, hex));
        if (strcmp(hex, r.outcome.parameters_sha256) != 0)
            FAIL(ERROR_OTHER, "%s, %s: %s, not %s", kind, momentum, r.outcome.parameters_sha256,
                 hex);
    }
done:
    run_close(&r);
    return result;
}

static status case_local(unsigned rank, unsigned size)
{
    status result = OK;
    TRY(train_locally("optimizer=momentum", "local_momentum=keep", rank, size));
    TRY(train_locally("optimizer=adamw", "local_momentum=reset", rank, size));
done:
    return result;
}

static status case_asp(unsigned rank, unsigned size)
{
    status result = OK;
    TRY(train_and_compare(SETTINGS("communicator=mpi", "consistency=asp"), rank, size));
    TRY(train_and_compare(SETTINGS("communicator=auto", "consistency=asp"), rank, size));
done:
    return result;
}

/* 3 ranks of 10 samples: updates of 30, 67 of them in an epoch of 2 000. */
static status case_records(unsigned rank, unsigned size)
{
    status result = OK;
    struct run r = {0};
    int64_t id;
    TRY(run_open(&r,
                 SETTINGS("evaluate_every=0.25", "epochs=2", "checkpoint=x", "checkpoint_every=0.5",
                          "communicator=auto"),
                 rank, size));
    if (rank == 0 && rig_make_folder(NULL) == 0)
        r.recorder = rig_begin(&rig_run, &id);
    TRY(run_train(&r));
    if (rank != 0)
        goto done;
    struct run_outcome end = rig_outcome;
    end.updates = r.outcome.updates;
    rig_finish(r.recorder, &end);
    /* Update 17 crosses 500 samples, update 34 crosses 1000, …; the last one, 134, is evaluated
     * once. */
    static const struct fact facts[] = {
        {"SELECT group_concat(updates, ' ') FROM evaluation", "17 34 50 67 84 100 117 134"},
        {"SELECT count(*) FROM step", "402"},
        {"SELECT count(DISTINCT update_version) FROM step", "134"},
        {"SELECT min(update_version) FROM step", "1"},
        {"SELECT min(n) FROM (SELECT count(*) AS n FROM step GROUP BY worker)", "134"},
        {"SELECT count(*) FROM step WHERE loss >= 0 AND compute_us > 0 AND exchange_us > 0 AND "
         "apply_us >= 0", /* whole microseconds; an update of few parameters takes less than one */
         "402"},
        {"SELECT count(*) FROM step WHERE forward_us > 0 AND backward_us > 0 AND data_us >= 0 AND "
         "data_us + forward_us + backward_us <= compute_us + 2", /* each is rounded */
         "402"},
        {"SELECT count(DISTINCT worker || ' ' || loss) > 380 FROM step", "1"},
        {"SELECT abs((SELECT avg(loss) FROM step WHERE update_version <= 17) - (SELECT train_loss "
         "FROM evaluation ORDER BY updates LIMIT 1)) < 1e-5",
         "1"},
    };
    TRY(expect_facts(facts, COUNT_OF(facts)));
    /* All ranks evaluate a part; the result equals that of one rank. */
    char same[256];
    snprintf(same, sizeof same,
             "SELECT test_loss = %.17g AND validation_accuracy = %.17g FROM evaluation ORDER BY "
             "updates DESC LIMIT 1",
             r.seen.evaluation.test_loss, r.seen.evaluation.validation_accuracy);
    if (strcmp(rig_ask(same), "1") != 0)
        FAIL(ERROR_OTHER, "%s: %s", same, rig_ask(same));
    if (r.seen.checkpoints != 4 || r.seen.checkpoint_version[0] != 34 ||
        r.seen.checkpoint_version[3] != 134)
        FAIL(ERROR_OTHER, "%u checkpoints", r.seen.checkpoints);
done:
    if (rank == 0 && rig_folder[0] != '\0' && rig_remove_folder(NULL) != 0)
        log_warning("%s is left behind", rig_folder);
    run_close(&r);
    return result;
}

/* The rows of all updates are recorded, although the run diverges. */
static status case_diverges(unsigned rank, unsigned size)
{
    status result = OK;
    struct run r = {0};
    int64_t id;
    char rows[16];
    TRY(run_open(&r, SETTINGS("communicator=auto", "lr=1e6", "warmup_epochs=0"), rank, size));
    if (rank == 0 && rig_make_folder(NULL) == 0)
        r.recorder = rig_begin(&rig_run, &id);
    TRY(run_expect(&r, run_train(&r), ERROR_DIVERGED, NULL));
    if (rank != 0)
        goto done;
    rig_finish(r.recorder, &rig_outcome);
    snprintf(rows, sizeof rows, "%llu", (unsigned long long)r.outcome.updates * size);
    TRY(expect_facts(&(struct fact){"SELECT nullif(count(*), 0) FROM step", rows}, 1));
done:
    if (rank == 0 && rig_folder[0] != '\0' && rig_remove_folder(NULL) != 0)
        log_warning("%s is left behind", rig_folder);
    run_close(&r);
    return result;
}

/* Ranks have different parameters, the run ends with OK, and a row of `event` records why. */
static status case_dummy(unsigned rank, unsigned size)
{
    status result = OK;
    struct run r = {0};
    char all[8][65];
    int64_t id;
    TRY(run_open(&r, SETTINGS("communicator=dummy"), rank, size));
    if (rank == 0 && rig_make_folder(NULL) == 0)
        r.recorder = rig_begin(&rig_run, &id);
    TRY(run_train(&r));
    TRY(communicator_gather_all(r.communicator, r.outcome.parameters_sha256, sizeof all[0], all));
    if (strcmp(all[0], all[1]) == 0)
        FAIL(ERROR_OTHER, "two ranks that exchanged nothing have the same parameters");
    if (rank != 0)
        goto done;
    struct run_outcome end = rig_outcome;
    rig_finish(r.recorder, &end);
    if (strcmp(rig_ask("SELECT severity FROM event WHERE code = 'no_exchange'"), "warning") != 0)
        FAIL(ERROR_OTHER, "there is no event no_exchange");
done:
    if (rank == 0 && rig_folder[0] != '\0' && rig_remove_folder(NULL) != 0)
        log_warning("%s is left behind", rig_folder);
    run_close(&r);
    return result;
}

/* Rank 0 gets a request to stop at its second checkpoint; all ranks stop after one more update. */
static status case_stop(unsigned rank, unsigned size)
{
    status result = OK;
    struct run r = {.seen.stop_after_checkpoints = 2};
    TRY(run_open(&r, SETTINGS("record=evaluations", "checkpoint=x", "checkpoint_every=0.25"), rank,
                 size));
    TRY(run_expect(&r, run_train(&r), STOPPED, NULL));
    TRY(run_expect_updates(&r, 1000 / (10 * size) + 1));
    if (rank == 0 && r.seen.checkpoints != 3)
        FAIL(ERROR_OTHER, "%u checkpoints", r.seen.checkpoints);
done:
    run_close(&r);
    return result;
}

/* Less than a sample between checkpoints: one after each update. */
static status case_often(unsigned rank, unsigned size)
{
    status result = OK;
    struct run r = {0};
    TRY(run_open(&r, SETTINGS("updates=5", "checkpoint=x", "checkpoint_every=0.0001"), rank, size));
    TRY(run_train(&r));
    if (rank == 0 && r.seen.checkpoints != 5)
        FAIL(ERROR_OTHER, "%u checkpoints", r.seen.checkpoints);
done:
    run_close(&r);
    return result;
}

/* Checkpoints take longer than warn_after_s and shorter than timeout_s. */
static status case_slow(unsigned rank, unsigned size)
{
    status result = OK;
    struct run r = {.seen.checkpoint_ns = 600000000};
    TRY(run_open(&r, SETTINGS("updates=3", "checkpoint=x", "checkpoint_every=0.0001"), rank, size));
    r.communicator->warn_after_s = 0.2;
    TRY(run_train(&r));
    if (r.communicator->warn_after_s != 0.2 || r.communicator->timeout_s != 30)
        FAIL(ERROR_OTHER, "the limits of later waits were changed");
    if (rank == 0 && r.seen.checkpoints != 3)
        FAIL(ERROR_OTHER, "%u checkpoints", r.seen.checkpoints);
done:
    run_close(&r);
    return result;
}

/* ---- on a GPU -----------------------------------------------------------------------------------
 */

/* One rank trains on the device; two ranks exchange in host memory. Both give the bits of the
 * server's core, which updates on the host. */
static status case_device(unsigned rank, unsigned size)
{
    status result = OK;
    TRY(train_and_compare(
        SETTINGS("device=cuda", "communicator=auto", "evaluate_every=0.3", "reduction=ordered"),
        rank, size));
done:
    return result;
}

/* The learning rate is too high: the second update has infinite values. */
static status case_device_diverges(unsigned rank, unsigned size)
{
    status result = OK;
    struct run r = {0};
    TRY(run_open(&r, SETTINGS("device=cuda", "communicator=mpi", "lr=1e6", "warmup_epochs=0"), rank,
                 size));
    TRY(run_expect(&r, run_train(&r), ERROR_DIVERGED, NULL));
    if (r.outcome.updates == 0 || r.outcome.parameters_sha256[0] == '\0')
        FAIL(ERROR_OTHER, "%llu updates", (unsigned long long)r.outcome.updates);
done:
    run_close(&r);
    return result;
}

/* A fault of the GPU ends the run with its own message, not with that of a later error. */
static status case_device_fails(unsigned rank, unsigned size)
{
    status result = OK;
    struct run r = {0};
    TRY(run_open(&r, SETTINGS("device=cuda", "communicator=mpi"), rank, size));
    setenv("GRADLAG_STAND_IN_FAULT", "update", 1);
    status ended = run_train(&r);
    unsetenv("GRADLAG_STAND_IN_FAULT");
    TRY(run_expect(&r, ended, ERROR_OTHER, " update"));
done:
    run_close(&r);
    return result;
}

static const struct sync_case CASES[] = {
    {"bsp", case_bsp},
    {"asp", case_asp},
    {"local", case_local},
    {"records", case_records},
    {"diverges", case_diverges},
    {"dummy", case_dummy},
    {"stop", case_stop},
    {"often", case_often},
    {"slow", case_slow},
    {"device", case_device},
    {"device diverges", case_device_diverges},
    {"device fails", case_device_fails},
    {NULL, NULL},
};

/* ---- tests --------------------------------------------------------------------------------------
 */

static void local_sgd_has_the_bits_of_its_definition(void **state)
{
    (void)state;
    sync_rig_expect_ok(2, "local");
    sync_rig_expect_ok(3, "local");
}

static void ordered_ranks_end_with_the_bits_of_bsp(void **state UNUSED)
{
    sync_rig_expect_ok(2, "bsp");
    sync_rig_expect_ok(3, "bsp");
}

static void one_rank_ends_with_the_bits_of_one_asynchronous_worker(void **state UNUSED)
{
    sync_rig_expect_ok(1, "asp");
}

static void a_run_that_diverges_records_the_rows_of_all_updates(void **state UNUSED)
{
    sync_rig_expect_ok(3, "diverges");
}

static void a_run_without_exchange_records_a_warning(void **state UNUSED)
{
    sync_rig_expect_ok(2, "dummy");
}

static void evaluations_rows_and_checkpoints_are_at_their_updates(void **state UNUSED)
{
    sync_rig_expect_ok(3, "records");
    sync_rig_expect_ok(2, "often");
}

static void a_long_checkpoint_is_logged_once(void **state UNUSED)
{
    static struct sync_run run;
    sync_rig_run(2, "slow", 30, &run);
    if (run.exit_code != 0)
        fail_msg("exit %d:\n%s", run.exit_code, run.output);
    /* Only the limit of long work is 600 s, COMMUNICATOR_PATIENCE × timeout_s. */
    assert_true(sync_rig_lines(&run, "rank 1: warning: ", " 600 s") >= 1);
    assert_int_equal(sync_rig_lines(&run, "rank 1: warning: ", "rank 0 (the checkpoint)"), 1);
}

static void all_ranks_stop_at_the_same_update(void **state UNUSED)
{
    sync_rig_expect_ok(2, "stop");
}

static void a_run_on_the_device_ends_with_the_bits_of_the_servers(void **state UNUSED)
{
#ifndef GRADLAG_CUDA
    skip();
#endif
    sync_rig_expect_ok(1, "device");
    sync_rig_expect_ok(2, "device");
}

static void errors_on_the_device_end_the_run(void **state UNUSED)
{
#ifndef GRADLAG_CUDA
    skip();
#endif
    sync_rig_expect_ok(1, "device diverges");
    sync_rig_expect_ok(1, "device fails");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(local_sgd_has_the_bits_of_its_definition),
        cmocka_unit_test(ordered_ranks_end_with_the_bits_of_bsp),
        cmocka_unit_test(one_rank_ends_with_the_bits_of_one_asynchronous_worker),
        cmocka_unit_test(a_run_that_diverges_records_the_rows_of_all_updates),
        cmocka_unit_test(a_run_without_exchange_records_a_warning),
        cmocka_unit_test(evaluations_rows_and_checkpoints_are_at_their_updates),
        cmocka_unit_test(a_long_checkpoint_is_logged_once),
        cmocka_unit_test(all_ranks_stop_at_the_same_update),
        cmocka_unit_test(a_run_on_the_device_ends_with_the_bits_of_the_servers),
        cmocka_unit_test(errors_on_the_device_end_the_run),
    };
    int code;
    if (sync_rig_is_rank(argc, argv, CASES, &code))
        return code;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
