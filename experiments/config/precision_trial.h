/*
 * precision_trial.h — the trial of precision=auto: which format has the shorter step with these
 * settings on this machine?
 */
#ifndef GRADLAG_EXPERIMENTS_CONFIG_PRECISION_TRIAL_H
#define GRADLAG_EXPERIMENTS_CONFIG_PRECISION_TRIAL_H

#include "base/options.h"

#include <signal.h>

struct precision_trial {
    double fp32_s, bf16_s; /* of one step, the fastest turn; 0: not measured */
    char why[512];         /* why bf16 is not available; empty: it is */
};

/* True for precision=auto. */
bool precision_is_auto(const options *o);
/* ERROR_USAGE for precision=auto; `what` names the caller, which cannot resolve it. */
status precision_check_chosen(const options *o, const char *what) MUST_CHECK;
/* bf16 must shorten a step by a factor of at least 1.05. A smaller gain is noise, and not worth the
 * rounding. */
bool precision_prefers_bf16(const struct precision_trial *t);
/* Measures steps of worker 0 in fp32 and in bf16, by turns: under a second for small models, and
 * one measured step of each if a step takes seconds. A child process measures, so that this process
 * opens no device and keeps no memory (forked_call.h). On a GPU, this process must not have used
 * CUDA. `stop`: non-zero ends the trial (STOPPED); NULL: nothing
 * sets it. Errors are those of opening the worker in fp32. ERROR_PEER: the child did not answer
 * within 20 × timeout_s. */
status precision_trial_run(const options *o, const volatile sig_atomic_t *stop,
                           struct precision_trial *out) MUST_CHECK;

#endif
