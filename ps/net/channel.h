/*
 * channel.h — the ZeroMQ sockets of the parameter server: one ROUTER at the server, one DEALER per
 * worker; wire.h's messages pass between them. All calls to ZeroMQ for training are in channel.c,
 * curve.c and unauthenticated_peers.c.
 *
 * Waiting. Waking a thread on another core takes longer than a small message. So a channel first
 * polls for up to 400 µs (spins) and then blocks. Each process has a thread of ZeroMQ beside its
 * own, and a message passes through all four. Without a free core for each process, spinning takes
 * time from the threads that carry the message, so the channel blocks at once.
 *
 * The kernel often wakes a thread on the core it last ran on, although a worker computes there and
 * another core is idle. So the server's thread and ZeroMQ's threads request short time slices,
 * which lets them preempt threads with longer ones.
 *
 * A push or a release whose payload is in shared memory does not pass through ZeroMQ at all: see
 * mailbox.h.
 *
 * With keys (curve.h) all traffic is encrypted, both sides authenticate each other, and any TCP
 * endpoint is allowed. Without keys nothing is encrypted, ZeroMQ accepts messages only from a peer
 * that has shown the run's token, and only endpoints on this host are allowed, unless the user has
 * declared the network trusted.
 *
 * One thread uses a channel.
 */
#ifndef GRADLAG_PS_NET_CHANNEL_H
#define GRADLAG_PS_NET_CHANNEL_H

#include "ps/net/curve.h"
#include "ps/net/mailbox.h"
#include "ps/net/wire.h"

#include <string.h>

typedef struct channel channel;

enum { CHANNEL_ID_BYTES = 255 };
struct channel_id { /* the ROUTER's name for a peer's connection */
    uint8_t size;
    uint8_t bytes[CHANNEL_ID_BYTES];
};
bool channel_same_id(const struct channel_id *a, const struct channel_id *b);

struct channel_options {
    unsigned timeout_ms; /* limit for closing, see channel_close() */
    bool may_spin;
    const struct curve_keys *keys; /* borrowed until the channel is open; NULL: none */
    bool trusted;                  /* without keys: endpoints of other hosts are allowed, too */
    uint64_t run_token;            /* without keys: a peer that does not show it cannot connect */
    unsigned max_queued; /* messages that may wait for a peer that does not read; 0: no limit */
};

/* The result of channel_receive(). */
enum channel_event { CHANNEL_NOTHING, CHANNEL_MESSAGE, CHANNEL_MALFORMED };
struct channel_received {
    struct channel_id from; /* server only */
    struct wire_message message;
    const void *payload; /* message.payload_bytes bytes, valid until the next receive */
    const char *why;     /* CHANNEL_MALFORMED: the reason; valid until the thread's next error */
};

/* Whether a run of `processes` processes may spin on this machine: it has a core for each. ZeroMQ's
 * threads need no core of their own, since a spinning thread yields to them. */
bool channel_may_spin(unsigned processes);

/* Opens the server's side. ERROR_USAGE: the endpoint is invalid or not allowed; ERROR_OTHER: it is
 * in use. */
status channel_bind(channel **out, const char *endpoint,
                    const struct channel_options *o) MUST_CHECK;
/* Opens a worker's side. It succeeds before a server listens; messages wait until then. */
status channel_connect(channel **out, const char *endpoint,
                       const struct channel_options *o) MUST_CHECK;
/* Sends the queued messages, for at most o.timeout_ms and at most two seconds, and closes. Before
 * the first answer, waits at most half a second longer for the resolution of a host name. */
void channel_close(channel **c);
/* Call it on a worker's side while the server has not answered. `over`: the time limit for an
 * answer has passed. ERROR_PROTOCOL: the handshake failed, because keys or tokens do not match or
 * one side has no keys. Some mismatches look like a forwarder whose server does not listen yet;
 * they are an error only if `over`. */
status channel_check_handshake(channel *c, bool over) MUST_CHECK;
/* Makes channel_close() discard the queued messages. Use it if the peer has ended. */
void channel_discard_unsent(channel *c);
/* The bound endpoint, with the port that the system chose. */
const char *channel_endpoint(const channel *c);

/* Sends one message; `to` is NULL on a worker's channel. The payload (message.payload_bytes) is not
 * copied. It must not change until the peer has answered, and must stay mapped until the channel is
 * closed. False: there is no such peer any more, or max_queued messages wait for it. */
bool channel_send(channel *c, const struct channel_id *to, const struct wire_message *m,
                  const void *payload);
/* Takes the next message if there is one. */
enum channel_event channel_receive(channel *c, struct channel_received *out);
/* Waits until a message may have arrived at `c` or `other`, `wake_fd` is readable, `bell`
 * (ps/net/mailbox.h) rings, or timeout_ms is over. NULL, −1: none. */
void channel_wait_any(channel *c, channel *other, struct bell *bell, int wake_fd,
                      unsigned timeout_ms);
static inline void channel_wait(channel *c, int wake_fd, unsigned timeout_ms)
{
    channel_wait_any(c, NULL, NULL, wake_fd, timeout_ms);
}

#endif
