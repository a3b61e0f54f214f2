/* virtual.c — see virtual.h. Beside it: trainer.c, one rank of a real run. */
#include "sync/virtual.h"

#include "worker/optimizer.h"
#include "worker/schedule.h"

#include <math.h>
#include <string.h>

enum { PROGRESS_MS = 250 };
static const double SMOOTHING = 0.1; /* weight of a new loss in the loss that is shown */

struct virtual_ranks {
    const struct sync_virtual_options *o;
    struct cluster cluster;
    size_t count;
    uint64_t update_samples;
    struct training_length length;
    struct schedule schedule;
    optimizer *optimizer;
    float *parameters[2], *mean;
    unsigned current;
    struct pool_job *jobs; /* [window]: rank r's is r mod window */
    unsigned window;
    uint64_t *compute_ns; /* [ranks] of the update under way */
    float *losses;        /* [ranks] */
    uint64_t now_ns, updates, samples;
    uint64_t opened_ns, next_progress_ns, checkpoint_samples, next_checkpoint;
    bool records_steps, checkpoints;
    double loss_sum, smooth_loss, test_accuracy;
    uint64_t loss_count;
};

static status ranks_open(struct virtual_ranks *v, const struct sync_virtual_options *o)
{
    status result = OK;
    worker *own = worker_pool_own(o->pool);
    uint64_t epoch = worker_epoch_samples(own);
    *v = (struct virtual_ranks){.o = o, .smooth_loss = NAN, .test_accuracy = NAN};
    v->opened_ns = clock_ns();
    cluster_open(&v->cluster, o->settings, o->pace);
    v->count = worker_parameter_count(own);
    v->update_samples = (uint64_t)options_integer(o->settings, "batch") * o->ranks;
    v->records_steps =
        o->recorder != NULL && strcmp(options_text(o->settings, "record"), "all") == 0;
    v->checkpoints =
        o->hooks.checkpoint != NULL && options_text(o->settings, "checkpoint")[0] != '\0';
    double every = options_real(o->settings, "checkpoint_every");
    v->checkpoint_samples = every > 0 ? 1 + (uint64_t)(every * (double)epoch) : 0;
    v->next_checkpoint = v->checkpoint_samples;
    TRY(training_length_of(o->settings, epoch, v->update_samples, &v->length));
    TRY(schedule_open(&v->schedule, o->settings, o->ranks, v->length.total_samples, epoch));
    struct optimizer_layers layers = worker_layers(own);
    TRY(optimizer_open(&v->optimizer, o->settings, v->count));
    TRY(optimizer_set_layers(v->optimizer, &layers));
    for (unsigned i = 0; i < 2; i++)
        TRY(memory_new(&v->parameters[i], v->count, sizeof(float), "parameters"));
    TRY(memory_new(&v->mean, v->count, sizeof(float), "the mean gradient"));
    v->window = 2 * worker_pool_threads(o->pool) + 1;
    TRY(memory_new(&v->jobs, v->window, sizeof *v->jobs, "gradients under way"));
    for (unsigned i = 0; i < v->window; i++)
        TRY(memory_new(&v->jobs[i].gradient, v->count, sizeof(float), "a gradient"));
    TRY(memory_new(&v->compute_ns, o->ranks, sizeof *v->compute_ns, "step times"));
    TRY(memory_new(&v->losses, o->ranks, sizeof *v->losses, "losses"));
    TRY(worker_initial_parameters(own, v->parameters[0], v->count));
done:
    return result;
}

static void ranks_close(struct virtual_ranks *v)
{
    for (unsigned i = 0; v->jobs != NULL && i < v->window; i++) {
        worker_pool_cancel(v->o->pool, &v->jobs[i]);
        memory_free(v->jobs[i].gradient);
    }
    memory_free(v->jobs);
    memory_free(v->parameters[0]);
    memory_free(v->parameters[1]);
    memory_free(v->mean);
    memory_free(v->compute_ns);
    memory_free(v->losses);
    optimizer_close(&v->optimizer);
}

/* ---- one update ---------------------------------------------------------------------------- */

static void submit(struct virtual_ranks *v, unsigned rank)
{
    struct pool_job *job = &v->jobs[rank % v->window];
    job->worker = rank;
    job->batch = v->updates;
    job->parameters = v->parameters[v->current];
    worker_pool_submit(v->o->pool, job);
}

/* In rank order, as reduce_mean_ordered sums: the same bits without all gradients at once. */
static void add(struct virtual_ranks *v, const float *gradient, bool first)
{
    if (first) {
        memcpy(v->mean, gradient, v->count * sizeof(float));
        return;
    }
    for (size_t i = 0; i < v->count; i++)
        v->mean[i] += gradient[i];
}

static status gather(struct virtual_ranks *v, float *mean_loss)
{
    status result = OK;
    const unsigned ranks = v->o->ranks, ahead = v->window - 1;
    const float factor = 1.0f / (float)ranks;
    float loss = 0;
    for (unsigned rank = 0; rank < ahead && rank < ranks; rank++)
        submit(v, rank);
    for (unsigned rank = 0; rank < ranks; rank++) {
        if (rank + ahead < ranks)
            submit(v, rank + ahead);
        struct pool_job *job = &v->jobs[rank % v->window];
        TRY(worker_pool_finish(v->o->pool, job));
        add(v, job->gradient, rank == 0);
        v->losses[rank] = job->stats.loss;
        loss = rank == 0 ? job->stats.loss : loss + job->stats.loss;
    }
    vector_multiply(v->count, factor, v->mean, v->mean);
    *mean_loss = loss * factor;
done:
    return result;
}

/* The barrier, and the allreduce after it; what each rank's step and wait were. */
static void pass_time(struct virtual_ranks *v)
{
    const unsigned ranks = v->o->ranks;
    uint64_t slowest = 0;
    uint64_t exchange = cluster_allreduce_ns(&v->cluster, ranks, v->count * sizeof(float));
    for (unsigned rank = 0; rank < ranks; rank++) {
        v->compute_ns[rank] = cluster_step_ns(&v->cluster, rank, v->updates);
        slowest = v->compute_ns[rank] > slowest ? v->compute_ns[rank] : slowest;
    }
    v->now_ns += slowest + exchange;
    for (unsigned rank = 0; v->records_steps && rank < ranks; rank++) {
        uint64_t waited = slowest - v->compute_ns[rank] + exchange;
        struct step_record row = {.update_version = v->updates + 1,
                                  .worker = rank,
                                  .loss = v->losses[rank],
                                  .compute_us = (double)v->compute_ns[rank] * 1e-3,
                                  .exchange_us = (double)waited * 1e-3,
                                  .data_us = NOT_MEASURED,
                                  .forward_us = NOT_MEASURED,
                                  .backward_us = NOT_MEASURED,
                                  .at_seconds = (double)v->now_ns * 1e-9};
        recorder_step(v->o->recorder, &row);
    }
}

static status apply(struct virtual_ranks *v, float loss)
{
    status result = OK;
    uint64_t after = v->samples + v->update_samples;
    struct optimizer_pass pass;
    if (!isfinite(loss))
        FAIL(ERROR_DIVERGED,
             "the loss is not finite at update %llu: lower lr, or warm up for longer",
             (unsigned long long)v->updates);
    optimizer_set_epoch(v->optimizer, schedule_epoch(&v->schedule, v->samples, after));
    optimizer_apply(v->optimizer, v->parameters[v->current], v->mean, 1.0,
                    schedule_rate(&v->schedule, v->samples, after), NULL,
                    v->parameters[1 - v->current], &pass);
    if (!pass.finite)
        FAIL(ERROR_DIVERGED,
             "the mean gradient is not finite at update %llu: lower lr, or warm up for longer",
             (unsigned long long)v->updates);
    v->current = 1 - v->current;
    v->samples = after;
    v->updates++;
    v->loss_sum += loss;
    v->loss_count++;
    v->smooth_loss =
        isnan(v->smooth_loss) ? loss : v->smooth_loss + SMOOTHING * (loss - v->smooth_loss);
done:
    return result;
}

/* ---- what is told -------------------------------------------------------------------------- */

static double seconds(const struct virtual_ranks *v)
{
    return (double)v->now_ns * 1e-9;
}

static status evaluate(struct virtual_ranks *v)
{
    status result = OK;
    const struct training_hooks *hooks = &v->o->hooks;
    struct evaluation e;
    TRY(hooks->evaluate(hooks->context, v->parameters[v->current], &e));
    struct evaluation_record row = {
        .updates = v->updates,
        .samples = v->samples,
        .seconds = seconds(v),
        .train_loss = v->loss_count > 0 ? v->loss_sum / (double)v->loss_count : NOT_MEASURED,
        .validation_loss = e.validation_loss,
        .validation_accuracy = e.validation_accuracy,
        .test_loss = e.test_loss,
        .test_accuracy = e.test_accuracy};
    v->loss_sum = 0;
    v->loss_count = 0;
    v->test_accuracy = e.test_accuracy;
    if (v->o->recorder != NULL)
        recorder_evaluation(v->o->recorder, &row);
done:
    return result;
}

static status checkpoint(struct virtual_ranks *v)
{
    if (!v->checkpoints)
        return OK;
    const struct training_state now = {.updates = v->updates,
                                       .samples = v->samples,
                                       .seconds = seconds(v),
                                       .parameters = v->parameters[v->current],
                                       .optimizer_state = optimizer_state(v->optimizer),
                                       .optimizer_state_count =
                                           optimizer_state_count(v->optimizer)};
    return v->o->hooks.checkpoint(v->o->hooks.context, &now);
}

/* On the host's clock: who waits wants to know how long. */
static void show_progress(struct virtual_ranks *v)
{
    uint64_t now = clock_ns();
    if (v->o->hooks.progress == NULL || now < v->next_progress_ns)
        return;
    v->next_progress_ns = now + PROGRESS_MS * 1000000ULL;
    struct training_progress p = {.updates = v->updates,
                                  .samples_used = v->samples,
                                  .total_samples = v->length.total_samples,
                                  .seconds = (double)(now - v->opened_ns) * 1e-9,
                                  .loss = v->smooth_loss,
                                  .test_accuracy = v->test_accuracy};
    v->o->hooks.progress(v->o->hooks.context, &p);
}

static status tell(struct virtual_ranks *v, uint64_t before)
{
    status result = OK;
    const uint64_t every = v->length.evaluate_every;
    bool last = v->samples >= v->length.total_samples;
    show_progress(v);
    if (last || (every > 0 && before / every < v->samples / every))
        TRY(evaluate(v));
    if (v->checkpoint_samples > 0 && !last && v->samples >= v->next_checkpoint) {
        while (v->next_checkpoint <= v->samples)
            v->next_checkpoint += v->checkpoint_samples;
        TRY(checkpoint(v));
    }
done:
    return result;
}

/* ---- the run ------------------------------------------------------------------------------- */

static status train(struct virtual_ranks *v)
{
    status result = OK;
    const volatile sig_atomic_t *stop = v->o->hooks.stop;
    while (v->samples < v->length.total_samples) {
        uint64_t before = v->samples;
        float loss;
        if (stop != NULL && *stop != 0)
            FAIL(STOPPED, "stopped on request after %llu updates", (unsigned long long)v->updates);
        TRY(gather(v, &loss));
        pass_time(v);
        TRY(apply(v, loss));
        TRY(tell(v, before));
    }
done:
    return result;
}

static void outcome_of(const struct virtual_ranks *v, struct training_outcome *out)
{
    struct sha256 digest;
    out->updates = v->updates;
    out->samples_used = out->samples_computed = v->samples;
    out->train_seconds = seconds(v);
    sha256_begin(&digest);
    sha256_add(&digest, v->parameters[v->current], v->count * sizeof(float));
    sha256_end(&digest, out->parameters_sha256);
}

status sync_virtual_run(const struct sync_virtual_options *o, struct training_outcome *out)
{
    status result = OK;
    struct virtual_ranks v;
    *out = (struct training_outcome){0};
    TRY(ranks_open(&v, o));
    result = train(&v);
    if (result == OK || result == STOPPED) {
        status saved = checkpoint(&v);
        result = saved != OK ? saved : result;
    }
    outcome_of(&v, out);
done:
    ranks_close(&v);
    return result;
}
