/* virtual_messages.c — messages of the virtual cluster; see virtual_state.h. */
#include "ps/virtual/virtual_state.h"

#include <math.h>

/* Server 0 decides when training is evaluated. So of the arrivals at one time that at server 0 is
 * the last, and an evaluation has each gradient at all servers or at none. */
unsigned event_of(const struct cluster_run *c, unsigned w, enum virtual_kind kind, unsigned server)
{
    const unsigned first[] = {0, c->count, c->count + 1, c->count + 2, 2 * c->count + 2};
    const unsigned place = kind == ARRIVAL ? (server + c->count - 1) % c->count : server;
    return w * c->kinds + first[kind] + place;
}

struct virtual_place *place_of(const struct cluster_run *c, unsigned w, unsigned server)
{
    return &c->places[(size_t)w * c->count + server];
}

/* ---- units --------------------------------------------------------------------------------- */

static unsigned unit_of(const struct cluster_run *c, unsigned w)
{
    return c->relays ? cluster_rack_of(w, c->most, c->units) : w;
}

/* Rack r begins at worker ⌈r W / R⌉ (cluster_rack_of()). */
static unsigned first_of_unit(const struct cluster_run *c, unsigned unit)
{
    return (unsigned)(((uint64_t)unit * c->most + c->units - 1) / c->units);
}

unsigned unit_first(const struct cluster_run *c, unsigned w)
{
    return first_of_unit(c, unit_of(c, w));
}

unsigned unit_end(const struct cluster_run *c, unsigned w)
{
    return first_of_unit(c, unit_of(c, w) + 1);
}

/* ---- one message --------------------------------------------------------------------------- */

/* The number of the next message between a worker and a server; unique for the worker. */
static uint64_t message_number(const struct cluster_run *c, unsigned w, unsigned server)
{
    return place_of(c, w, server)->messages * c->count + server;
}

/* Latency and jitter of the next message. Counts the message as sent. */
static uint64_t next_delay(struct cluster_run *c, unsigned w, unsigned server)
{
    uint64_t number = message_number(c, w, server);
    place_of(c, w, server)->messages++;
    return cluster_latency_ns(&c->cluster) + cluster_jitter_ns(&c->cluster, w, number);
}

/* Starts a transfer between a server and the unit whose first worker is `w`. Its weight is drawn
 * with `number`. All parts of a gradient have one number, and all replies to it have the next
 * one. */
static void start_transfer(struct cluster_run *c, struct shared_links *links, unsigned w,
                           unsigned server, size_t bytes, uint64_t number, uint64_t now)
{
    const double weight = cluster_share(&c->cluster, w, number);
    shared_links_start(links, unit_of(c, w), server, (double)bytes, weight, now);
}

/* Starts a transfer between a worker and its rack server: one message with all slices. */
static void start_relay(struct cluster_run *c, struct shared_links *links, unsigned w, size_t bytes,
                        uint64_t now)
{
    const double weight = cluster_share(&c->cluster, w, place_of(c, w, 0)->messages);
    shared_links_start(links, w, 0, (double)bytes, weight, now);
}

/* The time at which the gradient has arrived at all servers and server 0 knows this. */
static uint64_t known_everywhere(const struct cluster_run *c, unsigned w)
{
    uint64_t last = place_of(c, w, 0)->arrived_ns;
    for (unsigned i = 1; i < c->count; i++) {
        uint64_t known = place_of(c, w, i)->arrived_ns + cluster_latency_ns(&c->cluster);
        last = known > last ? known : last;
    }
    return last;
}

/* ---- gradients ----------------------------------------------------------------------------- */

/* The part of a gradient for `server`, or of the sum of a unit whose first worker is `w`, arrives
 * at time `then`: schedules the event ARRIVAL. With snapshots the event needs all parts. */
static void schedule_arrival(struct cluster_run *c, unsigned w, unsigned server, uint64_t then)
{
    const unsigned left = --c->workers[w].parts_left;
    for (unsigned i = w; i < unit_end(c, w); i++)
        place_of(c, i, server)->arrived_ns = then;
    if (!c->snapshots)
        event_queue_put(&c->queue, event_of(c, w, ARRIVAL, server), then);
    else if (left == 0)
        event_queue_put(&c->queue, event_of(c, w, ARRIVAL, 0), known_everywhere(c, w));
}

static void send_gradient(struct cluster_run *c, unsigned w, uint64_t now)
{
    const uint64_t number = place_of(c, w, 0)->messages;
    c->workers[w].reply_number = number + 1;
    for (unsigned i = 0; i < c->count; i++)
        start_transfer(c, &c->to_servers, w, i, simulation_push_bytes(c->simulation, i, w), number,
                       now);
}

void messages_computed(struct cluster_run *c, unsigned w, uint64_t now)
{
    size_t bytes = 0;
    if (!c->relays) {
        send_gradient(c, w, now);
        return;
    }
    for (unsigned i = 0; i < c->count; i++)
        bytes += simulation_push_bytes(c->simulation, i, w);
    c->workers[w].sends = true;
    start_relay(c, &c->to_rack_servers, w, bytes, now);
}

static void gather(struct cluster_run *c, unsigned w, uint64_t now)
{
    const unsigned first = unit_first(c, w), end = unit_end(c, w);
    struct virtual_worker *unit = &c->workers[first];
    if (++unit->gathered < end - first)
        return;
    unit->gathered = 0;
    unit->parts_left = unit->replies_left = c->count;
    for (unsigned i = first; i < end; i++)
        c->workers[i].sends = false;
    send_gradient(c, first, now);
}

/* ---- parameters ---------------------------------------------------------------------------- */

/* The time of all steps until the push. */
static uint64_t computing_ns(const struct cluster_run *c, unsigned w)
{
    unsigned steps = simulation_steps(c->simulation);
    uint64_t ns = 0, first = simulation_batch(c->simulation, w) * steps;
    for (unsigned j = 0; j < steps; j++)
        ns += cluster_step_ns(&c->cluster, w, first + j, c->workers[w].got_ns + ns);
    return ns;
}

/* Starts the worker's next step. Call it when replied_ns of all servers is known. */
static void start_step(struct cluster_run *c, unsigned w)
{
    struct virtual_worker *v = &c->workers[w];
    uint64_t sent = v->computed_ns;
    v->got_ns = 0;
    for (unsigned i = 0; i < c->count; i++)
        if (place_of(c, w, i)->replied_ns > v->got_ns)
            v->got_ns = place_of(c, w, i)->replied_ns;
    v->waited_ns = v->began ? v->got_ns - sent : 0;
    v->began = true;
    v->computed_ns = v->got_ns + computing_ns(c, w);
    if (!c->relays)
        v->parts_left = v->replies_left = c->count;
    if (c->limited) {
        event_queue_put(&c->queue, event_of(c, w, COMPUTED, 0), v->computed_ns);
        return;
    }
    for (unsigned i = 0; i < c->count; i++)
        schedule_arrival(c, w, i, v->computed_ns + next_delay(c, w, i));
}

void messages_release(struct cluster_run *c, unsigned server, unsigned w, bool everywhere)
{
    const unsigned first = unit_first(c, w);
    struct virtual_place *place = place_of(c, first, server);
    const uint64_t now = c->servers[server].end_ns;
    if (!c->limited) {
        place->replied_ns = now + next_delay(c, w, server);
        if (everywhere)
            start_step(c, w);
    } else if (++place->released == unit_end(c, w) - first) {
        place->released = 0;
        place->reply_sent = false;
        event_queue_put(&c->queue, event_of(c, first, REPLY, server), now);
    }
}

/* Call it when the rack server has the parameters of all servers: sends them to its workers. */
static void relay_parameters(struct cluster_run *c, unsigned first, uint64_t now)
{
    size_t bytes = 0;
    for (unsigned i = 0; i < c->count; i++)
        bytes += c->servers[i].bytes;
    for (unsigned w = first; w < unit_end(c, first); w++)
        start_relay(c, &c->to_rack_workers, w, bytes, now);
}

void messages_reply(struct cluster_run *c, unsigned server, unsigned w, uint64_t now)
{
    struct virtual_place *place = place_of(c, w, server);
    if (!place->reply_sent) {
        place->reply_sent = true;
        start_transfer(c, &c->to_workers, w, server, c->servers[server].bytes,
                       c->workers[w].reply_number, now);
        return;
    }
    place->replied_ns = now;
    if (--c->workers[w].replies_left > 0)
        return;
    if (c->relays)
        relay_parameters(c, w, now);
    else
        start_step(c, w);
}

void messages_relayed(struct cluster_run *c, unsigned w, uint64_t now)
{
    if (c->workers[w].sends) {
        gather(c, w, now);
        return;
    }
    for (unsigned i = 0; i < c->count; i++)
        place_of(c, w, i)->replied_ns = now;
    start_step(c, w);
}

/* ---- transfers ----------------------------------------------------------------------------- */

void messages_cancel(struct cluster_run *c, unsigned w, uint64_t now)
{
    REQUIRE(!c->relays);
    if (c->limited) {
        shared_links_cancel(&c->to_servers, w, now);
        shared_links_cancel(&c->to_workers, w, now);
    }
}

uint64_t messages_next(struct cluster_run *c)
{
    struct shared_links *const all[] = {&c->to_servers, &c->to_workers, &c->to_rack_servers,
                                        &c->to_rack_workers};
    uint64_t next = UINT64_MAX;
    for (size_t i = 0; i < (c->relays ? 4 : c->limited ? 2 : 0); i++) {
        const uint64_t ends = shared_links_next(all[i]);
        next = ends < next ? ends : next;
    }
    return next;
}

static void end_relays(struct cluster_run *c, struct shared_links *links, uint64_t now)
{
    unsigned w, server;
    while (shared_links_take(links, now, &w, &server))
        event_queue_put(&c->queue, event_of(c, w, RELAYED, 0), now + next_delay(c, w, 0));
}

void messages_end(struct cluster_run *c, uint64_t now)
{
    unsigned unit, server;
    while (shared_links_take(&c->to_workers, now, &unit, &server)) {
        const unsigned w = first_of_unit(c, unit);
        event_queue_put(&c->queue, event_of(c, w, REPLY, server), now + next_delay(c, w, server));
    }
    while (shared_links_take(&c->to_servers, now, &unit, &server)) {
        const unsigned w = first_of_unit(c, unit);
        schedule_arrival(c, w, server, now + next_delay(c, w, server));
    }
    if (c->relays) {
        end_relays(c, &c->to_rack_workers, now);
        end_relays(c, &c->to_rack_servers, now);
    }
}

/* ---- opening ------------------------------------------------------------------------------- */

static double rate(double ns_per_byte)
{
    return ns_per_byte > 0 ? 1 / ns_per_byte : INFINITY;
}

/* A rack server has two links, each as fast as a worker's: one to its workers (the uplink here),
 * and one to the servers (in to_servers and to_workers). */
static status open_relays(struct cluster_run *c)
{
    status result = OK;
    const double own = rate(c->cluster.ns_per_byte);
    const struct links_shape shape = {.workers = c->most,
                                      .servers = 1,
                                      .racks = c->cluster.racks,
                                      .worker_rate = own,
                                      .server_rate = INFINITY,
                                      .uplink_rate = own};
    TRY(shared_links_open(&c->to_rack_servers, &shape));
    TRY(shared_links_open(&c->to_rack_workers, &shape));
done:
    return result;
}

status messages_open(struct cluster_run *c)
{
    status result = OK;
    const struct cluster *at = &c->cluster;
    c->relays = at->rack_servers;
    c->units = c->relays ? at->racks : c->most;
    struct links_shape shape = {.workers = c->units,
                                .servers = c->count,
                                .racks = at->uplink_ns_per_byte > 0 ? at->racks : 0,
                                .worker_rate = rate(at->ns_per_byte),
                                .uplink_rate = rate(at->uplink_ns_per_byte)};
    c->limited = c->relays || at->ns_per_byte > 0 || at->server_in_ns_per_byte > 0 ||
                 at->server_out_ns_per_byte > 0 || at->uplink_ns_per_byte > 0;
    c->kinds = c->relays ? 2 * c->count + 3 : c->limited ? 2 * c->count + 2 : c->count + 1;
    if (!c->limited)
        return OK;
    shape.server_rate = rate(at->server_in_ns_per_byte);
    TRY(shared_links_open(&c->to_servers, &shape));
    shape.server_rate = rate(at->server_out_ns_per_byte);
    TRY(shared_links_open(&c->to_workers, &shape));
    if (c->relays)
        TRY(open_relays(c));
done:
    return result;
}

void messages_close(struct cluster_run *c)
{
    shared_links_close(&c->to_servers);
    shared_links_close(&c->to_workers);
    shared_links_close(&c->to_rack_servers);
    shared_links_close(&c->to_rack_workers);
}
