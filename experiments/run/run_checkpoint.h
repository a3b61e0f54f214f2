/*
 * run_checkpoint.h — writes and reads checkpoints of runs: named parameters, optimizer state,
 * statistics of batch norm, and notes with the position of training and the settings. Statistics
 * are for other programs: no reader here needs them.
 */
#ifndef GRADLAG_EXPERIMENTS_RUN_RUN_CHECKPOINT_H
#define GRADLAG_EXPERIMENTS_RUN_RUN_CHECKPOINT_H

#include "base/text.h"
#include "results/store/recorder.h"
#include "worker/training.h"

struct run_checkpoint {
    const options *settings; /* key checkpoint is the path */
    const worker *worker;    /* its slices name the tensors */
    const struct training_state *now;
    const struct worker_statistic *statistics; /* batch norm's, at now->parameters; borrowed */
    size_t statistic_count;                    /* 0: none are written */
    int64_t run_id;
};
/* Adds the path for one run and version: {run} and {version} in `pattern` become numbers. version
 * NULL: {version} is kept. */
void run_checkpoint_path(const char *pattern, int64_t run_id, const uint64_t *version,
                         struct text *out);
/* Checks the paths of `checkpoint` and `trace` before training. ERROR_USAGE: the path is a folder,
 * its folder does not exist or is not writable, or a checkpoint would overwrite a file that no run
 * with these settings wrote. `run_id`: 0 if unknown. */
status run_checkpoint_check_paths(const options *settings, int64_t run_id) MUST_CHECK;
/* Writes the file and, unless `r` is NULL, a row of table checkpoint. ERROR_OTHER: it cannot be
 * written. ERROR_USAGE: the existing file is from a run with other settings; it is kept. */
status run_checkpoint_save(const struct run_checkpoint *s, recorder *r) MUST_CHECK;

/* SHA-256 of the file. ERROR_DATA: it cannot be read. */
status run_checkpoint_hash(const char *path, char hex[65]) MUST_CHECK;

/* The contents of a checkpoint; owns all vectors. */
struct run_checkpoint_file {
    struct training_state state;
    float *parameters, *optimizer_state, *ranks, **vectors;
    uint64_t *batches;
    double *account;
};
/* run_checkpoint_open reads a checkpoint, to resume with `settings`. run_checkpoint_check only
 * checks the notes. ERROR_DATA: file missing or damaged, another model, or needed optimizer state
 * missing. ERROR_USAGE: it is from a run with other settings (named), so the result could not be
 * the same. */
status run_checkpoint_check(const char *path, const options *settings,
                            uint64_t *version /* or NULL */) MUST_CHECK;
status run_checkpoint_open(struct run_checkpoint_file *out, const char *path,
                           const options *settings, const worker *w) MUST_CHECK;
void run_checkpoint_close(struct run_checkpoint_file *s);

#endif
