/* server_peers.c — workers: members, at which servers, messages to them, losses. See
 * server_state.h. */
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "ps/server/server_state.h"

#include <stdio.h>

enum {
    REFUSALS_LOGGED = 20, /* more would let a hostile peer fill the disk */
    ANSWERS = 1000,       /* per second to peers that are not members; more could fill the memory */
};

/* ---- messages to workers -------------------------------------------------------------------- */

bool peers_is_member(const struct peer *p)
{
    return p->state == PEER_WELCOMED || p->state == PEER_READY;
}

struct wire_message peers_message(const struct server *s, unsigned w, enum wire_type type)
{
    return (struct wire_message){.type = type,
                                 .worker = w,
                                 .run_token = s->o->run_token,
                                 .incarnation = s->peers[w].incarnation,
                                 .sequence = s->peers[w].next};
}

/* The answer takes its head from `m`. */
static void refuse(struct server *s, const struct channel_id *to, struct wire_message m,
                   status code, const char *why)
{
    const bool joins = m.type == WIRE_JOIN;
    m.type = WIRE_REFUSED;
    m.payload_bytes = 0;
    m.text = (struct wire_text){.code = (uint32_t)code};
    snprintf(m.text.text, sizeof m.text.text, "%s", why);
    (void)channel_send(s->channel, to, &m, NULL);
    if (s->refused++ >= REFUSALS_LOGGED)
        return;
    char detail[WIRE_TEXT_BYTES + 40], peer_name[40] = "a message without the run token";
    if (m.run_token == s->o->run_token)
        snprintf(peer_name, sizeof peer_name, "%s %u", joins ? "server" : "worker", m.worker);
    snprintf(detail, sizeof detail, "%s: %s", peer_name, why);
    log_warning("refused %s%s", detail,
                s->refused == REFUSALS_LOGGED ? " (further refusals are counted only)" : "");
    server_event(s, SEVERITY_WARNING, "peer_refused", NO_WORKER, detail);
}

/* Whether a peer that is not a member gets an answer now. */
static bool may_answer(struct server *s)
{
    const uint64_t now = clock_ns();
    if (now - s->answering_ns >= 1000000000) {
        s->answering_ns = now;
        s->answered = 0;
    }
    return s->answered++ < ANSWERS;
}

void peers_refuse(struct server *s, const struct channel_received *r, status code, const char *why)
{
    if (may_answer(s))
        refuse(s, &r->from, r->message, code, why);
    else
        s->refused++;
}

void peers_let_wait(struct server *s, const struct channel_received *r)
{
    struct wire_message m = {
        .type = WIRE_PONG, .worker = r->message.worker, .run_token = s->o->run_token};
    if (may_answer(s))
        (void)channel_send(s->channel, &r->from, &m, NULL);
}

void peers_welcome(struct server *s, unsigned w)
{
    struct wire_message m = peers_message(s, w, WIRE_WELCOME);
    m.welcome = (struct wire_welcome){
        .count = s->count, .first_batch = s->peers[w].first_batch, .timeout_ms = s->timeout_ms};
    payload_describe(s->payload, w, &m.welcome);
    if (!s->offer_shared)
        m.welcome.payload = WIRE_PAYLOAD_FRAMES;
    (void)channel_send(s->channel, &s->peers[w].id, &m, NULL);
}

/* The payload of a release in frames: the slot or its code. NULL: the run has failed. A code is
 * kept as long as its slot, because queued messages refer to it. */
static const uint8_t *pulled(struct server *s, const struct wire_release *at)
{
    const float *slot = payload_slots(s->payload)[at->slot];
    struct pulled *p = &s->pulled[at->slot];
    if (s->pull.kind == NULL)
        return (const uint8_t *)slot;
    if (p->code == NULL &&
        memory_new(&p->code, s->count, sizeof *p->code, "the code of the parameters") != OK) {
        server_fail(s, ERROR_OTHER, "%s", error_message());
        return NULL;
    }
    if (p->next != at->version + 1)
        pull_code_encode(&s->pull, slot, s->count, p->code);
    p->next = at->version + 1;
    return (const uint8_t *)p->code;
}

void peers_release(struct server *s, unsigned w)
{
    const struct peer *p = &s->peers[w];
    if (p->has_mailbox) {
        mailbox_send(mailboxes_of(payload_mailboxes(s->payload), w), &p->release);
        return;
    }
    (void)channel_send(s->channel, &p->id, &p->release, NULL);
    if (p->shared)
        return;
    struct wire_message m = p->release;
    const size_t size = pull_code_bytes(&s->pull, s->count);
    const uint8_t *bytes = pulled(s, &p->release.release);
    m.type = s->pull.kind != NULL ? WIRE_CODED_PARAMETERS : WIRE_PARAMETERS;
    for (size_t at = 0; bytes != NULL && at < size; at += m.payload_bytes) {
        m.chunk = (struct wire_chunk){.version = p->release.release.version, .offset = at};
        m.payload_bytes = (uint32_t)(size - at < WIRE_CHUNK_BYTES ? size - at : WIRE_CHUNK_BYTES);
        if (!channel_send(s->channel, &p->id, &m, bytes + at))
            return; /* its connection is gone; the worker asks again with a pull */
        s->sent_bytes += m.payload_bytes;
    }
}

void peers_end_one(struct server *s, unsigned w, const struct channel_id *to)
{
    struct wire_message m = peers_message(s, w, WIRE_END);
    m.text.code = (uint32_t)s->result;
    snprintf(m.text.text, sizeof m.text.text, "%s", s->message);
    (void)channel_send(s->channel, to, &m, NULL);
}

void peers_end(struct server *s)
{
    for (unsigned w = 0; w < s->workers; w++)
        if (peers_is_member(&s->peers[w]))
            peers_end_one(s, w, &s->peers[w].id);
}

/* ---- members -------------------------------------------------------------------------------- */

static unsigned count_in(const struct server *s, enum peer_state state, unsigned end)
{
    unsigned count = 0;
    for (unsigned w = 0; w < end; w++)
        count += s->peers[w].state == state;
    return count;
}

unsigned peers_in(const struct server *s, enum peer_state state)
{
    return count_in(s, state, s->workers);
}

/* Counts only the first o->workers workers, with which training begins. */
static unsigned first_in(const struct server *s, enum peer_state state)
{
    return count_in(s, state, s->o->workers);
}

void peers_name(const struct server *s, enum peer_state state, char *out, size_t size)
{
    size_t length = 0;
    unsigned named = 0, all = first_in(s, state);
    out[0] = '\0';
    for (unsigned w = 0; w < s->o->workers && length < size; w++) {
        if (s->peers[w].state != state)
            continue;
        if (named++ == 8) {
            snprintf(out + length, size - length, " and %u more", all - 8);
            return;
        }
        length +=
            (size_t)snprintf(out + length, size - length, "%sworker %u", named > 1 ? ", " : "", w);
    }
}

void peers_describe(const struct server *s, unsigned w, char *out, size_t size)
{
    const struct peer *p = &s->peers[w];
    snprintf(out, size, "process %u, payload=%s", p->pid, p->shared ? "shm" : "frames");
}

/* ---- what all servers have ------------------------------------------------------------------ */

static uint64_t everywhere(const struct server *s)
{
    return s->servers == SERVERS_MAX ? UINT64_MAX : (1ULL << s->servers) - 1;
}

bool peers_is_ready(const struct server *s, unsigned w)
{
    return s->peers[w].state == PEER_READY &&
           (!server_leads(s) || s->followers.ready[w] == everywhere(s));
}

unsigned peers_ready(const struct server *s, unsigned end)
{
    unsigned ready = 0;
    for (unsigned w = 0; w < end; w++)
        ready += peers_is_ready(s, w);
    return ready;
}

void peers_record_joined(struct server *s, unsigned w)
{
    struct peer *p = &s->peers[w];
    char detail[64];
    if (p->recorded)
        return;
    p->recorded = true;
    peers_describe(s, w, detail, sizeof detail);
    server_member_event(s, SEVERITY_INFO, "worker_joined", w, detail);
}

void peers_record_lost(struct server *s, unsigned w)
{
    char *detail = s->peers[w].loss;
    if (detail[0] != '\0')
        server_member_event(s, SEVERITY_ERROR, "worker_lost", w, detail);
    detail[0] = '\0';
}

/* All workers that are ready get version 0 at the same time. */
void peers_begin(struct server *s)
{
    server_begin(s);
    for (unsigned w = 0; w < s->workers; w++)
        training_queue(s, peers_is_ready(s, w) ? EVENT_HELLO : EVENT_MISSING, w);
}

/* A single server writes row worker_joined at once if training has not begun. A leader writes it
 * when it orders the event, because followers write theirs then. */
void peers_enter(struct server *s, unsigned w)
{
    if (!s->begun && !server_leads(s))
        peers_record_joined(s, w);
    if (s->begun)
        training_queue(s, EVENT_HELLO, w);
    else if (!server_is_over(s) && peers_ready(s, s->o->workers) == s->o->workers)
        peers_begin(s);
}

void leader_worker_ready(struct server *s, unsigned w, unsigned server)
{
    s->followers.ready[w] |= 1ULL << server;
    s->joined_ns = clock_ns();
    s->missing_named = false;
    if (peers_is_ready(s, w) && !s->peers[w].entered)
        peers_enter(s, w);
}

/* Queues a push when every server has it. Does nothing if its worker was lost before. */
void leader_push_complete(struct server *s, unsigned w, unsigned server)
{
    if (s->peers[w].state != PEER_READY)
        return;
    s->followers.complete[w] |= 1ULL << server;
    s->peers[w].wait_training_ns = training_ns_at(s, clock_ns());
    if (s->followers.complete[w] == everywhere(s)) {
        s->followers.complete[w] = 0;
        training_queue(s, EVENT_PUSH, w);
    }
}

/* ---- losses --------------------------------------------------------------------------------- */

/* The worker's place stays taken. True: the core knows the worker and must get EVENT_LOST. */
static bool end_membership(struct server *s, unsigned w)
{
    struct peer *p = &s->peers[w];
    const bool in_core = p->entered;
    if (p->shared && p->life.died_ns == 0) {
        p->former = p->pid;
        p->former_pidfd = p->life.pidfd;
        p->life.pidfd = -1;
        p->lost_ns = clock_ns();
    }
    peer_process_forget(&p->life.pidfd);
    p->state = PEER_LEAVING;
    p->released = p->receiving = false;
    return in_core;
}

void peers_forget(struct server *s, unsigned w)
{
    if (peers_is_member(&s->peers[w]))
        end_membership(s, w);
}

void peers_free_place(struct server *s, unsigned w)
{
    if (s->peers[w].state == PEER_LEAVING)
        s->peers[w].state = PEER_ABSENT;
    leader_free_place(s, w);
}

/* Ends the run or continues it, depending on on_lost. joined: the worker took part; in_core: see
 * end_membership(). */
static void go_on_without(struct server *s, unsigned w, status code, bool joined, bool in_core,
                          const char *detail)
{
    if (in_core && !s->lost_ends_run)
        snprintf(s->peers[w].loss, sizeof s->peers[w].loss, "%s", detail);
    else if (joined && !s->lost_ends_run)
        server_member_event(s, SEVERITY_ERROR, "worker_lost", w, detail);
    else
        server_event(s, SEVERITY_ERROR, "worker_lost", (int)w, detail);
    if (s->lost_ends_run) {
        server_fail(s, code, "%s", detail);
        return;
    }
    log_warning("%s; training goes on without it (on_lost=continue)", detail);
    if (s->o->hooks.lost != NULL)
        s->o->hooks.lost(s->o->hooks.context, w);
    if (in_core)
        training_queue(s, EVENT_LOST, w);
    else
        peers_free_place(s, w);
    if (s->begun && peers_in(s, PEER_READY) + peers_in(s, PEER_WELCOMED) == 0)
        server_fail(s, ERROR_PEER, "no worker is left: the last, %s", detail);
}

void peers_lose(struct server *s, unsigned w, status code, const char *why)
{
    struct peer *p = &s->peers[w];
    char detail[400];
    if (!peers_is_member(p))
        return;
    snprintf(detail, sizeof detail, "worker %u (process %u) %s", w, p->pid, why);
    const bool joined = server_leads(s) ? p->entered : p->state == PEER_READY;
    const bool in_core = end_membership(s, w);
    if (server_is_over(s))
        p->state = PEER_GONE;
    else if (server_follows(s) && !s->leader.joined)
        p->state = PEER_ABSENT; /* the leader does not know this worker */
    else if (server_follows(s))
        follower_lost(s, w, code, why);
    else
        go_on_without(s, w, code, joined, in_core, detail);
}

void peers_lose_elsewhere(struct server *s, unsigned w, status code, const char *why)
{
    char detail[400];
    if (s->peers[w].state != PEER_ABSENT) {
        peers_lose(s, w, code, why);
        return;
    }
    snprintf(detail, sizeof detail, "worker %u %s, before it joined server 0", w, why);
    go_on_without(s, w, code, false, false, detail);
}

void peers_protocol_error(struct server *s, unsigned w, const struct channel_received *r,
                          const char *what)
{
    char why[WIRE_TEXT_BYTES];
    snprintf(why, sizeof why, "broke the protocol: %s", what);
    refuse(s, &r->from, peers_message(s, w, WIRE_REFUSED), ERROR_PROTOCOL, why);
    peers_lose(s, w, ERROR_PROTOCOL, why);
}
