/* server_gather.c — the leader's side: the slices of all servers (S5). See server_state.h. */
#include "base/clock.h"
#include "ps/server/server_state.h"

#include <string.h>

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

void leader_gather(struct server *s, bool states)
{
    struct followers *f = &s->followers;
    f->vectors = 1 + (states ? (unsigned)(f->state_count / s->o->count) : 0);
    for (unsigned i = 1; i < s->servers; i++) {
        f->at[i].vector = 0;
        f->at[i].bytes = 0;
    }
    f->paused = true;
    f->gathered = f->differ = false;
    copy_own(s, states);
}

struct follower *leader_awaits(struct server *s)
{
    struct followers *all = &s->followers;
    for (struct follower *f = all->at + 1; f < all->at + s->servers; f++)
        if (f->vector < all->vectors)
            return f;
    return NULL;
}

bool leader_lacks_a_follower(const struct server *s)
{
    for (unsigned i = 1; i < s->servers; i++)
        if (s->followers.at[i].lost || !s->followers.at[i].joined)
            return true;
    return false;
}

/* Where a part belongs: after the received parts of the same vector. NULL: it does not follow them,
 * or was not requested. */
static uint8_t *place_of(struct server *s, struct follower *f, const struct wire_message *m)
{
    const unsigned n = (unsigned)(f - s->followers.at);
    const size_t begin = s->slices.begin[n];
    const size_t size = slice_count(&s->slices, n) * sizeof(float);
    struct followers *all = &s->followers;
    if (m->slice.vector != f->vector || f->vector >= all->vectors || m->slice.offset != f->bytes ||
        m->payload_bytes > size - f->bytes)
        return NULL;
    float *vector = f->vector == 0 ? all->parameters : all->states + (f->vector - 1) * s->o->count;
    uint8_t *at = (uint8_t *)(vector + begin) + f->bytes;
    f->bytes += m->payload_bytes;
    if (f->bytes == size) {
        f->vector++;
        f->bytes = 0;
    }
    return at;
}

const char *leader_take_slice(struct server *s, struct follower *f,
                              const struct channel_received *r)
{
    const struct wire_message *m = &r->message;
    uint8_t *at = place_of(s, f, m);
    if (at == NULL)
        return "sent a part of its slice out of order";
    if (s->one_order && m->slice.version != server_core_version(s->core)) {
        if (!server_has_failed(s))
            return "has another version than server 0, although both use one order";
        s->followers.differ = true; /* the push that ended training is in some slices only */
    }
    memcpy(at, r->payload, m->payload_bytes);
    s->since_ns = clock_ns(); /* the limit begins again with each part */
    return NULL;
}
