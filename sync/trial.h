/*
 * trial.h — overlap=auto: whether steps with overlap are faster here, by trying.
 *
 * After a few steps to warm up, steps with and without take turns; then every rank votes by the
 * medians of what its own took, and the majority decides for all. What is computed does not depend
 * on it.
 */
#ifndef GRADLAG_SYNC_TRIAL_H
#define GRADLAG_SYNC_TRIAL_H

#include "worker/base.h"

enum { TRIAL_WARM_UP = 4, TRIAL_PAIRS = 12, TRIAL_STEPS = TRIAL_WARM_UP + 2 * TRIAL_PAIRS };

/* Zeroed: it begins. TRIAL_STEPS steps are measured, the one after them carries the votes. */
struct trial {
    unsigned step;
    float took[2][TRIAL_PAIRS]; /* ns; without and with overlap */
    float ratio;                /* medians, with over without; once all are measured */
};

/* Whether the step that begins now is one with overlap. */
bool trial_overlaps(const struct trial *t);
/* What that step took, until its gradient's exchange had ended. */
void trial_took(struct trial *t, uint64_t ns);
bool trial_votes(const struct trial *t);
/* 1: in favour of overlap, which has to gain at least a hundredth, and in three of four pairs; else
 * 0. By chance alone, without either being faster, one of 14 trials has so many pairs. */
float trial_vote(const struct trial *t);

#endif
