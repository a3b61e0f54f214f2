/* delay_correction.c — see delay_correction.h. */
#include "sync/delay_correction.h"

#include <string.h>

status delay_correction_open(struct delay_correction *c, const options *o, size_t count)
{
    const bool corrects = strcmp(options_text(o, "delay_correction"), "error-feedback") == 0;
    const unsigned delay = corrects ? (unsigned)options_integer(o, "delay") : 0;
    return vector_queue_open(&c->updates, delay, count, "updates for the delay's correction");
}

void delay_correction_close(struct delay_correction *c)
{
    vector_queue_close(&c->updates);
}

/* next ← next − (u − earlier) with u = before − next; earlier ← u. */
static void correct(size_t count, const float *before, float *next, float *earlier)
{
    for (size_t i = 0; i < count; i++) {
        const float update = before[i] - next[i];
        next[i] -= update - earlier[i];
        earlier[i] = update;
    }
}

static void keep(size_t count, const float *before, const float *next, float *update)
{
    for (size_t i = 0; i < count; i++)
        update[i] = before[i] - next[i];
}

void delay_correction_apply(struct delay_correction *c, const float *before, float *next)
{
    struct vector_queue *q = &c->updates;
    if (q->capacity == 0)
        return;
    if (q->count < q->capacity) {
        keep(q->elements, before, next, q->at[q->count++]);
        return;
    }
    correct(q->elements, before, next, q->at[0]);
    vector_queue_rotate(q);
}
