/* simulation.c — see simulation.h. */
#include "ps/simulation.h"

#include "ps/arithmetic.h"
#include "ps/local.h"
#include "ps/probe.h"
#include "ps/tally.h"

#include <math.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>

enum { PROGRESS_MS = 250, PAGE = 4096 };

struct seat {
    bool computing; /* released, its push has not come */
    unsigned slot;
    uint64_t version, sequence, batch;
    float *gradient; /* NULL: no buffer; behind it the scratch of local steps */
    struct local local;
    struct pool_job job;
};

struct simulation {
    struct simulation_options o;
    size_t count;
    server_core *core;
    float **slots;
    unsigned slot_count;
    float *area; /* of the slots: address space, resident where written */
    size_t area_bytes;
    struct seat *seats;
    struct local_plan plan;
    float **spare; /* gradient buffers that nobody uses */
    unsigned spare_count, buffers, ahead;
    double now;
    uint64_t opened_ns, next_progress_ns, checkpoint_samples, next_checkpoint;
    bool checkpoints;
    struct probe probe;
    struct tally tally;
    status result; /* of what an action did */
};

/* Floats from a gradient to what lies behind it: whole cache lines. */
static size_t stride_of(size_t count)
{
    enum { LINE = 16 };
    return (count + LINE - 1) / LINE * LINE;
}

/* ---- open and close ------------------------------------------------------------------------ */

static status reserve_slots(simulation *s)
{
    status result = OK;
    size_t stride = (s->count * sizeof(float) + PAGE - 1) / PAGE * PAGE;
    s->slot_count = s->o.workers + 2;
    s->area_bytes = stride * s->slot_count;
    s->area = mmap(NULL, s->area_bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (s->area == MAP_FAILED) {
        s->area = NULL;
        FAIL(ERROR_OTHER, "no address space for %u versions of %zu parameters (ulimit -v?)",
             s->slot_count, s->count);
    }
    TRY(memory_new(&s->slots, s->slot_count, sizeof *s->slots, "version slots"));
    for (unsigned i = 0; i < s->slot_count; i++) {
        s->slots[i] = s->area + i * (stride / sizeof(float));
    }
done:
    return result;
}

static void read_checkpoint_settings(simulation *s, uint64_t epoch_samples)
{
    const options *o = s->o.settings;
    double every = options_real(o, "checkpoint_every");
    s->checkpoints = options_text(o, "checkpoint")[0] != '\0' && s->o.hooks.checkpoint != NULL;
    s->checkpoint_samples = (uint64_t)(every * (double)epoch_samples);
    if (every > 0 && s->checkpoint_samples == 0) {
        s->checkpoint_samples = 1;
    }
    s->next_checkpoint = s->checkpoint_samples;
}

static status open_core(simulation *s, uint64_t epoch_samples)
{
    status result = OK;
    float *initial = NULL;
    worker *own = worker_pool_own(s->o.pool);
    TRY(memory_new(&initial, s->count, sizeof *initial, "initial parameters"));
    TRY(worker_initial_parameters(own, initial, s->count));
    TRY(server_core_open(
        &s->core, &(struct server_core_options){.settings = s->o.settings,
                                                .workers = s->o.workers,
                                                .count = s->count,
                                                .layers = worker_layers(own),
                                                .slots = s->slots,
                                                .slot_count = s->slot_count,
                                                .initial = initial,
                                                .epoch_samples = epoch_samples,
                                                .total_samples = s->o.length.total_samples,
                                                .evaluate_every = s->o.length.evaluate_every}));
done:
    memory_free(initial);
    return result;
}

status simulation_open(simulation **out, const struct simulation_options *o)
{
    status result = OK;
    simulation *s = NULL;
    worker *own = worker_pool_own(o->pool);
    uint64_t epoch_samples = worker_epoch_samples(own);
    *out = NULL;
    TRY(memory_new(&s, 1, sizeof *s, "a simulation"));
    s->o = *o;
    s->opened_ns = clock_ns();
    s->count = worker_parameter_count(own);
    tally_open(&s->tally, o->settings, o->recorder);
    read_checkpoint_settings(s, epoch_samples);
    TRY(reserve_slots(s));
    TRY(open_core(s, epoch_samples));
    TRY(probe_open(&s->probe, o->settings, s->count));
    TRY(local_plan_open(&s->plan, o->settings, o->workers, s->count, o->length.total_samples,
                        epoch_samples));
    TRY(memory_new(&s->seats, o->workers, sizeof *s->seats, "virtual workers"));
    for (unsigned w = 0; w < o->workers; w++) {
        TRY(local_open(&s->seats[w].local, &s->plan));
    }
    TRY(memory_new(&s->spare, o->workers, sizeof *s->spare, "gradient buffers"));
    *out = s;
    s = NULL;
done:
    simulation_close(&s);
    return result;
}

void simulation_close(simulation **out)
{
    simulation *s = *out;
    if (s == NULL) {
        return;
    }
    for (unsigned w = 0; s->seats != NULL && w < s->o.workers; w++) {
        worker_pool_cancel(s->o.pool, &s->seats[w].job);
        memory_free(s->seats[w].gradient);
        local_close(&s->seats[w].local);
    }
    for (unsigned i = 0; i < s->spare_count; i++) {
        memory_free(s->spare[i]);
    }
    server_core_close(&s->core);
    if (s->area != NULL) {
        munmap(s->area, s->area_bytes);
    }
    probe_close(&s->probe);
    memory_free(s->slots);
    memory_free(s->spare);
    memory_free(s->seats);
    memory_free(s);
    *out = NULL;
}

/* ---- gradients ----------------------------------------------------------------------------- */

static status take_buffer(simulation *s, struct seat *seat)
{
    status result = OK;
    if (seat->gradient == NULL && s->spare_count > 0) {
        seat->gradient = s->spare[--s->spare_count];
    } else if (seat->gradient == NULL) {
        TRY(memory_new(&seat->gradient, stride_of(s->count) + local_scratch(&s->plan),
                       sizeof(float), "a gradient"));
        s->buffers++;
    }
done:
    return result;
}

static void give_buffer_back(simulation *s, struct seat *seat)
{
    if (seat->gradient != NULL) {
        s->spare[s->spare_count++] = seat->gradient;
        seat->gradient = NULL;
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

static status local_steps(struct pool_job *job, worker *w, worker_shard *shard)
{
    status result = OK;
    struct seat *seat = (struct seat *)((char *)job - offsetof(struct seat, job));
    struct computer computer = {w, shard};
    struct local_push push = {.parameters = job->parameters,
                              .version = seat->version,
                              .number = job->batch,
                              .difference = job->gradient,
                              .scratch = job->gradient + stride_of(seat->local.plan->count)};
    TRY(local_run(&seat->local, gradient_as, &computer, &push));
    job->stats = push.stats;
done:
    return result;
}

static void describe_job(simulation *s, struct seat *seat)
{
    seat->job.compute = local_plan_steps(&s->plan) ? local_steps : NULL;
    seat->job.worker = (unsigned)(seat - s->seats);
    seat->job.batch = seat->batch;
    seat->job.parameters = s->slots[seat->slot];
    seat->job.gradient = seat->gradient;
}

bool simulation_prepare(simulation *s, unsigned w)
{
    struct seat *seat = &s->seats[w];
    if (s->ahead >= 2 * worker_pool_threads(s->o.pool) || worker_pool_threads(s->o.pool) == 1) {
        return false;
    }
    if (!seat->computing || seat->gradient != NULL) {
        return true;
    }
    if (take_buffer(s, seat) != OK) {
        return false; /* the push says so */
    }
    describe_job(s, seat);
    worker_pool_submit(s->o.pool, &seat->job);
    s->ahead++;
    return true;
}

static status compute(simulation *s, struct seat *seat)
{
    status result = OK;
    bool ahead = seat->gradient != NULL;
    if (!ahead) {
        TRY(take_buffer(s, seat));
        describe_job(s, seat);
    }
    s->ahead -= ahead;
    TRY(worker_pool_finish(s->o.pool, &seat->job));
done:
    return result;
}

/* ---- actions ------------------------------------------------------------------------------- */

static void perform_release(simulation *s, const struct server_action *a)
{
    struct seat *seat = &s->seats[a->worker];
    give_buffer_back(s, seat);
    seat->computing = true;
    seat->slot = a->slot;
    seat->version = a->version;
    s->o.released(s->o.context, a->worker);
}

static void perform_record(simulation *s, const struct server_action *a)
{
    struct push_record row = a->record;
    s->o.record(s->o.context, &row);
    if (a->taken) {
        row.queue_us = a->record.queue_us; /* its worker may have pushed again since */
    }
    tally_push(&s->tally, &row);
}

static status evaluate(simulation *s, unsigned slot)
{
    status result = OK;
    struct evaluation e;
    TRY(s->o.hooks.evaluate(s->o.hooks.context, s->slots[slot], &e));
    tally_evaluation(&s->tally, server_core_version(s->core), server_core_samples_used(s->core),
                     s->now, &e);
done:
    return result;
}

static status perform_evaluate(simulation *s, const struct server_action *a);

static status perform(simulation *s, struct server_actions actions)
{
    status result = OK;
    for (size_t i = 0; i < actions.count && result == OK; i++) {
        const struct server_action *a = &actions.at[i];
        switch (a->kind) {
        case SERVER_RELEASE:
            perform_release(s, a);
            break;
        case SERVER_RECORD:
            perform_record(s, a);
            break;
        case SERVER_EVALUATE:
            return perform_evaluate(s, a); /* the last of its event's: others may follow now */
        case SERVER_DIVERGED:
            result = error_set(ERROR_DIVERGED, __FILE__, __LINE__,
                               "the gradient or loss of worker %u is not finite (its push %llu, "
                               "computed at version %llu): lower lr, or damp stale gradients",
                               a->record.worker, (unsigned long long)a->record.sequence,
                               (unsigned long long)a->record.read_version);
            break;
        case SERVER_APPLIED:
        case SERVER_FINISHED:
            break;
        }
    }
    return result;
}

static status perform_evaluate(simulation *s, const struct server_action *a)
{
    status result = OK;
    if (s->o.evaluates) {
        TRY(evaluate(s, a->slot));
    }
    TRY(perform(s, server_core_evaluated(s->core)));
done:
    return result;
}

/* On the host's clock: who waits wants to know how long. */
static void show_progress(simulation *s)
{
    uint64_t now = clock_ns();
    if (s->o.hooks.progress == NULL || now < s->next_progress_ns) {
        return;
    }
    s->next_progress_ns = now + PROGRESS_MS * 1000000ULL;
    struct training_progress p = {.updates = server_core_version(s->core),
                                  .samples_used = server_core_samples_used(s->core),
                                  .total_samples = s->o.length.total_samples,
                                  .seconds = (double)(now - s->opened_ns) * 1e-9,
                                  .loss = s->tally.smooth_loss,
                                  .test_accuracy = s->tally.test_accuracy,
                                  .mean_staleness = tally_mean_staleness(&s->tally)};
    s->o.hooks.progress(s->o.hooks.context, &p);
}

static status after_event(simulation *s)
{
    status result = OK;
    const volatile sig_atomic_t *stop = s->o.hooks.stop;
    show_progress(s);
    if (s->checkpoint_samples > 0 && !server_core_ended(s->core) &&
        server_core_samples_used(s->core) >= s->next_checkpoint) {
        TRY(simulation_checkpoint(s));
    }
    if (stop != NULL && *stop != 0 && !server_core_ended(s->core)) {
        FAIL(STOPPED, "stopped on request after %llu updates",
             (unsigned long long)server_core_version(s->core));
    }
done:
    return result;
}

/* ---- events -------------------------------------------------------------------------------- */

status simulation_hello(simulation *s, unsigned w, double now)
{
    s->now = now;
    s->seats[w].sequence = 0;
    local_begin(&s->seats[w].local);
    return perform(s, server_core_hello(s->core, w));
}

status simulation_lost(simulation *s, unsigned w, double now)
{
    struct seat *seat = &s->seats[w];
    s->now = now;
    if (seat->computing && seat->gradient != NULL) {
        worker_pool_cancel(s->o.pool, &seat->job);
        s->ahead--;
    }
    seat->computing = false;
    status result = perform(s, server_core_lost(s->core, w));
    give_buffer_back(s, seat);
    return result;
}

status simulation_end(simulation *s)
{
    return perform(s, server_core_end(s->core));
}

/* The fresh gradient takes the host's time, and none of the cluster's. */
static status probe(simulation *s, const struct seat *seat, struct server_push *push)
{
    status result = OK;
    if (server_core_ended(s->core) || !probe_is_due(&s->probe, server_core_arrivals(s->core))) {
        return OK;
    }
    struct pool_job fresh = {.worker = push->worker,
                             .batch = seat->batch,
                             .parameters = s->slots[server_core_latest_slot(s->core)],
                             .gradient = s->probe.fresh};
    TRY(worker_pool_finish(s->o.pool, &fresh));
    push->probed = true;
    push->cosine = vector_cosine(s->count, seat->gradient, s->probe.fresh);
done:
    return result;
}

status simulation_push(simulation *s, unsigned w, const struct simulation_times *times)
{
    status result = OK;
    struct seat *seat = &s->seats[w];
    struct server_actions actions = {0};
    REQUIRE(seat->computing);
    s->now = times->at_seconds;
    TRY(compute(s, seat));
    seat->computing = false;
    struct server_push push = {.worker = w,
                               .sequence = seat->sequence,
                               .read_version = seat->version,
                               .batch = seat->batch,
                               .gradient = seat->gradient,
                               .samples = seat->job.stats.samples,
                               .loss = seat->job.stats.loss,
                               .pull_us = times->pull_us,
                               .compute_us = times->compute_us,
                               .queue_us = times->queue_us,
                               .at_seconds = times->at_seconds};
    TRY(probe(s, seat, &push));
    TRY(server_core_push(s->core, &push, &actions));
    seat->sequence++;
    seat->batch++; /* before its release, which draws the next step's time */
    TRY(perform(s, actions));
    TRY(after_event(s));
done:
    return result;
}

/* ---- questions, and the end ---------------------------------------------------------------- */

unsigned simulation_threads(const simulation *s)
{
    return worker_pool_threads(s->o.pool);
}

bool simulation_is_computing(const simulation *s, unsigned w)
{
    return s->seats[w].computing;
}

uint64_t simulation_batch(const simulation *s, unsigned w)
{
    return s->seats[w].batch;
}

unsigned simulation_steps(const simulation *s)
{
    return s->plan.outer.steps;
}

uint64_t simulation_sequence(const simulation *s, unsigned w)
{
    return s->seats[w].sequence;
}

uint64_t simulation_arrivals(const simulation *s)
{
    return server_core_arrivals(s->core);
}

bool simulation_ended(const simulation *s)
{
    return server_core_ended(s->core);
}

uint64_t simulation_version(const simulation *s)
{
    return server_core_version(s->core);
}

size_t simulation_parameter_bytes(const simulation *s)
{
    return s->count * sizeof(float);
}

unsigned simulation_buffers(const simulation *s)
{
    return s->buffers;
}

status simulation_evaluate_now(simulation *s, double now)
{
    s->now = now;
    return s->o.evaluates ? evaluate(s, server_core_latest_slot(s->core)) : OK;
}

status simulation_checkpoint(simulation *s)
{
    struct training_state now = {.updates = server_core_version(s->core),
                                 .samples = server_core_samples_used(s->core),
                                 .seconds = s->now,
                                 .parameters = s->slots[server_core_latest_slot(s->core)]};
    now.optimizer_state = server_core_optimizer_state(s->core, &now.optimizer_state_count);
    while (s->checkpoint_samples > 0 && s->next_checkpoint <= server_core_samples_used(s->core)) {
        s->next_checkpoint += s->checkpoint_samples;
    }
    if (!s->checkpoints) {
        return OK;
    }
    return s->o.hooks.checkpoint(s->o.hooks.context, &now);
}

void simulation_outcome(simulation *s, double seconds, struct training_outcome *out)
{
    struct sha256 sum;
    status held = simulation_end(s); /* what is held is recorded as dropped: no more */
    REQUIRE(held == OK);
    out->updates = server_core_version(s->core);
    out->samples_used = server_core_samples_used(s->core);
    out->samples_computed = server_core_samples_computed(s->core);
    out->train_seconds = seconds;
    sha256_begin(&sum);
    sha256_add(&sum, s->slots[server_core_latest_slot(s->core)], s->count * sizeof(float));
    sha256_end(&sum, out->parameters_sha256);
}
