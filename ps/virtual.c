/* virtual.c — see virtual.h. */
#include "ps/virtual.h"

#include "ps/event_queue.h"

#include <stdio.h>
#include <string.h>

/* Each worker has two events: its gradient arrives; its life ends, or it comes back. */
enum { ARRIVES, LIVES, EVENTS };

struct virtual_worker {
    uint64_t got_ns, computed_ns, arrived_ns; /* of the gradient under way, or handed in last */
    uint64_t waited_ns;                       /* for the parameters it was computed at */
    uint64_t life, away_ns;
    bool began, gone;
};

struct cluster_run {
    const struct virtual_options *o;
    struct cluster cluster;
    simulation *simulation;
    struct event_queue queue;
    struct virtual_worker *workers;
    uint64_t begin_ns, end_ns; /* of the server's part in the event under way */
    uint64_t message_ns;
};

static double seconds(uint64_t ns)
{
    return (double)ns * 1e-9;
}

static double us(uint64_t ns)
{
    return (double)ns * 1e-3;
}

static unsigned event_of(unsigned w, unsigned kind)
{
    return w * EVENTS + kind;
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

static void released(void *context, unsigned w)
{
    struct cluster_run *c = context;
    struct virtual_worker *v = &c->workers[w];
    uint64_t sent = v->computed_ns;
    v->got_ns = c->end_ns + c->message_ns;
    v->waited_ns = v->began ? v->got_ns - sent : 0;
    v->began = true;
    v->computed_ns = v->got_ns + computing_ns(c, w);
    event_queue_put(&c->queue, event_of(w, ARRIVES), v->computed_ns + c->message_ns);
}

static void record(void *context, struct push_record *row)
{
    const struct cluster_run *c = context;
    row->queue_us = us(c->begin_ns - c->workers[row->worker].arrived_ns);
    row->apply_us = us(c->end_ns - c->begin_ns);
}

/* ---- events -------------------------------------------------------------------------------- */

static void note(const struct cluster_run *c, uint64_t now, enum severity severity,
                 const char *code, unsigned w, const char *detail)
{
    if (c->o->recorder != NULL)
        recorder_event_between(c->o->recorder, seconds(now), simulation_arrivals(c->simulation),
                               severity, code, (int)w, detail);
}

/* The server begins as soon as it is free. */
static void server_begins(struct cluster_run *c, uint64_t now)
{
    c->begin_ns = now > c->end_ns ? now : c->end_ns;
    c->end_ns = c->begin_ns;
}

static status worker_comes(struct cluster_run *c, unsigned w, uint64_t now)
{
    struct virtual_worker *v = &c->workers[w];
    uint64_t lives;
    v->gone = v->began = false;
    note(c, now, SEVERITY_INFO, "worker_joined", w, "virtual");
    if (cluster_life_ns(&c->cluster, w, v->life++, &lives, &v->away_ns))
        event_queue_put(&c->queue, event_of(w, LIVES), now + lives);
    server_begins(c, now);
    return simulation_hello(c->simulation, w, seconds(c->begin_ns));
}

static status worker_dies(struct cluster_run *c, unsigned w, uint64_t now)
{
    struct virtual_worker *v = &c->workers[w];
    char detail[96];
    v->gone = true;
    snprintf(detail, sizeof detail, "died after life %llu (crash.mtbf_s), back in %.3f s",
             (unsigned long long)v->life, seconds(v->away_ns));
    note(c, now, SEVERITY_WARNING, "worker_lost", w, detail);
    event_queue_remove(&c->queue, event_of(w, ARRIVES));
    event_queue_put(&c->queue, event_of(w, LIVES), now + v->away_ns);
    server_begins(c, now);
    return simulation_lost(c->simulation, w, seconds(c->begin_ns));
}

static status gradient_arrives(struct cluster_run *c, unsigned w, uint64_t now)
{
    struct virtual_worker *v = &c->workers[w];
    v->arrived_ns = now;
    server_begins(c, now);
    c->end_ns += (uint64_t)c->cluster.apply_ns;
    struct simulation_times times = {.pull_us = us(v->waited_ns),
                                     .compute_us = us(v->computed_ns - v->got_ns),
                                     .queue_us = us(c->begin_ns - now),
                                     .at_seconds = seconds(c->begin_ns)};
    return simulation_push(c->simulation, w, &times);
}

/* Has the gradients that arrive next computed meanwhile. */
static void prepare(struct cluster_run *c, unsigned now_wanted)
{
    unsigned events[EVENT_QUEUE_LOOK], wanted = EVENTS * 2 * simulation_threads(c->simulation);
    if (simulation_threads(c->simulation) == 1)
        return;
    if (wanted > EVENT_QUEUE_LOOK)
        wanted = EVENT_QUEUE_LOOK;
    bool room = simulation_prepare(c->simulation, now_wanted);
    unsigned found = room ? event_queue_look(&c->queue, events, wanted) : 0;
    for (unsigned i = 0; i < found && room; i++)
        if (events[i] % EVENTS == ARRIVES)
            room = simulation_prepare(c->simulation, events[i] / EVENTS);
}

static status handle(struct cluster_run *c, unsigned event, uint64_t now)
{
    unsigned w = event / EVENTS;
    if (event % EVENTS == LIVES)
        return c->workers[w].gone ? worker_comes(c, w, now) : worker_dies(c, w, now);
    prepare(c, w);
    return gradient_arrives(c, w, now);
}

/* ---- the run ------------------------------------------------------------------------------- */

static status cluster_run_open(struct cluster_run *c, const struct virtual_options *o)
{
    status result = OK;
    c->o = o;
    cluster_open(&c->cluster, o->settings, o->pace);
    TRY(event_queue_open(&c->queue, EVENTS * o->workers));
    TRY(memory_new(&c->workers, o->workers, sizeof *c->workers, "virtual workers"));
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
    c->message_ns = cluster_message_ns(&c->cluster, simulation_parameter_bytes(c->simulation));
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
                 seconds(c->end_ns));
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
        status saved = simulation_checkpoint(c.simulation);
        result = saved != OK ? saved : result;
    }
    simulation_outcome(c.simulation, seconds(c.end_ns), out);
done:
    simulation_close(&c.simulation);
    event_queue_close(&c.queue);
    memory_free(c.workers);
    return result;
}
