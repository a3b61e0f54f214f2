/* shared_links.c — see shared_links.h. */
#include "ps/virtual/shared_links.h"

#include "base/memory.h"
#include "worker/pace/cluster.h"

#include <math.h>
#include <string.h>

static const double LONGEST_NS = 1e18; /* the same limit as in pace_whole_ns() */

enum { HOPS_MAX = 3 };

struct link_use {
    double room;   /* bytes per ns that are not given to a transfer yet */
    double weight; /* sum over the transfers without a rate */
    double level;  /* rate per unit of weight that this link allows */
    bool is_least; /* none of its transfers uses a link with a lower level */
};

struct transfer {
    unsigned worker, server;
    unsigned path[HOPS_MAX];   /* its links: hops_of() indices in `use` */
    double left, weight, rate; /* bytes; bytes per ns */
    uint64_t ends_ns;          /* at this rate */
};

static unsigned links_count(const struct shared_links *l)
{
    return l->shape.workers + l->shape.servers + l->shape.racks;
}

static unsigned hops_of(const struct shared_links *l)
{
    return l->shape.racks > 0 ? 3 : 2;
}

status shared_links_open(struct shared_links *l, const struct links_shape *shape)
{
    status result = OK;
    const size_t most = (size_t)shape->workers * shape->servers;
    *l = (struct shared_links){.shape = *shape};
    TRY(memory_new(&l->use, links_count(l), sizeof *l->use, "links"));
    TRY(memory_new(&l->transfers, most, sizeof *l->transfers, "transfers"));
    TRY(memory_new(&l->open, most, sizeof *l->open, "transfers"));
done:
    return result;
}

void shared_links_close(struct shared_links *l)
{
    memory_free(l->use);
    memory_free(l->transfers);
    memory_free(l->open);
    *l = (struct shared_links){0};
}

/* ---- rates --------------------------------------------------------------------------------- */

/* The lowest level on a transfer's path. */
static double level_of(const struct shared_links *l, const struct transfer *t)
{
    double least = l->use[t->path[0]].level;
    for (unsigned i = 1; i < hops_of(l); i++)
        least = fmin(least, l->use[t->path[i]].level);
    return least;
}

/* Visits only links that an open transfer uses: usually few of thousands. */
static void find_least_links(struct shared_links *l, unsigned open)
{
    const unsigned hops = hops_of(l);
    for (unsigned k = 0; k < open; k++) {
        for (unsigned i = 0; i < hops; i++) {
            l->use[l->open[k]->path[i]].weight = 0;
            l->use[l->open[k]->path[i]].is_least = true;
        }
    }
    for (unsigned k = 0; k < open; k++)
        for (unsigned i = 0; i < hops; i++)
            l->use[l->open[k]->path[i]].weight += l->open[k]->weight;
    for (unsigned k = 0; k < open; k++) {
        for (unsigned i = 0; i < hops; i++) {
            struct link_use *u = &l->use[l->open[k]->path[i]];
            u->level = u->room / u->weight;
        }
    }
    for (unsigned k = 0; k < open; k++) {
        const double least = level_of(l, l->open[k]);
        for (unsigned i = 0; i < hops; i++) {
            struct link_use *u = &l->use[l->open[k]->path[i]];
            u->is_least = u->is_least && u->level <= least;
        }
    }
}

static void take_room(struct link_use *u, double rate)
{
    if (isfinite(u->room))
        u->room = u->room > rate ? u->room - rate : 0;
}

static bool has_least_link(const struct shared_links *l, const struct transfer *t)
{
    bool is_least = false;
    for (unsigned i = 0; i < hops_of(l); i++)
        is_least = is_least || l->use[t->path[i]].is_least;
    return is_least;
}

/* Gives rates to the transfers of the links with the least levels; returns the number of the
 * others. */
static unsigned fill_least_links(struct shared_links *l, unsigned open)
{
    unsigned kept = 0;
    for (unsigned k = 0; k < open; k++) {
        struct transfer *t = l->open[k];
        if (!has_least_link(l, t)) {
            l->open[kept++] = t;
            continue;
        }
        t->rate = t->weight * level_of(l, t);
        for (unsigned i = 0; i < hops_of(l); i++)
            take_room(&l->use[t->path[i]], t->rate);
    }
    return kept;
}

static double rate_of_link(const struct links_shape *s, unsigned link)
{
    return link < s->workers                ? s->worker_rate
           : link < s->workers + s->servers ? s->server_rate
                                            : s->uplink_rate;
}

/* Progressive filling. Each round fixes the rates on the links with the least levels; the other
 * transfers share the rest. The link with the lowest level is always among them, so the loop ends.
 */
static void share_rates(struct shared_links *l)
{
    for (unsigned i = 0; i < l->count; i++) {
        l->open[i] = &l->transfers[i];
        for (unsigned k = 0; k < hops_of(l); k++)
            l->use[l->open[i]->path[k]].room = rate_of_link(&l->shape, l->open[i]->path[k]);
    }
    for (unsigned open = l->count; open > 0;) {
        find_least_links(l, open);
        open = fill_least_links(l, open);
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
    const struct links_shape *s = &l->shape;
    REQUIRE(worker < s->workers && server < s->servers && weight > 0);
    REQUIRE(l->count < s->workers * s->servers);
    advance(l, now_ns);
    struct transfer *t = &l->transfers[l->count++];
    *t = (struct transfer){.worker = worker,
                           .server = server,
                           .path = {worker, s->workers + server},
                           .left = bytes,
                           .weight = weight,
                           .ends_ns = UINT64_MAX};
    if (s->racks > 0)
        t->path[2] = s->workers + s->servers + cluster_rack_of(worker, s->workers, s->racks);
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
