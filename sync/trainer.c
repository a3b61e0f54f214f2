/*
 * trainer.c — one synchronous rank. Compare ps/trainer.c: there a worker pushes its gradient to the
 * server. Here a rank exchanges its gradient with its peers and applies the update itself.
 *
 * All ranks hold the same parameters, bit for bit. No rank sends them: each rank applies the same
 * mean gradient with the same code. With engine=virtual this loop runs once for all ranks, with a
 * replica that stands for all of them (replica_virtual.h). In reading order:
 *
 *   what ranks decide together   failure, stop, skipped updates, equal parameters
 *   the gradient and the update  of one rank
 *   the four kinds of step       plain, delayed, local SGD, several updates on a device
 *   checkpoints                  what one holds, and how training resumes from it
 *   the run                      open, loop, outcome
 *
 * Elsewhere: settings that exclude each other (trainer_check.c), parameters, exchange and optimizer
 * (replica.h), learning rate and growing batches (worker/optimizer/schedule.h), evaluations, rows
 * and the training clock (run_metrics.h).
 */
#include "sync/trainer.h"

#include "base/clock.h"
#include "base/log.h"
#include "sync/delay_rate.h"
#include "sync/pending.h"
#include "sync/replica_check.h"
#include "sync/run_metrics.h"
#include "sync/sync_batch_norm.h"
#include "worker/optimizer/schedule.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* If more updates than this are skipped in a row, the run ends. */
enum { SKIPPED_MOST = 10 };

static const char NOT_FINITE_GRADIENT[] = "mean gradient, or its square,";

struct trainer {
    const struct sync_trainer_options *o;
    communicator *c;
    uint64_t update_samples; /* one batch of every rank */
    struct training_length length;
    struct schedule schedule;
    struct delay_rate delay_rate;
    struct sync_batch_norm joint;
    replica *replica;
    struct local_sgd local;
    uint64_t updates, samples; /* applied; used */
    uint64_t batches;          /* computed by each rank */
    uint64_t skipped;          /* batches without an update, because of on_nonfinite=skip */
    uint64_t unused;           /* batches without an update, because key seconds was over */
    uint64_t skipped_last;     /* updates skipped in a row */
    struct staleness_sum staleness;
    double sent_before; /* bytes, by the runs that this one resumes */
    bool may_skip, stopped;
    double seconds;                  /* training time at the last exchange, the same on all ranks */
    uint64_t verify_every, verified; /* updates; those at the last comparison */
    struct pending_queue waiting;
    struct rank_state rank_state;
    struct replica_view view; /* of the checkpoint being written */
    struct sync_metrics report;
};

/* ---- what ranks decide together ------------------------------------------------------------- */

/* Only rank 0 contributes, × size: the mean over ranks is the time of rank 0. */
static float seconds_note(const struct trainer *t)
{
    return t->c->rank == 0 ? (float)(sync_metrics_seconds(&t->report) * t->c->size) : 0;
}

/* This rank's notes about its gradient, for the other ranks. */
static void fill_notes(const struct trainer *t, struct pending *m)
{
    m->notes[NOTE_SECONDS] = seconds_note(t);
    if (m->own != OK)
        log_error("rank %u: %s", t->c->rank, error_message());
    m->notes[NOTE_LOSS] = m->own == OK ? m->stats.loss : 0;
    m->notes[NOTE_FAILED] = m->own != OK;
    m->notes[NOTE_STOP] = training_stop_wanted(&t->o->hooks);
}

/* If any rank failed, all ranks end with its error. With communicator=dummy, other ranks do not
 * learn of the error. */
static status fail_together(struct trainer *t, status own)
{
    if (t->c->size == 1 || t->c->kind->exchanges_nothing)
        return own;
    return sync_metrics_agree(&t->report, own, "the gradient");
}

/* All ranks read the same means: an error if any rank failed, and whether to stop. */
static status check_notes(struct trainer *t, const struct pending *m)
{
    status result = OK;
    if (m->notes[NOTE_FAILED] != 0)
        TRY(fail_together(t, m->own));
    t->stopped = t->stopped || m->notes[NOTE_STOP] != 0;
    t->seconds = t->c->size > 1 ? m->notes[NOTE_SECONDS] : sync_metrics_seconds(&t->report);
    schedule_at(&t->schedule, t->seconds);
done:
    return result;
}

/* Call it on all ranks if `what` is not finite: these batches make no update. ERROR_DIVERGED:
 * skipping is not allowed, or too many updates were skipped in a row. */
static status skip(struct trainer *t, unsigned batches, const char *what)
{
    status result = OK;
    char text[128];
    t->skipped += batches;
    if (!t->may_skip) {
        FAIL(ERROR_DIVERGED, "the %s is not finite at update %llu: lower lr, or warm up for longer",
             what, (unsigned long long)t->updates);
    }
    if (++t->skipped_last > SKIPPED_MOST) {
        FAIL(ERROR_DIVERGED,
             "the %s is not finite at update %llu, %llu times in a row: lower lr, or warm up for "
             "longer",
             what, (unsigned long long)t->updates, (unsigned long long)t->skipped_last);
    }
    snprintf(text, sizeof text, "the %s was not finite: update %llu uses the next batch instead",
             what, (unsigned long long)t->updates);
    sync_metrics_event(&t->report, SEVERITY_WARNING, "skipped", text);
done:
    if (result != OK)
        sync_metrics_leave(&t->report);
    return result;
}

/* Compares all ranks' parameters if a multiple of verify_every was passed. That is not training
 * time. */
static status verify(struct trainer *t)
{
    status result = OK;
    char digest[65];
    if (t->verify_every == 0 || t->updates / t->verify_every == t->verified / t->verify_every)
        return OK;
    t->verified = t->updates;
    sync_metrics_pause(&t->report);
    TRY(replica_check_compare(t->c, t->replica, t->updates, digest));
    sync_metrics_resume(&t->report);
done:
    return result;
}

/* ---- the gradient and the update ------------------------------------------------------------ */

/* Samples that have a gradient. */
static uint64_t samples_computed(const struct trainer *t)
{
    return t->samples + t->waiting.batches * t->update_samples;
}

/* Batches of each rank without a gradient, at most `wanted`. */
static unsigned batches_left(const struct trainer *t, unsigned wanted)
{
    return local_sgd_batches_left(t->length.total_samples - samples_computed(t), t->update_samples,
                                  wanted);
}

static bool time_is_over(const struct trainer *t)
{
    return training_time_is_over(&t->length, t->seconds);
}

/* Whether there are samples without a gradient. */
static bool wants_more(const struct trainer *t)
{
    return samples_computed(t) < t->length.total_samples && !t->stopped && !time_is_over(t);
}

/* This rank's mean gradient over its next batches. */
static status gradient(struct trainer *t, unsigned batches, struct step_stats *stats)
{
    const uint64_t first = t->batches;
    t->batches += batches;
    return replica_gradients(t->replica, first, batches, stats);
}

/* The next gradient. If it fails, this rank still calls the exchange, which tells the others. With
 * SyncBatchNorm, fail now: the peers block in batch norm and never reach the exchange. */
static status compute(struct trainer *t, struct pending *m)
{
    const unsigned batches = batches_left(t, schedule_growth(&t->schedule, samples_computed(t)));
    *m = (struct pending){.batches = batches, .version = t->updates};
    m->own = gradient(t, batches, &m->stats);
    fill_notes(t, m);
    return t->joint.batch.shares > 0 ? m->own : OK;
}

/* The learning rate of update number `update`, which uses the samples from `before` to `after`. */
static double rate_of(const struct trainer *t, uint64_t update, uint64_t before, uint64_t after)
{
    return schedule_rate(&t->schedule, before, after) * delay_rate_factor(&t->delay_rate, update);
}

/* θ ← update(θ, the replica's gradient). If it is not finite, *finite ← false and θ stays
 * unchanged. */
static status update(struct trainer *t, unsigned batches, bool *finite)
{
    const uint64_t after = t->samples + batches * t->update_samples;
    t->replica->epoch = schedule_epoch(&t->schedule, t->samples, after);
    return replica_apply(t->replica, rate_of(t, t->updates + 1, t->samples, after), finite);
}

static status complete(void *context, struct training_state *out);

static struct sync_metrics_state state_of(struct trainer *t)
{
    return (struct sync_metrics_state){.updates = t->updates,
                                       .samples = t->samples,
                                       .seconds = t->seconds,
                                       .replica = t->replica,
                                       .complete = complete,
                                       .context = t};
}

/* After an update. `row` is this rank's, `loss` is the mean over ranks. */
static status report_update(struct trainer *t, const struct step_record *row, double loss)
{
    status result = OK;
    struct sync_metrics_state now = state_of(t);
    TRY(sync_metrics_update(&t->report, &now, row, loss));
    TRY(verify(t));
done:
    return result;
}

static void count_update(struct trainer *t, const struct pending *m, uint64_t staleness)
{
    t->staleness.gradients++;
    t->staleness.sum += (double)staleness;
    t->staleness.most = staleness > t->staleness.most ? staleness : t->staleness.most;
    t->samples += m->batches * t->update_samples;
    t->updates++;
    t->skipped_last = 0;
}

/* `spent_ns`: the time that a computation spent on this exchange between its operators. */
static status exchange(struct trainer *t, struct pending *m, uint64_t spent_ns)
{
    status result = OK;
    const uint64_t began = clock_ns();
    t->replica->sent_epoch = schedule_epoch(&t->schedule, t->samples, t->samples);
    TRY(replica_exchange(t->replica, m->notes));
    m->exchanged = true;
    m->exchange_ns = clock_ns() - began + spent_ns;
    m->hidden_ns = t->replica->hidden_ns;
    TRY(check_notes(t, m));
done:
    return result;
}

/* Makes and reports the update of an exchanged gradient, the replica's oldest. */
static status apply(struct trainer *t, const struct pending *m)
{
    status result = OK;
    const uint64_t began = clock_ns();
    const double loss = m->notes[NOTE_LOSS];
    bool finite = isfinite(loss);
    if (time_is_over(t)) {
        replica_take(t->replica);
        t->unused += m->batches;
        goto done;
    }
    if (finite)
        TRY(update(t, m->batches, &finite));
    replica_take(t->replica);
    if (!finite)
        return skip(t, m->batches, isfinite(loss) ? NOT_FINITE_GRADIENT : "loss");

    const uint64_t apply_ns = clock_ns() - began, waited_ns = t->replica->waited_ns;
    struct step_record row =
        sync_metrics_row_of(&m->stats, m->exchange_ns + waited_ns, apply_ns - waited_ns);
    row.hidden_us = (double)m->hidden_ns * 1e-3;
    row.staleness = t->updates - m->version;
    count_update(t, m, row.staleness);
    TRY(report_update(t, &row, loss));
done:
    return result;
}

/* ---- the four kinds of step ----------------------------------------------------------------- */

static status plain_step(struct trainer *t)
{
    status result = OK;
    struct pending m;
    TRY(compute(t, &m));
    TRY(exchange(t, &m, m.stats.watch_ns));
    TRY(apply(t, &m));
done:
    return result;
}

/* Key delay: gradient n is computed at the parameters after n − d updates, and update n applies it.
 * The first d steps compute a gradient and make no update; the last d steps make an update and
 * compute nothing. The gradient of the step before travels while the next one is computed (double
 * buffering; ChainerMN: Akiba, Fukuda & Suzuki 2017). */
static status delayed_step(struct trainer *t)
{
    status result = OK;
    struct pending next = {0}, *sent = pending_not_exchanged(&t->waiting), oldest;
    const bool computes = wants_more(t) && (sent == NULL || sent->own == OK);
    if (sent != NULL)
        replica_send(t->replica);
    if (computes)
        TRY(compute(t, &next));
    if (sent != NULL)
        TRY(exchange(t, sent, next.stats.watch_ns));
    if (computes) /* before apply(), which may write a checkpoint */
        pending_add(&t->waiting, &next);
    if (t->waiting.count > t->replica->delay || !computes) {
        pending_take(&t->waiting, &oldest);
        TRY(apply(t, &oldest));
    }
done:
    return result;
}

/* An update of this rank's own parameters. */
static status step_alone(struct trainer *t, struct pending *m, bool *finite,
                         struct step_record *row)
{
    status result = OK;
    TRY(gradient(t, 1, &m->stats));
    const uint64_t computed = clock_ns();
    TRY(update(t, 1, finite));
    *row = sync_metrics_row_of(&m->stats, 0, clock_ns() - computed);
done:
    return result;
}

/* Key local_steps (local_sgd.h): each rank makes `steps` updates alone, then all ranks average
 * their parameters. A rank that fails stops computing but still counts updates, because the others
 * gather rows with it. They learn of the failure at the averaging. */
static status local_sgd_round(struct trainer *t, unsigned steps)
{
    status result = OK;
    struct pending m = {.batches = steps};
    struct step_record row = {0};
    double loss = 0;
    bool finite = true;
    for (unsigned i = 0; i < steps; i++) {
        if (m.own == OK && finite)
            m.own = step_alone(t, &m, &finite, &row);
        t->samples += t->update_samples;
        t->updates++;
        loss += (double)m.stats.loss;
        struct sync_metrics_state now = state_of(t);
        now.between_averagings = true;
        if (i + 1 < steps)
            TRY(sync_metrics_update(&t->report, &now, &row, 0));
    }
    m.stats.loss = finite ? (float)(loss / steps) : NAN;
    fill_notes(t, &m);
    const uint64_t began = clock_ns();
    TRY(replica_average(t->replica, t->local.momentum, m.notes));
    row.exchange_us = (double)(clock_ns() - began) * 1e-3;
    TRY(check_notes(t, &m));
    if (!isfinite(m.notes[NOTE_LOSS])) /* 0: t->samples includes these batches already */
        TRY(skip(t, 0, "loss or gradient, or its square, of a local step of this round"));
    TRY(report_update(t, &row, m.notes[NOTE_LOSS]));
done:
    return result;
}

/* Plans as many updates as can be made before this rank has to see the parameters, for an
 * evaluation, a checkpoint, a comparison or the end. With key seconds it plans one update, because
 * ranks agree on the time after each. */
static void plan_round(const struct trainer *t, struct replica_round *round)
{
    const unsigned most = t->length.seconds > 0 ? 1 : replica_round_most(t->replica);
    uint64_t samples = t->samples, updates = t->updates;
    *round = (struct replica_round){.first = t->batches,
                                    .stop = training_stop_wanted(&t->o->hooks),
                                    .seconds = seconds_note(t)};
    do {
        const uint64_t after = samples + t->update_samples;
        round->lr[round->count++] = rate_of(t, ++updates, samples, after);
        samples = after;
    } while (round->count < most && !sync_metrics_has_barrier(&t->report, samples) &&
             (t->verify_every == 0 || updates % t->verify_every != 0));
}

/* Reports update `i` of a round, or skips the gradient after the last one. */
static status end_of_update(struct trainer *t, const struct replica_round *round, unsigned i)
{
    status result = OK;
    struct pending m = {.batches = 1, .version = t->updates, .stats = round->stats[i]};
    memcpy(m.notes, round->notes[i], sizeof m.notes);
    const double loss = m.notes[NOTE_LOSS];
    t->batches++;
    TRY(check_notes(t, &m));
    replica_take(t->replica);
    if (i == round->made)
        return skip(t, 1, isfinite(loss) ? NOT_FINITE_GRADIENT : "loss");
    const struct step_record row =
        sync_metrics_row_of(&m.stats, round->exchange_ns / round->count, 0);
    count_update(t, &m, 0);
    TRY(report_update(t, &row, loss));
done:
    return result;
}

/* Gradients after one that is not finite are dropped; the next round computes them again. */
static status device_round(struct trainer *t)
{
    status result = OK;
    struct replica_round round;
    plan_round(t, &round);
    TRY(replica_make_round(t->replica, &round));
    for (unsigned i = 0; i < round.count && i <= round.made; i++)
        TRY(end_of_update(t, &round, i));
done:
    return result;
}

static status next_step(struct trainer *t)
{
    const unsigned steps = local_sgd_steps(&t->local, &t->schedule, t->samples);
    t->replica->local_update = steps > 1;
    return t->replica->delay > 0                ? delayed_step(t)
           : steps > 1                          ? local_sgd_round(t, batches_left(t, steps))
           : replica_round_most(t->replica) > 0 ? device_round(t)
                                                : plain_step(t);
}

/* ---- checkpoints ---------------------------------------------------------------------------- */

static double sent_bytes(const struct trainer *t)
{
    return t->sent_before + communicator_sent_bytes(t->c);
}

/* Adds to a checkpoint what the replica's view and the report lack. A gradient that is not
 * exchanged yet is exchanged now, so that all ranks have the same mean; training continues with the
 * same bits. Virtual ranks do not resume, so they skip this exchange, which would advance their
 * clock. */
static status complete(void *context, struct training_state *out)
{
    status result = OK;
    struct trainer *t = context;
    struct pending *sent = pending_not_exchanged(&t->waiting);
    struct waiting_note notes[DELAY_MOST] = {0};
    out->skipped = t->skipped;
    out->skipped_last = t->skipped_last;
    if (t->o->virtual != NULL)
        return OK;
    if (sent != NULL) {
        replica_send(t->replica);
        TRY(exchange(t, sent, 0));
    }
    out->sent_bytes = sent_bytes(t);
    TRY(replica_view(t->replica, &t->view));
    out->vectors = t->view.vectors;
    out->vector_count = t->view.vector_count;
    out->waiting = t->view.waiting;
    for (unsigned i = 0; i < t->waiting.count; i++) {
        const struct pending *m = &t->waiting.at[i];
        notes[i] = (struct waiting_note){m->stats.loss, m->notes[NOTE_LOSS], (float)m->batches,
                                         (float)(t->updates - m->version)};
    }
    TRY(rank_state_gather(&t->rank_state, t->replica, notes, out));
done:
    return result;
}

/* `waiting`: the notes of the gradients that wait. */
static void resume(struct trainer *t, const struct training_state *begin,
                   const struct waiting_note *waiting)
{
    t->updates = t->verified = begin->updates;
    t->samples = begin->samples;
    t->seconds = begin->seconds;
    schedule_at(&t->schedule, t->seconds);
    t->skipped = begin->skipped;
    t->skipped_last = begin->skipped_last;
    t->sent_before = begin->sent_bytes;
    for (size_t i = 0; i < begin->waiting; i++) {
        const struct pending m = {.batches = (unsigned)waiting[i].batches,
                                  .exchanged = true,
                                  .version = t->updates - (uint64_t)waiting[i].age,
                                  .notes[NOTE_LOSS] = waiting[i].loss,
                                  .stats.loss = waiting[i].own_loss};
        pending_add(&t->waiting, &m);
    }
    t->batches = samples_computed(t) / t->update_samples + t->skipped;
}

/* ---- the run -------------------------------------------------------------------------------- */

/* Call trainer_close also after an error. */
static status trainer_open(struct trainer *t, const struct sync_trainer_options *o)
{
    status result = OK;
    const unsigned ranks = sync_trainer_ranks(o);
    uint64_t epoch = worker_epoch_samples(o->worker);
    struct training_state begin;
    struct waiting_note waiting[DELAY_MOST] = {0};

    t->o = o;
    t->c = o->communicator;
    t->update_samples = (uint64_t)options_integer(o->settings, "batch") * ranks;
    TRY(sync_trainer_check(o->settings));
    TRY(training_length_of(o->settings, epoch, (double)t->update_samples, &t->length));
    TRY(schedule_open(&t->schedule, o->settings, ranks, t->length.total_samples, epoch));
    t->delay_rate = delay_rate_of(o->settings);
    t->may_skip = strcmp(options_text(o->settings, "on_nonfinite"), "skip") == 0;
    t->verify_every = (uint64_t)options_integer(o->settings, "verify_every");
    local_sgd_open(&t->local, o->settings, epoch);
    TRY(sync_batch_norm_open(&t->joint, o->worker, t->c));
    TRY(o->virtual != NULL
            ? replica_open_virtual(&t->replica, o->virtual, o->settings, o->worker, t->c)
            : replica_open(&t->replica, o->settings, o->worker, t->c));
    const bool keeps = o->start != NULL || options_text(o->settings, "checkpoint")[0] != '\0';
    TRY(rank_state_open(&t->rank_state, t->replica, keeps));
    TRY(replica_check_begin(t->c, t->replica, &t->rank_state, o->start, &begin, waiting));
    resume(t, &begin, waiting);
    TRY(sync_metrics_open(&t->report, o, &t->length, &begin));
done:
    return result;
}

static void trainer_close(struct trainer *t)
{
    sync_metrics_close(&t->report);
    rank_state_close(&t->rank_state);
    replica_close(&t->replica);
    sync_batch_norm_close(&t->joint);
}

static void outcome_of(const struct trainer *t, struct training_outcome *out)
{
    out->updates = t->updates;
    out->samples_used = t->samples;
    out->samples_computed = samples_computed(t) + (t->skipped + t->unused) * t->update_samples;
    out->train_seconds = sync_metrics_state_seconds(&t->report);
    out->sent_bytes = sent_bytes(t);
    out->staleness = t->staleness;
}

/* The outcome of a run that failed. If the GPU failed, there is no digest. The message of the error
 * that ended the run is kept. */
static void outcome_of_failure(const struct trainer *t, struct training_outcome *out)
{
    const struct error why = error_save();
    outcome_of(t, out);
    if (replica_check_digest(t->replica, out->parameters_sha256) != OK)
        out->parameters_sha256[0] = '\0';
    error_restore(&why);
}

/* If the run is asked to stop, gradients that wait go into the last checkpoint. */
static bool goes_on(const struct trainer *t)
{
    return wants_more(t) || (t->waiting.count > 0 && !t->stopped && !time_is_over(t));
}

status sync_trainer_run(const struct sync_trainer_options *o, struct training_outcome *out)
{
    status result = OK;
    struct trainer t = {0};

    *out = (struct training_outcome){0};
    TRY(trainer_open(&t, o));
    TRY(sync_metrics_begin(&t.report));
    worker_hold_memory(o->worker);
    const bool resumed_at_end = !goes_on(&t);
    while (goes_on(&t))
        TRY(next_step(&t));
    struct sync_metrics_state last = state_of(&t);
    if (resumed_at_end || (time_is_over(&t) && t.report.evaluated != t.updates + 1))
        TRY(sync_metrics_evaluate(&t.report, &last));
    TRY(sync_metrics_end(&t.report, &last));
    outcome_of(&t, out);
    TRY(replica_check_compare(t.c, t.replica, t.updates, out->parameters_sha256));
    if (t.samples < t.length.total_samples && !time_is_over(&t))
        FAIL(STOPPED, "stopped on request after %llu updates", (unsigned long long)t.updates);
done:
    if (result != OK && result != STOPPED && t.report.begun)
        outcome_of_failure(&t, out);
    worker_forget_memory(o->worker);
    trainer_close(&t);
    return result;
}
