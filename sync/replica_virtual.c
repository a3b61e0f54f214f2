/* replica_virtual.c — see replica_virtual.h. A replica_host holds the state that ranks share. */
#include "sync/replica_virtual.h"

#include "base/memory.h"
#include "base/shared_memory.h"
#include "worker/optimizer/optimizer.h"

#include <string.h>

/* One rank's state between two averagings (local_sgd.h). */
struct own {
    optimizer *optimizer;
    float *parameters, *gradient;
};

/* The mean gradient of one rank over `batches` batches, summed in their order. */
struct rank_job {
    struct gradient_job job; /* first, because its `compute` casts it back */
    unsigned batches;
    float *next; /* decay=batch: the gradient to add */
};

struct timing { /* of one rank's gradient, in ns on the virtual clock */
    float loss;
    uint64_t compute_ns;
    uint64_t waited_ns; /* at the barrier and in the allreduce after it */
};

struct position { /* of one rank, in ns after virtual_ranks.now_ns, the end of the last allreduce */
    uint64_t computed_ns; /* its last gradient */
    uint64_t sent_ns;     /* the gradient that is under way */
};

struct virtual
{
    struct virtual_ranks *ranks;
    uint64_t updates;      /* applied */
    struct own *own;       /* [ranks] with local_steps; else NULL */
    bool differ, differed; /* whether ranks' parameters differ now; differed at any time */
    /* Rank r's job is at index r mod window. */
    unsigned window;
    struct rank_job *jobs; /* [window] */
    float *gradients;      /* [window][count]; with decay=batch twice, then each `next` */
    /* Gradient number i of a rank is at index i mod (delay + 1). */
    uint64_t computed, exchanged; /* gradients of each rank */
    struct timing *timing;        /* [delay + 1][ranks] */
    struct position *positions;   /* [ranks] */
};

/* [ranks], of gradient number `number` of each rank. */
static struct timing *timing_of(const replica *r, uint64_t number)
{
    const struct virtual *v = r->virtual;
    return v->timing + number % (r->delay + 1) * v->ranks->count;
}

static void virtual_close(replica *r)
{
    struct virtual *v = r->virtual;
    for (unsigned i = 0; v->jobs != NULL && i < v->window; i++)
        gradient_pool_cancel(v->ranks->pool, &v->jobs[i].job);
    for (unsigned rank = 0; v->own != NULL && rank < v->ranks->count; rank++) {
        optimizer_close(&v->own[rank].optimizer);
        memory_free(v->own[rank].parameters);
        memory_free(v->own[rank].gradient);
    }
    memory_free(v->own);
    memory_free(v->jobs);
    shared_memory_free(v->gradients);
    memory_free(v->timing);
    memory_free(v->positions);
    memory_free(v);
    r->virtual = NULL;
    replica_host.close(r);
}

static status open_own(struct virtual *v, const replica *r, const options *o)
{
    status result = OK;
    struct optimizer_layers layers = worker_layers(r->worker);
    TRY(memory_new(&v->own, v->ranks->count, sizeof *v->own, "virtual ranks"));
    for (struct own *own = v->own; own < v->own + v->ranks->count; own++) {
        TRY(optimizer_open(&own->optimizer, o, r->count));
        TRY(optimizer_set_layers(own->optimizer, &layers));
        TRY(memory_new(&own->parameters, r->count, sizeof(float), "a virtual rank's parameters"));
        TRY(memory_new(&own->gradient, r->count, sizeof(float), "a virtual rank's gradient"));
    }
done:
    return result;
}

static status open_ranks(struct virtual *v, const replica *r, const options *o)
{
    status result = OK;
    const bool local = local_sgd_steps_of(o) > 1, grows = local_sgd_or_growing(o) && !local;
    v->window = 2 * gradient_pool_threads(v->ranks->pool) + 1;
    TRY(memory_new(&v->timing, (r->delay + 1) * (size_t)v->ranks->count, sizeof *v->timing,
                   "times of virtual ranks"));
    TRY(memory_new(&v->positions, v->ranks->count, sizeof *v->positions, "times of virtual ranks"));
    TRY(memory_new(&v->jobs, v->window, sizeof *v->jobs, "gradients of virtual ranks"));
    TRY(shared_memory_new(&v->gradients, (grows ? 2 : 1) * v->window * r->count,
                          "gradients of virtual ranks", OTHERS_WRITE));
    for (unsigned i = 0; grows && i < v->window; i++)
        v->jobs[i].next = v->gradients + (v->window + i) * r->count;
    if (local)
        TRY(open_own(v, r, o));
done:
    return result;
}

/* ---- gradients ------------------------------------------------------------------------------ */

/* Copies the common parameters to each rank. The first time it also copies the optimizer's state.
 */
static void separate_ranks(replica *r)
{
    struct virtual *v = r->virtual;
    struct replica_view common;
    (void)replica_host.view(r, &common); /* does not fail */
    for (struct own *own = v->own; own < v->own + v->ranks->count; own++) {
        memcpy(own->parameters, common.parameters, r->count * sizeof(float));
        if (!v->differed) {
            optimizer_set_state(own->optimizer, common.optimizer_state);
            optimizer_set_updates(own->optimizer, v->updates);
        }
    }
    v->differ = v->differed = true;
}

static void add(size_t count, float *sum, const float *more, bool first)
{
    if (first)
        memcpy(sum, more, count * sizeof(float));
    else
        vector_add(count, more, sum);
}

/* job->stats.loss is then the mean over the batches. */
static status rank_gradient(struct gradient_job *job, worker *w, worker_shard *shard)
{
    status result = OK;
    const struct rank_job *k = (const struct rank_job *)job;
    const size_t count = worker_parameter_count(w);
    float loss = 0;
    for (unsigned i = 0; i < k->batches; i++) {
        TRY(worker_gradient_as(w, shard, job->parameters, job->batch + i,
                               i == 0 ? job->gradient : k->next, &job->stats));
        loss += job->stats.loss / (float)k->batches;
        if (i > 0)
            vector_add(count, k->next, job->gradient);
    }
    if (k->batches > 1)
        vector_multiply(count, 1.0f / (float)k->batches, job->gradient, job->gradient);
    job->stats.loss = loss;
done:
    return result;
}

static void submit(replica *r, unsigned rank, uint64_t first, unsigned batches)
{
    struct virtual *v = r->virtual;
    const unsigned place = rank % v->window;
    struct rank_job *k = &v->jobs[place];
    k->batches = batches;
    k->job.compute = rank_gradient;
    k->job.worker = rank;
    k->job.batch = first;
    k->job.parameters = v->differ ? v->own[rank].parameters : r->parameters;
    k->job.gradient = v->differ ? v->own[rank].gradient : v->gradients + place * r->count;
    gradient_pool_submit(v->ranks->pool, &k->job);
}

static void add_compute_time(struct virtual *v, struct timing *timing, uint64_t first,
                             unsigned batches)
{
    for (unsigned rank = 0; rank < v->ranks->count; rank++) {
        struct timing *t = &timing[rank];
        t->compute_ns = t->waited_ns = 0;
        const uint64_t begins_ns = v->ranks->now_ns + v->positions[rank].computed_ns;
        for (unsigned i = 0; i < batches; i++)
            t->compute_ns +=
                cluster_step_ns(&v->ranks->cluster, rank, first + i, begins_ns + t->compute_ns);
        v->positions[rank].computed_ns += t->compute_ns;
    }
}

/* r->gradient ← the sum over ranks, in rank order: the same bits as reduce_mean_ordered, without
 * all gradients in memory. Between averagings (local_steps): each rank's own gradient. */
static status virtual_gradients(replica *r, uint64_t first, unsigned batches,
                                struct step_stats *stats)
{
    status result = OK;
    struct virtual *v = r->virtual;
    const unsigned ranks = v->ranks->count, ahead = v->window - 1;
    struct timing *timing = timing_of(r, v->computed++);
    float loss = 0;
    if (r->local_update && !v->differ)
        separate_ranks(r);
    for (unsigned rank = 0; rank < ahead && rank < ranks; rank++)
        submit(r, rank, first, batches);
    for (unsigned rank = 0; rank < ranks; rank++) {
        if (rank + ahead < ranks)
            submit(r, rank + ahead, first, batches);
        struct gradient_job *job = &v->jobs[rank % v->window].job;
        TRY(gradient_pool_finish(v->ranks->pool, job));
        if (!v->differ)
            add(r->count, r->gradient, job->gradient, rank == 0);
        timing[rank].loss = job->stats.loss;
        loss += job->stats.loss;
    }
    add_compute_time(v, timing, first, batches);
    *stats = (struct step_stats){.loss = loss / (float)ranks};
done:
    return result;
}

/* ---- exchange and update -------------------------------------------------------------------- */

/* With a delay: the exchange of the gradient computed last begins, and the next gradient is
 * computed meanwhile. */
static void virtual_send(replica *r)
{
    const struct virtual *v = r->virtual;
    replica_host.send(r);
    for (struct position *p = v->positions; p < v->positions + v->ranks->count; p++)
        p->sent_ns = p->computed_ns;
}

/* Advances the clock to the end of the allreduce of `vectors` vectors, which begins when the
 * slowest rank has sent. With a delay, a rank that still computes its next gradient at that time
 * does not wait. */
static void add_exchange_time(replica *r, size_t vectors)
{
    struct virtual *v = r->virtual;
    struct virtual_ranks *ranks = v->ranks;
    struct timing *timing = timing_of(r, v->exchanged++);
    uint64_t ends = 0;
    for (unsigned rank = 0; rank < ranks->count; rank++) {
        struct position *p = &v->positions[rank];
        p->sent_ns = r->delay > 0 ? p->sent_ns : p->computed_ns;
        ends = p->sent_ns > ends ? p->sent_ns : ends;
    }
    ends += vectors * cluster_allreduce_ns(&ranks->cluster, ranks->count, r->count * sizeof(float));
    for (unsigned rank = 0; rank < ranks->count; rank++) {
        struct position *p = &v->positions[rank];
        timing[rank].waited_ns = p->computed_ns < ends ? ends - p->computed_ns : 0;
        p->computed_ns = p->computed_ns < ends ? 0 : p->computed_ns - ends;
    }
    ranks->now_ns += ends;
}

/* The notes already are those of all ranks. */
static status virtual_exchange(replica *r, float notes[COMMUNICATOR_NOTES] UNUSED)
{
    vector_multiply(r->count, 1.0f / (float)r->virtual->ranks->count, r->sent, r->sent);
    add_exchange_time(r, 1);
    return OK;
}

static status virtual_apply(replica *r, double lr, bool *finite)
{
    status result = OK;
    struct virtual *v = r->virtual;
    struct optimizer_pass pass;
    *finite = true;
    for (unsigned rank = 0; v->differ && rank < v->ranks->count; rank++) {
        const struct own *own = &v->own[rank];
        optimizer_set_epoch(own->optimizer, r->epoch);
        optimizer_apply(own->optimizer, own->parameters, own->gradient, 1.0, lr, NULL,
                        own->parameters, &pass);
        *finite = *finite && pass.finite;
    }
    if (!v->differ)
        TRY(replica_host.apply(r, lr, finite));
    v->updates += *finite;
done:
    return result;
}

/* A rank's vector 0 is its parameters; vectors 1, 2, … are its optimizer's state. */
static float *vector_of(const struct own *own, size_t number, size_t count)
{
    return number == 0 ? own->parameters
                       : optimizer_state_in_place(own->optimizer) + (number - 1) * count;
}

/* r->gradient ← the mean over ranks of vector `number`. */
static void mean_of(replica *r, size_t number)
{
    const struct virtual *v = r->virtual;
    for (unsigned rank = 0; rank < v->ranks->count; rank++)
        add(r->count, r->gradient, vector_of(&v->own[rank], number, r->count), rank == 0);
    vector_multiply(r->count, 1.0f / (float)v->ranks->count, r->gradient, r->gradient);
}

/* The common optimizer state, which checkpoints hold, is rank 0's. */
static status virtual_average(replica *r, enum local_sgd_momentum momentum,
                              float notes[COMMUNICATOR_NOTES] UNUSED)
{
    struct virtual *v = r->virtual;
    const size_t floats = optimizer_state_count(v->own[0].optimizer), states = floats / r->count;
    for (size_t k = 1; momentum == LOCAL_SGD_AVERAGE && k <= states; k++) {
        mean_of(r, k);
        for (unsigned rank = 0; rank < v->ranks->count; rank++)
            memcpy(vector_of(&v->own[rank], k, r->count), r->gradient, r->count * sizeof(float));
    }
    for (unsigned rank = 0; momentum == LOCAL_SGD_RESET && rank < v->ranks->count; rank++) {
        if (states > 0)
            memset(vector_of(&v->own[rank], 1, r->count), 0, floats * sizeof(float));
        optimizer_set_updates(v->own[rank].optimizer, 0);
    }
    mean_of(r, 0);
    add_exchange_time(r, 1 + (momentum == LOCAL_SGD_AVERAGE ? states : 0));
    v->differ = false;
    const struct replica_view common = {.parameters = r->gradient,
                                        .optimizer_state = optimizer_state(v->own[0].optimizer),
                                        .optimizer_state_count = floats};
    return replica_host.set(r, &common, v->updates);
}

/* ---- the rest ------------------------------------------------------------------------------- */

static status virtual_view(replica *r, struct replica_view *out)
{
    return replica_host.view(r, out);
}

static void virtual_rows(const replica *r, struct step_record *out)
{
    const struct virtual *v = r->virtual;
    const struct timing *timing = timing_of(r, r->taken > 0 ? r->taken - 1 : 0);
    for (unsigned rank = 0; rank < v->ranks->count; rank++) {
        const struct timing *t = &timing[rank];
        out[rank] = (struct step_record){
            .worker = rank,
            .loss = t->loss,
            .compute_us = (double)t->compute_ns * 1e-3,
            .exchange_us = (double)t->waited_ns * 1e-3,
            .data_us = NOT_MEASURED,
            .forward_us = NOT_MEASURED,
            .backward_us = NOT_MEASURED,
            .at_seconds = (double)(v->ranks->now_ns + v->positions[rank].computed_ns) * 1e-9};
    }
}

static const struct replica_kind replica_virtual = {
    .name = "virtual",
    .close = virtual_close,
    .gradients = virtual_gradients,
    .send = virtual_send,
    .exchange = virtual_exchange,
    .apply = virtual_apply,
    .average = virtual_average,
    .view = virtual_view,
    .rows = virtual_rows,
};

status replica_open_virtual(replica **out, struct virtual_ranks *ranks, const options *o, worker *w,
                            communicator *c)
{
    status result = OK;
    struct virtual *v = NULL;
    TRY(replica_open_kind(out, &replica_host, o, w, c));
    TRY(memory_new(&v, 1, sizeof *v, "virtual ranks"));
    v->ranks = ranks;
    (*out)->virtual = v;
    (*out)->kind = &replica_virtual;
    TRY(open_ranks(v, *out, o));
done:
    if (result != OK)
        replica_close(out);
    return result;
}
