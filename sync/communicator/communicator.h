/*
 * communicator.h — how synchronous ranks exchange gradients: the interface and its registry.
 *
 * sync/communicator/communicator_NAME.c implements it, one line in communicator.def registers it,
 * and tests/sync/test_communicator.c checks every one on exactly summable data. What
 * implementations share (waiting with a limit, the gate, the ordered sum) is in
 * sync/communicator/ranks.h.
 *
 * One thread per communicator. Every function is collective: all ranks call it, in the same order,
 * with the same sizes. Errors: ERROR_PEER if another rank did not come within timeout_s, or if the
 * transport failed. After an error a communicator can only be closed.
 */
#ifndef GRADLAG_SYNC_COMMUNICATOR_COMMUNICATOR_H
#define GRADLAG_SYNC_COMMUNICATOR_COMMUNICATOR_H

#include "base/text.h"
#include "base/registry.h"
#include "worker/device_vectors.h"

#include <stdatomic.h>

typedef struct communicator communicator;

struct communicator_kind {
    struct about about;
    /* Its sum is always taken in rank order: reduction=ordered changes nothing. (A kind for which
     * that depends on the hosts sets c->in_rank_order in open.) */
    bool in_rank_order;
    /* Ranks keep their own gradients: for profiling, no training. */
    bool exchanges_nothing;
    /* Compressed gradients go by MPI's collectives beside it (sync/compression/compression.h). */
    bool sends_codes;
    /* Works on vectors of the rank's GPU (c->place), and on no others. */
    bool on_device;
    /* Not a way of its own but a choice among the others (the functions below are NULL then).
     * Collective: all ranks come to the same. */
    status (*choose)(communicator *c, const struct communicator_kind **out);
    /* `count`: the largest vector, notes included. Sets c->state, and c->buffer where it has a
     * faster one than plain memory (else the caller of open makes one). */
    status (*open)(communicator *c, const options *o, size_t count);
    void (*close)(communicator *c);
    /* data[0..count) ← mean over ranks, in place; size ≥ 2. `data` may be a part of c->buffer. One
     * thread at a time: the owner, or the helper thread of overlap.c. NULL: on_device. */
    status (*allreduce_mean)(communicator *c, float *data, size_t count);
    /* on_device: a device address; ← *sum* over ranks, done on return, after all that was queued
     * on c->place->stream. NULL: not on_device. */
    status (*device_sum)(communicator *c, float *data, size_t count);
    /* For ranks that share an update out among them (sync/replica_shared.c): both, or none. Memory
     * that all ranks see, once; what it holds at first is nobody's business. */
    status (*common)(communicator *c, size_t bytes, void **out);
    /* c->buffer's share of [0, count), by ranks_chunk, ← the mean over ranks; notes[0..
     * COMMUNICATOR_NOTES) ← the means of those behind it. Other ranks read c->buffer until all have
     * come to communicator_shares_done. */
    status (*mean_of_share)(communicator *c, size_t count, float *notes);
    /* Its mean is MPI_Iallreduce (ranks_begin_sum): between hosts, with reduction=fast, overlap has
     * several parts under way at a time (sync/communicator/overlap.c). */
    bool sums_by_mpi;
    /* The cost model: bytes that all ranks together send in messages to exchange `count` floats.
     * NULL: none, they share memory. */
    double (*sent_bytes)(const communicator *c, size_t count);
};
extern const struct registry communicator_registry;

struct communicator {
    const struct communicator_kind *kind;
    unsigned rank, size;
    double timeout_s;    /* the limit of every wait; may be changed, on all ranks alike */
    double warn_after_s; /* waiting for longer is logged, once: 5 */
    bool ordered;        /* reduction=ordered */
    bool compressed;     /* compression is not none */
    bool in_rank_order;  /* the kind's sum is */
    bool has_processor;  /* every rank's computing leaves it one (sync/communicator/overlap.c) */
    atomic_bool failed;  /* a rank did not come: closing waits for no rank any more. The helper
                            thread of sync/communicator/overlap.c sets it, too. */
    const struct device_place *place; /* the rank's GPU, borrowed; NULL: none */
    size_t count;                     /* the largest vector, notes included */
    float *buffer;                    /* communicator_buffer */
    bool buffer_is_ours;              /* allocated by communicator_open, not by the kind */
    float *received;                  /* ordered: this rank's chunk as every rank has it */
    double sent_bytes;                /* so far, in means: communicator_sent_bytes */
    size_t bucket;                    /* elements of a part, cut from the vector's start on */
    struct overlap *overlap;          /* sync/communicator/overlap.c */
    struct ranks *ranks;              /* sync/communicator/ranks.h */
    void *state;
};

/* Room after a vector for a few more floats to travel with it, so that a loss or a flag costs no
 * message of its own: vectors of up to `count + COMMUNICATOR_NOTES` floats can be exchanged. */
enum { COMMUNICATOR_NOTES = 4 };

/* Times timeout_s: the limit where another rank may be at longer work than an exchange. */
enum { COMMUNICATOR_PATIENCE = 20 };
/* Times timeout_s: the limit of the ranks' first meeting. */
enum { FIRST_CONTACT_TIMEOUTS = 2 };

/* `place`: where the rank's worker computes (worker_place), borrowed; NULL: in the host's memory.
 * sync_start() must have been called. Waits patiently (communicator_barrier_long) until all ranks
 * have loaded what they need and come here, so that no blocking call is entered before. Reads keys
 * communicator, reduction, bucket_kib, timeout_s. `count`: the largest vector that will be
 * exchanged. With reduction=ordered the sum is taken in rank order (worker/optimizer/optimizer.h,
 * reduce_mean_ordered), the same bits for every communicator. */
status communicator_open(communicator **out, const options *o, size_t count,
                         const struct device_place *place) MUST_CHECK;
/* The same with a given kind in place of key communicator. */
status communicator_open_kind(communicator **out, const struct communicator_kind *kind,
                              const options *o, size_t count,
                              const struct device_place *place) MUST_CHECK;
/* Without MPI, for a process that has no peers: its one rank exchanges vectors with nobody, and
 * gathers and broadcasts what it has. `count`: as above. */
status communicator_open_alone(communicator **out, size_t count) MUST_CHECK;
/* The kind that is open: of communicator=auto the one that it chose. */
const char *communicator_name(const communicator *c);
/* Adds by which way its messages go: "shared memory", "tcp eth0 (10.0.0.1)", "NCCL". */
void communicator_add_network(const communicator *c, struct text *out);
/* Ranks end together: the others sleep until the last one (rank 0, which writes the results) has
 * come too, as long as communicator_barrier_long would. After an error it waits for nobody, and
 * leaves what MPI holds to the process's end. */
void communicator_close(communicator **c);
/* A buffer of `count + COMMUNICATOR_NOTES` floats that this communicator exchanges fastest (may be
 * shared memory that other ranks read during an exchange, and at no other time). */
float *communicator_buffer(communicator *c);
/* data[0..count) ← the mean over ranks, in place. With one rank nothing changes, to the bit. After
 * 5 s of waiting it says for whom; past timeout_s it is ERROR_PEER. No busy waiting when ranks
 * exceed processors. */
status communicator_allreduce_mean(communicator *c, float *data, size_t count) MUST_CHECK;
/* The same for a vector of this rank's GPU, with a communicator that is on_device; but the *sum*:
 * who reads it multiplies by 1/size. */
status communicator_device_sum(communicator *c, float *data, size_t count) MUST_CHECK;
/* Whether its ranks may share an update out among them: each makes the mean of its own share of the
 * gradient, and writes its share of parameters that all see. */
bool communicator_shares(const communicator *c);
/* Memory that all ranks see, aligned to a line, until communicator_close. Once. */
status communicator_common(communicator *c, size_t bytes, void **out) MUST_CHECK;
/* This rank's share of [0, count): [*from, *from + *length), cut at lines; may be empty. */
void communicator_share(const communicator *c, size_t count, size_t *from, size_t *length);
/* Its share of communicator_buffer()[0..count) ← the mean over ranks, in rank order;
 * notes[0..COMMUNICATOR_NOTES) ← their means. Then nobody writes elsewhere into its buffer until
 * all have come to communicator_shares_done, past which all see what was written to common memory.
 */
status communicator_mean_of_share(communicator *c, size_t count, float *notes) MUST_CHECK;
status communicator_shares_done(communicator *c) MUST_CHECK;
/* Bytes of vectors that all ranks together have sent each other in messages so far, by the cost
 * models (in their file's heads). */
double communicator_sent_bytes(const communicator *c);
/* What the mean of `count` floats adds to it. */
double communicator_mean_bytes(const communicator *c, size_t count);

/* ---- the same mean, while its owner computes ---------------------------------------------------
 */

/* Whether parts are exchanged meanwhile, by a helper thread. If not, communicator_finish exchanges
 * the whole vector. */
bool communicator_overlaps(const communicator *c);
/* Whether the sum's order, and so its bits, are those of communicator_allreduce_mean. */
bool communicator_same_in_parts(const communicator *c);
/* Whether overlap=auto should try: the bits stay the same, and either the ranks wait for a link
 * between hosts or each of them has a free processor. The same on all ranks. */
bool communicator_overlap_may_gain(const communicator *c);
/* Whether each rank has a processor of its own: on every host, and the same on all ranks. */
bool communicator_may_spin(const communicator *c);
/* Overrides what communicator_open found: the computing leaves each rank a free processor, or it
 * does not. The same value on all ranks; not during an exchange. */
void communicator_spare_processors(communicator *c, bool spare);
/* How many processors the ranks of this host have. */
unsigned communicator_processors(const communicator *c);
/* An exchange of data[0..count) begins: communicator_buffer(), with room for COMMUNICATOR_NOTES
 * behind it. Nothing of it is final yet. No other exchange until it is finished. */
void communicator_begin(communicator *c, float *data, size_t count);
/* Whether any part of it was sent before all was final. */
bool communicator_began_early(const communicator *c);
/* data[final_from..count) has its last values: the parts that lie in it are queued. Never waits.
 * final_from never rises. communicator_finish returns an error of a part. */
void communicator_advance(communicator *c, size_t final_from);
/* All of it is final, the `notes` floats behind it too: waits until both are means over ranks. With
 * communicator=mpi, reduction=fast and more than two ranks MPI may choose another order of the sum
 * than for all at once. *hidden_ns ← how long the helper thread
 * took for the parts that were complete before this call. */
status communicator_finish(communicator *c, size_t notes, uint64_t *hidden_ns) MUST_CHECK;

status communicator_broadcast(communicator *c, void *data, size_t bytes, unsigned root) MUST_CHECK;
/* Every rank's `bytes` bytes, in rank order, at every rank: in → out[size × bytes]. */
status communicator_gather_all(communicator *c, const void *in, size_t bytes, void *out) MUST_CHECK;
status communicator_barrier(communicator *c) MUST_CHECK;
/* A barrier where a rank may come late for a good reason, `what` ("the evaluation"): gives up after
 * COMMUNICATOR_PATIENCE × timeout_s. */
status communicator_barrier_long(communicator *c, const char *what) MUST_CHECK;

/* MPI_Init, once per process; rank and size of the world. A rank started by a launcher dies with
 * it. Outside a launcher there is one rank. */
status sync_start(unsigned *rank, unsigned *size) MUST_CHECK;
/* Before sync_start: up to `in_flight` messages of a rank shall arrive while it computes. */
void sync_expect_messages(unsigned in_flight);
/* Whether the launcher started all ranks on this host; then they use no network. Before sync_start,
 * too. */
bool sync_on_one_host(void);
/* Right after sync_start: the ranks exchange first messages. Past 5 s the first rank of each host
 * says of which ranks it hears nothing; past FIRST_CONTACT_TIMEOUTS × timeout_s it is ERROR_PEER.
 */
status sync_first_contact(double timeout_s) MUST_CHECK;
/* After it: whether all ranks were given the same text. *first ← rank 0's, the caller's to
 * free; *other ← the last rank whose own is another one, 0: none is. */
status sync_compare(const char *own, double limit_s, char **first, unsigned *other) MUST_CHECK;
/* `tell`: of a rank that has to end in the middle of a call of MPI, as that does not end, with
 * ERROR_PEER's exit code and no more words; from a thread of its own. */
void sync_set_exit_hook(void (*hook)(void *context, const char *why), void *context);
/* Called by every rank at its end, after it has recorded what it has to: waits a moment for the
 * others and finalises MPI. If they do not come they are told through MPI_Abort(result), so that
 * none is left behind; then it does not return. */
void sync_end(status result);
/* "Open MPI v4.1.4": for the run's row. */
const char *sync_library_version(void);
/* "2.28.9", "not found: why", "built without NCCL". */
const char *sync_nccl_version(void);

#endif
