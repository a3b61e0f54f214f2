/* client.c — see client.h. */
#include "ps/client.h"

#include "base/clock.h"
#include "base/memory.h"
#include "ps/core/late_workers.h"
#include "ps/core/slices.h"
#include "ps/net/connection.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct ps_client {
    connection **servers;
    struct slices slices;
    unsigned server_count, worker;
    bool snapshots;
    size_t count;
    const volatile sig_atomic_t *stop;
    struct payload_place mapping; /* with several servers: their slices, side by side */
    float *gradient;              /* [count], in `mapping` or in the only connection */
    double pull_us;
    bool ended; /* a server has reported the end of training */
};

/* ---- waiting ------------------------------------------------------------------------------- */

static connection *first_waiting(ps_client *c)
{
    connection *first = NULL;
    for (unsigned i = c->server_count; i-- > 0;) {
        c->ended |= connection_has_ended(c->servers[i]);
        first = connection_is_released(c->servers[i]) ? first : c->servers[i];
    }
    return c->ended ? NULL : first;
}

/* Returns when all servers have released the worker, or one server has reported the end. All
 * connections advance during the wait, so that each can repeat lost messages. */
static status wait_until_released(ps_client *c)
{
    status result = OK;
    connection *waiting;
    while ((waiting = first_waiting(c)) != NULL) {
        if (c->stop != NULL && *c->stop != 0)
            FAIL(STOPPED, "worker %u received a request to stop", c->worker);
        TRY(connection_advance(waiting, true));
        for (unsigned i = 0; i < c->server_count && !connection_is_released(waiting); i++)
            if (c->servers[i] != waiting)
                TRY(connection_advance(c->servers[i], false));
    }
done:
    return result;
}

/* ---- slices -------------------------------------------------------------------------------- */

static size_t bytes_of(const ps_client *c, unsigned server)
{
    return slice_count(&c->slices, server) * sizeof(float);
}

/* Whether all slices are whole pages, which the slices of a small model may be by chance. False on
 * a system with larger pages. */
static bool slices_are_pages(const ps_client *c)
{
    if (c->server_count > 1 && (size_t)sysconf(_SC_PAGESIZE) > SLICE_PAGE * sizeof(float))
        return false;
    for (unsigned i = 1; i < c->server_count; i++)
        if (c->slices.begin[i] % SLICE_PAGE != 0)
            return false;
    return true;
}

/* Reserves address space for all version slots of the servers, one vector to gather slices in, and
 * the gradient. `workers`: the most workers that the servers admit. Only pages that are written
 * occupy memory. */
static status reserve(ps_client *c, unsigned workers)
{
    status result = OK;
    const size_t page = SLICE_PAGE * sizeof(float);
    struct payload_place *w = &c->mapping;
    w->stride = (c->count * sizeof(float) + page - 1) / page * page;
    w->slots = slices_are_pages(c) ? workers + 2 : 0;
    void *at = mmap(NULL, (w->slots + 2) * w->stride, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        FAIL(ERROR_OTHER,
             "worker %u cannot reserve address space for %u vectors of %zu parameters; raise the "
             "limit of virtual memory (ulimit -v)",
             c->worker, w->slots + 2, c->count);
    madvise(at, (w->slots + 2) * w->stride, MADV_HUGEPAGE);
    w->parameters = at;
    w->gradient = w->parameters + (w->slots + 1) * w->stride;
    c->gradient = (float *)(void *)w->gradient;
done:
    return result;
}

static struct payload_place place_of(const ps_client *c, unsigned server)
{
    const size_t before = c->slices.begin[server] * sizeof(float);
    struct payload_place slice = c->mapping;
    slice.parameters += before;
    slice.gradient += before;
    return slice;
}

/* Returns the released parameters as one vector. Copies the slices unless they lie side by side. */
static const float *gather(ps_client *c)
{
    const float *first = connection_release(c->servers[0]).parameters;
    bool adjacent = true;
    for (unsigned i = 1; i < c->server_count; i++)
        adjacent &= connection_release(c->servers[i]).parameters == first + c->slices.begin[i];
    if (adjacent)
        return first;
    float *copy = (float *)(void *)(c->mapping.parameters + c->mapping.slots * c->mapping.stride);
    for (unsigned i = 0; i < c->server_count; i++) {
        const float *slice = connection_release(c->servers[i]).parameters;
        if (slice != copy + c->slices.begin[i])
            memcpy(copy + c->slices.begin[i], slice, bytes_of(c, i));
    }
    return copy;
}

/* Each worker starts at a different server, to spread the load. */
static void scatter(ps_client *c, const struct wire_push *push, const struct push_codes *codes)
{
    for (unsigned i = 0; i < c->server_count; i++) {
        unsigned server = (c->worker + i) % c->server_count;
        float *slice = connection_gradient(c->servers[server]);
        if (slice != c->gradient + c->slices.begin[server])
            memcpy(slice, c->gradient + c->slices.begin[server], bytes_of(c, server));
        const struct push_code *code = codes != NULL ? &codes->servers[server] : NULL;
        connection_push(c->servers[server], push,
                        code != NULL ? (struct connection_code){code->bytes, code->size}
                                     : (struct connection_code){NULL, 0});
    }
}

static status check_versions(const ps_client *c, uint64_t version)
{
    status result = OK;
    for (unsigned i = 1; i < c->server_count && c->snapshots; i++) {
        uint64_t other = connection_release(c->servers[i]).version;
        if (other != version)
            FAIL(ERROR_PROTOCOL,
                 "server %u released worker %u with version %llu, but server 0 with version %llu; "
                 "read=snapshot requires equal versions. Check that all servers belong to one run",
                 i, c->worker, (unsigned long long)other, (unsigned long long)version);
    }
done:
    return result;
}

static status fill_release(ps_client *c, struct ps_release *out, uint64_t since_ns)
{
    status result = OK;
    double paused_us = 0;
    *out = (struct ps_release){.finished = c->ended};
    if (c->ended)
        goto done;
    struct connection_release first = connection_release(c->servers[0]);
    TRY(check_versions(c, first.version));
    if (c->server_count == 1)
        c->gradient = connection_gradient(c->servers[0]);
    for (unsigned i = 0; i < c->server_count; i++) {
        double server_us = connection_release(c->servers[i]).paused_us;
        paused_us = server_us > paused_us ? server_us : paused_us;
    }
    double waited_us = since_ns > 0 ? (double)(clock_ns() - since_ns) * 1e-3 : 0;
    out->version = first.version;
    out->samples = first.samples;
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
    TRY(servers_endpoint(o->endpoint, c->server_count, server, endpoint));
    TRY(connection_open(&c->servers[server],
                        &(struct connection_options){.settings = o->settings,
                                                     .endpoint = endpoint,
                                                     .run_token = o->run_token,
                                                     .settings_hash = o->settings_hash,
                                                     .worker = o->worker,
                                                     .processes = workers + c->server_count,
                                                     .follower = server > 0,
                                                     .place = c->server_count > 1 ? &place : NULL,
                                                     .count = slice_count(&c->slices, server)}));
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
    c->server_count = servers_of(o->settings);
    c->snapshots = reads_snapshots(o->settings);
    TRY(slices_open(&c->slices, o->settings, &o->layers, c->count));
    TRY(memory_new(&c->servers, c->server_count, sizeof(connection *), "connections"));
    if (c->server_count > 1)
        TRY(reserve(c, workers_max_of(o->settings)));
    for (unsigned i = 0; i < c->server_count; i++)
        TRY(connect_to(c, i, o));
    TRY(wait_until_released(c));
    TRY(fill_release(c, first, 0));
done:
    if (result != OK) {
        if (o->dismissal != NULL)
            *o->dismissal = ps_client_dismissal(c);
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
    const struct wire_push sent = {.sent_ns = begin,
                                   .loss = push->loss,
                                   .pull_us = c->pull_us,
                                   .compute_us = push->compute_us,
                                   .data_us = push->data_us,
                                   .forward_us = push->forward_us,
                                   .backward_us = push->backward_us,
                                   .samples = push->samples};
    scatter(c, &sent, push->codes);
    TRY(wait_until_released(c));
    TRY(fill_release(c, next, begin));
    c->pull_us = next->waited_us;
done:
    return result;
}

enum ps_dismissal ps_client_dismissal(const ps_client *c)
{
    enum ps_dismissal how = PS_NOT_DISMISSED;
    for (unsigned i = 0;
         c != NULL && c->servers != NULL && i < c->server_count && how != PS_RUN_ENDED; i++)
        if (connection_ended_with_error(c->servers[i]))
            how = PS_RUN_ENDED;
        else if (connection_was_evicted(c->servers[i]))
            how = PS_EVICTED;
    return how;
}

void ps_client_leave(ps_client *c, status why, const char *text)
{
    for (unsigned i = 0; c != NULL && c->servers != NULL && i < c->server_count; i++)
        connection_leave(c->servers[i], why, text);
}

void ps_client_close(ps_client **p)
{
    if (p == NULL || *p == NULL)
        return;
    ps_client *c = *p;
    if (c->ended) /* some servers may not have reported the end yet */
        ps_client_leave(c, OK, "");
    for (unsigned i = 0; c->servers != NULL && i < c->server_count; i++)
        connection_close(&c->servers[i]);
    if (c->mapping.parameters != NULL)
        munmap(c->mapping.parameters, (c->mapping.slots + 2) * c->mapping.stride);
    memory_free(c->servers);
    memory_free(c);
    *p = NULL;
}
