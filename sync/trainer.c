/*
 * trainer.c — one synchronous rank. Beside it: ps/trainer.c, which pushes its gradient to the
 * server where this one exchanges it with its peers and applies the update itself.
 *
 * Every rank holds the same parameters, bit for bit, and nobody sends them: all apply the same mean
 * gradient with the same code. What else there is has a file of its own: see trainer_loop.h.
 */
#include "sync/trainer_loop.h"

#include "sync/alike.h"

#include <math.h>

status trainer_gradient(struct trainer_loop *l, unsigned batches, struct step_stats *stats)
{
    status result = OK;
    struct step_stats one;
    *stats = (struct step_stats){0};
    for (unsigned i = 0; i < batches; i++) {
        TRY(replica_gradient(l->replica, l->batches++, &one));
        replica_gather(l->replica, i, batches);
        step_stats_add(stats, &one);
        stats->loss += one.loss / (float)batches;
    }
done:
    return result;
}

/* But those who wait for this rank in a batch norm do not come to the exchange. */
status trainer_compute(struct trainer_loop *l, struct made *m)
{
    const unsigned batches = trainer_batches_left(l, schedule_growth(&l->schedule, l->samples));
    *m = (struct made){.batches = batches, .version = l->updates};
    m->own = trainer_gradient(l, batches, &m->stats);
    trainer_note(l, m);
    return l->joint.batch.shares > 0 ? m->own : OK;
}

status trainer_update(struct trainer_loop *l, unsigned batches, bool *finite)
{
    const uint64_t after = l->samples + batches * l->update_samples;
    l->replica->epoch = schedule_epoch(&l->schedule, l->samples, after);
    return replica_apply(l->replica, schedule_rate(&l->schedule, l->samples, after), finite);
}

status trainer_use(struct trainer_loop *l, struct made *m, uint64_t spent_ns)
{
    status result = OK;
    const uint64_t began = clock_ns();
    if (!m->exchanged)
        TRY(replica_exchange(l->replica, m->notes));
    const uint64_t exchanged = clock_ns();
    TRY(trainer_judge(l, m));
    const double loss = m->notes[NOTE_LOSS];
    bool finite = isfinite(loss);
    if (finite)
        TRY(trainer_update(l, m->batches, &finite));
    if (!finite)
        return trainer_skip(l, m->batches,
                            isfinite(loss) ? "mean gradient, or its square," : "loss");

    const uint64_t apply_ns = clock_ns() - exchanged, waited_ns = l->replica->waited_ns;
    struct report_row row =
        report_row_of(&m->stats, exchanged - began + spent_ns + waited_ns, apply_ns - waited_ns);
    row.hidden_us = m->exchanged ? 0 : (float)l->replica->hidden_ns * 1e-3f;
    trainer_count_staleness(l, l->updates - m->version);
    row.staleness = (float)(l->updates - m->version);
    l->samples += m->batches * l->update_samples;
    l->updates++;
    l->skipped_last = 0;
    TRY(trainer_tell(l, &row, loss));
done:
    return result;
}

static status step(struct trainer_loop *l)
{
    status result = OK;
    struct made m;
    TRY(trainer_compute(l, &m));
    TRY(trainer_use(l, &m, m.stats.watch_ns));
done:
    return result;
}

static status next_step(struct trainer_loop *l)
{
    const unsigned steps = apart_steps(&l->apart, &l->schedule, l->samples);
    return l->replica->late ? trainer_late_step(l)
           : steps > 1      ? trainer_apart_steps(l, trainer_batches_left(l, steps))
                            : step(l);
}

/* Asked to stop, what waits goes into the last checkpoint, as it would into any other. */
static bool goes_on(const struct trainer_loop *l)
{
    return trainer_wants_more(l) || (l->waiting.batches > 0 && !l->stopped);
}

status sync_trainer_run(const struct sync_trainer_options *o, struct training_outcome *out)
{
    status result = OK;
    struct trainer_loop l = {0};

    *out = (struct training_outcome){0};
    TRY(trainer_open(&l, o));
    TRY(report_begin(&l.report));
    worker_hold_memory(o->worker);
    const bool resumed_at_end = !goes_on(&l);
    while (goes_on(&l))
        TRY(next_step(&l));
    struct report_state last = trainer_state(&l);
    if (resumed_at_end)
        TRY(report_evaluate(&l.report, &last));
    TRY(report_end(&l.report, &last));
    trainer_outcome(&l, out);
    TRY(alike_check(l.c, l.replica, l.updates, out->parameters_sha256));
    if (l.samples < l.length.total_samples)
        FAIL(STOPPED, "stopped on request after %llu updates", (unsigned long long)l.updates);
done:
    if (result != OK && result != STOPPED && l.report.began_ns != 0)
        trainer_failed(&l, out);
    worker_forget_memory(o->worker);
    trainer_close(&l);
    return result;
}
