/*
 * channel.h — ZeroMQ as the parameter server uses it: one ROUTER at the server, one DEALER per
 * worker, and wire.h's messages between them. All calls to ZeroMQ for training are in channel.c,
 * curve.c and unauthenticated_peers.c.
 *
 * Waiting. A wake-up across cores takes longer than a small message, so a channel first asks again
 * and again for some tens of microseconds and then blocks. Every process has a thread of ZeroMQ
 * beside its own, and a message passes through all four: unless a core is free for each of them,
 * asking only steals the time of those who carry the answer, and such a channel blocks at once.
 *
 * Whoever is woken is often sent to the core it last ran on, where a worker may be computing for as
 * long as its turn lasts while another core idles. So the server's thread and ZeroMQ's ask for
 * short turns, which lets them interrupt longer ones.
 *
 * With keys (curve.h) all is encrypted, both sides know that the other has the right key, and any
 * tcp endpoint is allowed. Without keys only endpoints of this host are allowed, and a peer must
 * show the run's token before ZeroMQ takes any message of it.
 *
 * A channel belongs to one thread.
 */
#ifndef GRADLAG_PS_NET_CHANNEL_H
#define GRADLAG_PS_NET_CHANNEL_H

#include "ps/net/curve.h"
#include "ps/net/wire.h"

typedef struct channel channel;

enum { CHANNEL_ID_BYTES = 255 };
struct channel_id { /* a ROUTER's name for one peer's connection */
    uint8_t size;
    uint8_t bytes[CHANNEL_ID_BYTES];
};
bool channel_same_id(const struct channel_id *a, const struct channel_id *b);

struct channel_options {
    unsigned timeout_ms; /* the longest that closing may take, see channel_close() */
    bool may_spin;
    const struct curve_keys *keys; /* borrowed until it is open; NULL: none */
    uint64_t run_token;            /* without keys: a peer that does not show it cannot connect */
    unsigned most_queued; /* messages that may wait for one peer that does not read; 0: no limit */
};

/* What channel_receive() found. */
enum channel_event { CHANNEL_NOTHING, CHANNEL_MESSAGE, CHANNEL_MALFORMED };
struct channel_received {
    struct channel_id from; /* server only */
    struct wire_message message;
    const void *payload; /* message.payload_bytes, valid until the next receive */
    const char *why;     /* CHANNEL_MALFORMED: valid until the thread's next error */
};

/* Whether a run of so many processes may spin on this machine: a core for each. ZeroMQ's threads
 * need none of their own, since who spins yields to them; a core that never sleeps wakes them
 * sooner. */
bool channel_may_spin(unsigned processes);

/* The server's end. ERROR_USAGE: an endpoint that cannot be or is not allowed; ERROR_OTHER: in use.
 */
status channel_bind(channel **out, const char *endpoint,
                    const struct channel_options *o) MUST_CHECK;
/* A worker's end. It succeeds before anybody listens; messages wait until then. */
status channel_connect(channel **out, const char *endpoint,
                       const struct channel_options *o) MUST_CHECK;
/* Sends what is queued, for at most o.timeout_ms and never more than two seconds, and closes. */
void channel_close(channel **c);
/* A worker's: ERROR_PROTOCOL where the server has refused to talk to us, or we to it: keys or
 * tokens that do not fit, or keys that one of the two lacks. To be asked while no answer comes. */
status channel_check_handshake(channel *c) MUST_CHECK;
/* The peer is gone: what is queued for it is of no use, closing need not wait. */
void channel_forget(channel *c);
/* As bound, with the port that the system chose. */
const char *channel_endpoint(const channel *c);

/* Sends one message; `to` is NULL on a worker's channel. The payload (message.payload_bytes) is not
 * copied: it must stay as it is until the peer has answered, and mapped until the channel is
 * closed. False: there is no such peer any more, or most_queued messages wait for it already. */
bool channel_send(channel *c, const struct channel_id *to, const struct wire_message *m,
                  const void *payload);
/* Takes the next message if there is one. */
enum channel_event channel_receive(channel *c, struct channel_received *out);
/* Waits until there may be a message, `wake_fd` (−1: none) becomes readable, or time is over. */
void channel_wait(channel *c, int wake_fd, unsigned timeout_ms);
/* The same of two; `other` may be NULL. */
void channel_wait_either(channel *c, channel *other, int wake_fd, unsigned timeout_ms);

/* ERROR_USAGE unless the endpoint stays on this host: ipc, tcp on 127.x or [::1]. With `keys` any
 * address will do. */
status channel_check_endpoint(const char *endpoint, bool keys) MUST_CHECK;

#endif
