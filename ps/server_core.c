/*
 * server_core.c — see server_core.h for what it promises (C1 … C6).
 *
 * A worker sits in a seat. The seat's states, and what moves it on:
 *
 *   - EMPTY ── hello ──▶ READY ── release ──▶ READING ── push ──▶ HELD
 *   - HELD ── update, or dropped ──▶ READY
 *   - any ── lost ──▶ LOST ── hello ──▶ READY
 *
 * READING and HELD seats count as readers of their slot; READY ones have given it back. An event
 * ends by releasing all READY seats, unless an evaluation is due first or training has ended.
 */
#include "ps/server_core.h"

#include "ps/aggregate.h"
#include "ps/arithmetic.h"
#include "ps/consistency.h"
#include "ps/damping.h"
#include "worker/optimizer.h"
#include "worker/schedule.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

enum seat_state { SEAT_EMPTY, SEAT_LOST, SEAT_READY, SEAT_READING, SEAT_HELD };

struct seat {
    enum seat_state state;
    uint64_t next_sequence;
    uint64_t version; /* last released with */
    unsigned slot;
    /* Of the held push: */
    struct server_push push;
    uint64_t staleness;
    double scale, gap, norm;
    bool measured; /* norm is known */
    bool drop;
};

struct server_core {
    unsigned workers, slot_count;
    size_t count;
    float **slots;
    uint64_t *slot_version;
    unsigned *slot_readers;
    unsigned latest;
    uint64_t version, samples_used, samples_computed, total_samples, evaluate_every;
    struct seat *seats;
    unsigned held, lost;
    bool evaluating, complete, ended;

    struct consistency consistency;
    struct damping damping;
    struct aggregate aggregate;
    struct schedule schedule;
    optimizer *optimizer;
    crew *helpers;
    unsigned threads; /* cores that one worker computes on */

    struct server_action *actions;
    size_t action_count, action_capacity;
};

/* ---- opening ---- */

static status allocate(server_core *c)
{
    status result = OK;
    /* The longest event: everybody's record and release, and four more. */
    c->action_capacity = 2 * (size_t)c->workers + 4;
    TRY(memory_new(&c->actions, c->action_capacity, sizeof *c->actions, "server actions"));
    TRY(memory_new(&c->seats, c->workers, sizeof *c->seats, "workers"));
    TRY(memory_new(&c->slot_version, c->slot_count, sizeof *c->slot_version, "slot versions"));
    TRY(memory_new(&c->slot_readers, c->slot_count, sizeof *c->slot_readers, "slot readers"));
done:
    return result;
}

static unsigned threads_of(const options *settings)
{
    return options_declared(settings, "threads") ? (unsigned)options_integer(settings, "threads")
                                                 : 1;
}

status server_core_open(server_core **out, const struct server_core_options *o)
{
    status result = OK;
    server_core *c = NULL;
    REQUIRE(o->workers >= 1 && o->count >= 1 && o->slot_count >= o->workers + 2);
    REQUIRE(o->total_samples >= 1);
    *out = NULL;
    TRY(memory_new(&c, 1, sizeof *c, "server core"));
    c->workers = o->workers;
    c->count = o->count;
    c->slots = o->slots;
    c->slot_count = o->slot_count;
    c->total_samples = o->total_samples;
    c->evaluate_every = o->evaluate_every;
    TRY(consistency_open(&c->consistency, o->settings));
    TRY(damping_open(&c->damping, o->settings));
    TRY(damping_remember(&c->damping, o->workers));
    TRY(aggregate_open(&c->aggregate, o->settings, o->workers, o->count,
                       c->consistency.policy->holds));
    TRY(schedule_open(&c->schedule, o->settings, o->workers, o->total_samples, o->epoch_samples));
    TRY(optimizer_open(&c->optimizer, o->settings, o->count));
    c->helpers = o->helpers;
    c->threads = threads_of(o->settings);
    optimizer_share(c->optimizer, c->helpers);
    TRY(allocate(c));
    memcpy(c->slots[0], o->initial, o->count * sizeof *o->initial);
    *out = c;
    c = NULL;
done:
    server_core_close(&c);
    return result;
}

void server_core_close(server_core **pointer)
{
    server_core *c = *pointer;
    if (c == NULL) {
        return;
    }
    optimizer_close(&c->optimizer);
    aggregate_close(&c->aggregate);
    damping_close(&c->damping);
    memory_free(c->slot_readers);
    memory_free(c->slot_version);
    memory_free(c->seats);
    memory_free(c->actions);
    memory_free(c);
    *pointer = NULL;
}

/* ---- actions ---- */

static struct server_action *emit(server_core *c, enum server_action_kind kind)
{
    REQUIRE(c->action_count < c->action_capacity);
    struct server_action *action = &c->actions[c->action_count++];
    *action = (struct server_action){.kind = kind, .version = c->version, .slot = c->latest};
    return action;
}

static struct server_actions actions_of(const server_core *c)
{
    return (struct server_actions){c->actions, c->action_count};
}

static void begin_event(server_core *c)
{
    REQUIRE(!c->evaluating); /* server_core_evaluated() comes first */
    c->action_count = 0;
}

static unsigned number_of(const server_core *c, const struct seat *seat)
{
    return (unsigned)(seat - c->seats);
}

static void emit_release(server_core *c, const struct seat *seat)
{
    REQUIRE(c->slot_version[seat->slot] == seat->version);
    struct server_action *action = emit(c, SERVER_RELEASE);
    action->worker = number_of(c, seat);
    action->version = seat->version;
    action->slot = seat->slot;
}

static void release_ready(server_core *c)
{
    if (c->evaluating || c->ended) {
        return;
    }
    for (struct seat *seat = c->seats; seat < c->seats + c->workers; seat++) {
        if (seat->state == SEAT_READY) {
            seat->state = SEAT_READING;
            seat->version = c->version;
            seat->slot = c->latest;
            c->slot_readers[c->latest]++;
            emit_release(c, seat);
        }
    }
}

static void emit_record(server_core *c, const struct seat *seat, enum push_outcome outcome,
                        uint64_t update_version)
{
    const struct server_push *push = &seat->push;
    struct server_action *action = emit(c, SERVER_RECORD);
    action->worker = push->worker;
    action->record = (struct push_record){
        .update_version = update_version,
        .worker = push->worker,
        .sequence = push->sequence,
        .read_version = push->read_version,
        .staleness = seat->staleness,
        .scale = seat->scale,
        .gap = seat->gap,
        .gradient_norm = seat->norm,
        .loss = push->loss,
        .outcome = outcome,
        .pull_us = push->pull_us,
        .compute_us = push->compute_us,
        .queue_us = push->queue_us,
        .at_seconds = push->at_seconds,
    };
}

/* ---- the fate of held pushes ---- */

/* The seat gives back its slot: its held push is dealt with, or its worker is gone. */
static void stop_reading(server_core *c, struct seat *seat, enum seat_state next)
{
    REQUIRE(seat->state == SEAT_READING || seat->state == SEAT_HELD);
    REQUIRE(c->slot_readers[seat->slot] > 0);
    c->slot_readers[seat->slot]--;
    c->held -= seat->state == SEAT_HELD;
    seat->state = next;
}

static void drop_late(server_core *c, struct seat *seat, enum seat_state next)
{
    seat->scale = 0;
    emit_record(c, seat, PUSH_DROPPED_LATE, c->version);
    stop_reading(c, seat, next);
}

static void drop_all_held(server_core *c)
{
    for (struct seat *seat = c->seats; seat < c->seats + c->workers; seat++) {
        if (seat->state == SEAT_HELD) {
            drop_late(c, seat, SEAT_READY);
        }
    }
}

static void diverge(server_core *c, struct seat *culprit)
{
    culprit->scale = 0;
    emit_record(c, culprit, PUSH_NOT_FINITE, c->version);
    struct push_record record = c->actions[c->action_count - 1].record;
    stop_reading(c, culprit, SEAT_READY);
    drop_all_held(c);
    c->ended = true;
    struct server_action *action = emit(c, SERVER_DIVERGED);
    action->worker = record.worker;
    action->record = record;
}

/* Norm, and gap where the parameters have moved on, of a push that no fused pass will look at
 * alone. False if the gradient is not finite. */
static bool measure(server_core *c, struct seat *seat)
{
    if (!seat->measured) {
        seat->norm = sqrt(vector_sum_of_squares(c->count, seat->push.gradient));
        seat->measured = true;
    }
    if (seat->staleness > 0) {
        seat->gap = vector_rms_distance(c->count, c->slots[c->latest], c->slots[seat->slot]);
    }
    return isfinite(seat->norm);
}

/* What one update is made of. */
struct update {
    unsigned n; /* gradients in it */
    uint64_t samples;
    struct seat *first;
    bool direct; /* the one gradient goes in as it is */
};

/* Where the next version goes. The parameters that a stale gradient was computed at are read for
 * its gap; if nobody else wants them, writing over them spares the caches another vector. Else
 * there always is a free slot: a worker reads one at most, and slots ≥ workers + 2. */
static unsigned slot_to_write(const server_core *c, const struct update *u)
{
    if (u->direct && u->first->slot != c->latest && c->slot_readers[u->first->slot] == 1) {
        return u->first->slot;
    }
    unsigned slot = 0;
    while (slot == c->latest || c->slot_readers[slot] > 0) {
        slot++;
        REQUIRE(slot < c->slot_count);
    }
    return slot;
}

static unsigned seats_in(const server_core *c, enum seat_state state)
{
    unsigned n = 0;
    for (unsigned w = 0; w < c->workers; w++) {
        n += c->seats[w].state == state;
    }
    return n;
}

/* Age and scale of a push, once for each. */
static void damp(server_core *c, struct seat *seat)
{
    seat->staleness = c->version - seat->version;
    if (c->damping.rule->needs_norm) {
        measure(c, seat); /* if it is not finite, whoever uses it will see that again */
    }
    struct damping_input input = {.staleness = seat->staleness,
                                  .workers = c->workers,
                                  .worker = number_of(c, seat),
                                  .concurrency = c->workers - c->lost - seats_in(c, SEAT_EMPTY),
                                  .norm = seat->norm};
    damping_observe(&c->damping, input.worker, seat->staleness, seat->push.compute_us);
    seat->scale = damping_scale(&c->damping, &input, &seat->drop);
}

/* Ages and scales of all held pushes; those that go in are added to the aggregate, in worker order.
 */
static struct update gather(server_core *c)
{
    struct update u = {0};
    aggregate_clear(&c->aggregate);
    for (struct seat *seat = c->seats; seat < c->seats + c->workers; seat++) {
        if (seat->state != SEAT_HELD) {
            continue;
        }
        damp(c, seat);
        if (!seat->drop) {
            u.first = u.first == NULL ? seat : u.first;
            u.samples += seat->push.samples;
            aggregate_add(&c->aggregate, seat->push.gradient, c->slots[seat->slot], seat->scale);
        }
    }
    u.n = c->aggregate.n;
    u.direct = aggregate_is_direct(&c->aggregate);
    return u;
}

/* One transaction: the next version in a free slot, or nothing at all (C5). */
static bool update_parameters(server_core *c, const struct update *u)
{
    double scale = 1;
    const float *gradient = aggregate_gradient(&c->aggregate, c->slots[c->latest], &scale);
    uint64_t after = c->samples_used + u->samples;
    double rate = schedule_rate(&c->schedule, c->samples_used, after);
    unsigned next = slot_to_write(c, u);
    bool moved = u->direct && u->first->staleness > 0;
    struct optimizer_pass pass;
    crew_keep_off(c->helpers, seats_in(c, SEAT_READING) * c->threads);
    optimizer_apply(c->optimizer, c->slots[c->latest], gradient, scale, rate,
                    moved ? c->slots[u->first->slot] : NULL, c->slots[next], &pass);
    if (u->direct) {
        u->first->norm = pass.gradient_norm;
        u->first->gap = pass.gap;
    }
    if (!pass.finite) {
        return false;
    }
    c->latest = next;
    c->version++;
    c->slot_version[next] = c->version;
    c->samples_used = after;
    return true;
}

static void ask_for_evaluation(server_core *c, uint64_t before)
{
    c->complete = c->samples_used >= c->total_samples;
    bool crossed =
        c->evaluate_every > 0 && before / c->evaluate_every < c->samples_used / c->evaluate_every;
    if (c->complete || crossed) {
        c->evaluating = true;
        emit(c, SERVER_EVALUATE);
    }
}

static void apply_held(server_core *c)
{
    uint64_t version = c->version, samples = c->samples_used;
    struct update u = gather(c);
    for (struct seat *seat = c->seats; seat < c->seats + c->workers; seat++) {
        bool looked_at_alone = seat->state == SEAT_HELD && !(u.direct && seat == u.first);
        if (looked_at_alone && !measure(c, seat)) {
            diverge(c, seat);
            return;
        }
    }
    if (u.n > 0 && !update_parameters(c, &u)) {
        diverge(c, u.first);
        return;
    }
    for (struct seat *seat = c->seats; seat < c->seats + c->workers; seat++) {
        if (seat->state == SEAT_HELD) {
            enum push_outcome applied = u.n == 1 ? PUSH_APPLIED : PUSH_AGGREGATED;
            emit_record(c, seat, seat->drop ? PUSH_DROPPED_STALE : applied,
                        seat->drop ? version : c->version);
            stop_reading(c, seat, SEAT_READY);
        }
    }
    if (u.n > 0) {
        emit(c, SERVER_APPLIED);
        ask_for_evaluation(c, samples);
    }
}

static bool apply_now(const server_core *c)
{
    struct consistency_view view = {.workers = c->workers,
                                    .expected = c->workers - c->lost,
                                    .held = c->held,
                                    .version = c->version};
    return c->held > 0 && c->consistency.policy->apply_now(c->consistency.parameters, &view);
}

/* ---- events ---- */

struct server_actions server_core_hello(server_core *c, unsigned worker)
{
    REQUIRE(worker < c->workers);
    begin_event(c);
    struct seat *seat = &c->seats[worker];
    if (seat->state == SEAT_READING) {
        emit_release(c, seat);
    } else if (seat->state == SEAT_EMPTY || seat->state == SEAT_LOST) {
        c->lost -= seat->state == SEAT_LOST;
        *seat = (struct seat){.state = SEAT_READY};
        release_ready(c);
    }
    return actions_of(c);
}

static status check_push(const server_core *c, const struct server_push *push)
{
    status result = OK;
    if (push->worker >= c->workers) {
        FAIL(ERROR_PROTOCOL,
             "push from worker %u: this run has workers 0 to %u; start workers with "
             "the server's own configuration",
             push->worker, c->workers - 1);
    }
    const struct seat *seat = &c->seats[push->worker];
    if (seat->state == SEAT_EMPTY || seat->state == SEAT_LOST) {
        FAIL(ERROR_PROTOCOL,
             "push from worker %u, which has not joined%s; it must say hello (again) first",
             push->worker, seat->state == SEAT_LOST ? " since it was lost" : "");
    }
    if (push->sequence < seat->next_sequence) {
        goto done;
    }
    if (push->sequence > seat->next_sequence) {
        FAIL(ERROR_PROTOCOL,
             "push %" PRIu64 " from worker %u: expected %" PRIu64
             "; pushes in between were lost, or it is another incarnation of that worker",
             push->sequence, push->worker, seat->next_sequence);
    }
    if (seat->state != SEAT_READING) {
        FAIL(ERROR_PROTOCOL,
             "push %" PRIu64 " from worker %u before the reply to its last one; it must wait",
             push->sequence, push->worker);
    }
    if (push->read_version != seat->version) {
        FAIL(ERROR_PROTOCOL,
             "push %" PRIu64 " from worker %u was computed at version %" PRIu64
             ", but it was released with version %" PRIu64 "; it must use what it was given",
             push->sequence, push->worker, push->read_version, seat->version);
    }
    if (push->samples == 0) {
        FAIL(ERROR_PROTOCOL,
             "push %" PRIu64 " from worker %u: a mean over no samples; its batch was empty",
             push->sequence, push->worker);
    }
done:
    return result;
}

static void take_in(server_core *c, struct seat *seat, const struct server_push *push)
{
    seat->next_sequence++;
    seat->push = *push;
    seat->state = SEAT_HELD;
    seat->staleness = c->version - seat->version;
    seat->scale = 0;
    seat->gap = seat->staleness == 0 ? 0 : NAN; /* until it is measured */
    seat->norm = NAN;
    seat->measured = false;
    c->held++;
    c->samples_computed += push->samples;
}

status server_core_push(server_core *c, const struct server_push *push, struct server_actions *out)
{
    status result = OK;
    begin_event(c);
    *out = actions_of(c);
    TRY(check_push(c, push));
    struct seat *seat = &c->seats[push->worker];
    if (push->sequence < seat->next_sequence) {
        if (seat->state == SEAT_READING) {
            emit_release(c, seat);
        }
    } else {
        take_in(c, seat, push);
        if (c->ended) {
            drop_late(c, seat, SEAT_READY);
        } else if (!isfinite(push->loss)) {
            diverge(c, seat);
        } else if (apply_now(c)) {
            apply_held(c);
        } else if (!measure(c, seat)) {
            diverge(c, seat);
        }
        release_ready(c);
    }
    *out = actions_of(c);
done:
    return result;
}

struct server_actions server_core_lost(server_core *c, unsigned worker)
{
    REQUIRE(worker < c->workers);
    begin_event(c);
    struct seat *seat = &c->seats[worker];
    if (seat->state == SEAT_LOST) {
        return actions_of(c);
    }
    if (seat->state == SEAT_HELD) {
        drop_late(c, seat, SEAT_LOST);
    } else if (seat->state == SEAT_READING) {
        stop_reading(c, seat, SEAT_LOST);
    }
    seat->state = SEAT_LOST;
    c->lost++;
    if (!c->ended && apply_now(c)) {
        apply_held(c);
        release_ready(c);
    }
    return actions_of(c);
}

struct server_actions server_core_evaluated(server_core *c)
{
    REQUIRE(c->evaluating);
    c->evaluating = false;
    c->action_count = 0;
    if (c->complete) {
        c->ended = true;
        emit(c, SERVER_FINISHED);
    }
    release_ready(c);
    return actions_of(c);
}

struct server_actions server_core_end(server_core *c)
{
    c->action_count = 0;
    c->evaluating = false;
    c->ended = true;
    drop_all_held(c);
    return actions_of(c);
}

/* ---- questions ---- */

uint64_t server_core_version(const server_core *c)
{
    return c->version;
}

unsigned server_core_latest_slot(const server_core *c)
{
    return c->latest;
}

uint64_t server_core_samples_used(const server_core *c)
{
    return c->samples_used;
}

uint64_t server_core_samples_computed(const server_core *c)
{
    return c->samples_computed;
}

bool server_core_ended(const server_core *c)
{
    return c->ended;
}

bool server_core_awaits(const server_core *c, unsigned worker)
{
    REQUIRE(worker < c->workers);
    return c->seats[worker].state == SEAT_READING;
}

const float *server_core_optimizer_state(const server_core *c, size_t *count)
{
    *count = optimizer_state_count(c->optimizer);
    return optimizer_state(c->optimizer);
}
