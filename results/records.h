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

#include "base/measured.h"

#include <stdbool.h>
#include <stdint.h>

enum push_outcome { /* stored as text: "applied", … */
                    PUSH_APPLIED,
                    PUSH_AGGREGATED, /* held, applied with others in one update */
                    PUSH_DROPPED_STALE,
                    PUSH_DROPPED_LATE, /* the update or the run it was for had already ended */
                    PUSH_NOT_FINITE,
};

/* Why a gradient was not used; stored as text. */
enum push_reason {
    PUSH_USED,           /* it was used: NULL */
    PUSH_BY_DAMPING,     /* the damping rule dropped it */
    PUSH_BY_CONSISTENCY, /* the consistency policy dropped it */
    PUSH_AFTER_END,      /* it arrived after the run had ended */
    PUSH_WORKER_LOST,    /* it waited for other gradients when its worker was lost */
    PUSH_RUN_ENDED,      /* it waited for other gradients when the run ended */
    PUSH_RUN_DIVERGED,   /* it waited when another gradient made the run diverge */
    PUSH_BAD_GRADIENT,   /* the gradient is not finite */
    PUSH_BAD_LOSS,       /* its loss is not finite */
    PUSH_BAD_UPDATE,     /* the gradient is finite; the update that it completed is not */
};

enum { NO_WORKER = -1 };

struct push_record {
    uint64_t arrival;        /* pushes that the core received before this one; replay order */
    uint64_t update_version; /* version after its update; if dropped: the current version */
    uint32_t worker;
    int32_t waited_for;    /* worker that released this one: it pushed or was lost; or NO_WORKER */
    uint64_t batch;        /* number of its batch */
    uint64_t sequence;     /* the worker's own count of pushes, from 0 */
    uint64_t read_version; /* version the gradient was computed at */
    uint64_t staleness;    /* τ */
    double scale;          /* s(τ) */
    double rate; /* its learning rate: the schedule's × scale; NOT_MEASURED if not used */
    double gap, gradient_norm, loss;
    enum push_outcome outcome;
    enum push_reason reason;
    double pull_us, compute_us; /* measured by the worker: wait for parameters; the step */
    double queue_us, apply_us;  /* measured by the server: arrival to update; the update */
    double at_seconds;
    /* For every n-th gradient (probe_every): cosine of the angle to a fresh gradient of the same
     * batch at the parameters that it is applied to. NOT_MEASURED for the other gradients. */
    double cosine;
    /* Set if the correction changes the momentum: the optimizer's, and the measured total. */
    double momentum, total_momentum;
    uint32_t server;                         /* the row describes the slice of this server */
    double data_us, forward_us, backward_us; /* parts of compute_us */
};

struct step_record {
    uint64_t update_version;
    uint32_t worker;
    double loss, compute_us, exchange_us, apply_us;
    double data_us, forward_us, backward_us; /* parts of compute_us */
    double hidden_us;                        /* exchange while the rank computed */
    uint64_t staleness;                      /* of the gradient: at most key delay */
    double at_seconds;                       /* end of the step */
};

/* One forward or backward pass of a micro-batch through a pipeline stage. */
struct pass_record {
    uint64_t number; /* counts the passes of the rank, from 0 */
    uint32_t worker, micro_batch;
    uint64_t update_version; /* version after the update of this gradient */
    uint64_t version;        /* updates applied when the pass began */
    bool backward;
    double compute_us;
    double at_seconds; /* end of the pass */
};

/* The loss of an empty split is NOT_MEASURED. An accuracy that is NaN counts as not measured. */
struct evaluation_record {
    uint64_t updates, samples;
    double seconds;
    double train_loss, validation_loss, validation_accuracy, test_loss, test_accuracy;
    double took_seconds; /* wall-clock duration of the evaluation */
    double
        top_class_share; /* share of test predictions of the most predicted class; NaN: unknown */
};

/* Progress of a run. The run's row holds the latest report and loses it when the run ends. */
struct progress_record {
    uint64_t updates, samples, total_samples;
    double seconds, loss, staleness; /* recent loss, mean staleness so far; not finite: unknown */
};

/* push_number of an event whose position among the pushes is unknown. */
#define PUSHES_UNKNOWN UINT64_MAX

enum severity { SEVERITY_INFO, SEVERITY_WARNING, SEVERITY_ERROR };

#endif
