/* server_follower.c — a follower's side: what the leader orders. See server_state.h. */
#include "base/clock.h"
#include "base/log.h"
#include "ps/server/server_state.h"

#include <inttypes.h>
#include <stdio.h>

enum {
    PING_MS = 1000, /* or a quarter of the timeout, if that is less */
    RECEIVED_AT_ONCE = 256,
};

static const uint64_t MS = 1000000;

/* ---- open and close ------------------------------------------------------------------------- */

status follower_open(struct server *s)
{
    status result = OK;
    struct curve_keys *keys = NULL;
    struct leader *l = &s->leader;
    REQUIRE(s->o->leader != NULL);
    TRY(curve_open(&keys, options_text(s->o->settings, "curve"), false));
    TRY(channel_connect(
        &l->channel, s->o->leader,
        &(struct channel_options){.timeout_ms = s->timeout_ms,
                                  .may_spin = channel_may_spin(s->workers + s->servers),
                                  .keys = keys,
                                  .trusted = options_flag(s->o->settings, "trusted_network"),
                                  .run_token = s->o->run_token}));
    payload_random(&l->nonce, sizeof l->nonce);
    l->life.heard_ns = l->pinged_ns = clock_ns();
    follower_join(s);
done:
    curve_close(&keys);
    return result;
}

void follower_close(struct server *s)
{
    struct leader *l = &s->leader;
    if (l->channel != NULL && (l->life.died_ns != 0 || !l->joined))
        channel_discard_unsent(l->channel);
    channel_close(&l->channel);
    peer_process_forget(&l->life.pidfd);
}

/* ---- messages of the leader ----------------------------------------------------------------- */

static void fail(struct server *s, status code, const char *what)
{
    s->leader.over = true;
    server_fail(s, code, "server 0 at %s %s", s->o->leader, what);
}

static void on_joined(struct server *s, const struct wire_message *m)
{
    struct leader *l = &s->leader;
    if (l->joined)
        return; /* repeated */
    l->joined = true;
    l->incarnation = m->incarnation;
    l->life.pidfd = peer_process_watch(m->joined.host, m->joined.pid);
    if (l->life.pidfd >= 0)
        server_watch(s, l->life.pidfd);
    for (unsigned w = 0; w < s->workers; w++) /* those that became ready before this message */
        if (s->peers[w].state == PEER_READY)
            follower_report(s, WIRE_WORKER_READY, w, 0);
}

static void on_push_order(struct server *s, const struct wire_notice *n)
{
    const struct peer *p = &s->peers[n->worker];
    bool whole = p->next == n->sequence + 1 && p->push.sequence == n->sequence;
    if (!whole || !s->one_order || !s->begun)
        fail(s, ERROR_PROTOCOL, "ordered a push that has not arrived here");
    else
        training_queue(s, EVENT_PUSH, n->worker);
}

static void on_ask(struct server *s, bool states)
{
    size_t count = 0;
    while (training_feed(s)) /* S5: first all events ordered before */
        continue;
    if (s->state == STATE_TRAINING || s->state == STATE_JOINING)
        server_enter(s, STATE_PAUSED); /* T6 */
    follower_slice(s, 0, payload_slots(s->payload)[server_core_latest_slot(s->core)]);
    const float *state = server_core_optimizer_state(s->core, &count);
    for (unsigned k = 0; states && k < count / s->count; k++)
        follower_slice(s, 1 + k, state + k * s->count);
}

/* S7: another process may join as this worker. */
static void on_free(struct server *s, unsigned w)
{
    while (training_feed(s)) /* first its gradients and loss: another process will write there */
        continue;
    peers_forget(s, w);
    peers_free_place(s, w);
    follower_report(s, WIRE_PLACE_FREE, w, server_core_next_batch(s->core, w));
}

static void on_order(struct server *s, const struct wire_notice *n)
{
    if (n->worker >= s->workers) {
        fail(s, ERROR_PROTOCOL, "named a worker that this run does not have");
        return;
    }
    struct peer *p = &s->peers[n->worker];
    if (n->what <= WIRE_ORDER_LOST && s->queue_count == s->queue_size) {
        fail(s, ERROR_PROTOCOL, "ordered more events than its workers can cause");
        return;
    }
    if (n->what <= WIRE_ORDER_LOST && !s->begun)
        server_begin(s);
    switch (n->what) {
    case WIRE_ORDER_HELLO:
        p->first_batch = n->sequence;
        training_queue(s, EVENT_HELLO, n->worker);
        break;
    case WIRE_ORDER_LOST:
        if (p->entered) {
            peers_forget(s, n->worker);
            snprintf(p->loss, sizeof p->loss,
                     "worker %u (process %u) was lost; server 0's event has the reason", n->worker,
                     p->pid);
        }
        training_queue(s, EVENT_LOST, n->worker);
        break;
    case WIRE_ORDER_PUSH:
        on_push_order(s, n);
        break;
    case WIRE_ORDER_GATHER:
        on_ask(s, n->sequence > 0);
        break;
    case WIRE_ORDER_RESUME:
        if (s->state == STATE_PAUSED)
            server_enter(s, STATE_TRAINING); /* T6 */
        break;
    case WIRE_ORDER_CLOSE:
        while (training_feed(s))
            continue;
        follower_report(s, WIRE_CLOSED, 0, 0);
        s->leader.closed = true;
        break;
    case WIRE_ORDER_FREE:
        on_free(s, n->worker);
        break;
    default:
        fail(s, ERROR_PROTOCOL, "sent an order of an unknown kind");
    }
}

/* The leader's reason for the end replaces a reason that this server has found. */
static void on_end(struct server *s, const struct wire_text *t)
{
    s->ended = true;
    s->result = t->code == OK ? OK : wire_failure(t->code, ERROR_OTHER);
    snprintf(s->message, sizeof s->message, "%s", t->text);
}

static void handle_numbered(struct server *s, const struct wire_message *m)
{
    char why[128];
    if (m->sequence != s->leader.received) {
        snprintf(why, sizeof why,
                 "sent message %" PRIu64 " instead of message %" PRIu64
                 ": the connection broke, and "
                 "messages were lost",
                 m->sequence, s->leader.received);
        fail(s, ERROR_PEER, why);
        return;
    }
    s->leader.received += m->type != WIRE_PONG;
    switch (m->type) {
    case WIRE_PONG:
        break;
    case WIRE_ORDER:
        on_order(s, &m->notice);
        break;
    case WIRE_END:
        on_end(s, &m->text);
        break;
    default:
        fail(s, ERROR_PROTOCOL, "sent a message that a leader may not send");
    }
}

static void handle(struct server *s, const struct wire_message *m)
{
    char why[WIRE_TEXT_BYTES + 32];
    struct leader *l = &s->leader;
    if (m->run_token != s->o->run_token || m->worker != s->o->server)
        return; /* not for us */
    liveness_heard(&l->life);
    if (m->type == WIRE_JOINED) {
        on_joined(s, m);
    } else if (m->type == WIRE_REFUSED) {
        snprintf(why, sizeof why, "refused server %u: %s", s->o->server, m->text.text);
        fail(s, m->text.code == ERROR_PEER ? ERROR_PEER : ERROR_PROTOCOL, why);
    } else if (l->joined && m->incarnation == l->incarnation) {
        handle_numbered(s, m);
    }
}

bool follower_receive(struct server *s)
{
    struct channel_received r;
    for (unsigned i = 0; i < RECEIVED_AT_ONCE && !s->leader.over; i++) {
        enum channel_event event = channel_receive(s->leader.channel, &r);
        if (event == CHANNEL_NOTHING)
            return true;
        if (event == CHANNEL_MALFORMED)
            fail(s, ERROR_PROTOCOL, r.why);
        else
            handle(s, &r.message);
    }
    return s->leader.over;
}

/* ---- liveness ------------------------------------------------------------------------------- */

static void ask(struct server *s, uint64_t now)
{
    struct leader *l = &s->leader;
    uint64_t ping_ms = s->timeout_ms / 4 < PING_MS ? s->timeout_ms / 4 : PING_MS;
    if (now - l->pinged_ns < ping_ms * MS)
        return;
    l->pinged_ns = now;
    if (l->joined)
        follower_ping(s);
    else
        follower_join(s);
}

void follower_tick(struct server *s, uint64_t now)
{
    char why[LIVENESS_WHY_BYTES];
    struct leader *l = &s->leader;
    if (l->over)
        return;
    const bool lost = liveness_is_lost(&l->life, "server 0", s->timeout_ms, now, why);
    const uint64_t unheard_ms = l->failure_sent ? liveness_ms(l->failed_ns, now) : 0;
    if (!l->joined && channel_check_handshake(l->channel, lost) != OK) {
        l->over = true;
        server_fail(s, ERROR_PROTOCOL, "%s", error_message());
    } else if (lost && !l->joined) {
        fail(s, ERROR_PEER,
             "does not answer (timeout_s): is it running, and is the endpoint right?");
    } else if (lost) {
        fail(s, ERROR_PEER, why);
    } else if (unheard_ms > liveness_limit_ms(s->timeout_ms, 0)) {
        snprintf(why, sizeof why,
                 "did not end the run after a failure of this server (limit: %d times timeout_s)",
                 LIVENESS_FACTOR);
        fail(s, ERROR_PEER, why);
    }
    ask(s, now);
}
