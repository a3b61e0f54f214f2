/* shared_links.c — see shared_links.h. */
#include "ps/virtual/shared_links.h"

#include "base/memory.h"

#include <math.h>
#include <string.h>

static const double LONGEST_NS = 1e18; /* the same limit as in pace_whole_ns() */

struct link_use {
    double room;   /* bytes per ns that are not given to a transfer yet */
    double weight; /* sum over the transfers without a rate */
    double level;  /* rate per unit of weight that this link allows */
    bool is_least; /* for no transfer of this link the other link's level is lower */
};

struct transfer {
    unsigned worker, server;
    double left, weight, rate; /* bytes; bytes per ns */
    uint64_t ends_ns;          /* at this rate */
    bool has_rate;
};

status shared_links_open(struct shared_links *l, unsigned workers, unsigned servers,
                         double worker_rate, double server_rate)
{
    status result = OK;
    *l = (struct shared_links){.workers = workers,
                               .servers = servers,
                               .worker_rate = worker_rate,
                               .server_rate = server_rate};
    TRY(memory_new(&l->use, workers + servers, sizeof *l->use, "links"));
    TRY(memory_new(&l->transfers, (size_t)workers * servers, sizeof *l->transfers, "transfers"));
done:
    return result;
}

void shared_links_close(struct shared_links *l)
{
    memory_free(l->use);
    memory_free(l->transfers);
    *l = (struct shared_links){0};
}

/* ---- rates --------------------------------------------------------------------------------- */

static struct link_use *worker_link(const struct shared_links *l, const struct transfer *t)
{
    return &l->use[t->worker];
}

static struct link_use *server_link(const struct shared_links *l, const struct transfer *t)
{
    return &l->use[l->workers + t->server];
}

static void find_least_links(struct shared_links *l)
{
    for (unsigned i = 0; i < l->workers + l->servers; i++) {
        l->use[i].weight = 0;
        l->use[i].is_least = true;
    }
    for (struct transfer *t = l->transfers; t < l->transfers + l->count; t++) {
        if (!t->has_rate) {
            worker_link(l, t)->weight += t->weight;
            server_link(l, t)->weight += t->weight;
        }
    }
    for (unsigned i = 0; i < l->workers + l->servers; i++)
        l->use[i].level = l->use[i].room / l->use[i].weight;
    for (struct transfer *t = l->transfers; t < l->transfers + l->count; t++) {
        struct link_use *w = worker_link(l, t), *s = server_link(l, t);
        if (!t->has_rate && w->level < s->level)
            s->is_least = false;
        if (!t->has_rate && s->level < w->level)
            w->is_least = false;
    }
}

static void take_room(struct link_use *u, double rate)
{
    if (isfinite(u->room))
        u->room = u->room > rate ? u->room - rate : 0;
}

/* Progressive filling. Each round fixes the rates on the links with the least levels; the other
 * transfers share the rest. The link with the lowest level is always among them, so the loop ends.
 */
static void share_rates(struct shared_links *l)
{
    for (unsigned i = 0; i < l->workers + l->servers; i++)
        l->use[i].room = i < l->workers ? l->worker_rate : l->server_rate;
    for (unsigned i = 0; i < l->count; i++)
        l->transfers[i].has_rate = false;
    for (unsigned without = l->count; without > 0;) {
        find_least_links(l);
        for (struct transfer *t = l->transfers; t < l->transfers + l->count; t++) {
            struct link_use *w = worker_link(l, t), *s = server_link(l, t);
            if (t->has_rate || (!w->is_least && !s->is_least))
                continue;
            t->rate = t->weight * (w->is_least ? w->level : s->level);
            t->has_rate = true;
            without--;
            take_room(w, t->rate);
            take_room(s, t->rate);
        }
    }
    l->changed = false;
}

/* ---- transfers ----------------------------------------------------------------------------- */

static void update_rates(struct shared_links *l)
{
    if (!l->changed)
        return;
    share_rates(l);
    for (struct transfer *t = l->transfers; t < l->transfers + l->count; t++) {
        const double ns = t->left > 0 ? ceil(t->left / t->rate) : 0;
        t->ends_ns = l->now_ns + (uint64_t)fmin(ns, LONGEST_NS);
    }
}

static void advance(struct shared_links *l, uint64_t now_ns)
{
    const double passed = (double)(now_ns - l->now_ns);
    REQUIRE(now_ns >= l->now_ns);
    if (passed == 0)
        return;
    update_rates(l);
    for (struct transfer *t = l->transfers; t < l->transfers + l->count; t++)
        t->left = t->ends_ns <= now_ns ? 0 : fmax(0, t->left - passed * t->rate);
    l->now_ns = now_ns;
}

static void remove_at(struct shared_links *l, unsigned i)
{
    l->count--;
    memmove(&l->transfers[i], &l->transfers[i + 1], (l->count - i) * sizeof *l->transfers);
    l->changed = true;
}

void shared_links_start(struct shared_links *l, unsigned worker, unsigned server, double bytes,
                        double weight, uint64_t now_ns)
{
    REQUIRE(worker < l->workers && server < l->servers && weight > 0);
    REQUIRE(l->count < l->workers * l->servers);
    advance(l, now_ns);
    l->transfers[l->count++] = (struct transfer){
        .worker = worker, .server = server, .left = bytes, .weight = weight, .ends_ns = UINT64_MAX};
    l->changed = true;
}

void shared_links_cancel(struct shared_links *l, unsigned worker, uint64_t now_ns)
{
    advance(l, now_ns);
    for (unsigned i = l->count; i-- > 0;)
        if (l->transfers[i].worker == worker)
            remove_at(l, i);
}

uint64_t shared_links_next(struct shared_links *l)
{
    uint64_t next = UINT64_MAX;
    update_rates(l);
    for (const struct transfer *t = l->transfers; t < l->transfers + l->count; t++)
        next = t->ends_ns < next ? t->ends_ns : next;
    return next;
}

bool shared_links_take(struct shared_links *l, uint64_t now_ns, unsigned *worker, unsigned *server)
{
    advance(l, now_ns);
    for (unsigned i = 0; i < l->count; i++) {
        const struct transfer ended = l->transfers[i];
        if (ended.ends_ns <= now_ns) {
            remove_at(l, i);
            *worker = ended.worker;
            *server = ended.server;
            return true;
        }
    }
    return false;
}

unsigned shared_links_worker(const struct shared_links *l, unsigned i)
{
    REQUIRE(i < l->count);
    return l->transfers[i].worker;
}
