/*
 * hostile.h — an attacker of a live server: floods, resets, half-open connections, unread answers,
 * messages without an end, and mutations of a correct worker's messages.
 *
 * (seed, attacker, n) determines the kind and the bytes of an attacker's n-th attack, but not when
 * each byte arrives.
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
    unsigned attacker; /* number of the attacker */
    uint64_t until_ns; /* on clock_ns() */
    const char *only;  /* an attack's name; NULL: all */
};
/* Attacks until then, each time in a new process, whose end closes all its connections. */
void hostile_attack(const struct hostile_plan *plan);

/* Whether the server answers a peer with credentials that is not a worker within this time. Runs in
 * a process of its own, too. */
bool hostile_knock(const struct hostile_target *target, double seconds);

#endif
