/*
 * replica.h — one rank's parameters, gradient and optimizer state, and the three parts of a step:
 * compute, exchange, apply. All kinds give the same bits:
 *
 *   replica_host    (replica.c)         in host memory; any device, any communicator
 *   replica_shared  (replica_shared.c)  in memory that all ranks see; each rank updates its
 *                                       share of the parameters (communicator_shares)
 *   replica_device  (replica_device.c)  on the rank's GPU, if the communicator exchanges on the
 *                                       GPU (nccl), or with one rank
 *   replica_virtual (replica_virtual.h) engine=virtual: stands for all ranks, in one process
 *
 * One thread. Collective: every rank has the same kind and calls the same functions.
 */
#ifndef GRADLAG_SYNC_REPLICA_H
#define GRADLAG_SYNC_REPLICA_H

#include "results/records.h"
#include "sync/local_sgd.h"
#include "sync/delay_correction.h"
#include "sync/communicator/communicator.h"
#include "sync/communicator/overlap_autotune.h"
#include "worker/worker.h"

typedef struct replica replica;

/* Parameters and state after the last update, in host memory; valid until the next update. */
struct replica_view {
    const float *parameters, *optimizer_state;
    size_t optimizer_state_count;
    /* Key delay: first the mean gradients that wait for their update, oldest first; then the
     * updates that delay_correction keeps. */
    const float *vectors[2 * DELAY_MOST];
    size_t waiting, vector_count;
};

/* Updates that a replica makes without the trainer: the host waits once for all of them. */
struct replica_round {
    uint64_t first;               /* batch of the first gradient */
    unsigned count;               /* at least 1, at most replica_round_most */
    double lr[DEVICE_STEPS_MOST]; /* of each update */
    bool stop;                    /* NOTE_STOP of this rank */
    float seconds;                /* NOTE_SECONDS of this rank */
    /* Set by the round. made < count: the gradient or the loss after `made` updates is not finite.
     * Then the stats and notes of that gradient are set, too. */
    unsigned made;
    uint64_t exchange_ns; /* waiting for other ranks before the first step */
    struct step_stats stats[DEVICE_STEPS_MOST];
    float notes[DEVICE_STEPS_MOST][COMMUNICATOR_NOTES]; /* means over ranks */
};

struct replica_kind {
    const char *name;
    /* Sets r->parameters, r->gradient and r->state. */
    status (*open)(replica *r, const options *o);
    void (*close)(replica *r);
    /* replica_gradients. NULL: the rank's worker computes one gradient after the other. */
    status (*gradients)(replica *r, uint64_t first, unsigned batches, struct step_stats *stats);
    void (*send)(replica *r); /* NULL: no delay */
    /* NULL: the trainer calls gradients, exchange and apply. Else those are NULL. */
    status (*round)(replica *r, struct replica_round *round);
    status (*exchange)(replica *r, float notes[COMMUNICATOR_NOTES]);
    status (*apply)(replica *r, double lr, bool *finite);
    status (*view)(replica *r, struct replica_view *out);
    /* Sets parameters and optimizer state (as many floats as view gives), after `updates` updates.
     */
    status (*set)(replica *r, const struct replica_view *from, uint64_t updates);
    /* This rank's own state (rank_state.h). NULL: none. */
    size_t (*own_count)(const replica *r);
    void (*own_read)(const replica *r, float *out);
    void (*own_write)(replica *r, const float *in);
    /* Collective; called before rank 0 evaluates or views: brings other ranks' parameters to rank
     * 0. NULL: every rank has all of them. */
    status (*collect)(replica *r);
    /* The next two are NULL if the kind does not support local_sgd_or_growing(). */
    void (*accumulate)(replica *r, unsigned index, unsigned count);
    status (*average)(replica *r, enum local_sgd_momentum momentum,
                      float notes[COMMUNICATOR_NOTES]);
    /* Rows of the last update for all ranks of this process, without update_version and staleness.
     * NULL: one rank, whose row the trainer makes. */
    void (*rows)(const replica *r, struct step_record *out);
};
extern const struct replica_kind replica_host, replica_shared, replica_device;

struct replica {
    const struct replica_kind *kind;
    worker *worker;
    communicator *c;
    size_t count;
    /* Only for worker_gradient and worker_evaluate: they may be device addresses. */
    float *parameters, *gradient;
    double epoch;      /* position of training, for optimizer_set_epoch */
    double sent_epoch; /* the same at the exchange of a gradient, for compression_set_epoch */
    /* Key delay: updates between a gradient's computation and its own update. If it is not 0, the
     * gradient passed to replica_send is exchanged while the next one is computed. Its mean then
     * waits here. */
    unsigned delay;
    struct vector_queue waiting;
    struct delay_correction correction;
    float *sent;    /* replica_host: the gradient to exchange; without a delay it is `gradient` */
    uint64_t taken; /* calls of replica_take */
    bool overlaps;  /* exchanges begin during the backward pass, from this step on */
    bool checks_early;   /* it is not known yet whether any part is final early */
    bool exchange_begun; /* by communicator_begin, in this step */
    bool sends_whole; /* no overlap: gradients are compressed or sums of batches, or SyncBatchNorm
                         exchanges during the backward pass, or ranks share the update */
    struct overlap_autotune *trial; /* overlap=auto, until it is decided */
    uint64_t began_ns;              /* of this step */
    uint64_t hidden_ns;             /* of the last exchange; see communicator_finish */
    uint64_t waited_ns;             /* for other ranks, in the last replica_apply */
    bool local_update; /* set by the trainer (local_steps): the next update is of this rank alone */
    void *state;
    struct virtual *virtual; /* replica_virtual.c; else NULL */
};

/* Opens the kind that the settings, the worker and the communicator require, at the initial
 * parameters. `w` and `c` are borrowed. Reads keys optimizer, momentum, weight_decay, overlap,
 * delay, delay_correction. ERROR_USAGE: settings that exclude each other. */
status replica_open(replica **out, const options *o, worker *w, communicator *c) MUST_CHECK;
/* Whether the worker has a GPU and the settings allow a replica on it: updates and gradients then
 * need no host memory. If not, an exchange on the GPU (nccl) is refused. ERROR_USAGE: no such
 * optimizer. */
status replica_may_be_on_gpu(bool *out, const options *o, const worker *w) MUST_CHECK;
/* Opens a given kind. */
status replica_open_kind(replica **out, const struct replica_kind *kind, const options *o,
                         worker *w, communicator *c) MUST_CHECK;
void replica_close(replica **r);

/* Key delay: hands the gradient computed last to replica_exchange. The next gradient may be
 * computed from now on. */
void replica_send(replica *r);
/* Computes the gradient of batch `batch` at the current parameters. With overlap, parts of it are
 * under way on return, also after an error: replica_exchange must follow. stats->watch_ns is the
 * time that this call spent on the exchange. */
status replica_gradient(replica *r, uint64_t batch, struct step_stats *stats) MUST_CHECK;
/* Computes the mean gradient of `batches` batches from `first` on, for the exchange. Times in
 * *stats are sums; the loss is a mean. */
status replica_gradients(replica *r, uint64_t first, unsigned batches,
                         struct step_stats *stats) MUST_CHECK;
/* Gradient and notes ← their means over all ranks. With a delay the mean is then the youngest of
 * r->waiting. The replica itself uses the last note. */
status replica_exchange(replica *r, float notes[COMMUNICATOR_NOTES]) MUST_CHECK;
/* θ ← update(θ, g): g is the gradient exchanged last, or with a delay the oldest of r->waiting. If
 * g is not finite, *finite ← false and θ stays unchanged. */
status replica_apply(replica *r, double lr, bool *finite) MUST_CHECK;
/* Call it when a gradient was applied or skipped. With a delay, drops the oldest of r->waiting. */
void replica_take(replica *r);
status replica_collect(replica *r) MUST_CHECK;
status replica_view(replica *r, struct replica_view *out) MUST_CHECK;
/* Sets the state of a checkpoint; call it before the first update. */
status replica_set(replica *r, const struct replica_view *from, uint64_t updates) MUST_CHECK;
/* This rank's own state: residual, and optimizer state with local_momentum=keep. The same number of
 * floats on all ranks. */
size_t replica_own_count(const replica *r);
void replica_own_read(const replica *r, float *out);
void replica_own_write(replica *r, const float *in);
/* Adds the gradient just computed, number `index` of `count`. After the last one r->gradient is
 * their mean. */
void replica_accumulate(replica *r, unsigned index, unsigned count);
/* The largest number of updates in a round; 0: this replica makes none. */
unsigned replica_round_most(const replica *r);
status replica_make_round(replica *r, struct replica_round *round) MUST_CHECK;
/* Parameters and notes ← their means over all ranks; the optimizer's state as `momentum` says. */
status replica_average(replica *r, enum local_sgd_momentum momentum,
                       float notes[COMMUNICATOR_NOTES]) MUST_CHECK;

#endif
