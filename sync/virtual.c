/* virtual.c — see virtual.h. Beside it: trainer.c, one rank of a real run. */
#include "sync/virtual.h"

#include "sync/apart.h"
#include "worker/optimizer.h"
#include "worker/schedule.h"

#include <math.h>
#include <string.h>

enum { PROGRESS_MS = 250 };
static const double SMOOTHING = 0.1; /* weight of a new loss in the loss that is shown */

/* What a rank has of its own while they are apart (apart.h). */
struct rank_apart {
    optimizer *optimizer;
    float *parameters[2];
    unsigned current;
};

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
    struct apart apart;
    struct rank_apart *ranks; /* [ranks]; NULL: they never are */
    bool is_apart, been_apart;
    float *own;            /* decay=batch: one rank's sum */
    struct pool_job *jobs; /* [window]: rank r's is r mod window */
    unsigned window;
    uint64_t *compute_ns; /* [ranks] of the update under way */
    float *losses;        /* [ranks] */
    uint64_t *since_ns;   /* [ranks] computed since the last barrier */
    uint64_t now_ns, updates, batches, samples;
    uint64_t opened_ns, next_progress_ns, checkpoint_samples, next_checkpoint;
    bool records_steps, checkpoints;
    double loss_sum, smooth_loss, test_accuracy;
    uint64_t loss_count;
};

static status open_optimizer(const struct virtual_ranks *v, optimizer **out)
{
    status result = OK;
    struct optimizer_layers layers = worker_layers(worker_pool_own(v->o->pool));
    TRY(optimizer_open(out, v->o->settings, v->count));
    TRY(optimizer_set_layers(*out, &layers));
done:
    return result;
}

static status open_apart(struct virtual_ranks *v)
{
    status result = OK;
    if (v->schedule.largest_growth > 1)
        TRY(memory_new(&v->own, v->count, sizeof(float), "a rank's gradient"));
    if (v->apart.steps == 1)
        return OK;
    TRY(memory_new(&v->ranks, v->o->ranks, sizeof *v->ranks, "ranks"));
    for (unsigned rank = 0; rank < v->o->ranks; rank++) {
        struct rank_apart *r = &v->ranks[rank];
        TRY(open_optimizer(v, &r->optimizer));
        for (unsigned i = 0; i < 2; i++)
            TRY(memory_new(&r->parameters[i], v->count, sizeof(float), "a rank's parameters"));
    }
done:
    return result;
}

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
    v->checkpoint_samples = training_checkpoint_every(o->settings, epoch);
    v->next_checkpoint = v->checkpoint_samples;
    TRY(training_length_of(o->settings, epoch, v->update_samples, &v->length));
    TRY(schedule_open(&v->schedule, o->settings, o->ranks, v->length.total_samples, epoch));
    apart_open(&v->apart, o->settings, epoch);
    TRY(open_optimizer(v, &v->optimizer));
    TRY(open_apart(v));
    for (unsigned i = 0; i < 2; i++)
        TRY(memory_new(&v->parameters[i], v->count, sizeof(float), "parameters"));
    TRY(memory_new(&v->mean, v->count, sizeof(float), "the mean gradient"));
    v->window = 2 * worker_pool_threads(o->pool) + 1;
    TRY(memory_new(&v->jobs, v->window, sizeof *v->jobs, "gradients under way"));
    for (unsigned i = 0; i < v->window; i++)
        TRY(memory_new(&v->jobs[i].gradient, v->count, sizeof(float), "a gradient"));
    TRY(memory_new(&v->compute_ns, o->ranks, sizeof *v->compute_ns, "step times"));
    TRY(memory_new(&v->since_ns, o->ranks, sizeof *v->since_ns, "step times"));
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
    for (unsigned rank = 0; v->ranks != NULL && rank < v->o->ranks; rank++) {
        optimizer_close(&v->ranks[rank].optimizer);
        memory_free(v->ranks[rank].parameters[0]);
        memory_free(v->ranks[rank].parameters[1]);
    }
    memory_free(v->ranks);
    memory_free(v->own);
    memory_free(v->since_ns);
    memory_free(v->jobs);
    memory_free(v->parameters[0]);
    memory_free(v->parameters[1]);
    memory_free(v->mean);
    memory_free(v->compute_ns);
    memory_free(v->losses);
    optimizer_close(&v->optimizer);
}

/* ---- one update ---------------------------------------------------------------------------- */

/* Jobs of an update: `batches` of each rank, rank after rank. */
static void submit(struct virtual_ranks *v, uint64_t item, unsigned batches)
{
    struct pool_job *job = &v->jobs[item % v->window];
    job->worker = (unsigned)(item / batches);
    job->batch = v->batches + item % batches;
    job->parameters = v->parameters[v->current];
    if (v->is_apart) {
        const struct rank_apart *r = &v->ranks[item / batches];
        job->parameters = r->parameters[r->current];
    }
    worker_pool_submit(v->o->pool, job);
}

static void add(const struct virtual_ranks *v, float *sum, const float *more, bool first)
{
    if (first) {
        memcpy(sum, more, v->count * sizeof(float));
        return;
    }
    for (size_t i = 0; i < v->count; i++)
        sum[i] += more[i];
}

/* In rank order, as reduce_mean_ordered sums: the same bits without all gradients at once. */
static void take(struct virtual_ranks *v, unsigned rank, unsigned batch, unsigned batches,
                 const float *gradient)
{
    if (batches == 1) {
        add(v, v->mean, gradient, rank == 0);
        return;
    }
    add(v, v->own, gradient, batch == 0);
    if (batch + 1 == batches) {
        vector_multiply(v->count, 1.0f / (float)batches, v->own, v->own);
        add(v, v->mean, v->own, rank == 0);
    }
}

static status step_of_rank(struct virtual_ranks *v, unsigned rank, const float *gradient);

static status gather(struct virtual_ranks *v, unsigned batches, float *mean_loss)
{
    status result = OK;
    const unsigned ranks = v->o->ranks, ahead = v->window - 1;
    const uint64_t items = (uint64_t)ranks * batches;
    float loss = 0;
    for (uint64_t item = 0; item < ahead && item < items; item++)
        submit(v, item, batches);
    for (uint64_t item = 0; item < items; item++) {
        const unsigned rank = (unsigned)(item / batches), batch = (unsigned)(item % batches);
        if (item + ahead < items)
            submit(v, item + ahead, batches);
        struct pool_job *job = &v->jobs[item % v->window];
        TRY(worker_pool_finish(v->o->pool, job));
        if (v->is_apart)
            TRY(step_of_rank(v, rank, job->gradient));
        else
            take(v, rank, batch, batches, job->gradient);
        v->losses[rank] = (batch == 0 ? 0 : v->losses[rank]) + job->stats.loss / (float)batches;
        loss += job->stats.loss / (float)batches;
    }
    *mean_loss = loss / (float)ranks;
done:
    return result;
}

/* The barrier, and the allreduces after it, of so many vectors; what each rank's step and wait
 * were. Ranks that are apart do not wait: only the last of their steps has a barrier (0 vectors:
 * none). */
static void pass_time(struct virtual_ranks *v, unsigned batches, size_t vectors)
{
    const unsigned ranks = v->o->ranks;
    const bool exchanges = vectors > 0;
    uint64_t slowest = 0;
    uint64_t exchange =
        vectors * cluster_allreduce_ns(&v->cluster, ranks, v->count * sizeof(float));
    for (unsigned rank = 0; rank < ranks; rank++) {
        v->compute_ns[rank] = 0;
        for (unsigned i = 0; i < batches; i++)
            v->compute_ns[rank] += cluster_step_ns(&v->cluster, rank, v->batches + i);
        v->since_ns[rank] += v->compute_ns[rank];
        slowest = v->since_ns[rank] > slowest ? v->since_ns[rank] : slowest;
    }
    v->now_ns += exchanges ? slowest + exchange : 0;
    for (unsigned rank = 0; v->records_steps && rank < ranks; rank++) {
        uint64_t waited = exchanges ? slowest - v->since_ns[rank] + exchange : 0;
        uint64_t ended = v->now_ns + (exchanges ? 0 : v->since_ns[rank]);
        struct step_record row = {.update_version = v->updates + 1,
                                  .worker = rank,
                                  .loss = v->losses[rank],
                                  .compute_us = (double)v->compute_ns[rank] * 1e-3,
                                  .exchange_us = (double)waited * 1e-3,
                                  .data_us = NOT_MEASURED,
                                  .forward_us = NOT_MEASURED,
                                  .backward_us = NOT_MEASURED,
                                  .at_seconds = (double)ended * 1e-9};
        recorder_step(v->o->recorder, &row);
    }
    if (exchanges)
        memset(v->since_ns, 0, ranks * sizeof *v->since_ns);
}

static status update(struct virtual_ranks *v, optimizer *by, unsigned batches, const float *in,
                     const float *gradient, float *out)
{
    status result = OK;
    const uint64_t after = v->samples + batches * v->update_samples;
    struct optimizer_pass pass;
    optimizer_set_epoch(by, schedule_epoch(&v->schedule, v->samples, after));
    optimizer_apply(by, in, gradient, 1.0, schedule_rate(&v->schedule, v->samples, after), NULL,
                    out, &pass);
    if (!pass.finite)
        FAIL(ERROR_DIVERGED,
             "the mean gradient, or its square, is not finite at update %llu: lower lr, or warm up "
             "for longer",
             (unsigned long long)v->updates);
done:
    return result;
}

static void count_update(struct virtual_ranks *v, unsigned batches, float loss)
{
    v->samples += batches * v->update_samples;
    v->batches += batches;
    v->updates++;
    v->loss_sum += loss;
    v->loss_count++;
    v->smooth_loss =
        isnan(v->smooth_loss) ? loss : v->smooth_loss + SMOOTHING * (loss - v->smooth_loss);
}

static status judge(const struct virtual_ranks *v, float loss)
{
    status result = OK;
    if (!isfinite(loss))
        FAIL(ERROR_DIVERGED,
             "the loss is not finite at update %llu: lower lr, or warm up for longer",
             (unsigned long long)v->updates);
done:
    return result;
}

static unsigned batches_left(const struct virtual_ranks *v, unsigned wanted)
{
    return apart_batches_left(v->length.total_samples - v->samples, v->update_samples, wanted);
}

static status step(struct virtual_ranks *v)
{
    status result = OK;
    const unsigned batches = batches_left(v, schedule_growth(&v->schedule, v->samples));
    float loss;
    TRY(gather(v, batches, &loss));
    vector_multiply(v->count, 1.0f / (float)v->o->ranks, v->mean, v->mean);
    pass_time(v, batches, 1);
    TRY(judge(v, loss));
    TRY(update(v, v->optimizer, batches, v->parameters[v->current], v->mean,
               v->parameters[1 - v->current]));
    v->current = 1 - v->current;
    count_update(v, batches, loss);
done:
    return result;
}

/* ---- ranks apart --------------------------------------------------------------------------- */

static status step_of_rank(struct virtual_ranks *v, unsigned rank, const float *gradient)
{
    status result = OK;
    struct rank_apart *r = &v->ranks[rank];
    TRY(update(v, r->optimizer, 1, r->parameters[r->current], gradient,
               r->parameters[1 - r->current]));
    r->current = 1 - r->current;
done:
    return result;
}

/* All go on from what they have in common; after plain steps also from its state. */
static void go_apart(struct virtual_ranks *v)
{
    for (struct rank_apart *r = v->ranks; r < v->ranks + v->o->ranks; r++) {
        memcpy(r->parameters[r->current], v->parameters[v->current], v->count * sizeof(float));
        if (!v->been_apart) {
            optimizer_set_state(r->optimizer, optimizer_state(v->optimizer));
            optimizer_set_updates(r->optimizer, optimizer_updates(v->optimizer));
        }
    }
    v->been_apart = true;
}

static void average_states(struct virtual_ranks *v, size_t at)
{
    for (unsigned rank = 0; rank < v->o->ranks; rank++)
        add(v, v->mean, optimizer_state(v->ranks[rank].optimizer) + at, rank == 0);
    vector_multiply(v->count, 1.0f / (float)v->o->ranks, v->mean, v->mean);
    for (unsigned rank = 0; rank < v->o->ranks; rank++)
        memcpy(optimizer_state_in_place(v->ranks[rank].optimizer) + at, v->mean,
               v->count * sizeof(float));
}

/* The state of the first rank is what a checkpoint shows. */
static void come_together(struct virtual_ranks *v)
{
    const size_t states = optimizer_state_count(v->optimizer);
    for (unsigned rank = 0; rank < v->o->ranks; rank++) {
        const struct rank_apart *r = &v->ranks[rank];
        add(v, v->mean, r->parameters[r->current], rank == 0);
    }
    vector_multiply(v->count, 1.0f / (float)v->o->ranks, v->mean, v->parameters[v->current]);
    for (size_t at = 0; v->apart.momentum == APART_AVERAGE && at < states; at += v->count)
        average_states(v, at);
    for (unsigned rank = 0; v->apart.momentum == APART_RESET && rank < v->o->ranks; rank++)
        if (states > 0)
            memset(optimizer_state_in_place(v->ranks[rank].optimizer), 0, states * sizeof(float));
    optimizer_set_state(v->optimizer, optimizer_state(v->ranks[0].optimizer));
}

static status steps_apart(struct virtual_ranks *v, unsigned steps)
{
    status result = OK;
    const bool averages = v->apart.momentum == APART_AVERAGE;
    const size_t vectors = 1 + (averages ? optimizer_state_count(v->optimizer) / v->count : 0);
    go_apart(v);
    for (unsigned i = 0; i < steps; i++) {
        float loss;
        v->is_apart = true;
        TRY(gather(v, 1, &loss));
        v->is_apart = false;
        pass_time(v, 1, i + 1 == steps ? vectors : 0);
        TRY(judge(v, loss));
        count_update(v, 1, loss);
    }
    come_together(v);
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
        .test_accuracy = e.test_accuracy,
        .top_class_share = e.top_class_share,
        .took_seconds = NOT_MEASURED}; /* nothing, by the clock that this run has */
    v->loss_sum = 0;
    v->loss_count = 0;
    v->test_accuracy = e.test_accuracy;
    if (v->o->recorder != NULL)
        recorder_evaluation(v->o->recorder, &row);
done:
    return result;
}

static status checkpoint(struct virtual_ranks *v, bool goes_on)
{
    if (!v->checkpoints)
        return OK;
    const struct training_state now = {.updates = v->updates,
                                       .samples = v->samples,
                                       .seconds = seconds(v),
                                       .parameters = v->parameters[v->current],
                                       .optimizer_state = optimizer_state(v->optimizer),
                                       .optimizer_state_count = optimizer_state_count(v->optimizer),
                                       .goes_on = goes_on};
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
        TRY(checkpoint(v, true));
    }
done:
    return result;
}

/* ---- the run ------------------------------------------------------------------------------- */

static status train(struct virtual_ranks *v)
{
    status result = OK;
    while (v->samples < v->length.total_samples) {
        uint64_t before = v->samples;
        unsigned steps = apart_steps(&v->apart, &v->schedule, v->samples);
        if (training_stop_wanted(&v->o->hooks))
            FAIL(STOPPED, "stopped on request after %llu updates", (unsigned long long)v->updates);
        TRY(steps > 1 ? steps_apart(v, batches_left(v, steps)) : step(v));
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
        status saved = checkpoint(&v, false);
        result = saved != OK ? saved : result;
    }
    outcome_of(&v, out);
done:
    ranks_close(&v);
    return result;
}
