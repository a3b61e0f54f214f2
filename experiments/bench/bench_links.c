/* bench_links.c — the cases of `gradlag bench push-pull` without training: bytes one way, and round
 * trips of small messages. */
#include "base/clock.h"
#include "base/memory.h"
#include "experiments/bench/bench_push_pull.h"
#include "experiments/bench/plain_link.h"
#include "experiments/bench/raw_link.h"
#include "ps/net/channel.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct wire_message PING = {.type = WIRE_PING, .run_token = TOKEN};

/* Call it after round trip i, from 1. False: the last window is over. */
static bool continues(const struct scenario *s, unsigned index, uint64_t started_ns, unsigned i)
{
    if (i == WARM_UP)
        push_pull_ready(s, started_ns, WARM_UP);
    return i <= WARM_UP || push_pull_count(s, index);
}

/* ---- through a channel ---------------------------------------------------------------------- */

/* Copies received chunks to its own memory and answers pings, until a goodbye. */
status link_sink(const struct scenario *s, unsigned index UNUSED)
{
    status result = OK;
    channel *c = NULL;
    uint8_t *into = NULL;
    char listen[ENDPOINT_BYTES];
    struct channel_received r = {0};
    push_pull_endpoint(s, 0, listen);
    TRY(memory_new(&into, s->count, sizeof(float), "received floats"));
    TRY(channel_bind(&c, listen,
                     &(struct channel_options){
                         .timeout_ms = 1000, .may_spin = channel_may_spin(2), .run_token = TOKEN}));
    push_pull_listens(s->board, 0, channel_endpoint(c));
    double until = clock_seconds() + START_LIMIT_S;
    while (r.message.type != WIRE_GOODBYE) {
        if (channel_receive(c, &r) != CHANNEL_MESSAGE) {
            if (clock_seconds() > until)
                FAIL(ERROR_PEER,
                     "bench push-pull: no message within %d s; the worker may have died",
                     START_LIMIT_S);
            channel_wait(c, -1, 100);
            continue;
        }
        until = clock_seconds() + START_LIMIT_S;
        if (r.message.type == WIRE_GRADIENT)
            memcpy(into + r.message.chunk.offset, r.payload, r.message.payload_bytes);
        else if (r.message.type == WIRE_PING)
            (void)channel_send(c, &r.from, &PING, NULL);
    }
done:
    channel_close(&c);
    memory_free(into);
    return result;
}

static status ping_once(channel *c)
{
    struct channel_received r;
    (void)channel_send(c, NULL, &PING, NULL);
    double until = 0;
    while (channel_receive(c, &r) != CHANNEL_MESSAGE) {
        if (until == 0)
            until = clock_seconds() + START_LIMIT_S;
        if (clock_seconds() > until)
            return error_set(
                ERROR_PEER, __FILE__, __LINE__,
                "bench push-pull: no answer to a ping within %d s; the server may have died",
                START_LIMIT_S);
        channel_wait(c, -1, 100);
    }
    return OK;
}

/* Sends `count` floats in chunks (none for small messages), then a ping; its answer confirms them.
 */
status link_source(const struct scenario *s, unsigned index)
{
    status result = OK;
    channel *c = NULL;
    uint8_t *from = NULL;
    const size_t size = s->count < LINK_LEAST ? 0 : s->count * sizeof(float);
    struct wire_message m = {.type = WIRE_GRADIENT, .run_token = TOKEN};
    TRY(memory_new(&from, s->count, sizeof(float), "sent floats"));
    TRY(channel_connect(&c, s->board->endpoint[0],
                        &(struct channel_options){.timeout_ms = 1000,
                                                  .may_spin = channel_may_spin(2),
                                                  .run_token = TOKEN}));
    uint64_t started = clock_ns();
    for (unsigned i = 1;; i++) {
        for (size_t at = 0; at < size; at += m.payload_bytes) {
            m.chunk.offset = at;
            m.payload_bytes =
                (uint32_t)(size - at < WIRE_CHUNK_BYTES ? size - at : WIRE_CHUNK_BYTES);
            (void)channel_send(c, NULL, &m, from + at);
        }
        TRY(ping_once(c));
        if (!continues(s, index, started, i))
            break;
    }
done:
    if (c != NULL) {
        struct wire_message bye = {.type = WIRE_GOODBYE, .run_token = TOKEN};
        (void)channel_send(c, NULL, &bye, NULL);
    }
    channel_close(&c);
    memory_free(from);
    return result;
}

/* ---- through a plain link ------------------------------------------------------------------- */

/* Answers every message, until an empty one. Does not copy it: a reader can use it in place. */
status link_plain_sink(const struct scenario *s, unsigned index UNUSED)
{
    status result = OK;
    plain_link *l = NULL;
    const void *bytes;
    size_t size;
    char listen[ENDPOINT_BYTES];
    push_pull_endpoint(s, 0, listen);
    TRY(plain_link_bind(&l, listen));
    push_pull_listens(s->board, 0, plain_link_endpoint(l));
    do {
        TRY(plain_link_receive(l, 1000 * START_LIMIT_S, &bytes, &size));
        TRY(plain_link_send(l, NULL, 0));
    } while (size > 0);
done:
    plain_link_close(&l);
    return result;
}

status link_plain_source(const struct scenario *s, unsigned index)
{
    status result = OK;
    plain_link *l = NULL;
    float *from = NULL;
    const void *answer;
    size_t size;
    bool more = true;
    TRY(memory_new(&from, s->count, sizeof *from, "sent floats"));
    TRY(plain_link_connect(&l, s->board->endpoint[0]));
    uint64_t started = clock_ns();
    for (unsigned i = 1; more; i++) {
        TRY(plain_link_send(l, from, s->count * sizeof *from));
        TRY(plain_link_receive(l, 1000 * START_LIMIT_S, &answer, &size));
        more = continues(s, index, started, i);
    }
    TRY(plain_link_send(l, NULL, 0));
    TRY(plain_link_receive(l, 1000 * START_LIMIT_S, &answer, &size));
done:
    plain_link_close(&l);
    memory_free(from);
    return result;
}

/* ---- through a raw connection --------------------------------------------------------------- */

/* Passes the vector chunk by chunk, with the chunks of the channel. */
static status pass_raw(struct raw_link *l, uint8_t *bytes, size_t size, bool sends, bool *ended)
{
    status result = OK;
    *ended = false;
    for (size_t at = 0; at < size && !*ended; at += WIRE_CHUNK_BYTES) {
        size_t part = size - at < WIRE_CHUNK_BYTES ? size - at : WIRE_CHUNK_BYTES;
        if (sends)
            TRY(raw_link_send(l, bytes + at, part));
        else
            TRY(raw_link_receive(l, bytes + at, part, ended));
    }
done:
    return result;
}

/* Answers each vector with a byte, until the other end closes. */
status link_raw_sink(const struct scenario *s, unsigned index UNUSED)
{
    status result = OK;
    struct raw_link l = {.fd = -1};
    uint8_t *into = NULL;
    char port_text[16];
    unsigned port;
    bool ended = false;
    TRY(memory_new(&into, s->count, sizeof(float), "received floats"));
    TRY(raw_link_listen(&l, START_LIMIT_S, &port));
    snprintf(port_text, sizeof port_text, "%u", port);
    push_pull_listens(s->board, 0, port_text);
    TRY(raw_link_accept(&l));
    while (!ended) {
        TRY(pass_raw(&l, into, s->count * sizeof(float), false, &ended));
        if (!ended)
            TRY(raw_link_send(&l, into, 1));
    }
done:
    raw_link_close(&l);
    memory_free(into);
    return result;
}

status link_raw_source(const struct scenario *s, unsigned index)
{
    status result = OK;
    struct raw_link l = {.fd = -1};
    uint8_t *from = NULL, answer;
    const unsigned port = (unsigned)strtoul(s->board->endpoint[0], NULL, 10);
    bool ended = false;
    TRY(memory_new(&from, s->count, sizeof(float), "sent floats"));
    TRY(raw_link_connect(&l, START_LIMIT_S, port));
    uint64_t started = clock_ns();
    for (unsigned i = 1;; i++) {
        TRY(pass_raw(&l, from, s->count * sizeof(float), true, &ended));
        TRY(raw_link_receive(&l, &answer, 1, &ended));
        if (ended)
            FAIL(ERROR_PEER, "bench push-pull: the receiver has closed the raw connection");
        if (!continues(s, index, started, i))
            break;
    }
done:
    raw_link_close(&l);
    memory_free(from);
    return result;
}
