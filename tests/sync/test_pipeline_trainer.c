/*
 * test_pipeline_trainer.c — a pipeline without flushes compared with its definition, computed with
 * whole models in one process. Pipelines as processes: test_process_pipeline.c.
 */
#include "base/memory.h"
#include "base/sha256.h"
#include "sync/pipeline/pipeline.h"
#include "tests/sync/sync_rig.h"
#include "worker/optimizer/optimizer.h"
#include "worker/optimizer/schedule.h"
#include "worker/model/stage.h"

#include <setjmp.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

enum { UPDATES = 9, REPLICAS_MOST = 2 };

/* The parameters after every update, and buffers. */
struct mirror {
    worker *worker[REPLICAS_MOST];
    float *theta[UPDATES + 1], *mixed, *gradient[REPLICAS_MOST];
    optimizer *optimizer;
    size_t count;
};

static status mirror_open(struct mirror *m, const options *o, unsigned replicas)
{
    status result = OK;
    for (unsigned r = 0; r < replicas; r++) {
        TRY(worker_open(&m->worker[r],
                        &(struct worker_options){.settings = o, .index = r, .count = replicas}));
        m->count = worker_parameter_count(m->worker[r]);
        TRY(memory_new(&m->gradient[r], m->count, sizeof(float), "test"));
    }
    TRY(memory_new(&m->mixed, m->count, sizeof(float), "test"));
    for (unsigned n = 0; n <= UPDATES; n++)
        TRY(memory_new(&m->theta[n], m->count, sizeof(float), "test"));
    TRY(worker_initial_parameters(m->worker[0], m->theta[0], m->count));
    TRY(optimizer_open(&m->optimizer, o, m->count));
done:
    return result;
}

static void mirror_close(struct mirror *m)
{
    for (unsigned r = 0; r < REPLICAS_MOST; r++) {
        worker_close(&m->worker[r]);
        memory_free(m->gradient[r]);
    }
    memory_free(m->mixed);
    for (unsigned n = 0; n <= UPDATES; n++)
        memory_free(m->theta[n]);
    optimizer_close(&m->optimizer);
}

/* Update n: forward and backward of stage k read its weights of K − 1 − k updates before. The
 * update is applied to the newest weights. */
static status mirror_update(struct mirror *m, const struct stage_plan *plan, unsigned replicas,
                            unsigned n, double lr)
{
    status result = OK;
    struct optimizer_pass pass;
    for (unsigned k = 0; k < plan->stages; k++) {
        const struct stage_part *part = &plan->part[k];
        const unsigned late = plan->stages - 1 - k, read = n > late ? n - late : 0;
        memcpy(m->mixed + part->offset, m->theta[read] + part->offset, part->count * sizeof(float));
    }
    for (unsigned r = 0; r < replicas; r++) {
        struct step_stats stats;
        TRY(worker_gradient(m->worker[r], m->mixed, n, m->gradient[r], &stats));
    }
    reduce_mean_ordered((const float *const *)m->gradient, replicas, m->count, m->gradient[0]);
    optimizer_apply(m->optimizer, m->theta[n], m->gradient[0], 1, lr, NULL, m->theta[n + 1], &pass);
done:
    return result;
}

static status mirror_train(const options *o, unsigned stages, unsigned replicas, char hex[65])
{
    status result = OK;
    struct mirror m = {0};
    struct schedule schedule;
    struct stage_plan plan;
    struct sha256 digest;
    unsigned chosen[STAGE_MOST];
    const uint64_t used = 10 * (uint64_t)replicas;
    TRY(mirror_open(&m, o, replicas));
    TRY(stage_cuts_choose(o, stages, 10, chosen));
    TRY(stage_plan_make(&plan, o, stages, chosen));
    TRY(schedule_open(&schedule, o, replicas, UPDATES * used, worker_epoch_samples(m.worker[0])));
    for (unsigned n = 0; n < UPDATES; n++)
        TRY(mirror_update(&m, &plan, replicas, n,
                          schedule_rate(&schedule, n * used, (n + 1) * used)));
    sha256_begin(&digest);
    sha256_add(&digest, m.theta[UPDATES], m.count * sizeof(float));
    sha256_end(&digest, hex);
done:
    mirror_close(&m);
    return result;
}

static status settings_of(options **o, unsigned stages, unsigned ranks)
{
    status result = OK;
    char number[2][16];
    snprintf(number[0], sizeof number[0], "%u", ranks);
    snprintf(number[1], sizeof number[1], "%u", stages);
    TRY(sync_rig_training(o, (const char *const[]){"model=mlp", "updates=9", NULL}));
    TRY(sync_rig_set(*o, "workers", number[0]));
    TRY(sync_rig_set(*o, "stages", number[1]));
    TRY(sync_rig_set(*o, "stage_cuts", stages == 3 ? "fc2,fc3" : "fc3"));
done:
    return result;
}

static status compare(unsigned stages, const char *recompute, unsigned rank, unsigned size)
{
    status result = OK;
    options *o = NULL;
    worker *w = NULL;
    communicator *c = NULL;
    struct training_outcome outcome;
    char hex[65];
    TRY(settings_of(&o, stages, size));
    TRY(sync_rig_set(o, "recompute", recompute));
    TRY(worker_open(&w, &(struct worker_options){.settings = o, .index = rank, .count = size}));
    TRY(communicator_open(&c, o, worker_parameter_count(w), NULL));
    struct sync_trainer_options how = {.settings = o, .worker = w, .communicator = c};
    TRY(pipeline_trainer_run(&how, &outcome));
    if (rank == 0) {
        TRY(mirror_train(o, stages, size / stages, hex));
        if (outcome.updates != UPDATES || strcmp(hex, outcome.parameters_sha256) != 0)
            FAIL(ERROR_OTHER, "%s after %llu updates, not %s", outcome.parameters_sha256,
                 (unsigned long long)outcome.updates, hex);
    }
done:
    communicator_close(&c);
    worker_close(&w);
    options_close(&o);
    return result;
}

static status case_stages(unsigned rank, unsigned size)
{
    return compare(3, "false", rank, size);
}

/* With recompute the first stage reads its stashed weights also in the backward. */
static status case_recomputing(unsigned rank, unsigned size)
{
    return compare(3, "true", rank, size);
}

static status case_replicas(unsigned rank, unsigned size)
{
    return compare(2, "false", rank, size);
}

struct saved { /* the last checkpoint */
    uint64_t updates;
    unsigned count;
};

static status on_checkpoint(void *context, const struct training_state *now)
{
    struct saved *s = context;
    s->count++;
    s->updates = now->updates;
    return OK;
}

/* The rate is so high that the loss is soon not finite. Rank 0 writes a checkpoint after each
 * update before that. */
static status case_diverges(unsigned rank, unsigned size)
{
    status result = OK;
    options *o = NULL;
    worker *w = NULL;
    communicator *c = NULL;
    struct training_outcome outcome;
    struct saved saved = {0};
    TRY(settings_of(&o, 3, size));
    TRY(sync_rig_set(o, "lr", "1e6"));
    TRY(sync_rig_set(o, "checkpoint", "x"));
    TRY(sync_rig_set(o, "checkpoint_every", "0.0001"));
    TRY(worker_open(&w, &(struct worker_options){.settings = o, .index = rank, .count = size}));
    TRY(communicator_open(&c, o, worker_parameter_count(w), NULL));
    struct sync_trainer_options how = {.settings = o, .worker = w, .communicator = c};
    if (rank == 0)
        how.hooks = (struct training_hooks){.context = &saved, .checkpoint = on_checkpoint};
    const status ended = pipeline_trainer_run(&how, &outcome);
    if (ended != ERROR_DIVERGED || (rank == 0 && saved.count == 0))
        FAIL(ERROR_OTHER, "%s, %u checkpoints", status_name(ended), saved.count);
    if (saved.updates > outcome.updates)
        FAIL(ERROR_OTHER, "a checkpoint after %llu updates, but the run made %llu",
             (unsigned long long)saved.updates, (unsigned long long)outcome.updates);
done:
    communicator_close(&c);
    worker_close(&w);
    options_close(&o);
    return result;
}

static const struct sync_case CASES[] = {
    {"stages", case_stages},
    {"recomputing", case_recomputing},
    {"replicas", case_replicas},
    {"diverges", case_diverges},
    {NULL, NULL},
};

/* ---- tests --------------------------------------------------------------------------------------
 */

static void a_backward_reads_the_weights_of_its_forward(void **state UNUSED)
{
    sync_rig_expect_ok(3, "stages");
    sync_rig_expect_ok(3, "recomputing");
    sync_rig_expect_ok(4, "replicas");
}

static void a_pipeline_that_diverges_keeps_its_last_checkpoint(void **state UNUSED)
{
    sync_rig_expect_ok(3, "diverges");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_backward_reads_the_weights_of_its_forward),
        cmocka_unit_test(a_pipeline_that_diverges_keeps_its_last_checkpoint),
    };
    int code;
    if (sync_rig_is_rank(argc, argv, CASES, &code))
        return code;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
