/* trainer_ends.c — how a synchronous run begins, and what is left of it; see trainer_loop.h. */
#include "sync/trainer_loop.h"

#include "sync/alike.h"
#include "sync/trainer.h"

#include <stdio.h>
#include <string.h>

status sync_trainer_check(const options *o)
{
    status result = OK;
    const bool local_steps = options_integer(o, "local_steps") > 1;
    const bool whole = apart_or_growing(o) || strcmp(options_text(o, "compression"), "none") != 0;
    if (apart_or_growing(o) && strcmp(options_text(o, "double_buffering"), "yes") == 0)
        FAIL(ERROR_USAGE, "double_buffering=yes does not go with local_steps or decay=batch: what "
                          "would be exchanged meanwhile is not there yet; leave one of them out");
    if (local_steps && strcmp(options_text(o, "on_nonfinite"), "skip") == 0)
        FAIL(ERROR_USAGE, "on_nonfinite=skip does not go with local_steps: ranks that are apart do "
                          "not skip together; leave one of them out");
    if (whole && strcmp(options_text(o, "overlap"), "yes") == 0)
        FAIL(ERROR_USAGE,
             "overlap=yes: gradients are exchanged as a whole where they are compressed, with "
             "local_steps, decay=batch and batch_norm=synchronised; use overlap=auto");
done:
    return result;
}

status trainer_open(struct trainer_loop *l, const struct sync_trainer_options *o)
{
    status result = OK;
    uint64_t epoch = worker_epoch_samples(o->worker);
    struct training_state begin;
    float losses[2] = {0, 0};

    l->o = o;
    l->c = o->communicator;
    l->update_samples = (uint64_t)options_integer(o->settings, "batch") * l->c->size;
    TRY(sync_trainer_check(o->settings));
    TRY(training_length_of(o->settings, epoch, l->update_samples, &l->length));
    TRY(schedule_open(&l->schedule, o->settings, l->c->size, l->length.total_samples, epoch));
    l->may_skip = strcmp(options_text(o->settings, "on_nonfinite"), "skip") == 0;
    l->verify_every = (uint64_t)options_integer(o->settings, "verify_every");
    apart_open(&l->apart, o->settings, epoch);
    TRY(joint_open(&l->joint, o->settings, o->worker, l->c));
    TRY(replica_open(&l->replica, o->settings, o->worker, l->c));
    const bool keeps = o->start != NULL || options_text(o->settings, "checkpoint")[0] != '\0';
    TRY(kept_open(&l->kept, l->replica, keeps && l->c->rank == 0));
    TRY(alike_begin(l->c, l->replica, &l->kept, o->start, &begin, losses));
    TRY(trainer_resume(l, &begin, losses));
    TRY(report_open(&l->report, o, &l->length, &begin));
done:
    return result;
}

void trainer_close(struct trainer_loop *l)
{
    report_close(&l->report);
    kept_close(&l->kept);
    replica_close(&l->replica);
    joint_close(&l->joint);
}

bool trainer_wants_more(const struct trainer_loop *l)
{
    return l->samples + l->waiting.batches * l->update_samples < l->length.total_samples &&
           !l->stopped;
}

unsigned trainer_batches_left(const struct trainer_loop *l, unsigned wanted)
{
    return apart_batches_left(l->length.total_samples - l->samples, l->update_samples, wanted);
}

double trainer_sent_bytes(const struct trainer_loop *l)
{
    return l->sent_before + communicator_sent_bytes(l->c);
}

void trainer_outcome(const struct trainer_loop *l, struct training_outcome *out)
{
    out->updates = l->updates;
    out->samples_used = l->samples;
    out->samples_computed = l->samples + (l->skipped + l->waiting.batches) * l->update_samples;
    out->train_seconds = report_seconds(&l->report);
    out->sent_bytes = trainer_sent_bytes(l);
    out->staleness = l->staleness;
}

void trainer_count_staleness(struct trainer_loop *l, uint64_t staleness)
{
    l->staleness.gradients++;
    l->staleness.sum += (double)staleness;
    l->staleness.most = staleness > l->staleness.most ? staleness : l->staleness.most;
}

/* A GPU that has failed gives nothing any more, and says again why; the error stays the one that
 * ended the run. */
void trainer_failed(struct trainer_loop *l, struct training_outcome *out)
{
    const struct error why = error_kept();
    trainer_outcome(l, out);
    if (alike_digest(l->replica, out->parameters_sha256) != OK)
        out->parameters_sha256[0] = '\0';
    error_put_back(&why);
}
