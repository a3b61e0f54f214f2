/*
 * pipeline_passes.h — rows of `pass` for timelines (key trace): which stage computed the forward or
 * backward of which micro-batch, and when. Without key trace nothing is kept.
 */
#ifndef GRADLAG_SYNC_PIPELINE_PIPELINE_PASSES_H
#define GRADLAG_SYNC_PIPELINE_PIPELINE_PASSES_H

#include "results/store/recorder.h"
#include "sync/communicator/communicator.h"

struct sync_metrics;
struct pass_row;

struct pass_log {
    communicator *c;                   /* NULL: no rows are kept */
    const struct sync_metrics *report; /* the training clock */
    struct pass_row *rows, *gathered;
    uint32_t *counts;   /* [size], gathered */
    uint64_t *recorded; /* [size] passes recorded of each rank, on rank 0 */
    uint32_t count, room;
};

/* `most`: the largest number of passes between two gathers. All pointers are borrowed. */
status passes_open(struct pass_log *log, const options *o, communicator *c,
                   const struct sync_metrics *r, uint32_t most) MUST_CHECK;
static inline bool passes_kept(const struct pass_log *log)
{
    return log->c != NULL;
}
void passes_close(struct pass_log *log);
/* Call it at the end of a pass of `took_ns`. `version`: updates applied when the pass began. */
void passes_add(struct pass_log *log, bool backward, uint64_t update, uint32_t micro_batch,
                uint64_t version, uint64_t took_ns);
/* Whether there is no room for `more` passes. The same on all ranks of a pipeline with flushes. */
bool passes_full(const struct pass_log *log, uint32_t more);
/* Collective: rank 0 records the passes of all ranks in `to` (NULL: nothing). */
status passes_record_all(struct pass_log *log, recorder *to) MUST_CHECK;

#endif
