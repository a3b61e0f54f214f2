/*
 * recorder.h — writes one run into the results file. Callers need no SQL.
 *
 * The recorder_ROW() functions copy a row into memory and return; a writer thread commits about
 * once a second. After recorder_begin() or recorder_resume(), any thread may call them. A recorder
 * belongs to one run. A child after fork() must not use it.
 *
 * Rows wait in reused blocks, so the recorder allocates nothing while the writer thread keeps up.
 * If the writer falls behind, memory grows to at most 256 MiB; then callers block. If the disk is
 * full, rows wait in memory and are written when there is space again. Rows are lost only if
 * writing fails for another reason, if memory is full too, or if the disk is still full at the end.
 * The error is then logged once, later rows are dropped, and recorder_finish() returns the error.
 * Committed rows stay in the file.
 *
 * Units, NaN and NOT_MEASURED: see results/records.h.
 */
#ifndef GRADLAG_RESULTS_STORE_RECORDER_H
#define GRADLAG_RESULTS_STORE_RECORDER_H

#include "base/status.h"
#include "results/records.h"

typedef struct recorder recorder;

/* A new run's row. Text is copied; NULL becomes SQL NULL. */
struct run_description {
    const char *experiment, *arm, *tag;
    const char *mode, *engine, *model, *dataset, *device, *optimizer, *consistency, *damping;
    const char *correction, *communicator, *compression;
    unsigned workers, batch;
    uint64_t seed;
    double lr, momentum;
    const char *config;   /* JSON object: every key and value */
    const char *settings; /* JSON object: the keys that determine the outcome, without the seed */
    const char *config_hash; /* SHA-256 of the keys that determine the outcome, with the seed */
    const char *host;        /* JSON object: cpu, gpu, library versions, git commit, build flags */
    const char *precision; /* what precision=auto chose: the detail of event `precision`; or NULL */
};

/* How a run ended. The recorder computes accuracies from the evaluation rows, and staleness from
 * the push rows with outcome applied or aggregated. */
struct run_outcome {
    const char *status; /* finished, diverged, failed, stopped */
    const char *error;  /* message, or NULL */
    uint64_t updates, samples_used, samples_computed;
    /* Staleness of the gradients that were used, for runs without push rows (record=evaluations).
     * gradients == 0: not known. */
    struct {
        uint64_t gradients, most;
        double sum;
    } staleness;
    double train_seconds;
    double sent_bytes;             /* gradients that all ranks together sent */
    const char *parameters_sha256; /* or NULL */
    const char *device;            /* description of the device; or NULL */
    const char *program;           /* model=external: a JSON object that identifies it; or NULL */
    const char *communicator;      /* the choice of communicator=auto; or NULL */
    const char *network;           /* description of the network between ranks; or NULL */
};

/* Opens or creates the file. Ends the runs in it whose process no longer exists (run_owner.h).
 * ERROR_RESULTS: the file is of another program (application_id) or of another version
 * (user_version), is not writable, or stays locked for longer than the busy timeout (2 minutes). */
status recorder_open(recorder **out, const char *path) MUST_CHECK;
/* For the whole process: when is_requested() returns true, waits for the lock of a results file end
 * with STOPPED. Threads that wait call it about 20 times a second. NULL: never. */
void recorder_give_up_when(bool (*is_requested)(void));
/* Call before the run begins. The writer thread calls `on_error` once, when it cannot write rows
 * for the first time. on_error should make training stop; without it training continues. */
void recorder_on_error(recorder *r, void (*on_error)(void *context), void *context);
/* Adds the run's row with status "queued" or "running"; *run_id is its id. */
status recorder_begin(recorder *r, const struct run_description *run, const char *run_status,
                      int64_t *run_id) MUST_CHECK;
/* Continues a row that another process began. Sets status to "running", and the start time if it is
 * NULL. ERROR_RESULTS: no such run, or it has ended. */
status recorder_resume(recorder *r, int64_t run_id) MUST_CHECK;

void recorder_push(recorder *r, const struct push_record *row);
void recorder_step(recorder *r, const struct step_record *row);
void recorder_pass(recorder *r, const struct pass_record *row);
void recorder_evaluation(recorder *r, const struct evaluation_record *row);
/* Call it about once a second. */
void recorder_progress(recorder *r, const struct progress_record *now);
void recorder_event(recorder *r, double at_seconds, enum severity severity, const char *code,
                    int worker /* or NO_WORKER */, const char *detail);
/* An event that the server core received after `push_number` pushes. */
void recorder_event_between(recorder *r, double at_seconds, uint64_t push_number,
                            enum severity severity, const char *code, int worker,
                            const char *detail);
/* Like recorder_event_between(), which records for server 0, but for any server. */
void recorder_event_at(recorder *r, uint32_t server, double at_seconds, uint64_t push_number,
                       enum severity severity, const char *code, int worker, const char *detail);
/* Returns when the rows so far are committed, after two seconds, or if the disk is full. Call it
 * before a checkpoint replaces another: a restart from it writes no earlier rows. NULL-safe. */
void recorder_flush(recorder *r);
/* The row is written at once: a restart reads it. */
void recorder_checkpoint(recorder *r, uint64_t version, const char *path, const char *sha256);
/* The run continues from a checkpoint: this JSON object becomes member `resumed` of run.host. */
void recorder_origin(recorder *r, const char *json);

/* Writes all waiting rows, then the outcome. Returns an error of the writer thread. */
status recorder_finish(recorder *r, const struct run_outcome *outcome) MUST_CHECK;
/* Writes all waiting rows, stops the writer thread and closes the file. NULL-safe. */
void recorder_close(recorder **r);

/* true: from now on this process keeps an opened results file open for the next use, also for
 * queries (kept_connections.h). It does so until it ends or calls this with false. For processes
 * that start others. */
void recorder_keep_open(bool keep);

/* The process that started the others calls it after they have ended and before it starts them
 * again from a checkpoint at `version`. Deletes later steps, passes, evaluations and checkpoints,
 * and the counts of the row. Writes event `restarted` with `detail` and sets status `running`.
 * ERROR_RESULTS: the run has finished, or there is none. */
status recorder_roll_back(const char *path, int64_t run_id, uint64_t version,
                          const char *detail) MUST_CHECK;

/* The process that started the others calls it after they have ended. If the run's row is still
 * queued or running, sets status and error, and computes counts from the committed rows. *changed
 * (may be NULL): whether it did. */
status recorder_settle(const char *path, int64_t run_id, const char *run_status, const char *error,
                       bool *changed) MUST_CHECK;

#endif
