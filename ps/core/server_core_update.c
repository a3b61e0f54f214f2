/* server_core_update.c — the outcome of a push, and updates of the parameters; see
 * server_core_state.h. */
#include "ps/core/server_core_state.h"

#include "ps/core/arithmetic.h"

#include <float.h>
#include <math.h>

struct server_action *core_emit(server_core *c, enum server_action_kind kind)
{
    REQUIRE(c->action_count < c->action_capacity);
    struct server_action *action = &c->actions[c->action_count++];
    *action = (struct server_action){.kind = kind, .version = c->version, .slot = c->latest};
    return action;
}

unsigned core_number_of(const server_core *c, const struct member *member)
{
    return (unsigned)(member - c->members);
}

struct group *core_group(const server_core *c)
{
    return &c->groups[c->members[c->cause].group];
}

struct consistency_view core_view(const server_core *c)
{
    const struct group *group = core_group(c);
    return (struct consistency_view){.workers = c->workers,
                                     .expected = group->members - group->lost,
                                     .held = group->held,
                                     .taken = c->taken_count};
}

void core_move(server_core *c, struct member *member, enum member_state next)
{
    unsigned number = core_number_of(c, member);
    uint64_t bit = (uint64_t)1 << number % 64, *word = &c->ready[number / 64];
    struct group *group = &c->groups[member->group];
    group->held += (next == MEMBER_HELD) - (member->state == MEMBER_HELD);
    group->lost += (next == MEMBER_LOST) - (member->state == MEMBER_LOST);
    *word = next == MEMBER_READY ? *word | bit : *word & ~bit;
    member->state = next;
}

/* The record of a held push, without its outcome. */
static struct push_record record_of(const struct member *member)
{
    const struct server_push *push = &member->push;
    return (struct push_record){
        .arrival = member->arrival,
        .worker = push->worker,
        .waited_for = member->waited_for,
        .batch = push->batch,
        .sequence = push->sequence,
        .read_version = push->read_version,
        .staleness = member->staleness,
        .scale = member->scale,
        .gap = member->gap,
        .gradient_norm = member->norm,
        .loss = push->loss,
        .pull_us = push->pull_us,
        .compute_us = push->compute_us,
        .queue_us = push->queue_us,
        .data_us = push->data_us,
        .forward_us = push->forward_us,
        .backward_us = push->backward_us,
        .at_seconds = push->at_seconds,
        .momentum = member->momentum,
        .total_momentum = member->total_momentum,
        .cosine = push->probed ? push->cosine : NOT_MEASURED,
    };
}

static struct server_action *emit_record(server_core *c, struct push_record record,
                                         enum push_outcome outcome, enum push_reason reason)
{
    struct server_action *action = core_emit(c, SERVER_RECORD);
    bool used = reason == PUSH_USED;
    record.update_version = c->version;
    record.outcome = outcome;
    record.reason = reason;
    record.scale = used ? record.scale : 0;
    record.rate = used ? c->rate * record.scale : NOT_MEASURED;
    action->worker = record.worker;
    action->record = record;
    return action;
}

/* ---- outcomes ---- */

void core_stop_reading(server_core *c, struct member *member, enum member_state next)
{
    REQUIRE(member->state == MEMBER_READING || member->state == MEMBER_HELD);
    REQUIRE(c->slot_readers[member->slot] > 0);
    c->slot_readers[member->slot]--;
    core_move(c, member, next);
}

/* If another group had an update since the push arrived, the staleness has grown, and a gap
 * measured before is out of date. */
static void count_staleness(const server_core *c, struct member *member)
{
    const uint64_t before = member->staleness;
    member->staleness = c->version - member->version;
    if (member->staleness != before)
        member->gap = NAN;
}

void core_drop_late(server_core *c, struct member *member, enum push_reason reason,
                    enum member_state next)
{
    count_staleness(c, member);
    emit_record(c, record_of(member), PUSH_DROPPED_LATE, reason);
    core_stop_reading(c, member, next);
}

static void clear_taken(server_core *c)
{
    c->taken_count = 0;
    c->taken_samples = 0;
}

void core_drop_all(server_core *c, enum push_reason reason)
{
    for (struct member *member = c->members; member < c->members + c->workers_max; member++)
        if (member->state == MEMBER_HELD)
            core_drop_late(c, member, reason, MEMBER_READY);
    for (unsigned i = 0; i < c->taken_count; i++)
        emit_record(c, c->taken[i], PUSH_DROPPED_LATE, reason)->taken = true;
    clear_taken(c);
}

/* Contract: the last action is the record of the push that diverged. */
static void end_diverged(server_core *c)
{
    struct push_record record = c->actions[c->action_count - 1].record;
    core_drop_all(c, PUSH_RUN_DIVERGED);
    c->ended = true;
    struct server_action *action = core_emit(c, SERVER_DIVERGED);
    action->worker = record.worker;
    action->record = record;
}

void core_reject_not_finite(server_core *c, struct member *culprit, enum push_reason reason)
{
    count_staleness(c, culprit);
    bool skips = c->may_skip && reason != PUSH_BAD_UPDATE && ++c->skipped_last <= SERVER_CORE_SKIPS;
    emit_record(c, record_of(culprit), PUSH_NOT_FINITE, reason);
    core_stop_reading(c, culprit, MEMBER_READY);
    if (!skips)
        end_diverged(c);
}

/* Measures norm and gap of a push. Not needed for a push that the fused pass of an update measures.
 * Returns whether the gradient can be used. */
static bool measure(server_core *c, struct member *member)
{
    if (!member->measured) {
        member->norm = sqrt(vector_sum_of_squares(c->count, member->push.gradient));
        member->measured = true;
    }
    if (member->staleness > 0)
        member->gap = vector_rms_distance(c->count, c->slots[c->latest], c->slots[member->slot]);
    /* With on_nonfinite=skip, reject a norm that the optimizer would reject: it is the fault of
     * this gradient, not of the update. */
    return isfinite(member->norm) &&
           (!c->may_skip || optimizer_takes(member->norm * member->norm, 1));
}

/* The gradients of one update. */
struct update {
    unsigned n; /* gradients */
    uint64_t samples;
    struct member *first; /* the first held gradient; NULL: an update of taken gradients */
    bool direct;          /* one gradient, uncorrected */
};

/* The slot of the next version. The gap of a stale gradient reads the slot it was computed at. If
 * that slot has no other reader, the next version overwrites it: the caches then hold one vector
 * less. Otherwise a free slot exists, because each worker reads at most one and there are
 * workers_max + 2. */
static unsigned slot_to_write(const server_core *c, const struct update *u)
{
    if (u->direct && u->first->slot != c->latest && c->slot_readers[u->first->slot] == 1)
        return u->first->slot;
    unsigned slot = 0;
    while (slot == c->latest || c->slot_readers[slot] > 0) {
        slot++;
        REQUIRE(slot < c->slot_count);
    }
    return slot;
}

/* Adds a push to the damping's history. All pushes of one update are observed before the first is
 * scaled, so that their order has no effect. */
static void observe(server_core *c, struct member *member)
{
    member->staleness = c->version - member->version;
    damping_observe(&c->damping, core_number_of(c, member), member->staleness,
                    member->push.compute_us);
}

static void damp(server_core *c, struct member *member)
{
    if (c->damping.rule->needs_norm)
        measure(c, member); /* the update checks later that it is finite */
    struct damping_input input = {.staleness = member->staleness,
                                  .workers = c->workers,
                                  .worker = core_number_of(c, member),
                                  .concurrency = c->joined,
                                  .norm = member->norm};
    member->scale = damping_scale(&c->damping, &input, &member->drop);
}

static struct correction_context context_of(const server_core *c, const struct member *member)
{
    return (struct correction_context){
        .worker = core_number_of(c, member), .version = c->version, .scale = member->scale};
}

/* All held pushes of the group are in members [from, to). A single held push is found without a
 * search. */
struct held {
    struct member *from, *to;
    unsigned group;
};

static struct held find_held(server_core *c)
{
    struct member *own = &c->members[c->cause];
    bool alone = core_group(c)->held == 1 && own->state == MEMBER_HELD;
    return alone ? (struct held){own, own + 1, own->group}
                 : (struct held){c->members, c->members + c->workers_max, own->group};
}

static bool is_in(const struct member *member, const struct held *held)
{
    return member->state == MEMBER_HELD && member->group == held->group;
}

/* Computes staleness and scale of all held pushes. Adds those that damping does not drop to the
 * aggregate, in worker order. */
static struct update gather(server_core *c, struct held held)
{
    struct update u = {0};
    aggregate_clear(&c->aggregate);
    for (struct member *member = held.from; member < held.to; member++)
        if (is_in(member, &held))
            observe(c, member);
    for (struct member *member = held.from; member < held.to; member++) {
        if (!is_in(member, &held))
            continue;
        damp(c, member);
        if (!member->drop) {
            u.first = u.n++ == 0 ? member : u.first;
            u.samples += member->push.samples;
            struct correction_context context = context_of(c, member);
            aggregate_add(&c->aggregate, member->push.gradient, c->slots[member->slot], &context);
        }
    }
    u.direct = aggregate_is_direct(&c->aggregate);
    return u;
}

/* Call after the update: c->version is the new version. */
static void adjust_momentum(server_core *c, struct member *member)
{
    const struct correction *correction = &c->aggregate.correction;
    if (correction->rule->adjust == NULL)
        return;
    total_momentum_add_version(&c->total, c->version, c->slots[c->latest]);
    double measured = total_momentum_measure(&c->total, member->version, member->push.gradient,
                                             c->rate * member->scale);
    member->momentum = c->momentum;
    if (!isnan(measured)) {
        member->total_momentum = measured;
        c->momentum = correction->rule->adjust(correction->parameters, c->momentum_set, c->momentum,
                                               measured);
        optimizer_set_momentum(c->optimizer, c->momentum);
    }
}

/* One transaction: writes the next version, or returns false and changes nothing (C5). */
static bool update_parameters(server_core *c, const struct update *u)
{
    double scale = 1;
    uint64_t after = c->samples_used + u->samples;
    c->rate =
        c->outer.rule != NULL ? c->outer.rate : schedule_rate(&c->schedule, c->samples_used, after);
    const float *gradient =
        u->first == NULL ? aggregate_taken_mean(&c->aggregate)
                         : aggregate_gradient(&c->aggregate, c->slots[c->latest], c->rate, &scale);
    unsigned next = slot_to_write(c, u);
    bool moved = u->direct && u->first->staleness > 0;
    const bool scale_free = optimizer_is_scale_free(c->optimizer);
    const double mean_scale = c->aggregate.mean_scale;
    struct optimizer_pass pass;
    if (scale_free) /* the rate is multiplied by the mean scale, so the gradient is divided by it,
                       unless it is 0 */
        scale = mean_scale >= (double)FLT_MIN ? scale / mean_scale : 1;
    optimizer_set_epoch(c->optimizer, schedule_epoch(&c->schedule, c->samples_used, after));
    optimizer_apply(c->optimizer, c->slots[c->latest], gradient, scale,
                    scale_free ? c->rate * mean_scale : c->rate,
                    moved ? c->slots[u->first->slot] : NULL, c->slots[next], &pass);
    if (u->direct) {
        u->first->norm = pass.gradient_norm;
        u->first->gap = pass.gap;
    }
    if (!pass.finite)
        return false;
    aggregate_commit(&c->aggregate, c->rate);
    c->latest = next;
    c->version++;
    c->slot_version[next] = c->version;
    c->samples_used = after;
    c->skipped_last = 0;
    if (u->first != NULL)
        adjust_momentum(c, u->first);
    return true;
}

void core_request_evaluation(server_core *c, uint64_t before)
{
    if (c->follows)
        return;
    c->complete = c->samples_used >= c->total_samples ||
                  (c->total_seconds > 0 && c->schedule.seconds >= c->total_seconds);
    bool crossed =
        c->evaluate_every > 0 && before / c->evaluate_every < c->samples_used / c->evaluate_every;
    if (c->complete || crossed) {
        c->evaluating = true;
        c->evaluated = c->version + 1;
        core_emit(c, SERVER_EVALUATE);
    }
}

void core_end_by_time(server_core *c, struct member *member)
{
    core_drop_late(c, member, PUSH_AFTER_END, MEMBER_READY);
    core_drop_all(c, PUSH_RUN_ENDED);
    if (c->evaluated != c->version + 1) {
        core_request_evaluation(c, c->samples_used);
    } else { /* the last update was evaluated already */
        c->complete = c->ended = true;
        core_emit(c, SERVER_FINISHED);
    }
}

static void finish_update(server_core *c, uint64_t samples_before)
{
    core_emit(c, SERVER_APPLIED);
    core_request_evaluation(c, samples_before);
}

static void drop_stale(server_core *c, struct member *member, enum push_reason reason)
{
    emit_record(c, record_of(member), PUSH_DROPPED_STALE, reason);
    core_stop_reading(c, member, MEMBER_READY);
}

/* Runs before damping and correction. True: pushes were rejected, so the update may no longer be
 * due. */
static bool reject_held_not_finite(server_core *c, struct held held)
{
    bool any = false;
    for (struct member *member = held.from; member < held.to && !c->ended; member++) {
        if (is_in(member, &held) && !measure(c, member)) {
            core_reject_not_finite(c, member, PUSH_BAD_GRADIENT);
            any = true;
        }
    }
    return any;
}

static void apply_held(server_core *c)
{
    uint64_t samples = c->samples_used;
    struct held held = find_held(c);
    if (c->may_skip && reject_held_not_finite(c, held)) {
        if (!c->ended)
            core_apply_if_due(c);
        return;
    }
    struct update u = gather(c, held);
    for (struct member *member = held.from; member < held.to; member++) {
        bool fused = u.direct && member == u.first; /* the update's fused pass measures it */
        if (is_in(member, &held) && !fused && !measure(c, member)) {
            core_reject_not_finite(c, member, PUSH_BAD_GRADIENT);
            return;
        }
    }
    /* Record dropped pushes before the update: their update_version is the current version. */
    for (struct member *member = held.from; member < held.to; member++)
        if (is_in(member, &held) && member->drop)
            drop_stale(c, member, PUSH_BY_DAMPING);
    if (u.n > 0 && !update_parameters(c, &u)) {
        core_reject_not_finite(c, u.first, u.direct ? PUSH_BAD_GRADIENT : PUSH_BAD_UPDATE);
        return;
    }
    for (struct member *member = held.from; member < held.to; member++) {
        if (is_in(member, &held)) {
            emit_record(c, record_of(member), u.n == 1 ? PUSH_APPLIED : PUSH_AGGREGATED, PUSH_USED);
            core_stop_reading(c, member, MEMBER_READY);
        }
    }
    if (u.n > 0)
        finish_update(c, samples);
}

/* Each gradient is finite but the sum is not: the last push gets the outcome. */
static void diverge_taken(server_core *c)
{
    c->taken_count--;
    emit_record(c, c->taken[c->taken_count], PUSH_NOT_FINITE, PUSH_BAD_UPDATE)->taken = true;
    end_diverged(c);
}

static void apply_taken(server_core *c)
{
    uint64_t samples = c->samples_used;
    struct update u = {.n = c->taken_count, .samples = c->taken_samples};
    if (!update_parameters(c, &u)) {
        diverge_taken(c);
        return;
    }
    for (unsigned i = 0; i < c->taken_count; i++) {
        emit_record(c, c->taken[i], u.n == 1 ? PUSH_APPLIED : PUSH_AGGREGATED, PUSH_USED)->taken =
            true;
    }
    clear_taken(c);
    finish_update(c, samples);
}

bool core_apply_if_due(server_core *c)
{
    struct consistency_view view = core_view(c);
    REQUIRE(view.held == 0 || view.taken == 0); /* a policy holds or takes, never both */
    if (view.held + view.taken == 0 || !consistency_applies_now(&c->consistency, &view))
        return false;
    if (view.held > 0)
        apply_held(c);
    else
        apply_taken(c);
    return true;
}

/* Adds the push to the running sum. If the push is an update by itself, no sum is needed. */
static void take(server_core *c, struct member *member)
{
    struct consistency_view view = core_view(c);
    view.held--;
    view.taken++;
    if (c->taken_count == 0 && consistency_applies_now(&c->consistency, &view)) {
        apply_held(c);
        return;
    }
    if (!measure(c, member)) {
        core_reject_not_finite(c, member, PUSH_BAD_GRADIENT);
        return;
    }
    observe(c, member);
    damp(c, member);
    if (member->drop) {
        drop_stale(c, member, PUSH_BY_DAMPING);
    } else {
        REQUIRE(c->taken_count < c->taken_capacity);
        struct correction_context context = context_of(c, member);
        aggregate_take(&c->aggregate, member->push.gradient, c->slots[c->latest],
                       c->slots[member->slot], &context);
        c->taken[c->taken_count++] = record_of(member);
        c->taken_samples += member->push.samples;
        core_stop_reading(c, member, MEMBER_READY);
        core_apply_if_due(c);
    }
}

void core_decide(server_core *c, struct member *member)
{
    const struct consistency_policy *policy = c->consistency.policy;
    struct consistency_view view = core_view(c);
    view.held--;
    view.staleness = member->staleness;
    enum consistency_decision decision = policy->arrive == NULL
                                             ? CONSISTENCY_HOLD
                                             : policy->arrive(c->consistency.parameters, &view);
    REQUIRE(decision != CONSISTENCY_DROP || policy->drops);
    if (decision == CONSISTENCY_TAKE)
        take(c, member);
    else if (decision == CONSISTENCY_DROP)
        if (measure(c, member))
            drop_stale(c, member, PUSH_BY_CONSISTENCY);
        else
            core_reject_not_finite(c, member, PUSH_BAD_GRADIENT);
    else if (!core_apply_if_due(c) && !measure(c, member))
        core_reject_not_finite(c, member, PUSH_BAD_GRADIENT);
}
