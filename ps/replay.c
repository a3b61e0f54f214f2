/* replay.c — see replay.h. */
#include "ps/replay.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

struct replay {
    const struct replay_options *o;
    simulation *simulation;
    size_t *pushes;  /* the events that are pushes, worker by worker, in their order */
    size_t *first;   /* [workers + 1]: where each worker's begin */
    size_t *written; /* [workers]: of its records so far */
    double now;      /* of the last event; seconds of training */
    struct replay_difference *difference;
};

/* ---- comparing ----------------------------------------------------------------------------- */

static bool same(double a, double b)
{
    return a == b || (isnan(a) && isnan(b));
}

static void differ(struct replay *r, uint64_t number, const struct push_record *row,
                   const char *what, const char *recorded, const char *replayed)
{
    if (r->difference->found) {
        return;
    }
    r->difference->found = true;
    r->difference->number = number;
    snprintf(r->difference->text, sizeof r->difference->text,
             "update %" PRIu64 " (push number %" PRIu64 ": worker %u's %" PRIu64
             ", computed at version %" PRIu64 "): %s recorded as %s, replayed as %s",
             row->update_version, number, row->worker, row->sequence, row->read_version, what,
             recorded, replayed);
}

static void compare_counts(struct replay *r, const struct replay_event *event, const char *what,
                           uint64_t recorded, uint64_t replayed)
{
    char a[32], b[32];
    if (recorded != replayed) {
        snprintf(a, sizeof a, "%" PRIu64, recorded);
        snprintf(b, sizeof b, "%" PRIu64, replayed);
        differ(r, event->number, event->recorded, what, a, b);
    }
}

static void compare_numbers(struct replay *r, const struct replay_event *event, const char *what,
                            double recorded, double replayed)
{
    char a[32], b[32];
    if (!same(recorded, replayed)) {
        snprintf(a, sizeof a, "%.17g", recorded);
        snprintf(b, sizeof b, "%.17g", replayed);
        differ(r, event->number, event->recorded, what, a, b);
    }
}

/* What was computed, not how long it took. */
static void compare(struct replay *r, const struct replay_event *event,
                    const struct push_record *now)
{
    const struct push_record *then = event->recorded;
    compare_counts(r, event, "its sequence", then->sequence, now->sequence);
    compare_counts(r, event, "the version read", then->read_version, now->read_version);
    compare_counts(r, event, "the staleness", then->staleness, now->staleness);
    compare_counts(r, event, "the version made", then->update_version, now->update_version);
    compare_counts(r, event, "the outcome (code)", then->outcome, now->outcome);
    compare_numbers(r, event, "the loss", then->loss, now->loss);
    compare_numbers(r, event, "the scale", then->scale, now->scale);
    compare_numbers(r, event, "the gradient's norm", then->gradient_norm, now->gradient_norm);
    compare_numbers(r, event, "the gap", then->gap, now->gap);
    compare_numbers(r, event, "the momentum", then->momentum, now->momentum);
    compare_numbers(r, event, "the total momentum", then->total_momentum, now->total_momentum);
    if (!isnan(then->cosine) && !isnan(now->cosine)) { /* probe_every may be another one now */
        compare_numbers(r, event, "the cosine", then->cosine, now->cosine);
    }
    if (r->o->complete) {
        compare_counts(r, event, "its place among the arrivals", then->arrival, now->arrival);
        compare_counts(r, event, "the batch", then->batch, now->batch);
        compare_counts(r, event, "the reason (code)", then->reason, now->reason);
        compare_counts(r, event, "the worker waited for, plus one",
                       (uint64_t)(then->waited_for + 1), (uint64_t)(now->waited_for + 1));
        compare_numbers(r, event, "the rate", then->rate, now->rate);
    }
}

/* ---- what the simulation tells ------------------------------------------------------------- */

static void released(void *context, unsigned w)
{
    (void)context;
    (void)w;
}

/* A worker's records are written in the order of its pushes. */
static void record(void *context, struct push_record *row)
{
    struct replay *r = context;
    unsigned w = row->worker;
    REQUIRE(r->first[w] + r->written[w] < r->first[w + 1]);
    const struct replay_event *event = &r->o->events[r->pushes[r->first[w] + r->written[w]++]];
    row->queue_us = event->recorded->queue_us;
    row->apply_us = event->recorded->apply_us;
    if (r->o->compares) {
        compare(r, event, row);
    }
}

/* ---- events -------------------------------------------------------------------------------- */

static void prepare(struct replay *r, size_t at)
{
    size_t ahead = 4 * simulation_threads(r->simulation);
    bool room = simulation_threads(r->simulation) > 1;
    for (size_t i = at; i < r->o->count && i < at + ahead && room; i++) {
        if (r->o->events[i].kind == REPLAY_PUSH) {
            room = simulation_prepare(r->simulation, r->o->events[i].worker);
        }
    }
}

static status feed_push(struct replay *r, const struct replay_event *event)
{
    status result = OK;
    const struct push_record *row = event->recorded;
    if (!simulation_is_computing(r->simulation, event->worker)) {
        if (!r->o->compares) {
            r->written[event->worker]++; /* this arrival falls away, with its times */
        } else {
            differ(r, event->number, row, "a push, whose worker was", "released", "not released");
        }
        return OK;
    }
    struct simulation_times times = {.pull_us = row->pull_us,
                                     .compute_us = row->compute_us,
                                     .queue_us = row->queue_us,
                                     .at_seconds = row->at_seconds};
    result = simulation_push(r->simulation, event->worker, &times);
    if (result == ERROR_DIVERGED && r->o->compares && row->outcome == PUSH_NOT_FINITE) {
        result = OK; /* as it did then */
    }
    return result;
}

/* A run of its own can be replayed, too. */
static void note_coming(const struct replay *r, const struct replay_event *event, const char *code)
{
    if (r->o->recorder != NULL) {
        recorder_event_between(r->o->recorder, r->now, simulation_arrivals(r->simulation),
                               SEVERITY_INFO, code, (int)event->worker, "as recorded");
    }
}

static status feed(struct replay *r, size_t at)
{
    const struct replay_event *event = &r->o->events[at];
    switch (event->kind) {
    case REPLAY_JOINED:
        note_coming(r, event, "worker_joined");
        return simulation_hello(r->simulation, event->worker, r->now);
    case REPLAY_LOST:
        note_coming(r, event, "worker_lost");
        return simulation_lost(r->simulation, event->worker, r->now);
    case REPLAY_END:
        return simulation_end(r->simulation);
    case REPLAY_PUSH:
        break;
    }
    r->now = event->recorded->at_seconds;
    prepare(r, at);
    return feed_push(r, event);
}

/* What is left when others' rules end training earlier is of no use; where rules are the recorded
 * ones, gradients that came after the end are compared, too. */
static status train(struct replay *r)
{
    status result = OK;
    for (size_t i = 0; i < r->o->count && !r->difference->found; i++) {
        enum replay_kind kind = r->o->events[i].kind;
        bool over = simulation_ended(r->simulation);
        if (over && !r->o->compares) {
            break;
        }
        /* Under other rules a run goes on where the recorded one was stopped. */
        if (kind == REPLAY_PUSH || (!over && (kind != REPLAY_END || r->o->compares))) {
            TRY(feed(r, i));
        }
    }
    if (!simulation_ended(r->simulation) && !r->o->compares) {
        TRY(simulation_evaluate_now(r->simulation, r->now));
    }
    TRY(simulation_checkpoint(r->simulation));
done:
    return result;
}

/* ---- the run ------------------------------------------------------------------------------- */

static status sort_by_worker(struct replay *r)
{
    status result = OK;
    const struct replay_options *o = r->o;
    TRY(memory_new(&r->pushes, o->count + 1, sizeof *r->pushes, "recorded gradients"));
    TRY(memory_new(&r->first, (size_t)o->workers + 2, sizeof *r->first, "recorded workers"));
    TRY(memory_new(&r->written, o->workers, sizeof *r->written, "recorded workers"));
    for (size_t i = 0; i < o->count; i++) {
        REQUIRE(o->events[i].worker < o->workers);
        r->first[o->events[i].worker + 1] += o->events[i].kind == REPLAY_PUSH;
    }
    for (unsigned w = 0; w < o->workers; w++) {
        r->first[w + 1] += r->first[w];
    }
    for (size_t i = 0; i < o->count; i++) {
        if (o->events[i].kind == REPLAY_PUSH) {
            unsigned w = o->events[i].worker;
            r->pushes[r->first[w] + r->written[w]++] = i;
        }
    }
    memset(r->written, 0, o->workers * sizeof *r->written);
done:
    return result;
}

status replay_run(const struct replay_options *o, struct training_outcome *out,
                  struct replay_difference *difference)
{
    status result = OK;
    struct replay r = {.o = o, .difference = difference};
    *out = (struct training_outcome){0};
    *difference = (struct replay_difference){0};
    TRY(sort_by_worker(&r));
    TRY(simulation_open(&r.simulation, &(struct simulation_options){.settings = o->settings,
                                                                    .pool = o->pool,
                                                                    .workers = o->workers,
                                                                    .length = o->length,
                                                                    .hooks = o->hooks,
                                                                    .recorder = o->recorder,
                                                                    .evaluates = !o->compares,
                                                                    .context = &r,
                                                                    .released = released,
                                                                    .record = record}));
    result = train(&r);
    simulation_outcome(r.simulation, r.now, out);
done:
    simulation_close(&r.simulation);
    memory_free(r.pushes);
    memory_free(r.first);
    memory_free(r.written);
    return result;
}
