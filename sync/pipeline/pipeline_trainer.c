/*
 * pipeline_trainer.c — one rank of a pipeline. Compare trainer.c: there a rank computes a whole
 * gradient. Here a rank computes its stage's part of the gradient, micro-batch by micro-batch.
 *
 * An update has three parts: the stage's forwards and backwards in the order of the pipeline's
 * kind, the mean over replicas, and the update of the stage's slice. Then the ranks exchange their
 * notes. Only if all values are finite does the new version become the current one.
 */
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/sha256.h"
#include "base/text.h"
#include "sync/pipeline/pipeline_loop.h"

#include <math.h>
#include <string.h>

/* Notes after every update: means over ranks. */
enum pipeline_trainer_note { NOTE_LOSS, NOTE_NOT_FINITE, NOTE_STOP, NOTE_SECONDS };

static status check_settings(const options *o, const worker *w)
{
    status result = OK;
    if (worker_place(w) != NULL)
        FAIL(ERROR_USAGE, "mode=pipeline computes on the CPU only; set device=cpu");
    if (strcmp(options_text(o, "decay"), "rate") != 0)
        FAIL(ERROR_USAGE, "decay=%s works in mode=sync only; set decay=rate for mode=pipeline",
             options_text(o, "decay"));
done:
    return result;
}

/* The largest number of passes between two gathers. With flushes these are the passes of whole
 * updates. Without flushes they include the passes by which a stage is ahead. */
static uint32_t passes_most(const struct pipeline_loop *l)
{
    enum { ROWS = 1024 };
    const uint32_t update = 2 * l->p.micro_batches;
    if (!l->p.kind->flushes)
        return PIPELINE_PASSES_MOST;
    return update > ROWS ? update : ROWS / update * update;
}

static status loop_open(struct pipeline_loop *l, const struct sync_trainer_options *o)
{
    status result = OK;
    uint64_t epoch = worker_epoch_samples(o->worker);
    const struct training_state begin = {0};
    unsigned stages, replicas;
    uint32_t micro_batches;

    l->o = o;
    l->c = o->communicator;
    TRY(check_settings(o->settings, o->worker));
    TRY(pipeline_shape(o->settings, &stages, &micro_batches));
    replicas = l->c->size / stages;
    l->update_samples = (uint64_t)options_integer(o->settings, "batch") * replicas;
    TRY(training_length_of(o->settings, epoch, (double)l->update_samples, &l->length));
    TRY(schedule_open(&l->schedule, o->settings, replicas, l->length.total_samples, epoch));
    TRY(pipeline_stage_open(&l->p, o));
    TRY(sync_metrics_open(&l->report, o, &l->length, &begin));
    TRY(passes_open(&l->p.passes, o->settings, l->c, &l->report, passes_most(l)));
done:
    return result;
}

static void loop_close(struct pipeline_loop *l)
{
    sync_metrics_close(&l->report);
    pipeline_stage_close(&l->p);
}

static struct sync_metrics_state state_of(struct pipeline_loop *l)
{
    return (struct sync_metrics_state){.updates = l->p.version,
                                       .samples = l->samples,
                                       .seconds = l->seconds,
                                       .replica = &l->p.whole};
}

/* ---- records of stages --------------------------------------------------------------------------
 */

struct stage_memory { /* one rank's */
    struct pipeline_memory memory;
    double busy_s, span_s;
};

static void record_stage(const struct pipeline_loop *l, unsigned rank, const struct stage_memory *t)
{
    struct text json = {0};
    const unsigned stages = l->p.plan.stages, k = rank % stages;
    const struct stage_part *part = &l->p.plan.part[k];
    const struct pipeline_memory *m = &t->memory;
    text_add(&json,
             "{\"stage\":%u,\"stages\":%u,\"replica\":%u,\"micro_batches\":%u,\"from\":\"%s\","
             "\"to\":\"%s\",\"parameters\":%zu,\"parameter_bytes\":%llu,\"stashed_bytes\":%llu,"
             "\"optimizer_bytes\":%llu,\"gradient_bytes\":%llu,\"activation_bytes\":%llu,"
             "\"message_bytes\":%llu,\"busy_seconds\":%.6f,\"span_seconds\":%.6f,"
             "\"bubble\":%.6f,\"bubble_formula\":%.6f}",
             k, stages, rank / stages, l->p.micro_batches, part->from, part->to, part->count,
             (unsigned long long)m->parameters, (unsigned long long)m->stashed,
             (unsigned long long)m->optimizer, (unsigned long long)m->gradient,
             (unsigned long long)m->activations, (unsigned long long)m->messages, t->busy_s,
             t->span_s, t->span_s > 0 ? 1 - t->busy_s / t->span_s : 0.0,
             l->p.kind->flushes ? pipeline_bubble(stages, l->p.micro_batches) : 0.0);
    recorder_event(l->o->recorder, sync_metrics_seconds(&l->report), SEVERITY_INFO, "stage",
                   (int)rank, json.at);
    text_free(&json);
}

/* Records the event "stage" of every rank and logs one line. */
static status record_stages(struct pipeline_loop *l)
{
    status result = OK;
    struct stage_memory own = {.memory = pipeline_stage_memory(&l->p),
                               .busy_s = (double)l->busy_ns * 1e-9,
                               .span_s = (double)l->span_ns * 1e-9};
    struct stage_memory *all = NULL;
    double busy = 0, span = 0;

    TRY(memory_new(&all, l->c->size, sizeof *all, "records of stages"));
    TRY(communicator_gather_all(l->c, &own, sizeof own, all));
    for (unsigned i = 0; l->c->rank == 0 && i < l->c->size; i++) {
        if (l->o->recorder != NULL)
            record_stage(l, i, &all[i]);
        busy += all[i].busy_s;
        span += all[i].span_s;
    }
    if (l->c->rank == 0 && span > 0 && l->p.kind->flushes) {
        log_info("%u stages, %u micro-batch%s: %.1f %% of the time in the bubble; %.1f %% if all "
                 "stages took the same time",
                 l->p.plan.stages, l->p.micro_batches, l->p.micro_batches == 1 ? "" : "es",
                 100 * (1 - busy / span),
                 100 * pipeline_bubble(l->p.plan.stages, l->p.micro_batches));
    }
done:
    memory_free(all);
    return result;
}

/* ---- an update ----------------------------------------------------------------------------------
 */

static status compute(struct pipeline_loop *l)
{
    status result = OK;
    struct pipeline_stage *p = &l->p;
    const uint64_t units = p->micro_batches;

    p->forward_ns = p->backward_ns = 0;
    p->loss = 0;
    for (uint64_t n = 0; n < 2 * units; n++) {
        struct pipeline_action a = p->kind->action(p->link.stage, p->plan.stages, units, n);
        if (a.backward)
            TRY(pipeline_stage_backward(p, a.unit, p->version, a.unit > 0));
        else
            TRY(pipeline_stage_forward(p, a.unit, p->version, (uint32_t)a.unit));
    }
done:
    return result;
}

/* All ranks decide the same, because the notes are means over ranks. */
static status check_notes(struct pipeline_loop *l, bool finite, float *loss)
{
    status result = OK;
    const bool last = l->p.link.stage + 1 == l->p.plan.stages;
    float notes[COMMUNICATOR_NOTES] = {0};

    notes[NOTE_LOSS] = last ? l->p.loss / (float)l->p.micro_batches : 0;
    notes[NOTE_NOT_FINITE] = !finite;
    notes[NOTE_STOP] = training_stop_wanted(&l->o->hooks);
    if (l->c->rank == 0)
        notes[NOTE_SECONDS] = (float)(sync_metrics_seconds(&l->report) * l->c->size);
    TRY(link_notes(&l->p.link, notes));
    *loss = notes[NOTE_LOSS] * (float)l->p.plan.stages;
    if (notes[NOTE_NOT_FINITE] != 0 || !isfinite(*loss)) {
        FAIL(ERROR_DIVERGED, "the %s is not finite at update %llu: lower lr, or warm up for longer",
             isfinite(*loss) ? "gradient, or its square," : "loss",
             (unsigned long long)l->p.version);
    }
    l->stopped = notes[NOTE_STOP] != 0;
    l->seconds = notes[NOTE_SECONDS];
done:
    return result;
}

static status step(struct pipeline_loop *l)
{
    status result = OK;
    struct pipeline_stage *p = &l->p;
    const uint64_t after = l->samples + l->update_samples;
    struct optimizer_pass pass;
    float loss;

    uint64_t begun = clock_ns();
    TRY(compute(l));
    TRY(pipeline_stage_wait_sent(p));
    l->computed = after;
    uint64_t computed = clock_ns();
    TRY(link_mean(&p->link, p->gradient, p->part->count));
    uint64_t exchanged = clock_ns();
    pipeline_stage_apply(p, schedule_rate(&l->schedule, l->samples, after),
                         schedule_epoch(&l->schedule, l->samples, after), NULL, &pass);
    uint64_t applied = clock_ns();
    TRY(check_notes(l, pass.finite, &loss));
    uint64_t checked = clock_ns();
    p->version++;
    l->samples = after;

    /* After its last backward a stage idles until the first stage has finished. */
    uint64_t busy = p->forward_ns + p->backward_ns;
    uint64_t span = computed - begun + (checked - applied);
    l->busy_ns += busy;
    l->span_ns += span;
    struct step_record row = {.loss = loss,
                              .compute_us = (double)busy * 1e-3,
                              .exchange_us = (double)(span - busy + exchanged - computed) * 1e-3,
                              .apply_us = (double)(applied - exchanged) * 1e-3,
                              .forward_us = (double)p->forward_ns * 1e-3,
                              .backward_us = (double)p->backward_ns * 1e-3};
    struct sync_metrics_state now = state_of(l);
    const double gathered_s = l->report.gathered_s;
    TRY(sync_metrics_update(&l->report, &now, &row, loss));
    if (l->report.gathered_s > gathered_s || passes_full(&p->passes, 2 * p->micro_batches))
        TRY(passes_record_all(&p->passes, l->o->recorder));
done:
    return result;
}

/* ---- the end ------------------------------------------------------------------------------------
 */

/* Compares the stages of all replicas; rank 0 computes the digest of all parameters. */
static status outcome_of(struct pipeline_loop *l, struct training_outcome *out)
{
    status result = OK;
    enum { DIGEST = sizeof out->parameters_sha256 };
    struct sha256 digest;
    char own[DIGEST] = "", *all = NULL;
    struct pipeline_stage *p = &l->p;

    TRY(replica_collect(&p->whole));
    if (l->c->rank == 0) {
        sha256_begin(&digest);
        sha256_add(&digest, p->all, p->whole.count * sizeof(float));
        sha256_end(&digest, out->parameters_sha256);
    }
    sha256_begin(&digest);
    sha256_add(&digest, pipeline_stage_parameters(p), p->part->count * sizeof(float));
    sha256_end(&digest, own);
    TRY(memory_new(&all, l->c->size, DIGEST, "parameter digests"));
    TRY(communicator_gather_all(l->c, own, DIGEST, all));
    for (unsigned i = p->plan.stages; i < l->c->size; i++) {
        const char *first = all + (size_t)(i % p->plan.stages) * DIGEST;
        if (memcmp(first, all + (size_t)i * DIGEST, DIGEST) != 0) {
            FAIL(ERROR_OTHER,
                 "rank %u ended with other parameters than rank %u, the same stage of the first "
                 "replica: are all ranks on the same type of processor?",
                 i, i % p->plan.stages);
        }
    }
done:
    memory_free(all);
    return result;
}

/* Bytes that all ranks send in an update, without collective notes: activations and their gradients
 * between stages, and a reduce-scatter and allgather of each stage's gradient over its replicas. */
static double sent_in_update(const struct pipeline_loop *l)
{
    const struct stage_plan *plan = &l->p.plan;
    const double replicas = l->c->size / plan->stages;
    const size_t notes = l->p.kind->flushes ? 0 : COMMUNICATOR_NOTES;
    double floats = 0;
    for (unsigned k = 0; k < plan->stages; k++) {
        floats += 2 * (replicas - 1) * (double)(plan->part[k].count + notes);
        if (k + 1 < plan->stages) {
            double crosses =
                (double)l->update_samples / replicas * (double)shape_count(plan->part[k].output);
            floats += 2 * replicas * (crosses + (double)notes);
        }
    }
    return floats * sizeof(float);
}

static void count_up(struct pipeline_loop *l, struct training_outcome *out)
{
    out->updates = l->p.version;
    out->sent_bytes = (double)out->updates * sent_in_update(l) + communicator_sent_bytes(l->c);
    out->samples_computed = l->computed > l->samples ? l->computed : l->samples;
    /* Without flushes units are in flight when a run diverges; they make no update. */
    out->samples_used = l->p.kind->flushes ? l->samples : out->updates * l->update_samples;
    out->staleness.gradients = l->p.kind->flushes ? out->updates : 0; /* all of staleness 0 */
    out->train_seconds = sync_metrics_seconds(&l->report);
}

/* After a divergence, on all ranks: records the rest of the rows. Keeps the error message. */
static void leave(struct pipeline_loop *l)
{
    const struct error why = error_save();
    sync_metrics_leave(&l->report);
    if (passes_record_all(&l->p.passes, l->o->recorder) != OK)
        log_error("%s", error_message());
    error_restore(&why);
}

status pipeline_trainer_run(const struct sync_trainer_options *o, struct training_outcome *out)
{
    status result = OK;
    struct pipeline_loop l = {0};
    struct sync_trainer_options own = *o;

    *out = (struct training_outcome){0};
    own.rank0_evaluates = true;
    TRY(loop_open(&l, &own));
    TRY(sync_metrics_begin(&l.report));
    while (l.p.kind->flushes && l.samples < l.length.total_samples && !l.stopped)
        TRY(step(&l));
    if (!l.p.kind->flushes)
        TRY(pipeline_without_flush(&l));
    struct sync_metrics_state last = state_of(&l);
    TRY(sync_metrics_end(&l.report, &last));
    count_up(&l, out);
    TRY(passes_record_all(&l.p.passes, o->recorder));
    TRY(record_stages(&l));
    TRY(outcome_of(&l, out));
    if (l.samples < l.length.total_samples)
        FAIL(STOPPED, "stopped on request after %llu updates", (unsigned long long)l.p.version);
done:
    if (result != OK && l.report.begun)
        count_up(&l, out);
    if (result == ERROR_DIVERGED && l.report.begun)
        leave(&l);
    if (result != OK && result != STOPPED && result != ERROR_DIVERGED)
        o->communicator->failed = true; /* perhaps on this rank only: closing waits for no rank */
    loop_close(&l);
    return result;
}
