/* shared_slots.c — see shared_slots.h. */
#include "sync/communicator/shared_slots.h"

#include "base/memory.h"
#include "worker/optimizer/optimizer.h"
#include "base/vector.h"

#include <stdatomic.h>
#include <string.h>

enum { BLOCK = 4096 }; /* elements: blocks of some slots fit into the first cache levels */

/* At the head of a rank's memory. */
struct slot_turn {
    _Alignas(64) atomic_size_t next; /* first block of this rank's part that no rank has taken */
};

enum { HEAD = sizeof(struct slot_turn) }; /* bytes before the slot */

status shared_slots_open(struct shared_slots *s, MPI_Comm node, size_t count)
{
    status result = OK;
    const size_t page = 4096;
    const size_t bytes = (count * sizeof(float) + 64 + HEAD + page - 1) / page * page;
    MPI_Info info = MPI_INFO_NULL;
    const char *what = "shared memory for gradients (is /dev/shm full?)";
    char *own;
    int rank, size;

    *s = (struct shared_slots){.window = MPI_WIN_NULL};
    MPI_Comm_rank(node, &rank);
    MPI_Comm_size(node, &size);
    s->index = (unsigned)rank;
    s->size = (unsigned)size;
    TRY(memory_new(&s->at, s->size, sizeof *s->at, "the communicator"));
    TRY(memory_new(&s->turns, s->size, sizeof *s->turns, "the communicator"));
    TRY(memory_new(&s->blocks, s->size, sizeof *s->blocks, "the communicator"));
    /* Each slot has its own pages, so that they are near the rank that writes them first. */
    TRY(ranks_check(MPI_Info_create(&info), what));
    MPI_Info_set(info, "alloc_shared_noncontig", "true");
    TRY(ranks_check(MPI_Win_allocate_shared((MPI_Aint)bytes, 1, info, node, &own, &s->window),
                    what));
    memset(own, 0, bytes);
    for (unsigned i = 0; i < s->size; i++) {
        MPI_Aint their_bytes;
        int unit;
        char *theirs;
        TRY(ranks_check(MPI_Win_shared_query(s->window, (int)i, &their_bytes, &unit, &theirs),
                        what));
        theirs = ranks_aligned(theirs);
        s->turns[i] = (struct slot_turn *)(void *)theirs;
        s->at[i] = (float *)(void *)(theirs + HEAD);
    }
done:
    if (info != MPI_INFO_NULL)
        MPI_Info_free(&info);
    return result;
}

void shared_slots_close(const communicator *c, struct shared_slots *s)
{
    ranks_free_window(c, &s->window);
    memory_free(s->at);
    memory_free(s->turns);
    memory_free(s->blocks);
}

void shared_slots_begin(struct shared_slots *s)
{
    atomic_store_explicit(&s->turns[s->index]->next, 0, memory_order_relaxed);
}

/* ---- a pass over all blocks ---------------------------------------------------------------------
 */

typedef void block_work(struct shared_slots *s, size_t from, size_t count);

/* Takes blocks of the i-th rank's part until none is left. */
static void work_on_part(struct shared_slots *s, unsigned i, size_t first, size_t count,
                         block_work *work)
{
    atomic_size_t *next = &s->turns[i]->next;
    size_t from, length;

    ranks_chunk(count, i, s->size, &from, &length);
    for (;;) {
        size_t at = atomic_load_explicit(next, memory_order_relaxed) * BLOCK;
        if (at < length)
            at = atomic_fetch_add_explicit(next, 1, memory_order_relaxed) * BLOCK;
        if (at >= length)
            return;
        work(s, first + from + at, length - at < BLOCK ? length - at : BLOCK);
    }
}

static void work_on_all(struct shared_slots *s, size_t first, size_t count, block_work *work)
{
    for (unsigned i = 0; i < s->size; i++)
        work_on_part(s, (s->index + i) % s->size, first, count, work);
}

/* ---- operations on a block ----------------------------------------------------------------------
 */

/* The operations of reduce_mean_ordered in one pass, for two ranks: each line of another rank's
 * slot costs a transfer between cores, so it is read and written once. */
VECTOR_CLONES
static void mean_of_two(float *restrict a, float *restrict b, size_t count)
{
    for (size_t i = 0; i < count; i++)
        a[i] = b[i] = (a[i] + b[i]) * 0.5f;
}

VECTOR_CLONES
static void mean_with(float *restrict own, const float *restrict other, size_t count)
{
    for (size_t i = 0; i < count; i++)
        own[i] = (own[i] + other[i]) * 0.5f;
}

static void spread_block(struct shared_slots *s, size_t from, size_t count)
{
    for (unsigned i = 1; i < s->size; i++)
        memcpy(s->at[i] + from, s->at[0] + from, count * sizeof(float));
}

static void mean_of_block(struct shared_slots *s, size_t from, size_t count)
{
    if (s->size == 2) {
        mean_of_two(s->at[0] + from, s->at[1] + from, count);
        return;
    }
    for (unsigned i = 0; i < s->size; i++)
        s->blocks[i] = s->at[i] + from;
    reduce_mean_ordered(s->blocks, s->size, count, s->at[0] + from);
    spread_block(s, from, count);
}

static void sum_of_block(struct shared_slots *s, size_t from, size_t count)
{
    for (unsigned i = 1; i < s->size; i++)
        vector_add(count, s->at[i] + from, s->at[0] + from);
}

void shared_slots_mean(struct shared_slots *s, size_t first, size_t count)
{
    work_on_all(s, first, count, mean_of_block);
}

void shared_slots_mean_few(const struct shared_slots *s, size_t first, size_t count, float *out)
{
    for (unsigned i = 0; i < s->size; i++)
        s->blocks[i] = s->at[i] + first;
    reduce_mean_ordered(s->blocks, s->size, count, out);
}

void shared_slots_mean_own(struct shared_slots *s, size_t count)
{
    size_t from, length;
    float *own = s->at[s->index];
    ranks_chunk(count, s->index, s->size, &from, &length);
    if (s->size == 2)
        mean_with(own + from, s->at[1 - s->index] + from, length);
    for (size_t end = from + length; s->size != 2 && from < end; from += BLOCK)
        shared_slots_mean_few(s, from, end - from < BLOCK ? end - from : BLOCK, own + from);
}

void shared_slots_sum(struct shared_slots *s, size_t first, size_t count)
{
    work_on_all(s, first, count, sum_of_block);
}

void shared_slots_spread(struct shared_slots *s, size_t first, size_t count)
{
    work_on_all(s, first, count, spread_block);
}
