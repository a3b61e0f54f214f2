/* server_messages.c — messages from workers: what they change, what is refused. See
 * server_state.h. */
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "ps/server/server_state.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

enum { FORMER_MS = 2000 }; /* the time a lost process has to end before a successor is refused */

/* ---- joining -------------------------------------------------------------------------------- */

/* The process of a lost worker may still run (stopped, hanging). It maps the memory of the worker's
 * gradient, and writes to it when it wakes. So no other process gets the place before that process
 * has ended or said goodbye (was_on_its_way()). True: the new process must wait; it repeats its
 * hello. */
static bool former_lives(struct server *s, struct peer *p, const struct channel_received *r)
{
    char why[WIRE_TEXT_BYTES];
    if (p->former == 0)
        return false;
    bool ended = p->former_pidfd >= 0 ? peer_process_has_ended(p->former_pidfd)
                                      : kill((pid_t)p->former, 0) != 0 && errno == ESRCH;
    if (ended) {
        peer_process_forget(&p->former_pidfd);
        p->former = 0;
        return false;
    }
    if (clock_ns() - p->lost_ns >= FORMER_MS * 1000000ULL) {
        snprintf(why, sizeof why,
                 "process %u was worker %u, was lost, and still runs: end it (kill -9 %u), then "
                 "start another worker %u",
                 p->former, r->message.worker, p->former, r->message.worker);
        peers_refuse(s, r, ERROR_PEER, why);
    }
    return true;
}

/* Whether this worker belongs to another run or joins too late. If so, sends it the reason. */
static bool does_not_fit(struct server *s, const struct channel_received *r)
{
    const struct wire_message *m = &r->message;
    char why[WIRE_TEXT_BYTES] = "";
    status code = ERROR_PROTOCOL;
    if (server_is_over(s)) {
        code = ERROR_PEER;
        snprintf(why, sizeof why, "training is over");
    } else if (m->hello.count != s->count) {
        snprintf(why, sizeof why,
                 "its model has %llu parameters for this server, which trains %zu: start all with "
                 "the same model, dataset and servers",
                 (unsigned long long)m->hello.count, s->count);
    } else if (m->hello.settings != s->o->settings_hash && m->hello.settings != 0) {
        snprintf(why, sizeof why,
                 "its settings differ from the server's: start both with the same (--print-config "
                 "shows them; results, tag, timeout_s and the like may differ)");
    }
    if (why[0] != '\0')
        peers_refuse(s, r, code, why);
    return why[0] != '\0';
}

static bool place_is_taken(struct server *s, struct peer *p, const struct channel_received *r)
{
    const struct wire_message *m = &r->message;
    char why[WIRE_TEXT_BYTES];
    bool dying =
        peers_is_member(p) && (p->life.died_ns != 0 || peer_process_has_ended(p->life.pidfd));
    const bool may_be_dead = !peers_on_this_host(p) && peers_is_quiet(s, p, clock_ns());
    if (p->state == PEER_LEAVING || dying || leader_awaits_place(s, m->worker) ||
        (peers_is_member(p) && may_be_dead)) {
        peers_let_wait(s, r); /* the place becomes free when training goes on, or after timeout_s */
        return true;
    }
    if (p->state == PEER_ABSENT)
        return former_lives(s, p, r);
    snprintf(why, sizeof why,
             "process %u asks to join as worker %u, but process %u is that worker: start each "
             "worker once, with its own number",
             m->hello.pid, m->worker, p->pid);
    peers_refuse(s, r, ERROR_PROTOCOL, why);
    return true;
}

/* A follower's answer does not matter: the worker gets its batches from the leader. */
static uint64_t first_batch(const struct server *s, unsigned w)
{
    const uint64_t here = server_core_next_batch(s->core, w);
    const uint64_t elsewhere = server_leads(s) ? s->followers.batches[w] : 0;
    return here > elsewhere ? here : elsewhere;
}

static void on_hello(struct server *s, const struct channel_received *r)
{
    const struct wire_message *m = &r->message;
    struct peer *p = &s->peers[m->worker];
    if (peers_is_member(p) && p->hello_nonce == m->hello.nonce && !server_is_over(s) &&
        channel_same_id(&p->id, &r->from)) {
        peers_welcome(s, m->worker);
        return;
    }
    if (does_not_fit(s, r) || place_is_taken(s, p, r))
        return;
    *p = (struct peer){
        .state = PEER_WELCOMED,
        .id = r->from,
        .hello_nonce = m->hello.nonce,
        .first_batch = first_batch(s, m->worker),
        .joining_ns = clock_ns(),
        .foreign = m->hello.settings != s->o->settings_hash,
        .pid = m->hello.pid,
        .life = {.pidfd = peer_process_watch(m->hello.host, m->hello.pid), .heard_ns = clock_ns()},
        .former_pidfd = -1,
        .code = p->code};
    if (payload_mailboxes(s->payload) != NULL)
        mailboxes_clear(payload_mailboxes(s->payload), m->worker);
    while (p->incarnation == 0)
        payload_random(&p->incarnation, sizeof p->incarnation);
    if (p->life.pidfd >= 0)
        server_watch(s, p->life.pidfd);
    peers_welcome(s, m->worker);
}

/* ---- messages of members -------------------------------------------------------------------- */

/* `gradlag replay` looks for this row: it cannot compute the gradients of another program. */
static void note_foreign(struct server *s, unsigned w)
{
    static const char detail[] = "sent settings hash 0, so it is not gradlag: this run cannot "
                                 "be replayed";
    log_warning("worker %u %s", w, detail);
    server_event(s, SEVERITY_WARNING, "worker_foreign", (int)w, detail);
}

static void on_ready(struct server *s, unsigned w, const struct channel_received *r)
{
    struct peer *p = &s->peers[w];
    uint32_t payload = r->message.ready.payload;
    if (p->state == PEER_READY)
        return; /* repeated */
    if (payload != WIRE_PAYLOAD_FRAMES && !(payload == WIRE_PAYLOAD_SHM && s->offer_shared)) {
        peers_protocol_error(s, w, r, "ready for a payload that was not offered");
        return;
    }
    p->shared = payload == WIRE_PAYLOAD_SHM;
    p->has_mailbox = p->shared && payload_mailboxes(s->payload) != NULL &&
                     mailboxes_is_used(payload_mailboxes(s->payload), w);
    p->state = PEER_READY;
    p->release = peers_message(s, w, WIRE_RELEASE);
    s->joined_ns = clock_ns();
    s->missing_named = false;
    if (p->foreign)
        note_foreign(s, w);
    if (server_follows(s)) {
        follower_report(s, WIRE_WORKER_READY, w, 0);
        return;
    }
    if (server_leads(s)) {
        leader_worker_ready(s, w, 0);
        return;
    }
    peers_enter(s, w);
}

/* Call it when a push is complete. On one host the push counts as arrived when the worker sent
 * it. */
static void push_arrived(struct server *s, unsigned w)
{
    struct peer *p = &s->peers[w];
    uint64_t now = clock_ns(), sent = p->push.push.sent_ns;
    uint64_t earliest = p->arrived_ns > s->began_ns ? p->arrived_ns : s->began_ns;
    p->arrived_ns = p->shared && sent > earliest && sent < now ? sent : now;
    p->arrived_training_ns = training_ns_at(s, p->arrived_ns);
    p->wait_training_ns = s->gradient_training_ns = training_ns_at(s, now);
    /* Before the first tick after a pause of this server, released_ns is not corrected yet. */
    const bool ticked = liveness_ms(s->ticked_ns, now) <= s->timeout_ms / 2;
    if (ticked && now - p->released_ns > s->longest_step_ns)
        s->longest_step_ns = now - p->released_ns;
    p->next++;
    p->released = p->receiving = false;
    if (!s->one_order)
        training_queue(s, EVENT_PUSH, w);
    else if (server_follows(s))
        follower_report(s, WIRE_PUSH_COMPLETE, w, p->push.sequence);
    else
        leader_push_complete(s, w, 0);
}

static void on_push(struct server *s, unsigned w, const struct channel_received *r)
{
    struct peer *p = &s->peers[w];
    const struct wire_message *m = &r->message;
    if (m->sequence < p->next) {
        if (p->released)
            peers_release(s, w);
    } else if (m->sequence > p->next || !p->released) {
        peers_protocol_error(s, w, r, "a push that it was not released for");
    } else if (m->push.read_version != p->release.release.version) {
        peers_protocol_error(s, w, r, "a push for a version that it was not given");
    } else if (m->push.samples == 0 || m->push.samples > s->push_samples) {
        peers_protocol_error(s, w, r, "a push of an impossible number of samples");
    } else {
        p->push = *m;
        p->receiving = !p->shared;
        p->received = 0;
        if (p->shared)
            push_arrived(s, w);
    }
}

/* The epoch of the version that the worker has read. The size of a code depends on it. */
static double released_epoch(const struct server *s, const struct peer *p)
{
    return (double)p->release.release.samples / (double)s->o->epoch_samples;
}

/* Where the next part of the push goes. NULL: the worker was refused, or the run has failed. */
static uint8_t *destination(struct server *s, unsigned w, const struct channel_received *r)
{
    struct peer *p = &s->peers[w];
    p->coded = r->message.type == WIRE_CODED;
    if (!p->coded)
        return (uint8_t *)payload_gradient(s->payload, w) + p->received;
    if (s->codes == NULL) {
        peers_protocol_error(s, w, r, "a code, but compression=none");
        return NULL;
    }
    if (p->code == NULL &&
        memory_new(&p->code, compression_bytes_at(s->codes, 0), 1, "the code of a push") != OK) {
        server_fail(s, ERROR_OTHER, "%s", error_message());
        return NULL;
    }
    return (uint8_t *)p->code + p->received;
}

/* Call it when all floats, or the whole code, have arrived. */
static void payload_complete(struct server *s, unsigned w, const struct channel_received *r)
{
    struct peer *p = &s->peers[w];
    if (p->coded)
        compression_set_epoch(s->codes, released_epoch(s, p));
    if (p->coded && !compression_is_valid(s->codes, p->code)) {
        peers_protocol_error(s, w, r, "a code that no worker with these settings can have written");
        return;
    }
    if (p->coded)
        compression_decode(s->codes, p->code, payload_gradient(s->payload, w));
    push_arrived(s, w);
}

/* A part of a gradient, or of its code. */
static void on_gradient(struct server *s, unsigned w, const struct channel_received *r)
{
    struct peer *p = &s->peers[w];
    const struct wire_message *m = &r->message;
    const bool coded = m->type == WIRE_CODED;
    const size_t size =
        coded ? slice_push_bytes(s->codes, &s->slices, s->o->server, released_epoch(s, p))
              : s->count * sizeof(float);
    if (m->sequence < p->next)
        return; /* a part of a repeated push */
    if (m->sequence > p->next || !p->released || m->chunk.version != p->release.release.version) {
        peers_protocol_error(s, w, r, "a part of a gradient that it was not released for");
        return;
    }
    if (!p->receiving || m->chunk.offset != p->received || (p->received > 0 && coded != p->coded)) {
        p->receiving = false; /* a part was lost: after the next pong the worker repeats the push */
        return;
    }
    if (m->payload_bytes > size - p->received) {
        peers_protocol_error(s, w, r, "more of a gradient than there are parameters");
        return;
    }
    uint8_t *to = destination(s, w, r);
    if (to == NULL)
        return;
    memcpy(to, r->payload, m->payload_bytes);
    p->received += m->payload_bytes;
    s->sent_bytes += m->payload_bytes;
    p->wait_training_ns = training_ns_at(s, clock_ns());
    if (p->received == size)
        payload_complete(s, w, r);
}

static void on_ping(struct server *s, unsigned w, const struct channel_received *r)
{
    struct peer *p = &s->peers[w];
    if (r->message.ping.answer == 0)
        return;
    if (s->state == STATE_LEAVING && !channel_same_id(&p->id, &r->from)) {
        peers_end_one(s, w, &r->from); /* vectors may delay the end on its first connection */
        return;
    }
    if (p->state == PEER_WELCOMED) {
        peers_welcome(s, w); /* its ready was lost */
        return;
    }
    struct wire_message m = peers_message(s, w, WIRE_PONG);
    m.sequence = r->message.sequence;
    m.pong = (struct wire_pong){.next = p->next, .released = p->released};
    (void)channel_send(s->channel, &r->from, &m, NULL);
}

static void on_goodbye(struct server *s, unsigned w, const struct wire_text *t)
{
    struct peer *p = &s->peers[w];
    char why[WIRE_TEXT_BYTES + 32];
    if (server_is_over(s)) {
        peer_process_forget(&p->life.pidfd);
        p->state = PEER_GONE;
        return;
    }
    p->shared = false; /* after a goodbye a worker writes no more */
    snprintf(why, sizeof why, t->code == STOPPED ? "was told to stop%.0s" : "left: %s", t->text);
    /* The run ends with the code of a worker's own failure, not with what it blames on others. */
    const bool own = t->code == ERROR_OTHER || t->code == ERROR_DATA || t->code == ERROR_USAGE ||
                     t->code == STOPPED;
    status code = own ? (status)t->code : ERROR_PEER;
    peers_lose(s, w, code, why);
}

/* S2: every message except a hello must come from a member. Every message except a ping must also
 * come on the member's first connection. NULL: the message is accepted. */
static const char *refusal_of(const struct server *s, const struct channel_received *r,
                              status *code)
{
    const struct wire_message *m = &r->message;
    *code = ERROR_PROTOCOL;
    if (m->run_token != s->o->run_token)
        return "it does not show this run's token";
    if (m->type == WIRE_JOIN)
        return "it asks to follow, but this is not server 0 of several: start all with the same "
               "servers= and endpoint=";
    if (m->worker >= s->workers)
        return "a worker's number must be below the number of workers (workers.max, or workers): "
               "start all with the same settings";
    const struct peer *p = &s->peers[m->worker];
    if (m->type == WIRE_HELLO)
        return NULL;
    if (!peers_is_member(p) || m->incarnation != p->incarnation) {
        *code = ERROR_PEER;
        return "not a member of this run: it was evicted, or the server was started again";
    }
    if (!channel_same_id(&p->id, &r->from) && m->type != WIRE_PING)
        return "that worker uses another connection";
    return NULL;
}

static void handle_member(struct server *s, const struct channel_received *r)
{
    const struct wire_message *m = &r->message;
    struct peer *p = &s->peers[m->worker];
    liveness_heard(&p->life);
    if (p->state == PEER_WELCOMED && m->type != WIRE_READY && m->type != WIRE_PING &&
        m->type != WIRE_GOODBYE) {
        peers_protocol_error(s, m->worker, r, "a message before it was ready");
        return;
    }
    switch (m->type) {
    case WIRE_READY:
        on_ready(s, m->worker, r);
        break;
    case WIRE_PUSH:
        on_push(s, m->worker, r);
        break;
    case WIRE_GRADIENT:
    case WIRE_CODED:
        on_gradient(s, m->worker, r);
        break;
    case WIRE_PING:
        on_ping(s, m->worker, r);
        break;
    case WIRE_PULL:
        if (p->released)
            peers_release(s, m->worker);
        break;
    case WIRE_GOODBYE:
        on_goodbye(s, m->worker, &m->text);
        break;
    default:
        peers_protocol_error(s, m->worker, r, "a message that only a server may send");
    }
}

/* Whether the message is a last one from the former member in this place, which has left or was
 * evicted: a ping of its heartbeat, or a goodbye. After a goodbye it no longer writes to shared
 * memory. */
static bool was_on_its_way(struct server *s, const struct channel_received *r)
{
    const struct wire_message *m = &r->message;
    if (m->run_token != s->o->run_token || m->worker >= s->workers)
        return false;
    struct peer *p = &s->peers[m->worker];
    if (peers_is_member(p) || p->incarnation == 0 || m->incarnation != p->incarnation)
        return false;
    if (m->type == WIRE_GOODBYE) {
        peer_process_forget(&p->former_pidfd);
        p->former = 0;
        return true;
    }
    return m->type == WIRE_PING && !channel_same_id(&p->id, &r->from);
}

void peers_handle(struct server *s, enum channel_event event, const struct channel_received *r)
{
    char why[WIRE_TEXT_BYTES];
    if (event == CHANNEL_MALFORMED) {
        snprintf(why, sizeof why, "%s", r->why);
        for (unsigned w = 0; w < s->workers; w++) {
            const struct peer *p = &s->peers[w];
            if (peers_is_member(p) && channel_same_id(&p->id, &r->from)) {
                peers_protocol_error(s, w, r, why);
                return;
            }
        }
        peers_refuse(s, r, ERROR_PROTOCOL, why);
        return;
    }
    if (was_on_its_way(s, r))
        return;
    status code;
    const char *wrong = refusal_of(s, r, &code);
    if (wrong != NULL)
        peers_refuse(s, r, code, wrong);
    else if (r->message.type == WIRE_HELLO)
        on_hello(s, r);
    else
        handle_member(s, r);
}

void peers_take_mail(struct server *s, unsigned w)
{
    const struct peer *p = &s->peers[w];
    struct channel_received r = {.from = p->id, .why = "not a push in its mailbox"};
    bool decoded;
    if (peers_is_member(p) && p->has_mailbox &&
        mailbox_receive(mailboxes_of(payload_mailboxes(s->payload), w), WIRE_PUSH, &r.message,
                        &decoded))
        peers_handle(s, decoded && r.message.worker == w ? CHANNEL_MESSAGE : CHANNEL_MALFORMED, &r);
}
