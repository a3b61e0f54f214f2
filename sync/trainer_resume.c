/*
 * trainer_resume.c — where a checkpoint's run had come to, and what goes into one beside the
 * replica's view (kept.h).
 */
#include "sync/trainer_loop.h"

status trainer_resume(struct trainer_loop *l, const struct training_state *begin,
                      const float losses[2])
{
    status result = OK;
    l->updates = l->verified = begin->updates;
    l->samples = begin->samples;
    l->skipped = begin->skipped;
    l->skipped_last = begin->skipped_last;
    l->sent_before = begin->sent_bytes;
    l->batches = l->samples / l->update_samples + l->skipped;
    if (begin->updates == 0 || l->samples >= l->length.total_samples)
        return OK; /* no gradient waits */
    if (l->replica->late && begin->waiting == NULL)
        FAIL(ERROR_USAGE, "resume: the checkpoint lacks the gradient that waited with "
                          "double_buffering=yes: it was written by an older version; initial= "
                          "starts anew from its parameters");
    if (l->replica->late) {
        l->waiting = (struct made){.batches = 1,
                                   .exchanged = true,
                                   .version = begin->waiting_version,
                                   .notes[NOTE_LOSS] = losses[1],
                                   .stats.loss = losses[0]};
        l->batches++;
    }
done:
    return result;
}

/* A gradient that waits is exchanged now, which changes no bit of what follows, as its mean is what
 * all ranks have in common. */
status trainer_complete(void *context, struct training_state *out)
{
    status result = OK;
    struct trainer_loop *l = context;
    struct made *m = &l->waiting;
    struct replica_view view;
    if (m->batches > 0 && !m->exchanged) {
        replica_send(l->replica);
        TRY(replica_exchange(l->replica, m->notes));
        m->exchanged = true;
    }
    if (m->batches > 0) {
        TRY(trainer_judge(l, m));
        TRY(replica_view(l->replica, &view));
        out->waiting = view.waiting;
        out->waiting_version = m->version;
    }
    out->skipped = l->skipped;
    out->skipped_last = l->skipped_last;
    out->sent_bytes = trainer_sent_bytes(l);
    const float losses[2] = {m->stats.loss, m->notes[NOTE_LOSS]};
    TRY(kept_gather(&l->kept, l->replica, losses, out));
done:
    return result;
}
