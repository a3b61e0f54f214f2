/* replica.c — the choice of the kind, and replica_host: in host memory. */
#include "sync/replica.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/shared_memory.h"
#include "sync/compression/compression_exchange.h"
#include "worker/optimizer/optimizer.h"

#include <string.h>

status replica_open_kind(replica **out, const struct replica_kind *kind, const options *o,
                         worker *w, communicator *c)
{
    status result = OK;
    replica *r = NULL;

    *out = NULL;
    TRY(memory_new(&r, 1, sizeof *r, "the replica"));
    r->worker = w;
    r->c = c;
    r->count = worker_parameter_count(w);
    r->delay = (unsigned)options_integer(o, "delay");
    r->kind = kind;
    TRY(vector_queue_open(&r->waiting, r->delay, r->count, "delayed gradients"));
    TRY(delay_correction_open(&r->correction, o, r->count));
    TRY(kind->open(r, o));
    *out = r;
    r = NULL;
done:
    replica_close(&r);
    return result;
}

status replica_may_be_on_gpu(bool *out, const options *o, const worker *w)
{
    status result = OK;
    struct optimizer_rule rule;
    TRY(optimizer_rule_of(o, &rule));
    *out = worker_place(w) != NULL && rule.form != OPTIMIZER_HOST_ONLY &&
           !local_sgd_or_growing(o) && options_integer(o, "delay") == 0;
done:
    return result;
}

/* If the exchange is in host memory, the replica is there too. On the GPU it would save nothing: in
 * both places one vector per step is copied to the GPU and one back. */
static status choose(const struct replica_kind **out, const options *o, const worker *w,
                     const communicator *c)
{
    status result = OK;
    struct optimizer_rule rule;
    bool may_be_on_gpu;
    TRY(optimizer_rule_of(o, &rule));
    TRY(replica_may_be_on_gpu(&may_be_on_gpu, o, w));
    const struct compression_kind *codes;
    if (c->kind->on_device) /* fails with key compression: this kind cannot send codes */
        TRY(compression_chosen(&codes, o, c));
    const bool late = options_integer(o, "delay") > 0;
    if (c->kind->on_device && late) {
        FAIL(ERROR_USAGE,
             "delay=%s does not work with communicator=%s, whose gradients stay on the GPU; use "
             "communicator=mpi",
             options_value(o, "delay"), c->kind->about.name);
    }
    const char *key = optimizer_rule_key(&rule);
    if (c->kind->on_device && !may_be_on_gpu) {
        FAIL(ERROR_USAGE,
             "communicator=%s keeps gradients on the GPU, but the update with %s=%s%s runs in host "
             "memory; use communicator=auto",
             c->kind->about.name, key, options_value(o, key),
             local_sgd_or_growing(o) ? " and local_steps or decay=batch" : "");
    }
    const bool shares = communicator_shares(c) && worker_place(w) == NULL && !late &&
                        !local_sgd_or_growing(o) && !rule.by_layer && rule.clip_norm == 0 &&
                        strcmp(options_text(o, "overlap"), "yes") != 0;
    const bool on_gpu = may_be_on_gpu && (c->size == 1 || c->kind->on_device);
    *out = on_gpu ? &replica_device : shares ? &replica_shared : &replica_host;
done:
    return result;
}

/* overlap=auto: a trial decides where overlap may gain time (communicator_overlap_may_gain);
 * elsewhere overlap is off. With auto and yes, the first step with overlap shows whether any part
 * is final before the gradient is whole. If no rank has such a part, overlap goes off. */
static status choose_overlap(replica *r, const options *o)
{
    status result = OK;
    const char *wanted = options_text(o, "overlap");
    const bool yes = strcmp(wanted, "yes") == 0;
    if (r->kind == &replica_device) { /* device_open has set r->overlaps */
        if (yes && !r->overlaps)
            FAIL(ERROR_USAGE,
                 "overlap=yes: one rank on a GPU exchanges nothing that could overlap; "
                 "use overlap=auto");
        return OK;
    }
    r->overlaps = yes;
    if (strcmp(wanted, "auto") == 0 && r->kind == &replica_host && !r->sends_whole &&
        communicator_overlap_may_gain(r->c) && (r->delay > 0 || r->count > r->c->bucket)) {
        TRY(memory_new(&r->trial, 1, sizeof *r->trial, "the replica"));
        r->overlaps = autotune_overlaps(r->trial);
    }
    r->checks_early = (yes || r->trial != NULL) && r->delay == 0;
done:
    return result;
}

status replica_open(replica **out, const options *o, worker *w, communicator *c)
{
    status result = OK;
    const struct replica_kind *kind = NULL;
    *out = NULL;
    TRY(choose(&kind, o, w, c));
    TRY(replica_open_kind(out, kind, o, w, c));
    TRY(choose_overlap(*out, o));
done:
    if (result != OK)
        replica_close(out);
    return result;
}

void replica_close(replica **r)
{
    if (*r != NULL) {
        if ((*r)->state != NULL)
            (*r)->kind->close(*r);
        vector_queue_close(&(*r)->waiting);
        delay_correction_close(&(*r)->correction);
        memory_free((*r)->trial);
        memory_free(*r);
        *r = NULL;
    }
}

static void advance_exchange(void *context, size_t final_from)
{
    communicator_advance(context, final_from);
}

void replica_send(replica *r)
{
    r->kind->send(r);
}

status replica_gradient(replica *r, uint64_t batch, struct step_stats *stats)
{
    const struct gradient_watch watch = {.context = r->c, .between = advance_exchange};
    r->began_ns = r->trial != NULL ? clock_ns() : 0;
    if (r->overlaps && r->delay == 0) {
        communicator_begin(r->c, r->gradient, r->count);
        r->exchange_begun = true;
    }
    return worker_gradient_watched(r->worker, r->parameters, batch, r->gradient,
                                   r->exchange_begun && r->delay == 0 ? &watch : NULL, stats);
}

status replica_gradients(replica *r, uint64_t first, unsigned batches, struct step_stats *stats)
{
    status result = OK;
    struct step_stats one;
    if (r->kind->gradients != NULL)
        return r->kind->gradients(r, first, batches, stats);
    *stats = (struct step_stats){0};
    for (unsigned i = 0; i < batches; i++) {
        TRY(replica_gradient(r, first + i, &one));
        replica_accumulate(r, i, batches);
        step_stats_add(stats, &one);
        stats->loss += one.loss / (float)batches;
    }
done:
    return result;
}

/* After the step's exchange. `votes` is the mean of all ranks' votes, the same on all ranks. */
static void autotune_next(replica *r, float votes)
{
    if (!autotune_votes(r->trial)) {
        autotune_took(r->trial, clock_ns() - r->began_ns);
        r->overlaps = autotune_overlaps(r->trial);
        return;
    }
    r->overlaps = votes > 0.5f;
    log_debug("overlap=%s: a step with overlap takes %.3f times as long as one without",
              r->overlaps ? "yes" : "no", (double)r->trial->ratio);
    memory_free(r->trial);
    r->trial = NULL;
}

/* No rank has sent a part before its gradient was complete. */
static void turn_overlap_off(replica *r)
{
    log_debug("overlap=no: no part of bucket_kib is final before the gradient is complete");
    r->overlaps = false;
    memory_free(r->trial);
    r->trial = NULL;
}

status replica_exchange(replica *r, float notes[COMMUNICATOR_NOTES])
{
    status result = OK;
    enum { VOTE = COMMUNICATOR_NOTES - 1 };
    const bool checks = r->checks_early && r->exchange_begun;
    if (checks)
        notes[VOTE] = communicator_began_early(r->c);
    else if (r->trial != NULL)
        notes[VOTE] = autotune_votes(r->trial) ? autotune_vote(r->trial) : 0;
    TRY(r->kind->exchange(r, notes));
    if (r->delay > 0)
        vector_queue_push(&r->waiting, r->sent);
    r->checks_early = r->checks_early && !checks;
    if (checks && notes[VOTE] == 0)
        turn_overlap_off(r);
    else if (r->trial != NULL)
        autotune_next(r, notes[VOTE]);
done:
    return result;
}

status replica_apply(replica *r, double lr, bool *finite)
{
    return r->kind->apply(r, lr, finite);
}

void replica_take(replica *r)
{
    r->taken++;
    if (r->delay > 0)
        vector_queue_pop(&r->waiting);
}

status replica_collect(replica *r)
{
    return r->kind->collect != NULL ? r->kind->collect(r) : OK;
}

status replica_view(replica *r, struct replica_view *out)
{
    status result = OK;
    TRY(r->kind->view(r, out));
    out->vector_count = 0;
    for (unsigned i = 0; i < r->waiting.count; i++)
        out->vectors[out->vector_count++] = r->waiting.at[i];
    out->waiting = out->vector_count;
    for (unsigned i = 0; i < r->correction.updates.count; i++)
        out->vectors[out->vector_count++] = r->correction.updates.at[i];
done:
    return result;
}

status replica_set(replica *r, const struct replica_view *from, uint64_t updates)
{
    for (size_t i = 0; i < from->vector_count; i++)
        vector_queue_push(i < from->waiting ? &r->waiting : &r->correction.updates,
                          from->vectors[i]);
    return r->kind->set(r, from, updates);
}

size_t replica_own_count(const replica *r)
{
    return r->kind->own_count != NULL ? r->kind->own_count(r) : 0;
}

void replica_own_read(const replica *r, float *out)
{
    if (r->kind->own_read != NULL)
        r->kind->own_read(r, out);
}

void replica_own_write(replica *r, const float *in)
{
    if (r->kind->own_write != NULL)
        r->kind->own_write(r, in);
}

void replica_accumulate(replica *r, unsigned index, unsigned count)
{
    if (count > 1)
        r->kind->accumulate(r, index, count);
}

unsigned replica_round_most(const replica *r)
{
    return r->kind->round != NULL ? worker_resident_steps(r->worker) : 0;
}

status replica_make_round(replica *r, struct replica_round *round)
{
    return r->kind->round(r, round);
}

status replica_average(replica *r, enum local_sgd_momentum momentum,
                       float notes[COMMUNICATOR_NOTES])
{
    return r->kind->average(r, momentum, notes);
}

/* ---- replica_host -------------------------------------------------------------------------------
 */

struct replica_host {
    optimizer *optimizer;
    compression *compression; /* NULL: none */
    float *parameters[2];     /* [current], and the target of the next update */
    float *computed;          /* key delay: target of the backward pass; else NULL */
    unsigned current;
    double factor;     /* of the exchanged gradient, for the next update */
    float *sum;        /* NULL: an update has one gradient */
    bool keeps_state;  /* local_momentum=keep */
    bool resets_state; /* local_momentum=reset */
};

static void host_close(replica *r)
{
    struct replica_host *h = r->state;
    optimizer_close(&h->optimizer);
    compression_leave(h->compression);
    compression_close(&h->compression);
    shared_memory_free(h->parameters[0]);
    shared_memory_free(h->parameters[1]);
    shared_memory_free(h->computed);
    memory_free(h->sum);
    memory_free(h);
    r->state = NULL;
}

/* Each slice of the parameters is one tensor. */
static status open_compression(compression **out, const struct compression_kind *kind,
                               const options *o, const replica *r)
{
    status result = OK;
    const size_t slices = worker_slice_count(r->worker);
    size_t *ends = NULL;

    TRY(memory_new(&ends, slices, sizeof *ends, "the compression"));
    for (size_t i = 0; i < slices; i++) {
        const struct parameter_slice *slice = worker_slice(r->worker, i);
        ends[i] = slice->offset + slice->count;
    }
    TRY(compression_open(out, kind, o, r->count, ends, slices));
    TRY(compression_join(*out, r->c));
done:
    memory_free(ends);
    return result;
}

static status host_open(replica *r, const options *o)
{
    status result = OK;
    struct replica_host *h = NULL;
    const struct compression_kind *kind = NULL;
    TRY(compression_chosen(&kind, o, r->c));
    TRY(memory_new(&h, 1, sizeof *h, "the replica"));
    r->state = h;
    h->factor = 1;
    if (kind != NULL)
        TRY(open_compression(&h->compression, kind, o, r));
    r->sends_whole = kind != NULL || local_sgd_or_growing(o) || worker_joint_sums(r->worker) > 0;
    if (local_sgd_or_growing(o))
        TRY(memory_new(&h->sum, r->count, sizeof(float), "a sum of gradients"));
    h->keeps_state = r->c->size > 1 && local_sgd_keeps_state(o);
    h->resets_state = local_sgd_resets_state(o);
    struct optimizer_layers layers = worker_layers(r->worker);
    TRY(optimizer_open(&h->optimizer, o, r->count));
    TRY(optimizer_set_layers(h->optimizer, &layers));
    for (unsigned i = 0; i < 2; i++)
        TRY(shared_memory_new(&h->parameters[i], r->count, "parameters", OTHERS_READ));
    TRY(worker_initial_parameters(r->worker, h->parameters[0], r->count));
    r->parameters = h->parameters[0];
    r->sent = communicator_buffer(r->c);
    if (r->delay > 0)
        TRY(shared_memory_new(&h->computed, r->count, "the gradient", OTHERS_WRITE));
    r->gradient = r->delay > 0 ? h->computed : r->sent;
done:
    return result;
}

static void host_send(replica *r)
{
    memcpy(r->sent, r->gradient, r->count * sizeof(float));
    if (r->overlaps) {
        communicator_begin(r->c, r->sent, r->count);
        communicator_advance(r->c, 0);
        r->exchange_begun = true;
    }
}

/* The notes are sent in the message of the gradient, after its last value. */
static status host_exchange(replica *r, float notes[COMMUNICATOR_NOTES])
{
    status result = OK;
    struct replica_host *h = r->state;
    const size_t bytes = COMMUNICATOR_NOTES * sizeof *notes;
    r->hidden_ns = 0;
    if (h->compression != NULL) {
        compression_set_epoch(h->compression, r->sent_epoch);
        return compression_mean(h->compression, r->c, r->sent, notes);
    }
    memcpy(r->sent + r->count, notes, bytes);
    if (r->exchange_begun)
        TRY(communicator_finish(r->c, COMMUNICATOR_NOTES, &r->hidden_ns));
    else if (r->delay > 0) /* a complete mean, because it waits in a queue or in a checkpoint */
        TRY(communicator_allreduce_mean(r->c, r->sent, r->count + COMMUNICATOR_NOTES));
    else
        TRY(communicator_allreduce_scaled(r->c, r->sent, r->count, &h->factor));
    memcpy(notes, r->sent + r->count, bytes);
done:
    r->exchange_begun = false;
    return result;
}

/* Writes to the other buffer, so that a failed update leaves θ unchanged. */
static status host_apply(replica *r, double lr, bool *finite)
{
    struct replica_host *h = r->state;
    struct optimizer_pass pass;
    const float *mean = r->delay > 0 ? r->waiting.at[0] : r->sent;
    float *next = h->parameters[1 - h->current];
    optimizer_set_epoch(h->optimizer, r->epoch);
    optimizer_apply(h->optimizer, r->parameters, mean, h->factor, lr, NULL, next, &pass);
    h->factor = 1;
    *finite = pass.finite;
    if (pass.finite) {
        delay_correction_apply(&r->correction, r->parameters, next);
        h->current = 1 - h->current;
        r->parameters = next;
    }
    return OK;
}

static status host_view(replica *r, struct replica_view *out)
{
    const struct replica_host *h = r->state;
    *out = (struct replica_view){.parameters = r->parameters,
                                 .optimizer_state = optimizer_state(h->optimizer),
                                 .optimizer_state_count = optimizer_state_count(h->optimizer)};
    return OK;
}

/* A reset state is all 0: the checkpoint was written at an averaging that restarted the optimizer.
 */
static status host_set(replica *r, const struct replica_view *from, uint64_t updates)
{
    struct replica_host *h = r->state;
    const float *state = from->optimizer_state;
    memcpy(r->parameters, from->parameters, r->count * sizeof(float));
    if (state != NULL)
        optimizer_set_state(h->optimizer, state);
    const bool restarts = h->resets_state && state != NULL &&
                          vector_sum_of_squares(optimizer_state_count(h->optimizer), state) == 0;
    optimizer_set_updates(h->optimizer, restarts ? 0 : updates);
    return OK;
}

static size_t host_own_count(const replica *r)
{
    const struct replica_host *h = r->state;
    return (h->compression != NULL ? compression_state_count(h->compression) : 0) +
           (h->keeps_state ? optimizer_state_count(h->optimizer) : 0);
}

static void host_own_read(const replica *r, float *out)
{
    const struct replica_host *h = r->state;
    if (h->compression != NULL) {
        compression_state_read(h->compression, out);
        out += compression_state_count(h->compression);
    }
    if (h->keeps_state && optimizer_state_count(h->optimizer) > 0)
        memcpy(out, optimizer_state(h->optimizer),
               optimizer_state_count(h->optimizer) * sizeof *out);
}

static void host_own_write(replica *r, const float *in)
{
    struct replica_host *h = r->state;
    if (h->compression != NULL) {
        compression_state_write(h->compression, in);
        in += compression_state_count(h->compression);
    }
    if (h->keeps_state)
        optimizer_set_state(h->optimizer, in);
}

static void host_accumulate(replica *r, unsigned index, unsigned count)
{
    const struct replica_host *h = r->state;
    for (size_t i = 0; i < r->count; i++)
        h->sum[i] = index == 0 ? r->gradient[i] : h->sum[i] + r->gradient[i];
    if (index + 1 == count)
        vector_multiply(r->count, 1.0f / (float)count, h->sum, r->gradient);
}

/* vector ← its mean over ranks; uses the gradient's memory for the exchange. */
static status mean_of(replica *r, float *vector, float notes[COMMUNICATOR_NOTES])
{
    status result = OK;
    const size_t bytes = COMMUNICATOR_NOTES * sizeof *notes;
    memcpy(r->gradient, vector, r->count * sizeof *vector);
    memcpy(r->gradient + r->count, notes, bytes);
    TRY(communicator_allreduce_mean(r->c, r->gradient, r->count + COMMUNICATOR_NOTES));
    memcpy(vector, r->gradient, r->count * sizeof *vector);
    memcpy(notes, r->gradient + r->count, bytes);
done:
    return result;
}

static status host_average(replica *r, enum local_sgd_momentum momentum,
                           float notes[COMMUNICATOR_NOTES])
{
    status result = OK;
    struct replica_host *h = r->state;
    float *state = optimizer_state_in_place(h->optimizer), unused[COMMUNICATOR_NOTES] = {0};
    const size_t count = optimizer_state_count(h->optimizer);
    TRY(mean_of(r, h->parameters[h->current], notes));
    for (size_t at = 0; momentum == LOCAL_SGD_AVERAGE && at < count; at += r->count)
        TRY(mean_of(r, state + at, unused));
    if (momentum == LOCAL_SGD_RESET && count > 0) {
        memset(state, 0, count * sizeof *state);
        optimizer_set_updates(h->optimizer, 0);
    }
done:
    return result;
}

const struct replica_kind replica_host = {
    .name = "host",
    .open = host_open,
    .close = host_close,
    .send = host_send,
    .exchange = host_exchange,
    .apply = host_apply,
    .view = host_view,
    .set = host_set,
    .own_count = host_own_count,
    .own_read = host_own_read,
    .own_write = host_own_write,
    .accumulate = host_accumulate,
    .average = host_average,
};
