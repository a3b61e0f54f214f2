/*
 * pipeline_async.c — a pipeline that never runs empty (PipeDream). Each mini-batch is an update of
 * each stage as soon as its backward is complete. The backward reads the weights that its forward
 * read; the stage keeps them meanwhile. So stage k of K applies gradients that are K − 1 − k
 * updates old.
 *
 * The version that a forward reads depends only on the order of actions, not on times: such a run
 * repeats bit for bit. Ranks synchronise only to gather rows, evaluate and write checkpoints, all
 * at the same update number. Other information travels with the messages: the first stage marks
 * the last unit, and a stage that sees a value that is not finite tells both neighbours.
 */
#include "base/clock.h"
#include "base/memory.h"
#include "sync/pipeline/pipeline_loop.h"

#include <math.h>
#include <string.h>

enum note { NOTE_LOSS, NOTE_DIVERGED, NOTE_LAST, NOTE_STOP = NOTE_LAST };

struct push_row { /* one stage's update */
    double loss, rate, gap, norm, at_seconds;
    float pull_us, compute_us, apply_us, queue_us, forward_us, backward_us;
    uint64_t read_version, version; /* versions at its forward and before its update */
    uint64_t reason;                /* enum push_reason: why it was not used */
};

struct async {
    struct pipeline_loop *l;
    uint64_t units; /* of the run; fewer after a request to stop */
    uint64_t done;  /* units whose backward is complete */
    bool records, stopping;
    struct push_row *rows, *gathered;
    unsigned row_count;
};

/* ---- rows ---------------------------------------------------------------------------------------
 */

static void record(const struct async *a, uint64_t unit, unsigned rank, const struct push_row *row)
{
    const bool used = row->reason == PUSH_USED;
    struct push_record push = {.arrival = unit * a->l->c->size + rank,
                               .update_version = row->version + used,
                               .worker = rank,
                               .waited_for = NO_WORKER,
                               .batch = unit,
                               .sequence = unit,
                               .read_version = row->read_version,
                               .staleness = row->version - row->read_version,
                               .scale = 1,
                               .rate = used ? row->rate : NOT_MEASURED,
                               .gap = row->gap,
                               .gradient_norm = row->norm,
                               .loss = row->loss,
                               .outcome = used ? PUSH_APPLIED : PUSH_NOT_FINITE,
                               .reason = (enum push_reason)row->reason,
                               .pull_us = row->pull_us,
                               .compute_us = row->compute_us,
                               .queue_us = row->queue_us,
                               .apply_us = row->apply_us,
                               .forward_us = row->forward_us,
                               .backward_us = row->backward_us,
                               .at_seconds = row->at_seconds,
                               .cosine = NOT_MEASURED,
                               .momentum = NOT_MEASURED,
                               .total_momentum = NOT_MEASURED};
    recorder_push(a->l->o->recorder, &push);
}

static status gather_rows(struct async *a)
{
    status result = OK;
    const unsigned count = a->row_count, size = a->l->c->size;
    if (count == 0)
        return OK;
    TRY(communicator_gather_all(a->l->c, a->rows, count * sizeof *a->rows, a->gathered));
    for (unsigned i = 0; a->l->c->rank == 0 && a->l->o->recorder != NULL && i < count; i++)
        for (unsigned rank = 0; rank < size; rank++)
            record(a, a->done - count + i, rank, &a->gathered[rank * count + i]);
    a->row_count = 0;
done:
    return result;
}

/* ---- one unit -----------------------------------------------------------------------------------
 */

static void mark_diverged(struct async *a)
{
    a->l->p.idle = true;
    a->stopping = true;
}

static status forward(struct async *a, uint64_t unit)
{
    status result = OK;
    struct pipeline_stage *p = &a->l->p;
    struct pipeline_slot *s = &p->slots[unit % p->slot_count];
    float notes[COMMUNICATOR_NOTES] = {0};

    if (p->link.stage > 0)
        TRY(link_receive(&p->link, LINK_FORWARD, notes, COMMUNICATOR_NOTES));
    else
        notes[NOTE_LAST] = a->stopping;
    if (notes[NOTE_LAST] != 0)
        a->units = unit + 1;
    if (notes[NOTE_DIVERGED] != 0)
        mark_diverged(a);
    if (p->link.stage + 1 < p->plan.stages) {
        TRY(link_wait_sent(&p->link, LINK_FORWARD, &s->forward_notes_request));
        notes[NOTE_DIVERGED] = p->idle;
        memcpy(s->forward_notes, notes, sizeof notes);
        TRY(link_send(&p->link, LINK_FORWARD, s->forward_notes, COMMUNICATOR_NOTES,
                      &s->forward_notes_request));
    }
    TRY(pipeline_stage_forward(p, unit, unit, 0));
done:
    return result;
}

/* Receives the notes of the unit's loss from the next stage and passes them to the stage before. */
static status pass_loss_down(struct async *a, struct pipeline_slot *s, float *loss)
{
    status result = OK;
    struct pipeline_stage *p = &a->l->p;
    float notes[COMMUNICATOR_NOTES] = {[NOTE_LOSS] = s->loss};

    if (p->link.stage + 1 < p->plan.stages)
        TRY(link_receive(&p->link, LINK_BACKWARD, notes, COMMUNICATOR_NOTES));
    if (notes[NOTE_DIVERGED] != 0 || !isfinite(notes[NOTE_LOSS]))
        mark_diverged(a);
    *loss = notes[NOTE_LOSS];
    if (p->link.stage > 0) {
        TRY(link_wait_sent(&p->link, LINK_BACKWARD, &s->backward_notes_request));
        notes[NOTE_DIVERGED] = p->idle;
        memcpy(s->backward_notes, notes, sizeof notes);
        TRY(link_send(&p->link, LINK_BACKWARD, s->backward_notes, COMMUNICATOR_NOTES,
                      &s->backward_notes_request));
    }
done:
    return result;
}

/* The mean over replicas of the gradient and of the notes behind it. */
static status exchange(struct async *a, float *loss)
{
    status result = OK;
    struct pipeline_stage *p = &a->l->p;
    float *notes = p->gradient + p->part->count;

    notes[NOTE_LOSS] = *loss;
    notes[NOTE_DIVERGED] = p->idle;
    notes[NOTE_STOP] = training_stop_wanted(&a->l->o->hooks);
    notes[3] = 0;
    TRY(link_mean(&p->link, p->gradient, p->part->count + COMMUNICATOR_NOTES));
    *loss = notes[NOTE_LOSS];
    if (notes[NOTE_DIVERGED] != 0)
        mark_diverged(a);
    if (notes[NOTE_STOP] != 0)
        a->stopping = true;
done:
    return result;
}

/* *out ← whether any rank knows of a divergence. Collective. */
static status any_diverged(struct async *a, bool *out)
{
    status result = OK;
    float notes[COMMUNICATOR_NOTES] = {[NOTE_DIVERGED] = a->l->p.idle};
    TRY(link_notes(&a->l->p.link, notes));
    *out = notes[NOTE_DIVERGED] != 0;
done:
    return result;
}

/* Every rank calls it after each unit, also after a divergence, because it is collective. After a
 * divergence the stages have different versions, so no checkpoint is written. */
static status report_update(struct async *a, struct pipeline_slot *s, const struct push_row *row)
{
    status result = OK;
    struct pipeline_loop *l = a->l;
    const uint64_t samples = a->done * l->update_samples;
    const bool barrier = sync_metrics_has_barrier(&l->report, samples);
    bool gathers, diverged;

    if (a->records)
        a->rows[a->row_count++] = *row;
    gathers = barrier || a->row_count == PIPELINE_ROWS;
    /* At a barrier this rank sleeps, and MPI moves no data meanwhile. The stage before needs this
     * rank's messages to reach the barrier, so it must receive them first. */
    if (gathers) {
        TRY(link_wait_sent(&l->p.link, LINK_BACKWARD, &s->backward_notes_request));
        TRY(link_wait_sent(&l->p.link, LINK_BACKWARD, &s->backward));
        TRY(gather_rows(a));
        TRY(passes_record_all(&l->p.passes, l->o->recorder));
    }
    if (barrier && l->report.checkpoints) {
        TRY(any_diverged(a, &diverged));
        l->report.checkpoints = !diverged;
    }
    l->samples = samples;
    struct sync_metrics_state now = {
        .updates = a->done, .samples = samples, .replica = &l->p.whole};
    TRY(sync_metrics_update(&l->report, &now, &(struct step_record){.loss = row->loss}, row->loss));
done:
    return result;
}

static status backward(struct async *a, uint64_t unit, uint64_t waited_before, uint64_t begun)
{
    status result = OK;
    struct pipeline_loop *l = a->l;
    struct pipeline_stage *p = &l->p;
    struct pipeline_slot *s = &p->slots[unit % p->slot_count];
    const uint64_t before = unit * l->update_samples, after = before + l->update_samples;
    struct optimizer_pass pass = {
        .finite = true, .gap = NOT_MEASURED, .gradient_norm = NOT_MEASURED};
    float loss;

    TRY(pass_loss_down(a, s, &loss));
    TRY(pipeline_stage_backward(p, unit, unit, false));
    uint64_t computed = clock_ns();
    TRY(exchange(a, &loss));
    uint64_t exchanged = clock_ns();
    struct push_row row = {.loss = loss,
                           .rate = schedule_rate(&l->schedule, before, after),
                           .read_version = s->version,
                           .version = p->version,
                           .reason = isfinite(loss) ? PUSH_RUN_DIVERGED : PUSH_BAD_LOSS,
                           .queue_us = (float)(exchanged - computed) * 1e-3f,
                           .pull_us = (float)(p->link.waited_ns - waited_before) * 1e-3f,
                           .compute_us = (float)(p->forward_ns + p->backward_ns) * 1e-3f,
                           .forward_us = passes_kept(&p->passes) ? (float)p->forward_ns * 1e-3f : 0,
                           .backward_us =
                               passes_kept(&p->passes) ? (float)p->backward_ns * 1e-3f : 0,
                           .at_seconds = sync_metrics_seconds(&l->report)};
    if (!p->idle) {
        pipeline_stage_apply(p, row.rate, schedule_epoch(&l->schedule, before, after),
                             s->version != p->version ? s->parameters : NULL, &pass);
        if (pass.finite)
            p->version++;
        else
            mark_diverged(a);
        row.reason = pass.finite ? PUSH_USED : PUSH_BAD_GRADIENT;
    }
    row.apply_us = (float)(clock_ns() - exchanged) * 1e-3f;
    row.gap = pass.gap;
    row.norm = pass.gradient_norm;
    l->busy_ns += p->forward_ns + p->backward_ns;
    l->span_ns += computed - begun;
    p->forward_ns = p->backward_ns = 0;
    a->done = unit + 1;
    TRY(report_update(a, s, &row));
done:
    return result;
}

/* ---- the run ------------------------------------------------------------------------------------
 */

static status run(struct async *a)
{
    status result = OK;
    struct pipeline_stage *p = &a->l->p;
    uint64_t begun = clock_ns(), waited = p->link.waited_ns;

    for (uint64_t n = 0; n < 2 * a->units; n++) {
        struct pipeline_action next = p->kind->action(p->link.stage, p->plan.stages, a->units, n);
        if (next.backward) {
            TRY(backward(a, next.unit, waited, begun));
            begun = clock_ns();
            waited = p->link.waited_ns;
        } else {
            TRY(forward(a, next.unit));
        }
    }
    TRY(pipeline_stage_wait_sent(p));
    TRY(gather_rows(a));
done:
    return result;
}

static status check_divergence(struct async *a)
{
    status result = OK;
    bool diverged;
    TRY(any_diverged(a, &diverged));
    if (diverged) {
        FAIL(
            ERROR_DIVERGED,
            "a loss or gradient, or its square, was not finite at update %llu or before: lower lr, "
            "or warm up for longer",
            (unsigned long long)a->done);
    }
done:
    return result;
}

status pipeline_without_flush(struct pipeline_loop *l)
{
    status result = OK;
    struct async a = {.l = l};
    const uint64_t total = l->length.total_samples;

    a.units = total / l->update_samples + (total % l->update_samples != 0);
    a.records = l->report.records_steps;
    l->report.records_steps = false; /* gather_rows records rows of `push` instead */
    TRY(memory_new(&a.rows, PIPELINE_ROWS, sizeof *a.rows, "rows"));
    TRY(memory_new(&a.gathered, (size_t)PIPELINE_ROWS * l->c->size, sizeof *a.gathered, "rows"));
    TRY(run(&a));
    TRY(check_divergence(&a));
done:
    memory_free(a.rows);
    memory_free(a.gathered);
    return result;
}
