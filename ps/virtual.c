/* virtual.c — see virtual.h. */
#include "ps/virtual.h"

#include "ps/event_queue.h"
#include "ps/slices.h"

#include <stdio.h>
#include <string.h>

/* Each worker has an event for each server, its gradient arrives there, and one more: its life
 * ends, or it comes back. Where servers give snapshots, of the first only that for server 0
 * happens: the gradient is at all of them, and server 0 knows. */
struct virtual_worker {
    uint64_t got_ns, computed_ns; /* of the gradient under way, or handed in last */
    uint64_t waited_ns;           /* for the parameters it was computed at */
    uint64_t life, away_ns;
    bool began, gone;
};

struct virtual_server {
    uint64_t begin_ns, end_ns; /* of its part in the event under way, or in its last one */
    size_t bytes;
};

/* Of a worker at one server. */
struct virtual_place {
    uint64_t replied_ns, arrived_ns;
    uint64_t messages; /* between them so far */
};

struct cluster_run {
    const struct virtual_options *o;
    struct cluster cluster;
    simulation *simulation;
    struct event_queue queue;
    unsigned count; /* of servers */
    bool snapshots;
    struct virtual_server *servers;
    struct virtual_worker *workers;
    struct virtual_place *places; /* [workers][servers] */
    uint64_t version, deaths;     /* deaths at this version, which is the latest */
};

enum { LIVES = 1000 }; /* of each worker, on average, without an update: the run ends */

static double seconds(uint64_t ns)
{
    return (double)ns * 1e-9;
}

static double us(uint64_t ns)
{
    return (double)ns * 1e-3;
}

/* `kind`: a server, where the gradient arrives, or the number of them: a life. */
static unsigned event_of(const struct cluster_run *c, unsigned w, unsigned kind)
{
    return w * (c->count + 1) + kind;
}

static struct virtual_place *place_of(const struct cluster_run *c, unsigned w, unsigned server)
{
    return &c->places[(size_t)w * c->count + server];
}

/* ---- messages ------------------------------------------------------------------------------ */

/* Of the next message between a worker and a server: each has a number of its own. */
static uint64_t jitter(struct cluster_run *c, unsigned w, unsigned server)
{
    uint64_t number = place_of(c, w, server)->messages++;
    return cluster_jitter_ns(&c->cluster, w, number * c->count + server);
}

/* When the parts of worker `w`'s gradient are at their servers. They leave one after the other,
 * beginning with another server for each worker, so that not all go to the same one first. */
static void send_gradient(struct cluster_run *c, unsigned w)
{
    size_t bytes = 0;
    for (unsigned i = 0; i < c->count; i++) {
        unsigned server = (w + i) % c->count;
        bytes += c->servers[server].bytes;
        place_of(c, w, server)->arrived_ns = c->workers[w].computed_ns +
                                             cluster_message_ns(&c->cluster, bytes) +
                                             jitter(c, w, server);
    }
}

/* When the gradient is at all servers, and server 0 has been told so. */
static uint64_t known_everywhere(const struct cluster_run *c, unsigned w)
{
    uint64_t last = place_of(c, w, 0)->arrived_ns;
    for (unsigned i = 1; i < c->count; i++) {
        uint64_t told = place_of(c, w, i)->arrived_ns + cluster_message_ns(&c->cluster, 0);
        last = told > last ? told : last;
    }
    return last;
}

/* ---- what the simulation tells ------------------------------------------------------------- */

/* All the steps until the push. */
static uint64_t computing_ns(const struct cluster_run *c, unsigned w)
{
    unsigned steps = simulation_steps(c->simulation);
    uint64_t ns = 0, first = simulation_batch(c->simulation, w) * steps;
    for (unsigned j = 0; j < steps; j++)
        ns += cluster_step_ns(&c->cluster, w, first + j);
    return ns;
}

static void released(void *context, unsigned server, unsigned w, bool everywhere)
{
    struct cluster_run *c = context;
    struct virtual_worker *v = &c->workers[w];
    const struct virtual_server *s = &c->servers[server];
    uint64_t sent = v->computed_ns;
    place_of(c, w, server)->replied_ns =
        s->end_ns + cluster_message_ns(&c->cluster, s->bytes) + jitter(c, w, server);
    if (!everywhere)
        return;
    v->got_ns = 0;
    for (unsigned i = 0; i < c->count; i++)
        if (place_of(c, w, i)->replied_ns > v->got_ns)
            v->got_ns = place_of(c, w, i)->replied_ns;
    v->waited_ns = v->began ? v->got_ns - sent : 0;
    v->began = true;
    v->computed_ns = v->got_ns + computing_ns(c, w);
    send_gradient(c, w);
    if (c->snapshots)
        event_queue_put(&c->queue, event_of(c, w, 0), known_everywhere(c, w));
    else
        for (unsigned i = 0; i < c->count; i++)
            event_queue_put(&c->queue, event_of(c, w, i), place_of(c, w, i)->arrived_ns);
}

static void record(void *context, struct push_record *row)
{
    const struct cluster_run *c = context;
    const struct virtual_server *s = &c->servers[row->server];
    row->queue_us = us(s->begin_ns - place_of(c, row->worker, row->server)->arrived_ns);
    row->apply_us = us(s->end_ns - s->begin_ns);
}

/* ---- events -------------------------------------------------------------------------------- */

/* A server begins as soon as it is free; those that follow in one order, once they know it. */
static void server_begins(struct cluster_run *c, unsigned server, uint64_t now)
{
    struct virtual_server *s = &c->servers[server];
    if (c->snapshots && server > 0)
        now = c->servers[0].begin_ns + cluster_message_ns(&c->cluster, 0);
    s->begin_ns = now > s->end_ns ? now : s->end_ns;
    s->end_ns = s->begin_ns;
}

/* With snapshots one order holds for all. */
static void note(const struct cluster_run *c, unsigned server, uint64_t now, enum severity severity,
                 const char *code, unsigned w, const char *detail)
{
    if (c->o->recorder != NULL && (server == 0 || !c->snapshots))
        recorder_event_at(c->o->recorder, server, seconds(now),
                          simulation_arrivals(c->simulation, server), severity, code, (int)w,
                          detail);
}

/* The first server comes last: at its evaluations the others are to have had the same events. */
static status worker_comes(struct cluster_run *c, unsigned w, uint64_t now)
{
    status result = OK;
    struct virtual_worker *v = &c->workers[w];
    uint64_t lives;
    v->gone = v->began = false;
    if (cluster_life_ns(&c->cluster, w, v->life++, &lives, &v->away_ns))
        event_queue_put(&c->queue, event_of(c, w, c->count), now + lives);
    for (unsigned i = 0; i < c->count; i++)
        server_begins(c, i, now);
    for (unsigned i = c->count; i-- > 0;) {
        note(c, i, now, SEVERITY_INFO, "worker_joined", w, "virtual");
        TRY(simulation_hello(c->simulation, i, w, seconds(c->servers[i].begin_ns)));
    }
done:
    return result;
}

/* Workers that die before they have computed, or before enough others have, may go on for ever. */
static status check_progress(struct cluster_run *c)
{
    status result = OK;
    const options *o = c->o->settings;
    uint64_t version = simulation_version(c->simulation);
    c->deaths = version > c->version ? 1 : c->deaths + 1;
    c->version = version;
    if (c->deaths > (uint64_t)LIVES * c->o->workers) {
        FAIL(ERROR_PEER,
             "workers died %llu times (crash.mtbf_s=%s) without an update, until virtual time "
             "%.6f s: they die before consistency=%s has the gradients that it waits for; raise "
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
    v->gone = true;
    snprintf(detail, sizeof detail, "died after life %llu (crash.mtbf_s), back in %.3f s",
             (unsigned long long)v->life, seconds(v->away_ns));
    event_queue_put(&c->queue, event_of(c, w, c->count), now + v->away_ns);
    for (unsigned i = 0; i < c->count; i++) {
        event_queue_remove(&c->queue, event_of(c, w, i));
        server_begins(c, i, now);
    }
    for (unsigned i = c->count; i-- > 0;) {
        note(c, i, now, SEVERITY_WARNING, "worker_lost", w, detail);
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

static void server_takes(struct cluster_run *c, unsigned server, uint64_t now)
{
    server_begins(c, server, now);
    c->servers[server].end_ns += (uint64_t)c->cluster.apply_ns;
}

static status gradient_arrives(struct cluster_run *c, unsigned server, unsigned w, uint64_t now)
{
    status result = OK;
    if (!c->snapshots) {
        server_takes(c, server, now);
        return push(c, server, w);
    }
    for (unsigned i = 0; i < c->count; i++)
        server_takes(c, i, now);
    for (unsigned i = c->count; i-- > 0;)
        TRY(push(c, i, w));
done:
    return result;
}

/* Has the gradients that arrive next computed meanwhile. */
static void prepare(struct cluster_run *c, unsigned now_wanted)
{
    unsigned kinds = c->count + 1;
    unsigned events[EVENT_QUEUE_LOOK], wanted = kinds * 2 * simulation_threads(c->simulation);
    if (simulation_threads(c->simulation) == 1)
        return;
    if (wanted > EVENT_QUEUE_LOOK)
        wanted = EVENT_QUEUE_LOOK;
    bool room = simulation_prepare(c->simulation, now_wanted);
    unsigned found = room ? event_queue_look(&c->queue, events, wanted) : 0;
    for (unsigned i = 0; i < found && room; i++)
        if (events[i] % kinds != c->count)
            room = simulation_prepare(c->simulation, events[i] / kinds);
}

static status handle(struct cluster_run *c, unsigned event, uint64_t now)
{
    unsigned w = event / (c->count + 1), kind = event % (c->count + 1);
    if (kind == c->count)
        return c->workers[w].gone ? worker_comes(c, w, now) : worker_dies(c, w, now);
    prepare(c, w);
    return gradient_arrives(c, kind, w, now);
}

/* ---- the run ------------------------------------------------------------------------------- */

static status cluster_run_open(struct cluster_run *c, const struct virtual_options *o)
{
    status result = OK;
    c->o = o;
    cluster_open(&c->cluster, o->settings, o->pace);
    c->count = servers_of(o->settings);
    c->snapshots = c->count > 1 && reads_snapshots(o->settings);
    TRY(event_queue_open(&c->queue, (c->count + 1) * o->workers));
    TRY(memory_new(&c->workers, o->workers, sizeof *c->workers, "virtual workers"));
    TRY(memory_new(&c->servers, c->count, sizeof *c->servers, "virtual servers"));
    TRY(memory_new(&c->places, (size_t)o->workers * c->count, sizeof *c->places,
                   "virtual workers"));
    TRY(simulation_open(&c->simulation, &(struct simulation_options){.settings = o->settings,
                                                                     .pool = o->pool,
                                                                     .workers = o->workers,
                                                                     .length = o->length,
                                                                     .hooks = o->hooks,
                                                                     .recorder = o->recorder,
                                                                     .evaluates = true,
                                                                     .context = c,
                                                                     .released = released,
                                                                     .record = record}));
    for (unsigned i = 0; i < c->count; i++)
        c->servers[i].bytes = simulation_parameter_bytes(c->simulation, i);
done:
    return result;
}

static status train(struct cluster_run *c)
{
    status result = OK;
    unsigned event;
    uint64_t now;
    for (unsigned w = 0; w < c->o->workers; w++)
        TRY(worker_comes(c, w, 0));
    while (!simulation_ended(c->simulation)) {
        if (!event_queue_take(&c->queue, &event, &now))
            FAIL(ERROR_PEER,
                 "nothing more can happen at virtual time %.6f s: all workers wait for each other",
                 seconds(c->servers[0].end_ns));
        TRY(handle(c, event, now));
    }
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
    memory_free(c.workers);
    memory_free(c.servers);
    memory_free(c.places);
    return result;
}
