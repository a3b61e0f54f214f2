/* server_training.c — events go into the core, actions come out of it. See server_state.h. */
#include "ps/server_state.h"

#include "ps/diverged.h"

#include <pthread.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { LAST_EVALUATION_MS = 5000 };

/* Microseconds since a peer's last push arrived that were training, and that were not. */
static double trained_us(const struct server *s, const struct peer *p, uint64_t now)
{
    uint64_t trained = training_ns_at(s, now);
    return trained > p->arrived_training_ns ? (double)(trained - p->arrived_training_ns) * 1e-3 : 0;
}

static double paused_us(const struct server *s, const struct peer *p, uint64_t now)
{
    double paused = (double)(now - p->arrived_ns) * 1e-3 - trained_us(s, p, now);
    return paused > 0 ? paused : 0;
}

/* ---- actions ------------------------------------------------------------------------------- */

static void perform_release(struct server *s, const struct server_action *a, uint64_t now)
{
    struct peer *p = &s->peers[a->worker];
    if (p->state != PEER_READY)
        return; /* lost, and the core is about to learn it */
    p->released = true;
    p->released_ns = now;
    p->released_training_ns = training_ns_at(s, now);
    p->slow_named = false;
    peers_moved(s);
    p->release.release =
        (struct wire_release){.version = a->version,
                              .slot = a->slot,
                              .payload = p->shared ? WIRE_PAYLOAD_SHM : WIRE_PAYLOAD_FRAMES,
                              .paused_us = p->next > 0 ? paused_us(s, p, now) : 0};
    p->release.sequence = p->next;
    peers_release(s, a->worker);
}

/* `begin`: when the event was handed to the core; what a push waited before, held ones included. */
static void perform_record(struct server *s, const struct server_action *a, uint64_t begin,
                           uint64_t end)
{
    struct push_record row = a->record;
    if (!a->taken) /* else its worker may have pushed again since */
        row.queue_us = trained_us(s, &s->peers[row.worker], begin);
    row.apply_us = (double)(end - begin) * 1e-3;
    row.server = s->o->server;
    tally_push(&s->tally, &row);
    if (server_follows(s) && s->tally.record_pushes)
        leader_record(s, &row);
}

static void perform_evaluate(struct server *s, const struct server_action *a)
{
    s->evaluated_version = a->version;
    s->evaluated_slot = a->slot;
    s->evaluation_began_ns = clock_ns();
    training_pause(s);
    if (s->servers == 1)
        evaluator_begin(s->evaluator, payload_slots(s->payload)[a->slot]);
    else if (followers_gather(s, false))
        evaluator_begin(s->evaluator, s->followers.parameters);
    else
        training_resume(s); /* to its end */
}

static void perform_diverged(struct server *s, const struct server_action *a)
{
    char why[WIRE_TEXT_BYTES];
    const struct diverged_where here = {s->servers, s->o->server, s->begin, s->count};
    diverged_describe(&a->record, &here, why);
    server_fail(s, ERROR_DIVERGED, "%s", why);
}

static void perform(struct server *s, struct server_actions actions, uint64_t begin)
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

/* ---- events -------------------------------------------------------------------------------- */

static double plausible_us(double us)
{
    return us >= 0 && us < 1e15 ? us : 0;
}

/* By workers of this host that compute. One that takes less time over a gradient than an update
   takes leaves its core to the update: it will have to wait for most of it anyway. */
static unsigned cores_in_use(const struct server *s)
{
    unsigned busy = 0;
    for (const struct peer *p = s->peers; p < s->peers + s->o->workers; p++)
        busy += p->released && (p->shared || p->pidfd >= 0) &&
                (p->next == 0 || 1e3 * p->push.push.compute_us > (double)s->update_ns);
    return busy * s->threads;
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
    crew_keep_off(s->helpers, cores_in_use(s));
    if (server_core_push(s->core, &fed, &actions) != OK)
        peers_lose(s, w, ERROR_PROTOCOL, error_message());
    else
        perform(s, actions, begin);
}

/* ---- probes -------------------------------------------------------------------------------- */

/* The gradient stays first in the queue meanwhile, and its parameters the latest. */
static void probe_begin(struct server *s, unsigned w)
{
    const struct peer *p = &s->peers[w];
    s->probing = true;
    training_hold_clock(s);
    evaluator_begin_probe(
        s->evaluator, &(struct evaluator_probe){
                          .worker = w,
                          .batch = p->first_batch + p->push.sequence,
                          .parameters = payload_slots(s->payload)[server_core_latest_slot(s->core)],
                          .gradient = payload_gradient(s->payload, w),
                          .fresh = s->probe.fresh,
                          .count = s->probe.count});
}

void training_probed(struct server *s)
{
    status code;
    if (!evaluator_take_probe(s->evaluator, &s->cosine, &code))
        return;
    s->probing = false;
    s->probed = code == OK;
    training_run_clock(s);
    if (code != OK)
        server_fail(s, code, "%s", error_message());
}

static bool must_probe(const struct server *s, const struct event *e)
{
    return e->kind == EVENT_PUSH && !s->probed && s->result == OK && !s->ended &&
           !server_core_ended(s->core) && probe_is_due(&s->probe, server_core_arrivals(s->core));
}

/* ---- the queue ------------------------------------------------------------------------------ */

bool training_feed(struct server *s)
{
    if (s->queue_count == 0 || s->evaluating || s->probing || !s->begun)
        return false;
    struct event e = s->queue[s->queue_first];
    if (must_probe(s, &e)) {
        probe_begin(s, e.worker);
        return false;
    }
    uint64_t begin = clock_ns();
    s->queue_first = (s->queue_first + 1) % s->queue_size;
    s->queue_count--;
    if (server_leads(s))
        followers_order(s, &e);
    switch (e.kind) {
    case EVENT_HELLO:
        perform(s, server_core_hello(s->core, e.worker), begin);
        break;
    case EVENT_PUSH:
        feed_push(s, e.worker);
        break;
    case EVENT_LOST:
        if (s->peers[e.worker].state == PEER_LEAVING)
            s->peers[e.worker].state = s->servers > 1 ? PEER_GONE : PEER_ABSENT;
        perform(s, server_core_lost(s->core, e.worker), begin);
        break;
    }
    if (s->checkpoint_samples > 0 && !s->evaluating && s->result == OK && !s->ended &&
        server_core_samples_used(s->core) >= s->next_checkpoint) {
        training_checkpoint(s);
        if (server_leads(s))
            followers_resume(s);
    }
    return true;
}

void training_end(struct server *s)
{
    if (!s->begun)
        return;
    s->evaluating = s->probing = false; /* nobody asks for them any more */
    perform(s, server_core_end(s->core), clock_ns());
}

/* ---- evaluation, checkpoints, progress ----------------------------------------------------- */

/* Its row, once it is done. False: it is not, or it failed. */
static bool note_evaluation(struct server *s)
{
    struct evaluation e;
    status code;
    if (!evaluator_take(s->evaluator, &e, &code))
        return false;
    s->evaluating = false;
    if (code != OK) {
        training_run_clock(s);
        server_fail(s, code, "%s", error_message());
        return false;
    }
    struct training_state now = {.updates = s->evaluated_version,
                                 .samples = server_core_samples_used(s->core),
                                 .seconds = training_seconds(s)};
    tally_evaluation(&s->tally, &now, (double)(clock_ns() - s->evaluation_began_ns) * 1e-9, &e);
    return true;
}

void training_evaluated(struct server *s)
{
    if (!note_evaluation(s))
        return;
    if (s->checkpoint_samples > 0 && server_core_samples_used(s->core) >= s->next_checkpoint)
        training_checkpoint(s);
    training_run_clock(s);
    perform(s, server_core_evaluated(s->core), clock_ns());
    if (server_leads(s) && !s->ended && s->result == OK)
        followers_resume(s);
}

void training_keep_evaluation(struct server *s)
{
    const uint64_t until = clock_ns() + LAST_EVALUATION_MS * 1000000ULL;
    while (s->evaluating && clock_ns() < until) {
        const bool drained = server_receive(s);
        if (note_evaluation(s) && server_core_samples_used(s->core) >= s->o->length.total_samples) {
            perform(s, server_core_evaluated(s->core), clock_ns());
            s->result = s->ended ? OK : s->result; /* nothing was left to stop */
        } else if (drained && s->evaluating) {
            server_wait(s);
        }
    }
}

static bool gather_state(struct server *s, struct training_state *now)
{
    if (!followers_gather(s, true))
        return false;
    now->parameters = s->followers.parameters;
    now->optimizer_state = s->followers.states;
    now->optimizer_state_count = s->followers.state_count;
    now->vector_count = 0; /* those here are of this server's slice */
    return true;
}

/* On a disk that may be slow: in a thread of its own, so that peers are answered meanwhile. */
struct writing {
    struct training_hooks hooks;
    struct training_state now;
    int done_fd;
    status code;
    char message[512];
};

static void *write_down(void *argument)
{
    struct writing *w = argument;
    const uint64_t one = 1;
    w->code = w->hooks.checkpoint(w->hooks.context, &w->now);
    snprintf(w->message, sizeof w->message, "%s", w->code == OK ? "" : error_message());
    ssize_t written = write(w->done_fd, &one, sizeof one);
    REQUIRE(written == (ssize_t)sizeof one);
    return NULL;
}

/* Whatever comes meanwhile waits in the queue. A disk that hangs keeps what the thread uses. */
static status write_checkpoint(struct server *s, const struct training_state *now)
{
    status result = OK;
    pthread_t thread;
    uint64_t count;
    struct writing *w = NULL;
    const uint64_t limit_ms = (uint64_t)SERVER_OWN_WORK * s->timeout_ms;
    const uint64_t until = clock_ns() + limit_ms * 1000000;
    TRY(memory_new(&w, 1, sizeof *w, "a checkpoint's thread"));
    *w = (struct writing){
        .hooks = s->o->hooks, .now = *now, .done_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    if (w->done_fd < 0)
        FAIL(ERROR_OTHER, "no eventfd for a checkpoint: is the limit of open files (ulimit -n) too "
                          "low?");
    TRY(thread_start(&thread, write_down, w, "the checkpoint's thread"));
    server_watch(s, w->done_fd);
    while (read(w->done_fd, &count, sizeof count) < 0) {
        if (clock_ns() > until) {
            thread_abandon(thread);
            w = NULL;
            FAIL(ERROR_OTHER,
                 "the checkpoint could not be written within %.0f s (%d times timeout_s): does its "
                 "disk hang? Where it is only slow, set a longer timeout_s",
                 (double)limit_ms * 1e-3, SERVER_OWN_WORK);
        }
        if (server_receive(s))
            server_wait(s);
    }
    pthread_join(thread, NULL);
    if (w->code != OK)
        FAIL(w->code, "%s", w->message);
done:
    if (w != NULL && w->done_fd >= 0)
        close(w->done_fd);
    memory_free(w);
    return result;
}

void training_checkpoint(struct server *s)
{
    struct training_state now;
    server_core_state(s->core, &now);
    now.seconds = training_seconds(s);
    now.loss_sum = s->tally.loss_sum;
    now.loss_count = s->tally.loss_count;
    now.goes_on = s->result == OK && !s->ended;
    if (s->checkpoint_samples > 0)
        while (s->next_checkpoint <= server_core_samples_used(s->core))
            s->next_checkpoint += s->checkpoint_samples;
    if (s->o->hooks.checkpoint == NULL || !s->checkpoints)
        return;
    training_hold_clock(s);
    bool here = s->servers == 1 || gather_state(s, &now);
    status code = here ? write_checkpoint(s, &now) : OK;
    training_run_clock(s);
    if (code != OK)
        server_fail(s, code, "%s", error_message());
}

void training_progress(struct server *s)
{
    if (s->o->hooks.progress == NULL || !s->begun || s->evaluating || s->probing)
        return;
    struct training_progress p = {.updates = server_core_version(s->core),
                                  .samples_used = server_core_samples_used(s->core),
                                  .total_samples = s->o->length.total_samples,
                                  .seconds = training_seconds(s),
                                  .loss = s->tally.smooth_loss,
                                  .test_accuracy = s->tally.test_accuracy,
                                  .mean_staleness = tally_mean_staleness(&s->tally)};
    s->o->hooks.progress(s->o->hooks.context, &p);
}
