/*
 * server_core.h — the parameter server as a state machine: events in, actions out.
 *
 * The core holds versions, parameters, rules and the optimizer. It does no I/O, reads no clock,
 * starts no thread and allocates nothing after open. Its callers are the ZeroMQ server
 * (ps/server/), the simulation and replay (ps/virtual/) and tests. The same events in the same
 * order give the same bits. One thread at a time may use a core.
 *
 * Parameter buffers. The caller provides `slots`: buffers of `count` floats, in shared memory or
 * not. A slot holds one version. A worker that was released with (version, slot) reads that slot
 * until the core has handled its next push. The core counts the readers of each slot and writes the
 * next version into a free slot. Hence the parameters a worker reads do not change, and every
 * gradient belongs to exactly one version. workers_max + 2 slots always suffice.
 *
 * Invariants, checked by REQUIRE and by tests/ps/core/
 *   C1  version = number of updates applied; it grows by 1 with each SERVER_APPLIED.
 *   C2  Each push that is not a duplicate yields exactly one record, once its outcome is known.
 *   C3  A push with a sequence number that was handled before changes nothing (exactly once).
 *   C4  A released worker's slot holds the version of its release until its next push or loss.
 *   C5  A gradient that is not finite changes no parameter, no state of the optimizer and no sum.
 *       With on_nonfinite=skip (one server) it is skipped and its worker is released. The eleventh
 *       such gradient without an update in between ends the run. So does an update that is not
 *       finite although its gradients are.
 *   C6  With consistency=bsp every record has staleness 0, and the update is the ordered mean.
 */
#ifndef GRADLAG_PS_CORE_SERVER_CORE_H
#define GRADLAG_PS_CORE_SERVER_CORE_H

#include "results/records.h"
#include "worker/optimizer/optimizer.h"

typedef struct server_core server_core;
struct training_state; /* worker/training.h */

struct server_core_options {
    const options *settings; /* consistency, damping, optimizer, lr, schedule, … ; borrowed */
    unsigned workers;        /* key workers: the W of the rules, however many workers train */
    unsigned workers_max;    /* worker numbers are 0 … workers_max − 1; 0: as `workers` */
    size_t count;            /* parameters */
    struct optimizer_layers layers; /* of worker_layers(); for optimizers that need layers */
    float **slots;                  /* slot_count buffers of `count` floats; borrowed, written by
                                       the core */
    unsigned slot_count;            /* ≥ workers_max + 2 */
    const float *initial;           /* θ at version 0; copied into a slot */
    uint64_t epoch_samples;         /* training samples in one epoch */
    uint64_t total_samples; /* training ends when applied gradients contain this many samples */
    double total_seconds; /* training also ends when a gradient arrives at this time or later; that
                             gradient is not used. 0: no limit */
    uint64_t evaluate_every; /* samples between evaluations; 0: only at the end */
    bool follows;            /* this is a follower (server > 0): it neither evaluates nor ends
                                training; server 0 does both */
    helpers *helpers;        /* helper threads for large updates; NULL: none; borrowed */
    /* The checkpoint to resume from; NULL: a new run. `initial` has its parameters. Its vectors
     * have `whole` elements; this core holds those from `begin` on. Borrowed during open. If the
     * checkpoint has all samples already, the first hello requests the evaluation that ends the
     * run. */
    const struct training_state *start;
    size_t begin, whole;
};

/* A gradient and its description. The fields from pull_us on are copied to the record. */
struct server_push {
    unsigned worker;
    uint64_t sequence;     /* 0, 1, 2, … per worker */
    uint64_t read_version; /* of the release */
    uint64_t batch;        /* number of the batch; copied to the record */
    const float *gradient; /* [count] mean over the batch; borrowed until the worker is released */
    uint32_t samples;
    double loss;
    double pull_us, compute_us, queue_us;
    double data_us, forward_us, backward_us;
    double at_seconds;
    bool probed; /* `cosine` is known */
    double cosine;
};

/* The most gradients that on_nonfinite=skip leaves out without an update in between. */
enum { SERVER_CORE_SKIPS = 10 };

enum server_action_kind {
    SERVER_RELEASE,  /* release `worker` with `version` in `slot`; training has used `samples`
                        samples up to this version. record.waited_for: the other worker whose event
                        caused the release, or NO_WORKER. The record of the next push of `worker`
                        repeats it */
    SERVER_RECORD,   /* `record` is the outcome of one push. The caller sets apply_us and adds to
                        queue_us the time that the push was held. `taken`: the push was not held; it
                        was in the running sum since its own event */
    SERVER_APPLIED,  /* `slot` holds the new version `version` */
    SERVER_EVALUATE, /* evaluate `version` in `slot`, then call server_core_evaluated() before any
                        other event. The slot does not change meanwhile. server_core_evaluated()
                        releases the workers that this update allows to continue */
    SERVER_DIVERGED, /* the gradient or loss of record.worker, or an update with its gradient, is
                        not finite; the run ends. With on_nonfinite=skip: too many such gradients */
    SERVER_FINISHED, /* the end is reached and evaluated; dismiss all workers */
};

struct server_action {
    enum server_action_kind kind;
    unsigned worker;
    unsigned slot;
    uint64_t version, samples;
    bool taken;
    struct push_record record;
};

/* The actions of one event, in order; valid until the next event. */
struct server_actions {
    const struct server_action *at;
    size_t count;
};

/* ERROR_USAGE: settings exclude each other; the message names them. ERROR_DATA: `start` lacks data
 * that the settings need. */
status server_core_open(server_core **out, const struct server_core_options *o) MUST_CHECK;
void server_core_close(server_core **c);

/* ---- events -------------------------------------------------------------------------------- */
/* Contract: worker < workers_max in hello and lost; the caller checks numbers from outside.
 * Between SERVER_EVALUATE and server_core_evaluated() the caller may only call evaluated() and
 * end(). */

/* A worker joins, or joins again after a loss. Its first push has sequence 0. The worker is
 * released with the latest version at once. A repeated hello repeats the last release. Report a new
 * incarnation of a joined worker with server_core_lost() first. */
struct server_actions server_core_hello(server_core *c, unsigned worker);
/* A gradient arrived. A duplicate (a sequence number handled before) changes nothing and gives no
 * record: it repeats the worker's last release, or does nothing while its last push is held. After
 * the end a push is only recorded (PUSH_DROPPED_LATE). ERROR_PROTOCOL: unknown worker, not joined,
 * a sequence number too high, a version other than that of its release, or no samples. An error
 * changes nothing. */
status server_core_push(server_core *c, const struct server_push *push,
                        struct server_actions *out) MUST_CHECK;
/* A worker is lost, or will never join. Its slot is freed and its held gradient is dropped
 * (PUSH_DROPPED_LATE). The policy stops waiting for it, which may complete an update. A gradient of
 * the worker in the running sum stays there. The worker's clock is ignored until the worker joins
 * again; it then starts at the lowest clock of the others. */
struct server_actions server_core_lost(server_core *c, unsigned worker);
/* The evaluation that SERVER_EVALUATE requested is complete. */
struct server_actions server_core_evaluated(server_core *c);
/* The caller ends the run (stopped, failed), possibly during an evaluation. Held and taken pushes
 * are dropped (PUSH_DROPPED_LATE), and so is every later push. */
struct server_actions server_core_end(server_core *c);

/* ---- queries ------------------------------------------------------------------------------- */
uint64_t server_core_version(const server_core *c);
unsigned server_core_latest_slot(const server_core *c);
/* Accepted pushes without duplicates; also the arrival number of the next push. */
uint64_t server_core_arrivals(const server_core *c);
uint64_t server_core_samples_used(const server_core *c);
uint64_t server_core_samples_computed(const server_core *c);
/* True: the end is reached; its evaluation may be missing. */
bool server_core_complete(const server_core *c);
/* True after SERVER_FINISHED, SERVER_DIVERGED or server_core_end(). */
bool server_core_ended(const server_core *c);
/* True: `worker` is released and the core waits for its push. */
bool server_core_awaits(const server_core *c, unsigned worker);
/* The batch after that of the last push of `worker`, over all of its incarnations. */
uint64_t server_core_next_batch(const server_core *c, unsigned worker);
/* The optimizer's state, *count elements; borrowed until the next event. */
const float *server_core_optimizer_state(const server_core *c, size_t *count);
/* The content of a checkpoint: all that a core needs to resume here. The caller adds figures that
 * the core does not know (seconds, losses). Valid until the next event. */
void server_core_state(server_core *c, struct training_state *out);

#endif
