/* report.c — see report.h. */
#include "sync/report.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const double SMOOTHING = 0.02; /* weight of one new loss in the loss that is shown */
static const uint64_t PROGRESS_NS = 250000000;

/* How many ranks evaluate is rank 0's to say: its host's processors, which they may all share. */
static status open_evaluation(struct report *r)
{
    status result = OK;
    communicator *c = r->c;
    const unsigned processors = communicator_processors(c);

    r->evaluators = c->size < processors ? c->size : processors;
    if (c->kind->exchanges_nothing || r->o->first_has_all)
        r->evaluators = 1; /* the others have other parameters */
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

status report_open(struct report *r, const struct sync_trainer_options *o,
                   const struct training_length *length, const struct training_state *begin)
{
    status result = OK;
    const options *settings = o->settings;

    *r = (struct report){
        .o = o, .c = o->communicator, .length = *length, .smooth_loss = NAN, .test_accuracy = NAN};
    r->samples = begin->samples;
    r->seconds_before = begin->seconds;
    r->loss_sum = begin->loss_sum;
    r->loss_count = begin->loss_count;
    r->smoothing = 1 - pow(1 - SMOOTHING, r->c->size);
    r->records_steps = strcmp(options_text(settings, "record"), "all") == 0;
    r->checkpoints = options_text(settings, "checkpoint")[0] != '\0';
    r->checkpoint_every = training_checkpoint_every(settings, worker_epoch_samples(o->worker));
    r->next_checkpoint = r->checkpoint_every;
    while (r->checkpoint_every > 0 && r->next_checkpoint <= r->samples)
        r->next_checkpoint += r->checkpoint_every;
    TRY(memory_new(&r->gathered, (size_t)r->c->size * REPORT_ROWS, sizeof *r->gathered,
                   "step rows"));
    TRY(memory_new(&r->codes, r->c->size, sizeof *r->codes, "outcomes of ranks"));
    TRY(open_evaluation(r));
done:
    return result;
}

void report_close(struct report *r)
{
    void *const own[] = {r->gathered, r->codes,     r->sums,
                         r->all_sums, r->predicted, r->all_predicted};
    for (size_t i = 0; i < COUNT_OF(own); i++)
        memory_free(own[i]);
    r->gathered = NULL;
    r->codes = NULL;
    r->sums = r->all_sums = NULL;
    r->predicted = r->all_predicted = NULL;
}

/* ---- the training clock -------------------------------------------------------------------------
 */

status report_begin(struct report *r)
{
    status result = OK;
    TRY(communicator_barrier(r->c));
    r->began_ns = clock_ns();
    r->next_progress_ns = r->began_ns + PROGRESS_NS;
    if (r->o->recorder != NULL && r->c->kind->exchanges_nothing)
        recorder_event(r->o->recorder, 0, SEVERITY_WARNING, "no_exchange", NO_WORKER,
                       "ranks kept their own gradients: this was not training");
done:
    return result;
}

double report_seconds(const struct report *r)
{
    if (r->began_ns == 0)
        return 0;
    uint64_t now = r->pause_began_ns != 0 ? r->pause_began_ns : clock_ns();
    return r->seconds_before + (double)(now - r->began_ns - r->paused_ns) * 1e-9;
}

void report_pause(struct report *r)
{
    r->pause_began_ns = clock_ns();
}

void report_go_on(struct report *r)
{
    r->paused_ns += clock_ns() - r->pause_began_ns;
    r->pause_began_ns = 0;
}

/* Who is done sleeps until the last has come. The first time that this takes long enough to wonder
 * is told; as such work may be as long each time, later ones only where timeout_s is passed. */
static status wait_for_all(struct report *r, const char *what)
{
    communicator *c = r->c;
    const double warn_after_s = c->warn_after_s;

    if (r->told_of_waiting && c->timeout_s > warn_after_s)
        c->warn_after_s = c->timeout_s;
    status result = communicator_meet(c, what);
    c->warn_after_s = warn_after_s;
    if ((double)(clock_ns() - r->pause_began_ns) * 1e-9 > warn_after_s)
        r->told_of_waiting = true;
    return result;
}

/* Every rank comes here with how its own work went; who had none has been waiting. All leave
 * together. If some failed, all fail with the words of the first of them. */
static status pause_end(struct report *r, status own, const char *what)
{
    status result = OK;
    communicator *c = r->c;
    const int32_t code = (int32_t)own;
    char why[512];
    unsigned failed = 0;

    snprintf(why, sizeof why, "%s", own != OK ? error_message() : "");
    TRY(wait_for_all(r, what));
    TRY(communicator_gather_all(c, &code, sizeof code, r->codes));
    report_go_on(r);
    while (failed < c->size && r->codes[failed] == OK)
        failed++;
    if (failed < c->size) {
        TRY(communicator_broadcast(c, why, sizeof why, failed));
        FAIL((status)r->codes[failed], "%s failed on rank %u: %s", what, failed, why);
    }
done:
    return result;
}

/* ---- what is told -------------------------------------------------------------------------------
 */

struct report_row report_row_of(const struct step_stats *stats, uint64_t exchange_ns,
                                uint64_t apply_ns)
{
    return (struct report_row){.loss = stats->loss,
                               .compute_us = (float)(stats->data_ns + stats->compute_ns) * 1e-3f,
                               .exchange_us = (float)exchange_ns * 1e-3f,
                               .apply_us = (float)apply_ns * 1e-3f,
                               .data_us = (float)stats->data_ns * 1e-3f,
                               .forward_us = (float)stats->forward_ns * 1e-3f,
                               .backward_us = (float)stats->backward_ns * 1e-3f};
}

static void record_rows(const struct report *r, uint64_t updates)
{
    for (unsigned k = 0; k < r->row_count; k++) {
        for (unsigned rank = 0; rank < r->c->size; rank++) {
            const struct report_row *row = &r->gathered[rank * r->row_count + k];
            struct step_record record = {.update_version = updates - r->row_count + k + 1,
                                         .worker = rank,
                                         .loss = row->loss,
                                         .compute_us = row->compute_us,
                                         .exchange_us = row->exchange_us,
                                         .apply_us = row->apply_us,
                                         .data_us = row->data_us,
                                         .forward_us = row->forward_us,
                                         .backward_us = row->backward_us,
                                         .hidden_us = row->hidden_us,
                                         .staleness = (uint64_t)row->staleness,
                                         .at_seconds = row->at_seconds};
            recorder_step(r->o->recorder, &record);
        }
    }
}

static status gather_rows(struct report *r, uint64_t updates)
{
    status result = OK;
    if (r->row_count == 0)
        return OK;
    TRY(communicator_gather_all(r->c, r->rows, r->row_count * sizeof *r->rows, r->gathered));
    if (r->c->rank == 0 && r->o->recorder != NULL)
        record_rows(r, updates);
    r->row_count = 0;
done:
    return result;
}

/* Every rank's own batches, from where they were computed. */
static void pick_sums(struct report *r)
{
    for (size_t b = 0; b < r->batches; b++)
        r->sums[b] = r->all_sums[b % r->evaluators * r->batches + b];
}

static void add_predictions(struct report *r)
{
    for (size_t k = 0; k < r->classes; k++) {
        r->predicted[k] = 0;
        for (unsigned rank = 0; rank < r->evaluators; rank++)
            r->predicted[k] += r->all_predicted[rank * r->classes + k];
    }
}

static void record_evaluation(struct report *r, const struct report_state *s, uint64_t began_ns)
{
    struct evaluation e;

    pick_sums(r);
    add_predictions(r);
    worker_evaluation_of(r->o->worker, r->sums, r->predicted, &e);
    struct evaluation_record row = {
        .updates = s->updates,
        .samples = s->samples,
        .seconds = report_seconds(r),
        .train_loss = r->loss_count > 0 ? r->loss_sum / (double)r->loss_count : NOT_MEASURED,
        .validation_loss = e.validation_loss,
        .validation_accuracy = e.validation_accuracy,
        .test_loss = e.test_loss,
        .test_accuracy = e.test_accuracy,
        .top_class_share = e.top_class_share,
        .took_seconds = (double)(clock_ns() - began_ns) * 1e-9};
    r->loss_sum = 0;
    r->loss_count = 0;
    r->test_accuracy = e.test_accuracy;
    if (r->o->recorder != NULL)
        recorder_evaluation(r->o->recorder, &row);
}

status report_evaluate(struct report *r, const struct report_state *s)
{
    status result = OK, own = OK;
    communicator *c = r->c;
    const uint64_t began_ns = clock_ns();

    report_pause(r);
    TRY(replica_collect(s->replica));
    if (c->rank < r->evaluators)
        own = worker_evaluate_part(r->o->worker, s->replica->parameters, c->rank, r->evaluators,
                                   r->sums, r->predicted);
    TRY(pause_end(r, own, "the evaluation"));
    report_pause(r);
    TRY(communicator_gather_all(c, r->sums, r->batches * sizeof *r->sums, r->all_sums));
    TRY(communicator_gather_all(c, r->predicted, r->classes * sizeof *r->predicted,
                                r->all_predicted));
    if (c->rank == 0)
        record_evaluation(r, s, began_ns);
    report_go_on(r);
done:
    return result;
}

static status checkpoint_here(struct report *r, const struct report_state *s,
                              struct training_state *state)
{
    status result = OK;
    const struct training_hooks *hooks = &r->o->hooks;
    struct replica_view now;

    if (hooks->checkpoint != NULL) {
        TRY(replica_view(s->replica, &now));
        state->updates = s->updates;
        state->samples = s->samples;
        state->seconds = report_seconds(r);
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

static status checkpoint(struct report *r, const struct report_state *s, bool goes_on)
{
    status result = OK;
    struct training_state state = {.goes_on = goes_on};
    report_pause(r);
    TRY(replica_collect(s->replica));
    if (s->complete != NULL)
        TRY(s->complete(s->context, &state));
    result = pause_end(r, r->c->rank == 0 ? checkpoint_here(r, s, &state) : OK, "the checkpoint");
done:
    return result;
}

void report_event(struct report *r, enum severity severity, const char *code, const char *text)
{
    if (r->c->rank != 0)
        return;
    if (severity == SEVERITY_WARNING)
        log_warning("%s", text);
    if (r->o->recorder != NULL)
        recorder_event(r->o->recorder, report_seconds(r), severity, code, NO_WORKER, text);
}

static void show_progress(struct report *r, const struct report_state *s)
{
    const struct training_hooks *hooks = &r->o->hooks;
    uint64_t now = clock_ns();
    if (r->c->rank != 0 || hooks->progress == NULL || now < r->next_progress_ns)
        return;
    r->next_progress_ns = now + PROGRESS_NS;
    struct training_progress p = {.updates = s->updates,
                                  .samples_used = s->samples,
                                  .total_samples = r->length.total_samples,
                                  .seconds = report_seconds(r),
                                  .loss = r->smooth_loss,
                                  .test_accuracy = r->test_accuracy};
    hooks->progress(hooks->context, &p);
}

static bool evaluates_at(const struct report *r, uint64_t samples)
{
    const uint64_t every = r->length.evaluate_every;
    return samples >= r->length.total_samples ||
           (every > 0 && r->samples / every < samples / every);
}

static bool checkpoints_at(const struct report *r, uint64_t samples)
{
    return r->checkpoints && r->checkpoint_every > 0 && samples >= r->next_checkpoint &&
           samples < r->length.total_samples;
}

bool report_meets(const struct report *r, uint64_t samples)
{
    return evaluates_at(r, samples) || checkpoints_at(r, samples);
}

status report_update(struct report *r, const struct report_state *s, const struct report_row *row,
                     double loss)
{
    status result = OK;
    const bool evaluates = evaluates_at(r, s->samples);

    if (r->records_steps) {
        r->rows[r->row_count] = *row;
        r->rows[r->row_count++].at_seconds = report_seconds(r);
    }
    if (r->row_count == REPORT_ROWS)
        TRY(gather_rows(r, s->updates));
    if (s->apart)
        goto done;
    r->samples = s->samples;
    r->loss_sum += loss;
    r->loss_count++;
    r->smooth_loss =
        isnan(r->smooth_loss) ? loss : r->smooth_loss + r->smoothing * (loss - r->smooth_loss);
    show_progress(r, s);
    if (evaluates)
        TRY(report_evaluate(r, s));
    if (checkpoints_at(r, s->samples)) {
        while (r->next_checkpoint <= s->samples)
            r->next_checkpoint += r->checkpoint_every;
        TRY(checkpoint(r, s, true));
    }
done:
    return result;
}

status report_end(struct report *r, const struct report_state *s)
{
    status result = OK;
    TRY(gather_rows(r, s->updates));
    if (r->checkpoints)
        TRY(checkpoint(r, s, false));
done:
    return result;
}
