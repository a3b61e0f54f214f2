/* optimizer_way.c — see optimizer_way.h. */
#include "worker/optimizer/optimizer_way.h"

#include "base/vector.h"

/* Ways 0 and 1 suit vectors that fit into the caches, ways 2 and 3 larger ones. */
static const struct optimizer_way ways[OPTIMIZER_WAYS] = {
    {.streamed = false, .ahead = 32 * VECTOR_LANES},
    {.streamed = false, .ahead = 8 * VECTOR_LANES},
    {.streamed = true, .ahead = 32 * VECTOR_LANES},
    {.streamed = true, .ahead = 0},
};

enum { NOT_COUNTED = 4 }; /* turns of each way */

/* Another way must be this much faster than the usual one; smaller differences are noise. */
static const double BETTER = 0.97;

static unsigned usual(bool large)
{
    return large ? 2 : 0;
}

static unsigned now(const struct optimizer_trial *t, bool large)
{
    const bool tries = t->updates < OPTIMIZER_TRIALS;
    return tries ? (usual(large) + t->updates / OPTIMIZER_TURNS) % OPTIMIZER_WAYS : t->chosen;
}

struct optimizer_way optimizer_way_usual(bool large)
{
    return ways[usual(large)];
}

struct optimizer_way optimizer_way_next(const struct optimizer_trial *t, bool large)
{
    return ways[now(t, large)];
}

static unsigned best(const struct optimizer_trial *t, bool large)
{
    unsigned chosen = usual(large);
    double limit = BETTER * t->shortest[chosen];
    for (unsigned way = 0; way < OPTIMIZER_WAYS; way++) {
        if (t->shortest[way] < limit) {
            limit = t->shortest[way];
            chosen = way;
        }
    }
    return chosen;
}

void optimizer_way_took(struct optimizer_trial *t, bool large, double seconds)
{
    const unsigned way = now(t, large), turn = t->updates % OPTIMIZER_TURNS;
    if (t->updates >= OPTIMIZER_TRIALS)
        return;
    if (turn == NOT_COUNTED || (turn > NOT_COUNTED && seconds < t->shortest[way]))
        t->shortest[way] = seconds;
    if (++t->updates == OPTIMIZER_TRIALS)
        t->chosen = best(t, large);
}
