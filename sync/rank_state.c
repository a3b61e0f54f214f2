/* rank_state.c — see rank_state.h. */
#include "sync/rank_state.h"

#include "base/memory.h"
#include "sync/communicator/ranks.h"

#include <string.h>

enum { TAG = 1 };

/* Bytes of the notes about waiting gradients. */
static size_t note_bytes(const replica *r)
{
    return r->delay * sizeof(struct waiting_note);
}

/* Those notes follow the replica's own state. */
static float *notes_in(const struct rank_state *k, const replica *r)
{
    return k->own + (k->each - note_bytes(r) / sizeof(float));
}

status rank_state_open(struct rank_state *k, const replica *r, bool keeps)
{
    status result = OK;
    *k = (struct rank_state){.c = r->c,
                             .each = replica_own_count(r) + note_bytes(r) / sizeof(float)};
    if (k->each == 0)
        return OK;
    if (keeps && k->each > INT32_MAX)
        FAIL(ERROR_USAGE,
             "the state of each rank, %zu floats, does not fit into one MPI message, so this run "
             "cannot write checkpoints; leave checkpoint and resume out",
             k->each);
    TRY(memory_new(&k->own, k->each, sizeof(float), "a rank's own state"));
    if (keeps && r->c->rank == 0)
        TRY(memory_new(&k->all, r->c->size * k->each, sizeof(float), "the ranks' states"));
done:
    return result;
}

void rank_state_close(struct rank_state *k)
{
    if (k->c != NULL && !k->c->failed) { /* failed: messages may still arrive there */
        memory_free(k->own);
        memory_free(k->all);
    }
    *k = (struct rank_state){0};
}

/* Copies between k->own of every rank and k->all of rank 0, one rank after the other. A rank waits
 * until its turn comes. */
static status move(struct rank_state *k, communicator *c, bool to_first)
{
    status result = OK;
    const char *what = "the ranks' own states";
    MPI_Comm world = c->ranks->world;
    MPI_Request request;
    const double timeout_s = c->timeout_s;

    TRY(ranks_gate(c, what));
    c->timeout_s = timeout_s * COMMUNICATOR_PATIENCE;
    for (unsigned rank = 1; rank < c->size; rank++) {
        if (c->rank != 0 && c->rank != rank)
            continue;
        const bool sends = (c->rank != 0) == to_first;
        const int other = c->rank == 0 ? (int)rank : 0, count = (int)k->each;
        float *part = c->rank == 0 ? k->all + rank * k->each : k->own;
        TRY(ranks_check(sends ? MPI_Isend(part, count, MPI_FLOAT, other, TAG, world, &request)
                              : MPI_Irecv(part, count, MPI_FLOAT, other, TAG, world, &request),
                        what));
        TRY(ranks_wait(c, &request, 1, what));
    }
done:
    c->timeout_s = timeout_s;
    if (result != OK)
        c->failed = true;
    return result;
}

status rank_state_gather(struct rank_state *k, replica *r, const struct waiting_note *waiting,
                         struct training_state *out)
{
    status result = OK;
    if (k->each == 0)
        return OK;
    replica_own_read(r, k->own);
    memcpy(notes_in(k, r), waiting, note_bytes(r));
    if (r->c->rank == 0)
        memcpy(k->all, k->own, k->each * sizeof(float));
    TRY(move(k, r->c, true));
    out->ranks = k->all;
    out->rank_count = k->each;
done:
    return result;
}

status rank_state_scatter(struct rank_state *k, replica *r, const float *all,
                          struct waiting_note *waiting)
{
    status result = OK;
    if (k->each == 0)
        return OK;
    if (r->c->rank == 0) {
        memcpy(k->all, all, r->c->size * k->each * sizeof(float));
        memcpy(k->own, all, k->each * sizeof(float));
    }
    TRY(move(k, r->c, false));
    replica_own_write(r, k->own);
    memcpy(waiting, notes_in(k, r), note_bytes(r));
done:
    return result;
}
