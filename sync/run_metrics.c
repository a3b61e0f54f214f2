/* run_metrics.c — see run_metrics.h. */
#include "sync/run_metrics.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const double SMOOTHING = 0.02; /* weight of one new loss in the displayed loss */
static const uint64_t PROGRESS_NS = 250000000;
static const double GATHER_S = 1; /* training time between two gathers of step rows, about */

/* Rank 0 limits the number of ranks that evaluate to the processors of its host, because all ranks
 * may share them. */
static status open_evaluation(struct sync_metrics *r)
{
    status result = OK;
    communicator *c = r->c;
    const unsigned processors = communicator_processors(c);

    r->evaluators = c->size < processors ? c->size : processors;
    if (c->kind->exchanges_nothing || r->o->rank0_evaluates)
        r->evaluators = 1; /* other ranks have other parameters */
    TRY(communicator_broadcast(c, &r->evaluators, sizeof r->evaluators, 0));
    r->batches = worker_evaluation_batches(r->o->worker);
    TRY(memory_new(&r->sums, r->batches + 1, sizeof *r->sums, "sums of an evaluation"));
    TRY(memory_new(&r->all_sums, c->size * r->batches + 1, sizeof *r->all_sums,
                   "sums of an evaluation"));
    r->classes = worker_classes(r->o->worker);
    TRY(memory_new(&r->predicted, r->classes, sizeof *r->predicted,
                   "predictions of an evaluation"));
    TRY(memory_new(&r->all_predicted, c->size * r->classes, sizeof *r->all_predicted,
                   "predictions of an evaluation"));
done:
    return result;
}

status sync_metrics_open(struct sync_metrics *r, const struct sync_trainer_options *o,
                         const struct training_length *length, const struct training_state *begin)
{
    status result = OK;
    const options *settings = o->settings;

    *r = (struct sync_metrics){
        .o = o, .c = o->communicator, .length = *length, .smooth_loss = NAN, .test_accuracy = NAN};
    r->samples = begin->samples;
    r->seconds_before = begin->seconds;
    r->loss_sum = begin->loss_sum;
    r->loss_count = begin->loss_count;
    r->smoothing = 1 - pow(1 - SMOOTHING, sync_trainer_ranks(o));
    r->opened_ns = clock_ns();
    r->records_steps = strcmp(options_text(settings, "record"), "all") == 0;
    r->checkpoints = options_text(settings, "checkpoint")[0] != '\0';
    r->checkpoint_every = training_checkpoint_every(settings, worker_epoch_samples(o->worker));
    r->next_checkpoint = r->checkpoint_every;
    while (r->checkpoint_every > 0 && r->next_checkpoint <= r->samples)
        r->next_checkpoint += r->checkpoint_every;
    r->here = sync_trainer_ranks(o) / r->c->size;
    r->rows_most = r->c->size == 1 ? 1 : SYNC_METRICS_ROWS;
    const size_t rows = (size_t)r->rows_most * r->here;
    TRY(memory_new(&r->rows, rows, sizeof *r->rows, "step rows"));
    TRY(memory_new(&r->gathered, r->c->size * rows, sizeof *r->gathered, "step rows"));
    TRY(memory_new(&r->codes, r->c->size, sizeof *r->codes, "outcomes of ranks"));
    TRY(open_evaluation(r));
done:
    return result;
}

void sync_metrics_close(struct sync_metrics *r)
{
    void *const own[] = {r->rows,     r->gathered,  r->codes,        r->sums,
                         r->all_sums, r->predicted, r->all_predicted};
    for (size_t i = 0; i < COUNT_OF(own); i++)
        memory_free(own[i]);
    r->rows = r->gathered = NULL;
    r->codes = NULL;
    r->sums = r->all_sums = NULL;
    r->predicted = r->all_predicted = NULL;
}

/* ---- the training clock -------------------------------------------------------------------------
 */

static uint64_t training_clock_ns(const struct sync_metrics *r)
{
    return r->o->virtual != NULL ? r->o->virtual->now_ns : clock_ns();
}

status sync_metrics_begin(struct sync_metrics *r)
{
    status result = OK;
    TRY(communicator_barrier(r->c));
    r->begun = true;
    r->began_ns = training_clock_ns(r);
    r->next_progress_ns = clock_ns() + PROGRESS_NS;
    if (r->o->recorder != NULL && r->c->kind->exchanges_nothing)
        recorder_event(r->o->recorder, 0, SEVERITY_WARNING, "no_exchange", NO_WORKER,
                       "communicator=dummy exchanged no gradients: this was not training");
done:
    return result;
}

double sync_metrics_seconds(const struct sync_metrics *r)
{
    if (!r->begun)
        return 0;
    uint64_t now = r->pause_began_ns != 0 ? r->pause_began_ns : training_clock_ns(r);
    return r->seconds_before + (double)(now - r->began_ns - r->paused_ns) * 1e-9;
}

double sync_metrics_state_seconds(const struct sync_metrics *r)
{
    const double now = sync_metrics_seconds(r);
    return r->overran ? now : training_time_within(&r->length, now);
}

void sync_metrics_pause(struct sync_metrics *r)
{
    r->pause_began_ns = training_clock_ns(r);
}

void sync_metrics_resume(struct sync_metrics *r)
{
    r->paused_ns += training_clock_ns(r) - r->pause_began_ns;
    r->pause_began_ns = 0;
}

/* Waits until all ranks have done their part. The first long wait is logged after warn_after_s.
 * Later work may take as long each time, so later waits are logged only after timeout_s. */
static status wait_for_all(struct sync_metrics *r, const char *what)
{
    communicator *c = r->c;
    const double warn_after_s = c->warn_after_s;

    if (r->wait_was_logged && c->timeout_s > warn_after_s)
        c->warn_after_s = c->timeout_s;
    status result = communicator_barrier_long(c, what);
    c->warn_after_s = warn_after_s;
    if ((double)(training_clock_ns(r) - r->pause_began_ns) * 1e-9 > warn_after_s)
        r->wait_was_logged = true;
    return result;
}

status sync_metrics_agree(struct sync_metrics *r, status own, const char *what)
{
    status result = OK;
    communicator *c = r->c;
    const int32_t code = (int32_t)own;
    char why[512];
    unsigned failed = 0;

    snprintf(why, sizeof why, "%s", own != OK ? error_message() : "");
    TRY(communicator_gather_all(c, &code, sizeof code, r->codes));
    while (failed < c->size && r->codes[failed] == OK)
        failed++;
    if (failed < c->size) {
        TRY(communicator_broadcast(c, why, sizeof why, failed));
        sync_metrics_leave(r);
        FAIL((status)r->codes[failed], "%s failed on rank %u: %s", what, failed, why);
    }
done:
    return result;
}

/* Ends a pause. `own` is the status of this rank's part of the work, OK if it had none. */
static status pause_end(struct sync_metrics *r, status own, const char *what)
{
    status result = OK;
    TRY(wait_for_all(r, what));
    result = sync_metrics_agree(r, own, what);
    sync_metrics_resume(r);
done:
    return result;
}

/* ---- rows, evaluations and checkpoints ----------------------------------------------------------
 */

struct step_record sync_metrics_row_of(const struct step_stats *stats, uint64_t exchange_ns,
                                       uint64_t apply_ns)
{
    return (struct step_record){.loss = stats->loss,
                                .compute_us = (double)(stats->data_ns + stats->compute_ns) * 1e-3,
                                .exchange_us = (double)exchange_ns * 1e-3,
                                .apply_us = (double)apply_ns * 1e-3,
                                .data_us = (double)stats->data_ns * 1e-3,
                                .forward_us = (double)stats->forward_ns * 1e-3,
                                .backward_us = (double)stats->backward_ns * 1e-3};
}

/* Keeps the rows of the ranks in this process. */
static void keep_rows(struct sync_metrics *r, const struct sync_metrics_state *s,
                      const struct step_record *row)
{
    struct step_record *rows = &r->rows[r->row_count++ * r->here];
    if (s->replica->kind->rows != NULL) {
        s->replica->kind->rows(s->replica, rows);
    } else {
        rows[0] = *row;
        rows[0].worker = r->c->rank;
        rows[0].at_seconds = sync_metrics_seconds(r);
    }
    for (unsigned i = 0; i < r->here; i++) {
        rows[i].update_version = s->updates;
        rows[i].staleness = row->staleness;
    }
}

/* Records rows in the order of updates, and within an update in rank order. */
static status gather_rows(struct sync_metrics *r)
{
    status result = OK;
    const size_t own = (size_t)r->row_count * r->here;
    if (own == 0)
        return OK;
    TRY(communicator_gather_all(r->c, r->rows, own * sizeof *r->rows, r->gathered));
    for (size_t i = 0; r->c->rank == 0 && r->o->recorder != NULL && i < own; i += r->here)
        for (unsigned rank = 0; rank < sync_trainer_ranks(r->o); rank++)
            recorder_step(r->o->recorder, &r->gathered[rank / r->here * own + i + rank % r->here]);
    r->row_count = 0;
done:
    return result;
}

void sync_metrics_leave(struct sync_metrics *r)
{
    const struct error why = error_save();
    if (!r->c->kind->exchanges_nothing && gather_rows(r) != OK)
        log_error("%s", error_message());
    error_restore(&why);
}

/* Takes each batch's sum from the rank that computed it. */
static void pick_sums(struct sync_metrics *r)
{
    for (size_t b = 0; b < r->batches; b++)
        r->sums[b] = r->all_sums[b % r->evaluators * r->batches + b];
}

static void add_predictions(struct sync_metrics *r)
{
    for (size_t k = 0; k < r->classes; k++) {
        r->predicted[k] = 0;
        for (unsigned rank = 0; rank < r->evaluators; rank++)
            r->predicted[k] += r->all_predicted[rank * r->classes + k];
    }
}

static void record_evaluation(struct sync_metrics *r, const struct sync_metrics_state *s,
                              uint64_t began_ns)
{
    struct evaluation e;

    pick_sums(r);
    add_predictions(r);
    worker_evaluation_of(r->o->worker, r->sums, r->predicted, &e);
    struct evaluation_record row = {
        .updates = s->updates,
        .samples = s->samples,
        .seconds = sync_metrics_state_seconds(r),
        .train_loss = r->loss_count > 0 ? r->loss_sum / (double)r->loss_count : NOT_MEASURED,
        .validation_loss = e.validation_loss,
        .validation_accuracy = e.validation_accuracy,
        .test_loss = e.test_loss,
        .test_accuracy = e.test_accuracy,
        .top_class_share = e.top_class_share,
        .took_seconds =
            r->o->virtual != NULL ? NOT_MEASURED : (double)(clock_ns() - began_ns) * 1e-9};
    r->loss_sum = 0;
    r->loss_count = 0;
    r->test_accuracy = e.test_accuracy;
    if (r->o->recorder != NULL)
        recorder_evaluation(r->o->recorder, &row);
}

status sync_metrics_evaluate(struct sync_metrics *r, const struct sync_metrics_state *s)
{
    status result = OK, own = OK;
    communicator *c = r->c;
    const uint64_t began_ns = clock_ns();

    r->evaluated = s->updates + 1;
    sync_metrics_pause(r);
    TRY(replica_collect(s->replica));
    if (c->rank < r->evaluators)
        own = worker_evaluate_part(r->o->worker, s->replica->parameters, c->rank, r->evaluators,
                                   r->sums, r->predicted);
    TRY(pause_end(r, own, "the evaluation"));
    sync_metrics_pause(r);
    TRY(communicator_gather_all(c, r->sums, r->batches * sizeof *r->sums, r->all_sums));
    TRY(communicator_gather_all(c, r->predicted, r->classes * sizeof *r->predicted,
                                r->all_predicted));
    if (c->rank == 0)
        record_evaluation(r, s, began_ns);
    sync_metrics_resume(r);
done:
    return result;
}

static status checkpoint_here(struct sync_metrics *r, const struct sync_metrics_state *s,
                              struct training_state *state)
{
    status result = OK;
    const struct training_hooks *hooks = &r->o->hooks;
    struct replica_view now;

    if (hooks->checkpoint != NULL) {
        TRY(replica_view(s->replica, &now));
        state->updates = s->updates;
        state->samples = s->samples;
        state->seconds = sync_metrics_seconds(r);
        state->loss_sum = r->loss_sum;
        state->loss_count = r->loss_count;
        state->parameters = now.parameters;
        state->optimizer_state = now.optimizer_state;
        state->optimizer_state_count = now.optimizer_state_count;
        TRY(hooks->checkpoint(hooks->context, state));
    }
done:
    return result;
}

/* Gathers the rows first: a run that restarts from this checkpoint needs the rows before it. */
static status checkpoint(struct sync_metrics *r, const struct sync_metrics_state *s, bool goes_on)
{
    status result = OK;
    struct training_state state = {.goes_on = goes_on};
    sync_metrics_pause(r);
    TRY(gather_rows(r));
    TRY(replica_collect(s->replica));
    if (s->complete != NULL)
        TRY(s->complete(s->context, &state));
    result = pause_end(r, r->c->rank == 0 ? checkpoint_here(r, s, &state) : OK, "the checkpoint");
done:
    return result;
}

void sync_metrics_event(struct sync_metrics *r, enum severity severity, const char *code,
                        const char *text)
{
    if (r->c->rank != 0)
        return;
    if (severity == SEVERITY_WARNING)
        log_warning("%s", text);
    if (r->o->recorder != NULL)
        recorder_event(r->o->recorder, sync_metrics_seconds(r), severity, code, NO_WORKER, text);
}

/* With engine=virtual `seconds` is the host's time, so that the reader sees how long to wait. */
static void show_progress(struct sync_metrics *r, const struct sync_metrics_state *s)
{
    const struct training_hooks *hooks = &r->o->hooks;
    uint64_t now = clock_ns();
    if (r->c->rank != 0 || hooks->progress == NULL || now < r->next_progress_ns)
        return;
    r->next_progress_ns = now + PROGRESS_NS;
    struct training_progress p = {
        .updates = s->updates,
        .samples_used = s->samples,
        .total_samples = training_expected_samples(&r->length, s->samples, sync_metrics_seconds(r)),
        .seconds =
            r->o->virtual != NULL ? (double)(now - r->opened_ns) * 1e-9 : sync_metrics_seconds(r),
        .loss = r->smooth_loss,
        .test_accuracy = r->test_accuracy};
    hooks->progress(hooks->context, &p);
}

static bool evaluates_at(const struct sync_metrics *r, uint64_t samples)
{
    const uint64_t every = r->length.evaluate_every;
    return samples >= r->length.total_samples ||
           (every > 0 && r->samples / every < samples / every);
}

static bool checkpoints_at(const struct sync_metrics *r, uint64_t samples)
{
    return r->checkpoints && r->checkpoint_every > 0 && samples >= r->next_checkpoint &&
           samples < r->length.total_samples;
}

bool sync_metrics_has_barrier(const struct sync_metrics *r, uint64_t samples)
{
    return evaluates_at(r, samples) || checkpoints_at(r, samples);
}

status sync_metrics_update(struct sync_metrics *r, const struct sync_metrics_state *s,
                           const struct step_record *row, double loss)
{
    status result = OK;
    const bool evaluates = evaluates_at(r, s->samples);

    if (training_time_is_over(&r->length, s->seconds))
        r->overran = true;
    if (r->records_steps)
        keep_rows(r, s, row);
    if (r->row_count == r->rows_most || s->seconds >= r->gathered_s + GATHER_S) {
        r->gathered_s = s->seconds;
        TRY(gather_rows(r));
    }
    r->steps_since_average++;
    if (s->between_averagings)
        goto done;
    r->samples = s->samples;
    r->loss_sum += loss * (double)r->steps_since_average;
    r->loss_count += r->steps_since_average;
    r->steps_since_average = 0;
    r->smooth_loss =
        isnan(r->smooth_loss) ? loss : r->smooth_loss + r->smoothing * (loss - r->smooth_loss);
    show_progress(r, s);
    if (evaluates)
        TRY(sync_metrics_evaluate(r, s));
    if (checkpoints_at(r, s->samples)) {
        while (r->next_checkpoint <= s->samples)
            r->next_checkpoint += r->checkpoint_every;
        TRY(checkpoint(r, s, true));
    }
done:
    return result;
}

status sync_metrics_end(struct sync_metrics *r, const struct sync_metrics_state *s)
{
    status result = OK;
    TRY(gather_rows(r));
    if (r->checkpoints)
        TRY(checkpoint(r, s, false));
done:
    return result;
}
