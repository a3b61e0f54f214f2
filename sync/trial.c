/* trial.c — see trial.h. */
#include "sync/trial.h"

#include <stdlib.h>
#include <string.h>

/* Of a pair neither is always the first: without, with, with, without, … */
bool trial_overlaps(const struct trial *t)
{
    unsigned pair = t->step / 2, second = t->step % 2;
    return t->step < TRIAL_STEPS && (pair + second) % 2 == 1;
}

bool trial_votes(const struct trial *t)
{
    return t->step == TRIAL_STEPS;
}

float trial_vote(const struct trial *t)
{
    unsigned faster = 0;
    for (unsigned i = 0; i < TRIAL_PAIRS; i++)
        faster += t->took[1][i] < t->took[0][i];
    return t->ratio < 0.99f && faster >= TRIAL_PAIRS * 3 / 4;
}

static int by_value(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static float median(const float took[TRIAL_PAIRS])
{
    float values[TRIAL_PAIRS];
    memcpy(values, took, sizeof values);
    qsort(values, TRIAL_PAIRS, sizeof *values, by_value);
    return (values[TRIAL_PAIRS / 2 - 1] + values[TRIAL_PAIRS / 2]) / 2;
}

void trial_took(struct trial *t, uint64_t ns)
{
    REQUIRE(t->step < TRIAL_STEPS);
    if (t->step >= TRIAL_WARM_UP)
        t->took[trial_overlaps(t)][(t->step - TRIAL_WARM_UP) / 2] = (float)ns;
    if (++t->step == TRIAL_STEPS)
        t->ratio = median(t->took[1]) / median(t->took[0]);
}
