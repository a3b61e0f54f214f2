/* pipeline_link.c — see pipeline_link.h. */
#include "sync/pipeline/pipeline_link.h"

#include "base/clock.h"
#include "base/memory.h"
#include "base/text.h"

#include <stdatomic.h>
#include <string.h>

enum { TAG_FORWARD = 1, TAG_BACKWARD, TAG_COLLECT };

#define ALL_RANKS UINT32_MAX

/* What rank i waits for: another rank + 1; ALL_RANKS; 0: it computes. */
struct waiting_page {
    struct {
        _Alignas(64) atomic_uint on;
    } rank[1];
};

/* ---- which rank is missing ----------------------------------------------------------------------
 */

static struct pipeline_link *current_link; /* one per process, like MPI */

/* Follows the chain of waiting ranks from `at` to the rank that computes, or that stopped while it
 * waited. Returns c->size if there is none: the chain ends at a rank that waits for all, or it is a
 * circle. */
static unsigned end_of_chain(const struct pipeline_link *l, unsigned at, uint64_t waited_ns)
{
    for (unsigned steps = 0; steps < l->c->size; steps++) {
        const unsigned on = atomic_load(&l->page->rank[at].on);
        if (on == 0 || (at != l->c->rank && ranks_is_silent(l->c, at, waited_ns)))
            return at;
        if (on == ALL_RANKS)
            break;
        at = on - 1;
    }
    return l->c->size;
}

/* The rank that this rank waits for in the end; c->size: unknown. */
static unsigned find_missing(const struct pipeline_link *l, uint64_t waited_ns)
{
    unsigned missing = end_of_chain(l, l->c->rank, waited_ns);
    for (unsigned i = 0; missing == l->c->size && i < l->c->size; i++)
        missing = end_of_chain(l, i, waited_ns);
    return missing;
}

/* Whether this rank logs. Every rank that waits directly for the missing rank does. Of the ranks
 * that wait for all ranks, only the first does. */
static bool logs(const struct pipeline_link *l, unsigned missing)
{
    const unsigned on = atomic_load(&l->page->rank[l->c->rank].on);
    unsigned first = 0;
    if (on != ALL_RANKS)
        return on == missing + 1;
    while (first == missing || atomic_load(&l->page->rank[first].on) != ALL_RANKS)
        first++; /* ends at this rank at the latest */
    return first == l->c->rank;
}

static bool add_missing_rank(const communicator *c UNUSED, uint64_t waited_ns, struct text *out)
{
    const struct pipeline_link *l = current_link;
    const unsigned rank = find_missing(l, waited_ns);
    if (rank < l->c->size)
        text_add(out, "rank %u, stage %u of replica %u", rank, rank % l->stages, rank / l->stages);
    else
        text_add(out, "another rank");
    return logs(l, rank);
}

static void name_missing_by(struct pipeline_link *l,
                            bool (*name)(const communicator *, uint64_t, struct text *))
{
    current_link = l;
    l->c->ranks->name_missing = l->stage_ranks.name_missing = name;
}

static void set_waiting_for(struct pipeline_link *l, unsigned rank_and_one)
{
    if (l->page == NULL)
        return;
    atomic_store(&l->page->rank[l->c->rank].on, rank_and_one);
    name_missing_by(l, rank_and_one == 0 ? NULL : add_missing_rank);
}

/* After an error the page still says which rank this rank waited for: it does not compute. */
static status end_waiting(struct pipeline_link *l, status result)
{
    if (result == OK)
        set_waiting_for(l, 0);
    l->c->failed |= result != OK;
    return result;
}

/* ---- opening ------------------------------------------------------------------------------------
 */

static status open_page(struct pipeline_link *l)
{
    status result = OK;
    MPI_Comm node = l->c->ranks->node;
    MPI_Aint bytes;
    int rank, unit;
    size_t all = l->c->size * sizeof l->page->rank[0];

    MPI_Comm_rank(node, &rank);
    TRY(ranks_check(MPI_Win_allocate_shared(rank == 0 ? (MPI_Aint)all + 64 : 0, 1, MPI_INFO_NULL,
                                            node, &l->page, &l->window),
                    "shared memory for the pipeline (is /dev/shm full?)"));
    TRY(ranks_check(MPI_Win_shared_query(l->window, 0, &bytes, &unit, &l->page), "the pipeline"));
    l->page = ranks_aligned(l->page);
    if (rank == 0)
        memset(l->page, 0, all);
    TRY(ranks_check(MPI_Barrier(node), "opening the pipeline"));
done:
    return result;
}

/* A communicator only for ranks_mean_ordered: it has no gate and no kind. */
static status open_stage_group(struct pipeline_link *l, size_t count)
{
    status result = OK;
    communicator *a = &l->stage_group;
    *a = (communicator){.rank = l->replica,
                        .size = l->replicas,
                        .timeout_s = l->c->timeout_s,
                        .warn_after_s = l->c->warn_after_s,
                        .ordered = true,
                        .count = count,
                        .ranks = &l->stage_ranks};
    l->stage_ranks = (struct ranks){.world = MPI_COMM_NULL,
                                    .node = MPI_COMM_NULL,
                                    .name = l->c->rank,
                                    .crowded = l->c->ranks->crowded,
                                    .marks = &l->c->ranks->gate};
    TRY(ranks_check(
        MPI_Comm_split(l->c->ranks->world, (int)l->stage, (int)l->replica, &l->stage_ranks.world),
        "the replicas of a stage"));
    MPI_Comm_set_errhandler(l->stage_ranks.world, MPI_ERRORS_RETURN);
    TRY(memory_new(&a->received, ranks_ordered_piece(a->size) + (size_t)16 * a->size, sizeof(float),
                   "the mean over replicas"));
done:
    return result;
}

status link_open(struct pipeline_link *l, communicator *c, unsigned stages, size_t count)
{
    status result = OK;
    *l = (struct pipeline_link){.c = c,
                                .stage = c->rank % stages,
                                .stages = stages,
                                .replica = c->rank / stages,
                                .replicas = c->size / stages,
                                .window = MPI_WIN_NULL,
                                .stage_ranks.world = MPI_COMM_NULL};
    TRY(communicator_barrier_long(c, "opening the pipeline"));
    watchdog_arm(c->timeout_s, "opening the pipeline");
    if (l->replicas > 1)
        TRY(open_stage_group(l, count));
    if (c->ranks->one_host && c->size > 1)
        TRY(open_page(l));
done:
    watchdog_disarm();
    return result;
}

/* After an error MPI's resources stay until the process ends. */
void link_close(struct pipeline_link *l)
{
    if (l->c == NULL)
        return;
    name_missing_by(l, NULL);
    if (!l->c->failed) {
        ranks_free_window(l->c, &l->window);
        if (l->stage_ranks.world != MPI_COMM_NULL)
            MPI_Comm_free(&l->stage_ranks.world);
    }
    if (!ranks_abandoned()) /* else MPI may still write to it */
        memory_free(l->stage_group.received);
    l->c = NULL;
}

/* ---- messages -----------------------------------------------------------------------------------
 */

static const char *what_is_received(enum link_way way)
{
    return way == LINK_FORWARD ? "activations of the stage before" : "gradients of the next stage";
}

static unsigned neighbour(const struct pipeline_link *l, bool after)
{
    return after ? l->c->rank + 1 : l->c->rank - 1;
}

static status wait_for(struct pipeline_link *l, unsigned rank, MPI_Request *request,
                       const char *what)
{
    uint64_t begun = clock_ns();
    set_waiting_for(l, rank + 1);
    status result = end_waiting(l, ranks_wait(l->c, request, 1, what));
    l->waited_ns += clock_ns() - begun;
    return result;
}

status link_send(struct pipeline_link *l, enum link_way way, const float *data, size_t count,
                 MPI_Request *request)
{
    bool forward = way == LINK_FORWARD;
    REQUIRE(count <= INT32_MAX && (forward ? l->stage + 1 < l->stages : l->stage > 0));
    return ranks_check(MPI_Isend(data, (int)count, MPI_FLOAT, (int)neighbour(l, forward),
                                 forward ? TAG_FORWARD : TAG_BACKWARD, l->c->ranks->world, request),
                       "sending to another stage");
}

status link_wait_sent(struct pipeline_link *l, enum link_way way, MPI_Request *request)
{
    if (*request == MPI_REQUEST_NULL)
        return OK;
    return wait_for(l, neighbour(l, way == LINK_FORWARD), request, "a stage to take what was sent");
}

status link_receive(struct pipeline_link *l, enum link_way way, float *data, size_t count)
{
    status result = OK;
    bool forward = way == LINK_FORWARD;
    unsigned from = neighbour(l, !forward);
    MPI_Request request;
    REQUIRE(count <= INT32_MAX && (forward ? l->stage > 0 : l->stage + 1 < l->stages));
    TRY(ranks_check(MPI_Irecv(data, (int)count, MPI_FLOAT, (int)from,
                              forward ? TAG_FORWARD : TAG_BACKWARD, l->c->ranks->world, &request),
                    what_is_received(way)));
    TRY(wait_for(l, from, &request, what_is_received(way)));
done:
    return result;
}

status link_mean(struct pipeline_link *l, float *data, size_t count)
{
    if (l->replicas == 1)
        return OK;
    set_waiting_for(l, (l->c->rank + l->stages) % l->c->size + 1);
    return end_waiting(l, ranks_mean_ordered(&l->stage_group, data, count));
}

status link_notes(struct pipeline_link *l, float *notes)
{
    set_waiting_for(l, ALL_RANKS);
    return end_waiting(l, communicator_allreduce_mean(l->c, notes, COMMUNICATOR_NOTES));
}

enum { PIECE = 1 << 30 }; /* floats; MPI counts in int */

static int piece_of(size_t count, size_t at)
{
    return (int)(count - at < PIECE ? count - at : PIECE);
}

status link_collect(struct pipeline_link *l, const float *own, size_t count, float *whole,
                    const size_t *offsets, const size_t *counts)
{
    status result = OK;
    const char *what = "the parameters of another stage";
    MPI_Request request;
    if (l->c->rank == 0)
        memcpy(whole + offsets[0], own, count * sizeof *own);
    for (unsigned k = 1; l->c->rank == 0 && k < l->stages; k++) {
        for (size_t at = 0; at < counts[k]; at += PIECE) {
            TRY(ranks_check(MPI_Irecv(whole + offsets[k] + at, piece_of(counts[k], at), MPI_FLOAT,
                                      (int)k, TAG_COLLECT, l->c->ranks->world, &request),
                            what));
            TRY(wait_for(l, k, &request, what));
        }
    }
    for (size_t at = 0; l->replica == 0 && l->stage > 0 && at < count; at += PIECE) {
        TRY(ranks_check(MPI_Isend(own + at, piece_of(count, at), MPI_FLOAT, 0, TAG_COLLECT,
                                  l->c->ranks->world, &request),
                        what));
        TRY(wait_for(l, 0, &request, "rank 0 to take the parameters"));
    }
done:
    return result;
}
