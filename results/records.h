/*
 * records.h — the rows that training produces: one push, step, pass, evaluation or progress report.
 * Plain structs without SQL, so that the server core and the wire format can use them.
 *
 * Times are seconds since training began, without evaluation; *_us are microseconds, stored as
 * whole ones. Every `double` of a row may be NaN or infinite and is kept as such. NOT_MEASURED
 * marks a value that does not exist (SQL NULL).
 */
#ifndef GRADLAG_RESULTS_RECORDS_H
#define GRADLAG_RESULTS_RECORDS_H

#include <stdbool.h>
#include <stdint.h>

/* A NaN that no computation yields: a quiet one with a payload of its own. */
#define NOT_MEASURED __builtin_nan("0x676c6167")

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

#endif
