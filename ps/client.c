/* client.c — see client.h. */
#include "ps/client.h"

#include "base/clock.h"
#include "base/memory.h"
#include "ps/net/connection.h"
#include "ps/core/slices.h"

#include <string.h>
#include <sys/mman.h>

struct ps_client {
    connection **servers;
    unsigned count_of_servers, worker;
    bool snapshots;
    size_t count;
    const volatile sig_atomic_t *stop;
    struct payload_place whole; /* the servers' slices, side by side; of several servers alone */
    float *gradient;            /* all of it; there, or the one connection's */
    double pull_us;
    bool ended;
};

/* ---- waiting ------------------------------------------------------------------------------- */

static connection *first_waiting(ps_client *c)
{
    connection *first = NULL;
    for (unsigned i = c->count_of_servers; i-- > 0;) {
        c->ended |= connection_has_ended(c->servers[i]);
        first = connection_is_released(c->servers[i]) ? first : c->servers[i];
    }
    return c->ended ? NULL : first;
}

/* Until all servers have released it, or one says that training is over. While one keeps it waiting
 * the others are looked after, too: what was lost on the way is said again. */
static status wait_until_released(ps_client *c)
{
    status result = OK;
    connection *waiting;
    while ((waiting = first_waiting(c)) != NULL) {
        if (c->stop != NULL && *c->stop != 0)
            FAIL(STOPPED, "worker %u was told to stop", c->worker);
        TRY(connection_advance(waiting, true));
        for (unsigned i = 0; i < c->count_of_servers && !connection_is_released(waiting); i++)
            if (c->servers[i] != waiting)
                TRY(connection_advance(c->servers[i], false));
    }
done:
    return result;
}

/* ---- slices -------------------------------------------------------------------------------- */

static size_t begin_of(const ps_client *c, unsigned server)
{
    return slice_begin(c->count, c->count_of_servers, server);
}

static size_t bytes_of(const ps_client *c, unsigned server)
{
    return slice_count(c->count, c->count_of_servers, server) * sizeof(float);
}

/* Whether every slice begins a page: those of a small model may, too, by chance. */
static bool slices_are_pages(const ps_client *c)
{
    for (unsigned i = 1; i < c->count_of_servers; i++)
        if (begin_of(c, i) % SLICE_PAGE != 0)
            return false;
    return true;
}

/* Memory for all version slots, whole, a vector of the worker's own, and the gradient. It takes
 * room only where it is written. */
static status reserve(ps_client *c, unsigned workers)
{
    status result = OK;
    const size_t page = SLICE_PAGE * sizeof(float);
    struct payload_place *w = &c->whole;
    w->stride = (c->count * sizeof(float) + page - 1) / page * page;
    w->slots = slices_are_pages(c) ? workers + 2 : 0;
    void *at = mmap(NULL, (w->slots + 2) * w->stride, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        FAIL(ERROR_OTHER, "no address space for %u versions of %zu parameters (ulimit -v?)",
             w->slots + 2, c->count);
    madvise(at, (w->slots + 2) * w->stride, MADV_HUGEPAGE);
    w->parameters = at;
    w->gradient = w->parameters + (w->slots + 1) * w->stride;
    c->gradient = (float *)(void *)w->gradient;
done:
    return result;
}

static struct payload_place place_of(const ps_client *c, unsigned server)
{
    const size_t before = begin_of(c, server) * sizeof(float);
    struct payload_place its = c->whole;
    its.parameters += before;
    its.gradient += before;
    return its;
}

/* The slices that servers released: where they lie side by side, else copied there. */
static const float *gather(ps_client *c)
{
    const float *first = connection_release(c->servers[0]).parameters;
    bool whole = true;
    for (unsigned i = 1; i < c->count_of_servers; i++)
        whole &= connection_release(c->servers[i]).parameters == first + begin_of(c, i);
    if (whole)
        return first;
    float *own = (float *)(void *)(c->whole.parameters + c->whole.slots * c->whole.stride);
    for (unsigned i = 0; i < c->count_of_servers; i++) {
        const float *its = connection_release(c->servers[i]).parameters;
        if (its != own + begin_of(c, i))
            memcpy(own + begin_of(c, i), its, bytes_of(c, i));
    }
    return own;
}

/* Each worker begins with another server, so that not all go to the same one first. */
static void scatter(ps_client *c, const struct wire_push *push)
{
    for (unsigned i = 0; i < c->count_of_servers; i++) {
        unsigned server = (c->worker + i) % c->count_of_servers;
        float *its = connection_gradient(c->servers[server]);
        if (its != c->gradient + begin_of(c, server))
            memcpy(its, c->gradient + begin_of(c, server), bytes_of(c, server));
        connection_push(c->servers[server], push);
    }
}

static status check_versions(const ps_client *c, uint64_t version)
{
    status result = OK;
    for (unsigned i = 1; i < c->count_of_servers && c->snapshots; i++) {
        uint64_t other = connection_release(c->servers[i]).version;
        if (other != version)
            FAIL(ERROR_PROTOCOL,
                 "server %u released worker %u with version %llu, server 0 with %llu: with "
                 "read=snapshot they must be one",
                 i, c->worker, (unsigned long long)other, (unsigned long long)version);
    }
done:
    return result;
}

static status hand_over(ps_client *c, struct ps_release *out, uint64_t since_ns)
{
    status result = OK;
    double paused_us = 0;
    *out = (struct ps_release){.finished = c->ended};
    if (c->ended)
        goto done;
    struct connection_release first = connection_release(c->servers[0]);
    TRY(check_versions(c, first.version));
    if (c->count_of_servers == 1)
        c->gradient = connection_gradient(c->servers[0]);
    for (unsigned i = 0; i < c->count_of_servers; i++) {
        double its_us = connection_release(c->servers[i]).paused_us;
        paused_us = its_us > paused_us ? its_us : paused_us;
    }
    double waited_us = since_ns > 0 ? (double)(clock_ns() - since_ns) * 1e-3 : 0;
    out->version = first.version;
    out->batch = first.batch;
    out->parameters = gather(c);
    out->gradient = c->gradient;
    out->waited_us = waited_us > paused_us ? waited_us - paused_us : 0;
done:
    return result;
}

/* ---- life ---------------------------------------------------------------------------------- */

static status connect_to(ps_client *c, unsigned server, const struct ps_client_options *o)
{
    status result = OK;
    char endpoint[SERVERS_ENDPOINT_BYTES];
    unsigned workers = (unsigned)options_integer(o->settings, "workers");
    struct payload_place place = place_of(c, server);
    TRY(servers_endpoint(o->endpoint, c->count_of_servers, server, endpoint));
    TRY(connection_open(
        &c->servers[server],
        &(struct connection_options){.settings = o->settings,
                                     .endpoint = endpoint,
                                     .run_token = o->run_token,
                                     .settings_hash = o->settings_hash,
                                     .worker = o->worker,
                                     .processes = workers + c->count_of_servers,
                                     .follower = server > 0,
                                     .place = c->count_of_servers > 1 ? &place : NULL,
                                     .count = slice_count(o->count, c->count_of_servers, server)}));
done:
    return result;
}

status ps_client_open(ps_client **out, const struct ps_client_options *o, struct ps_release *first)
{
    status result = OK;
    ps_client *c = NULL;
    REQUIRE(out != NULL && o->count > 0);
    TRY(memory_new(&c, 1, sizeof *c, "a client"));
    c->count = o->count;
    c->worker = o->worker;
    c->stop = o->stop;
    c->count_of_servers = servers_of(o->settings);
    c->snapshots = reads_snapshots(o->settings);
    TRY(slices_fit(c->count_of_servers, c->count));
    TRY(memory_new(&c->servers, c->count_of_servers, sizeof(connection *), "connections"));
    if (c->count_of_servers > 1)
        TRY(reserve(c, (unsigned)options_integer(o->settings, "workers")));
    for (unsigned i = 0; i < c->count_of_servers; i++)
        TRY(connect_to(c, i, o));
    TRY(wait_until_released(c));
    TRY(hand_over(c, first, 0));
done:
    if (result != OK) {
        ps_client_leave(c, result, error_message());
        ps_client_close(&c);
    }
    *out = c;
    return result;
}

status ps_client_push_pull(ps_client *c, const struct ps_push *push, struct ps_release *next)
{
    status result = OK;
    uint64_t begin = clock_ns();
    scatter(c, &(struct wire_push){.sent_ns = begin,
                                   .loss = push->loss,
                                   .pull_us = c->pull_us,
                                   .compute_us = push->compute_us,
                                   .data_us = push->data_us,
                                   .forward_us = push->forward_us,
                                   .backward_us = push->backward_us,
                                   .samples = push->samples});
    TRY(wait_until_released(c));
    TRY(hand_over(c, next, begin));
    c->pull_us = next->waited_us;
done:
    return result;
}

enum ps_dismissal ps_client_dismissal(const ps_client *c)
{
    enum ps_dismissal how = PS_NOT_DISMISSED;
    for (unsigned i = 0; c != NULL && i < c->count_of_servers && how != PS_RUN_ENDED; i++)
        if (connection_ended_with_error(c->servers[i]))
            how = PS_RUN_ENDED;
        else if (connection_was_evicted(c->servers[i]))
            how = PS_GIVEN_UP;
    return how;
}

void ps_client_leave(ps_client *c, status why, const char *text)
{
    for (unsigned i = 0; c != NULL && c->servers != NULL && i < c->count_of_servers; i++)
        connection_leave(c->servers[i], why, text);
}

void ps_client_close(ps_client **p)
{
    if (p == NULL || *p == NULL)
        return;
    ps_client *c = *p;
    if (c->ended) /* one server has said so, the others are about to */
        ps_client_leave(c, OK, "");
    for (unsigned i = 0; c->servers != NULL && i < c->count_of_servers; i++)
        connection_close(&c->servers[i]);
    if (c->whole.parameters != NULL)
        munmap(c->whole.parameters, (c->whole.slots + 2) * c->whole.stride);
    memory_free(c->servers);
    memory_free(c);
    *p = NULL;
}
