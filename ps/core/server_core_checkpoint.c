/*
 * server_core_checkpoint.c — the core's part of a checkpoint, and resuming from it.
 *
 * A checkpoint has no gradients that are being computed, held or in the running sum. Each worker
 * resumes at the first of its batches that was not applied. A joining worker gets the latest
 * version. Arrivals and clocks start at 0 for all workers.
 */
#include "base/memory.h"
#include "ps/core/server_core_state.h"
#include "worker/training.h"

#include <string.h>

/* The account: the scalar state of correction and damping, as doubles. */
enum { OF_CORRECTION = 4, OF_DAMPING = 1 + DAMPING_AGES };

static size_t account_count(const server_core *c)
{
    return OF_CORRECTION + (c->damping.rule->needs_history ? OF_DAMPING + 2 * c->workers_max : 0);
}

status core_allocate_checkpoint(server_core *c)
{
    status result = OK;
    TRY(memory_new(&c->checkpoint_batches, c->workers_max, sizeof *c->checkpoint_batches,
                   "batches of a checkpoint"));
    TRY(memory_new(&c->checkpoint_vectors, CORRECTION_SHARED + c->workers_max, sizeof(float *),
                   "vectors of a checkpoint"));
    TRY(memory_new(&c->checkpoint_account, account_count(c), sizeof *c->checkpoint_account,
                   "numbers of a checkpoint"));
done:
    return result;
}

/* ---- writing ------------------------------------------------------------------------------- */

static double *put_counts(double *at, const uint64_t *counts, size_t count)
{
    for (size_t i = 0; i < count; i++)
        *at++ = (double)counts[i];
    return at;
}

static void write_account(const server_core *c, double *at)
{
    const struct correction *correction = &c->aggregate.correction;
    const struct damping_history *h = &c->damping.history;
    *at++ = correction->started;
    *at++ = (double)correction->version;
    *at++ = correction->rate;
    *at++ = correction->largest_rate;
    if (c->damping.rule->needs_history) {
        at = put_counts(at, &h->count, 1);
        at = put_counts(at, h->ages, DAMPING_AGES);
        at = put_counts(at, h->computed, c->workers_max);
        put_counts(at, h->compute_us, c->workers_max);
    }
}

static void first_unapplied_batches(const server_core *c, uint64_t *out)
{
    for (unsigned w = 0; w < c->workers_max; w++) {
        const struct member *member = &c->members[w];
        out[w] = member->state == MEMBER_HELD ? member->push.batch : member->next_batch;
    }
    for (unsigned i = 0; i < c->taken_count; i++) {
        const struct push_record *taken = &c->taken[i];
        if (taken->batch < out[taken->worker])
            out[taken->worker] = taken->batch;
    }
}

void server_core_state(server_core *c, struct training_state *out)
{
    first_unapplied_batches(c, c->checkpoint_batches);
    write_account(c, c->checkpoint_account);
    *out = (struct training_state){
        .updates = c->version,
        .samples = c->samples_used,
        .skipped_last = c->skipped_last,
        .computed = c->samples_computed,
        .parameters = c->slots[c->latest],
        .optimizer_state = optimizer_state(c->optimizer),
        .optimizer_state_count = optimizer_state_count(c->optimizer),
        .batches = c->checkpoint_batches,
        .vectors = (const float *const *)c->checkpoint_vectors,
        .vector_count = correction_state_vectors(&c->aggregate.correction, c->checkpoint_vectors),
        .account = c->checkpoint_account,
        .account_count = account_count(c),
    };
}

/* ---- resuming ------------------------------------------------------------------------------ */

static const double *take_counts(const double *at, uint64_t *counts, size_t count)
{
    for (size_t i = 0; i < count; i++)
        counts[i] = (uint64_t)*at++;
    return at;
}

static void read_account(server_core *c, const double *at)
{
    struct correction *correction = &c->aggregate.correction;
    struct damping_history *h = &c->damping.history;
    correction->started = *at++ != 0;
    correction->version = (uint64_t)*at++;
    correction->rate = *at++;
    correction->largest_rate = *at++;
    if (c->damping.rule->needs_history) {
        at = take_counts(at, &h->count, 1);
        at = take_counts(at, h->ages, DAMPING_AGES);
        at = take_counts(at, h->computed, c->workers_max);
        take_counts(at, h->compute_us, c->workers_max);
    }
}

static void read_vectors(server_core *c, const struct server_core_options *o)
{
    const struct training_state *start = o->start;
    const size_t bytes = c->count * sizeof(float);
    REQUIRE(o->begin + c->count <= o->whole);
    REQUIRE(optimizer_state_count(c->optimizer) / c->count ==
            start->optimizer_state_count / o->whole);
    for (size_t k = 0; k < start->optimizer_state_count / o->whole; k++) {
        memcpy(optimizer_state_in_place(c->optimizer) + k * c->count,
               start->optimizer_state + k * o->whole + o->begin, bytes);
    }
    for (size_t i = 0; i < start->vector_count; i++)
        memcpy(c->checkpoint_vectors[i], start->vectors[i] + o->begin, bytes);
}

status core_resume(server_core *c, const struct server_core_options *o)
{
    status result = OK;
    const struct training_state *start = o->start;
    const unsigned vectors =
        correction_state_vectors(&c->aggregate.correction, c->checkpoint_vectors);
    if (start->batches == NULL || start->vector_count != vectors ||
        start->account_count != account_count(c)) {
        FAIL(ERROR_DATA,
             "cannot resume: the checkpoint lacks the %s; an older version or a run with several "
             "servers wrote it. Use initial=FILE to start a new run from its parameters",
             start->batches == NULL ? "position of each worker in its data"
                                    : "state of damping or correction");
    }
    c->version = c->slot_version[c->latest] = start->updates;
    c->samples_used = start->samples;
    c->skipped_last = (unsigned)start->skipped_last;
    schedule_at(&c->schedule, start->seconds);
    c->samples_computed = start->computed;
    optimizer_set_updates(c->optimizer, start->updates);
    read_vectors(c, o);
    read_account(c, start->account);
    for (unsigned w = 0; w < c->workers_max; w++)
        c->members[w].next_batch = start->batches[w];
done:
    return result;
}
