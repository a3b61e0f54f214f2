/*
 * live_runs.h — the running, queued and latest ended runs of a results file, for displays that read
 * it repeatedly. The cost of a read does not depend on the length of the runs.
 */
#ifndef GRADLAG_RESULTS_QUERY_LIVE_RUNS_H
#define GRADLAG_RESULTS_QUERY_LIVE_RUNS_H

#include "base/status.h"

enum {
    LIVE_POINTS = 64 /* points of a curve at most */,
    LIVE_RUNS = 64 /* running runs at most */
};

struct live_curve {
    double at[LIVE_POINTS]; /* from the beginning of the run to now */
    size_t count;
};

struct live_run { /* unknown numbers are NaN */
    int64_t id;
    char status[16];   /* queued (taken), running, finished, diverged, … */
    char title[160];   /* "async ×16 lenet inverse seed 1" */
    bool asynchronous; /* gradients are in table push: mode=async, or a pipeline without flushes */
    double part;       /* samples used / all samples: 0 to 1 */
    double seconds_left; /* at the speed so far, with evaluations */
    double samples_per_second, updates_per_second;
    double loss, accuracy; /* recent loss; last test accuracy */
    double staleness;      /* mean so far */
    double silent_seconds; /* since the last progress report */
    double train_seconds;  /* of an ended run */
    struct live_curve loss_curve, accuracy_curve;
    int slowest;           /* the worker with the longest recent steps, or -1 */
    double slowest_factor; /* its mean step time / the median over workers */
    char error[200];
};

struct live_runs { /* zero-initialise; owns its runs */
    bool there;    /* the file exists and has tables */
    struct live_run *running;
    size_t running_count, more_running;
    struct live_run *ended; /* newest first */
    size_t ended_count;
    unsigned waiting, finished, diverged, failed, stopped; /* in the whole file */
    /* Estimate for all queued and running runs, if as many run in parallel as now (at least one).
     * NaN: there are none, or no run of this kind has ended yet. */
    double queue_seconds_left;
};

/* Reads the runs; at most `ended` of the ended ones. A missing or empty file is no error. */
status live_runs_read(struct live_runs *out, const char *path, size_t ended) MUST_CHECK;
void live_runs_free(struct live_runs *l);

#endif
