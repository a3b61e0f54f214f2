/* simulation.c — see simulation.h. */
#include "base/clock.h"
#include "base/memory.h"
#include "base/sha256.h"
#include "ps/virtual/simulation_state.h"

#include "ps/core/arithmetic.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

enum { PROGRESS_MS = 250 };

/* Size of a gradient in floats, rounded up to whole cache lines. */
static size_t stride_of(size_t count)
{
    enum { LINE = 16 };
    return (count + LINE - 1) / LINE * LINE;
}

/* ---- open and close ------------------------------------------------------------------------ */

static void read_checkpoint_settings(simulation *s, uint64_t epoch_samples)
{
    const options *o = s->o.settings;
    s->checkpoints = options_text(o, "checkpoint")[0] != '\0' && s->o.hooks.checkpoint != NULL;
    s->checkpoint_samples = training_checkpoint_every(o, epoch_samples);
    s->next_checkpoint = s->checkpoint_samples;
}

static status open_members(simulation *s)
{
    status result = OK;
    const struct optimizer_layers layers = worker_layers(gradient_pool_own(s->o.pool));
    TRY(memory_new(&s->members, s->o.workers_max, sizeof *s->members, "virtual workers"));
    TRY(memory_new(&s->places, (size_t)s->o.workers_max * s->servers, sizeof *s->places,
                   "virtual workers"));
    for (unsigned w = 0; w < s->o.workers_max; w++) {
        s->members[w].batch = s->o.start != NULL ? s->o.start->batches[w] : 0;
        s->members[w].places = &s->places[w * s->servers];
        TRY(local_steps_open(&s->members[w].local, &s->plan));
        TRY(local_steps_compress(&s->members[w].local, s->o.settings, &layers,
                                 worker_epoch_samples(gradient_pool_own(s->o.pool))));
    }
    TRY(memory_new(&s->spare, s->o.workers_max, sizeof *s->spare, "gradient buffers"));
done:
    return result;
}

status simulation_open(simulation **out, const struct simulation_options *o)
{
    status result = OK;
    simulation *s = NULL;
    worker *own = gradient_pool_own(o->pool);
    uint64_t epoch_samples = worker_epoch_samples(own);
    *out = NULL;
    TRY(memory_new(&s, 1, sizeof *s, "a simulation"));
    s->o = *o;
    s->o.workers_max = o->workers_max > 0 ? o->workers_max : o->workers;
    s->opened_ns = clock_ns();
    s->count = worker_parameter_count(own);
    ps_metrics_open(&s->tally, o->settings, o->recorder);
    read_checkpoint_settings(s, epoch_samples);
    TRY(servers_open(s, epoch_samples));
    TRY(probe_open(&s->probe, o->settings, s->count));
    TRY(local_steps_plan_open(&s->plan, o->settings, o->workers, s->count, o->length.total_samples,
                              epoch_samples));
    TRY(open_members(s));
    *out = s;
    s = NULL;
done:
    simulation_close(&s);
    return result;
}

void simulation_close(simulation **out)
{
    simulation *s = *out;
    if (s == NULL)
        return;
    for (unsigned w = 0; s->members != NULL && w < s->o.workers_max; w++) {
        gradient_pool_cancel(s->o.pool, &s->members[w].job);
        shared_memory_free(s->members[w].gradient);
        local_steps_close(&s->members[w].local);
    }
    for (unsigned i = 0; i < s->spare_count; i++)
        shared_memory_free(s->spare[i]);
    probe_close(&s->probe);
    servers_close(s);
    memory_free(s->places);
    memory_free(s->spare);
    memory_free(s->members);
    memory_free(s);
    *out = NULL;
}

/* ---- gradients ----------------------------------------------------------------------------- */

/* A buffer holds the gradient, the scratch memory of local steps and, with several servers, the
 * parameters of the release. With one server the parameters stay in their slot. */
static size_t buffer_floats(const simulation *s)
{
    return stride_of(s->count) + local_steps_scratch(&s->plan) + (s->servers > 1 ? s->count : 0);
}

static status take_buffer(simulation *s, struct simulation_member *member)
{
    status result = OK;
    if (member->gradient == NULL && s->spare_count > 0) {
        member->gradient = s->spare[--s->spare_count];
    } else if (member->gradient == NULL) {
        TRY(shared_memory_new(&member->gradient, buffer_floats(s), "a gradient", OTHERS_WRITE));
        s->buffers++;
    }
done:
    return result;
}

static void return_buffer(simulation *s, struct simulation_member *member)
{
    if (member->gradient != NULL) {
        s->spare[s->spare_count++] = member->gradient;
        member->gradient = NULL;
    }
}

struct computer {
    worker *worker;
    worker_shard *shard;
};

static status gradient_as(void *context, const float *parameters, uint64_t batch, float *gradient,
                          struct step_stats *stats)
{
    const struct computer *c = context;
    return worker_gradient_as(c->worker, c->shard, parameters, batch, gradient, stats);
}

static status local_steps(struct gradient_job *job, worker *w, worker_shard *shard)
{
    status result = OK;
    struct simulation_member *member =
        (struct simulation_member *)((char *)job - offsetof(struct simulation_member, job));
    struct computer computer = {w, shard};
    struct local_steps_push push = {.parameters = job->parameters,
                                    .samples = member->places[0].samples,
                                    .number = job->batch,
                                    .difference = job->gradient,
                                    .scratch =
                                        job->gradient + stride_of(member->local.plan->count)};
    TRY(local_steps_run(&member->local, gradient_as, &computer, &push));
    job->stats = push.stats;
done:
    return result;
}

/* The parameters that the servers released the worker with. */
static const float *parameters_of(simulation *s, struct simulation_member *member)
{
    if (s->servers == 1)
        return s->hosts[0].slots[member->places[0].slot];
    float *whole = member->gradient + stride_of(s->count) + local_steps_scratch(&s->plan);
    for (unsigned i = 0; i < s->servers; i++) {
        const struct host *h = &s->hosts[i];
        memcpy(whole + h->begin, h->slots[member->places[i].slot], h->count * sizeof(float));
    }
    return whole;
}

static void describe_job(simulation *s, struct simulation_member *member)
{
    member->job.compute = local_steps_needed(&member->local) ? local_steps : NULL;
    member->job.worker = (unsigned)(member - s->members);
    member->job.batch = member->batch;
    member->job.parameters = parameters_of(s, member);
    member->job.gradient = member->gradient;
}

bool simulation_prepare(simulation *s, unsigned w)
{
    struct simulation_member *member = &s->members[w];
    if (s->ahead >= 2 * gradient_pool_threads(s->o.pool) || gradient_pool_threads(s->o.pool) == 1)
        return false;
    if (!member->computing || member->gradient != NULL)
        return true;
    if (take_buffer(s, member) != OK)
        return false; /* simulation_push() reports the error */
    describe_job(s, member);
    gradient_pool_submit(s->o.pool, &member->job);
    s->ahead++;
    return true;
}

static status compute(simulation *s, struct simulation_member *member)
{
    status result = OK;
    bool ahead = member->gradient != NULL;
    if (member->computed)
        return OK;
    if (!ahead) {
        TRY(take_buffer(s, member));
        describe_job(s, member);
    }
    s->ahead -= ahead;
    TRY(gradient_pool_finish(s->o.pool, &member->job));
    member->computed = true;
done:
    return result;
}

/* ---- actions ------------------------------------------------------------------------------- */

static bool all_ready(const simulation *s, const struct simulation_member *member)
{
    unsigned ready = 0;
    for (unsigned i = 0; i < s->servers; i++)
        ready += member->places[i].ready && member->places[i].sequence == member->sequence;
    return ready == s->servers;
}

static void perform_release(simulation *s, unsigned server, const struct server_action *a)
{
    struct simulation_member *member = &s->members[a->worker];
    struct place *place = &member->places[server];
    place->ready = true;
    place->slot = a->slot;
    place->version = a->version;
    place->samples = a->samples;
    s->sent_bytes += (double)simulation_pull_bytes(s, server);
    bool everywhere = !member->computing && all_ready(s, member);
    if (everywhere) {
        return_buffer(s, member);
        member->computing = true;
    }
    s->o.released(s->o.context, server, a->worker, everywhere);
}

static void perform_record(simulation *s, unsigned server, const struct server_action *a)
{
    struct push_record row = a->record;
    row.server = server;
    s->o.record(s->o.context, &row);
    if (a->taken)
        row.queue_us = a->record.queue_us; /* the worker may have pushed again since */
    ps_metrics_push(&s->tally, &row);
}

static status evaluate(simulation *s)
{
    status result = OK;
    struct evaluation e;
    struct training_state now = {.updates = server_core_version(servers_first(s)),
                                 .samples = server_core_samples_used(servers_first(s)),
                                 .seconds = training_time_within(&s->o.length, s->now)};
    TRY(s->o.hooks.evaluate(s->o.hooks.context, servers_latest(s), 0, &e));
    ps_metrics_begin_evaluation(&s->tally, &now);
    ps_metrics_evaluation(&s->tally, &now, NOT_MEASURED,
                          &e); /* an evaluation takes no virtual time */
done:
    return result;
}

static status perform_evaluate(simulation *s);

static status perform(simulation *s, unsigned server, struct server_actions actions)
{
    status result = OK;
    for (size_t i = 0; i < actions.count && result == OK; i++) {
        const struct server_action *a = &actions.at[i];
        switch (a->kind) {
        case SERVER_RELEASE:
            perform_release(s, server, a);
            break;
        case SERVER_RECORD:
            perform_record(s, server, a);
            break;
        case SERVER_EVALUATE:
            return perform_evaluate(s); /* always the last action; it may cause others */
        case SERVER_DIVERGED:
            result = servers_diverged(s, server, &a->record);
            break;
        case SERVER_APPLIED:
        case SERVER_FINISHED:
            break;
        }
    }
    return result;
}

static status perform_evaluate(simulation *s)
{
    status result = OK;
    if (s->o.evaluates)
        TRY(evaluate(s));
    TRY(perform(s, 0, server_core_evaluated(servers_first(s))));
done:
    return result;
}

/* Uses the host's clock, not the virtual one: a person watches the progress. */
static void show_progress(simulation *s)
{
    uint64_t now = clock_ns();
    if (s->o.hooks.progress == NULL || now < s->next_progress_ns)
        return;
    s->next_progress_ns = now + PROGRESS_MS * 1000000ULL;
    struct training_progress p = {
        .updates = server_core_version(servers_first(s)),
        .samples_used = server_core_samples_used(servers_first(s)),
        .total_samples = training_expected_samples(
            &s->o.length, server_core_samples_used(servers_first(s)), s->now),
        .seconds = (double)(now - s->opened_ns) * 1e-9,
        .loss = s->tally.smooth_loss,
        .test_accuracy = s->tally.test_accuracy,
        .mean_staleness = ps_metrics_mean_staleness(&s->tally)};
    s->o.hooks.progress(s->o.hooks.context, &p);
}

status simulation_after_event(simulation *s)
{
    status result = OK;
    show_progress(s);
    if (s->checkpoint_samples > 0 && !server_core_ended(servers_first(s)) &&
        server_core_samples_used(servers_first(s)) >= s->next_checkpoint)
        TRY(simulation_checkpoint(s, true));
    if (training_stop_wanted(&s->o.hooks) && !server_core_ended(servers_first(s))) {
        FAIL(STOPPED, "stopped on request after %llu updates",
             (unsigned long long)server_core_version(servers_first(s)));
    }
done:
    return result;
}

/* ---- events -------------------------------------------------------------------------------- */

status simulation_hello(simulation *s, unsigned server, unsigned w, double now)
{
    struct place *place = &s->members[w].places[server];
    s->now = now;
    place->lost = false;
    place->sequence = 0;
    if (server == 0)
        local_steps_reset(&s->members[w].local);
    return perform(s, server, server_core_hello(s->hosts[server].core, w));
}

/* All servers have lost the worker: resets it, so that it can join again. */
static void reset_member(simulation *s, struct simulation_member *member)
{
    bool pushed = false;
    for (unsigned i = 0; i < s->servers; i++)
        pushed |= member->places[i].sequence > member->sequence;
    if (member->gradient != NULL && member->computing && !member->computed) {
        gradient_pool_cancel(s->o.pool, &member->job);
        s->ahead--;
    }
    member->batch += pushed;
    member->sequence = 0;
    member->computing = member->computed = false;
}

status simulation_lost(simulation *s, unsigned server, unsigned w, double now)
{
    status result = OK;
    struct simulation_member *member = &s->members[w];
    s->now = now;
    member->places[server].lost = true;
    bool everywhere = true;
    for (unsigned i = 0; i < s->servers; i++)
        everywhere &= member->places[i].lost;
    if (everywhere) {
        reset_member(s, member);
    } else if (member->computing) {
        /* Compute now: this server's slot is freed, and other servers may still get the gradient.
         */
        TRY(compute(s, member));
    }
    member->places[server].ready = false;
    TRY(perform(s, server, server_core_lost(s->hosts[server].core, w)));
    if (everywhere)
        return_buffer(s, member);
done:
    return result;
}

status simulation_end(simulation *s, unsigned server)
{
    return perform(s, server, server_core_end(s->hosts[server].core));
}

/* After the gradient has arrived at all servers that have not lost its worker, the worker can be
 * released again. */
static void finish_push(simulation *s, struct simulation_member *member)
{
    for (unsigned i = 0; i < s->servers; i++)
        if (member->places[i].sequence == member->sequence && !member->places[i].lost)
            return;
    member->computing = member->computed = false;
    member->sequence++;
    member->batch++; /* before the release, which draws the time of the next step */
}

/* Computes the fresh gradient. It takes no virtual time. Only with one server: see slices_check().
 */
static status probe(simulation *s, const struct simulation_member *member, struct server_push *push)
{
    status result = OK;
    const server_core *core = servers_first(s);
    if (s->servers > 1 || server_core_ended(core) ||
        !probe_is_due(&s->probe, server_core_arrivals(core)))
        return OK;
    struct gradient_job fresh = {.worker = push->worker,
                                 .batch = member->batch,
                                 .parameters = servers_latest(s),
                                 .gradient = s->probe.fresh};
    TRY(gradient_pool_finish(s->o.pool, &fresh));
    push->probed = true;
    push->cosine = vector_cosine(s->count, member->gradient, s->probe.fresh);
done:
    return result;
}

status simulation_push(simulation *s, unsigned server, unsigned w,
                       const struct simulation_times *times)
{
    status result = OK;
    struct simulation_member *member = &s->members[w];
    struct host *h = &s->hosts[server];
    struct place *place = &member->places[server];
    struct server_actions actions = {0};
    REQUIRE(simulation_may_push(s, server, w));
    s->now = times->at_seconds;
    TRY(compute(s, member));
    s->sent_bytes += (double)simulation_push_bytes(s, server, w);
    struct server_push push = {.worker = w,
                               .sequence = place->sequence,
                               .read_version = place->version,
                               .batch = member->batch,
                               .gradient = member->gradient + h->begin,
                               .samples = member->job.stats.samples,
                               .loss = member->job.stats.loss,
                               .pull_us = times->pull_us,
                               .compute_us = times->compute_us,
                               .queue_us = times->queue_us,
                               .data_us = times->data_us,
                               .forward_us = times->forward_us,
                               .backward_us = times->backward_us,
                               .at_seconds = times->at_seconds};
    TRY(probe(s, member, &push));
    TRY(server_core_push(h->core, &push, &actions));
    place->ready = false;
    place->sequence++;
    finish_push(s, member);
    TRY(perform(s, server, actions));
done:
    return result;
}

/* ---- queries, and the end ------------------------------------------------------------------- */

unsigned simulation_threads(const simulation *s)
{
    return gradient_pool_threads(s->o.pool);
}

unsigned simulation_servers(const simulation *s)
{
    return s->servers;
}

bool simulation_may_push(const simulation *s, unsigned server, unsigned w)
{
    const struct simulation_member *member = &s->members[w];
    const struct place *place = &member->places[server];
    return member->computing && place->ready && place->sequence == member->sequence;
}

bool simulation_can_compute(const simulation *s, unsigned w, uint64_t sequence)
{
    const struct simulation_member *member = &s->members[w];
    return member->sequence > sequence || (member->sequence == sequence && member->computing);
}

uint64_t simulation_batch(const simulation *s, unsigned w)
{
    return s->members[w].batch;
}

unsigned simulation_steps(const simulation *s)
{
    return s->plan.outer.steps;
}

uint64_t simulation_arrivals(const simulation *s, unsigned server)
{
    return server_core_arrivals(s->hosts[server].core);
}

bool simulation_ended(const simulation *s)
{
    return server_core_ended(servers_first(s));
}

uint64_t simulation_version(const simulation *s)
{
    return server_core_version(servers_first(s));
}

size_t simulation_pull_bytes(const simulation *s, unsigned server)
{
    return pull_code_bytes(&s->plan.pull, s->hosts[server].count);
}

size_t simulation_push_bytes(const simulation *s, unsigned server, unsigned w)
{
    const struct simulation_member *member = &s->members[w];
    const struct push_codes *codes = &member->local.codes;
    return push_codes_enabled(codes) ? push_codes_bytes(codes, server, member->places[0].samples)
                                     : s->hosts[server].count * sizeof(float);
}

unsigned simulation_buffers(const simulation *s)
{
    return s->buffers;
}

status simulation_evaluate_now(simulation *s, double now)
{
    s->now = now;
    return s->o.evaluates ? evaluate(s) : OK;
}

status simulation_checkpoint(simulation *s, bool goes_on)
{
    status result = OK;
    float *states = NULL;
    struct training_state now;
    server_core_state(servers_first(s), &now);
    now.seconds = s->now;
    now.sent_bytes = s->sent_bytes;
    now.loss_sum = s->tally.loss_sum;
    now.loss_count = s->tally.loss_count;
    now.goes_on = goes_on;
    now.parameters = servers_latest(s);
    now.vector_count =
        s->servers == 1 ? now.vector_count : 0; /* with several servers they are of a slice */
    while (s->checkpoint_samples > 0 && s->next_checkpoint <= now.samples)
        s->next_checkpoint += s->checkpoint_samples;
    if (!s->checkpoints)
        return OK;
    TRY(servers_states(s, &states, &now.optimizer_state_count));
    now.optimizer_state = states;
    TRY(s->o.hooks.checkpoint(s->o.hooks.context, &now));
done:
    memory_free(states);
    return result;
}

void simulation_outcome(simulation *s, double seconds, struct training_outcome *out)
{
    struct sha256 sum;
    for (unsigned i = 0; i < s->servers; i++) {
        status held = simulation_end(s, i); /* it only records held gradients as dropped */
        REQUIRE(held == OK);
    }
    out->updates = server_core_version(servers_first(s));
    out->samples_used = server_core_samples_used(servers_first(s));
    out->samples_computed = server_core_samples_computed(servers_first(s));
    out->staleness = s->tally.staleness;
    out->train_seconds = training_time_within(&s->o.length, seconds);
    out->sent_bytes = s->sent_bytes;
    sha256_begin(&sum);
    sha256_add(&sum, servers_latest(s), s->count * sizeof(float));
    sha256_end(&sum, out->parameters_sha256);
}
