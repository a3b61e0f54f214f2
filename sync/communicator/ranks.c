/* ranks.c — MPI's handles of all ranks, and the mean by MPI. */
#include "sync/communicator/ranks.h"

#include "base/memory.h"
#include "base/thread.h"
#include "base/vector.h"

#include <sched.h>
#include <string.h>

status ranks_check(int mpi_code, const char *what)
{
    status result = OK;
    if (mpi_code != MPI_SUCCESS) {
        char words[MPI_MAX_ERROR_STRING] = "";
        int length = 0;
        MPI_Error_string(mpi_code, words, &length);
        FAIL(ERROR_PEER, "%s: MPI failed: %s. Another rank may have died; see its error message",
             what, words);
    }
done:
    return result;
}

/* A window's memory begins behind MPI's own data. Windows are mapped at page boundaries, so every
 * rank rounds to the same place. */
void *ranks_aligned(void *p)
{
    return (void *)(((uintptr_t)p + 63) & ~(uintptr_t)63);
}

/* ---- handles ------------------------------------------------------------------------------------
 */

/* Launchers may bind each rank to its own processors: a host's ranks together have the union. One
 * crowded host slows down all hosts, so `crowded` is the same everywhere. */
static status count_processors(struct ranks *r)
{
    status result = OK;
    const char *what = "the processors of ranks";
    int node_size, crowded;
    cpu_set_t own, all;

    CPU_ZERO(&own);
    if (sched_getaffinity(0, sizeof own, &own) != 0)
        CPU_ZERO(&own);
    TRY(ranks_check(MPI_Allreduce(&own, &all, (int)sizeof own, MPI_BYTE, MPI_BOR, r->node), what));
    MPI_Comm_size(r->node, &node_size);
    r->here = (unsigned)node_size;
    r->own = CPU_COUNT(&own) > 0 ? (unsigned)CPU_COUNT(&own) : processor_count();
    r->processors = CPU_COUNT(&all) > 0 ? (unsigned)CPU_COUNT(&all) : processor_count();
    crowded = (unsigned)node_size > r->processors;
    TRY(ranks_check(MPI_Allreduce(MPI_IN_PLACE, &crowded, 1, MPI_INT, MPI_MAX, r->world), what));
    r->crowded = crowded != 0;
done:
    return result;
}

status ranks_all(const communicator *c, bool here, bool *everywhere)
{
    int all = here;
    status result = ranks_check(
        MPI_Allreduce(MPI_IN_PLACE, &all, 1, MPI_INT, MPI_MIN, c->ranks->world), "comparing ranks");
    *everywhere = result == OK && all != 0;
    return result;
}

/* Waits until every rank has arrived; some may still load data. Then collective calls are short. */
static status wait_for_all(communicator *c)
{
    const double timeout_s = c->timeout_s;
    const char *what = "opening the communicator";
    status result = OK;
    MPI_Request request;

    c->timeout_s = timeout_s * COMMUNICATOR_PATIENCE;
    TRY(ranks_check(MPI_Ibarrier(MPI_COMM_WORLD, &request), what));
    TRY(ranks_wait(c, &request, 1, what));
done:
    c->timeout_s = timeout_s;
    return result;
}

VECTOR_CLONES
static void halve_sums(size_t count, const float *restrict a, float *restrict out)
{
    for (size_t i = 0; i < count; i++)
        out[i] = 0.5f * (a[i] + out[i]);
}

static void mean_of_two(void *in, void *in_out, int *count, MPI_Datatype *type UNUSED)
{
    halve_sums((size_t)*count, in, in_out);
}

static status handles_open(communicator *c)
{
    status result = OK;
    struct ranks *r = c->ranks;
    int node_size;

    TRY(ranks_check(MPI_Comm_dup(MPI_COMM_WORLD, &r->world), "a communicator"));
    if (c->size == 2) {
        TRY(ranks_check(MPI_Op_create(mean_of_two, 1, &r->reduces), "the mean of two"));
        r->owns_reduces = true;
    }
    MPI_Comm_set_errhandler(r->world, MPI_ERRORS_RETURN);
    TRY(ranks_check(
        MPI_Comm_split_type(r->world, MPI_COMM_TYPE_SHARED, (int)c->rank, MPI_INFO_NULL, &r->node),
        "the ranks of this host"));
    MPI_Comm_set_errhandler(r->node, MPI_ERRORS_RETURN);
    MPI_Comm_size(r->node, &node_size);
    r->one_host = (unsigned)node_size == c->size;
    TRY(count_processors(r));
    if (r->one_host && c->size > 1)
        TRY(gate_open(&r->gate, r->node));
    TRY(missing_ranks_open(c));
    watchdog_watch(c);
done:
    return result;
}

status ranks_open(communicator *c)
{
    status result = OK;
    int rank, size;
    struct ranks *r = NULL;

    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    c->rank = (unsigned)rank;
    c->size = (unsigned)size;
    TRY(memory_new(&r, 1, sizeof *r, "ranks"));
    c->ranks = r;
    r->world = r->node = MPI_COMM_NULL;
    r->reduces = MPI_SUM;
    r->name = c->rank;
    r->gate.window = MPI_WIN_NULL;
    r->crowded = true; /* a rank that waits must not take a processor from ranks that still load */
    if (size > 1) {
        TRY(watchdog_open());
        r->watched = true;
        TRY(wait_for_all(c));
    }
    watchdog_arm(c->timeout_s, "opening the communicator");
    TRY(handles_open(c));
done:
    watchdog_disarm();
    return result;
}

void ranks_free_window(const communicator *c, MPI_Win *window)
{
    if (*window == MPI_WIN_NULL || c->failed)
        return;
    watchdog_arm(c->timeout_s, "closing the communicator");
    MPI_Win_free(window);
    watchdog_disarm();
}

void ranks_close(communicator *c)
{
    struct ranks *r = c->ranks;
    if (r == NULL)
        return;
    watchdog_watch(NULL);
    gate_close(c, &r->gate);
    if (!c->failed) {
        missing_ranks_close(c);
        watchdog_arm(c->timeout_s, "closing the communicator");
        if (r->node != MPI_COMM_NULL)
            MPI_Comm_free(&r->node);
        if (r->world != MPI_COMM_NULL)
            MPI_Comm_free(&r->world);
        if (r->owns_reduces)
            MPI_Op_free(&r->reduces);
        watchdog_disarm();
    }
    if (r->watched)
        watchdog_close();
    memory_free(r);
    c->ranks = NULL;
}

void ranks_chunk(size_t count, unsigned rank, unsigned size, size_t *from, size_t *length)
{
    const size_t line = 64 / sizeof(float);
    size_t lines = (count + line - 1) / line;
    size_t first = lines * rank / size * line, end = lines * (rank + 1) / size * line;
    *from = first < count ? first : count;
    *length = (end < count ? end : count) - *from;
}

double ranks_ring_bytes(const communicator *c, size_t count)
{
    return 2.0 * (c->size - 1) * sizeof(float) * (double)count;
}

/* ---- the mean by MPI ----------------------------------------------------------------------------
 */

status ranks_begin_reduce(communicator *c, float *data, size_t count, MPI_Request *request)
{
    return ranks_check(MPI_Iallreduce(MPI_IN_PLACE, data, (int)count, MPI_FLOAT, c->ranks->reduces,
                                      c->ranks->world, request),
                       "the mean gradient");
}

status ranks_reduce(communicator *c, float *data, size_t count)
{
    status result = OK;
    watchdog_arm(c->timeout_s, "the mean gradient");
    TRY(ranks_check(MPI_Allreduce(MPI_IN_PLACE, data, (int)count, MPI_FLOAT, c->ranks->reduces,
                                  c->ranks->world),
                    "the mean gradient"));
done:
    watchdog_disarm();
    return result;
}

void ranks_complete_mean(const communicator *c, float *data, size_t count)
{
    if (c->ranks->reduces == MPI_SUM)
        vector_multiply(count, 1.0f / (float)c->size, data, data);
}
