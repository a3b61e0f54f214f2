/*
 * overlap_autotune.h — overlap=auto: measures whether steps with overlap are faster.
 *
 * After a few steps to warm up, steps with and without overlap alternate. Then every rank votes by
 * the medians of its own steps, and the majority decides for all. The result does not change the
 * parameters.
 */
#ifndef GRADLAG_SYNC_COMMUNICATOR_OVERLAP_AUTOTUNE_H
#define GRADLAG_SYNC_COMMUNICATOR_OVERLAP_AUTOTUNE_H

#include "base/status.h"

enum {
    AUTOTUNE_WARM_UP = 4,
    AUTOTUNE_PAIRS = 12,
    AUTOTUNE_STEPS = AUTOTUNE_WARM_UP + 2 * AUTOTUNE_PAIRS
};

/* Zero-initialise. AUTOTUNE_STEPS steps are measured; the next step carries the votes. */
struct overlap_autotune {
    unsigned step;
    float took[2][AUTOTUNE_PAIRS]; /* ns; without and with overlap */
    float ratio; /* median with overlap / median without; set after the last step */
};

/* Whether the next step uses overlap. */
bool autotune_overlaps(const struct overlap_autotune *t);
/* Records a step: the time until its gradient was exchanged. */
void autotune_took(struct overlap_autotune *t, uint64_t ns);
/* Whether all steps are measured; the next step carries the vote. */
bool autotune_votes(const struct overlap_autotune *t);
/* 1: this rank votes for overlap, which gains at least 1 % in the median and is faster in three of
 * four pairs. 0: against it. If both are equally fast, so many pairs favour overlap by chance in
 * one of 14 trials. */
float autotune_vote(const struct overlap_autotune *t);

#endif
