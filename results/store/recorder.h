/*
 * recorder.h — what a run writes into the results file. It knows SQL; nobody who calls it does.
 *
 * Calls that record rows copy them into memory and return at once; a writer thread commits about
 * once a second. Any thread may call them, once the run was begun or resumed. A recorder belongs to
 * one run, and is not carried across fork().
 *
 * The rows wait in blocks that are used again, so nothing is allocated as long as the writer keeps
 * up. If it falls behind, memory grows to at most 256 MiB; then the calls wait for it. While the
 * disk is full, rows wait in memory in the same way and are written once there is room. No row is
 * lost unless writing fails for good, with memory full, at the end, or for another reason; then
 * this is logged once, later rows are dropped, and recorder_finish() returns the error. What was
 * committed before stays whole.
 *
 * Times are seconds since training began, without evaluation; *_us are microseconds, stored as
 * whole ones. Every `double` of a row may be NaN or infinite and is kept as such; NOT_MEASURED is
 * for what there is no value of (SQL NULL).
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
    const char *config;      /* JSON object: every key and value */
    const char *settings;    /* JSON object: of those, what decides the outcome, but the seed */
    const char *config_hash; /* SHA-256 of what decides the outcome: finds a combination again */
    const char *host;        /* JSON object: cpu, gpu, library versions, git commit, build flags */
};

/* How a run ended. Final, best and last accuracies are taken from the evaluation rows by the
 * recorder, staleness figures from the push rows (applied and aggregated ones). */
struct run_outcome {
    const char *status; /* finished, diverged, failed, stopped */
    const char *error;  /* message, or NULL */
    uint64_t updates, samples_used, samples_computed;
    /* Where no rows tell (record=evaluations): of gradients that went into updates; none: not
     * known. */
    struct {
        uint64_t gradients, most;
        double sum;
    } staleness;
    double train_seconds;
    double sent_bytes;             /* of gradients, by all ranks together */
    const char *parameters_sha256; /* or NULL */
    const char *device;            /* what it was computed on, in words; or NULL */
    const char *program;           /* model=external: a JSON object that identifies it; or NULL */
    const char *communicator;      /* the one that communicator=auto chose; or NULL */
    const char *network;           /* by which ranks exchanged messages, in words; or NULL */
};

/* Opens or creates the file, and ends runs in it whose process is gone (run_owner.h).
 * ERROR_RESULTS: the file is of another program (application_id) or of another version
 * (user_version), is not writable, or stays locked for longer than the busy timeout (2 minutes). */
status recorder_open(recorder **out, const char *path) MUST_CHECK;
/* Whoever in this process waits for such a lock gives up, with STOPPED, once `wanted` says so.
 * Asked from any thread that waits, about 20 times a second. */
void recorder_give_up_when(bool (*wanted)(void));
/* Before the run is begun: `on_error` is called once, from the writer's thread, when rows could not
 * be written for the first time. It should ask training to stop; without it training goes on. */
void recorder_on_error(recorder *r, void (*on_error)(void *context), void *context);
/* Adds the run's row (status as given: "queued" or "running"); *run_id is its id. */
status recorder_begin(recorder *r, const struct run_description *run, const char *run_status,
                      int64_t *run_id) MUST_CHECK;
/* Goes on with a row that another process began; sets its status to "running" and its start time,
 * if it has none yet. */
status recorder_resume(recorder *r, int64_t run_id) MUST_CHECK;

void recorder_push(recorder *r, const struct push_record *row);
void recorder_step(recorder *r, const struct step_record *row);
void recorder_pass(recorder *r, const struct pass_record *row);
void recorder_evaluation(recorder *r, const struct evaluation_record *row);
/* Worth a call about once a second. */
void recorder_progress(recorder *r, const struct progress_record *now);
void recorder_event(recorder *r, double at_seconds, enum severity severity, const char *code,
                    int worker /* or NO_WORKER */, const char *detail);
/* One that the parameter server was told between its pushes; `push_number` of them came before. */
void recorder_event_between(recorder *r, double at_seconds, uint64_t push_number,
                            enum severity severity, const char *code, int worker,
                            const char *detail);
/* The same of one of several servers; recorder_event_between() is of server 0. */
void recorder_event_at(recorder *r, uint32_t server, double at_seconds, uint64_t push_number,
                       enum severity severity, const char *code, int worker, const char *detail);
void recorder_checkpoint(recorder *r, uint64_t version, const char *path, const char *sha256);
/* The run goes on from a checkpoint: this JSON object becomes member `resumed` of run.host. */
void recorder_origin(recorder *r, const char *json);

/* Writes what is outstanding, then the outcome. Errors met by the writer thread show here. */
status recorder_finish(recorder *r, const struct run_outcome *outcome) MUST_CHECK;
/* Stops the writer and closes the file; NULL-safe. What is outstanding is written first. */
void recorder_close(recorder **r);

/* For the process that started the others: if the run's row still says queued or running after they
 * have ended, sets status and error, and figures from the rows that were committed. True in
 * *changed (may be NULL) if it had to. */
status recorder_settle(const char *path, int64_t run_id, const char *run_status, const char *error,
                       bool *changed) MUST_CHECK;

#endif
