/* replica_check.c — see replica_check.h. */
#include "sync/replica_check.h"

#include "base/memory.h"
#include "base/sha256.h"

#include <string.h>
#include <unistd.h>

struct start_message {        /* from rank 0 */
    struct training_state at; /* its pointers are invalid on other ranks */
    size_t states;            /* floats of optimizer state that follow the parameters; at.vectors
                                 follow these */
};

static size_t floats_of(const replica *r, const struct start_message *b)
{
    return (1 + b->at.vector_count) * r->count + b->states;
}

/* Allocates the message's vectors; on rank 0 fills them. */
static status prepare(replica *r, const struct replica_view *from, const struct start_message *b,
                      float **out)
{
    status result = OK;
    TRY(memory_new(out, floats_of(r, b), sizeof(float), "rank 0's parameters"));
    if (r->c->rank == 0) {
        memcpy(*out, from->parameters, r->count * sizeof(float));
        if (b->states > 0)
            memcpy(*out + r->count, from->optimizer_state, b->states * sizeof(float));
        for (size_t i = 0; i < b->at.vector_count; i++)
            memcpy(*out + (i + 1) * r->count + b->states, from->vectors[i],
                   r->count * sizeof(float));
    }
done:
    return result;
}

/* Checkpoints of older versions lack the ranks' own states. */
static status check_complete(const replica *r, const struct rank_state *k,
                             const struct start_message *b)
{
    status result = OK;
    const size_t waiting = b->at.waiting, kept = b->at.vector_count - waiting;
    if (waiting > r->delay || waiting > b->at.vector_count || kept > r->delay)
        FAIL(ERROR_DATA,
             "resume: the checkpoint is damaged: %zu gradients wait and %zu updates are kept, with "
             "delay=%u",
             waiting, kept, r->delay);
    if (b->at.rank_count != k->each)
        FAIL(ERROR_USAGE,
             "resume: the checkpoint has %zu floats of each rank's own state, %zu are needed: an "
             "older "
             "version wrote it; start a new run from its parameters with initial=",
             b->at.rank_count, k->each);
done:
    return result;
}

static void view_of(const struct training_state *start, struct replica_view *out)
{
    out->parameters = start->parameters;
    out->optimizer_state = start->optimizer_state;
    for (size_t i = 0; i < start->vector_count && i < COUNT_OF(out->vectors); i++)
        out->vectors[i] = start->vectors[i];
}

status replica_check_begin(communicator *c, replica *r, struct rank_state *kept,
                           const struct training_state *start, struct training_state *at,
                           struct waiting_note *waiting)
{
    status result = OK;
    struct start_message b = {0};
    struct replica_view view;
    float *all = NULL;
    *at = (struct training_state){0};
    if (c->size == 1 && start == NULL)
        return OK;
    TRY(replica_view(r, &view));
    if (start != NULL) {
        REQUIRE(c->rank == 0 && start->optimizer_state_count == view.optimizer_state_count);
        b = (struct start_message){.at = *start, .states = start->optimizer_state_count};
        if (start->updates == 0) /* starts anew: nothing waits */
            b.at.waiting = b.at.vector_count = 0;
        view_of(start, &view);
    }
    TRY(communicator_broadcast(c, &b, sizeof b, 0));
    const bool resumes = b.at.updates > 0;
    if (resumes)
        TRY(check_complete(r, kept, &b));
    TRY(prepare(r, &view, &b, &all));
    TRY(communicator_broadcast(c, all, floats_of(r, &b) * sizeof(float), 0));
    view.parameters = all;
    view.optimizer_state = b.states > 0 ? all + r->count : NULL;
    view.optimizer_state_count = b.states;
    view.waiting = b.at.waiting;
    view.vector_count = b.at.vector_count;
    for (size_t i = 0; i < view.vector_count; i++)
        view.vectors[i] = all + (i + 1) * r->count + b.states;
    TRY(replica_set(r, &view, b.at.updates));
    if (resumes)
        TRY(rank_state_scatter(kept, r, start != NULL ? start->ranks : NULL, waiting));
    *at = b.at;
    at->parameters = at->optimizer_state = at->ranks = NULL;
    at->vectors = NULL;
done:
    memory_free(all);
    return result;
}

status replica_check_digest(replica *r, char digest[65])
{
    status result = OK;
    struct sha256 hash;
    struct replica_view now;
    TRY(replica_view(r, &now));
    sha256_begin(&hash);
    sha256_add(&hash, now.parameters, r->count * sizeof(float));
    sha256_end(&hash, digest);
done:
    return result;
}

struct digest_message { /* from every rank */
    char digest[65], host[63];
};

status replica_check_compare(communicator *c, replica *r, uint64_t updates, char digest[65])
{
    status result = OK;
    struct digest_message own = {{0}, {0}}, *all = NULL;
    TRY(memory_new(&all, c->size, sizeof *all, "parameter digests"));
    TRY(replica_check_digest(r, own.digest));
    memcpy(digest, own.digest, sizeof own.digest);
    (void)gethostname(own.host, sizeof own.host - 1);
    TRY(communicator_gather_all(c, &own, sizeof own, all));
    for (unsigned i = 1; i < c->size && !c->kind->exchanges_nothing; i++) {
        if (memcmp(all[0].digest, all[i].digest, sizeof own.digest) != 0)
            FAIL(ERROR_OTHER,
                 "after %llu updates rank %u on %s has other parameters than rank 0 (%.12s…, not "
                 "%.12s…): are all ranks on the same type of processor? Set reduction=ordered to "
                 "exclude the exchange as the cause, verify_every=1 to find the update",
                 (unsigned long long)updates, i, all[i].host, all[i].digest, all[0].digest);
    }
done:
    memory_free(all);
    return result;
}
