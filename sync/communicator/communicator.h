/*
 * communicator.h — how synchronous ranks exchange gradients: the interface and its registry.
 *
 * sync/communicator/communicator_NAME.c implements a kind, and one line in communicator.def
 * registers it. tests/sync/test_communicator.c checks every kind on exactly summable data. Code
 * that kinds share (waiting with a limit, the gate, the ordered sum) is in ranks.h.
 *
 * One thread uses a communicator. Every function is collective: all ranks call it, in the same
 * order, with the same sizes. Errors: ERROR_PEER if another rank did not arrive within timeout_s,
 * or if the transport failed. After an error a communicator can only be closed.
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
    /* The sum is always taken in rank order; reduction=ordered changes nothing. If that depends on
     * the hosts, the kind sets c->in_rank_order in open instead. */
    bool in_rank_order;
    /* Every rank keeps its own gradient: for profiling, not for training. */
    bool exchanges_nothing;
    /* Allows compressed gradients, which travel by MPI collectives (compression.h). */
    bool sends_codes;
    /* Exchanges only vectors in the memory of the rank's GPU (c->place). */
    bool on_device;
    /* Only for a kind that stands for another one (auto): *out ← that kind. All functions below are
     * then NULL. Collective; all ranks choose the same kind. */
    status (*choose)(communicator *c, const struct communicator_kind **out);
    /* `count`: the largest vector, notes included. Sets c->state. Sets c->buffer if the kind has
     * faster memory than the heap; else communicator_open allocates it. */
    status (*open)(communicator *c, const options *o, size_t count);
    void (*close)(communicator *c);
    /* data[0..count) ← mean over ranks, in place; size ≥ 2. `data` may be a part of c->buffer. One
     * thread at a time calls it: the owner, or the helper thread of overlap.c. NULL: on_device. */
    status (*allreduce_mean)(communicator *c, float *data, size_t count);
    /* The same without the factor 1/size, for 4, 8, … ranks; NULL: the mean costs no extra pass. */
    status (*allreduce_sum)(communicator *c, float *data, size_t count);
    /* on_device only. `begin` waits until all ranks have called it. From then on the process may
     * queue work for timeout_s × steps at most. `sum` queues data[0..count) on the GPU ← the *sum*
     * over ranks, on `stream`. `end` waits for all work queued on c->place->stream, for timeout_s ×
     * steps at most. */
    status (*device_begin)(communicator *c, unsigned steps);
    status (*device_sum)(communicator *c, float *data, size_t count, void *stream);
    status (*device_end)(communicator *c, unsigned steps);
    /* The next two let ranks share each update (sync/replica_shared.c). Both are set or both NULL.
     * Allocates memory that all ranks see; called once; the content is undefined. */
    status (*common)(communicator *c, size_t bytes, void **out);
    /* This rank's share (ranks_chunk) of c->buffer[0..count) ← the mean over ranks;
     * notes[0..COMMUNICATOR_NOTES) ← the means of the floats behind it. Other ranks read c->buffer
     * until all ranks have called communicator_shares_done. */
    status (*mean_of_share)(communicator *c, size_t count, float *notes);
    /* The mean is one MPI_Iallreduce (ranks_begin_reduce). Between hosts, with reduction=fast,
     * overlap then has several parts under way at a time (overlap.c). */
    bool sums_by_mpi;
    /* The cost model: bytes that all ranks together send to exchange `count` floats. NULL: 0, the
     * ranks share memory. */
    double (*sent_bytes)(const communicator *c, size_t count);
};
extern const struct registry communicator_registry;

struct communicator {
    const struct communicator_kind *kind;
    unsigned rank, size;
    double timeout_s;    /* limit of every wait; may be changed, to the same value on all ranks */
    double warn_after_s; /* a longer wait is logged, once; 5 by default */
    bool ordered;        /* reduction=ordered */
    bool compressed;     /* compression is not none */
    bool in_rank_order;  /* the kind sums in rank order */
    bool in_parts;       /* between communicator_begin and communicator_finish */
    bool has_processor;  /* each rank's computing leaves it a free processor (overlap.c) */
    atomic_bool failed;  /* a rank did not arrive: closing waits for no rank. The helper thread of
                            overlap.c sets it too. */
    const struct device_place *place; /* the rank's GPU, borrowed; NULL: host memory */
    size_t count;                     /* the largest vector, notes included */
    float *buffer;                    /* communicator_buffer */
    bool buffer_is_ours;              /* allocated by communicator_open, not by the kind */
    float *received;                  /* reduction=ordered: this rank's chunk from every rank */
    char *staging;                    /* [staging_bytes]: messages of broadcasts and gathers */
    size_t staging_bytes;
    double sent_bytes;       /* so far; see communicator_sent_bytes */
    size_t bucket;           /* elements of a part; parts are cut from the start */
    struct overlap *overlap; /* overlap.c */
    struct ranks *ranks;     /* ranks.h */
    void *state;             /* of the kind */
};

/* Extra floats that travel behind a vector, so that a loss or a flag needs no message of its own:
 * vectors of up to `count + COMMUNICATOR_NOTES` floats can be exchanged. */
enum { COMMUNICATOR_NOTES = DEVICE_NOTES };

/* Factor on timeout_s for waits in which another rank may do longer work than an exchange. */
enum { COMMUNICATOR_PATIENCE = 20 };
/* Factor on timeout_s for sync_first_contact. */
enum { FIRST_CONTACT_TIMEOUTS = 2 };

/* Opens the kind that key `communicator` names. Call sync_start() first. Reads keys communicator,
 * reduction, compression, bucket_kib, threads and timeout_s. `count`: elements of the largest
 * vector that will be exchanged. `place`: where the rank's worker computes (worker_place),
 * borrowed; NULL: host memory. Waits until all ranks have loaded their data and called this
 * function, with the limit of communicator_barrier_long. With reduction=ordered the sum is taken in
 * rank order (reduce_mean_ordered in worker/optimizer/optimizer.h): the same bits for every kind.
 */
status communicator_open(communicator **out, const options *o, size_t count,
                         const struct device_place *place) MUST_CHECK;
/* The same for a given kind instead of key communicator. */
status communicator_open_kind(communicator **out, const struct communicator_kind *kind,
                              const options *o, size_t count,
                              const struct device_place *place) MUST_CHECK;
/* A communicator of one rank, for a process without MPI. Exchanges leave vectors unchanged. */
status communicator_open_alone(communicator **out, size_t count) MUST_CHECK;
/* Name of the open kind; for communicator=auto, of the kind that it chose. */
const char *communicator_name(const communicator *c);
/* Adds the transport: "shared memory", "tcp eth0 (10.0.0.1)", "NCCL"; with communicator=mpi also
 * how MPI is called and copies. */
void communicator_add_network(const communicator *c, struct text *out);
/* Waits until all ranks close (rank 0 may still write results), with the limit of
 * communicator_barrier_long. After an error it waits for no rank, and MPI's resources stay until
 * the process ends. */
void communicator_close(communicator **c);
/* A buffer of `count + COMMUNICATOR_NOTES` floats that this communicator exchanges fastest. It may
 * be shared memory, which other ranks read only during an exchange. */
float *communicator_buffer(communicator *c);
/* data[0..count) ← the mean over ranks, in place. With one rank no bit changes. A rank that waits
 * logs the missing ranks after 5 s; ERROR_PEER after timeout_s. It does not spin if ranks exceed
 * processors. */
status communicator_allreduce_mean(communicator *c, float *data, size_t count) MUST_CHECK;
/* data[0..count) and the COMMUNICATOR_NOTES floats behind it ← their means, but data[0..count) may
 * lack the factor *factor, a power of two. The caller's update multiplies by it: that saves a pass
 * over the vector and changes no bit. */
status communicator_allreduce_scaled(communicator *c, float *data, size_t count,
                                     double *factor) MUST_CHECK;
/* on_device only: sums over ranks of vectors in the memory of this rank's GPU, for `steps` steps
 * between begin and end. The caller multiplies by 1/size. `sum` queues the sum of a part on
 * `stream`, a cudaStream_t. It serves as `queue` of a struct device_sum whose context is the
 * communicator. `count` of `end`: the floats of a whole step. */
status communicator_device_begin(communicator *c, unsigned steps) MUST_CHECK;
status communicator_device_sum(void *communicator, float *data, size_t count,
                               void *stream) MUST_CHECK;
status communicator_device_end(communicator *c, size_t count, unsigned steps) MUST_CHECK;
/* Whether ranks may share each update: every rank computes the mean of its share of the gradient
 * and writes its share of the parameters into common memory. */
bool communicator_shares(const communicator *c);
/* Memory that all ranks see, aligned to 64 bytes, valid until communicator_close. Call it once. */
status communicator_common(communicator *c, size_t bytes, void **out) MUST_CHECK;
/* This rank's share of [0, count): [*from, *from + *length), cut at cache lines; may be empty. */
void communicator_share(const communicator *c, size_t count, size_t *from, size_t *length);
/* This rank's share of communicator_buffer()[0..count) ← the mean over ranks, in rank order;
 * notes[0..COMMUNICATOR_NOTES) ← their means. A rank must not write to the rest of its buffer until
 * communicator_shares_done returns. */
status communicator_mean_of_share(communicator *c, size_t count, float *notes) MUST_CHECK;
/* A barrier. When it returns, every rank sees all writes to common memory. */
status communicator_shares_done(communicator *c) MUST_CHECK;
/* Bytes of vectors that all ranks together have sent so far, by the kinds' cost models. */
double communicator_sent_bytes(const communicator *c);
/* Bytes that the mean of `count` floats adds to communicator_sent_bytes. */
double communicator_mean_bytes(const communicator *c, size_t count);

/* ---- the same mean, exchanged while the owner computes (overlap.c) ----------------------------
 */

/* Whether a helper thread exchanges parts while the owner computes. If not, communicator_finish
 * exchanges the whole vector. */
bool communicator_overlaps(const communicator *c);
/* Whether a mean in parts has the bits of communicator_allreduce_mean. */
bool communicator_same_in_parts(const communicator *c);
/* Whether overlap=auto should run its trial: the bits stay the same, and either ranks wait for a
 * link between hosts or each rank has a free processor. The same on all ranks. */
bool communicator_overlap_may_gain(const communicator *c);
/* Overrides c->has_processor. The same value on all ranks; not during an exchange. */
void communicator_spare_processors(communicator *c, bool spare);
/* Number of processors that this host's ranks together may use. */
unsigned communicator_processors(const communicator *c);
/* Begins an exchange of data[0..count), which has room for COMMUNICATOR_NOTES floats behind it. No
 * element is final yet. No other exchange may begin before communicator_finish. */
void communicator_begin(communicator *c, float *data, size_t count);
/* Whether any part was queued before the whole vector was final. */
bool communicator_began_early(const communicator *c);
/* Queues the parts within data[final_from..count), whose values are final. `final_from` never
 * rises. It does not wait; an error of a part is returned by communicator_finish. */
void communicator_advance(communicator *c, size_t final_from);
/* The whole vector and the `notes` floats behind it are final; waits until all are means over
 * ranks. With communicator=mpi, reduction=fast and more than two ranks, MPI may sum parts in
 * another order than the whole vector. *hidden_ns ← time that the helper thread spent on parts that
 * were complete before this call. */
status communicator_finish(communicator *c, size_t notes, uint64_t *hidden_ns) MUST_CHECK;

/* Copies `bytes` bytes from rank `root` to all ranks. After an error the caller may free `data`. */
status communicator_broadcast(communicator *c, void *data, size_t bytes, unsigned root) MUST_CHECK;
/* Copies `bytes` bytes of every rank to every rank: in → out[size × bytes], in rank order. After an
 * error the caller may free both. */
status communicator_gather_all(communicator *c, const void *in, size_t bytes, void *out) MUST_CHECK;
status communicator_barrier(communicator *c) MUST_CHECK;
/* A barrier with the limit COMMUNICATOR_PATIENCE × timeout_s, for when a rank may do long work.
 * `what` names that work in messages: "the evaluation". */
status communicator_barrier_long(communicator *c, const char *what) MUST_CHECK;

/* ---- the process (mpi_start.c, first_contact.c, watchdog.c) -----------------------------------
 */

/* MPI_Init, once per process; sets rank and size of the world. A rank started by a launcher dies
 * with the launcher. Without a launcher there is one rank. */
status sync_start(unsigned *rank, unsigned *size) MUST_CHECK;
/* Call it before sync_start. Reserves buffers so that up to `in_flight` messages can arrive at a
 * rank while it computes. */
void sync_expect_messages(unsigned in_flight);
/* Whether the launcher started all ranks on this host; they use no network then. May be called
 * before sync_start. */
bool sync_on_one_host(void);
/* Call it after sync_start. The ranks exchange first messages. After 5 s the first rank of each
 * host logs the ranks from which it has no message. ERROR_PEER after FIRST_CONTACT_TIMEOUTS ×
 * timeout_s. */
status sync_first_contact(double timeout_s) MUST_CHECK;
/* Compares `own` over ranks. *first ← rank 0's text, owned by the caller; *other ← the last rank
 * with another text than rank 0's, 0: none. */
status sync_compare(const char *own, double limit_s, char **first, unsigned *other) MUST_CHECK;
/* `hook` is called, on the watchdog's thread, before the watchdog ends the process because an MPI
 * call does not return. `why`: the error message. */
void sync_set_exit_hook(void (*hook)(void *context, const char *why), void *context);
/* Every rank calls it at its end, after it has recorded its results. Waits a limited time for the
 * other ranks and finalises MPI. If they do not arrive, it ends them with MPI_Abort(result) and
 * does not return. */
void sync_end(status result);
/* "Open MPI v4.1.4": for table `run`. */
const char *sync_library_version(void);
/* "2.28.9", "not found: why", "built without NCCL". */
const char *sync_nccl_version(void);

#endif
