/* virtual.c — see virtual.h. */
#include "ps/virtual/virtual.h"

#include "base/memory.h"
#include "ps/virtual/event_queue.h"
#include "ps/virtual/shared_links.h"
#include "ps/core/slices.h"
#include "ps/core/late_workers.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Events of a worker. ARRIVAL and REPLY exist once per server. COMPUTED and REPLY exist only if
 * some link has a limited rate. */
enum virtual_kind {
    ARRIVAL,  /* its gradient has arrived at the server. With snapshots, at server 0 only: the
               * gradient  has arrived at all servers, and server 0 knows it */
    LIFE,     /* it dies, or joins (again) */
    COMPUTED, /* the transfer of its gradient starts */
    REPLY,    /* the transfer of the server's reply starts; or the reply has arrived */
};

struct virtual_worker {
    uint64_t got_ns, computed_ns; /* of the current gradient, or of the last one */
    uint64_t waited_ns;           /* for the parameters of the current gradient */
    uint64_t life, away_ns;
    unsigned parts_left, replies_left; /* number of servers where they have not arrived yet */
    bool began, dead;
};

struct virtual_server {
    uint64_t begin_ns, end_ns; /* of its work on the current event, or on its last one */
    size_t bytes;              /* of its parameters */
};

/* A worker at one server. */
struct virtual_place {
    uint64_t replied_ns, arrived_ns;
    uint64_t messages; /* number of messages between them so far */
    bool reply_sent;
};

struct cluster_run {
    const struct virtual_options *o;
    struct cluster cluster;
    simulation *simulation;
    struct event_queue queue;
    unsigned count; /* of servers */
    unsigned kinds; /* number of events per worker */
    bool snapshots;
    unsigned most; /* workers, with late ones */
    bool limited;  /* some link has a limited rate; else a transfer takes no time */
    struct shared_links to_servers, to_workers;
    uint64_t now_ns; /* of the last event */
    struct virtual_server *servers;
    struct virtual_worker *workers;
    struct virtual_place *places; /* [workers][servers] */
    uint64_t version, deaths;     /* deaths since the latest version */
};

enum { LIVES_MAX = 1000 }; /* deaths per worker, on average, without an update: the run fails */

static double seconds(uint64_t ns)
{
    return (double)ns * 1e-9;
}

static double us(uint64_t ns)
{
    return (double)ns * 1e-3;
}

static unsigned event_of(const struct cluster_run *c, unsigned w, enum virtual_kind kind,
                         unsigned server)
{
    const unsigned first[] = {0, c->count, c->count + 1, c->count + 2};
    return w * c->kinds + first[kind] + server;
}

static struct virtual_place *place_of(const struct cluster_run *c, unsigned w, unsigned server)
{
    return &c->places[(size_t)w * c->count + server];
}

/* ---- messages ------------------------------------------------------------------------------ */

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

/* All parts of a gradient have the same weight, and so have the replies to it. */
static void start_transfer(struct cluster_run *c, struct shared_links *links, unsigned w,
                           unsigned server, size_t bytes, uint64_t now)
{
    const double weight = cluster_share(&c->cluster, w, place_of(c, w, server)->messages);
    shared_links_start(links, w, server, (double)bytes, weight, now);
}

/* When the gradient has arrived at all servers and server 0 knows it. */
static uint64_t known_everywhere(const struct cluster_run *c, unsigned w)
{
    uint64_t last = place_of(c, w, 0)->arrived_ns;
    for (unsigned i = 1; i < c->count; i++) {
        uint64_t known = place_of(c, w, i)->arrived_ns + cluster_latency_ns(&c->cluster);
        last = known > last ? known : last;
    }
    return last;
}

/* ---- callbacks of the simulation ------------------------------------------------------------ */

/* The time of all steps until the push. */
static uint64_t computing_ns(const struct cluster_run *c, unsigned w)
{
    unsigned steps = simulation_steps(c->simulation);
    uint64_t ns = 0, first = simulation_batch(c->simulation, w) * steps;
    for (unsigned j = 0; j < steps; j++)
        ns += cluster_step_ns(&c->cluster, w, first + j, c->workers[w].got_ns + ns);
    return ns;
}

/* arrived_ns of this part of the gradient is known: schedules the event that depends on it. */
static void schedule_arrival(struct cluster_run *c, unsigned w, unsigned server)
{
    const unsigned left = --c->workers[w].parts_left;
    if (!c->snapshots)
        event_queue_put(&c->queue, event_of(c, w, ARRIVAL, server),
                        place_of(c, w, server)->arrived_ns);
    else if (left == 0)
        event_queue_put(&c->queue, event_of(c, w, ARRIVAL, 0), known_everywhere(c, w));
}

/* replied_ns of all servers is known: starts the worker's next step. */
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
    v->parts_left = v->replies_left = c->count;
    if (c->limited) {
        event_queue_put(&c->queue, event_of(c, w, COMPUTED, 0), v->computed_ns);
        return;
    }
    for (unsigned i = 0; i < c->count; i++) {
        place_of(c, w, i)->arrived_ns = v->computed_ns + next_delay(c, w, i);
        schedule_arrival(c, w, i);
    }
}

static void released(void *context, unsigned server, unsigned w, bool everywhere)
{
    struct cluster_run *c = context;
    struct virtual_place *place = place_of(c, w, server);
    if (c->limited) {
        place->reply_sent = false;
        event_queue_put(&c->queue, event_of(c, w, REPLY, server), c->servers[server].end_ns);
        return;
    }
    place->replied_ns = c->servers[server].end_ns + next_delay(c, w, server);
    if (everywhere)
        start_step(c, w);
}

static void record(void *context, struct push_record *row)
{
    const struct cluster_run *c = context;
    const struct virtual_server *s = &c->servers[row->server];
    row->queue_us = us(s->begin_ns - place_of(c, row->worker, row->server)->arrived_ns);
    row->apply_us = us(s->end_ns - s->begin_ns);
}

/* ---- events -------------------------------------------------------------------------------- */

/* The server starts on an event when it is free; a follower with snapshots when it knows server 0's
 * order. */
static void server_starts(struct cluster_run *c, unsigned server, uint64_t now)
{
    struct virtual_server *s = &c->servers[server];
    if (c->snapshots && server > 0)
        now = c->servers[0].begin_ns + cluster_latency_ns(&c->cluster);
    s->begin_ns = now > s->end_ns ? now : s->end_ns;
    s->end_ns = s->begin_ns;
}

/* With snapshots all servers have the same events, so only server 0 records them. */
static void record_event(const struct cluster_run *c, unsigned server, uint64_t now,
                         enum severity severity, const char *code, unsigned w, const char *detail)
{
    if (c->o->recorder != NULL && (server == 0 || !c->snapshots))
        recorder_event_at(c->o->recorder, server, seconds(now),
                          simulation_arrivals(c->simulation, server), severity, code, (int)w,
                          detail);
}

/* Server 0 gets the event last: at its evaluations the other servers must have had the same events.
 */
static status worker_joins(struct cluster_run *c, unsigned w, uint64_t now)
{
    status result = OK;
    struct virtual_worker *v = &c->workers[w];
    uint64_t lives;
    v->dead = v->began = false;
    v->replies_left = c->count;
    if (cluster_life_ns(&c->cluster, w, v->life++, &lives, &v->away_ns))
        event_queue_put(&c->queue, event_of(c, w, LIFE, 0), now + lives);
    for (unsigned i = 0; i < c->count; i++)
        server_starts(c, i, now);
    for (unsigned i = c->count; i-- > 0;) {
        record_event(c, i, now, SEVERITY_INFO, "worker_joined", w, "virtual");
        TRY(simulation_hello(c->simulation, i, w, seconds(c->servers[i].begin_ns)));
    }
done:
    return result;
}

/* It counts as lost until it joins (ps/core/late_workers.h). */
static status worker_is_late(struct cluster_run *c, unsigned w)
{
    status result = OK;
    c->workers[w].dead = true;
    event_queue_put(&c->queue, event_of(c, w, LIFE, 0), cluster_join_ns(&c->cluster, w));
    for (unsigned i = c->count; i-- > 0;)
        TRY(simulation_lost(c->simulation, i, w, 0));
done:
    return result;
}

/* Without this limit a run never ends if workers always die before an update. */
static status check_progress(struct cluster_run *c)
{
    status result = OK;
    const options *o = c->o->settings;
    uint64_t version = simulation_version(c->simulation);
    c->deaths = version > c->version ? 1 : c->deaths + 1;
    c->version = version;
    if (c->deaths > (uint64_t)LIVES_MAX * c->most) {
        FAIL(ERROR_PEER,
             "workers died %llu times (crash.mtbf_s=%s) without an update until virtual time %.6f "
             "s: "
             "they die before consistency=%s has enough gradients for an update. Raise "
             "crash.mtbf_s, shorten the steps (pace), or use consistency=asp",
             (unsigned long long)c->deaths, options_value(o, "crash.mtbf_s"),
             seconds(c->servers[0].end_ns), options_text(o, "consistency"));
    }
done:
    return result;
}

static status worker_dies(struct cluster_run *c, unsigned w, uint64_t now)
{
    status result = OK;
    struct virtual_worker *v = &c->workers[w];
    char detail[96];
    TRY(check_progress(c));
    v->dead = true;
    snprintf(detail, sizeof detail, "ended life %llu (crash.mtbf_s); joins again in %.3f s",
             (unsigned long long)v->life, seconds(v->away_ns));
    for (unsigned kind = 0; kind < c->kinds; kind++)
        event_queue_remove(&c->queue, w * c->kinds + kind);
    event_queue_put(&c->queue, event_of(c, w, LIFE, 0), now + v->away_ns);
    if (c->limited) {
        shared_links_cancel(&c->to_servers, w, now);
        shared_links_cancel(&c->to_workers, w, now);
    }
    for (unsigned i = 0; i < c->count; i++)
        server_starts(c, i, now);
    for (unsigned i = c->count; i-- > 0;) {
        record_event(c, i, now, SEVERITY_WARNING, "worker_lost", w, detail);
        TRY(simulation_lost(c->simulation, i, w, seconds(c->servers[i].begin_ns)));
    }
done:
    return result;
}

static status push(struct cluster_run *c, unsigned server, unsigned w)
{
    const struct virtual_worker *v = &c->workers[w];
    uint64_t begin = c->servers[server].begin_ns;
    struct simulation_times times = {.pull_us = us(v->waited_ns),
                                     .compute_us = us(v->computed_ns - v->got_ns),
                                     .queue_us = us(begin - place_of(c, w, server)->arrived_ns),
                                     .at_seconds = seconds(begin),
                                     .data_us = NOT_MEASURED,
                                     .forward_us = NOT_MEASURED,
                                     .backward_us = NOT_MEASURED};
    return simulation_push(c->simulation, server, w, &times);
}

static void server_applies(struct cluster_run *c, unsigned server, uint64_t now)
{
    server_starts(c, server, now);
    c->servers[server].end_ns += (uint64_t)c->cluster.apply_ns;
}

static status gradient_arrives(struct cluster_run *c, unsigned server, unsigned w, uint64_t now)
{
    status result = OK;
    if (!c->snapshots) {
        server_applies(c, server, now);
        return push(c, server, w);
    }
    for (unsigned i = 0; i < c->count; i++)
        server_applies(c, i, now);
    for (unsigned i = c->count; i-- > 0;)
        TRY(push(c, i, w));
done:
    return result;
}

static void send_gradient(struct cluster_run *c, unsigned w, uint64_t now)
{
    for (unsigned i = 0; i < c->count; i++)
        start_transfer(c, &c->to_servers, w, i, simulation_push_bytes(c->simulation, i, w), now);
}

static void send_or_receive_reply(struct cluster_run *c, unsigned server, unsigned w, uint64_t now)
{
    struct virtual_place *place = place_of(c, w, server);
    if (!place->reply_sent) {
        place->reply_sent = true;
        start_transfer(c, &c->to_workers, w, server, c->servers[server].bytes, now);
        return;
    }
    place->replied_ns = now;
    if (--c->workers[w].replies_left == 0)
        start_step(c, w);
}

/* A message arrives one latency after the end of its transfer. */
static void transfers_end(struct cluster_run *c, uint64_t now)
{
    unsigned w, server;
    while (shared_links_take(&c->to_workers, now, &w, &server))
        event_queue_put(&c->queue, event_of(c, w, REPLY, server), now + next_delay(c, w, server));
    while (shared_links_take(&c->to_servers, now, &w, &server)) {
        place_of(c, w, server)->arrived_ns = now + next_delay(c, w, server);
        schedule_arrival(c, w, server);
    }
}

/* Lets other threads compute the gradients that arrive next. */
static void prepare(struct cluster_run *c, unsigned first)
{
    unsigned events[EVENT_QUEUE_PEEK_MAX],
        wanted = c->kinds * 2 * simulation_threads(c->simulation);
    if (simulation_threads(c->simulation) == 1)
        return;
    if (wanted > EVENT_QUEUE_PEEK_MAX)
        wanted = EVENT_QUEUE_PEEK_MAX;
    bool room = simulation_prepare(c->simulation, first);
    unsigned found = room ? event_queue_peek(&c->queue, events, wanted) : 0;
    for (unsigned i = 0; i < found && room; i++)
        if (events[i] % c->kinds < c->count)
            room = simulation_prepare(c->simulation, events[i] / c->kinds);
    for (unsigned i = 0; i < c->to_servers.count && room; i++)
        room = simulation_prepare(c->simulation, shared_links_worker(&c->to_servers, i));
}

static status handle(struct cluster_run *c, unsigned event, uint64_t now)
{
    unsigned w = event / c->kinds, kind = event % c->kinds;
    if (kind == event_of(c, 0, LIFE, 0))
        return c->workers[w].dead ? worker_joins(c, w, now) : worker_dies(c, w, now);
    if (kind == event_of(c, 0, COMPUTED, 0)) {
        send_gradient(c, w, now);
        return OK;
    }
    if (kind >= event_of(c, 0, REPLY, 0)) {
        send_or_receive_reply(c, kind - event_of(c, 0, REPLY, 0), w, now);
        return OK;
    }
    prepare(c, w);
    return gradient_arrives(c, kind, w, now);
}

/* If an event of the queue and the end of a transfer have the same time, the event comes first. */
static status next_event(struct cluster_run *c)
{
    status result = OK;
    unsigned event = 0;
    uint64_t next = UINT64_MAX, ends = UINT64_MAX;
    if (event_queue_peek(&c->queue, &event, 1) == 1)
        next = c->queue.when[event];
    if (c->limited && next > c->now_ns) {
        uint64_t to_workers = shared_links_next(&c->to_workers);
        ends = shared_links_next(&c->to_servers);
        ends = to_workers < ends ? to_workers : ends;
    }
    if (next == UINT64_MAX && ends == UINT64_MAX)
        FAIL(ERROR_PEER, "no event is left at virtual time %.6f s: all workers wait for each other",
             seconds(c->servers[0].end_ns));
    c->now_ns = next <= ends ? next : ends;
    if (next > ends) {
        transfers_end(c, ends);
    } else {
        event_queue_remove(&c->queue, event);
        TRY(handle(c, event, next));
    }
done:
    return result;
}

/* ---- the run ------------------------------------------------------------------------------- */

static double rate(double ns_per_byte)
{
    return ns_per_byte > 0 ? 1 / ns_per_byte : INFINITY;
}

static status open_links(struct cluster_run *c)
{
    status result = OK;
    const struct cluster *at = &c->cluster;
    struct links_shape shape = {.workers = c->most,
                                .servers = c->count,
                                .racks = at->uplink_ns_per_byte > 0 ? at->racks : 0,
                                .worker_rate = rate(at->ns_per_byte),
                                .uplink_rate = rate(at->uplink_ns_per_byte)};
    c->limited = at->ns_per_byte > 0 || at->server_in_ns_per_byte > 0 ||
                 at->server_out_ns_per_byte > 0 || at->uplink_ns_per_byte > 0;
    c->kinds = c->limited ? 2 * c->count + 2 : c->count + 1;
    if (!c->limited)
        return OK;
    shape.server_rate = rate(at->server_in_ns_per_byte);
    TRY(shared_links_open(&c->to_servers, &shape));
    shape.server_rate = rate(at->server_out_ns_per_byte);
    TRY(shared_links_open(&c->to_workers, &shape));
done:
    return result;
}

static status cluster_run_open(struct cluster_run *c, const struct virtual_options *o)
{
    status result = OK;
    c->o = o;
    cluster_open(&c->cluster, o->settings, o->pace);
    c->count = servers_of(o->settings);
    c->most = workers_max_of(o->settings);
    c->snapshots = c->count > 1 && reads_snapshots(o->settings);
    TRY(open_links(c));
    TRY(event_queue_open(&c->queue, c->kinds * c->most));
    TRY(memory_new(&c->workers, c->most, sizeof *c->workers, "virtual workers"));
    TRY(memory_new(&c->servers, c->count, sizeof *c->servers, "virtual servers"));
    TRY(memory_new(&c->places, (size_t)c->most * c->count, sizeof *c->places, "virtual workers"));
    TRY(simulation_open(&c->simulation, &(struct simulation_options){.settings = o->settings,
                                                                     .pool = o->pool,
                                                                     .workers = o->workers,
                                                                     .workers_max = c->most,
                                                                     .length = o->length,
                                                                     .hooks = o->hooks,
                                                                     .recorder = o->recorder,
                                                                     .evaluates = true,
                                                                     .context = c,
                                                                     .released = released,
                                                                     .record = record}));
    for (unsigned i = 0; i < c->count; i++)
        c->servers[i].bytes = simulation_pull_bytes(c->simulation, i);
done:
    return result;
}

static status train(struct cluster_run *c)
{
    status result = OK;
    for (unsigned w = 0; w < c->o->workers; w++)
        TRY(worker_joins(c, w, 0));
    for (unsigned w = c->o->workers; w < c->most; w++)
        TRY(worker_is_late(c, w));
    while (!simulation_ended(c->simulation))
        TRY(next_event(c));
done:
    return result;
}

status virtual_run(const struct virtual_options *o, struct training_outcome *out)
{
    status result = OK;
    struct cluster_run c = {0};
    *out = (struct training_outcome){0};
    TRY(cluster_run_open(&c, o));
    result = train(&c);
    if (result == OK || result == STOPPED) {
        status saved = simulation_checkpoint(c.simulation, false);
        result = saved != OK ? saved : result;
    }
    simulation_outcome(c.simulation, seconds(c.servers[0].end_ns), out);
done:
    simulation_close(&c.simulation);
    event_queue_close(&c.queue);
    shared_links_close(&c.to_servers);
    shared_links_close(&c.to_workers);
    memory_free(c.workers);
    memory_free(c.servers);
    memory_free(c.places);
    return result;
}
