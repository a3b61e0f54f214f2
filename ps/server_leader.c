/* server_leader.c — one of several servers that follows: it does what server 0 says, and looks
 * whether that lives. See server_state.h. */
#include "ps/server_state.h"

#include <inttypes.h>
#include <stdio.h>

enum {
    PING_MS = 1000, /* or a quarter of the timeout, where that is less */
    WARN_MS = 5000,
    LAST_WORDS_MS = 200, /* what a dead one said may still be on its way through ZeroMQ */
    RECEIVED_AT_ONCE = 256,
};

static const uint64_t MS = 1000000;

/* ---- open and close ------------------------------------------------------------------------ */

status leader_open(struct server *s)
{
    status result = OK;
    struct curve_keys *keys = NULL;
    struct leader *l = &s->leader;
    REQUIRE(s->o->leader != NULL);
    TRY(curve_open(&keys, options_text(s->o->settings, "curve"), false));
    TRY(channel_connect(
        &l->channel, s->o->leader,
        &(struct channel_options){.timeout_ms = s->timeout_ms,
                                  .may_spin = channel_may_spin(s->o->workers + s->servers),
                                  .keys = keys,
                                  .run_token = s->o->run_token}));
    payload_random(&l->nonce, sizeof l->nonce);
    l->heard_ns = l->asked_ns = clock_ns();
    leader_join(s);
done:
    curve_close(&keys);
    return result;
}

void leader_close(struct server *s)
{
    struct leader *l = &s->leader;
    if (l->channel != NULL && (l->died_ns != 0 || !l->joined))
        channel_forget(l->channel);
    channel_close(&l->channel);
    process_forget(&l->pidfd);
}

/* ---- what server 0 says ---------------------------------------------------------------------- */

static void fail(struct server *s, status code, const char *what)
{
    s->leader.over = true;
    server_fail(s, code, "server 0 at %s %s", s->o->leader, what);
}

static void on_joined(struct server *s, const struct wire_message *m)
{
    struct leader *l = &s->leader;
    if (l->joined)
        return; /* said twice */
    l->joined = true;
    l->incarnation = m->incarnation;
    l->pidfd = process_watch(m->joined.host, m->joined.pid);
    if (l->pidfd >= 0)
        server_watch(s, l->pidfd);
    for (unsigned w = 0; w < s->o->workers; w++) /* who came before */
        if (s->peers[w].state == PEER_READY)
            leader_report(s, WIRE_WORKER_READY, w, 0);
}

/* The event has its place in this server's order now: where each has an order of its own, that is
 * written down. */
static void note_coming(struct server *s, unsigned w, enum severity severity, const char *code)
{
    char detail[64];
    peers_describe(s, w, detail, sizeof detail);
    server_event_queued(s, severity, code, w, detail);
}

static void on_push_order(struct server *s, const struct wire_notice *n)
{
    const struct peer *p = &s->peers[n->worker];
    bool whole = p->next == n->sequence + 1 && p->push.sequence == n->sequence;
    if (!whole || !s->one_order || !s->begun)
        fail(s, ERROR_PROTOCOL, "ordered a push that is not here");
    else
        training_queue(s, EVENT_PUSH, n->worker);
}

static void on_ask(struct server *s, bool states)
{
    size_t count = 0;
    while (training_feed(s)) /* all that was ordered before */
        continue;
    if (!s->evaluating)
        training_pause(s);
    leader_vector(s, 0, payload_slots(s->payload)[server_core_latest_slot(s->core)]);
    const float *state = server_core_optimizer_state(s->core, &count);
    for (unsigned k = 0; states && k < count / s->count; k++)
        leader_vector(s, 1 + k, state + k * s->count);
}

static void on_order(struct server *s, const struct wire_notice *n)
{
    if (n->worker >= s->o->workers) {
        fail(s, ERROR_PROTOCOL, "spoke of a worker that there is not");
        return;
    }
    if (n->what <= WIRE_ORDER_LOST && s->queue_count == s->queue_size) {
        fail(s, ERROR_PROTOCOL, "ordered more than its workers can have done");
        return;
    }
    if (n->what <= WIRE_ORDER_LOST && !s->begun)
        training_start_clock(s);
    switch (n->what) {
    case WIRE_ORDER_HELLO:
        s->peers[n->worker].entered = true;
        note_coming(s, n->worker, SEVERITY_INFO, "worker_joined");
        training_queue(s, EVENT_HELLO, n->worker);
        break;
    case WIRE_ORDER_LOST:
        peers_forget(s, n->worker);
        if (s->peers[n->worker].entered)
            note_coming(s, n->worker, SEVERITY_ERROR, "worker_lost");
        training_queue(s, EVENT_LOST, n->worker);
        break;
    case WIRE_ORDER_PUSH:
        on_push_order(s, n);
        break;
    case WIRE_ORDER_ASK:
        on_ask(s, n->sequence > 0);
        break;
    case WIRE_ORDER_RESUME:
        if (s->evaluating)
            training_resume(s);
        break;
    case WIRE_ORDER_CLOSE:
        while (training_feed(s))
            continue;
        leader_report(s, WIRE_CLOSED, 0, 0);
        s->leader.closed = true;
        break;
    default:
        fail(s, ERROR_PROTOCOL, "ordered what there is not");
    }
}

/* The run ends for server 0's reason, whatever this one saw. */
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
                 "sent message %" PRIu64 ", %" PRIu64 " was awaited: the connection broke, and "
                 "what was on it is lost",
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
        fail(s, ERROR_PROTOCOL, "said what it may not say to a server that follows");
    }
}

static void handle(struct server *s, const struct wire_message *m)
{
    char why[WIRE_TEXT_BYTES + 32];
    struct leader *l = &s->leader;
    if (m->run_token != s->o->run_token || m->worker != s->o->server)
        return; /* not for us */
    l->heard_ns = clock_ns();
    l->warned = false;
    if (m->type == WIRE_JOINED) {
        on_joined(s, m);
    } else if (m->type == WIRE_REFUSED) {
        snprintf(why, sizeof why, "refused server %u: %s", s->o->server, m->text.text);
        fail(s, m->text.code == ERROR_PEER ? ERROR_PEER : ERROR_PROTOCOL, why);
    } else if (l->joined && m->incarnation == l->incarnation) {
        handle_numbered(s, m);
    }
}

bool leader_receive(struct server *s)
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

/* ---- whether it lives ------------------------------------------------------------------------ */

static void ask(struct server *s, uint64_t now)
{
    struct leader *l = &s->leader;
    uint64_t ping_ms = s->timeout_ms / 4 < PING_MS ? s->timeout_ms / 4 : PING_MS;
    if (now - l->asked_ns < ping_ms * MS)
        return;
    l->asked_ns = now;
    if (l->joined) {
        leader_ping(s);
    } else {
        leader_join(s);
    }
}

void leader_tick(struct server *s, uint64_t now)
{
    char why[128];
    struct leader *l = &s->leader;
    if (l->over)
        return;
    if (l->died_ns == 0 && process_has_ended(l->pidfd)) {
        l->died_ns = now;
        process_forget(&l->pidfd);
    }
    uint64_t silent_ms = now > l->heard_ns ? (now - l->heard_ns) / MS : 0;
    /* It may have failed since `now` was read. */
    bool unheard = l->told && now > l->failed_ns && now - l->failed_ns > s->timeout_ms * MS;
    if (!l->joined && channel_check_handshake(l->channel) != OK) {
        l->over = true;
        server_fail(s, ERROR_PROTOCOL, "%s", error_message());
    } else if (l->died_ns != 0 && now - l->died_ns > LAST_WORDS_MS * MS) {
        fail(s, ERROR_PEER, "has died: see its own message");
    } else if (silent_ms >= s->timeout_ms || unheard) {
        snprintf(why, sizeof why,
                 l->joined ? "has been silent for %.1f s (timeout_s)"
                           : "does not answer after %.1f s (timeout_s): is it running, and is the "
                             "endpoint right?",
                 (double)silent_ms * 1e-3);
        fail(s, ERROR_PEER, why);
    } else if (silent_ms >= WARN_MS && !l->warned) {
        l->warned = true;
        log_warning("no sign of server 0 at %s for %llu s, waiting up to %u s", s->o->leader,
                    (unsigned long long)silent_ms / 1000, s->timeout_ms / 1000);
    }
    ask(s, now);
}
