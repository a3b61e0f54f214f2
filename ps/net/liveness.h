/*
 * liveness.h — the rule by which a process of an asynchronous run judges another one.
 *
 *   Silence: a process from which no message has come for timeout_s is lost.
 *   Work: a process that gives signs of life but owes a result (a gradient, a slice, an evaluation,
 *   a checkpoint, its joining) is named after timeout_s at the latest. It is lost after
 *   LIVENESS_FACTOR times the longer of timeout_s and the longest such wait so far.
 *
 * The factor is there because signs of life prove that the process runs, and because the length of
 * work is not known in advance: the first step loads libraries, a crowded machine slows every step
 * down, a disk may be slow. The synchronous mode has the same factor (COMMUNICATOR_PATIENCE).
 *
 * The name of a missing process is logged after LIVENESS_NAME_MS. After the death of a process its
 * last messages may still be in ZeroMQ's buffers, so the loss is noticed LIVENESS_LAST_WORDS_MS
 * later. Times `_ns` are of clock_ns(). One thread uses a struct liveness.
 */
#ifndef GRADLAG_PS_NET_LIVENESS_H
#define GRADLAG_PS_NET_LIVENESS_H

#include <stdbool.h>
#include <stdint.h>

enum {
    LIVENESS_FACTOR = 20,
    LIVENESS_NAME_MS = 5000,
    LIVENESS_LAST_WORDS_MS = 200,
};

/* What this process knows of another one. */
struct liveness {
    int pidfd;         /* −1: not on this host, or not watched; owned, see peer_process.h */
    uint64_t heard_ns; /* when its last message arrived */
    uint64_t died_ns;  /* when its death was noticed; 0: it is not known to be dead */
    bool named;        /* its silence has been logged */
};

enum { LIVENESS_WHY_BYTES = 96 };

/* Call it for each message. */
void liveness_heard(struct liveness *l);
/* Whether the process is dead or has been silent for too long; `why` is then the reason, "was
 * silent for …". Logs `name`, such as "worker 3 (process 77)", once for each silence. */
bool liveness_is_lost(struct liveness *l, const char *name, unsigned timeout_ms, uint64_t now_ns,
                      char why[LIVENESS_WHY_BYTES]);

/* Whole milliseconds from `then_ns` to `now_ns`; 0 if that is in the future. */
static inline uint64_t liveness_ms(uint64_t then_ns, uint64_t now_ns)
{
    return now_ns > then_ns ? (now_ns - then_ns) / 1000000 : 0;
}

/* The limit for work; `longest_ms`: the longest such wait so far, 0: none yet. */
static inline uint64_t liveness_limit_ms(unsigned timeout_ms, uint64_t longest_ms)
{
    return LIVENESS_FACTOR * (longest_ms > timeout_ms ? longest_ms : timeout_ms);
}

/* When late work is named: after 5 s, or three times the longest so far, but at most timeout_s. */
static inline uint64_t liveness_name_ms(unsigned timeout_ms, uint64_t longest_ms)
{
    const uint64_t usual_ms = 3 * longest_ms > LIVENESS_NAME_MS ? 3 * longest_ms : LIVENESS_NAME_MS;
    return usual_ms < timeout_ms ? usual_ms : timeout_ms;
}

#endif
