/* server_gather.c — server 0 of several: the slices of all, together. See server_state.h. */
#include "ps/server_state.h"

#include <stdio.h>
#include <string.h>

enum { GATHERING_FAILED_MS = 2000 }; /* the longest wait for slices of a run that has failed */

static const uint64_t MS = 1000000;

static void copy_own(struct server *s, bool states)
{
    struct followers *f = &s->followers;
    size_t count;
    const float *state = server_core_optimizer_state(s->core, &count);
    memcpy(f->parameters + s->begin, payload_slots(s->payload)[server_core_latest_slot(s->core)],
           s->count * sizeof(float));
    for (size_t k = 0; states && k < count / s->count; k++)
        memcpy(f->states + k * s->o->count + s->begin, state + k * s->count,
               s->count * sizeof(float));
}

/* True: all are here. */
static bool ask_is_answered(const struct server *s)
{
    for (unsigned i = 1; i < s->servers; i++)
        if (s->followers.at[i].vector < s->followers.vectors)
            return false;
    return true;
}

static struct follower *first_to_blame(struct server *s, bool lost)
{
    for (struct follower *f = s->followers.at + 1; f < s->followers.at + s->servers; f++)
        if (lost ? f->lost || !f->joined : f->vector < s->followers.vectors)
            return f;
    return NULL;
}

bool followers_gather(struct server *s, bool states)
{
    struct followers *f = &s->followers;
    uint64_t limit_ms = s->timeout_ms;
    char why[64];
    if (s->result != OK && s->result != STOPPED && limit_ms > GATHERING_FAILED_MS)
        limit_ms = GATHERING_FAILED_MS;
    states &= f->states != NULL;
    if (first_to_blame(s, true) != NULL)
        return false;
    f->vectors = 1 + (states ? (unsigned)(f->state_count / s->o->count) : 0);
    for (unsigned i = 1; i < s->servers; i++) {
        f->at[i].vector = 0;
        f->at[i].bytes = 0;
    }
    f->paused = true;
    f->slice_ns = clock_ns();
    followers_tell(s, WIRE_ORDER_ASK, 0, states);
    copy_own(s, states);
    while (!ask_is_answered(s)) {
        bool drained = server_receive(s);
        uint64_t now = clock_ns();
        if (!drained || ask_is_answered(s))
            continue;
        followers_tick(s, now);
        if (now > f->slice_ns + limit_ms * MS) {
            snprintf(why, sizeof why, "has sent nothing of its slice for %.1f s",
                     (double)limit_ms * 1e-3);
            followers_lose(s, first_to_blame(s, false), ERROR_PEER, why);
        }
        if (first_to_blame(s, true) != NULL)
            return false;
        server_wait(s);
    }
    return true;
}
