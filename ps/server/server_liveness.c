/* server_liveness.c — limits for workers: dead, silent and hanging ones. See "Liveness" in
 * server_state.h. */
#include "base/log.h"
#include "ps/server/server_state.h"

#include <stdio.h>

static const uint64_t MS = 1000000;

/* Whether this worker owes a gradient: to this server, or with one order for all servers, to any of
 * them. */
static bool is_computing(const struct server *s, unsigned w)
{
    return s->peers[w].state == PEER_READY && (s->peers[w].released || s->one_order) &&
           server_core_awaits(s->core, w);
}

/* The other workers go on without worker `w` if a gradient came in the second half of its wait. */
static bool others_go_on(const struct server *s, uint64_t since_ns, uint64_t now_ns)
{
    return s->gradient_training_ns > since_ns + (now_ns - since_ns) / 2;
}

/* A worker's heartbeat thread gives signs of life even if the gradient never arrives. So the time
 * for a gradient has a limit. The time begins with the release, and again with each part of the
 * gradient. It is training time, because an evaluation may use the worker's processor. True: the
 * worker has just become late; the caller names it. */
static bool check_work(struct server *s, unsigned w, uint64_t now)
{
    char text[200];
    struct peer *p = &s->peers[w];
    if (!is_computing(s, w) || peers_is_quiet(s, p, now))
        return false;
    const uint64_t trained_ns = training_ns_at(s, now), since_ns = p->wait_training_ns;
    const uint64_t busy_ms = liveness_ms(since_ns, trained_ns);
    const uint64_t longest_ms = s->longest_step_ns / MS;
    const uint64_t limit_ms = liveness_limit_ms(s->timeout_ms, longest_ms);
    if (busy_ms >= limit_ms) {
        snprintf(text, sizeof text,
                 "has sent no gradient for %.1f s, though it gives signs of life (limit: %d times "
                 "the longer of timeout_s and the longest step): does it hang?",
                 (double)busy_ms * 1e-3, LIVENESS_FACTOR);
        peers_lose(s, w, ERROR_PEER, text);
        return false;
    }
    if (p->slow_named || busy_ms < liveness_name_ms(s->timeout_ms, longest_ms))
        return false;
    p->slow_named = true;
    if (others_go_on(s, since_ns, trained_ns)) {
        snprintf(text, sizeof text,
                 "worker %u (process %u) has sent no gradient for %.0f s, though it gives signs of "
                 "life; the others go on, and the server waits up to %.0f s for it",
                 w, p->pid, (double)busy_ms * 1e-3, (double)limit_ms * 1e-3);
        server_event(s, SEVERITY_WARNING, "worker_slow", (int)w, text);
    }
    return true;
}

/* Only the leader judges: it knows which push is complete at which server. A worker may wait for a
 * silent follower, which has its own limit. */
static void check_all_work(struct server *s, uint64_t now)
{
    char names[128] = "";
    size_t length = 0;
    if (s->state != STATE_TRAINING || server_is_over(s) || server_follows(s) ||
        (server_leads(s) && leader_misses_a_follower(s, now)))
        return;
    for (unsigned w = 0; w < s->workers && s->result == OK; w++)
        if (check_work(s, w, now) && length < sizeof names)
            length += (size_t)snprintf(names + length, sizeof names - length, "%s%u",
                                       length > 0 ? ", " : "", w);
    if (length > 0)
        log_warning("no gradient for %.1f s or longer from these workers, although they give signs "
                    "of life: %s; the limit is %.0f s",
                    (double)liveness_name_ms(s->timeout_ms, s->longest_step_ns / MS) * 1e-3, names,
                    (double)liveness_limit_ms(s->timeout_ms, s->longest_step_ns / MS) * 1e-3);
}

/* Whether training has begun and a welcomed worker has not become ready, at all servers, in
 * time. */
static bool joins_too_slowly(const struct server *s, const struct peer *p, uint64_t now)
{
    return s->begun && !p->entered && !server_follows(s) &&
           liveness_ms(p->joining_ns, now) >= liveness_limit_ms(s->timeout_ms, 0);
}

void peers_tick(struct server *s, uint64_t now)
{
    char name[64], why[LIVENESS_WHY_BYTES];
    check_all_work(s, now);
    for (unsigned w = 0; w < s->workers; w++) {
        struct peer *p = &s->peers[w];
        if (!peers_is_member(p))
            continue;
        snprintf(name, sizeof name, "worker %u (process %u)", w, p->pid);
        if (liveness_is_lost(&p->life, name, s->timeout_ms, now, why))
            peers_lose(s, w, ERROR_PEER, why);
        else if (joins_too_slowly(s, p, now))
            peers_lose(s, w, ERROR_PEER, "did not join all servers in time");
    }
}

static void excuse(uint64_t *since_ns, uint64_t away_ns, uint64_t now)
{
    *since_ns = *since_ns + away_ns < now ? *since_ns + away_ns : now;
}

/* A paused container or a suspended job usually pauses the peers, too. So do not count our own
 * pause as their silence, nor as the time of our own work. */
void server_was_away(struct server *s, uint64_t away_ns, uint64_t now)
{
    if (away_ns <= s->timeout_ms * MS / 2)
        return; /* usually the loop was only busy */
    excuse(&s->since_ns, away_ns, now);
    excuse(&s->joined_ns, away_ns, now);
    excuse(&s->leader.life.heard_ns, away_ns, now);
    for (unsigned w = 0; w < s->workers; w++) {
        excuse(&s->peers[w].life.heard_ns, away_ns, now);
        excuse(&s->peers[w].joining_ns, away_ns, now);
        excuse(&s->peers[w].released_ns, away_ns, now);
        s->peers[w].wait_training_ns += away_ns; /* a time in the future counts as now */
    }
    for (unsigned i = 1; server_leads(s) && i < s->servers; i++)
        excuse(&s->followers.at[i].life.heard_ns, away_ns, now);
}
