/*
 * shared_slots.h — memory shared by ranks of one host: a slot for each rank's vector, and adding
 * them up together. What communicators `shared` and `hierarchical` have in common.
 *
 * The vector is cut into a part for each rank, a part into blocks. A rank takes the blocks of its
 * own part, then what others have not yet taken of theirs: so nobody waits for a rank that has no
 * processor just now, and who adds up a block does not change its bits.
 *
 * One pass is: everybody writes its slot; gate; shared_slots_mean or shared_slots_sum; gate;
 * everybody reads.
 */
#ifndef GRADLAG_SYNC_COMMUNICATOR_SHARED_SLOTS_H
#define GRADLAG_SYNC_COMMUNICATOR_SHARED_SLOTS_H

#include "sync/communicator/ranks.h"

struct slot_turn;

struct shared_slots {
    MPI_Win window;
    unsigned index, size; /* of this rank among those of the window */
    float **at;           /* [size] every rank's slot, seen from here; 64-byte aligned */
    struct slot_turn **turns;
    const float **blocks; /* [size] scratch */
};

/* Slots of `count` floats for the ranks of `node`, all on this host; collective among them. After
 * an error shared_slots_close is still due. */
status shared_slots_open(struct shared_slots *s, MPI_Comm node, size_t count) MUST_CHECK;
void shared_slots_close(const communicator *c, struct shared_slots *s);

/* Begins a pass: before its first gate. */
void shared_slots_begin(struct shared_slots *s);
/* Every slot's [first, first + count) ← the mean of all slots, added in order
 * (reduce_mean_ordered). Here and below: if `first` is not a multiple of 16, ranks share lines. */
void shared_slots_mean(struct shared_slots *s, size_t first, size_t count);
/* This rank's slot's share of [0, count), by ranks_chunk, ← the mean of all slots. Of this alone
 * every rank does its own: nobody writes into another's slot. */
void shared_slots_mean_own(struct shared_slots *s, size_t count);
/* out[0..count) ← the mean of all slots' [first, first + count). */
void shared_slots_mean_few(const struct shared_slots *s, size_t first, size_t count, float *out);
/* The first slot's [first, first + count) ← the sum of all slots, added in order. */
void shared_slots_sum(struct shared_slots *s, size_t first, size_t count);
/* Every slot's [first, first + count) ← the first one's. */
void shared_slots_spread(struct shared_slots *s, size_t first, size_t count);

#endif
