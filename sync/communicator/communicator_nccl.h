/*
 * communicator_nccl.h — NCCL as communicator_nccl.c needs it. communicator_nccl_library.c, built
 * where nccl.h is found, looks for the library when it is first wanted (dlopen), so that the
 * program starts where it is not installed.
 */
#ifndef GRADLAG_SYNC_COMMUNICATOR_COMMUNICATOR_NCCL_H
#define GRADLAG_SYNC_COMMUNICATOR_COMMUNICATOR_NCCL_H

#include "sync/communicator/communicator.h"

/* Whether ranks exchange with communicator=nccl if they are free to choose: more than one rank,
 * each on a GPU of its own, NCCL there on all, and no order of the sum asked for. Collective. */
status nccl_fits(communicator *c, bool *out) MUST_CHECK;

/* ---- the library (with GRADLAG_NCCL) ------------------------------------------------------------
 * Errors: ERROR_PEER, but ERROR_USAGE where the library is not to be had. */
typedef struct nccl nccl;
enum { NCCL_ID_BYTES = 128 };

status nccl_load(void) MUST_CHECK;
int nccl_version(void); /* 22809 is 2.28.9; after nccl_load */
status nccl_make_id(uint8_t id[NCCL_ID_BYTES]) MUST_CHECK;
/* Collective; blocks until all ranks are in it. `device`: the GPU among the visible ones. */
status nccl_join(nccl **out, const uint8_t id[NCCL_ID_BYTES], unsigned rank, unsigned size,
                 unsigned device) MUST_CHECK;
/* `abandon`: after an error, without waiting for anybody. */
void nccl_leave(nccl **n, bool abandon);
/* Queues data[0..count) ← Σ over ranks on `stream`, a cudaStream_t. */
status nccl_sum(nccl *n, float *data, size_t count, void *stream) MUST_CHECK;
/* Whether all that was queued on `stream` is done; or what went wrong meanwhile. */
status nccl_done(nccl *n, void *stream, bool *done) MUST_CHECK;

#endif
