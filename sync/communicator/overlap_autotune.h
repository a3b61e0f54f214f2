/*
 * overlap_autotune.h — overlap=auto: a trial of whether steps with overlap are faster.
 *
 * After a few steps to warm up, steps with and without take turns; then every rank votes by the
 * medians of what its own took, and the majority decides for all. What is computed does not depend
 * on it.
 */
#ifndef GRADLAG_SYNC_COMMUNICATOR_OVERLAP_AUTOTUNE_H
#define GRADLAG_SYNC_COMMUNICATOR_OVERLAP_AUTOTUNE_H

#include "base/status.h"

enum {
    AUTOTUNE_WARM_UP = 4,
    AUTOTUNE_PAIRS = 12,
    AUTOTUNE_STEPS = AUTOTUNE_WARM_UP + 2 * AUTOTUNE_PAIRS
};

/* Zeroed: it begins. AUTOTUNE_STEPS steps are measured, the one after them carries the votes. */
struct overlap_autotune {
    unsigned step;
    float took[2][AUTOTUNE_PAIRS]; /* ns; without and with overlap */
    float ratio;                   /* medians, with over without; once all are measured */
};

/* Whether the step that begins now is one with overlap. */
bool autotune_overlaps(const struct overlap_autotune *t);
/* What that step took, until its gradient's exchange had ended. */
void autotune_took(struct overlap_autotune *t, uint64_t ns);
bool autotune_votes(const struct overlap_autotune *t);
/* 1: in favour of overlap, which has to gain at least a hundredth, and in three of four pairs; else
 * 0. By chance alone, without either being faster, one of 14 trials has so many pairs. */
float autotune_vote(const struct overlap_autotune *t);

#endif
