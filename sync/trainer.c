/*
 * trainer.c — one synchronous rank. Beside it: ps/trainer.c, which pushes its gradient to the
 * server; this one exchanges its gradient with its peers and applies the update itself.
 *
 * All ranks hold the same parameters, bit for bit. No rank sends them: each rank applies the same
 * mean gradient with the same code. With engine=virtual this loop runs once for all ranks, with a
 * replica that stands for all of them (replica_virtual.h). In reading order:
 *
 *   what ranks decide together   failure, stop, skipped updates, equal parameters
 *   the gradient and the update  of one rank
 *   the three kinds of step      plain, double buffering, local SGD
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
#include "sync/replica_check.h"
#include "sync/run_metrics.h"
#include "sync/sync_batch_norm.h"
#include "worker/optimizer/schedule.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* More skipped updates in a row than this end the run. */
enum { SKIPPED_MOST = 10 };

/* Means over ranks that travel behind the gradient, so that they need no message of their own. */
enum trainer_note { NOTE_LOSS, NOTE_FAILED, NOTE_STOP };

/* One rank's mean gradient over some batches, until its update is made. */
struct pending {
    unsigned batches; /* 0: there is none */
    bool exchanged;   /* the replica's gradient and the notes are means over ranks */
    status own;       /* of this rank's computation */
    uint64_t version; /* updates applied when it was computed */
    float notes[COMMUNICATOR_NOTES];
    struct step_stats stats;
};

struct trainer {
    const struct sync_trainer_options *o;
    communicator *c;
    uint64_t update_samples; /* one batch of every rank */
    struct training_length length;
    struct schedule schedule;
    struct sync_batch_norm joint;
    replica *replica;
    struct local_sgd local;
    uint64_t updates, samples; /* applied; used */
    uint64_t batches;          /* computed by each rank */
    uint64_t skipped;          /* of these batches, without an update (on_nonfinite=skip) */
    uint64_t skipped_last;     /* updates skipped in a row */
    struct staleness_sum staleness;
    double sent_before; /* bytes, by the runs that this one resumes */
    bool may_skip, stopped;
    uint64_t verify_every, verified; /* updates; those at the last comparison */
    struct pending waiting;          /* double_buffering: its update is made in the next step */
    struct rank_state rank_state;
    struct sync_metrics report;
};

/* ---- what ranks decide together ------------------------------------------------------------- */

/* This rank's notes about its gradient, for the other ranks. */
static void fill_notes(const struct trainer *t, struct pending *m)
{
    if (m->own != OK)
        log_error("rank %u: %s", t->c->rank, error_message());
    m->notes[NOTE_LOSS] = m->own == OK ? m->stats.loss : 0;
    m->notes[NOTE_FAILED] = m->own != OK;
    m->notes[NOTE_STOP] = training_stop_wanted(&t->o->hooks);
}

/* All ranks read the same means: an error if any rank failed, and whether to stop. */
static status check_notes(struct trainer *t, const struct pending *m)
{
    status result = OK;
    if (m->notes[NOTE_FAILED] != 0) {
        if (m->own != OK)
            return m->own;
        FAIL(ERROR_PEER, "another rank failed at update %llu; see that rank's error message",
             (unsigned long long)t->updates);
    }
    t->stopped = t->stopped || m->notes[NOTE_STOP] != 0;
done:
    return result;
}

/* `what` is not finite: these batches make no update, or the run has diverged. */
static status skip(struct trainer *t, unsigned batches, const char *what)
{
    status result = OK;
    char text[128];
    if (!t->may_skip) {
        FAIL(ERROR_DIVERGED, "the %s is not finite at update %llu: lower lr, or warm up for longer",
             what, (unsigned long long)t->updates);
    }
    t->skipped += batches;
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

/* Batches of each rank that are left, at most `wanted`. */
static unsigned batches_left(const struct trainer *t, unsigned wanted)
{
    return local_sgd_batches_left(t->length.total_samples - t->samples, t->update_samples, wanted);
}

/* Whether there are samples without a gradient. */
static bool wants_more(const struct trainer *t)
{
    return t->samples + t->waiting.batches * t->update_samples < t->length.total_samples &&
           !t->stopped;
}

/* This rank's mean gradient over its next batches. */
static status gradient(struct trainer *t, unsigned batches, struct step_stats *stats)
{
    const uint64_t first = t->batches;
    t->batches += batches;
    return replica_gradients(t->replica, first, batches, stats);
}

/* The gradient of the next update. If it fails, this rank still calls the exchange, which
 * tells the others. With SyncBatchNorm, fail now: the peers block in batch norm and never reach the
 * exchange. */
static status compute(struct trainer *t, struct pending *m)
{
    const unsigned batches = batches_left(t, schedule_growth(&t->schedule, t->samples));
    *m = (struct pending){.batches = batches, .version = t->updates};
    m->own = gradient(t, batches, &m->stats);
    fill_notes(t, m);
    return t->joint.batch.shares > 0 ? m->own : OK;
}

/* θ ← update(θ, the replica's gradient). If that is not finite, *finite is false and θ as before.
 */
static status update(struct trainer *t, unsigned batches, bool *finite)
{
    const uint64_t after = t->samples + batches * t->update_samples;
    t->replica->epoch = schedule_epoch(&t->schedule, t->samples, after);
    return replica_apply(t->replica, schedule_rate(&t->schedule, t->samples, after), finite);
}

static status complete(void *context, struct training_state *out);

static struct sync_metrics_state state_of(struct trainer *t)
{
    return (struct sync_metrics_state){.updates = t->updates,
                                       .samples = t->samples,
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

/* Exchanges, applies and reports one update. `spent_ns`: time of this exchange that was spent
 * between operators of the computation. */
static status exchange_and_apply(struct trainer *t, struct pending *m, uint64_t spent_ns)
{
    status result = OK;
    const uint64_t began = clock_ns();
    if (!m->exchanged)
        TRY(replica_exchange(t->replica, m->notes));
    const uint64_t exchanged = clock_ns();
    TRY(check_notes(t, m));
    const double loss = m->notes[NOTE_LOSS];
    bool finite = isfinite(loss);
    if (finite)
        TRY(update(t, m->batches, &finite));
    if (!finite)
        return skip(t, m->batches, isfinite(loss) ? "mean gradient, or its square," : "loss");

    const uint64_t apply_ns = clock_ns() - exchanged, waited_ns = t->replica->waited_ns;
    struct step_record row = sync_metrics_row_of(
        &m->stats, exchanged - began + spent_ns + waited_ns, apply_ns - waited_ns);
    row.hidden_us = m->exchanged ? 0 : (double)t->replica->hidden_ns * 1e-3;
    row.staleness = t->updates - m->version;
    count_update(t, m, row.staleness);
    TRY(report_update(t, &row, loss));
done:
    return result;
}

/* ---- the three kinds of step ---------------------------------------------------------------- */

static status plain_step(struct trainer *t)
{
    status result = OK;
    struct pending m;
    TRY(compute(t, &m));
    TRY(exchange_and_apply(t, &m, m.stats.watch_ns));
done:
    return result;
}

/* Key double_buffering (ChainerMN: Akiba, Fukuda & Suzuki 2017): the gradient of the step before
 * travels while the next one is computed. Its update is made after that, one update late. The last
 * step computes nothing. */
static status double_buffering_step(struct trainer *t)
{
    status result = OK;
    struct pending now = t->waiting, next = {0};
    if (now.batches > 0 && !now.exchanged)
        replica_send(t->replica);
    if (wants_more(t) && now.own == OK)
        TRY(compute(t, &next));
    t->waiting = next; /* first: exchange_and_apply() may write a checkpoint */
    if (now.batches > 0)
        TRY(exchange_and_apply(t, &now, next.stats.watch_ns));
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

/* Key local_steps (local_sgd.h): each rank makes this many updates alone, then all average their
 * parameters. A rank that fails stops computing but still counts updates: the others gather rows
 * with it, and learn of the failure at the averaging. */
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
    if (!isfinite(m.notes[NOTE_LOSS]))
        TRY(skip(t, steps, "loss or the gradient of a rank, or its square,"));
    TRY(report_update(t, &row, m.notes[NOTE_LOSS]));
done:
    return result;
}

static status next_step(struct trainer *t)
{
    const unsigned steps = local_sgd_steps(&t->local, &t->schedule, t->samples);
    t->replica->local_update = steps > 1;
    return t->replica->double_buffered ? double_buffering_step(t)
           : steps > 1                 ? local_sgd_round(t, batches_left(t, steps))
                                       : plain_step(t);
}

/* ---- checkpoints ---------------------------------------------------------------------------- */

static double sent_bytes(const struct trainer *t)
{
    return t->sent_before + communicator_sent_bytes(t->c);
}

/* Adds to a checkpoint what the replica's view and the report lack. A gradient that waits is
 * exchanged now: its mean is the same on all ranks, and training continues with the same bits. */
static status complete(void *context, struct training_state *out)
{
    status result = OK;
    struct trainer *t = context;
    struct pending *m = &t->waiting;
    struct replica_view view;
    if (m->batches > 0 && !m->exchanged) {
        replica_send(t->replica);
        TRY(replica_exchange(t->replica, m->notes));
        m->exchanged = true;
    }
    if (m->batches > 0) {
        TRY(check_notes(t, m));
        TRY(replica_view(t->replica, &view));
        out->waiting = view.waiting;
        out->waiting_version = m->version;
    }
    out->skipped = t->skipped;
    out->skipped_last = t->skipped_last;
    out->sent_bytes = sent_bytes(t);
    const float losses[2] = {m->stats.loss, m->notes[NOTE_LOSS]};
    TRY(rank_state_gather(&t->rank_state, t->replica, losses, out));
done:
    return result;
}

/* `losses`: of a gradient that waits, this rank's own and the mean. */
static status resume(struct trainer *t, const struct training_state *begin, const float losses[2])
{
    status result = OK;
    t->updates = t->verified = begin->updates;
    t->samples = begin->samples;
    t->skipped = begin->skipped;
    t->skipped_last = begin->skipped_last;
    t->sent_before = begin->sent_bytes;
    t->batches = t->samples / t->update_samples + t->skipped;
    if (begin->updates == 0 || t->samples >= t->length.total_samples)
        return OK; /* no gradient waits */
    if (t->replica->double_buffered && begin->waiting == NULL)
        FAIL(ERROR_USAGE, "resume: the checkpoint lacks the gradient that waited with "
                          "double_buffering=yes: an older version wrote it; start anew from its "
                          "parameters with initial=");
    if (t->replica->double_buffered) {
        t->waiting = (struct pending){.batches = 1,
                                      .exchanged = true,
                                      .version = begin->waiting_version,
                                      .notes[NOTE_LOSS] = losses[1],
                                      .stats.loss = losses[0]};
        t->batches++;
    }
done:
    return result;
}

/* ---- the run -------------------------------------------------------------------------------- */

/* Call trainer_close also after an error. */
static status trainer_open(struct trainer *t, const struct sync_trainer_options *o)
{
    status result = OK;
    const unsigned ranks = sync_trainer_ranks(o);
    uint64_t epoch = worker_epoch_samples(o->worker);
    struct training_state begin;
    float losses[2] = {0, 0};

    t->o = o;
    t->c = o->communicator;
    t->update_samples = (uint64_t)options_integer(o->settings, "batch") * ranks;
    TRY(sync_trainer_check(o->settings));
    TRY(training_length_of(o->settings, epoch, t->update_samples, &t->length));
    TRY(schedule_open(&t->schedule, o->settings, ranks, t->length.total_samples, epoch));
    t->may_skip = strcmp(options_text(o->settings, "on_nonfinite"), "skip") == 0;
    t->verify_every = (uint64_t)options_integer(o->settings, "verify_every");
    local_sgd_open(&t->local, o->settings, epoch);
    TRY(sync_batch_norm_open(&t->joint, o->worker, t->c));
    TRY(o->virtual != NULL
            ? replica_open_virtual(&t->replica, o->virtual, o->settings, o->worker, t->c)
            : replica_open(&t->replica, o->settings, o->worker, t->c));
    const bool keeps = o->start != NULL || options_text(o->settings, "checkpoint")[0] != '\0';
    TRY(rank_state_open(&t->rank_state, t->replica, keeps && t->c->rank == 0));
    TRY(replica_check_begin(t->c, t->replica, &t->rank_state, o->start, &begin, losses));
    TRY(resume(t, &begin, losses));
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
    out->samples_computed = t->samples + (t->skipped + t->waiting.batches) * t->update_samples;
    out->train_seconds = sync_metrics_seconds(&t->report);
    out->sent_bytes = sent_bytes(t);
    out->staleness = t->staleness;
}

/* The outcome of a run that failed. A GPU that failed gives no digest; the error stays the one that
 * ended the run. */
static void outcome_of_failure(const struct trainer *t, struct training_outcome *out)
{
    const struct error why = error_save();
    outcome_of(t, out);
    if (replica_check_digest(t->replica, out->parameters_sha256) != OK)
        out->parameters_sha256[0] = '\0';
    error_restore(&why);
}

/* If the run is asked to stop, a gradient that waits goes into the last checkpoint. */
static bool goes_on(const struct trainer *t)
{
    return wants_more(t) || (t->waiting.batches > 0 && !t->stopped);
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
    if (resumed_at_end)
        TRY(sync_metrics_evaluate(&t.report, &last));
    TRY(sync_metrics_end(&t.report, &last));
    outcome_of(&t, out);
    TRY(replica_check_compare(t.c, t.replica, t.updates, out->parameters_sha256));
    if (t.samples < t.length.total_samples)
        FAIL(STOPPED, "stopped on request after %llu updates", (unsigned long long)t.updates);
done:
    if (result != OK && result != STOPPED && t.report.begun)
        outcome_of_failure(&t, out);
    worker_forget_memory(o->worker);
    trainer_close(&t);
    return result;
}
