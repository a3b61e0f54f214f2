/*
 * precision_choice.h — resolves precision=auto into fp32 or bf16, before a run is planned, so that
 * rows, config_hash, processes and replays have only the chosen format.
 *
 * A results file has one answer for each computation: model, data shape, batch, device and threads.
 * The first run with event `precision` gives it. A trial decides if there is none. So the runs of a
 * sweep agree, also if it continues later or on another machine with the same file.
 */
#ifndef GRADLAG_EXPERIMENTS_SWEEP_PRECISION_CHOICE_H
#define GRADLAG_EXPERIMENTS_SWEEP_PRECISION_CHOICE_H

#include "base/options.h"

enum precision_effort {
    PRECISION_MEASURE, /* make a trial if no answer is recorded */
    PRECISION_LOOK_UP, /* make no trial: fp32 if no answer is recorded */
};

/* If precision=auto, sets `precision`, and `precision_trial` to the reason, which becomes the run's
 * event. With key `resume` the checkpoint decides. Logs each new answer once. Errors:
 * precision_trial_run(), and ERROR_RESULTS. */
status precision_choose(options *o, enum precision_effort effort) MUST_CHECK;
/* For a process that holds the write lock of the results file and will add this run: ERROR_RESULTS
 * if another process has meanwhile recorded another answer. */
status precision_confirm(const options *o) MUST_CHECK;

#endif
