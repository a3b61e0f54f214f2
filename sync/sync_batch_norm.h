/*
 * sync_batch_norm.h — SyncBatchNorm (batch_norm=synchronised): batch norm's sums, added over all
 * ranks during the forward and the backward pass.
 *
 * The sums are gathered and added in rank order: the same bits on every rank and with any
 * communicator. The communicator's buffer is not used, because it holds the gradient. Bytes for a
 * layer of C channels on P ranks: P·(P − 1) × 16·C, once forward and once backward.
 *
 * If a rank fails between the exchanges, the other ranks wait for it inside batch norm. So the
 * failed rank must end its process, and the launcher then ends the others.
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
    struct batch_norm_group batch; /* shares 0: local statistics */
};

/* Sets the SyncBatchNorm group of the worker, if its model has synchronised layers. ERROR_USAGE
 * with communicator=dummy, whose ranks have different parameters. Close it also after an error. */
status sync_batch_norm_open(struct sync_batch_norm *j, worker *w, communicator *c) MUST_CHECK;
void sync_batch_norm_close(struct sync_batch_norm *j);

#endif
