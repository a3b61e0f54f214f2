/*
 * joint.h — batch_norm=synchronised: the sums that batch norm is made of, added up over all ranks
 * in the middle of their forwards and backwards.
 *
 * By gathering them and adding in rank order: the same bits on every rank and with any
 * communicator, whose buffer holds the gradient that is being made. What travels, for a layer of C
 * channels on P ranks: P·(P − 1) × 16·C bytes, once forward and once backward.
 *
 * A rank that fails in between cannot tell the others, who wait for it in the middle of a step of
 * theirs: it ends, and they are ended with it.
 */
#ifndef GRADLAG_SYNC_JOINT_H
#define GRADLAG_SYNC_JOINT_H

#include "sync/communicator.h"
#include "worker/joint.h"
#include "worker/worker.h"

struct joint {
    communicator *c;
    worker *worker;
    double *all;              /* [size][sums] */
    struct joint_batch batch; /* shares 0: batch norm is each rank's own */
};

/* Joins the worker to those of the other ranks, where it wants that. ERROR_USAGE where ranks have
 * no parameters in common. Close also after an error. */
status joint_open(struct joint *j, const options *o, worker *w, communicator *c) MUST_CHECK;
void joint_close(struct joint *j);

#endif
