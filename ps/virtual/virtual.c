/* virtual.c — see virtual.h. */
#include "ps/virtual/virtual.h"

#include "base/memory.h"
#include "ps/core/late_workers.h"
#include "ps/core/slices.h"
#include "ps/virtual/virtual_state.h"

#include <stdio.h>
#include <string.h>

enum { LIVES_MAX = 1000 }; /* more deaths per worker on average without an update fail the run */

static double seconds(uint64_t ns)
{
    return (double)ns * 1e-9;
}

static double us(uint64_t ns)
{
    return (double)ns * 1e-3;
}

/* ---- callbacks of the simulation ------------------------------------------------------------ */

static void released(void *context, unsigned server, unsigned w, bool everywhere)
{
    messages_release(context, server, w, everywhere);
}

static void record(void *context, struct push_record *row)
{
    const struct cluster_run *c = context;
    const struct virtual_server *s = &c->servers[row->server];
    row->queue_us = us(s->begin_ns - place_of(c, row->worker, row->server)->arrived_ns);
    row->apply_us = us(s->end_ns - s->begin_ns);
}

/* ---- events -------------------------------------------------------------------------------- */

/* A server starts on an event when it is free. With snapshots the other servers also wait until
 * they know server 0's order. */
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
    v->reply_number = place_of(c, w, 0)->messages;
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

/* A late worker counts as lost until it joins (ps/core/late_workers.h). */
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
    snprintf(detail, sizeof detail,
             "crash %llu of this worker (crash.mtbf_s); joins again in %.3f s",
             (unsigned long long)v->life, seconds(v->away_ns));
    for (unsigned kind = 0; kind < c->kinds; kind++)
        event_queue_remove(&c->queue, w * c->kinds + kind);
    event_queue_put(&c->queue, event_of(c, w, LIFE, 0), now + v->away_ns);
    messages_cancel(c, w, now);
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

/* Pushes the gradients of the unit whose first worker is `first`. */
static status push_unit(struct cluster_run *c, unsigned server, unsigned first)
{
    status result = OK;
    for (unsigned w = first; w < unit_end(c, first); w++)
        TRY(push(c, server, w));
done:
    return result;
}

static status gradient_arrives(struct cluster_run *c, unsigned server, unsigned first, uint64_t now)
{
    status result = OK;
    if (!c->snapshots) {
        server_applies(c, server, now);
        return push_unit(c, server, first);
    }
    for (unsigned i = 0; i < c->count; i++)
        server_applies(c, i, now);
    for (unsigned i = c->count; i-- > 0;)
        TRY(push_unit(c, i, first));
done:
    return result;
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
    bool room = true;
    for (unsigned w = first; w < unit_end(c, first) && room; w++)
        room = simulation_prepare(c->simulation, w);
    unsigned found = room ? event_queue_peek(&c->queue, events, wanted) : 0;
    for (unsigned i = 0; i < found && room; i++)
        if (c->relays || events[i] % c->kinds < c->count)
            room = simulation_prepare(c->simulation, events[i] / c->kinds);
    for (unsigned i = 0; i < c->to_servers.count && room && !c->relays; i++)
        room = simulation_prepare(c->simulation, shared_links_worker(&c->to_servers, i));
}

static status handle(struct cluster_run *c, unsigned event, uint64_t now)
{
    unsigned w = event / c->kinds, kind = event % c->kinds;
    if (kind == event_of(c, 0, LIFE, 0))
        return c->workers[w].dead ? worker_joins(c, w, now) : worker_dies(c, w, now);
    if (kind < event_of(c, 0, LIFE, 0)) {
        prepare(c, w);
        return gradient_arrives(c, (kind + 1) % c->count, w, now); /* event_of() */
    }
    if (kind == event_of(c, 0, COMPUTED, 0))
        messages_computed(c, w, now);
    else if (kind < event_of(c, 0, RELAYED, 0))
        messages_reply(c, kind - event_of(c, 0, REPLY, 0), w, now);
    else
        messages_relayed(c, w, now);
    return OK;
}

/* If an event of the queue and the end of a transfer have the same time, the event comes first. */
static status next_event(struct cluster_run *c)
{
    status result = OK;
    unsigned event = 0;
    uint64_t next = UINT64_MAX, ends = UINT64_MAX;
    if (event_queue_peek(&c->queue, &event, 1) == 1)
        next = c->queue.when[event];
    if (next > c->now_ns)
        ends = messages_next(c);
    if (next == UINT64_MAX && ends == UINT64_MAX)
        FAIL(ERROR_PEER,
             "no event is left at virtual time %.6f s: all workers wait for each other. This is "
             "probably a bug in gradlag; please report it with the command line that led here",
             seconds(c->servers[0].end_ns));
    c->now_ns = next <= ends ? next : ends;
    if (next > ends) {
        messages_end(c, ends);
    } else {
        event_queue_remove(&c->queue, event);
        TRY(handle(c, event, next));
    }
done:
    return result;
}

/* ---- the run ------------------------------------------------------------------------------- */

static status cluster_run_open(struct cluster_run *c, const struct virtual_options *o)
{
    status result = OK;
    c->o = o;
    cluster_open(&c->cluster, o->settings, o->pace);
    c->count = servers_of(o->settings);
    c->most = workers_max_of(o->settings);
    c->snapshots = c->count > 1 && reads_snapshots(o->settings);
    TRY(messages_open(c));
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
    while (!simulation_ended(c->simulation)) {
        TRY(next_event(c));
        TRY(simulation_after_event(c->simulation));
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
    messages_close(&c);
    memory_free(c.workers);
    memory_free(c.servers);
    memory_free(c.places);
    return result;
}
