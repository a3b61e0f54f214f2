/*
 * heartbeat.h — a worker's sign of life while it computes. A helper thread sends a ping every
 * `interval_ms` over a channel of its own, so that the server does not take a long step for a lost
 * worker. The pongs return over the same channel. So a vector that takes long on a slow link does
 * not delay them, and the worker does not take the server for lost. The server also answers a ping
 * with the end of the run, so the worker does not miss it.
 */
#ifndef GRADLAG_PS_NET_HEARTBEAT_H
#define GRADLAG_PS_NET_HEARTBEAT_H

#include "ps/net/channel.h"

typedef struct heartbeat heartbeat;

/* Starts the thread. `ping`: the message to send, with token, worker and incarnation; copied. */
status heartbeat_start(heartbeat **out, const char *endpoint, const struct channel_options *o,
                       const struct wire_message *ping, unsigned interval_ms) MUST_CHECK;
/* When the last pong arrived (clock_ns()); 0: none yet, or h is NULL. Any thread. */
uint64_t heartbeat_answer_ns(const heartbeat *h);
/* Whether the server has answered a ping with the end of the run; *out is then a copy of the
 * message. h may be NULL. Any thread. */
bool heartbeat_heard_end(heartbeat *h, struct wire_text *out);
/* Ends the thread and frees *h. NULL-safe. */
void heartbeat_stop(heartbeat **h);

#endif
