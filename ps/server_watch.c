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

static uint64_t longer(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Since anything went on. */
static uint64_t idle_ms_at(const struct server *s, uint64_t now)
{
    return now > s->moved_ns ? (now - s->moved_ns) / 1000000 : 0;
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
 * while no step is known. */
static void look_for_hanging(struct server *s, uint64_t now)
{
    char who[128], why[160];
    if (!s->begun || s->ended || s->result != OK || s->evaluating || s->queue_count > 0)
        return;
    if (s->one_order && server_follows(s))
        return; /* server 0 knows whose gradient is not whole */
    if (server_leads(s) && followers_are_silent(s, now))
        return; /* a worker may wait for that server, which has its own limit */
    const uint64_t timeout_ms = s->timeout_ms;
    const uint64_t idle_ms = idle_ms_at(s, now);
    uint64_t limit_ms = longer(LONGEST_STEPS * s->longest_step_ns / 1000000, timeout_ms);
    if (s->longest_step_ns == 0)
        limit_ms = LONGEST_STEPS * timeout_ms;
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

/* Where the others go on without it (asp), a hanging worker holds up nobody, and only its own
 * release tells. It is named, then lost after 10 times the timeout, or 10 times the longest step
 * of anybody so far. Evaluations do not count: they may take its processor. Where nothing has gone
 * on for half of that time, they do not go on without it: see look_for_hanging(). */
static void look_for_slow(struct server *s, unsigned w, uint64_t now)
{
    struct peer *p = &s->peers[w];
    char said[200];
    if (!is_computing(s, w) || is_silent(s, w, now) || s->stuck_named)
        return;
    const uint64_t trained_ns = training_ns_at(s, now);
    const uint64_t since_ns = p->released_training_ns;
    const uint64_t busy_ms = trained_ns > since_ns ? (trained_ns - since_ns) / 1000000 : 0;
    if (idle_ms_at(s, now) > busy_ms / 2)
        return;
    const uint64_t longest_ms = LONGEST_STEPS * s->longest_step_ns / 1000000;
    const uint64_t limit_ms = longer(LONGEST_STEPS * (uint64_t)s->timeout_ms, longest_ms);
    if (busy_ms >= limit_ms) {
        snprintf(said, sizeof said,
                 "has sent no gradient for %.1f s, though it gives signs of life and others go on "
                 "(limit: %d times timeout_s, or the longest step): does it hang?",
                 (double)busy_ms * 1e-3, LONGEST_STEPS);
        peers_lose(s, w, ERROR_PEER, said);
    } else if (!p->slow_named &&
               busy_ms >= longer(s->timeout_ms < WARN_MS ? s->timeout_ms : WARN_MS, longest_ms)) {
        p->slow_named = true;
        snprintf(said, sizeof said,
                 "worker %u (process %u) has sent no gradient for %.0f s, though it gives signs of "
                 "life; the others go on, and it is waited for up to %.0f s",
                 w, p->pid, (double)busy_ms * 1e-3, (double)limit_ms * 1e-3);
        log_warning("%s", said);
        server_event(s, SEVERITY_WARNING, "worker_slow", (int)w, said);
    }
}

/* A device or a file system may hang while the server evaluates or probes; everybody waits then. */
static void look_for_a_hung_evaluation(struct server *s)
{
    const char *what =
        s->probing ? "a fresh gradient for comparison (probe_every)" : "the evaluation";
    if (s->evaluator == NULL || !(s->evaluating || s->probing) || s->ended || s->result != OK)
        return;
    const uint64_t busy_ms = evaluator_busy_ns(s->evaluator) / 1000000;
    const uint64_t longest_ms = evaluator_longest_ns(s->evaluator) / 1000000;
    const uint64_t limit_ms = SERVER_OWN_WORK * longer(s->timeout_ms, longest_ms);
    if (busy_ms >= limit_ms) {
        server_fail(s, ERROR_PEER,
                    "%s has not ended for %.1f s (limit: %d times timeout_s, or the longest so "
                    "far): does a device or a file system hang? Where it is only slow, set a "
                    "longer timeout_s",
                    what, (double)busy_ms * 1e-3, SERVER_OWN_WORK);
    } else if (busy_ms == 0) {
        s->evaluation_named = false;
    } else if (!s->evaluation_named && busy_ms >= longer(WARN_MS, 3 * longest_ms)) {
        s->evaluation_named = true;
        log_info("%s has taken %llu s so far; it is waited for up to %llu s", what,
                 (unsigned long long)busy_ms / 1000, (unsigned long long)limit_ms / 1000);
    }
}

static void look_for_those_that_are_slow(struct server *s, uint64_t now)
{
    if (!s->begun || s->ended || s->result != OK || s->evaluating || server_follows(s))
        return; /* server 0 looks */
    if (server_leads(s) && followers_are_silent(s, now))
        return;
    for (unsigned w = 0; w < s->o->workers && s->result == OK; w++)
        look_for_slow(s, w, now);
}

static void excuse(uint64_t *since_ns, uint64_t away_ns, uint64_t now)
{
    *since_ns = *since_ns + away_ns < now ? *since_ns + away_ns : now;
}

/* This process did not run for away_ns, a tick aside. What pauses it for so long (a paused
 * container, a suspended job) mostly pauses its peers, too: do not count our own pause as their
 * silence. */
void server_was_away(struct server *s, uint64_t away_ns, uint64_t now)
{
    if (away_ns <= s->timeout_ms * 1000000ULL / 2)
        return; /* busy, mostly */
    excuse(&s->moved_ns, away_ns, now);
    excuse(&s->joined_ns, away_ns, now);
    excuse(&s->leader.heard_ns, away_ns, now);
    for (unsigned w = 0; w < s->o->workers; w++) {
        excuse(&s->peers[w].heard_ns, away_ns, now);
        s->peers[w].released_training_ns +=
            away_ns; /* at most until now, as look_for_slow() asks */
    }
    for (unsigned i = 1; server_leads(s) && i < s->servers; i++)
        excuse(&s->followers.at[i].heard_ns, away_ns, now);
    if (s->evaluator != NULL)
        evaluator_excuse(s->evaluator, away_ns);
}

void peers_tick(struct server *s, uint64_t now)
{
    char why[128];
    look_for_a_hung_evaluation(s);
    look_for_hanging(s, now);
    look_for_those_that_are_slow(s, now);
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
