/*
 * trainer.c — one synchronous rank, whole. Beside it: ps/trainer.c, which pushes its gradient to
 * the server where this one exchanges it with its peers and applies the update itself.
 *
 * Every rank holds the same parameters, bit for bit, and nobody sends them: all apply the same mean
 * gradient with the same code. What they tell meanwhile is in sync/report.c.
 */
#include "sync/trainer.h"

#include "sync/report.h"
#include "worker/schedule.h"

#include <math.h>
#include <string.h>

/* What travels behind the gradient, so that it costs no message of its own: means over ranks. */
enum note { NOTE_LOSS, NOTE_FAILED, NOTE_STOP };

struct loop {
    const struct sync_trainer_options *o;
    communicator *c;
    uint64_t update_samples; /* in all ranks' batches together */
    struct training_length length;
    struct schedule schedule;
    replica *replica; /* parameters, gradient, optimizer: in the host's memory or on the GPU */
    uint64_t updates, samples;
    bool stopped;
    struct report report;
};

static status loop_open(struct loop *l, const struct sync_trainer_options *o)
{
    status result = OK;
    uint64_t epoch = worker_epoch_samples(o->worker);

    l->o = o;
    l->c = o->communicator;
    l->update_samples = (uint64_t)options_integer(o->settings, "batch") * l->c->size;
    TRY(training_length_of(o->settings, epoch, l->update_samples, &l->length));
    TRY(schedule_open(&l->schedule, o->settings, l->c->size, l->length.total_samples, epoch));
    TRY(replica_open(&l->replica, o->settings, o->worker, l->c));
    TRY(report_open(&l->report, o, &l->length));
done:
    return result;
}

static void loop_close(struct loop *l)
{
    report_close(&l->report);
    replica_close(&l->replica);
}

static struct report_state state_of(const struct loop *l)
{
    return (struct report_state){
        .updates = l->updates, .samples = l->samples, .replica = l->replica};
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
    if (!isfinite(notes[NOTE_LOSS])) {
        FAIL(ERROR_DIVERGED,
             "the loss is not finite at update %llu: lower lr, or warm up for longer",
             (unsigned long long)l->updates);
    }
    l->stopped = notes[NOTE_STOP] != 0;
done:
    return result;
}

/* θ ← update(θ, mean gradient); a failed update leaves θ as it was. */
static status apply(struct loop *l)
{
    status result = OK;
    uint64_t after = l->samples + l->update_samples;
    bool finite;

    l->replica->epoch = schedule_epoch(&l->schedule, l->samples, after);
    TRY(replica_apply(l->replica, schedule_rate(&l->schedule, l->samples, after), &finite));
    if (!finite) {
        FAIL(ERROR_DIVERGED,
             "the mean gradient is not finite at update %llu: lower lr, or warm up for longer",
             (unsigned long long)l->updates);
    }
    l->samples = after;
    l->updates++;
done:
    return result;
}

/* Compute, exchange, apply. */
static status step(struct loop *l)
{
    status result = OK;
    float notes[COMMUNICATOR_NOTES] = {0};
    struct step_stats stats = {0};

    status own = replica_gradient(l->replica, l->updates, &stats);
    if (own != OK)
        log_error("rank %u: %s", l->c->rank, error_message());
    notes[NOTE_LOSS] = own == OK ? stats.loss : 0;
    notes[NOTE_FAILED] = own != OK;
    notes[NOTE_STOP] = stop_wanted(l->o);

    uint64_t computed = clock_ns();
    TRY(replica_exchange(l->replica, notes));
    uint64_t exchanged = clock_ns();
    TRY(judge(l, own, notes));
    TRY(apply(l));
    uint64_t applied = clock_ns();

    struct report_row row = {.loss = stats.loss,
                             .compute_us = (float)(stats.data_ns + stats.compute_ns) * 1e-3f,
                             .exchange_us = (float)(exchanged - computed + stats.watch_ns) * 1e-3f,
                             .apply_us = (float)(applied - exchanged) * 1e-3f,
                             .data_us = (float)stats.data_ns * 1e-3f,
                             .forward_us = (float)stats.forward_ns * 1e-3f,
                             .backward_us = (float)stats.backward_ns * 1e-3f,
                             .hidden_us = (float)l->replica->hidden_ns * 1e-3f};
    struct report_state now = state_of(l);
    TRY(report_update(&l->report, &now, &row, notes[NOTE_LOSS]));
done:
    return result;
}

/* The invariant of the whole mode, checked once: equal parameters on all ranks (that exchange). */
static status check_alike(struct loop *l, const struct training_outcome *out)
{
    status result = OK;
    enum { DIGEST = sizeof out->parameters_sha256 };
    char *all = NULL;

    if (l->c->kind->exchanges_nothing)
        return OK;
    TRY(memory_new(&all, l->c->size, DIGEST, "parameter digests"));
    TRY(communicator_gather_all(l->c, out->parameters_sha256, DIGEST, all));
    for (unsigned i = 1; i < l->c->size; i++) {
        if (memcmp(all, all + (size_t)i * DIGEST, DIGEST) != 0) {
            FAIL(ERROR_OTHER,
                 "rank %u ended with other parameters than rank 0 (%.12s…, not %.12s…): are all "
                 "ranks on the same kind of processor? reduction=ordered rules out the exchange",
                 i, all + (size_t)i * DIGEST, all);
        }
    }
done:
    memory_free(all);
    return result;
}

static status outcome_of(struct loop *l, struct training_outcome *out)
{
    status result = OK;
    struct sha256 digest;
    struct replica_view now;
    out->updates = l->updates;
    out->samples_used = out->samples_computed = l->samples;
    out->train_seconds = report_seconds(&l->report);
    out->sent_bytes = communicator_sent_bytes(l->c);
    TRY(replica_view(l->replica, &now));
    sha256_begin(&digest);
    sha256_add(&digest, now.parameters, worker_parameter_count(l->o->worker) * sizeof(float));
    sha256_end(&digest, out->parameters_sha256);
done:
    return result;
}

/* After a failure: what is still to be had. A GPU that has failed gives nothing any more, and says
 * again why; the error stays the one that ended the run. */
static status keep_outcome(struct loop *l, struct training_outcome *out, status failure)
{
    status result = OK;
    char *message = text_copy(error_message());
    if (outcome_of(l, out) != OK)
        out->parameters_sha256[0] = '\0';
    FAIL(failure, "%s", message != NULL ? message : "out of memory");
done:
    memory_free(message);
    return result;
}

status sync_trainer_run(const struct sync_trainer_options *o, struct training_outcome *out)
{
    status result = OK;
    struct loop l = {0};

    *out = (struct training_outcome){0};
    TRY(loop_open(&l, o));
    TRY(report_begin(&l.report));
    worker_hold_memory(o->worker);
    while (l.samples < l.length.total_samples && !l.stopped)
        TRY(step(&l));
    struct report_state last = state_of(&l);
    TRY(report_end(&l.report, &last));
    TRY(outcome_of(&l, out));
    TRY(check_alike(&l, out));
    if (l.samples < l.length.total_samples)
        FAIL(STOPPED, "stopped on request after %llu updates", (unsigned long long)l.updates);
done:
    if (result != OK && result != STOPPED && l.report.began_ns != 0)
        result = keep_outcome(&l, out, result);
    worker_forget_memory(o->worker);
    loop_close(&l);
    return result;
}
