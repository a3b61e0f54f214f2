/* server_leader_send.c — messages from the leader to followers. See server_state.h. */
#include "ps/server/server_state.h"

#include <stdio.h>

struct wire_message leader_message(const struct server *s, const struct follower *f,
                                   enum wire_type type)
{
    return (struct wire_message){.type = type,
                                 .worker = (unsigned)(f - s->followers.at),
                                 .run_token = s->o->run_token,
                                 .incarnation = f->incarnation,
                                 .sequence = f->sent};
}

void leader_say(struct server *s, struct follower *f, struct wire_message *m)
{
    if (!f->joined || f->lost)
        return;
    (void)channel_send(s->channel, &f->id, m, NULL);
    f->sent++;
}

void leader_send_order(struct server *s, enum wire_order what, unsigned w, uint64_t sequence)
{
    for (struct follower *f = s->followers.at + 1; f < s->followers.at + s->servers; f++) {
        struct wire_message m = leader_message(s, f, WIRE_ORDER);
        m.notice = (struct wire_notice){.what = what, .worker = w, .sequence = sequence};
        leader_say(s, f, &m);
    }
}

void leader_order(struct server *s, const struct event *e)
{
    const struct peer *p = &s->peers[e->worker];
    switch (e->kind) {
    case EVENT_HELLO:
        leader_send_order(s, WIRE_ORDER_HELLO, e->worker, p->first_batch);
        break;
    case EVENT_MISSING:
    case EVENT_LOST:
        leader_send_order(s, WIRE_ORDER_LOST, e->worker, 0);
        break;
    case EVENT_PUSH:
        if (s->one_order)
            leader_send_order(s, WIRE_ORDER_PUSH, e->worker, p->push.sequence);
        break;
    }
}

void leader_end(struct server *s)
{
    for (struct follower *f = s->followers.at + 1; f < s->followers.at + s->servers; f++) {
        struct wire_message m = leader_message(s, f, WIRE_END);
        m.text.code = (uint32_t)s->result;
        snprintf(m.text.text, sizeof m.text.text, "%s", s->message);
        leader_say(s, f, &m);
    }
}

/* ---- places of workers: S7 ------------------------------------------------------------------ */

static unsigned *freeing(const struct server *s, unsigned w, unsigned server)
{
    return &s->followers.freeing[(size_t)w * s->servers + server];
}

void leader_free_place(struct server *s, unsigned w)
{
    if (!server_leads(s) || server_is_over(s))
        return;
    s->followers.ready[w] = s->followers.complete[w] = 0;
    for (unsigned i = 1; i < s->servers; i++)
        *freeing(s, w, i) += s->followers.at[i].joined;
    leader_send_order(s, WIRE_ORDER_FREE, w, 0);
}

bool leader_is_freeing(const struct server *s, unsigned w, unsigned server)
{
    return *freeing(s, w, server) > 0;
}

bool leader_awaits_place(const struct server *s, unsigned w)
{
    for (unsigned i = 1; server_leads(s) && i < s->servers; i++)
        if (leader_is_freeing(s, w, i))
            return true;
    return false;
}

void leader_place_is_free(struct server *s, unsigned w, unsigned server, uint64_t next_batch)
{
    uint64_t *batch = &s->followers.batches[w];
    --*freeing(s, w, server);
    if (next_batch > *batch)
        *batch = next_batch;
}
