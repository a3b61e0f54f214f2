/* pipeline_stage.c — see pipeline_stage.h. */
#include "sync/pipeline/pipeline_stage.h"

#include "base/clock.h"
#include "base/memory.h"

#include <string.h>

/* ---- opening ------------------------------------------------------------------------------------
 */

/* Rank 0 chooses the cuts, perhaps by measuring, and sends them to all ranks. */
static status make_plan(struct pipeline_stage *p, const options *o, communicator *c,
                        unsigned stages)
{
    status result = OK, own = OK;
    unsigned chosen[STAGE_MOST] = {0};
    const uint32_t samples = (uint32_t)options_integer(o, "batch") / p->micro_batches;
    int32_t code;
    if (c->rank == 0)
        own = stage_cuts_choose(o, stages, samples, chosen);
    TRY(communicator_barrier_long(c, "the model's cuts"));
    code = (int32_t)own;
    TRY(communicator_broadcast(c, &code, sizeof code, 0));
    TRY(own);
    if (code != OK) /* the same error on this rank, with its message */
        TRY(stage_cuts_choose(o, stages, samples, chosen));
    TRY(communicator_broadcast(c, chosen, sizeof chosen, 0));
    TRY(stage_plan_make(&p->plan, o, stages, chosen));
done:
    return result;
}

static status open_slots(struct pipeline_stage *p)
{
    status result = OK;
    size_t in = stage_input_count(p->stage), out = stage_output_count(p->stage);
    if (in > INT32_MAX || out > INT32_MAX)
        FAIL(ERROR_USAGE,
             "the activations between two stages, %zu floats, do not fit into one MPI message; use "
             "more micro_batches, or a smaller batch",
             in > out ? in : out);
    TRY(memory_new(&p->slots, p->slot_count, sizeof *p->slots, "a stage's messages"));
    for (struct pipeline_slot *s = p->slots; s < p->slots + p->slot_count; s++) {
        s->forward = s->backward = MPI_REQUEST_NULL;
        s->forward_notes_request = s->backward_notes_request = MPI_REQUEST_NULL;
    }
    for (struct pipeline_slot *s = p->slots; s < p->slots + p->slot_count; s++) {
        if (out > 0)
            TRY(memory_new(&s->output, out, sizeof(float), "a stage's messages"));
        if (in > 0)
            TRY(memory_new(&s->input_gradient, in, sizeof(float), "a stage's messages"));
    }
    if (out > 0)
        TRY(memory_new(&p->output_gradient, out, sizeof(float), "a stage's messages"));
done:
    return result;
}

/* The optimizer gets the layers of this slice only. */
static status open_optimizer(struct pipeline_stage *p, const options *o, const worker *w)
{
    status result = OK;
    size_t first = worker_slice_count(w), count = 0;
    struct optimizer_layers all = worker_layers(w);
    for (size_t i = 0; i < worker_slice_count(w); i++) {
        size_t at = worker_slice(w, i)->offset;
        if (at >= p->part->offset && at < p->part->offset + p->part->count) {
            first = i < first ? i : first;
            count++;
        }
    }
    struct optimizer_layers own = {all.at + first, count};
    TRY(optimizer_open(&p->optimizer, o, p->part->count));
    TRY(optimizer_set_layers(p->optimizer, &own));
done:
    return result;
}

static status open_parameters(struct pipeline_stage *p, const options *o, worker *w)
{
    status result = OK;
    size_t whole = worker_parameter_count(w), count = p->part->count;
    float *initial = NULL;
    TRY(memory_new(&initial, whole, sizeof(float), "parameters"));
    TRY(worker_initial_parameters(w, initial, whole));
    TRY(memory_new(&p->versions, p->version_count, sizeof *p->versions, "parameters"));
    for (unsigned i = 0; i < p->version_count; i++)
        TRY(memory_new(&p->versions[i], count, sizeof(float), "parameters"));
    memcpy(p->versions[0], initial + p->part->offset, count * sizeof(float));
    TRY(memory_new(&p->gradient, count + COMMUNICATOR_NOTES, sizeof(float), "a gradient"));
    TRY(open_optimizer(p, o, w));
    p->whole.count = whole;
    p->whole.worker = w;
    p->whole.parameters = initial; /* on rank 0; replica_collect writes to it */
    p->all = initial;
    initial = NULL;
    size_t states = optimizer_state_count(p->optimizer);
    if (p->link.c->rank == 0 && states > 0) {
        REQUIRE(states % count == 0);
        TRY(memory_new(&p->all_states, states / count * whole, sizeof(float), "optimizer state"));
    }
    if (p->link.c->rank != 0) {
        memory_free(p->all);
        p->all = p->whole.parameters = NULL;
    }
done:
    memory_free(initial);
    return result;
}

static status collect(replica *r);
static status view(replica *r, struct replica_view *out);
static const struct replica_kind replica_pipeline = {
    .name = "pipeline", .view = view, .collect = collect};

status pipeline_stage_open(struct pipeline_stage *p, const struct sync_trainer_options *o)
{
    status result = OK;
    communicator *c = o->communicator;
    unsigned stages;
    const struct about *about;

    TRY(registry_require(&pipeline_registry, options_text(o->settings, "pipeline"), &about));
    p->kind = (const struct pipeline_kind *)about;
    TRY(pipeline_shape(o->settings, &stages, &p->micro_batches));
    TRY(make_plan(p, o->settings, c, stages));
    size_t largest = 0;
    for (unsigned k = 0; k < stages; k++) {
        p->offsets[k] = p->plan.part[k].offset;
        p->counts[k] = p->plan.part[k].count;
        largest = p->counts[k] > largest ? p->counts[k] : largest;
    }
    TRY(link_open(&p->link, c, stages, largest + COMMUNICATOR_NOTES));
    p->part = &p->plan.part[p->link.stage];
    uint64_t units = p->kind->flushes ? p->micro_batches : UINT64_MAX;
    p->slot_count = (unsigned)p->kind->in_flight(p->link.stage, stages, units);
    /* The next version may overwrite the version that the oldest unit in flight has read. */
    p->version_count = p->kind->flushes || p->slot_count < 2 ? 2 : p->slot_count;
    struct stage_options how = {.settings = o->settings,
                                .part = p->part,
                                .replica = p->link.replica,
                                .replicas = p->link.replicas,
                                .micro_batches = p->micro_batches,
                                .slots = p->slot_count,
                                .recompute = options_flag(o->settings, "recompute")};
    TRY(stage_open(&p->stage, &how));
    TRY(open_slots(p));
    TRY(open_parameters(p, o->settings, o->worker));
    TRY(pace_open(&p->pace, o->settings, c->rank));
    p->stop = o->hooks.stop;
    p->whole.kind = &replica_pipeline;
    p->whole.c = c;
    p->whole.state = p;
    TRY(communicator_barrier_long(c, "the stages"));
done:
    return result;
}

/* Messages that are not complete still need their memory. */
static void abandon_messages(const struct pipeline_stage *p)
{
    for (unsigned i = 0; p->slots != NULL && i < p->slot_count; i++) {
        const struct pipeline_slot *s = &p->slots[i];
        if (s->forward != MPI_REQUEST_NULL || s->backward != MPI_REQUEST_NULL ||
            s->forward_notes_request != MPI_REQUEST_NULL ||
            s->backward_notes_request != MPI_REQUEST_NULL)
            ranks_abandon(p->link.c);
    }
}

void pipeline_stage_close(struct pipeline_stage *p)
{
    abandon_messages(p);
    passes_close(&p->passes);
    link_close(&p->link);
    if (ranks_abandoned()) /* else MPI may still read or write the memory until the process ends */
        return;
    stage_close(&p->stage);
    optimizer_close(&p->optimizer);
    pace_close(&p->pace);
    for (unsigned i = 0; p->slots != NULL && i < p->slot_count; i++) {
        memory_free(p->slots[i].output);
        memory_free(p->slots[i].input_gradient);
    }
    for (unsigned i = 0; p->versions != NULL && i < p->version_count; i++)
        memory_free(p->versions[i]);
    memory_free(p->slots);
    memory_free(p->versions);
    memory_free(p->gradient);
    memory_free(p->output_gradient);
    memory_free(p->all);
    memory_free(p->all_states);
}

/* ---- the whole vector, on rank 0 ----------------------------------------------------------------
 */

static status collect(replica *r)
{
    status result = OK;
    struct pipeline_stage *p = r->state;
    const size_t count = p->part->count, states = optimizer_state_count(p->optimizer) / count;
    TRY(link_collect(&p->link, pipeline_stage_parameters(p), count, p->all, p->offsets, p->counts));
    for (size_t i = 0; i < states; i++) {
        TRY(link_collect(&p->link, optimizer_state(p->optimizer) + i * count, count,
                         p->all_states != NULL ? p->all_states + i * r->count : NULL, p->offsets,
                         p->counts));
    }
done:
    return result;
}

static status view(replica *r, struct replica_view *out)
{
    const struct pipeline_stage *p = r->state;
    const size_t states = optimizer_state_count(p->optimizer) / p->part->count;
    *out = (struct replica_view){.parameters = p->all,
                                 .optimizer_state = p->all_states,
                                 .optimizer_state_count = states * r->count};
    return OK;
}

/* ---- one unit -----------------------------------------------------------------------------------
 */

/* Sleeps so that this stage's share of a step has the length that the pace requires: a third for
 * forwards and two thirds for backwards, like their arithmetic. */
static void keep_pace(const struct pipeline_stage *p, uint64_t batch, uint64_t begun_ns,
                      double thirds)
{
    uint64_t measured = clock_ns() - begun_ns, step = pace_duration(p->pace, batch, 0);
    uint64_t wanted = step > 0 ? (uint64_t)((double)step * thirds / 3 / p->micro_batches)
                               : pace_duration(p->pace, batch, measured);
    if (wanted > measured)
        clock_sleep_until_stop(begun_ns + wanted, p->stop);
}

/* Ends a pass and returns its time. A pass without computing (p->idle) is not recorded. */
static uint64_t note_pass(struct pipeline_stage *p, bool backward, uint64_t unit, uint64_t begun_ns)
{
    const uint64_t took = clock_ns() - begun_ns;
    const bool flushes = p->kind->flushes;
    if (!p->idle)
        passes_add(&p->passes, backward, (flushes ? p->version : unit) + 1,
                   flushes ? (uint32_t)unit : 0, p->version, took);
    return took;
}

const float *pipeline_stage_parameters(const struct pipeline_stage *p)
{
    return p->versions[p->version % p->version_count];
}

status pipeline_stage_forward(struct pipeline_stage *p, uint64_t unit, uint64_t batch,
                              uint32_t micro)
{
    status result = OK;
    const unsigned number = (unsigned)(unit % p->slot_count);
    struct pipeline_slot *s = &p->slots[number];
    float loss = 0;

    TRY(link_wait_sent(&p->link, LINK_FORWARD, &s->forward));
    if (p->link.stage > 0)
        TRY(link_receive(&p->link, LINK_FORWARD, stage_input(p->stage, number),
                         stage_input_count(p->stage)));
    uint64_t begun = clock_ns();
    s->version = p->version;
    s->parameters = pipeline_stage_parameters(p);
    if (!p->idle) {
        TRY(stage_forward(p->stage, number, batch, micro, s->parameters, s->output, &loss));
        keep_pace(p, batch, begun, 1);
    }
    s->loss = loss;
    p->loss += loss;
    p->forward_ns += note_pass(p, false, unit, begun);
    if (s->output != NULL)
        TRY(link_send(&p->link, LINK_FORWARD, s->output, stage_output_count(p->stage),
                      &s->forward));
done:
    return result;
}

status pipeline_stage_backward(struct pipeline_stage *p, uint64_t unit, uint64_t batch, bool add)
{
    status result = OK;
    const unsigned number = (unsigned)(unit % p->slot_count);
    struct pipeline_slot *s = &p->slots[number];

    TRY(link_wait_sent(&p->link, LINK_BACKWARD, &s->backward));
    if (p->output_gradient != NULL)
        TRY(link_receive(&p->link, LINK_BACKWARD, p->output_gradient,
                         stage_output_count(p->stage)));
    uint64_t begun = clock_ns();
    if (!p->idle) {
        TRY(stage_backward(p->stage, number, p->output_gradient, p->gradient, add,
                           s->input_gradient));
        keep_pace(p, batch, begun, 2);
    }
    p->backward_ns += note_pass(p, true, unit, begun);
    if (s->input_gradient != NULL)
        TRY(link_send(&p->link, LINK_BACKWARD, s->input_gradient, stage_input_count(p->stage),
                      &s->backward));
done:
    return result;
}

status pipeline_stage_wait_sent(struct pipeline_stage *p)
{
    status result = OK;
    for (unsigned i = 0; i < p->slot_count; i++) {
        TRY(link_wait_sent(&p->link, LINK_FORWARD, &p->slots[i].forward));
        TRY(link_wait_sent(&p->link, LINK_BACKWARD, &p->slots[i].backward));
        TRY(link_wait_sent(&p->link, LINK_FORWARD, &p->slots[i].forward_notes_request));
        TRY(link_wait_sent(&p->link, LINK_BACKWARD, &p->slots[i].backward_notes_request));
    }
done:
    return result;
}

void pipeline_stage_apply(struct pipeline_stage *p, double lr, double epoch, const float *read_at,
                          struct optimizer_pass *pass)
{
    float *next = p->versions[(p->version + 1) % p->version_count];
    optimizer_set_epoch(p->optimizer, epoch);
    optimizer_apply(p->optimizer, pipeline_stage_parameters(p), p->gradient, 1.0 / p->micro_batches,
                    lr, read_at, next, pass);
}

struct pipeline_memory pipeline_stage_memory(const struct pipeline_stage *p)
{
    const uint64_t count = p->part->count, word = sizeof(float);
    uint64_t in = stage_input_count(p->stage), out = stage_output_count(p->stage);
    return (struct pipeline_memory){.parameters = 2 * count * word, /* this version and the next */
                                    .stashed = (p->version_count - 2) * count * word,
                                    .optimizer = 2 * optimizer_state_count(p->optimizer) *
                                                 word,            /* both versions */
                                    .gradient = 2 * count * word, /* a micro-batch's and the sum */
                                    .activations = stage_activation_bytes(p->stage),
                                    .messages = (p->slot_count * (in + out) + out) * word};
}
