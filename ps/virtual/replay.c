/* replay.c — see replay.h. */
#include "ps/virtual/replay.h"

#include "base/memory.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* The position in the recorded events of one server. */
struct replay_progress {
    const struct replay_events *events;
    size_t next;     /* index of the next event */
    size_t *pushes;  /* indices of the pushes, by worker, in order */
    size_t *first;   /* [workers + 1]: where each worker's part of `pushes` begins */
    size_t *written; /* [workers]: number of its records so far */
    size_t *changes; /* [workers]: joins and losses so far, beginning with a join; odd: the worker
                        is there */
};

struct replay {
    const struct replay_options *o;
    simulation *simulation;
    struct replay_progress *servers;
    double now; /* of the last event; seconds of training */
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
    if (r->difference->found)
        return;
    r->difference->found = true;
    r->difference->number = number;
    char server[32] = "";
    if (r->o->server_count > 1)
        snprintf(server, sizeof server, " of server %" PRIu32, row->server);
    snprintf(r->difference->text, sizeof r->difference->text,
             "update %" PRIu64 "%s (push number %" PRIu64 ": worker %u's %" PRIu64
             ", computed at version %" PRIu64 "): %s recorded as %s, replayed as %s",
             row->update_version, server, number, row->worker, row->sequence, row->read_version,
             what, recorded, replayed);
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

/* Compares results, not times. */
static void compare(struct replay *r, const struct replay_event *event,
                    const struct push_record *now)
{
    const struct push_record *then = event->recorded;
    compare_counts(r, event, "sequence", then->sequence, now->sequence);
    compare_counts(r, event, "read_version", then->read_version, now->read_version);
    compare_counts(r, event, "staleness", then->staleness, now->staleness);
    compare_counts(r, event, "update_version", then->update_version, now->update_version);
    compare_counts(r, event, "outcome (as a number)", then->outcome, now->outcome);
    compare_numbers(r, event, "loss", then->loss, now->loss);
    compare_numbers(r, event, "scale", then->scale, now->scale);
    compare_numbers(r, event, "gradient_norm", then->gradient_norm, now->gradient_norm);
    compare_numbers(r, event, "gap", then->gap, now->gap);
    compare_numbers(r, event, "momentum", then->momentum, now->momentum);
    compare_numbers(r, event, "total_momentum", then->total_momentum, now->total_momentum);
    if (!isnan(then->cosine) && !isnan(now->cosine)) /* probe_every may be another one now */
        compare_numbers(r, event, "cosine", then->cosine, now->cosine);
    compare_counts(r, event, "arrival", then->arrival, now->arrival);
    compare_counts(r, event, "batch", then->batch, now->batch);
    compare_counts(r, event, "reason (as a number)", then->reason, now->reason);
    compare_counts(r, event, "waited_for (plus one)", (uint64_t)(then->waited_for + 1),
                   (uint64_t)(now->waited_for + 1));
    compare_numbers(r, event, "rate", then->rate, now->rate);
}

/* ---- callbacks of the simulation ------------------------------------------------------------ */

static void released(void *context, unsigned server, unsigned w, bool everywhere)
{
    (void)context;
    (void)server;
    (void)w;
    (void)everywhere;
}

/* The recorded push that belongs to this record. A worker's records have the order of its pushes,
 * with one exception: the record of a push in the running sum follows that of a later push that is
 * not finite. */
static const struct replay_event *recorded_push(const struct replay *r, struct replay_progress *p,
                                                const struct push_record *row)
{
    const unsigned w = row->worker;
    size_t *next = &p->pushes[p->first[w] + p->written[w]++], *end = &p->pushes[p->first[w + 1]];
    REQUIRE(next < end);
    size_t *at = next;
    while (r->o->compares && at < end && p->events->at[*at].recorded->arrival != row->arrival)
        at++;
    if (at < end) { /* else the replay differs */
        const size_t found = *at;
        memmove(next + 1, next, (size_t)(at - next) * sizeof *next);
        *next = found;
    }
    return &p->events->at[*next];
}

static void record(void *context, struct push_record *row)
{
    struct replay *r = context;
    const struct replay_event *event = recorded_push(r, &r->servers[row->server], row);
    row->queue_us = event->recorded->queue_us;
    row->apply_us = event->recorded->apply_us;
    if (r->o->compares)
        compare(r, event, row);
}

/* ---- events -------------------------------------------------------------------------------- */

static void prepare(struct replay *r, const struct replay_progress *p)
{
    size_t ahead = 4 * simulation_threads(r->simulation);
    bool room = simulation_threads(r->simulation) > 1;
    for (size_t i = p->next; i < p->events->count && i < p->next + ahead && room; i++)
        if (p->events->at[i].kind == REPLAY_PUSH)
            room = simulation_prepare(r->simulation, p->events->at[i].worker);
}

static unsigned number_of(const struct replay *r, const struct replay_progress *p)
{
    return (unsigned)(p - r->servers);
}

/* Whether the worker waits for a server that has no recorded events left. If a server fails, its
 * last rows may not have reached server 0, which writes them. */
static bool lacks_rows(const struct replay *r, const struct replay_progress *p,
                       const struct push_record *row)
{
    for (unsigned i = 0; i < r->o->server_count; i++) {
        const struct replay_progress *other = &r->servers[i];
        if (other != p && other->next == other->events->count &&
            !simulation_can_compute(r->simulation, row->worker, row->sequence))
            return true;
    }
    return false;
}

/* A server numbers a gradient when it arrives, but writes its row after the decision about it. So
 * if the server is killed or cannot write, a row may be missing although rows with larger numbers
 * exist. */
static status feed_push(struct replay *r, struct replay_progress *p,
                        const struct replay_event *event)
{
    const struct push_record *row = event->recorded;
    if (r->o->compares && row->arrival > simulation_arrivals(r->simulation, number_of(r, p))) {
        compare_counts(r, event, "arrival", row->arrival,
                       simulation_arrivals(r->simulation, number_of(r, p)));
        r->difference->missing = true;
        return OK;
    }
    if (!simulation_may_push(r->simulation, number_of(r, p), event->worker)) {
        if (!r->o->compares)
            p->written[event->worker]++; /* skips this arrival and its recorded times */
        else
            differ(r, event->number, row, "the state of its worker", "released", "not released");
        r->difference->missing = r->difference->found && lacks_rows(r, p, row);
        return OK;
    }
    struct simulation_times times = {.pull_us = row->pull_us,
                                     .compute_us = row->compute_us,
                                     .queue_us = row->queue_us,
                                     .at_seconds = row->at_seconds,
                                     .data_us = row->data_us,
                                     .forward_us = row->forward_us,
                                     .backward_us = row->backward_us};
    return simulation_push(r->simulation, number_of(r, p), event->worker, &times);
}

/* A "what if" run is recorded, so its joins and losses are recorded, too. */
static void record_member_event(const struct replay *r, unsigned server,
                                const struct replay_event *event, const char *code)
{
    if (r->o->recorder != NULL) {
        recorder_event_at(r->o->recorder, server, r->now,
                          simulation_arrivals(r->simulation, server), SEVERITY_INFO, code,
                          (int)event->worker, "as recorded");
    }
}

static status feed_event(struct replay *r, struct replay_progress *p)
{
    unsigned server = number_of(r, p);
    const struct replay_event *event = &p->events->at[p->next];
    switch (event->kind) {
    case REPLAY_JOINED:
        record_member_event(r, server, event, "worker_joined");
        return simulation_hello(r->simulation, server, event->worker, r->now);
    case REPLAY_LOST:
        if (p->changes[event->worker] % 2 == 1) /* else it was not there at the start */
            record_member_event(r, server, event, "worker_lost");
        return simulation_lost(r->simulation, server, event->worker, r->now);
    case REPLAY_END:
        return simulation_end(r->simulation, server);
    case REPLAY_PUSH:
        break;
    }
    r->now = event->recorded->at_seconds;
    prepare(r, p);
    return feed_push(r, p, event);
}

/* In a comparison a divergence is no error: the record of the gradient that caused it has been
 * compared like any other. */
static status feed(struct replay *r, struct replay_progress *p)
{
    status result = feed_event(r, p);
    const bool together = !r->o->lockstep || number_of(r, p) == 0;
    if (result == OK && together)
        return simulation_after_event(r->simulation);
    return result == ERROR_DIVERGED && r->o->compares ? OK : result;
}

/* Whether server `p` still gets a gradient of worker `w`, before it loses the worker, that is not
 * computed yet. That gradient needs the releases of all servers. */
static bool needs_gradient_of(const struct replay *r, const struct replay_progress *p, unsigned w)
{
    for (size_t i = p->next; i < p->events->count; i++) {
        const struct replay_event *event = &p->events->at[i];
        if (event->worker == w && event->kind != REPLAY_PUSH)
            return false;
        if (event->worker == w &&
            !simulation_can_compute(r->simulation, w, event->recorded->sequence))
            return true;
    }
    return false;
}

/* A worker may join again when all servers have lost it. A server may lose a worker when no other
 * server needs a gradient that requires this server's release. */
static bool member_event_is_due(const struct replay *r, const struct replay_progress *p, unsigned w)
{
    bool lost = p->events->at[p->next].kind == REPLAY_LOST;
    for (unsigned i = 0; i < r->o->server_count; i++) {
        const struct replay_progress *other = &r->servers[i];
        if (other->changes[w] < p->changes[w] ||
            (lost && other->changes[w] == p->changes[w] && needs_gradient_of(r, other, w)))
            return false;
    }
    return true;
}

/* Whether all servers had the events before this one. Server 0 gets each event last: when it
 * evaluates, the other servers must have had the same events. */
static bool is_in_step(const struct replay *r, const struct replay_progress *p)
{
    for (unsigned i = 0; i < r->o->server_count; i++) {
        const struct replay_progress *other = &r->servers[i];
        bool waits = p == r->servers ? other->next <= p->next : i == 0 && other->next < p->next;
        if (other != p && waits && other->next < other->events->count)
            return false;
    }
    return true;
}

/* Whether this server's next event can be passed to it now. */
static bool is_due(const struct replay *r, const struct replay_progress *p)
{
    if (p->next == p->events->count || (r->o->lockstep && !is_in_step(r, p)))
        return false;
    const struct replay_event *event = &p->events->at[p->next];
    switch (event->kind) {
    case REPLAY_JOINED:
    case REPLAY_LOST:
        return member_event_is_due(r, p, event->worker);
    case REPLAY_PUSH:
        return simulation_may_push(r->simulation, number_of(r, p), event->worker);
    case REPLAY_END:
        break;
    }
    return true;
}

/* The server that gets its next event now; NULL: no events are left. If no event is due, the replay
 * differs, or other rules did not release a worker. Then returns the first server with events left;
 * in lockstep the one furthest behind, so that all servers skip the same event. */
static struct replay_progress *find_next(struct replay *r)
{
    struct replay_progress *any = NULL;
    for (unsigned i = r->o->server_count; i-- > 0;) {
        struct replay_progress *p = &r->servers[i];
        if (is_due(r, p))
            return p;
        bool before = any == NULL || !r->o->lockstep || p->next < any->next;
        any = before && p->next < p->events->count ? p : any;
    }
    return any;
}

/* Under other rules, events after the end of training are ignored. Under the recorded rules,
 * gradients that arrived after the end are compared, too. */
static status train(struct replay *r)
{
    status result = OK;
    struct replay_progress *p;
    while (!r->difference->found && (p = find_next(r)) != NULL) {
        enum replay_kind kind = p->events->at[p->next].kind;
        bool over = simulation_ended(r->simulation);
        if (over && !r->o->compares)
            break;
        /* Under other rules a run continues where the recorded one was stopped. After server 0 has
         * ended, the other servers still get the events that they had before they learned of the
         * end. */
        over &= number_of(r, p) == 0;
        if (kind == REPLAY_PUSH || (!over && (kind != REPLAY_END || r->o->compares)))
            TRY(feed(r, p));
        size_t *changes = &p->changes[p->events->at[p->next].worker];
        *changes += kind == (*changes % 2 == 0 ? REPLAY_JOINED : REPLAY_LOST);
        p->next++;
    }
    if (!simulation_ended(r->simulation) && !r->o->compares)
        TRY(simulation_evaluate_now(r->simulation, r->now));
    TRY(simulation_checkpoint(r->simulation, false));
done:
    return result;
}

/* ---- the run ------------------------------------------------------------------------------- */

static status sort_by_worker(struct replay_progress *p, const struct replay_events *events,
                             unsigned workers)
{
    status result = OK;
    p->events = events;
    TRY(memory_new(&p->pushes, events->count + 1, sizeof *p->pushes, "recorded gradients"));
    TRY(memory_new(&p->first, (size_t)workers + 2, sizeof *p->first, "recorded workers"));
    TRY(memory_new(&p->written, workers, sizeof *p->written, "recorded workers"));
    TRY(memory_new(&p->changes, workers, sizeof *p->changes, "recorded workers"));
    for (size_t i = 0; i < events->count; i++) {
        REQUIRE(events->at[i].worker < workers);
        p->first[events->at[i].worker + 1] += events->at[i].kind == REPLAY_PUSH;
    }
    for (unsigned w = 0; w < workers; w++)
        p->first[w + 1] += p->first[w];
    for (size_t i = 0; i < events->count; i++) {
        if (events->at[i].kind == REPLAY_PUSH) {
            unsigned w = events->at[i].worker;
            p->pushes[p->first[w] + p->written[w]++] = i;
        }
    }
    memset(p->written, 0, workers * sizeof *p->written);
done:
    return result;
}

static void forget_progress(struct replay_progress *p)
{
    memory_free(p->pushes);
    memory_free(p->first);
    memory_free(p->written);
    memory_free(p->changes);
}

status replay_run(const struct replay_options *o, struct training_outcome *out,
                  struct replay_difference *difference)
{
    status result = OK;
    struct replay r = {.o = o, .difference = difference};
    *out = (struct training_outcome){0};
    *difference = (struct replay_difference){0};
    TRY(memory_new(&r.servers, o->server_count, sizeof *r.servers, "recorded servers"));
    for (unsigned i = 0; i < o->server_count; i++)
        TRY(sort_by_worker(&r.servers[i], &o->servers[i],
                           o->workers_max > 0 ? o->workers_max : o->workers));
    TRY(simulation_open(&r.simulation, &(struct simulation_options){.settings = o->settings,
                                                                    .pool = o->pool,
                                                                    .workers = o->workers,
                                                                    .workers_max = o->workers_max,
                                                                    .length = o->length,
                                                                    .hooks = o->hooks,
                                                                    .recorder = o->recorder,
                                                                    .evaluates = !o->compares,
                                                                    .start = o->start,
                                                                    .context = &r,
                                                                    .released = released,
                                                                    .record = record}));
    REQUIRE(simulation_servers(r.simulation) == o->server_count);
    result = train(&r);
    simulation_outcome(r.simulation, r.now, out);
done:
    simulation_close(&r.simulation);
    for (unsigned i = 0; r.servers != NULL && i < o->server_count; i++)
        forget_progress(&r.servers[i]);
    memory_free(r.servers);
    return result;
}
