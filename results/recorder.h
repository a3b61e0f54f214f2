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
#ifndef GRADLAG_RESULTS_RECORDER_H
#define GRADLAG_RESULTS_RECORDER_H

#include "worker/base.h"

typedef struct recorder recorder;

/* A NaN that no computation yields: a quiet one with a payload of its own. */
#define NOT_MEASURED __builtin_nan("0x676c6167")

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

enum push_outcome { /* stored as text: "applied", … */
                    PUSH_APPLIED,
                    PUSH_AGGREGATED, /* held, applied with others in one update */
                    PUSH_DROPPED_STALE,
                    PUSH_DROPPED_LATE,   /* the update or the run it was for had already ended */
                    PUSH_NOT_FINITE = 5, /* 4 has never been written */
};

/* Why it was not used; stored as text. */
enum push_reason {
    PUSH_USED,           /* it was: NULL */
    PUSH_BY_DAMPING,     /* dropped by the damping rule */
    PUSH_BY_CONSISTENCY, /* by the consistency policy */
    PUSH_AFTER_END,      /* it came when the run had ended */
    PUSH_WORKER_LOST,    /* it waited for others when its worker was lost */
    PUSH_RUN_ENDED,      /* it waited for others when the run ended */
    PUSH_RUN_DIVERGED,   /* likewise, for what another one sent */
    PUSH_BAD_GRADIENT,   /* it is itself not finite */
    PUSH_BAD_LOSS,
    PUSH_BAD_UPDATE, /* it is finite, the update that it completed is not */
};

enum { NO_WORKER = -1 };

struct push_record {
    uint64_t arrival;        /* pushes handed to the core before it: the order to replay */
    uint64_t update_version; /* version after the update it went into; version then, if dropped */
    uint32_t worker;
    int32_t waited_for;    /* whose push or loss let the worker go on to compute it; or NO_WORKER */
    uint64_t batch;        /* number of the batch it is the gradient of */
    uint64_t sequence;     /* the worker's own count of pushes, from 0 */
    uint64_t read_version; /* version the gradient was computed at */
    uint64_t staleness;    /* τ */
    double scale;          /* s(τ) */
    double rate;           /* learning rate it got: schedule's × scale; NOT_MEASURED if not used */
    double gap, gradient_norm, loss;
    enum push_outcome outcome;
    enum push_reason reason;
    double pull_us, compute_us; /* reported by the worker: waiting for parameters; the step */
    double queue_us, apply_us;  /* on the server: from arrival to apply; apply */
    double at_seconds;
    /* Every n-th one's (probe_every): cosine of the angle to a fresh gradient of the same batch, at
     * the parameters that it met; NOT_MEASURED for the others. */
    double cosine;
    /* Of the update, where the correction moves it: the optimizer's, and what was measured in all.
     */
    double momentum, total_momentum;
    uint32_t server; /* whose part of the gradient this is about; all above is that server's */
    double data_us, forward_us, backward_us; /* of compute_us */
};

struct step_record {
    uint64_t update_version;
    uint32_t worker;
    double loss, compute_us, exchange_us, apply_us;
    double data_us, forward_us, backward_us; /* of compute_us */
    double hidden_us;                        /* of exchange, while the rank computed */
    uint64_t staleness;                      /* of the gradient: 1 with double buffering */
    double at_seconds;                       /* when it ended */
};

/* A stage of a pipeline read a micro-batch forwards or backwards. */
struct pass_record {
    uint64_t number; /* of its rank's passes, from 0 */
    uint32_t worker, micro_batch;
    uint64_t update_version; /* that the gradient goes into */
    uint64_t version;        /* updates applied when it began */
    bool backward;
    double compute_us;
    double at_seconds; /* when it ended */
};

/* A split whose accuracy is NaN is taken as not measured, together with its loss. */
struct evaluation_record {
    uint64_t updates, samples;
    double seconds;
    double train_loss, validation_loss, validation_accuracy, test_loss, test_accuracy;
    double took_seconds;    /* of the machine's time */
    double top_class_share; /* of the test predictions, the most predicted class's; NaN: unknown */
};

/* How far the run is; the latest one alone is kept, in its row, and not beyond its end. */
struct progress_record {
    uint64_t updates, samples, total_samples;
    double seconds, loss, staleness; /* loss lately, mean staleness so far; not finite: not known */
};

/* An event that has no place among the pushes. */
#define PUSHES_UNKNOWN UINT64_MAX

enum severity { SEVERITY_INFO, SEVERITY_WARNING, SEVERITY_ERROR };

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
    const char *communicator;      /* the one that communicator=auto chose; or NULL */
    const char *network;           /* by which ranks exchanged messages, in words; or NULL */
};

/* Opens or creates the file; brings an older one up to date, and ends runs in it whose process is
 * gone (runner.h). ERROR_RESULTS: not ours (application_id), newer (user_version), not
 * writable, locked for longer than the busy timeout (2 minutes). */
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
