/* overlap_autotune.c — see overlap_autotune.h. */
#include "sync/communicator/overlap_autotune.h"

#include <stdlib.h>
#include <string.h>

/* Pairs alternate their order (without, with; with, without; …), so that neither is always first.
 */
bool autotune_overlaps(const struct overlap_autotune *t)
{
    unsigned pair = t->step / 2, second = t->step % 2;
    return t->step < AUTOTUNE_STEPS && (pair + second) % 2 == 1;
}

bool autotune_votes(const struct overlap_autotune *t)
{
    return t->step == AUTOTUNE_STEPS;
}

float autotune_vote(const struct overlap_autotune *t)
{
    unsigned faster = 0;
    for (unsigned i = 0; i < AUTOTUNE_PAIRS; i++)
        faster += t->took[1][i] < t->took[0][i];
    return t->ratio < 0.99f && faster >= AUTOTUNE_PAIRS * 3 / 4;
}

static int by_value(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static float median(const float took[AUTOTUNE_PAIRS])
{
    float values[AUTOTUNE_PAIRS];
    memcpy(values, took, sizeof values);
    qsort(values, AUTOTUNE_PAIRS, sizeof *values, by_value);
    return (values[AUTOTUNE_PAIRS / 2 - 1] + values[AUTOTUNE_PAIRS / 2]) / 2;
}

void autotune_took(struct overlap_autotune *t, uint64_t ns)
{
    REQUIRE(t->step < AUTOTUNE_STEPS);
    if (t->step >= AUTOTUNE_WARM_UP)
        t->took[autotune_overlaps(t)][(t->step - AUTOTUNE_WARM_UP) / 2] = (float)ns;
    if (++t->step == AUTOTUNE_STEPS)
        t->ratio = median(t->took[1]) / median(t->took[0]);
}
