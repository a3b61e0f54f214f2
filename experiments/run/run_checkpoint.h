/*
 * run_checkpoint.h — a run's checkpoint: parameters by name, optimizer state, and as notes where
 * training stands and the settings; and going on from one.
 */
#ifndef GRADLAG_EXPERIMENTS_RUN_RUN_CHECKPOINT_H
#define GRADLAG_EXPERIMENTS_RUN_RUN_CHECKPOINT_H

#include "base/text.h"
#include "results/store/recorder.h"
#include "worker/training.h"

struct run_checkpoint {
    const options *settings; /* key checkpoint: where to */
    const worker *worker;    /* its slices name the tensors */
    const struct training_state *now;
    int64_t run_id;
};
/* The path for one run and version: {run} and {version} in `pattern` become their numbers; without
 * a version (NULL) that word stays. */
void run_checkpoint_path(const char *pattern, int64_t run_id, const uint64_t *version,
                         struct text *out);
/* ERROR_USAGE where `checkpoint` or `trace` cannot be written, as far as can be told before
 * training: there is no such folder, none that one may write in, or it is one itself; or where a
 * checkpoint would overwrite a file that no run with these settings wrote. `run_id`: 0 if it is not
 * known yet. */
status run_checkpoint_check_places(const options *settings, int64_t run_id) MUST_CHECK;
/* Writes the file and, unless `r` is NULL, a row that says so. ERROR_OTHER: it cannot be written.
 * ERROR_USAGE: the file there is not of a run with these settings, and stays as it is. */
status run_checkpoint_save(const struct run_checkpoint *s, recorder *r) MUST_CHECK;

/* SHA-256 of the file. ERROR_DATA: it cannot be read. */
status run_checkpoint_hash(const char *path, char hex[65]) MUST_CHECK;

/* What a checkpoint holds: owns the vectors. */
struct run_checkpoint_file {
    struct training_state state;
    float *parameters, *optimizer_state, *waiting, *ranks, **vectors;
    uint64_t *batches;
    double *account;
};
/* Reads a checkpoint in order to go on from it with `settings`. ERROR_DATA: no such file, damaged,
 * of another model, or without optimizer state that the settings need; ERROR_USAGE: of a run with
 * other settings (they are named), which could not end in the same bits. */
status run_checkpoint_check(const char *path, const options *settings) MUST_CHECK; /* that alone */
status run_checkpoint_open(struct run_checkpoint_file *out, const char *path,
                           const options *settings, const worker *w) MUST_CHECK;
void run_checkpoint_close(struct run_checkpoint_file *s);

#endif
