/* server_watch.c — workers that die, are silent, or hang. See server_state.h. */
#include "ps/server_state.h"

#include <stdio.h>

enum {
    WARN_MS = 5000,
    LONGEST_STEPS = 10,  /* times the longest step so far, or the timeout: then a worker hangs */
    LAST_WORDS_MS = 100, /* a dead worker's goodbye may still be on its way through ZeroMQ */
};

/* Whether the server waits for this worker's gradient: for its own part of it, or where one order
 * holds for all servers, for any of them. */
static bool is_computing(const struct server *s, unsigned w)
{
    return s->peers[w].state == PEER_READY && (s->peers[w].released || s->one_order) &&
           server_core_awaits(s->core, w);
}

/* It gives no signs of life either, and is judged by that. */
static bool is_silent(const struct server *s, unsigned w, uint64_t now)
{
    const uint64_t heard_ns = s->peers[w].heard_ns;
    return now > heard_ns && now - heard_ns > s->timeout_ms * 1000000ULL / 2;
}

static void name_computing(const struct server *s, char *out, size_t size)
{
    size_t length = 0;
    out[0] = '\0';
    for (unsigned w = 0; w < s->o->workers && length < size; w++)
        if (is_computing(s, w))
            length +=
                (size_t)snprintf(out + length, size - length, "%s%u", length > 0 ? ", " : "", w);
}

/* A heartbeat comes from a thread of its own: a worker whose gradient never comes still gives signs
 * of life. Where others wait for it (bsp), or all are like that, nothing goes on; that has a limit:
 * the timeout, or 10 times the longest step so far where steps are long, or 10 times the timeout
 * while no step is known. A slow step alone is nothing to be judged. */
static void look_for_hanging(struct server *s, uint64_t now)
{
    char who[128], why[160];
    if (!s->begun || s->ended || s->result != OK || s->evaluating || s->queue_count > 0)
        return;
    if (s->one_order && server_follows(s))
        return; /* server 0 knows whose gradient is not whole */
    if (server_leads(s) && followers_are_silent(s, now))
        return; /* a worker may wait for that server, which has its own limit */
    const uint64_t timeout_ms = s->timeout_ms, idle_ms = (now - s->moved_ns) / 1000000;
    uint64_t limit_ms = LONGEST_STEPS * s->longest_step_ns / 1000000;
    if (s->longest_step_ns == 0)
        limit_ms = LONGEST_STEPS * timeout_ms;
    else if (limit_ms < timeout_ms)
        limit_ms = timeout_ms;
    if (server_follows(s))
        limit_ms += limit_ms / 2; /* server 0 knows more, and comes first */
    if (idle_ms >= limit_ms) {
        snprintf(
            why, sizeof why,
            "has sent no gradient for %.1f s, though it gives signs of life (limit: timeout_s, "
            "or %d times the longest step): does it hang?",
            (double)idle_ms * 1e-3, LONGEST_STEPS);
        for (unsigned w = 0; w < s->o->workers; w++)
            if (is_computing(s, w) && !is_silent(s, w, now))
                peers_lose(s, w, ERROR_PEER, why);
        peers_moved(s);
    } else if (idle_ms >= WARN_MS && !s->stuck_named) {
        s->stuck_named = true;
        name_computing(s, who, sizeof who);
        log_warning("nothing has gone on for %llu s: waiting for a gradient of worker %s, up to "
                    "%llu s",
                    (unsigned long long)idle_ms / 1000, who, (unsigned long long)limit_ms / 1000);
    }
}

void peers_tick(struct server *s, uint64_t now)
{
    char why[128];
    look_for_hanging(s, now);
    for (unsigned w = 0; w < s->o->workers; w++) {
        struct peer *p = &s->peers[w];
        if (!peers_is_member(p))
            continue;
        if (p->died_ns == 0 && process_has_ended(p->pidfd)) {
            p->died_ns = now;
            process_forget(&p->pidfd);
        }
        if (p->died_ns != 0 && now - p->died_ns >= LAST_WORDS_MS * 1000000ULL) {
            peers_lose(s, w, ERROR_PEER, "died: see its own message, or the kernel's log");
            continue;
        }
        uint64_t silent_ms = now > p->heard_ns ? (now - p->heard_ns) / 1000000 : 0;
        if (silent_ms >= s->timeout_ms) {
            snprintf(why, sizeof why,
                     "was silent for %.1f s (timeout_s): is it stopped or "
                     "cut off?",
                     (double)silent_ms * 1e-3);
            peers_lose(s, w, ERROR_PEER, why);
        } else if (silent_ms >= WARN_MS && !p->warned) {
            p->warned = true;
            log_warning("worker %u (process %u) has been silent for %llu s, waiting up to %u s", w,
                        p->pid, (unsigned long long)silent_ms / 1000, s->timeout_ms / 1000);
        }
    }
}
