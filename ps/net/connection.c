/*
 * connection.c — see connection.h. Only connection_advance() waits. It handles messages, notices a
 * silent or dead server, and has a limit (ps/net/liveness.h).
 *
 * Lost messages. Messages on one connection keep their order. A ping follows each push. If its pong
 * says that the server has not received the push, the push was lost with a broken connection, and
 * the worker sends it again. If the pong says that the server has released the worker, the release
 * was lost, and the worker requests it again. After LOST_MAX losses of one message in a row the
 * worker gives up: something between the two refuses the message.
 */
#include "ps/net/connection.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/shared_memory.h"
#include "base/text.h"
#include "worker/compression/pull_code.h"
#include "ps/net/channel.h"
#include "ps/net/endpoint.h"
#include "ps/net/heartbeat.h"
#include "ps/net/liveness.h"
#include "ps/net/payload.h"
#include "ps/net/peer_process.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
    PING_MS = 1000,        /* or a quarter of the timeout, if that is less */
    LOST_MAX = 3,          /* losses of one push or one release until the worker gives up */
    SAMPLES_MAX_LOG2 = 48, /* samples of one worker; with local steps their numbers fit 64 bits */
    SPIN_MAX = 1 << 18, /* parameters; during a longer update the worker does not spin, so that the
                           update can use its core */
};

struct connection {
    channel *channel;
    heartbeat *heartbeat;
    char *endpoint;
    uint64_t run_token;
    struct curve_keys *keys; /* NULL: none */
    bool trusted;            /* trusted_network=yes */
    unsigned worker;
    size_t count;
    enum wire_payload payload;
    struct pull_code pull; /* of the parameters in frames */
    unsigned timeout_ms, silence_ms, ping_ms;
    struct liveness server; /* heard_ns: on this channel or the heartbeat's */

    uint64_t incarnation, first_batch;
    uint64_t batches_max; /* a larger first_batch is an error of the server */
    uint64_t next;        /* sequence of the next push, and of the release that we wait for */
    bool welcomed, ended, left;
    bool ended_with_error, was_evicted; /* see connection.h */

    bool shared; /* the payload is in `view`; otherwise in the two buffers */
    struct payload_view view;
    bool has_mailbox; /* for pushes and releases */
    struct mailbox mailbox;
    struct bell bell;
    struct payload_place place;
    bool placed;
    float *own_parameters, *own_gradient; /* if placed, they are the caller's */

    struct wire_message hello, ready, push; /* as sent, kept to be sent again */
    struct connection_code code;            /* code of `push` */
    struct wire_release release;
    bool announced, released;         /* a release has arrived; all its parameters have, too */
    size_t received;                  /* bytes of the parameters received */
    bool pinged;                      /* a ping was sent after the last other message */
    unsigned push_lost, release_lost; /* messages lost in this wait */

    uint64_t heard_ns; /* last message on this channel */
    uint64_t pinged_ns;
    uint64_t checked_ns; /* the last check_server() of this wait */
};

static struct wire_message message_of(const connection *c, enum wire_type type)
{
    return (struct wire_message){.type = type,
                                 .worker = c->worker,
                                 .run_token = c->run_token,
                                 .incarnation = c->incarnation,
                                 .sequence = c->next};
}

static void send_message(connection *c, const struct wire_message *m)
{
    (void)channel_send(c->channel, NULL, m, NULL);
}

/* Sends the current push, and its gradient unless that is in shared memory. */
static void send_push(connection *c)
{
    if (c->has_mailbox) {
        mailbox_send(&c->mailbox, &c->push);
        return;
    }
    send_message(c, &c->push);
    if (c->shared)
        return;
    struct wire_message m = c->push;
    const bool coded = c->code.bytes != NULL;
    const uint8_t *bytes = coded ? c->code.bytes : (const uint8_t *)c->own_gradient;
    const size_t size = coded ? c->code.size : c->count * sizeof(float);
    m.type = coded ? WIRE_CODED : WIRE_GRADIENT;
    for (size_t at = 0; at < size; at += m.payload_bytes) {
        m.chunk = (struct wire_chunk){.version = c->push.push.read_version, .offset = at};
        m.payload_bytes = (uint32_t)(size - at < WIRE_CHUNK_BYTES ? size - at : WIRE_CHUNK_BYTES);
        (void)channel_send(c->channel, NULL, &m, bytes + at);
    }
}

/* ---- messages from the server --------------------------------------------------------------- */

static status choose_payload(connection *c, const struct wire_welcome *w)
{
    status result = OK;
    c->shared = false;
    if (c->payload != WIRE_PAYLOAD_FRAMES) {
        uint8_t host[WIRE_HOST_BYTES];
        payload_host(host);
        const char *why = w->payload != WIRE_PAYLOAD_SHM      ? "the server shares no memory"
                          : !payload_same_host(host, w->host) ? "the server is on another host"
                          : payload_map(&c->view, w, c->count, c->placed ? &c->place : NULL) != OK
                              ? error_message()
                              : NULL;
        c->shared = why == NULL;
        if (!c->shared && c->payload == WIRE_PAYLOAD_SHM)
            FAIL(ERROR_PEER, "payload=shm is not possible: %s; set payload=auto", why);
        if (!c->shared)
            log_debug("worker %u sends its payload in frames: %s", c->worker, why);
    }
    c->has_mailbox =
        c->shared && payload_open_mailbox(&c->view, w, c->worker, &c->mailbox, &c->bell);
    if (!c->shared && !c->placed) {
        TRY(shared_memory_new(&c->own_parameters, c->count, "a copy of the parameters",
                              OTHERS_READ));
        TRY(shared_memory_new(&c->own_gradient, c->count, "a gradient", OTHERS_WRITE));
    }
done:
    return result;
}

static status on_welcome(connection *c, const struct wire_message *m)
{
    status result = OK;
    if (c->welcomed) { /* answers a repeated hello, or our ready was lost */
        if (m->incarnation == c->incarnation)
            send_message(c, &c->ready);
        goto done;
    }
    if (m->incarnation == 0)
        FAIL(ERROR_PROTOCOL,
             "the server at %s broke the protocol: its welcome has incarnation 0; start server and "
             "workers with the same version of gradlag",
             c->endpoint);
    if (m->welcome.count != c->count)
        FAIL(ERROR_PROTOCOL,
             "the server at %s trains %llu parameters, but this worker's model has %zu: start both "
             "with the same model and dataset",
             c->endpoint, (unsigned long long)m->welcome.count, c->count);
    if (m->welcome.first_batch > c->batches_max)
        FAIL(ERROR_PROTOCOL,
             "the server at %s gave this worker batch %llu as its first, but the number of a batch "
             "is at most %llu",
             c->endpoint, (unsigned long long)m->welcome.first_batch,
             (unsigned long long)c->batches_max);
    c->welcomed = true;
    c->incarnation = m->incarnation;
    c->first_batch = m->welcome.first_batch;
    unsigned theirs = m->welcome.timeout_ms / 4; /* the server's timeout may be shorter */
    c->ping_ms = theirs > 0 && theirs < c->ping_ms ? theirs : c->ping_ms;
    TRY(choose_payload(c, &m->welcome));
    c->server.pidfd = peer_process_watch(m->welcome.host, m->welcome.pid);
    c->ready = message_of(c, WIRE_READY);
    c->ready.ready.payload = c->shared ? WIRE_PAYLOAD_SHM : WIRE_PAYLOAD_FRAMES;
    send_message(c, &c->ready);
    struct wire_message ping = message_of(c, WIRE_PING);
    ping.ping.answer = 1;
    TRY(heartbeat_start(&c->heartbeat, c->endpoint,
                        &(struct channel_options){.timeout_ms = c->timeout_ms,
                                                  .keys = c->keys,
                                                  .trusted = c->trusted,
                                                  .run_token = c->run_token},
                        &ping, c->ping_ms));
done:
    return result;
}

static status on_release(connection *c, const struct wire_message *m)
{
    status result = OK;
    if (m->sequence != c->next || c->released)
        goto done; /* a repetition */
    if (m->release.payload != (c->shared ? WIRE_PAYLOAD_SHM : WIRE_PAYLOAD_FRAMES) ||
        (c->shared && m->release.slot >= c->view.slots))
        FAIL(ERROR_PROTOCOL,
             "the server at %s broke the protocol: its release has slot %u or a kind of payload "
             "that was not agreed; start server and workers with the same version of gradlag",
             c->endpoint, m->release.slot);
    c->release = m->release;
    c->announced = true;
    c->released = c->shared;
    c->received = 0;
done:
    return result;
}

static status on_parameters(connection *c, const struct channel_received *r)
{
    status result = OK;
    const struct wire_message *m = &r->message;
    const size_t size = pull_code_bytes(&c->pull, c->count);
    if (m->sequence != c->next || c->released)
        goto done;
    if (!c->announced || m->chunk.offset != c->received) {
        c->announced = false; /* an earlier chunk was lost: on_pong() requests all chunks again */
        goto done;
    }
    const bool coded = m->type == WIRE_CODED_PARAMETERS;
    if (m->chunk.version != c->release.version || m->payload_bytes > size - c->received ||
        coded != (c->pull.kind != NULL) || (coded && m->payload_bytes % sizeof(uint16_t) != 0))
        FAIL(ERROR_PROTOCOL, "the server at %s sent parameters that do not belong to its release",
             c->endpoint);
    if (coded)
        pull_code_decode(&c->pull, r->payload, m->payload_bytes / sizeof(uint16_t),
                         c->own_parameters + c->received / sizeof(uint16_t));
    else
        memcpy((uint8_t *)c->own_parameters + c->received, r->payload, m->payload_bytes);
    c->received += m->payload_bytes;
    c->released = c->received == size;
done:
    return result;
}

/* The same message was lost LOST_MAX times, on its way to the server or from the server. */
static status give_up(const connection *c, const char *what, size_t size, const char *way)
{
    return error_set(
        ERROR_PEER, __FILE__, __LINE__,
        "worker %u: %s of %.1f MiB (frames of up to %d bytes) was lost %d times in a "
        "row on its way %s the server at %s: the connection broke each time. Does a "
        "firewall or proxy, or another version of gradlag or ZeroMQ at one end, refuse "
        "such frames? Try the same run on one host",
        c->worker, what, (double)size / (1 << 20), WIRE_CHUNK_BYTES, LOST_MAX, way, c->endpoint);
}

/* A pong that answers a ping sent before the last attempt says nothing about that attempt. */
static status on_pong(connection *c, const struct wire_message *m)
{
    if (m->sequence != c->next || c->released || !c->pinged)
        return OK;
    if (c->next > 0 && m->pong.next == c->next - 1) {
        if (++c->push_lost == LOST_MAX)
            return give_up(c, "a gradient",
                           c->code.bytes != NULL ? c->code.size : c->count * sizeof(float), "to");
        send_push(c);
    } else if (m->pong.next == c->next && m->pong.released != 0) {
        if (++c->release_lost == LOST_MAX)
            return give_up(c, "a release", pull_code_bytes(&c->pull, c->count), "from");
        c->announced = false;
        struct wire_message pull = message_of(c, WIRE_PULL);
        send_message(c, &pull);
    } else {
        return OK;
    }
    c->pinged = false;
    c->pinged_ns = clock_ns();
    return OK;
}

static status on_end(connection *c, const struct wire_text *t)
{
    c->ended = true;
    if (t->code == OK || t->code == STOPPED)
        return OK;
    c->ended_with_error = true;
    return error_set(wire_failure(t->code, ERROR_OTHER), __FILE__, __LINE__,
                     "the server at %s ended the run: %s", c->endpoint, t->text);
}

static status handle(connection *c, const struct channel_received *r)
{
    const struct wire_message *m = &r->message;
    if (m->run_token != c->run_token || m->worker != c->worker ||
        (c->welcomed && m->incarnation != c->incarnation && m->type != WIRE_REFUSED))
        return OK; /* another run, worker or incarnation */
    const bool may_precede_welcome = m->type == WIRE_WELCOME || m->type == WIRE_REFUSED ||
                                     m->type == WIRE_END || m->type == WIRE_PONG;
    if (!c->welcomed && !may_precede_welcome)
        return error_set(ERROR_PROTOCOL, __FILE__, __LINE__,
                         "the server at %s sent a message %s before it welcomed worker %u",
                         c->endpoint, wire_type_name(m->type), c->worker);
    liveness_heard(&c->server);
    c->heard_ns = c->server.heard_ns;
    switch (m->type) {
    case WIRE_WELCOME:
        return on_welcome(c, m);
    case WIRE_RELEASE:
        return on_release(c, m);
    case WIRE_PARAMETERS:
    case WIRE_CODED_PARAMETERS:
        return on_parameters(c, r);
    case WIRE_PONG:
        return on_pong(c, m);
    case WIRE_END:
        return on_end(c, &m->text);
    case WIRE_REFUSED:
        c->ended = true;
        c->was_evicted = m->text.code == ERROR_PEER && c->welcomed;
        return error_set(m->text.code == ERROR_PEER ? ERROR_PEER : ERROR_PROTOCOL, __FILE__,
                         __LINE__, "the server at %s refused worker %u: %s", c->endpoint, c->worker,
                         m->text.text);
    default:
        return error_set(ERROR_PROTOCOL, __FILE__, __LINE__,
                         "the server at %s sent a message %s, which only a worker may send",
                         c->endpoint, wire_type_name(m->type));
    }
}

static status take_mail(connection *c)
{
    struct channel_received r = {.payload = NULL};
    bool decoded;
    if (!c->has_mailbox)
        return OK;
    bell_hear(&c->bell);
    if (!mailbox_receive(&c->mailbox, WIRE_RELEASE, &r.message, &decoded))
        return OK;
    if (!decoded)
        return error_set(ERROR_PROTOCOL, __FILE__, __LINE__,
                         "the server at %s left a malformed message in shared memory", c->endpoint);
    return handle(c, &r);
}

/* ---- waiting ------------------------------------------------------------------------------- */

static status check_server(connection *c)
{
    status result = OK;
    const uint64_t now = clock_ns(), beat_ns = heartbeat_answer_ns(c->heartbeat);
    char name[160], why[LIVENESS_WHY_BYTES], limit[32] = "timeout_s";
    struct wire_text end;
    if (heartbeat_heard_end(c->heartbeat, &end)) /* vectors may delay it on c->channel */
        return on_end(c, &end);
    if (c->silence_ms != c->timeout_ms)
        snprintf(limit, sizeof limit, "%d times timeout_s", LIVENESS_FACTOR);
    /* When this process was paused, usually the server was paused, too: see server_was_away(). */
    if (liveness_ms(c->checked_ns, now) > c->timeout_ms / 2)
        c->heard_ns = now;
    c->checked_ns = now;
    c->server.heard_ns = beat_ns > c->heard_ns ? beat_ns : c->heard_ns;
    snprintf(name, sizeof name, "the server at %s", c->endpoint);
    const bool lost = liveness_is_lost(&c->server, name, c->silence_ms, now, why);
    if (!c->welcomed)
        TRY(channel_check_handshake(c->channel, lost));
    if (lost) {
        if (!c->welcomed)
            FAIL(ERROR_PEER,
                 "no server at %s has answered for %.1f s (limit: %s): is the server running, and "
                 "is the endpoint right?%s",
                 c->endpoint, (double)liveness_ms(c->server.heard_ns, now) * 1e-3, limit,
                 endpoint_hint(c->endpoint));
        FAIL(ERROR_PEER, "%s %s", name, why);
    }
    /* The server answers the heartbeat, but not this channel's pings: on a slow link vectors delay
     * them. */
    const uint64_t unanswered_ms = liveness_ms(c->heard_ns, now);
    if (unanswered_ms >= liveness_limit_ms(c->timeout_ms, 0))
        FAIL(
            ERROR_PEER,
            "the server at %s gives signs of life, but has not answered on this connection for "
            "%.1f s (limit: %d times timeout_s): is the link slow or broken, or does a part of the "
            "path have a smaller MTU?",
            c->endpoint, (double)unanswered_ms * 1e-3, LIVENESS_FACTOR);
    if (now - c->pinged_ns >= c->ping_ms * 1000000ULL) {
        struct wire_message ping = message_of(c, WIRE_PING);
        ping.ping.answer = 1;
        send_message(c, c->welcomed ? &ping : &c->hello);
        c->pinged = c->welcomed;
        c->pinged_ns = now;
    }
done:
    return result;
}

status connection_advance(connection *c, bool wait)
{
    status result = OK;
    struct channel_received r;
    const bool was_released = c->released;
    while (c->released == was_released && !c->ended) {
        TRY(take_mail(c));
        if (c->released != was_released)
            goto done;
        switch (channel_receive(c->channel, &r)) {
        case CHANNEL_MESSAGE:
            TRY(take_mail(c)); /* mail was sent before this message */
            TRY(handle(c, &r));
            break;
        case CHANNEL_MALFORMED:
            FAIL(ERROR_PROTOCOL, "the server at %s sent a malformed message: %s", c->endpoint,
                 r.why);
        case CHANNEL_NOTHING:
            if (c->released)
                goto done;
            TRY(check_server(c)); /* reads the clock, so only if there is no message */
            if (wait)
                channel_wait_any(
                    c->channel, NULL, c->has_mailbox ? &c->bell : NULL, c->server.pidfd,
                    c->server.died_ns == 0 ? c->ping_ms / 4 + 1 : LIVENESS_LAST_WORDS_MS / 10);
            goto done;
        }
    }
done:
    return result;
}

bool connection_is_released(const connection *c)
{
    return c->released;
}

bool connection_has_ended(const connection *c)
{
    return c->ended;
}

bool connection_ended_with_error(const connection *c)
{
    return c != NULL && c->ended_with_error;
}

bool connection_was_evicted(const connection *c)
{
    return c != NULL && c->was_evicted;
}

struct connection_release connection_release(const connection *c)
{
    REQUIRE(c->released);
    return (struct connection_release){
        .version = c->release.version,
        .samples = c->release.samples,
        .batch = c->first_batch + c->next,
        .parameters = c->shared ? payload_slot(&c->view, c->release.slot) : c->own_parameters,
        .paused_us = c->release.paused_us};
}

float *connection_gradient(connection *c)
{
    return c->shared ? c->view.gradient : c->own_gradient;
}

/* ---- open, push, leave, close --------------------------------------------------------------- */

static enum wire_payload payload_of(const options *settings)
{
    const char *name = options_text(settings, "payload");
    return strcmp(name, "shm") == 0      ? WIRE_PAYLOAD_SHM
           : strcmp(name, "frames") == 0 ? WIRE_PAYLOAD_FRAMES
                                         : WIRE_PAYLOAD_AUTO;
}

status connection_open(connection **out, const struct connection_options *o)
{
    status result = OK;
    connection *c = NULL;
    REQUIRE(out != NULL && o->count > 0);
    TRY(memory_new(&c, 1, sizeof *c, "a connection"));
    c->server.pidfd = c->mailbox.peer_bell = c->bell.fd = -1;
    c->endpoint = text_copy(o->endpoint);
    c->run_token = o->run_token;
    c->worker = o->worker;
    c->count = o->count;
    c->batches_max =
        (UINT64_C(1) << SAMPLES_MAX_LOG2) / (uint64_t)options_integer(o->settings, "batch");
    c->placed = o->place != NULL;
    if (c->placed) {
        c->place = *o->place;
        c->own_parameters =
            (float *)(void *)(c->place.parameters + c->place.slots * c->place.stride);
        c->own_gradient = (float *)(void *)c->place.gradient;
    }
    c->payload = payload_of(o->settings);
    c->pull = pull_code_of(o->settings);
    c->timeout_ms = (unsigned)(options_real(o->settings, "timeout_s") * 1000);
    c->silence_ms = o->follower ? (unsigned)liveness_limit_ms(c->timeout_ms, 0) : c->timeout_ms;
    c->ping_ms = c->timeout_ms / 4 < PING_MS ? c->timeout_ms / 4 : PING_MS;
    TRY(curve_open(&c->keys, options_text(o->settings, "curve"), false));
    c->trusted = options_flag(o->settings, "trusted_network");
    TRY(channel_connect(&c->channel, o->endpoint,
                        &(struct channel_options){.timeout_ms = c->timeout_ms,
                                                  .may_spin = o->count <= SPIN_MAX &&
                                                              channel_may_spin(o->processes),
                                                  .keys = c->keys,
                                                  .trusted = c->trusted,
                                                  .run_token = c->run_token}));
    c->hello = message_of(c, WIRE_HELLO);
    c->hello.hello = (struct wire_hello){.count = o->count,
                                         .settings = o->settings_hash,
                                         .pid = (uint32_t)getpid(),
                                         .payload = c->payload};
    payload_host(c->hello.hello.host);
    payload_random(&c->hello.hello.nonce, sizeof c->hello.hello.nonce);
    send_message(c, &c->hello);
    c->heard_ns = c->pinged_ns = c->checked_ns = clock_ns();
done:
    if (result != OK)
        connection_close(&c);
    *out = c;
    return result;
}

void connection_push(connection *c, const struct wire_push *push, struct connection_code code)
{
    REQUIRE(c->released && !c->ended);
    c->push = message_of(c, WIRE_PUSH);
    c->push.push = *push;
    c->code = code;
    c->push.push.read_version = c->release.version;
    c->next++;
    c->announced = c->released = c->pinged = false;
    c->push_lost = c->release_lost = 0;
    send_push(c);
    c->heard_ns = c->pinged_ns = c->checked_ns = clock_ns();
}

void connection_leave(connection *c, status why, const char *text)
{
    if (c == NULL || c->left || !c->welcomed)
        return;
    struct wire_message m = message_of(c, WIRE_GOODBYE);
    m.text.code = (uint32_t)why;
    snprintf(m.text.text, sizeof m.text.text, "%s", text);
    for (char *at = m.text.text; (at = strchr(at, '\n')) != NULL;)
        *at = ' '; /* the server prints it in one line */
    send_message(c, &m);
    c->left = true;
}

void connection_close(connection **p)
{
    if (p == NULL || *p == NULL)
        return;
    connection *c = *p;
    connection_leave(c, c->ended ? OK : ERROR_OTHER,
                     c->ended ? "" : "closed before the end of training");
    heartbeat_stop(&c->heartbeat);
    if (c->channel != NULL && (c->server.died_ns != 0 || !c->welcomed))
        channel_discard_unsent(c->channel);
    channel_close(&c->channel); /* before the buffers to which its messages refer */
    mailbox_close(&c->mailbox, &c->bell);
    payload_unmap(&c->view);
    curve_close(&c->keys);
    peer_process_forget(&c->server.pidfd);
    if (!c->placed) {
        shared_memory_free(c->own_parameters);
        shared_memory_free(c->own_gradient);
    }
    memory_free(c->endpoint);
    memory_free(c);
    *p = NULL;
}
