/* trainer_verdict.c — what all ranks come to together, at the same update; see trainer_loop.h. */
#include "sync/trainer_loop.h"

#include "sync/alike.h"

#include <stdio.h>

/* Then it is no accident. */
enum { SKIPPED_MOST = 10 };

void trainer_note(const struct trainer_loop *l, struct made *m)
{
    if (m->own != OK)
        log_error("rank %u: %s", l->c->rank, error_message());
    m->notes[NOTE_LOSS] = m->own == OK ? m->stats.loss : 0;
    m->notes[NOTE_FAILED] = m->own != OK;
    m->notes[NOTE_STOP] = training_stop_wanted(&l->o->hooks);
}

status trainer_judge(struct trainer_loop *l, const struct made *m)
{
    status result = OK;
    if (m->notes[NOTE_FAILED] != 0) {
        if (m->own != OK)
            return m->own;
        FAIL(ERROR_PEER, "another rank failed at update %llu; its message is above",
             (unsigned long long)l->updates);
    }
    l->stopped = l->stopped || m->notes[NOTE_STOP] != 0;
done:
    return result;
}

status trainer_skip(struct trainer_loop *l, unsigned batches, const char *what)
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

/* Where a multiple of verify_every was passed. Its time is not training time. */
static status verify(struct trainer_loop *l)
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

struct report_state trainer_state(struct trainer_loop *l)
{
    return (struct report_state){.updates = l->updates,
                                 .samples = l->samples,
                                 .replica = l->replica,
                                 .complete = trainer_complete,
                                 .context = l};
}

status trainer_tell(struct trainer_loop *l, const struct report_row *row, double loss)
{
    status result = OK;
    struct report_state now = trainer_state(l);
    TRY(report_update(&l->report, &now, row, loss));
    TRY(verify(l));
done:
    return result;
}
