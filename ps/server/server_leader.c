/* server_leader.c — the leader's side: messages to and from followers. See server_state.h. */
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "ps/server/server_state.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { NAMED = 6 }; /* the most missing peers that one message names */

/* ---- open and close ------------------------------------------------------------------------- */

status leader_open(struct server *s)
{
    status result = OK;
    struct followers *f = &s->followers;
    size_t state_count, own = s->count;
    server_core_optimizer_state(s->core, &state_count);
    TRY(memory_new(&f->at, s->servers, sizeof *f->at, "servers"));
    for (unsigned i = 0; i < s->servers; i++)
        f->at[i].life.pidfd = -1;
    TRY(memory_new(&f->ready, s->workers, sizeof *f->ready, "the servers' workers"));
    TRY(memory_new(&f->complete, s->workers, sizeof *f->complete, "the servers' workers"));
    TRY(memory_new(&f->batches, s->workers, sizeof *f->batches, "the servers' workers"));
    TRY(memory_new(&f->freeing, (size_t)s->workers * s->servers, sizeof *f->freeing,
                   "the servers' workers"));
    TRY(memory_new(&f->parameters, s->o->count, sizeof(float), "all servers' parameters"));
    f->state_count = state_count / own * s->o->count;
    if (s->saver != NULL && f->state_count > 0)
        TRY(memory_new(&f->states, f->state_count, sizeof(float), "all servers' optimizer states"));
done:
    return result;
}

void leader_close(struct server *s)
{
    struct followers *f = &s->followers;
    for (unsigned i = 0; f->at != NULL && i < s->servers; i++)
        peer_process_forget(&f->at[i].life.pidfd);
    memory_free(f->at);
    memory_free(f->ready);
    memory_free(f->complete);
    memory_free(f->batches);
    memory_free(f->freeing);
    memory_free(f->parameters);
    memory_free(f->states);
}

static unsigned number_of(const struct server *s, const struct follower *f)
{
    return (unsigned)(f - s->followers.at);
}

void leader_lose_follower(struct server *s, struct follower *f, status code, const char *why)
{
    if (f->lost)
        return;
    f->lost = true;
    peer_process_forget(&f->life.pidfd);
    if (!server_is_over(s))
        server_event(s, SEVERITY_ERROR, "server_lost", NO_WORKER, why);
    server_fail(s, code, "server %u (process %u) %s", number_of(s, f), f->pid, why);
}

/* ---- gathering ------------------------------------------------------------------------------- */

void leader_request_slices(struct server *s, bool states)
{
    states &= s->followers.states != NULL;
    leader_gather(s, states);
    leader_send_order(s, WIRE_ORDER_GATHER, 0, states);
}

void leader_resume(struct server *s)
{
    if (s->followers.paused)
        leader_send_order(s, WIRE_ORDER_RESUME, 0, 0);
    s->followers.paused = s->followers.gathered = false;
}

/* ---- joining -------------------------------------------------------------------------------- */

static void confirm(struct server *s, struct follower *f)
{
    struct wire_message m = leader_message(s, f, WIRE_JOINED);
    m.sequence = 0;
    payload_host(m.joined.host);
    m.joined.pid = (uint32_t)getpid();
    (void)channel_send(s->channel, &f->id, &m, NULL);
}

/* Why a server may not join; NULL: it may. */
static const char *join_refusal(const struct server *s, const struct wire_message *m)
{
    unsigned n = m->worker;
    if (n == 0 || n >= s->servers)
        return "a follower's number must be at least 1 and below servers=";
    if (server_is_over(s))
        return "training is over";
    if (m->join.count != slice_count(&s->slices, n))
        return "its slice is of another model: start all servers with the same model and dataset";
    if (m->join.settings != s->o->settings_hash)
        return "its settings differ from server 0's: start all with the same (--print-config shows "
               "them; results, tag, timeout_s and the like may differ)";
    if (s->followers.at[n].joined)
        return "another process is that server: start each server once, with its own number";
    return NULL;
}

static void on_join(struct server *s, const struct channel_received *r)
{
    const struct wire_message *m = &r->message;
    const char *why = join_refusal(s, m);
    if (why != NULL) {
        peers_refuse(s, r, server_is_over(s) ? ERROR_PEER : ERROR_PROTOCOL, why);
        return;
    }
    struct follower *f = &s->followers.at[m->worker];
    *f = (struct follower){
        .joined = true,
        .id = r->from,
        .nonce = m->join.nonce,
        .pid = m->join.pid,
        .life = {.pidfd = peer_process_watch(m->join.host, m->join.pid), .heard_ns = clock_ns()}};
    while (f->incarnation == 0)
        payload_random(&f->incarnation, sizeof f->incarnation);
    if (f->life.pidfd >= 0)
        server_watch(s, f->life.pidfd);
    s->joined_ns = clock_ns();
    s->missing_named = false;
    confirm(s, f);
}

bool leader_has_all_followers(const struct server *s)
{
    for (unsigned i = 1; i < s->servers; i++)
        if (!s->followers.at[i].joined)
            return false;
    return true;
}

void leader_name_missing(const struct server *s, char *out, size_t size)
{
    size_t length = 0;
    unsigned named = 0;
    bool joined = leader_has_all_followers(s);
    out[0] = '\0';
    for (unsigned i = 1; i < s->servers && length < size && named < NAMED; i++)
        if (!s->followers.at[i].joined)
            length += (size_t)snprintf(out + length, size - length, "%sserver %u",
                                       named++ > 0 ? ", " : "", i);
    for (unsigned w = 0; w < s->workers && joined; w++)
        for (unsigned i = 1; i < s->servers && length < size && named < NAMED; i++)
            if (s->peers[w].state == PEER_READY && (s->followers.ready[w] >> i & 1) == 0)
                length += (size_t)snprintf(out + length, size - length, "%sworker %u at server %u",
                                           named++ > 0 ? ", " : "", w, i);
    if (named == NAMED && length < size)
        snprintf(out + length, size - length, " and so on");
}

/* ---- messages from followers ---------------------------------------------------------------- */

static void on_report(struct server *s, struct follower *f, const struct wire_notice *n)
{
    const unsigned server = number_of(s, f);
    switch (n->what) {
    case WIRE_WORKER_READY:
        if (!leader_is_freeing(s, n->worker, server))
            leader_worker_ready(s, n->worker, server);
        break;
    case WIRE_PUSH_COMPLETE:
        if (!leader_is_freeing(s, n->worker, server))
            leader_push_complete(s, n->worker, server);
        break;
    case WIRE_PLACE_FREE:
        if (leader_is_freeing(s, n->worker, server))
            leader_place_is_free(s, n->worker, server, n->sequence);
        else
            leader_lose_follower(s, f, ERROR_PROTOCOL, "reported a free place without an order");
        break;
    case WIRE_WORKERS_GONE:
        f->end = FOLLOWER_GONE;
        break;
    case WIRE_CLOSED:
        f->end = FOLLOWER_CLOSED;
        break;
    default:
        leader_lose_follower(s, f, ERROR_PROTOCOL, "sent a report of an unknown kind");
    }
}

static void on_lost(struct server *s, struct follower *f, const struct wire_lost *l)
{
    char why[WIRE_TEXT_BYTES + 32];
    if (server_is_over(s))
        return; /* the worker has left; its goodbye to this server is on its way */
    if (leader_is_freeing(s, l->worker, number_of(s, f)))
        return; /* the follower reports a process that is lost already */
    snprintf(why, sizeof why, "%s (at server %u)", l->text, number_of(s, f));
    peers_lose_elsewhere(s, l->worker, wire_failure(l->code, ERROR_PEER), why);
}

static void on_failed(struct server *s, const struct follower *f, const struct wire_text *t)
{
    if (!server_is_over(s)) /* otherwise the follower reports the cause that ends the run already */
        server_fail(s, wire_failure(t->code, ERROR_OTHER), "%s", t->text);
    else
        log_debug("server %u, too: %s", number_of(s, f), t->text);
}

static void on_record(struct server *s, struct follower *f, const struct push_record *r)
{
    struct push_record row = *r;
    row.server = number_of(s, f);
    bool known = row.outcome <= PUSH_NOT_FINITE && row.reason <= PUSH_BAD_UPDATE;
    if (!known || row.worker >= s->workers)
        leader_lose_follower(s, f, ERROR_PROTOCOL,
                             "sent a record with an unknown outcome or worker");
    else if (s->o->recorder != NULL)
        recorder_push(s->o->recorder, &row);
}

static void on_note(struct server *s, struct follower *f, const struct wire_note *n)
{
    if (n->severity > SEVERITY_ERROR || n->worker < NO_WORKER ||
        (n->worker >= 0 && (unsigned)n->worker >= s->workers))
        leader_lose_follower(s, f, ERROR_PROTOCOL,
                             "sent a note with an unknown severity or worker");
    else if (s->o->recorder != NULL)
        recorder_event_at(s->o->recorder, number_of(s, f), n->at_seconds, n->push_number,
                          (enum severity)n->severity, n->code, n->worker, n->text);
}

static void pong(struct server *s, struct follower *f)
{
    struct wire_message m = leader_message(s, f, WIRE_PONG);
    (void)channel_send(s->channel, &f->id, &m, NULL);
}

/* The parts of a slice keep a slow link busy, and pings wait behind them. So each part is answered:
 * the answer is a sign of life for the follower. */
static void on_slice(struct server *s, struct follower *f, const struct channel_received *r)
{
    const char *wrong = leader_take_slice(s, f, r);
    if (wrong != NULL)
        leader_lose_follower(s, f, ERROR_PROTOCOL, wrong);
    pong(s, f);
}

/* Whether the worker's number in a report or a loss is one of this run. */
static bool names_a_worker(const struct server *s, const struct wire_message *m)
{
    return (m->type != WIRE_REPORT || m->notice.worker < s->workers) &&
           (m->type != WIRE_LOST || m->lost.worker < s->workers);
}

static void handle(struct server *s, struct follower *f, const struct channel_received *r)
{
    const struct wire_message *m = &r->message;
    switch (m->type) {
    case WIRE_PING:
        pong(s, f);
        break;
    case WIRE_REPORT:
        on_report(s, f, &m->notice);
        break;
    case WIRE_LOST:
        on_lost(s, f, &m->lost);
        break;
    case WIRE_FAILED:
        on_failed(s, f, &m->text);
        break;
    case WIRE_RECORD:
        on_record(s, f, &m->record);
        break;
    case WIRE_NOTE:
        on_note(s, f, &m->note);
        break;
    case WIRE_SLICE:
        on_slice(s, f, r);
        break;
    default:
        leader_lose_follower(s, f, ERROR_PROTOCOL, "sent a message that a follower may not send");
    }
}

/* S4: a message is missing if the number is not the expected one. */
static void handle_numbered(struct server *s, struct follower *f, const struct channel_received *r)
{
    const struct wire_message *m = &r->message;
    char why[128];
    liveness_heard(&f->life);
    if (m->type == WIRE_JOIN) {
        if (m->join.nonce == f->nonce)
            confirm(s, f); /* our answer was lost */
    } else if (m->incarnation != f->incarnation || !names_a_worker(s, m)) {
        leader_lose_follower(s, f, ERROR_PROTOCOL, "sent a message of another run");
    } else if (m->sequence != f->received) {
        snprintf(why, sizeof why,
                 "sent message %" PRIu64 " instead of message %" PRIu64
                 ": the connection broke, and "
                 "messages were lost",
                 m->sequence, f->received);
        leader_lose_follower(s, f, ERROR_PEER, why);
    } else {
        f->received += m->type != WIRE_PING;
        handle(s, f, r);
    }
}

bool leader_handle(struct server *s, enum channel_event event, const struct channel_received *r)
{
    for (struct follower *f = s->followers.at + 1; f < s->followers.at + s->servers; f++) {
        if (!f->joined || !channel_same_id(&f->id, &r->from))
            continue;
        if (f->lost)
            return true; /* the run ends without this follower */
        if (event == CHANNEL_MALFORMED)
            leader_lose_follower(s, f, ERROR_PROTOCOL, r->why);
        else if (r->message.run_token == s->o->run_token)
            handle_numbered(s, f, r);
        return true;
    }
    bool joins = event == CHANNEL_MESSAGE && r->message.type == WIRE_JOIN &&
                 r->message.run_token == s->o->run_token;
    if (joins)
        on_join(s, r);
    return joins;
}

/* ---- liveness, and the end ------------------------------------------------------------------ */

bool leader_misses_a_follower(const struct server *s, uint64_t now)
{
    for (unsigned i = 1; i < s->servers; i++) {
        const struct follower *f = &s->followers.at[i];
        if (f->joined && liveness_ms(f->life.heard_ns, now) > s->timeout_ms / 2)
            return true;
    }
    return false;
}

void leader_tick(struct server *s, uint64_t now)
{
    char name[64], why[LIVENESS_WHY_BYTES];
    for (struct follower *f = s->followers.at + 1; f < s->followers.at + s->servers; f++) {
        if (!f->joined || f->lost || f->end == FOLLOWER_CLOSED)
            continue;
        snprintf(name, sizeof name, "server %u (process %u)", number_of(s, f), f->pid);
        if (liveness_is_lost(&f->life, name, s->timeout_ms, now, why))
            leader_lose_follower(s, f, ERROR_PEER, why);
    }
}

bool leader_followers_are(const struct server *s, enum follower_end end)
{
    for (unsigned i = 1; i < s->servers; i++) {
        const struct follower *f = &s->followers.at[i];
        if (f->joined && !f->lost && f->end < end)
            return false;
    }
    return true;
}
