/*
 * checkpoint.h — parameters and optimizer state as a .safetensors file, which PyTorch and others
 * read. The file is written to a temporary name, synced and renamed.
 *
 * Format: u64 little-endian header length; JSON header {"name": {"dtype":"F32","shape":[…],
 * "data_offsets":[begin,end]}, …, "__metadata__": {text: text}}; data.
 */
#ifndef GRADLAG_WORKER_CHECKPOINT_H
#define GRADLAG_WORKER_CHECKPOINT_H

#include "worker/worker.h"

struct checkpoint_tensor {
    const char *name;
    unsigned rank;
    uint32_t shape[4];
    float *data; /* borrowed; checkpoint_write reads it, checkpoint_read writes it */
};
struct checkpoint_note {
    const char *key, *value;
};

/* Writes all tensors as F32, in this order, and the notes. Replaces `path` only when the new file
 * is complete. */
status checkpoint_write(const char *path, const struct checkpoint_tensor *tensors,
                        size_t tensor_count, const struct checkpoint_note *notes,
                        size_t note_count) MUST_CHECK;
/* Fills every tensor named in `tensors` from the file and ignores other tensors. Sets the values of
 * `notes` to copies that the caller frees (memory_free); NULL: the file lacks the key. ERROR_DATA:
 * a tensor is missing or has another shape or dtype, or the file is truncated or malformed; then
 * some tensors may be filled. */
status checkpoint_read(const char *path, const struct checkpoint_tensor *tensors,
                       size_t tensor_count, struct checkpoint_note *notes,
                       size_t note_count) MUST_CHECK;
/* True: no parameter may have this name, because a checkpoint of a run (run_checkpoint.c) uses it
 * otherwise: __metadata__, ranks, correctionN, waitingN, optimizerN.NAME, with a number N. */
bool checkpoint_name_is_reserved(const char *name);

#endif
