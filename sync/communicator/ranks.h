/*
 * ranks.h — code that all communicators share: MPI's handles, waiting with a limit, and the gate.
 *
 * Waiting. Open MPI's blocking calls spin until they return (they yield the processor each time),
 * and may never return. So all ranks first wait at the gate, without processor time and with a time
 * limit. Then they enter the blocking call, in which only data moves. A watchdog ends the process
 * if the call takes longer than the limit. Only communicator_mpi.c leaves out most gates between
 * exchanges that follow each other within a millisecond. Opening and closing work the same way: all
 * ranks have arrived before the first collective call.
 *
 * The gate is a barrier. Ranks of one host share a page of memory: each rank writes there that it
 * has arrived, and the last one opens the gate. The others spin for 200 µs at most (only if every
 * rank has a processor), then sleep on a futex. A waiting rank reads on the page which ranks are
 * missing. Ranks of several hosts use MPI_Ibarrier, tested with growing sleeps in between. A
 * communicator may have more gates, for some of the ranks of a host.
 */
#ifndef GRADLAG_SYNC_COMMUNICATOR_RANKS_H
#define GRADLAG_SYNC_COMMUNICATOR_RANKS_H

#include "base/text.h"
#include "sync/communicator/communicator.h"

#include <mpi.h>
#include <stdatomic.h>

struct gate_page;

struct gate {
    MPI_Win window;
    struct gate_page *page; /* shared by its ranks, all on one host; NULL: not open */
    unsigned index, size;   /* this rank among the ranks of the gate */
};

struct ranks {
    MPI_Comm world; /* a duplicate of MPI_COMM_WORLD; its errors return */
    MPI_Comm node;  /* the ranks of this host */
    unsigned name;  /* this rank's number in the run, for messages */
    /* MPI_SUM. With two ranks, each element is added once: then the operation also multiplies by ½,
     * which saves a pass over the vector. The bits are the same. */
    MPI_Op reduces;
    bool owns_reduces; /* false: `reduces` is MPI_SUM, or there is no MPI */
    bool one_host;
    unsigned here;       /* ranks of this host */
    unsigned processors; /* that all ranks of this host together may use */
    unsigned own;        /* that this rank may use */
    bool crowded; /* some host has more ranks than processors: never spin. The same on all ranks,
                     because it decides which MPI functions they call */
    struct gate gate;         /* of all ranks, if they are on one host */
    const struct gate *marks; /* where waits for messages write the time; NULL: `gate` */
    atomic_bool sleeps; /* the rank computes and has one processor: the helper thread of overlap.c
                           sleeps between its tests */
    bool watched;       /* the watchdog runs */
    atomic_bool leaves; /* this rank ends: its helper thread stops waiting */
    struct missing_ranks *missing_ranks;
    /* Set by a pipeline while the rank waits for other stages. Adds the missing rank to `out`;
     * returns whether this rank logs it. NULL: the gate knows the missing ranks. */
    bool (*name_missing)(const communicator *c, uint64_t waited_ns, struct text *out);
};

/* Whether MPI allows threads to call it one at a time. */
bool ranks_may_take_turns(void);
/* Sets c->ranks, c->rank and c->size; after an error ranks_close is still due. */
status ranks_open(communicator *c) MUST_CHECK;
void ranks_close(communicator *c);
/* MPI_Win_free, which waits for all ranks. After an error (c->failed) it does nothing. */
void ranks_free_window(const communicator *c, MPI_Win *window);

/* Waits until every rank has called it. `what` names the wait in messages: "the mean gradient". */
status ranks_gate(communicator *c, const char *what) MUST_CHECK;

/* Opens a gate for the ranks of `node`, all on this host; collective among them. */
status gate_open(struct gate *g, MPI_Comm node) MUST_CHECK;
void gate_close(const communicator *c, struct gate *g);
/* Like ranks_gate, for the ranks of `g`. */
status gate_pass(communicator *c, struct gate *g, const char *what) MUST_CHECK;
/* The same; *all ← whether `vote` is true on every rank. */
status gate_vote(communicator *c, struct gate *g, bool vote, bool *all,
                 const char *what) MUST_CHECK;

/* Writes the time to the page of `g`: this rank waits for others, perhaps inside an MPI call. */
void ranks_mark_waiting(const struct gate *g);
/* Adds the error message of a wait that timed out, at `g` or for a message. `in_call`: the
 * watchdog's thread calls it, because the rank is inside an MPI call. */
void ranks_add_timeout(const communicator *c, const struct gate *g, uint64_t waited_ns,
                       const char *what, bool in_call, struct text *out);

/* ---- missing_ranks.c: which rank is missing, among ranks of several hosts ---- */
status missing_ranks_open(communicator *c) MUST_CHECK;
void missing_ranks_close(communicator *c);
/* Call it when a wait has timed out: adds the ranks that send no message, with their hosts. */
void missing_ranks_add(const communicator *c, struct text *out);
/* Call it before this rank ends all others. Waits until all ranks that timed out have reported
 * their error, at most until 1.8 s after the roll call. Without a roll call it waits for 2 s. */
void missing_ranks_leave(void);

/* Whether a rank of this host no longer writes that it waits: it computes, died or hangs.
 * `waited_ns`: how long this rank has waited. Only if all ranks are on one host. */
bool ranks_is_silent(const communicator *c, unsigned rank, uint64_t waited_ns);

/* *everywhere ← whether `here` is true on all ranks; collective. */
status ranks_all(const communicator *c, bool here, bool *everywhere) MUST_CHECK;

/* data[0..count) ← the mean over ranks, in place, by c's kind or by ranks_mean_ordered. */
status ranks_mean(communicator *c, float *data, size_t count) MUST_CHECK;

/* Waits until all requests are complete. Sleeps between tests if spinning would take the processor
 * from other ranks or from computing. */
status ranks_wait(communicator *c, MPI_Request *requests, int count, const char *what) MUST_CHECK;
/* Waits until one request is complete: requests[*index], MPI_REQUEST_NULL from then on. */
status ranks_wait_any(communicator *c, MPI_Request *requests, int count, int *index,
                      const char *what) MUST_CHECK;

/* Call it when a wait fails: messages may still arrive, so their memory must not be freed. Closing
 * then frees nothing and waits for no rank (c->failed, sync_end). */
void ranks_abandon(communicator *c);
bool ranks_abandoned(void);

/* OK, or ERROR_PEER with MPI's message and `what`. */
status ranks_check(int mpi_code, const char *what) MUST_CHECK;

/* The first cache line at or after p, for memory of a shared window (allocate 64 bytes more). */
void *ranks_aligned(void *p);

/* The share of 0..count that rank `rank` of `size` reduces: [*from, *from + *length), cut at cache
 * lines. */
void ranks_chunk(size_t count, unsigned rank, unsigned size, size_t *from, size_t *length);

/* data[0..count) ← ranks->reduces over ranks, in place, by one MPI_Allreduce; count ≤ INT32_MAX.
 * Ranks that have arrived wait in the call for the others. */
status ranks_reduce(communicator *c, float *data, size_t count) MUST_CHECK;
/* Begins the same by MPI_Iallreduce; ranks_wait completes it. */
status ranks_begin_reduce(communicator *c, float *data, size_t count,
                          MPI_Request *request) MUST_CHECK;
/* Turns the result of ranks->reduces into the mean, in place. */
void ranks_complete_mean(const communicator *c, float *data, size_t count);

/* Bytes that all ranks together send in a reduce-scatter and an allgather of `count` floats:
 * 2·(size − 1) × 4·count. */
double ranks_ring_bytes(const communicator *c, size_t count);

/* reduction=ordered over any transport, piece by piece: every rank gets its chunk of a piece from
 * all (MPI_Ialltoallv), sums in rank order and sends the result to all (MPI_Iallgatherv). Each rank
 * sends and receives 2·(size − 1)/size of the vector. c->received holds a chunk from every rank:
 * ranks_ordered_piece(size) + 16 × size floats. */
status ranks_mean_ordered(communicator *c, float *data, size_t count) MUST_CHECK;
size_t ranks_ordered_piece(unsigned size);

/* ---- overlap.c: the state of communicator_begin … communicator_finish ---- */
status overlap_open(communicator *c) MUST_CHECK;
/* Ends the helper thread; call it before closing any part of c. If an exchange is under way, it is
 * aborted (c->failed). */
void overlap_stop(communicator *c);
void overlap_close(communicator *c);

/* ---- watchdog.c: a limit on the time inside a blocking call ---- */
status watchdog_open(void) MUST_CHECK; /* calls are counted: one thread per process */
void watchdog_close(void);
void watchdog_arm(double limit_s, const char *what); /* `what` must outlive the call */
void watchdog_disarm(void);
/* Sets the communicator whose missing ranks the watchdog's messages name; NULL: none. */
void watchdog_watch(const communicator *c);

#endif
