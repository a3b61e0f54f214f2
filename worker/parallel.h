/*
 * parallel.h — the same job on many items, on the cores there are. For work done once, such as
 * decoding a dataset; a training step has its own threads.
 */
#ifndef GRADLAG_WORKER_PARALLEL_H
#define GRADLAG_WORKER_PARALLEL_H

#include "worker/base.h"

/* Calls job(context, i) for every i below count, each exactly once unless one fails, on at most
 * `threads` threads, this one among them. Returns when all are done. After a failure no further
 * item is begun; the error of the lowest item that failed is returned with its message. */
status parallel_for(size_t count, unsigned threads, status (*job)(void *context, size_t item),
                    void *context) MUST_CHECK;

#endif
