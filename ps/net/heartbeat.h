/*
 * heartbeat.h — a worker's sign of life while it computes: a thread that wakes once a second and
 * says "ping" through a channel of its own, so that a long step is not taken for a death. The
 * answers come that way, too, so that a server to which a vector takes long is not either.
 */
#ifndef GRADLAG_PS_NET_HEARTBEAT_H
#define GRADLAG_PS_NET_HEARTBEAT_H

#include "ps/net/channel.h"

typedef struct heartbeat heartbeat;

/* `ping`: the message to send every `interval_ms`, with token, worker and incarnation; copied. */
status heartbeat_start(heartbeat **out, const char *endpoint, const struct channel_options *o,
                       const struct wire_message *ping, unsigned interval_ms) MUST_CHECK;
/* When the last answer came (clock_ns()), 0: none yet. NULL-safe. */
uint64_t heartbeat_heard_ns(const heartbeat *h);
/* NULL-safe. */
void heartbeat_stop(heartbeat **h);

#endif
