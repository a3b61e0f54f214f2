/*
 * connection.c — see connection.h. connection_advance() is the one place that waits: it handles
 * messages as they come, notices a silent or dead server, and has a limit (ps/net/liveness.h).
 *
 * Lost messages. Messages on one connection keep their order. So if a pong that answers a ping sent
 * after a push says that the server has not seen the push, the push was lost with a connection, and
 * is sent again. The same holds for the server's release. A message that is lost LOST_MOST times in
 * a row would be lost for ever: something between the two refuses it.
 */
#include "ps/net/connection.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "ps/net/channel.h"
#include "ps/net/heartbeat.h"
#include "ps/net/liveness.h"
#include "ps/net/payload.h"
#include "ps/net/peer_process.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
    PING_MS = 1000,      /* or a quarter of the timeout, if that is less */
    LOST_MOST = 3,       /* losses of one push or one release until the worker gives up */
    SPIN_MOST = 1 << 18, /* parameters; a worker that waits for a longer update leaves its core to
                            the update */
};

struct connection {
    channel *channel;
    heartbeat *heartbeat;
    char *endpoint;
    uint64_t run_token;
    struct curve_keys *keys; /* NULL: none */
    unsigned worker;
    size_t count;
    enum wire_payload payload;
    unsigned timeout_ms, silence_ms, ping_ms;
    struct liveness server; /* heard_ns: on either connection */

    uint64_t incarnation, first_batch;
    uint64_t next; /* sequence of the next push; its release is what we wait for */
    bool welcomed, ended, left;
    bool was_ended, was_given_up; /* see connection_was_ended(), connection_was_given_up() */

    bool shared; /* payload through `view`, else through the two buffers */
    struct payload_view view;
    struct payload_place place;
    bool placed;
    float *own_parameters, *own_gradient; /* where placed, they are the caller's */

    struct wire_message hello, ready, push; /* as sent, to be said again */
    struct wire_release release;
    bool announced, released;         /* a release arrived; and all its parameters, too */
    size_t received;                  /* bytes of them */
    bool asked;                       /* pinged since anything was last said */
    unsigned push_lost, release_lost; /* how often, in this wait */

    uint64_t heard_ns; /* on this connection */
    uint64_t pinged_ns;
    uint64_t looked_ns; /* the last check_server() of this wait */
};

static struct wire_message message_of(const connection *c, enum wire_type type)
{
    return (struct wire_message){.type = type,
                                 .worker = c->worker,
                                 .run_token = c->run_token,
                                 .incarnation = c->incarnation,
                                 .sequence = c->next};
}

static void say(connection *c, const struct wire_message *m)
{
    (void)channel_send(c->channel, NULL, m, NULL);
}

/* The push that is under way, with its gradient where that does not lie in shared memory. */
static void say_push(connection *c)
{
    say(c, &c->push);
    if (c->shared)
        return;
    struct wire_message m = c->push;
    const uint8_t *bytes = (const uint8_t *)c->own_gradient;
    const size_t size = c->count * sizeof(float);
    m.type = WIRE_GRADIENT;
    for (size_t at = 0; at < size; at += m.payload_bytes) {
        m.chunk = (struct wire_chunk){.version = c->push.push.read_version, .offset = at};
        m.payload_bytes = (uint32_t)(size - at < WIRE_CHUNK_BYTES ? size - at : WIRE_CHUNK_BYTES);
        (void)channel_send(c->channel, NULL, &m, bytes + at);
    }
}

/* ---- what the server says ------------------------------------------------------------------ */

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
            FAIL(ERROR_PEER, "payload=shm is not possible: %s; try payload=auto", why);
        if (!c->shared)
            log_debug("worker %u sends its payload in frames: %s", c->worker, why);
    }
    if (!c->shared && !c->placed) {
        TRY(memory_new(&c->own_parameters, c->count, sizeof(float), "a copy of the parameters"));
        TRY(memory_new(&c->own_gradient, c->count, sizeof(float), "a gradient"));
    }
done:
    return result;
}

static status on_welcome(connection *c, const struct wire_message *m)
{
    status result = OK;
    if (c->welcomed) { /* the answer to a repeated hello, or our ready was lost */
        if (m->incarnation == c->incarnation)
            say(c, &c->ready);
        goto done;
    }
    if (m->welcome.count != c->count || m->incarnation == 0)
        FAIL(ERROR_PROTOCOL,
             "the server at %s trains %llu parameters, this worker's model has %zu: "
             "start both with the same model and dataset",
             c->endpoint, (unsigned long long)m->welcome.count, c->count);
    c->welcomed = true;
    c->incarnation = m->incarnation;
    c->first_batch = m->welcome.first_batch;
    unsigned theirs = m->welcome.timeout_ms / 4; /* a server may be less patient than we are */
    c->ping_ms = theirs > 0 && theirs < c->ping_ms ? theirs : c->ping_ms;
    TRY(choose_payload(c, &m->welcome));
    c->server.pidfd = peer_process_watch(m->welcome.host, m->welcome.pid);
    c->ready = message_of(c, WIRE_READY);
    c->ready.ready.payload = c->shared ? WIRE_PAYLOAD_SHM : WIRE_PAYLOAD_FRAMES;
    say(c, &c->ready);
    struct wire_message ping = message_of(c, WIRE_PING);
    ping.ping.answer = 1;
    TRY(heartbeat_start(&c->heartbeat, c->endpoint,
                        &(struct channel_options){.timeout_ms = c->timeout_ms,
                                                  .keys = c->keys,
                                                  .run_token = c->run_token},
                        &ping, c->ping_ms));
done:
    return result;
}

static status on_release(connection *c, const struct wire_message *m)
{
    status result = OK;
    if (m->sequence != c->next || c->released)
        goto done; /* said twice */
    if (m->release.payload != (c->shared ? WIRE_PAYLOAD_SHM : WIRE_PAYLOAD_FRAMES) ||
        (c->shared && m->release.slot >= c->view.slots))
        FAIL(ERROR_PROTOCOL, "the server at %s released this worker with slot %u, which it has not",
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
    const size_t size = c->count * sizeof(float);
    if (m->sequence != c->next || c->released)
        goto done;
    if (!c->announced || m->chunk.offset != c->received) {
        c->announced = false; /* what was before it is lost: on_pong() asks for all of it again */
        goto done;
    }
    if (m->chunk.version != c->release.version || m->payload_bytes > size - c->received)
        FAIL(ERROR_PROTOCOL, "the server at %s sent parameters that do not belong to its release",
             c->endpoint);
    memcpy((uint8_t *)c->own_parameters + c->received, r->payload, m->payload_bytes);
    c->received += m->payload_bytes;
    c->released = c->received == size;
done:
    return result;
}

/* The same message was lost LOST_MOST times, on its way to the server or from there. */
static status give_up(const connection *c, const char *what, const char *way)
{
    return error_set(
        ERROR_PEER, __FILE__, __LINE__,
        "worker %u: %s of %.1f MiB (frames of up to %d bytes) was lost %d times in a "
        "row on its way %s the server at %s: the connection broke each time. Does a "
        "firewall or proxy, or another version of gradlag or ZeroMQ at one end, refuse "
        "such frames? Try the same run on one host",
        c->worker, what, (double)c->count * sizeof(float) / (1 << 20), WIRE_CHUNK_BYTES, LOST_MOST,
        way, c->endpoint);
}

/* A pong that answers a ping from before the last attempt tells nothing about that one. */
static status on_pong(connection *c, const struct wire_message *m)
{
    if (m->sequence != c->next || c->released || !c->asked)
        return OK;
    if (c->next > 0 && m->pong.next == c->next - 1) {
        if (++c->push_lost == LOST_MOST)
            return give_up(c, "a gradient", "to");
        say_push(c);
    } else if (m->pong.next == c->next && m->pong.released != 0) {
        if (++c->release_lost == LOST_MOST)
            return give_up(c, "a release", "from");
        c->announced = false;
        struct wire_message pull = message_of(c, WIRE_PULL);
        say(c, &pull);
    } else {
        return OK;
    }
    c->asked = false;
    c->pinged_ns = clock_ns();
    return OK;
}

static status on_end(connection *c, const struct wire_text *t)
{
    c->ended = true;
    if (t->code == OK || t->code == STOPPED)
        return OK;
    c->was_ended = true;
    return error_set(wire_failure(t->code, ERROR_OTHER), __FILE__, __LINE__,
                     "the server at %s ended the run: %s", c->endpoint, t->text);
}

static status handle(connection *c, const struct channel_received *r)
{
    const struct wire_message *m = &r->message;
    if (m->run_token != c->run_token || m->worker != c->worker ||
        (c->welcomed && m->incarnation != c->incarnation && m->type != WIRE_REFUSED))
        return OK; /* not for us */
    const bool comes_first =
        m->type == WIRE_WELCOME || m->type == WIRE_REFUSED || m->type == WIRE_END;
    if (!c->welcomed && !comes_first)
        return error_set(ERROR_PROTOCOL, __FILE__, __LINE__,
                         "the server at %s sent a %s before it welcomed worker %u", c->endpoint,
                         wire_type_name(m->type), c->worker);
    liveness_heard(&c->server);
    c->heard_ns = c->server.heard_ns;
    switch (m->type) {
    case WIRE_WELCOME:
        return on_welcome(c, m);
    case WIRE_RELEASE:
        return on_release(c, m);
    case WIRE_PARAMETERS:
        return on_parameters(c, r);
    case WIRE_PONG:
        return on_pong(c, m);
    case WIRE_END:
        return on_end(c, &m->text);
    case WIRE_REFUSED:
        c->ended = true;
        c->was_given_up = m->text.code == ERROR_PEER && c->welcomed;
        return error_set(m->text.code == ERROR_PEER ? ERROR_PEER : ERROR_PROTOCOL, __FILE__,
                         __LINE__, "the server at %s refused worker %u: %s", c->endpoint, c->worker,
                         m->text.text);
    default:
        return error_set(ERROR_PROTOCOL, __FILE__, __LINE__, "the server at %s sent a %s",
                         c->endpoint, wire_type_name(m->type));
    }
}

/* ---- waiting ------------------------------------------------------------------------------- */

static status check_server(connection *c)
{
    status result = OK;
    const uint64_t now = clock_ns(), beat_ns = heartbeat_heard_ns(c->heartbeat);
    char name[160], why[LIVENESS_WHY_BYTES];
    /* A pause of this process mostly pauses the server, too: see server_was_away(). */
    if (liveness_ms(c->looked_ns, now) > c->timeout_ms / 2)
        c->heard_ns = now;
    c->looked_ns = now;
    c->server.heard_ns = beat_ns > c->heard_ns ? beat_ns : c->heard_ns;
    if (!c->welcomed)
        TRY(channel_check_handshake(c->channel));
    snprintf(name, sizeof name, "the server at %s", c->endpoint);
    if (liveness_is_lost(&c->server, name, c->silence_ms, now, why)) {
        if (!c->welcomed)
            FAIL(ERROR_PEER,
                 "no server answers at %s after %.1f s (timeout_s): is it running, and is the "
                 "endpoint right?",
                 c->endpoint, (double)liveness_ms(c->server.heard_ns, now) * 1e-3);
        FAIL(ERROR_PEER, "%s %s", name, why);
    }
    /* The server answers the heartbeat, but owes an answer to this connection's pings: vectors on a
     * slow link delay it. */
    const uint64_t owed_ms = liveness_ms(c->heard_ns, now);
    if (owed_ms >= liveness_limit_ms(c->timeout_ms, 0))
        FAIL(ERROR_PEER,
             "the server at %s lives, but has not answered for %.1f s (%d times timeout_s): is the "
             "link so slow, or broken?",
             c->endpoint, (double)owed_ms * 1e-3, LIVENESS_FACTOR);
    if (now - c->pinged_ns >= c->ping_ms * 1000000ULL) {
        struct wire_message ping = message_of(c, WIRE_PING);
        ping.ping.answer = 1;
        say(c, c->welcomed ? &ping : &c->hello);
        c->asked = c->welcomed;
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
        switch (channel_receive(c->channel, &r)) {
        case CHANNEL_MESSAGE:
            TRY(handle(c, &r));
            break;
        case CHANNEL_MALFORMED:
            FAIL(ERROR_PROTOCOL, "the server at %s: %s", c->endpoint, r.why);
        case CHANNEL_NOTHING:
            if (c->released)
                goto done;
            TRY(check_server(c)); /* the clock is asked only when nothing comes */
            if (wait)
                channel_wait(c->channel, c->server.pidfd,
                             c->server.died_ns == 0 ? c->ping_ms / 4 + 1
                                                    : LIVENESS_LAST_WORDS_MS / 10);
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

bool connection_was_ended(const connection *c)
{
    return c->was_ended;
}

bool connection_was_given_up(const connection *c)
{
    return c->was_given_up;
}

struct connection_release connection_release(const connection *c)
{
    REQUIRE(c->released);
    return (struct connection_release){
        .version = c->release.version,
        .batch = c->first_batch + c->next,
        .parameters = c->shared ? payload_slot(&c->view, c->release.slot) : c->own_parameters,
        .paused_us = c->release.paused_us};
}

float *connection_gradient(connection *c)
{
    return c->shared ? c->view.gradient : c->own_gradient;
}

/* ---- life ---------------------------------------------------------------------------------- */

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
    c->server.pidfd = -1;
    c->endpoint = text_copy(o->endpoint);
    c->run_token = o->run_token;
    c->worker = o->worker;
    c->count = o->count;
    c->placed = o->place != NULL;
    if (c->placed) {
        c->place = *o->place;
        c->own_parameters =
            (float *)(void *)(c->place.parameters + c->place.slots * c->place.stride);
        c->own_gradient = (float *)(void *)c->place.gradient;
    }
    c->payload = payload_of(o->settings);
    c->timeout_ms = (unsigned)(options_real(o->settings, "timeout_s") * 1000);
    c->silence_ms = o->follower ? (unsigned)liveness_limit_ms(c->timeout_ms, 0) : c->timeout_ms;
    c->ping_ms = c->timeout_ms / 4 < PING_MS ? c->timeout_ms / 4 : PING_MS;
    TRY(curve_open(&c->keys, options_text(o->settings, "curve"), false));
    TRY(channel_connect(&c->channel, o->endpoint,
                        &(struct channel_options){.timeout_ms = c->timeout_ms,
                                                  .may_spin = o->count <= SPIN_MOST &&
                                                              channel_may_spin(o->processes),
                                                  .keys = c->keys,
                                                  .run_token = c->run_token}));
    c->hello = message_of(c, WIRE_HELLO);
    c->hello.hello = (struct wire_hello){.count = o->count,
                                         .settings = o->settings_hash,
                                         .pid = (uint32_t)getpid(),
                                         .payload = c->payload};
    payload_host(c->hello.hello.host);
    payload_random(&c->hello.hello.nonce, sizeof c->hello.hello.nonce);
    say(c, &c->hello);
    c->heard_ns = c->pinged_ns = c->looked_ns = clock_ns();
done:
    if (result != OK)
        connection_close(&c);
    *out = c;
    return result;
}

void connection_push(connection *c, const struct wire_push *push)
{
    REQUIRE(c->released && !c->ended);
    c->push = message_of(c, WIRE_PUSH);
    c->push.push = *push;
    c->push.push.read_version = c->release.version;
    c->next++;
    c->announced = c->released = c->asked = false;
    c->push_lost = c->release_lost = 0;
    say_push(c);
    c->heard_ns = c->pinged_ns = c->looked_ns = clock_ns();
}

void connection_leave(connection *c, status why, const char *text)
{
    if (c == NULL || c->left || !c->welcomed)
        return;
    struct wire_message m = message_of(c, WIRE_GOODBYE);
    m.text.code = (uint32_t)why;
    strncpy(m.text.text, text, sizeof m.text.text - 1);
    say(c, &m);
    c->left = true;
}

void connection_close(connection **p)
{
    if (p == NULL || *p == NULL)
        return;
    connection *c = *p;
    connection_leave(c, c->ended ? OK : ERROR_OTHER, c->ended ? "" : "it gave up");
    heartbeat_stop(&c->heartbeat);
    if (c->channel != NULL && (c->server.died_ns != 0 || !c->welcomed))
        channel_forget(c->channel);
    channel_close(&c->channel); /* before the buffers that messages still refer to */
    payload_unmap(&c->view);
    curve_close(&c->keys);
    peer_process_forget(&c->server.pidfd);
    if (!c->placed) {
        memory_free(c->own_parameters);
        memory_free(c->own_gradient);
    }
    memory_free(c->endpoint);
    memory_free(c);
    *p = NULL;
}
