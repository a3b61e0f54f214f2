/*
 * ranks.h — what the communicators share: MPI's handles, waiting with a limit, and the gate.
 *
 * Waiting. Open MPI's blocking calls spin until they return, and may never return. So all ranks
 * first meet at the gate, where a rank waits without processor time and with a time limit. Then
 * they enter the blocking call, in which only data moves. A watchdog ends the process if the call
 * takes longer than the limit. Opening and closing work the same way: all ranks have come before
 * the first collective call.
 *
 * The gate is a barrier. Ranks of one host meet on a page of shared memory: each rank writes there
 * that it has come, and the last one opens the gate. The others spin for some microseconds (only if
 * every rank has a processor), then sleep on a futex. A waiting rank reads on the page which ranks
 * are missing. Ranks of several hosts meet in MPI_Ibarrier, tested with growing sleeps in between.
 * A communicator may have more gates, for some of the ranks of a host.
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
    struct gate_page *page; /* shared by its ranks, which are of one host; NULL: not open */
    unsigned index, size;   /* of this rank among them */
};

struct ranks {
    MPI_Comm world; /* a duplicate of MPI_COMM_WORLD; its errors return */
    MPI_Comm node;  /* the ranks of this host */
    unsigned name;  /* of this rank among those of the run, for messages */
    bool one_host;
    unsigned here;       /* ranks of this host */
    unsigned processors; /* that they may use, all together */
    unsigned own;        /* that this rank may use */
    bool crowded;       /* a host has more ranks than processors: never spin. The same on all ranks,
                           because it decides which functions of MPI they call */
    struct gate gate;   /* of all ranks, where one host has them all */
    atomic_bool sleeps; /* the rank computes, and has one processor: the helper thread of overlap.c
                           sleeps between its tests */
    bool watched;       /* the watchdog runs */
    atomic_bool leaves; /* this rank ends: its helper thread stops waiting */
    struct missing_ranks *missing_ranks;
    /* While it waits for one rank's message: adds to `out` who is missing, true where this rank is
     * to say so. NULL: the gate knows. */
    bool (*name_missing)(const communicator *c, struct text *out);
};

/* Whether MPI allows calls of another thread while none is in it. */
bool ranks_may_take_turns(void);
/* Sets c->ranks, c->rank and c->size; after an error ranks_close is still due. */
status ranks_open(communicator *c) MUST_CHECK;
void ranks_close(communicator *c);
/* MPI_Win_free, which waits for all ranks; after an error (c->failed) it does nothing. */
void ranks_free_window(const communicator *c, MPI_Win *window);

/* Waits until every rank has called it. `what` is for messages: "the mean gradient". */
status ranks_gate(communicator *c, const char *what) MUST_CHECK;

/* A gate for the ranks of `node`, all on this host; collective among them. */
status gate_open(struct gate *g, MPI_Comm node) MUST_CHECK;
void gate_close(const communicator *c, struct gate *g);
/* As ranks_gate, for the ranks of `g`. */
status gate_pass(communicator *c, struct gate *g, const char *what) MUST_CHECK;

/* On the page of `g`: this rank waits for others, in a call of MPI perhaps. */
void ranks_mark_waiting(const struct gate *g);
/* Why this rank gives up, at `g` or for a message; `in_call`: from the watchdog's thread. */
void ranks_add_timeout(const communicator *c, const struct gate *g, uint64_t waited_ns,
                       const char *what, bool in_call, struct text *out);

/* ---- missing_ranks.c: who is missing among ranks of several hosts ---- */
status missing_ranks_open(communicator *c) MUST_CHECK;
void missing_ranks_close(communicator *c);
/* By whoever gives up: adds the ranks that do not, with their hosts. */
void missing_ranks_add(const communicator *c, struct text *out);
/* Before this rank ends all others: until those that give up, too, have said why, or 1.8 s have
 * passed since its roll call. Where it was not called it does not know: 2 s from now. */
void missing_ranks_leave(void);

/* The first rank that is known to keep this one waiting; c->size: it is not known. */
unsigned ranks_first_missing(const communicator *c);

/* Whether this is true of all ranks; collective. */
status ranks_all(const communicator *c, bool here, bool *everywhere) MUST_CHECK;

/* data[0..count) ← the mean over ranks, in place, as c's kind and reduction make it. */
status ranks_mean(communicator *c, float *data, size_t count) MUST_CHECK;

/* A hint to the processor: this loop waits. */
static inline void processor_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Completes non-blocking operations: tests them, and sleeps between tests where spinning would take
 * the processor from other ranks or from computing. */
status ranks_wait(communicator *c, MPI_Request *requests, int count, const char *what) MUST_CHECK;
/* The same until one is complete: *index, MPI_REQUEST_NULL from then on. */
status ranks_wait_any(communicator *c, MPI_Request *requests, int count, int *index,
                      const char *what) MUST_CHECK;

/* After a wait that was given up, messages may still arrive: their memory must not be freed.
 * Closing frees nothing then and waits for no rank (c->failed, sync_end). */
void ranks_abandon(communicator *c);
bool ranks_abandoned(void);

/* OK, or ERROR_PEER with MPI's own words and `what` failed. */
status ranks_check(int mpi_code, const char *what) MUST_CHECK;

/* The first cache line at or after p, for memory of a shared window (ask for 64 bytes more). */
void *ranks_aligned(void *p);

/* The part of 0..count that rank `rank` of `size` reduces: [*from, *from + *length), cut at cache
 * lines. */
void ranks_chunk(size_t count, unsigned rank, unsigned size, size_t *from, size_t *length);

/* Begins data[0..count) ← the sum over ranks, in place; ranks_wait completes it. */
status ranks_begin_sum(communicator *c, float *data, size_t count, MPI_Request *request) MUST_CHECK;

/* Bytes that all ranks together send in a reduce-scatter and an allgather of `count` floats, each
 * 1/size at a time: 2·(size − 1) × 4·count. */
double ranks_ring_bytes(const communicator *c, size_t count);

/* reduction=ordered over any transport, piece by piece: every rank gets its chunk of a piece from
 * all (MPI_Ialltoallv), adds in rank order, and hands it to all (MPI_Iallgatherv). Each rank sends
 * and receives 2·(size − 1)/size of the vector. c->received holds a chunk from every rank:
 * ranks_ordered_piece(size) + 16 × size floats. */
status ranks_mean_ordered(communicator *c, float *data, size_t count) MUST_CHECK;
size_t ranks_ordered_piece(unsigned size);

/* ---- overlap.c: the state of communicator_begin … communicator_finish ---- */
status overlap_open(communicator *c) MUST_CHECK;
/* Call it before anything of c is closed: the helper thread ends and calls MPI no more. An exchange
 * that is not finished is given up (c->failed). */
void overlap_stop(communicator *c);
void overlap_close(communicator *c);

/* ---- watchdog: for the time inside a blocking call ---- */
status watchdog_open(void) MUST_CHECK; /* counted: one thread per process */
void watchdog_close(void);
void watchdog_arm(double limit_s, const char *what); /* `what` must outlive the call */
void watchdog_disarm(void);
/* Whose ranks it knows by name; NULL: nobody's. */
void watchdog_watch(const communicator *c);

#endif
