/* server_training.c — events go into the core, actions come out of it. See server_state.h. */
#include "base/clock.h"
#include "ps/server/diverged.h"
#include "ps/server/server_state.h"

/* Training time since the peer's last push arrived. */
static double trained_us(const struct server *s, const struct peer *p, uint64_t now)
{
    uint64_t trained = training_ns_at(s, now);
    return trained > p->arrived_training_ns ? (double)(trained - p->arrived_training_ns) * 1e-3 : 0;
}

/* The rest of the time since then: evaluations, probes, checkpoints. */
static double paused_us(const struct server *s, const struct peer *p, uint64_t now)
{
    double paused = (double)(now - p->arrived_ns) * 1e-3 - trained_us(s, p, now);
    return paused > 0 ? paused : 0;
}

/* ---- actions -------------------------------------------------------------------------------- */

static void perform_release(struct server *s, const struct server_action *a, uint64_t now)
{
    struct peer *p = &s->peers[a->worker];
    if (p->state != PEER_READY)
        return; /* lost; the core gets EVENT_LOST later */
    p->released = true;
    p->released_ns = now;
    p->wait_training_ns = training_ns_at(s, now);
    p->slow_named = false;
    p->release.release =
        (struct wire_release){.version = a->version,
                              .samples = a->samples,
                              .slot = a->slot,
                              .payload = p->shared ? WIRE_PAYLOAD_SHM : WIRE_PAYLOAD_FRAMES,
                              .paused_us = p->next > 0 ? paused_us(s, p, now) : 0};
    p->release.sequence = p->next;
    peers_release(s, a->worker);
}

/* begin, end: around the call of the core, on clock_ns(). */
static void perform_record(struct server *s, const struct server_action *a, uint64_t begin,
                           uint64_t end)
{
    struct push_record row = a->record;
    if (!a->taken) /* the worker of a taken push may have pushed again */
        row.queue_us = trained_us(s, &s->peers[row.worker], begin);
    row.apply_us = (double)(end - begin) * 1e-3;
    row.server = s->o->server;
    ps_metrics_push(&s->tally, &row);
    if (server_follows(s) && s->tally.record_pushes)
        follower_record(s, &row);
}

/* The evaluation begins before the next event: see server_advance.c. */
static void perform_evaluate(struct server *s, const struct server_action *a)
{
    s->core_waits = true;
    s->evaluated_slot = a->slot;
}

static void perform_diverged(struct server *s, const struct server_action *a)
{
    char why[WIRE_TEXT_BYTES];
    const struct diverged_where here = {s->servers, s->o->server, s->begin, s->count,
                                        s->tally.skips};
    diverged_describe(&a->record, &here, why);
    server_fail(s, ERROR_DIVERGED, "%s", why);
}

void training_perform(struct server *s, struct server_actions actions, uint64_t begin)
{
    uint64_t end = clock_ns();
    for (size_t i = 0; i < actions.count; i++) {
        const struct server_action *a = &actions.at[i];
        switch (a->kind) {
        case SERVER_RELEASE:
            perform_release(s, a, end);
            break;
        case SERVER_RECORD:
            perform_record(s, a, begin, end);
            break;
        case SERVER_APPLIED:
            s->update_ns = end - begin;
            break;
        case SERVER_EVALUATE:
            perform_evaluate(s, a);
            break;
        case SERVER_DIVERGED:
            perform_diverged(s, a);
            break;
        case SERVER_FINISHED:
            s->ended = true;
            break;
        }
    }
}

/* ---- events --------------------------------------------------------------------------------- */

static double plausible_us(double us)
{
    return us >= 0 && us < 1e15 ? us : 0;
}

/* Cores on which workers of this host and an evaluation compute. A worker whose gradient takes less
 * time than an update is not counted: it waits for most of the update anyway. */
static unsigned cores_in_use(const struct server *s)
{
    unsigned busy = 0;
    for (const struct peer *p = s->peers; p < s->peers + s->workers; p++)
        busy += p->released && peers_on_this_host(p) &&
                (p->next == 0 || 1e3 * p->push.push.compute_us > (double)s->update_ns);
    return busy * s->threads + (s->beside ? s->evaluation_threads * s->threads : 0);
}

static void feed_push(struct server *s, unsigned w)
{
    struct peer *p = &s->peers[w];
    const struct wire_push *push = &p->push.push;
    struct server_actions actions = {0};
    uint64_t begin = clock_ns();
    struct server_push fed = {.worker = w,
                              .sequence = p->push.sequence,
                              .read_version = push->read_version,
                              .batch = p->first_batch + p->push.sequence,
                              .gradient = payload_gradient(s->payload, w),
                              .samples = push->samples,
                              .loss = push->loss,
                              .pull_us = plausible_us(push->pull_us),
                              .compute_us = plausible_us(push->compute_us),
                              .data_us = s->record_parts ? plausible_us(push->data_us) : 0,
                              .forward_us = s->record_parts ? plausible_us(push->forward_us) : 0,
                              .backward_us = s->record_parts ? plausible_us(push->backward_us) : 0,
                              .queue_us = trained_us(s, p, begin),
                              .at_seconds = (double)training_ns_at(s, begin) * 1e-9,
                              .probed = s->probed,
                              .cosine = s->cosine};
    s->probed = false;
    helpers_keep_off(s->helpers, cores_in_use(s));
    if (server_core_push(s->core, &fed, &actions) != OK)
        peers_lose(s, w, ERROR_PROTOCOL, error_message());
    else
        training_perform(s, actions, begin);
}

/* ---- the queue ------------------------------------------------------------------------------ */

bool training_feed(struct server *s)
{
    const bool feeds = s->state == STATE_TRAINING || s->state == STATE_LEAVING; /* S1 */
    if (s->queue_count == 0 || !feeds || !s->begun)
        return false;
    const struct event e = s->queue[s->queue_first];
    const uint64_t begin = clock_ns();
    s->queue_first = (s->queue_first + 1) % s->queue_size;
    s->queue_count--;
    if (server_leads(s))
        leader_order(s, &e); /* S4 */
    switch (e.kind) {
    case EVENT_HELLO:
        peers_record_joined(s, e.worker);
        training_perform(s, server_core_hello(s->core, e.worker), begin);
        break;
    case EVENT_PUSH:
        feed_push(s, e.worker);
        break;
    case EVENT_MISSING:
        training_perform(s, server_core_lost(s->core, e.worker), begin);
        break;
    case EVENT_LOST:
        peers_record_lost(s, e.worker);
        training_perform(s, server_core_lost(s->core, e.worker), begin);
        if (!server_follows(s)) /* a follower waits for the leader: S7 */
            peers_free_place(s, e.worker);
        break;
    }
    return true;
}

void training_end(struct server *s)
{
    if (s->begun)
        training_perform(s, server_core_end(s->core), clock_ns());
}

/* ---- rows and progress ---------------------------------------------------------------------- */

void training_evaluated(struct server *s, const struct evaluation *e)
{
    const double took_seconds = (double)(clock_ns() - s->evaluation_began_ns) * 1e-9;
    s->evaluation_work = took_seconds * s->evaluation_threads * s->threads;
    ps_metrics_evaluation(&s->tally, &s->evaluated, took_seconds, e);
}

void training_progress(struct server *s)
{
    if (s->o->hooks.progress == NULL || s->state != STATE_TRAINING)
        return;
    const uint64_t samples = server_core_samples_used(s->core);
    const double seconds = training_seconds(s);
    const struct training_progress p = {
        .updates = server_core_version(s->core),
        .samples_used = samples,
        .total_samples = training_expected_samples(&s->o->length, samples, seconds),
        .seconds = seconds,
        .loss = s->tally.smooth_loss,
        .test_accuracy = s->tally.test_accuracy,
        .mean_staleness = ps_metrics_mean_staleness(&s->tally)};
    s->o->hooks.progress(s->o->hooks.context, &p);
}
