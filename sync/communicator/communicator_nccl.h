/*
 * communicator_nccl.h — the calls of NCCL that communicator_nccl.c needs.
 * communicator_nccl_library.c implements them; it is built if nccl.h is found. It loads the library
 * at the first use (dlopen), so the program also starts on hosts without NCCL.
 */
#ifndef GRADLAG_SYNC_COMMUNICATOR_COMMUNICATOR_NCCL_H
#define GRADLAG_SYNC_COMMUNICATOR_COMMUNICATOR_NCCL_H

#include "sync/communicator/communicator.h"

/* Whether communicator=auto chooses nccl: more than one rank, each on its own GPU, NCCL installed
 * for all, and reduction is not ordered. Collective. */
status nccl_fits(communicator *c, bool *out) MUST_CHECK;

/* ---- the library (with GRADLAG_NCCL) ------------------------------------------------------------
 * Errors: ERROR_PEER; ERROR_USAGE if the library cannot be loaded; ERROR_OTHER of CUDA. */
typedef struct nccl nccl;
enum { NCCL_ID_BYTES = 128 };

status nccl_load(void) MUST_CHECK;
int nccl_version(void); /* 22809 is 2.28.9; after nccl_load */
status nccl_make_id(uint8_t id[NCCL_ID_BYTES]) MUST_CHECK;
/* Collective; blocks until all ranks have called it. `device`: index among the visible GPUs. */
status nccl_join(nccl **out, const uint8_t id[NCCL_ID_BYTES], unsigned rank, unsigned size,
                 unsigned device) MUST_CHECK;
/* `abandon`: after an error; does not wait for other ranks. */
void nccl_leave(nccl **n, bool abandon);
/* Queues data[0..count) ← Σ over ranks on `stream`, a cudaStream_t. */
status nccl_sum(nccl *n, float *data, size_t count, void *stream) MUST_CHECK;
/* *done ← whether all work queued on `stream` is complete. Returns errors of that work. */
status nccl_done(nccl *n, void *stream, bool *done) MUST_CHECK;

#endif
