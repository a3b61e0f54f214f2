/*
 * shared_slots.h — memory shared by the ranks of one host: a slot for each rank's vector, and sums
 * over the slots. Communicators `shared` and `hierarchical` use it.
 *
 * The vector is cut into one part per rank, and a part into blocks. A rank takes the blocks of its
 * own part, then blocks of other parts that no rank has taken. So no rank waits for one that has no
 * processor at the moment. The bits of a block do not depend on the rank that sums it.
 *
 * One pass: every rank writes its slot; gate; shared_slots_mean or shared_slots_sum; gate; every
 * rank reads.
 */
#ifndef GRADLAG_SYNC_COMMUNICATOR_SHARED_SLOTS_H
#define GRADLAG_SYNC_COMMUNICATOR_SHARED_SLOTS_H

#include "sync/communicator/ranks.h"

struct slot_turn;

struct shared_slots {
    MPI_Win window;
    unsigned index, size; /* this rank among the ranks of the window */
    float **at;           /* [size] every rank's slot in this address space; 64-byte aligned */
    struct slot_turn **turns;
    const float **blocks; /* [size] scratch */
};

/* Slots of `count` floats for the ranks of `node`, all on this host; collective among them. After
 * an error shared_slots_close is still due. */
status shared_slots_open(struct shared_slots *s, MPI_Comm node, size_t count) MUST_CHECK;
void shared_slots_close(const communicator *c, struct shared_slots *s);

/* Begins a pass; call it before the first gate. */
void shared_slots_begin(struct shared_slots *s);
/* Every slot's [first, first + count) ← the mean of all slots, in rank order (reduce_mean_ordered).
 * Here and below: if `first` is not a multiple of 16, ranks share cache lines, which is slower. */
void shared_slots_mean(struct shared_slots *s, size_t first, size_t count);
/* This rank's share (ranks_chunk) of [0, count) in its own slot ← the mean of all slots. No rank
 * writes into another rank's slot. */
void shared_slots_mean_own(struct shared_slots *s, size_t count);
/* out[0..count) ← the mean of all slots' [first, first + count). */
void shared_slots_mean_few(const struct shared_slots *s, size_t first, size_t count, float *out);
/* The first slot's [first, first + count) ← the sum of all slots, in rank order. */
void shared_slots_sum(struct shared_slots *s, size_t first, size_t count);
/* Copies the first slot's [first, first + count) into every slot. */
void shared_slots_spread(struct shared_slots *s, size_t first, size_t count);

#endif
