/*
 * sync_batch_norm.h — batch_norm=synchronised: the sums that batch norm is made of, added up over
 * all ranks in the middle of their forwards and backwards.
 *
 * By gathering them and adding in rank order: the same bits on every rank and with any
 * communicator, whose buffer holds the gradient that is being made. What travels, for a layer of C
 * channels on P ranks: P·(P − 1) × 16·C bytes, once forward and once backward.
 *
 * A rank that fails in between cannot tell the others, who wait for it in the middle of a step of
 * theirs: it ends, and they are ended with it.
 */
#ifndef GRADLAG_SYNC_SYNC_BATCH_NORM_H
#define GRADLAG_SYNC_SYNC_BATCH_NORM_H

#include "sync/communicator/communicator.h"
#include "worker/model/batch_norm_group.h"
#include "worker/worker.h"

struct sync_batch_norm {
    communicator *c;
    worker *worker;
    double *all;                   /* [size][sums] */
    struct batch_norm_group batch; /* shares 0: batch norm is each rank's own */
};

/* Joins the worker to those of the other ranks, where it wants that. ERROR_USAGE where ranks have
 * no parameters in common (communicator=dummy). Close also after an error. */
status sync_batch_norm_open(struct sync_batch_norm *j, worker *w, communicator *c) MUST_CHECK;
void sync_batch_norm_close(struct sync_batch_norm *j);

#endif
