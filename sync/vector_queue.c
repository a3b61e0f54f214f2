/* vector_queue.c — see vector_queue.h. */
#include "sync/vector_queue.h"

#include "base/memory.h"

#include <string.h>

status vector_queue_open(struct vector_queue *q, unsigned capacity, size_t elements,
                         const char *what)
{
    status result = OK;
    REQUIRE(capacity <= DELAY_MOST);
    *q = (struct vector_queue){.capacity = capacity, .elements = elements};
    if (capacity == 0)
        return OK;
    TRY(memory_new(&q->memory, capacity * elements, sizeof(float), what));
    for (unsigned i = 0; i < capacity; i++)
        q->at[i] = q->memory + i * elements;
done:
    return result;
}

void vector_queue_close(struct vector_queue *q)
{
    memory_free(q->memory);
    *q = (struct vector_queue){0};
}

void vector_queue_push(struct vector_queue *q, const float *from)
{
    REQUIRE(q->count < q->capacity);
    memcpy(q->at[q->count++], from, q->elements * sizeof *from);
}

void vector_queue_rotate(struct vector_queue *q)
{
    REQUIRE(q->count > 0);
    float *oldest = q->at[0];
    memmove(q->at, q->at + 1, (q->count - 1) * sizeof *q->at);
    q->at[q->count - 1] = oldest;
}

void vector_queue_pop(struct vector_queue *q)
{
    vector_queue_rotate(q);
    q->count--;
}
