/*
 * check_peer.c — `gradlag check endpoint=…` and `gradlag check --listen`: measures a link between
 * two hosts as an asynchronous run uses it, over ZeroMQ, with the same CURVE keys.
 */
#include "base/thread.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "experiments/cli/check.h"
#include "experiments/config/config.h"
#include "experiments/run/child_process.h"
#include "ps/net/channel.h"
#include "ps/net/endpoint.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    TRIPS = 200,
    PIECE_BYTES = 256 << 10, /* of one message */
    FIRST_BYTES = PIECE_BYTES,
    MOST_BYTES = 64 << 20,
    POLL_MS = 200,
    NOTICE_AFTER_S = 5,
    LISTENER_TIMEOUTS = 20, /* the listener waits for this many timeout_s */
};
#define LONG_ENOUGH_S 0.25 /* bytes still in buffers are then a small share */

struct link_peer {
    channel *channel;
    struct curve_keys *keys;
    uint8_t *bytes; /* [PIECE_BYTES]: payload of every message */
    double timeout_s;
    const char *endpoint;
    bool answered; /* a message has arrived */
};

static void close_peer(struct link_peer *p)
{
    channel_close(&p->channel);
    curve_close(&p->keys);
    memory_free(p->bytes);
}

static status open_peer(struct link_peer *p, const options *o, bool listen)
{
    status result = OK;
    const bool trusted = options_flag(o, "trusted_network");
    p->timeout_s = options_real(o, "timeout_s");
    p->endpoint = options_text(o, "endpoint");
    TRY(memory_new(&p->bytes, PIECE_BYTES, 1, "a message"));
    TRY(curve_open(&p->keys, options_text(o, "curve"), listen));
    if (listen && p->endpoint[0] == '\0')
        p->endpoint = p->keys != NULL || trusted ? "tcp://*:5555" : "tcp://127.0.0.1:5555";
    const struct channel_options how = {.timeout_ms = (unsigned)(1000 * p->timeout_s),
                                        .may_spin = channel_may_spin(1),
                                        .keys = p->keys,
                                        .trusted = trusted};
    TRY(listen ? channel_bind(&p->channel, p->endpoint, &how)
               : channel_connect(&p->channel, p->endpoint, &how));
done:
    return result;
}

/* Sends `size` bytes in messages of PIECE_BYTES. Every message has the same payload memory. */
static void send_bytes(struct link_peer *p, const struct channel_id *to, enum wire_type type,
                       uint64_t size)
{
    struct wire_message m = {.type = type};
    for (; m.chunk.offset < size; m.chunk.offset += m.payload_bytes) {
        const uint64_t left = size - m.chunk.offset;
        m.payload_bytes = (uint32_t)(left < PIECE_BYTES ? left : PIECE_BYTES);
        (void)channel_send(p->channel, to, &m, p->bytes);
    }
}

/* ---- the listener -------------------------------------------------------------------------------
 */

static volatile sig_atomic_t stopped;

static void stop(int number UNUSED)
{
    stopped = 1;
}

static void answer(struct link_peer *p, const struct channel_received *r)
{
    const struct wire_message pong = {.type = WIRE_PONG};
    if (r->message.type == WIRE_PING)
        (void)channel_send(p->channel, &r->from, &pong, NULL);
    else if (r->message.type == WIRE_PULL && r->message.sequence <= MOST_BYTES)
        send_bytes(p, &r->from, WIRE_PARAMETERS, r->message.sequence);
}

static status listen_until_goodbye(struct link_peer *p)
{
    status result = OK;
    const double limit_s = LISTENER_TIMEOUTS * p->timeout_s;
    double last_message_s = clock_seconds();
    for (;;) {
        struct channel_received r;
        const enum channel_event e = channel_receive(p->channel, &r);
        if (e == CHANNEL_MESSAGE) {
            last_message_s = clock_seconds();
            if (r.message.type == WIRE_GOODBYE)
                break;
            answer(p, &r);
        } else if (e == CHANNEL_NOTHING) {
            channel_wait(p->channel, -1, POLL_MS);
        }
        if (stopped)
            FAIL(STOPPED, "stopped on request before a peer had measured the link");
        if (clock_seconds() - last_message_s > limit_s) {
            FAIL(ERROR_PEER,
                 "check --listen: no message from a peer for %.0f s; start `gradlag check "
                 "endpoint=tcp://HOST:PORT` on the other host, or raise timeout_s",
                 limit_s);
        }
    }
done:
    return result;
}

status check_listen(const options *o)
{
    status result = OK;
    struct link_peer p = {0};
    TRY(open_peer(&p, o, true));
    struct sigaction action = {.sa_handler = stop};
    sigemptyset(&action.sa_mask);
    signal_handle(SIGINT, &action);
    signal_handle(SIGTERM, &action);
    log_info("listening on %s; waiting for one `gradlag check endpoint=…` (at most %.0f s)",
             channel_endpoint(p.channel), LISTENER_TIMEOUTS * p.timeout_s);
    TRY(listen_until_goodbye(&p));
done:
    close_peer(&p);
    return result;
}

/* ---- the measuring side ----------------------------------------------------------------------
 */

/* Waits for a message of this type whose payload reaches byte `until`. */
static status wait_for_message(struct link_peer *p, enum wire_type type, uint64_t until)
{
    status result = OK;
    double begun = clock_seconds();
    bool noticed = false;
    for (;;) {
        struct channel_received r;
        const enum channel_event e = channel_receive(p->channel, &r);
        if (e == CHANNEL_MESSAGE && r.message.type == type) {
            p->answered = true;
            if (until == 0 || r.message.chunk.offset + r.message.payload_bytes >= until)
                return OK;
            begun = clock_seconds();
        }
        if (e == CHANNEL_NOTHING)
            channel_wait(p->channel, -1, POLL_MS);
        const double waited = clock_seconds() - begun;
        TRY(channel_check_handshake(p->channel, waited > p->timeout_s));
        if (waited > p->timeout_s && p->answered) {
            FAIL(ERROR_PEER,
                 "check endpoint=%s: short messages pass, but a long one had no answer within "
                 "%.1f s; does a part of the path have a smaller MTU, or is the link very slow?",
                 p->endpoint, p->timeout_s);
        }
        if (waited > p->timeout_s) {
            FAIL(ERROR_PEER,
                 "check endpoint=%s: no answer within %.1f s; check that `gradlag check --listen` "
                 "runs there and that no firewall blocks this port%s",
                 p->endpoint, p->timeout_s, endpoint_hint(p->endpoint));
        }
        if (waited > NOTICE_AFTER_S && !noticed) {
            log_warning("no answer from %s for %d s; giving up after %.0f s", p->endpoint,
                        NOTICE_AFTER_S, p->timeout_s);
            noticed = true;
        }
    }
done:
    return result;
}

static status round_trip(struct link_peer *p)
{
    const struct wire_message ping = {.type = WIRE_PING, .ping = {.answer = 1}};
    (void)channel_send(p->channel, NULL, &ping, NULL);
    return wait_for_message(p, WIRE_PONG, 0);
}

static status measure_latency(struct link_peer *p, double *out)
{
    status result = OK;
    double trips[TRIPS];
    TRY(round_trip(p)); /* waits for the connection */
    for (unsigned i = 0; i < TRIPS; i++) {
        const uint64_t begun = clock_ns();
        TRY(round_trip(p));
        trips[i] = (double)(clock_ns() - begun) * 1e-9;
    }
    qsort(trips, TRIPS, sizeof *trips, check_ascending);
    *out = trips[TRIPS / 2] / 2;
done:
    return result;
}

static status transfer(struct link_peer *p, bool back, uint64_t size)
{
    status result = OK;
    if (back) {
        const struct wire_message pull = {.type = WIRE_PULL, .sequence = size};
        (void)channel_send(p->channel, NULL, &pull, NULL);
        TRY(wait_for_message(p, WIRE_PARAMETERS, size));
    } else {
        send_bytes(p, NULL, WIRE_GRADIENT, size);
        TRY(round_trip(p));
    }
done:
    return result;
}

/* Doubles the size until one transfer takes LONG_ENOUGH_S; that transfer gives the rate. */
static status measure_rate(struct link_peer *p, bool back, double *bytes_per_s)
{
    status result = OK;
    uint64_t size = FIRST_BYTES;
    for (;; size *= 2) {
        const uint64_t begun = clock_ns();
        TRY(transfer(p, back, size));
        const double seconds = (double)(clock_ns() - begun) * 1e-9;
        *bytes_per_s = (double)size / seconds;
        if (seconds >= LONG_ENOUGH_S || size == MOST_BYTES)
            break;
    }
done:
    return result;
}

status check_peer(struct check *c, const options *o)
{
    status result = OK;
    struct link_peer p = {0};
    double latency_s, rate;
    char name[160];
    TRY(open_peer(&p, o, false));
    log_info("measuring the link to %s", p.endpoint);
    TRY(measure_latency(&p, &latency_s));
    check_number(c, "latency", p.endpoint, latency_s * 1e6, "us");
    for (int back = 0; back < 2; back++) {
        TRY(measure_rate(&p, back, &rate));
        snprintf(name, sizeof name, "%s %.150s", back ? "from" : "to", p.endpoint);
        check_number(c, "bandwidth", name, 8e-9 * rate, "Gbit/s");
    }
    const struct wire_message bye = {.type = WIRE_GOODBYE};
    (void)channel_send(p.channel, NULL, &bye, NULL);
done:
    close_peer(&p);
    return result;
}

/* ---- the cost of encryption ---------------------------------------------------------------------
 */

static void listen_in_child(const void *context)
{
    struct link_peer p = {0};
    if (open_peer(&p, context, true) == OK)
        (void)!listen_until_goodbye(&p);
    close_peer(&p);
}

/* The rate between two processes of this host, in bytes per second. `folder` has the endpoint and
 * the keys. */
static status measure_here(const char *folder, bool encrypted, double *rate)
{
    status result = OK;
    options *o = NULL;
    struct child listener = {0};
    struct link_peer p = {0};
    struct text endpoint = {0}, keys = {0};
    text_add(&endpoint, "endpoint=ipc://%s/%s", folder, encrypted ? "encrypted" : "plain");
    text_add(&keys, "curve=%s/keys", folder);
    const char *const settings[] = {"mode=async", endpoint.at, encrypted ? keys.at : NULL, NULL};
    TRY(config_compose_texts(&o, settings, NULL, "check"));
    TRY(child_fork(&listener, listen_in_child, o));
    TRY(open_peer(&p, o, false));
    TRY(round_trip(&p));
    TRY(measure_rate(&p, false, rate));
done:
    close_peer(&p);
    child_kill(&listener);
    options_close(&o);
    text_free(&endpoint);
    text_free(&keys);
    return result;
}

status check_encryption(struct check *c)
{
    status result = OK;
    struct folder folder = {0};
    struct text keys = {0};
    double plain, encrypted;
    TRY(folder_make(&folder, NULL));
    text_add(&keys, "%s/keys", folder.path);
    TRY(curve_make(keys.at));
    TRY(measure_here(folder.path, false, &plain));
    TRY(measure_here(folder.path, true, &encrypted));
    check_number(c, "zeromq", "one way between 2 processes, plain", 8e-9 * plain, "Gbit/s");
    check_number(c, "zeromq", "the same, encrypted (curve)", 8e-9 * encrypted, "Gbit/s");
done:
    folder_remove(&folder);
    text_free(&keys);
    return result;
}
