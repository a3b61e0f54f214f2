/*
 * trainer_apart.c — key local_steps: compute and apply by oneself, so many times, then exchange
 * parameters (apart.h). Who fails on the way goes through the motions, as rows are gathered on it,
 * and says so at the exchange.
 */
#include "sync/trainer_loop.h"

#include <math.h>

/* Where it is not finite θ stays, and *finite is false. */
static status step_alone(struct trainer_loop *l, struct made *m, bool *finite,
                         struct report_row *row)
{
    status result = OK;
    TRY(trainer_gradient(l, 1, &m->stats));
    const uint64_t computed = clock_ns();
    TRY(trainer_update(l, 1, finite));
    *row = report_row_of(&m->stats, 0, clock_ns() - computed);
done:
    return result;
}

status trainer_apart_steps(struct trainer_loop *l, unsigned steps)
{
    status result = OK;
    struct made m = {.batches = steps};
    struct report_row row = {0};
    double loss = 0;
    bool finite = true;
    for (unsigned i = 0; i < steps; i++) {
        if (m.own == OK && finite)
            m.own = step_alone(l, &m, &finite, &row);
        l->samples += l->update_samples;
        l->updates++;
        loss += (double)m.stats.loss;
        struct report_state now = trainer_state(l);
        now.apart = true;
        if (i + 1 < steps)
            TRY(report_update(&l->report, &now, &row, 0));
    }
    m.stats.loss = finite ? (float)(loss / steps) : NAN;
    trainer_note(l, &m);
    const uint64_t began = clock_ns();
    TRY(replica_average(l->replica, l->apart.momentum, m.notes));
    row.exchange_us = (float)(clock_ns() - began) * 1e-3f;
    TRY(trainer_judge(l, &m));
    if (!isfinite(m.notes[NOTE_LOSS]))
        TRY(trainer_skip(l, steps, "loss or the gradient of a rank, or its square,"));
    TRY(trainer_tell(l, &row, m.notes[NOTE_LOSS]));
done:
    return result;
}
