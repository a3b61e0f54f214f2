/*
 * hostile.h — a stranger that attacks a live server: floods, resets, half-open connections, unread
 * answers, messages without an end, and mutations of what an honest worker said.
 *
 * What an attacker's n-th attack does, and with which bytes, is a function of (seed, attacker, n);
 * when each byte arrives is not.
 */
#ifndef GRADLAG_TESTS_PS_SERVER_HOSTILE_H
#define GRADLAG_TESTS_PS_SERVER_HOSTILE_H

#include "tests/ps/server/hostile_link.h"

enum { HOSTILE_FRAMES = 256 };

/* One message of a recorded worker: one frame, or two. Points into the recording. */
struct hostile_message {
    const uint8_t *frame[2];
    size_t size[2];
    unsigned frames;
};

struct hostile_session {
    struct hostile_recording stream; /* as on the wire, without CURVE */
    struct hostile_message messages[HOSTILE_FRAMES];
    size_t count;
};
/* Finds the messages in session->stream. */
void hostile_session_read(struct hostile_session *session);

struct hostile_plan {
    struct hostile_target target;
    const struct hostile_session *session;
    uint64_t seed;
    unsigned attacker; /* which of several that attack at the same time */
    uint64_t until_ns; /* on clock_ns() */
    const char *only;  /* an attack's name; NULL: all */
};
/* Makes attacks until then, each in a process of its own, which takes ZeroMQ and all connections
 * with it. */
void hostile_attack(const struct hostile_plan *plan);

/* Whether the server answers a message of somebody with credentials who is no worker within so
 * long. In a process of its own, likewise. */
bool hostile_knock(const struct hostile_target *target, double seconds);

#endif
