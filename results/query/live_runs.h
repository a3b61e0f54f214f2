/*
 * live_runs.h — what goes on in a results file right now, and what came of the last runs: for
 * whoever looks at it again and again. Reads only, and little: a look costs no more for a long run
 * than for a short one.
 */
#ifndef GRADLAG_RESULTS_QUERY_LIVE_RUNS_H
#define GRADLAG_RESULTS_QUERY_LIVE_RUNS_H

#include "base/status.h"

enum { LIVE_POINTS = 64 /* of a curve, at most */, LIVE_RUNS = 64 /* in flight, at most */ };

struct live_curve {
    double at[LIVE_POINTS]; /* from the run's beginning to now */
    size_t count;
};

struct live_run { /* numbers are NaN where they are not known */
    int64_t id;
    char status[16]; /* queued (and taken), running; of those that ended finished, diverged, … */
    char title[160]; /* "async ×16 lenet inverse seed 1" */
    bool asynchronous;   /* or a pipeline without flushes: its gradients have rows of `push` */
    double part;         /* of its samples that it has used: 0 to 1 */
    double seconds_left; /* at the pace so far, evaluations included */
    double samples_per_second, updates_per_second;
    double loss, accuracy; /* loss lately; the last test accuracy */
    double staleness;      /* mean so far */
    double silent_seconds; /* since it last said how far it is */
    double train_seconds;  /* of one that ended */
    struct live_curve loss_curve, accuracy_curve;
    int slowest;           /* the worker whose steps take longest lately, or -1 */
    double slowest_factor; /* how many times as long as those of the worker in the middle */
    char error[200];
};

struct live_runs { /* zero-initialise; owns its runs */
    bool there;    /* the file */
    struct live_run *running;
    size_t running_count, more_running;
    struct live_run *ended; /* the newest first */
    size_t ended_count;
    unsigned waiting, finished, diverged, failed, stopped; /* in the whole file */
    /* Of what waits and what goes on, by as many at a time as go on now (one, where none does); NaN
     * where that is nothing, or no run of the kind has ended yet. */
    double queue_seconds_left;
};

/* A look: `ended` of the runs that ended, at most. A file that is not there yet, or still empty, is
 * no error. */
status live_runs_read(struct live_runs *out, const char *path, size_t ended) MUST_CHECK;
void live_runs_free(struct live_runs *l);

#endif
