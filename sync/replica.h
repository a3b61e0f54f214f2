/*
 * replica.h — one rank's parameters, gradient and optimizer state, and the three things a step does
 * with them: compute, exchange, apply. Kinds that end in the same bits:
 *
 *   replica_host    (replica.c)         in the host's memory; any device, any communicator
 *   replica_shared  (replica_shared.c)  in memory that all ranks see, each of which updates its
 *                                       share of the parameters (communicator_shares)
 *   replica_device  (replica_device.c)  on the rank's GPU, from update to update: where the
 *                                       communicator exchanges there (nccl), or there is one rank
 *   replica_virtual (replica_virtual.h) engine=virtual: stands for all ranks, in one process
 *
 * One thread. Collective: every rank has the same kind and calls the same functions.
 */
#ifndef GRADLAG_SYNC_REPLICA_H
#define GRADLAG_SYNC_REPLICA_H

#include "results/records.h"
#include "sync/local_sgd.h"
#include "sync/communicator/communicator.h"
#include "sync/communicator/overlap_autotune.h"
#include "worker/worker.h"

typedef struct replica replica;

/* The parameters and state as of the last update, for the host to read; until the next one. */
struct replica_view {
    const float *parameters, *optimizer_state;
    size_t optimizer_state_count;
    /* Late: the gradient exchanged last, a mean over ranks, for the next replica_apply; else NULL.
     */
    const float *waiting;
};

struct replica_kind {
    const char *name;
    /* Sets parameters, gradient and state. */
    status (*open)(replica *r, const options *o);
    void (*close)(replica *r);
    /* replica_gradients. NULL: by the rank's worker, one after the other. */
    status (*gradients)(replica *r, uint64_t first, unsigned batches, struct step_stats *stats);
    void (*send)(replica *r); /* NULL: cannot be late */
    status (*exchange)(replica *r, float notes[COMMUNICATOR_NOTES]);
    status (*apply)(replica *r, double lr, bool *finite);
    status (*view)(replica *r, struct replica_view *out);
    /* Parameters, optimizer state (as many as view gives) and, where it is given, the gradient that
     * waits ← these, after so many updates. */
    status (*set)(replica *r, const struct replica_view *from, uint64_t updates);
    /* What this rank has and others have not (rank_state.h). NULL: nothing. */
    size_t (*own_count)(const replica *r);
    void (*own_read)(const replica *r, float *out);
    void (*own_write)(replica *r, const float *in);
    /* Collective, before rank 0 evaluates or views: brings there what other ranks have of the
     * parameters. NULL: every rank has all. */
    status (*collect)(replica *r);
    /* NULL: not where local_sgd_or_growing() */
    void (*accumulate)(replica *r, unsigned index, unsigned count);
    status (*average)(replica *r, enum local_sgd_momentum momentum,
                      float notes[COMMUNICATOR_NOTES]);
    /* The rows of all ranks that it stands for, about the last update: all but update_version.
     * NULL: it stands for the rank of this process, whose row the trainer knows. */
    void (*rows)(const replica *r, struct step_record *out);
};
extern const struct replica_kind replica_host, replica_shared, replica_device;

struct replica {
    const struct replica_kind *kind;
    worker *worker;
    communicator *c;
    size_t count;
    /* For worker_gradient and worker_evaluate alone: they may be the device's. */
    float *parameters, *gradient;
    double epoch; /* where training stands, for optimizers that look: optimizer_set_epoch */
    /* Key double_buffering: the gradient handed over by replica_send is exchanged and applied, and
     * the next one is computed meanwhile. */
    bool double_buffered;
    /* An exchange begins while ranks compute: this step's, or from now on. */
    bool overlaps;
    bool checks_early;   /* whether any part is there early: not seen yet */
    bool exchange_begun; /* the one that goes on did */
    bool sends_whole;    /* gradients are exchanged as a whole: compressed, of many batches, or
                      made by ranks that meet in every batch norm */
    struct overlap_autotune *trial; /* overlap=auto: while it is not decided */
    uint64_t began_ns;              /* of this step */
    uint64_t hidden_ns;             /* of the last exchange: see communicator_finish */
    uint64_t waited_ns;             /* for other ranks, by the last replica_apply */
    bool local_update; /* set by the trainer, local_steps: the next update is of a rank's own
                          parameters */
    void *state;
    struct virtual *virtual; /* replica_virtual.c; else NULL */
};

/* At the initial parameters; both are borrowed. Reads keys optimizer, momentum, weight_decay,
 * overlap, double_buffering. */
status replica_open(replica **out, const options *o, worker *w, communicator *c) MUST_CHECK;
/* The same with a given kind. */
status replica_open_kind(replica **out, const struct replica_kind *kind, const options *o,
                         worker *w, communicator *c) MUST_CHECK;
void replica_close(replica **r);

/* Late: the gradient computed last is what replica_exchange and replica_apply are for; from now on
 * the next one may be computed. */
void replica_send(replica *r);
/* The gradient of batch `batch` at the current parameters; where the replica overlaps, parts of it
 * are on their way when it returns, also after an error: replica_exchange has to follow.
 * stats->watch_ns is what that took. */
status replica_gradient(replica *r, uint64_t batch, struct step_stats *stats) MUST_CHECK;
/* The mean gradient of `batches` batches from `first` on, ready for the exchange. In *stats times
 * are sums and the loss is a mean. */
status replica_gradients(replica *r, uint64_t first, unsigned batches,
                         struct step_stats *stats) MUST_CHECK;
/* Gradient and notes ← their means over all ranks. The last note is the replica's own. */
status replica_exchange(replica *r, float notes[COMMUNICATOR_NOTES]) MUST_CHECK;
/* θ ← update(θ, gradient). Where the gradient is not finite: *finite is false and θ as it was. */
status replica_apply(replica *r, double lr, bool *finite) MUST_CHECK;
status replica_collect(replica *r) MUST_CHECK;
status replica_view(replica *r, struct replica_view *out) MUST_CHECK;
/* Before the first update: begins there instead. */
status replica_set(replica *r, const struct replica_view *from, uint64_t updates) MUST_CHECK;
/* What this rank alone has, on all as many floats: residuals, and its optimizer's state where ranks
 * keep their own. */
size_t replica_own_count(const replica *r);
void replica_own_read(const replica *r, float *out);
void replica_own_write(replica *r, const float *in);
/* The gradient just computed is number `index` of `count`, of which the last one leaves the mean
 * in r->gradient. */
void replica_accumulate(replica *r, unsigned index, unsigned count);
/* Parameters and notes ← their means over all ranks; the optimizer's state as `momentum` says. */
status replica_average(replica *r, enum local_sgd_momentum momentum,
                       float notes[COMMUNICATOR_NOTES]) MUST_CHECK;

#endif
