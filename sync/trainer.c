/*
 * trainer.c — one synchronous rank, whole. Beside it: ps/trainer.c, which pushes its gradient to
 * the server where this one exchanges it with its peers and applies the update itself.
 *
 * Every rank holds the same parameters, bit for bit, and nobody sends them: all apply the same mean
 * gradient with the same code. What they tell meanwhile is in sync/report.c.
 */
#include "sync/trainer.h"

#include "sync/alike.h"
#include "sync/joint.h"
#include "sync/report.h"
#include "worker/schedule.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* What travels behind the gradient, so that it costs no message of its own: means over ranks. */
enum note { NOTE_LOSS, NOTE_FAILED, NOTE_STOP };

/* This rank's gradient of a batch, or its mean over some, until it is used. */
struct made {
    bool there;
    bool exchanged; /* the replica's gradient and the notes are means already */
    unsigned batches;
    status own;       /* how it went here */
    uint64_t version; /* it was computed at */
    float notes[COMMUNICATOR_NOTES];
    struct step_stats stats;
};

struct loop {
    const struct sync_trainer_options *o;
    communicator *c;
    uint64_t update_samples; /* in all ranks' batches together */
    struct training_length length;
    struct schedule schedule;
    struct joint joint;
    replica *replica; /* parameters, gradient, optimizer: in the host's memory or on the GPU */
    struct apart apart;
    uint64_t updates, samples;
    uint64_t batches; /* of each rank, computed */
    /* Of them, those of steps whose gradient or loss was not finite: no update (on_nonfinite). */
    uint64_t skipped;
    uint64_t skipped_last; /* updates in a row */
    double sent_before;    /* bytes, in the runs that this one goes on from */
    bool may_skip, stopped;
    uint64_t verify_every, verified; /* updates; as of the last time */
    bool late;                       /* double buffering */
    struct made waiting;             /* late: computed, and used when the next one is */
    struct kept kept;
    struct report report;
};

/* Then it is no accident. */
enum { SKIPPED_MOST = 10 };

/* What takes one gradient after the other, each an update of all. */
static status check_one_by_one(const struct loop *l)
{
    status result = OK;
    const bool apart = l->apart.steps > 1;
    if (!apart && l->schedule.largest_growth == 1)
        return OK;
    if (l->replica->late)
        FAIL(ERROR_USAGE, "double_buffering=yes does not go with local_steps or decay=batch: what "
                          "would be exchanged meanwhile is not there yet; leave one of them out");
    if (apart && l->may_skip)
        FAIL(ERROR_USAGE, "on_nonfinite=skip does not go with local_steps: ranks that are apart do "
                          "not skip together; leave one of them out");
done:
    return result;
}

/* Where a checkpoint's run had come to; `losses`: of the gradient that waits. */
static status go_on(struct loop *l, const struct training_state *begin, const float losses[2])
{
    status result = OK;
    l->updates = l->verified = begin->updates;
    l->samples = begin->samples;
    l->skipped = begin->skipped;
    l->skipped_last = begin->skipped_last;
    l->sent_before = begin->sent_bytes;
    l->batches = l->samples / l->update_samples + l->skipped;
    if (begin->updates == 0)
        return OK;
    if (l->samples >= l->length.total_samples) {
        FAIL(ERROR_USAGE,
             "the checkpoint to go on from is of the end: %llu of %llu samples are used already",
             (unsigned long long)l->samples, (unsigned long long)l->length.total_samples);
    }
    if (l->late && begin->waiting == NULL)
        FAIL(ERROR_USAGE, "resume: the checkpoint lacks the gradient that waited with "
                          "double_buffering=yes: it was written by an older version; initial= "
                          "starts anew from its parameters");
    if (l->late) {
        l->waiting = (struct made){.there = true,
                                   .exchanged = true,
                                   .batches = 1,
                                   .version = begin->waiting_version,
                                   .notes[NOTE_LOSS] = losses[1],
                                   .stats.loss = losses[0]};
        l->batches++;
    }
done:
    return result;
}

static status loop_open(struct loop *l, const struct sync_trainer_options *o)
{
    status result = OK;
    uint64_t epoch = worker_epoch_samples(o->worker);
    struct training_state begin;
    float losses[2] = {0, 0};

    l->o = o;
    l->c = o->communicator;
    l->update_samples = (uint64_t)options_integer(o->settings, "batch") * l->c->size;
    TRY(training_length_of(o->settings, epoch, l->update_samples, &l->length));
    TRY(schedule_open(&l->schedule, o->settings, l->c->size, l->length.total_samples, epoch));
    l->may_skip = strcmp(options_text(o->settings, "on_nonfinite"), "skip") == 0;
    l->verify_every = (uint64_t)options_integer(o->settings, "verify_every");
    apart_open(&l->apart, o->settings, epoch);
    TRY(joint_open(&l->joint, o->settings, o->worker, l->c));
    TRY(replica_open(&l->replica, o->settings, o->worker, l->c));
    l->late = l->replica->late;
    TRY(check_one_by_one(l));
    const bool keeps = o->start != NULL || options_text(o->settings, "checkpoint")[0] != '\0';
    TRY(kept_open(&l->kept, l->replica, keeps && l->c->rank == 0));
    TRY(alike_begin(l->c, l->replica, &l->kept, o->start, &begin, losses));
    TRY(go_on(l, &begin, losses));
    TRY(report_open(&l->report, o, &l->length, &begin));
    if (begin.updates > 0) {
        char text[64];
        snprintf(text, sizeof text, "from update %llu", (unsigned long long)begin.updates);
        report_event(&l->report, SEVERITY_INFO, "resumed", text);
    }
done:
    return result;
}

static void loop_close(struct loop *l)
{
    report_close(&l->report);
    kept_close(&l->kept);
    replica_close(&l->replica);
    joint_close(&l->joint);
}

static bool stop_wanted(const struct sync_trainer_options *o)
{
    return o->hooks.stop != NULL && *o->hooks.stop != 0;
}

/* Every rank comes to the same verdict: it is made of means. */
static status judge(struct loop *l, status own, const float *notes)
{
    status result = OK;
    if (notes[NOTE_FAILED] != 0) {
        if (own != OK)
            return own;
        FAIL(ERROR_PEER, "another rank failed at update %llu; its message is above",
             (unsigned long long)l->updates);
    }
    l->stopped = l->stopped || notes[NOTE_STOP] != 0;
done:
    return result;
}

static double sent_bytes(const struct loop *l)
{
    return l->sent_before + communicator_sent_bytes(l->c);
}

/* For a checkpoint: a gradient that waits is exchanged now, which changes no bit of what follows,
 * as its mean is what all ranks have in common. */
static status complete(void *context, struct training_state *out)
{
    status result = OK;
    struct loop *l = context;
    struct made *m = &l->waiting;
    struct replica_view view;
    if (m->there && !m->exchanged) {
        replica_send(l->replica);
        TRY(replica_exchange(l->replica, m->notes));
        m->exchanged = true;
    }
    if (m->there) {
        TRY(judge(l, m->own, m->notes));
        TRY(replica_view(l->replica, &view));
        out->waiting = view.waiting;
        out->waiting_version = m->version;
    }
    out->skipped = l->skipped;
    out->skipped_last = l->skipped_last;
    out->sent_bytes = sent_bytes(l);
    const float losses[2] = {m->stats.loss, m->notes[NOTE_LOSS]};
    TRY(kept_gather(&l->kept, l->replica, losses, out));
done:
    return result;
}

static struct report_state state_of(struct loop *l)
{
    return (struct report_state){.updates = l->updates,
                                 .samples = l->samples,
                                 .replica = l->replica,
                                 .complete = complete,
                                 .context = l};
}

/* All ranks skip an update, or none does: what is not finite is so in the mean. */
static status skip(struct loop *l, unsigned batches, const char *what)
{
    status result = OK;
    char text[128];
    if (!l->may_skip) {
        FAIL(ERROR_DIVERGED, "the %s is not finite at update %llu: lower lr, or warm up for longer",
             what, (unsigned long long)l->updates);
    }
    l->skipped += batches;
    if (++l->skipped_last > SKIPPED_MOST) {
        FAIL(ERROR_DIVERGED,
             "the %s is not finite at update %llu, for the %lluth time in a row: lower lr, or warm "
             "up for longer",
             what, (unsigned long long)l->updates, (unsigned long long)l->skipped_last);
    }
    snprintf(text, sizeof text, "the %s was not finite: update %llu was made of the next batch",
             what, (unsigned long long)l->updates);
    report_event(&l->report, SEVERITY_WARNING, "skipped", text);
done:
    return result;
}

/* θ ← update(θ, mean gradient); a failed update leaves θ as it was. */
static status apply(struct loop *l, unsigned batches, double loss, bool *applied)
{
    status result = OK;
    uint64_t after = l->samples + batches * l->update_samples;
    *applied = false;

    if (!isfinite(loss)) {
        TRY(skip(l, batches, "loss"));
        goto done;
    }
    l->replica->epoch = schedule_epoch(&l->schedule, l->samples, after);
    TRY(replica_apply(l->replica, schedule_rate(&l->schedule, l->samples, after), applied));
    if (!*applied) {
        TRY(skip(l, batches, "mean gradient"));
        goto done;
    }
    l->samples = after;
    l->updates++;
    l->skipped_last = 0;
done:
    return result;
}

/* Where a multiple of verify_every was passed. Its time is not training time. */
static status verify(struct loop *l)
{
    status result = OK;
    char digest[65];
    if (l->verify_every == 0 || l->updates / l->verify_every == l->verified / l->verify_every)
        return OK;
    l->verified = l->updates;
    report_pause(&l->report);
    TRY(alike_check(l->c, l->replica, l->updates, digest));
    report_go_on(&l->report);
done:
    return result;
}

/* Batches of each rank that are left, at most `wanted`. */
static unsigned batches_left(const struct loop *l, unsigned wanted)
{
    return apart_batches_left(l->length.total_samples - l->samples, l->update_samples, wanted);
}

/* This rank's mean gradient over its next batches; times are sums, the loss is a mean. */
static status gradient_of(struct loop *l, unsigned batches, struct step_stats *stats)
{
    status result = OK;
    struct step_stats one;
    *stats = (struct step_stats){0};
    for (unsigned i = 0; i < batches; i++) {
        TRY(replica_gradient(l->replica, l->batches++, &one));
        replica_gather(l->replica, i, batches);
        stats->loss += one.loss / (float)batches;
        stats->data_ns += one.data_ns;
        stats->compute_ns += one.compute_ns;
        stats->forward_ns += one.forward_ns;
        stats->backward_ns += one.backward_ns;
        stats->watch_ns += one.watch_ns;
    }
done:
    return result;
}

static void note(const struct loop *l, struct made *m)
{
    if (m->own != OK)
        log_error("rank %u: %s", l->c->rank, error_message());
    m->notes[NOTE_LOSS] = m->own == OK ? m->stats.loss : 0;
    m->notes[NOTE_FAILED] = m->own != OK;
    m->notes[NOTE_STOP] = stop_wanted(l->o);
}

/* An error is told at the exchange; but those who wait in a batch norm do not come there. */
static status compute(struct loop *l, struct made *m)
{
    const unsigned batches = batches_left(l, schedule_growth(&l->schedule, l->samples));
    *m = (struct made){.there = true, .batches = batches, .version = l->updates};
    m->own = gradient_of(l, batches, &m->stats);
    note(l, m);
    return l->joint.batch.shares > 0 ? m->own : OK;
}

static struct report_row row_of(const struct step_stats *stats, uint64_t exchange_ns,
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

/* Exchange, apply. `spent_ns`: on the exchange already, between operators. */
static status use(struct loop *l, struct made *m, uint64_t spent_ns)
{
    status result = OK;
    bool applied;
    uint64_t began = clock_ns();
    if (!m->exchanged)
        TRY(replica_exchange(l->replica, m->notes));
    uint64_t exchanged = clock_ns();
    TRY(judge(l, m->own, m->notes));
    uint64_t staleness = l->updates - m->version;
    TRY(apply(l, m->batches, m->notes[NOTE_LOSS], &applied));
    uint64_t ended = clock_ns();
    if (!applied)
        goto done;

    const uint64_t waited = l->replica->waited_ns;
    struct report_row row =
        row_of(&m->stats, exchanged - began + spent_ns + waited, ended - exchanged - waited);
    row.hidden_us = m->exchanged ? 0 : (float)l->replica->hidden_ns * 1e-3f;
    row.staleness = (float)staleness;
    struct report_state now = state_of(l);
    TRY(report_update(&l->report, &now, &row, m->notes[NOTE_LOSS]));
    TRY(verify(l));
done:
    return result;
}

static bool wants_more(const struct loop *l)
{
    return l->samples + (l->waiting.there ? l->update_samples : 0) < l->length.total_samples &&
           !l->stopped;
}

/* Compute, exchange, apply. */
static status step(struct loop *l)
{
    status result = OK;
    struct made m;
    TRY(compute(l, &m));
    TRY(use(l, &m, m.stats.watch_ns));
done:
    return result;
}

/* One of the steps of a rank by itself. Where it is not finite θ stays, and *finite is false. */
static status step_alone(struct loop *l, struct made *m, bool *finite, struct report_row *row)
{
    status result = OK;
    const uint64_t after = l->samples + l->update_samples;
    TRY(gradient_of(l, 1, &m->stats));
    uint64_t computed = clock_ns();
    l->replica->epoch = schedule_epoch(&l->schedule, l->samples, after);
    TRY(replica_apply(l->replica, schedule_rate(&l->schedule, l->samples, after), finite));
    *row = row_of(&m->stats, 0, clock_ns() - computed);
done:
    return result;
}

/* Compute, apply, by oneself and so many times; then exchange parameters (apart.h). Who fails on
 * the way goes through the motions, as rows are gathered on it, and says so at the exchange. */
static status steps_apart(struct loop *l, unsigned steps)
{
    status result = OK;
    struct made m = {0};
    struct report_row row = {0};
    double loss = 0;
    bool finite = true;
    for (unsigned i = 0; i < steps; i++) {
        if (m.own == OK && finite)
            m.own = step_alone(l, &m, &finite, &row);
        l->samples += l->update_samples;
        l->updates++;
        loss += (double)m.stats.loss;
        struct report_state now = state_of(l);
        now.apart = true;
        if (i + 1 < steps)
            TRY(report_update(&l->report, &now, &row, 0));
    }
    m.stats.loss = finite ? (float)(loss / steps) : NAN;
    note(l, &m);
    uint64_t began = clock_ns();
    TRY(replica_average(l->replica, l->apart.momentum, m.notes));
    row.exchange_us = (float)(clock_ns() - began) * 1e-3f;
    TRY(judge(l, m.own, m.notes));
    if (!isfinite(m.notes[NOTE_LOSS]))
        TRY(skip(l, steps, "loss or the gradient of a rank"));
    struct report_state now = state_of(l);
    TRY(report_update(&l->report, &now, &row, m.notes[NOTE_LOSS]));
    TRY(verify(l));
done:
    return result;
}

static status next_step(struct loop *l)
{
    const unsigned steps = apart_steps(&l->apart, &l->schedule, l->samples);
    return steps > 1 ? steps_apart(l, batches_left(l, steps)) : step(l);
}

/* The gradient made before travels while the next one is computed, and is applied after it: one
 * update late. When there are no more to compute, it is the last (ChainerMN's double buffering:
 * Akiba, Fukuda & Suzuki 2017). */
static status late_step(struct loop *l)
{
    status result = OK;
    struct made now = l->waiting, next = {0};
    if (now.there && !now.exchanged)
        replica_send(l->replica);
    if (wants_more(l) && now.own == OK)
        TRY(compute(l, &next));
    l->waiting = next; /* for a checkpoint in `use` */
    if (now.there)
        TRY(use(l, &now, next.stats.watch_ns));
done:
    return result;
}

/* Asked to stop, what waits goes into the last checkpoint, as it would into any other. */
static bool goes_on(const struct loop *l)
{
    return wants_more(l) || (l->waiting.there && !l->stopped);
}

static void outcome_of(const struct loop *l, struct training_outcome *out)
{
    out->updates = l->updates;
    out->samples_used = l->samples;
    out->samples_computed = l->samples + (l->skipped + l->waiting.there) * l->update_samples;
    out->train_seconds = report_seconds(&l->report);
    out->sent_bytes = sent_bytes(l);
}

/* After a failure: what is still to be had. A GPU that has failed gives nothing any more, and says
 * again why; the error stays the one that ended the run. */
static void keep_outcome(struct loop *l, struct training_outcome *out)
{
    const struct error why = error_kept();
    outcome_of(l, out);
    if (alike_digest(l->replica, out->parameters_sha256) != OK)
        out->parameters_sha256[0] = '\0';
    error_put_back(&why);
}

status sync_trainer_run(const struct sync_trainer_options *o, struct training_outcome *out)
{
    status result = OK;
    struct loop l = {0};

    *out = (struct training_outcome){0};
    TRY(loop_open(&l, o));
    TRY(report_begin(&l.report));
    worker_hold_memory(o->worker);
    while (goes_on(&l))
        TRY(l.late ? late_step(&l) : next_step(&l));
    struct report_state last = state_of(&l);
    TRY(report_end(&l.report, &last));
    outcome_of(&l, out);
    TRY(alike_check(l.c, l.replica, l.updates, out->parameters_sha256));
    if (l.samples < l.length.total_samples)
        FAIL(STOPPED, "stopped on request after %llu updates", (unsigned long long)l.updates);
done:
    if (result != OK && result != STOPPED && l.report.began_ns != 0)
        keep_outcome(&l, out);
    worker_forget_memory(o->worker);
    loop_close(&l);
    return result;
}
