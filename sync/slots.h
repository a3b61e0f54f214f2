/*
 * slots.h — memory shared by ranks of one host: a slot for each rank's vector, and adding them up
 * together. What communicators `shared` and `hierarchical` have in common.
 *
 * The vector is cut into a part for each rank, a part into blocks. A rank takes the blocks of its
 * own part, then what others have not yet taken of theirs: so nobody waits for a rank that has no
 * processor just now, and who adds up a block does not change its bits.
 *
 * One pass is: everybody writes its slot; gate; slots_mean or slots_sum; gate; everybody reads.
 */
#ifndef GRADLAG_SYNC_SLOTS_H
#define GRADLAG_SYNC_SLOTS_H

#include "sync/ranks.h"

struct slot_turn;

struct slots {
    MPI_Win window;
    unsigned index, size; /* of this rank among those of the window */
    float **at;           /* [size] every rank's slot, seen from here; 64-byte aligned */
    struct slot_turn **turns;
    const float **blocks; /* [size] scratch */
};

/* Slots of `count` floats for the ranks of `node`, all on this host; collective among them. After
 * an error slots_close is still due. */
status slots_open(struct slots *s, MPI_Comm node, size_t count) MUST_CHECK;
void slots_close(const communicator *c, struct slots *s);

/* Begins a pass: before its first gate. */
void slots_begin(struct slots *s);
/* Every slot's [first, first + count) ← the mean of all slots, added in order
 * (reduce_mean_ordered); here and below `first` is a multiple of 16. */
void slots_mean(struct slots *s, size_t first, size_t count);
/* This rank's slot's share of [0, count), by ranks_chunk, ← the mean of all slots. Of this alone
 * every rank does its own: nobody writes into another's slot. */
void slots_mean_own(struct slots *s, size_t count);
/* out[0..count) ← the mean of all slots' [first, first + count). */
void slots_mean_few(const struct slots *s, size_t first, size_t count, float *out);
/* The first slot's [first, first + count) ← the sum of all slots, added in order. */
void slots_sum(struct slots *s, size_t first, size_t count);
/* Every slot's [first, first + count) ← the first one's. */
void slots_spread(struct slots *s, size_t first, size_t count);

/* ---- part by part ------------------------------------------------------------------------------
 *
 * How far ranks are with the parts of a vector. Counts only rise, from vector to vector, and wrap
 * around: "since" is what they were when the present one began. */

/* This rank has written so many parts; has added up its share of so many. */
void slots_tell_written(struct slots *s, unsigned count);
void slots_tell_reduced(struct slots *s, unsigned count);
/* How many all ranks have: since then. */
unsigned slots_all_written(const struct slots *s, unsigned since);
unsigned slots_all_reduced(const struct slots *s, unsigned since);
/* As slots_mean, of this rank's share of [first, first + count). */
void slots_mean_share(struct slots *s, size_t first, size_t count);

#endif
