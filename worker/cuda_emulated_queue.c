/* cuda_emulated_queue.c — what is queued on an emulated GPU, and doing it. */
#include "worker/cuda_emulated.h"

#include <stdlib.h>
#include <string.h>

static size_t size_of(const struct work *w)
{
    const size_t bytes =
        w->kind == WORK_LAUNCH ? cuda_emulated_argument_bytes(w->launch.kernel) : 0;
    return sizeof *w + (bytes + 15) / 16 * 16;
}

status cuda_queue_add(struct work_queue *q, enum cuda_stream s, const struct work *w,
                      const void *arguments)
{
    status result = OK;
    struct work_list *l = &q->streams[s];
    const size_t bytes = size_of(w);
    if (l->bytes + bytes > l->capacity) {
        const size_t capacity = 2 * (l->capacity + bytes) + 4096;
        uint8_t *larger = NULL;
        TRY(memory_new(&larger, 1, capacity, "work of an emulated GPU"));
        if (l->bytes != 0) {
            memcpy(larger, l->at, l->bytes);
        }
        memory_free(l->at);
        l->at = larger;
        l->capacity = capacity;
    }
    memcpy(l->at + l->bytes, w, sizeof *w);
    if (w->kind == WORK_LAUNCH && arguments != NULL) {
        memcpy(l->at + l->bytes + sizeof *w, arguments,
               cuda_emulated_argument_bytes(w->launch.kernel));
    }
    l->bytes += bytes;
    l->count++;
done:
    return result;
}

void cuda_queue_empty(struct work_queue *q)
{
    for (unsigned s = 0; s < CUDA_STREAMS; s++) {
        q->streams[s].bytes = q->streams[s].count = 0;
    }
}

void cuda_queue_free(struct work_queue *q)
{
    for (unsigned s = 0; s < CUDA_STREAMS; s++) {
        memory_free(q->streams[s].at);
        q->streams[s] = (struct work_list){0};
    }
}

/* ---- doing it -----------------------------------------------------------------------------------
 */

static status run_launch(cuda_device *d, const struct work *w)
{
    status result = OK;
    const char *name = cuda_kernel_names[w->launch.kernel];
    const char *faulty = getenv("GRADLAG_CUDA_EMULATED_FAULT");
    if (faulty != NULL && strcmp(faulty, name) == 0) {
        FAIL(ERROR_OTHER, "kernel %s: a fault, as GRADLAG_CUDA_EMULATED_FAULT asks for", name);
    }
    TRY(cuda_block_run(d->block, w->launch.kernel, &w->launch.grid, w->arguments));
done:
    return result;
}

static status run_work(cuda_device *d, const struct work *w)
{
    status result = OK;
    switch (w->kind) {
    case WORK_COPY:
        memmove(w->copy.to, w->copy.from, w->copy.bytes);
        break;
    case WORK_CLEAR:
        memset(w->copy.to, 0, w->copy.bytes);
        break;
    case WORK_WAIT:
        break;
    case WORK_LAUNCH:
        TRY(run_launch(d, w));
        break;
    case WORK_PRODUCT:
        TRY(cuda_emulated_product(&w->product.product->shape, &w->product.call));
        break;
    case WORK_GRAPH:
        TRY(cuda_queue_run(d, &w->graph->queue));
        break;
    case WORK_MARK:
        d->marks[w->mark] = clock_ns();
        break;
    }
done:
    return result;
}

struct progress {
    size_t bytes, count;
};

/* Does the next item of stream `s` unless it waits for the other or there is none. */
static status advance(cuda_device *d, const struct work_queue *q, struct progress *at, unsigned s,
                      bool *moved)
{
    status result = OK;
    *moved = false;
    if (at[s].count < q->streams[s].count) {
        const struct work *w = (const struct work *)(q->streams[s].at + at[s].bytes);
        if (w->kind != WORK_WAIT || at[!s].count >= w->wait_until) {
            TRY(run_work(d, w));
            at[s].bytes += size_of(w);
            at[s].count++;
            *moved = true;
        }
    }
done:
    return result;
}

status cuda_queue_run(cuda_device *d, const struct work_queue *q)
{
    status result = OK;
    struct progress at[CUDA_STREAMS] = {0};
    const unsigned early = d->copy_first ? CUDA_COPY : CUDA_COMPUTE;
    for (bool moved = true; moved;) {
        TRY(advance(d, q, at, early, &moved));
        if (!moved) {
            TRY(advance(d, q, at, !early, &moved));
        }
    }
    /* Waits are for what was queued before them. */
    REQUIRE(at[0].count == q->streams[0].count && at[1].count == q->streams[1].count);
done:
    return result;
}
