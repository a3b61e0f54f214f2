/*
 * server_core.h — the parameter server as a pure state machine: events in, actions out.
 *
 * It holds versions, parameters, consistency, damping and the optimizer. It does no I/O, reads no
 * clock, starts no thread and allocates nothing after open. The ZeroMQ server (server.c) and
 * the tests drive this same code, and the same events in the same order give the same bits.
 *
 * Parameter buffers. The core is given `slots` buffers of `count` floats (in shared memory, or
 * not). Slot s holds one version at a time. A worker that was released with (version, slot) reads
 * that slot in place until its next push has been handled; the core counts the readers and writes
 * the next version into a free slot, so what a worker reads never changes under it and every
 * gradient belongs to exactly one version. slots ≥ workers + 2 always suffices.
 *
 * Invariants (checked with REQUIRE in debug and by tests/ps/core/test_server_core.c):
 *   - C1  version = number of updates applied; it grows by exactly 1 per SERVER_APPLIED action.
 *   - C2  every push that is not a duplicate yields exactly one record, when its fate is known.
 *   - C3  a push with a sequence number already handled changes nothing (exactly-once).
 *   - C4  a released worker's slot holds the version named in its release until its next push or
 *     loss.
 *   - C5  a non-finite gradient changes neither parameters nor optimizer state nor the running sum.
 *     With on_nonfinite=skip (one server) it is left out and its worker goes on; the eleventh with
 *     no update between ends the run, and so does an update that is not finite by itself.
 *   - C6  with consistency=bsp every record has staleness 0 and the update is the ordered mean.
 */
#ifndef GRADLAG_PS_CORE_SERVER_CORE_H
#define GRADLAG_PS_CORE_SERVER_CORE_H

#include "results/records.h"
#include "worker/optimizer/optimizer.h"

typedef struct server_core server_core;
struct training_state; /* worker/training.h */

struct server_core_options {
    const options *settings; /* consistency, damping, optimizer, lr, schedule, … ; borrowed */
    unsigned workers;        /* worker numbers are 0 … workers − 1 */
    size_t count;            /* parameters */
    struct optimizer_layers layers; /* worker_layers; for optimizers that look at them */
    float **slots;                  /* slot_count buffers of `count` floats; borrowed, written by
                                       the core */
    unsigned slot_count;            /* ≥ workers + 2 */
    const float *initial;           /* θ at version 0; copied into a slot */
    uint64_t epoch_samples;         /* training samples in one epoch */
    uint64_t total_samples;  /* training ends once this many samples are in applied gradients */
    uint64_t evaluate_every; /* samples between evaluations; 0: only at the end */
    bool follows;            /* one of several servers, and not the first, which evaluates and ends
                                training for all: this one does neither by itself */
    helpers *helpers;        /* with large updates; NULL: none; borrowed */
    /* To go on from, with `initial` of its parameters; NULL: anew. Its vectors are of `whole`
     * parameters, of which this core has those from `begin` on. Borrowed during open. If all
     * samples are used already, the first hello asks for the evaluation that ends the run. */
    const struct training_state *start;
    size_t begin, whole;
};

/* What a worker sends with its gradient. */
struct server_push {
    unsigned worker;
    uint64_t sequence;     /* 0, 1, 2, … per worker */
    uint64_t read_version; /* as released */
    uint64_t batch;        /* number of the batch it computed; passed through to the record */
    const float *gradient; /* count floats, mean over the batch; stays valid until the worker is
                              released again (it is blocked meanwhile) */
    uint32_t samples;
    double loss;
    double pull_us, compute_us, queue_us;    /* passed through to the record */
    double data_us, forward_us, backward_us; /* likewise */
    double at_seconds;                       /* passed through to the record */
    bool probed; /* its cosine is known, and passed through to the record */
    double cosine;
};

enum server_action_kind {
    SERVER_RELEASE, /* worker: go on with `version` in `slot`. record.waited_for: whose event let it
                       go, if it waited for another's; also in the record of its next push */
    SERVER_RECORD,  /* record: the fate of one push. apply_us is left to the shell, and so is adding
                       the time a push was held to its queue_us. `taken`: it did not wait, but was in
                       the running sum since its own event */
    SERVER_APPLIED, /* version: a new version exists, in `slot` (latest parameters) */
    SERVER_EVALUATE, /* evaluate `version` in `slot`, then call server_core_evaluated() before any
                        other event (queue them). The slot stays as it is meanwhile; workers that
                        this update lets go on are released by server_core_evaluated() */
    SERVER_DIVERGED, /* record.worker sent a gradient or loss that is not finite; the run ends. With
                        on_nonfinite=skip it is one too many */
    SERVER_FINISHED, /* total_samples reached; after the last evaluation tell everybody to stop */
};

struct server_action {
    enum server_action_kind kind;
    unsigned worker;
    unsigned slot;
    uint64_t version;
    bool taken;
    struct push_record record;
};

/* The actions of one event, in order, valid until the next event. */
struct server_actions {
    const struct server_action *at;
    size_t count;
};

/* ERROR_USAGE: settings that do not fit together (names them). ERROR_DATA: `start` lacks what they
 * need. */
status server_core_open(server_core **out, const struct server_core_options *o) MUST_CHECK;
void server_core_close(server_core **c);

/* Events. `worker` must be below options.workers in hello and lost: the shell checks numbers that
 * come from outside. Calling any of them but evaluated() and end() between SERVER_EVALUATE and
 * evaluated() breaks the contract. */

/* A worker joins (or comes back after a loss, its sequence then starts at 0 again): it is released
 * with the latest version at once. A worker that is joined already and awaited is released again
 * with what it has (a repeated hello); a new incarnation of it must be announced by
 * server_core_lost() first. */
struct server_actions server_core_hello(server_core *c, unsigned worker);
/* A gradient arrived. A duplicate (sequence below the next one) changes nothing and gives no
 * record; it releases the worker again with what it was last released with, so that a lost reply is
 * repeated, or does nothing while that worker's last push is still held. ERROR_PROTOCOL: no such
 * worker, not joined, a sequence from the future, a version it was not released with, no samples.
 * Errors leave the core as it was. Once the core has ended a push is only recorded
 * (PUSH_DROPPED_LATE). */
status server_core_push(server_core *c, const struct server_push *push,
                        struct server_actions *out) MUST_CHECK;
/* A worker is gone, or will never come: its slot is freed, its held gradient is dropped
 * (PUSH_DROPPED_LATE) and nobody waits for it any more, which may complete a barrier. A gradient of
 * it that was taken is in the running sum, and stays there. Its clock does not count until it comes
 * back, and is then the least of the others'. */
struct server_actions server_core_lost(server_core *c, unsigned worker);
/* The evaluation asked for by SERVER_EVALUATE is done. */
struct server_actions server_core_evaluated(server_core *c);

/* The run ends here, for a reason the core does not know (stopped, failed), also in the midst of an
 * evaluation: held and taken pushes are dropped (PUSH_DROPPED_LATE), and so is every later one. */
struct server_actions server_core_end(server_core *c);

uint64_t server_core_version(const server_core *c);
unsigned server_core_latest_slot(const server_core *c);
/* Pushes handed to the core so far, without duplicates and refused ones: the next one's arrival. */
uint64_t server_core_arrivals(const server_core *c);
uint64_t server_core_samples_used(const server_core *c);
uint64_t server_core_samples_computed(const server_core *c);
/* After SERVER_FINISHED, SERVER_DIVERGED or server_core_end(). */
bool server_core_ended(const server_core *c);
/* Whether `worker` is joined and the core waits for its push (true) or it waits for the core. */
bool server_core_awaits(const server_core *c, unsigned worker);
/* The optimizer's state, *count elements. */
const float *server_core_optimizer_state(const server_core *c, size_t *count);
/* For checkpoints: all that a core needs to go on from here, but for the figures of training that
 * it does not know (seconds, losses). Valid until the next event. */
void server_core_state(server_core *c, struct training_state *out);

#endif
