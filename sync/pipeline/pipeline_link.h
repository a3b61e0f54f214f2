/*
 * pipeline_link.h — how the ranks of a pipeline talk: neighbours by MPI point-to-point, the
 * replicas of a stage by a mean in rank order. Every wait has the communicator's limit.
 *
 * Ranks of one host write on a common page for whom they wait. So whoever gives up can follow the
 * chain, and names the stage that nobody waits behind: the one that died or hangs, not its own
 * neighbour, which only waits too.
 */
#ifndef GRADLAG_SYNC_PIPELINE_PIPELINE_LINK_H
#define GRADLAG_SYNC_PIPELINE_PIPELINE_LINK_H

#include "sync/communicator/ranks.h"

struct waiting_page;

struct pipeline_link {
    communicator *c; /* of all ranks; borrowed */
    unsigned stage, stages, replica, replicas;
    communicator stage_group; /* this stage's ranks of all replicas; size 1: itself alone */
    struct ranks stage_ranks; /* its handles */
    MPI_Win window;
    struct waiting_page *page; /* NULL: several hosts */
    uint64_t waited_ns;        /* in all, for neighbours */
};

enum link_way { LINK_FORWARD, LINK_BACKWARD }; /* to the next stage, to the one before */

/* Collective. `count`: the largest vector of link_mean. After an error link_close is still due. */
status link_open(struct pipeline_link *l, communicator *c, unsigned stages,
                 size_t count) MUST_CHECK;
void link_close(struct pipeline_link *l);

/* Sends to the neighbour that way; `data` must stay as it is until the request is done. */
status link_send(struct pipeline_link *l, enum link_way way, const float *data, size_t count,
                 MPI_Request *request) MUST_CHECK;
/* Waits for an earlier send; MPI_REQUEST_NULL: nothing to wait for. */
status link_wait_sent(struct pipeline_link *l, enum link_way way, MPI_Request *request) MUST_CHECK;
/* What comes that way: with LINK_FORWARD from the stage before. */
status link_receive(struct pipeline_link *l, enum link_way way, float *data,
                    size_t count) MUST_CHECK;
/* data[0..count) ← the mean over the replicas of this stage, added in their order. */
status link_mean(struct pipeline_link *l, float *data, size_t count) MUST_CHECK;
/* notes[COMMUNICATOR_NOTES] ← their means over all ranks. */
status link_notes(struct pipeline_link *l, float *notes) MUST_CHECK;
/* Of replica 0: every stage's `own` (count elements) to rank 0's whole + offset. */
status link_collect(struct pipeline_link *l, const float *own, size_t count, float *whole,
                    const size_t *offsets, const size_t *counts) MUST_CHECK;

#endif
