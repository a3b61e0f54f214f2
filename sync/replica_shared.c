/*
 * replica_shared.c — replica_shared: the ranks of one host have one copy of the parameters in
 * shared memory and share each update. Rank r computes the mean of its share of the gradient and
 * updates its share of the parameters. (ZeRO's first stage does this by reduce-scatter and
 * allgather: Rajbhandari et al. 2020, section 5.1. Here neither moves data.)
 *
 *   gate; mean and update of the own share, into the other copy; gate; all use the other copy.
 *
 * So the arithmetic of an update and the optimizer's state exist once, not P times. The bits are
 * those of replica_host with a sum in rank order, because the update of an element depends on that
 * element only. Optimizers that use whole layers (optimizer_rule.by_layer) and clip_norm are
 * excluded.
 *
 * If a share is not finite, its rank writes that to common memory before the second gate. After the
 * gate all ranks read it, and all keep the old copy.
 */
#include "base/clock.h"
#include "base/memory.h"
#include "sync/replica.h"

#include "worker/optimizer/optimizer.h"

#include <stdatomic.h>
#include <string.h>

struct verdict { /* of one rank on its share; in common memory */
    _Alignas(64) atomic_bool finite;
};

struct shared {
    optimizer *optimizer; /* of the share only */
    size_t from, length;  /* the share */
    unsigned states, current;
    float *parameters[2];    /* common */
    float *state;            /* common, if `keeps`: [states][count], set by replica_collect */
    struct verdict *verdict; /* common: [size] */
    bool keeps;              /* the run writes checkpoints */
    bool exchanged; /* since the last update: other ranks may still read this rank's gradient */
};

static void shared_close(replica *r)
{
    struct shared *s = r->state;
    optimizer_close(&s->optimizer);
    memory_free(s);
    r->state = NULL;
}

/* Takes the next piece of memory, aligned to a cache line. */
static void *cut(char **at, size_t bytes)
{
    char *piece = *at;
    *at += (bytes + 63) / 64 * 64;
    return piece;
}

/* Writes this rank's shares first, so that their pages are near this rank's processor. */
static void touch(const replica *r, struct shared *s)
{
    const size_t bytes = s->length * sizeof(float);
    for (unsigned i = 0; i < COUNT_OF(s->parameters); i++)
        memset(s->parameters[i] + s->from, 0, bytes);
    for (unsigned i = 0; s->keeps && i < s->states; i++)
        memset(s->state + i * r->count + s->from, 0, bytes);
}

static status open_common(replica *r, struct shared *s)
{
    status result = OK;
    const size_t vector = r->count * sizeof(float), verdicts = r->c->size * sizeof *s->verdict;
    const size_t states = s->keeps ? s->states : 0;
    void *at;
    TRY(communicator_common(r->c, verdicts + (2 + states) * (vector + 64), &at));
    char *next = at;
    s->verdict = cut(&next, verdicts);
    for (unsigned i = 0; i < COUNT_OF(s->parameters); i++)
        s->parameters[i] = cut(&next, vector);
    s->state = cut(&next, states * vector);
    touch(r, s);
    r->parameters = s->parameters[0];
    TRY(communicator_barrier(r->c));
    if (r->c->rank == 0)
        TRY(worker_initial_parameters(r->worker, r->parameters, r->count));
done:
    return result;
}

static status shared_open(replica *r, const options *o)
{
    status result = OK;
    struct shared *s = NULL;
    struct optimizer_rule rule;
    TRY(memory_new(&s, 1, sizeof *s, "the replica"));
    r->state = s;
    r->sends_whole = true;
    r->gradient = communicator_buffer(r->c);
    TRY(optimizer_rule_of(o, &rule));
    s->states = rule.states;
    s->keeps = options_text(o, "checkpoint")[0] != '\0';
    communicator_share(r->c, r->count, &s->from, &s->length);
    TRY(optimizer_open(&s->optimizer, o, s->length));
    TRY(open_common(r, s));
done:
    return result;
}

static status shared_exchange(replica *r, float notes[COMMUNICATOR_NOTES])
{
    status result = OK;
    struct shared *s = r->state;
    if (s->exchanged) /* the last update was skipped: other ranks may still read this gradient */
        TRY(communicator_shares_done(r->c));
    s->exchanged = true;
    TRY(communicator_mean_of_share(r->c, r->count, notes));
done:
    return result;
}

static bool all_finite(const replica *r)
{
    const struct shared *s = r->state;
    bool finite = true;
    for (unsigned rank = 0; rank < r->c->size; rank++)
        finite = finite && atomic_load_explicit(&s->verdict[rank].finite, memory_order_relaxed);
    return finite;
}

static status shared_apply(replica *r, double lr, bool *finite)
{
    status result = OK;
    struct shared *s = r->state;
    struct optimizer_pass pass;
    float *next = s->parameters[1 - s->current];
    optimizer_set_epoch(s->optimizer, r->epoch);
    optimizer_apply(s->optimizer, r->parameters + s->from, r->gradient + s->from, 1.0, lr, NULL,
                    next + s->from, &pass);
    atomic_store_explicit(&s->verdict[r->c->rank].finite, pass.finite, memory_order_relaxed);
    const uint64_t done = clock_ns();
    TRY(communicator_shares_done(r->c));
    r->waited_ns = clock_ns() - done;
    s->exchanged = false;
    *finite = all_finite(r);
    if (*finite) {
        s->current = 1 - s->current;
        r->parameters = next;
    } else if (pass.finite) {
        optimizer_take_back(s->optimizer);
    }
done:
    return result;
}

/* Every rank sees all parameters; only checkpoints need the state. */
static status shared_collect(replica *r)
{
    const struct shared *s = r->state;
    const float *own = optimizer_state(s->optimizer);
    if (!s->keeps || s->states == 0)
        return OK;
    for (unsigned i = 0; i < s->states; i++)
        memcpy(s->state + i * r->count + s->from, own + i * s->length, s->length * sizeof *own);
    return communicator_barrier(r->c);
}

static status shared_view(replica *r, struct replica_view *out)
{
    const struct shared *s = r->state;
    *out = (struct replica_view){.parameters = r->parameters,
                                 .optimizer_state = s->keeps && s->states > 0 ? s->state : NULL,
                                 .optimizer_state_count = s->states * r->count};
    return OK;
}

static status shared_set(replica *r, const struct replica_view *from, uint64_t updates)
{
    struct shared *s = r->state;
    const size_t bytes = s->length * sizeof(float);
    memcpy(r->parameters + s->from, from->parameters + s->from, bytes);
    for (unsigned i = 0; from->optimizer_state != NULL && i < s->states; i++)
        memcpy(optimizer_state_in_place(s->optimizer) + i * s->length,
               from->optimizer_state + i * r->count + s->from, bytes);
    optimizer_set_updates(s->optimizer, updates);
    return communicator_barrier(r->c);
}

const struct replica_kind replica_shared = {
    .name = "shared",
    .open = shared_open,
    .close = shared_close,
    .exchange = shared_exchange,
    .apply = shared_apply,
    .view = shared_view,
    .set = shared_set,
    .collect = shared_collect,
};
