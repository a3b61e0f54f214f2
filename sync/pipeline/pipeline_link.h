/*
 * pipeline_link.h — messages of a pipeline: between neighbours by MPI point-to-point, between the
 * replicas of a stage by a mean in rank order. Every wait has the communicator's limit.
 *
 * Ranks of one host write to a shared page which rank they wait for. A rank that times out follows
 * this chain and names the rank at its end, which died or hangs. The neighbour of the rank that
 * timed out may only be waiting too. A rank that stopped while it waited still names another rank
 * on the page, so the chain also ends at a rank that no longer writes the time (ranks_is_silent).
 */
#ifndef GRADLAG_SYNC_PIPELINE_PIPELINE_LINK_H
#define GRADLAG_SYNC_PIPELINE_PIPELINE_LINK_H

#include "sync/communicator/ranks.h"

struct waiting_page;

struct pipeline_link {
    communicator *c; /* of all ranks, borrowed */
    unsigned stage, stages, replica, replicas;
    communicator stage_group; /* the ranks of this stage in all replicas */
    struct ranks stage_ranks; /* of stage_group */
    MPI_Win window;
    struct waiting_page *page; /* NULL: several hosts */
    uint64_t waited_ns;        /* for neighbours, in total */
};

enum link_way { LINK_FORWARD, LINK_BACKWARD }; /* to the next stage, to the stage before */

/* Collective. `count`: the largest vector of link_mean. Call link_close also after an error. */
status link_open(struct pipeline_link *l, communicator *c, unsigned stages,
                 size_t count) MUST_CHECK;
void link_close(struct pipeline_link *l);

/* Begins to send to the neighbour in that direction; `data` must not change until the request is
 * complete. */
status link_send(struct pipeline_link *l, enum link_way way, const float *data, size_t count,
                 MPI_Request *request) MUST_CHECK;
/* Waits for an earlier send; returns at once for MPI_REQUEST_NULL. */
status link_wait_sent(struct pipeline_link *l, enum link_way way, MPI_Request *request) MUST_CHECK;
/* Receives a message of that direction: LINK_FORWARD is from the stage before. */
status link_receive(struct pipeline_link *l, enum link_way way, float *data,
                    size_t count) MUST_CHECK;
/* data[0..count) ← the mean over the replicas of this stage, in their order. */
status link_mean(struct pipeline_link *l, float *data, size_t count) MUST_CHECK;
/* notes[COMMUNICATOR_NOTES] ← their means over all ranks. */
status link_notes(struct pipeline_link *l, float *notes) MUST_CHECK;
/* Copies `own` (count elements) of every stage k of replica 0 to rank 0's whole + offsets[k]. Other
 * replicas only call it. */
status link_collect(struct pipeline_link *l, const float *own, size_t count, float *whole,
                    const size_t *offsets, const size_t *counts) MUST_CHECK;

#endif
