/* server_core.c — events, releases and queries. The invariants C1 … C6 are in server_core.h, the
 * states of a member in server_core_state.h. */
#include "base/memory.h"
#include "ps/core/server_core_state.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* ---- opening ---- */

/* Words of the bit set `ready`. */
static unsigned words_of(const server_core *c)
{
    return (c->workers_max + 63) / 64;
}

static status allocate(server_core *c)
{
    status result = OK;
    /* The longest event has one record per held or taken push, one release per worker, and at most
     * four other actions. */
    c->action_capacity = 2 * (size_t)c->workers_max + c->taken_capacity + 4;
    TRY(memory_new(&c->actions, c->action_capacity, sizeof *c->actions, "server actions"));
    TRY(memory_new(&c->taken, c->taken_capacity + 1, sizeof *c->taken, "taken pushes"));
    TRY(memory_new(&c->members, c->workers_max, sizeof *c->members, "workers"));
    TRY(memory_new(&c->groups, c->group_count, sizeof *c->groups, "groups of workers"));
    TRY(memory_new(&c->ready, words_of(c), sizeof *c->ready, "ready workers"));
    TRY(memory_new(&c->slot_version, c->slot_count, sizeof *c->slot_version, "slot versions"));
    TRY(memory_new(&c->slot_readers, c->slot_count, sizeof *c->slot_readers, "slot readers"));
done:
    return result;
}

/* The sizes of groups differ by at most one. Late workers exist only with one group. */
static void divide_into_groups(server_core *c)
{
    REQUIRE(c->group_count == 1 || c->workers_max == c->workers);
    for (unsigned w = 0; w < c->workers_max; w++) {
        c->members[w].group = (unsigned)((uint64_t)w * c->group_count / c->workers_max);
        c->groups[c->members[w].group].members++;
    }
}

static status open_momentum(server_core *c, const struct server_core_options *o)
{
    status result = OK;
    const struct correction *correction = &c->aggregate.correction;
    c->momentum_set = options_real(o->settings, "momentum");
    /* The workers of a group act as one worker. */
    c->momentum = correction_momentum(
        correction, c->consistency.policy->groups != NULL ? c->group_count : o->workers,
        o->settings);
    optimizer_set_momentum(c->optimizer, c->momentum);
    if (correction->rule->adjust != NULL) {
        REQUIRE(correction->rule->single_gradient);
        TRY(total_momentum_open(&c->total, c->workers_max, o->count));
        total_momentum_add_version(&c->total, 0, o->initial);
    }
done:
    return result;
}

/* With an outer rule the keys optimizer, momentum and weight_decay describe the local steps. */
static status open_optimizer(server_core *c, const struct server_core_options *o)
{
    status result = OK;
    TRY(outer_open(&c->outer, o->settings, o->workers));
    if (c->outer.rule != NULL) {
        TRY(outer_optimizer(&c->optimizer, &c->outer, o->count));
        TRY(optimizer_set_layers(c->optimizer, &o->layers));
    } else {
        TRY(optimizer_open(&c->optimizer, o->settings, o->count));
        TRY(optimizer_set_layers(c->optimizer, &o->layers));
        TRY(open_momentum(c, o));
    }
done:
    return result;
}

status server_core_open(server_core **out, const struct server_core_options *o)
{
    status result = OK;
    server_core *c = NULL;
    unsigned per_update;
    const unsigned workers_max = o->workers_max > 0 ? o->workers_max : o->workers;
    REQUIRE(o->workers >= 1 && workers_max >= o->workers && o->count >= 1);
    REQUIRE(o->slot_count >= workers_max + 2);
    REQUIRE(o->total_samples >= 1);
    *out = NULL;
    TRY(memory_new(&c, 1, sizeof *c, "server core"));
    c->workers = o->workers;
    c->workers_max = workers_max;
    c->count = o->count;
    c->slots = o->slots;
    c->slot_count = o->slot_count;
    c->total_samples = o->total_samples;
    c->total_seconds = o->total_seconds;
    c->evaluate_every = o->evaluate_every;
    c->follows = o->follows;
    c->may_skip = strcmp(options_text(o->settings, "on_nonfinite"), "skip") == 0;
    TRY(consistency_open(&c->consistency, o->settings));
    TRY(consistency_per_update(&c->consistency, o->workers, &per_update));
    c->taken_capacity = c->consistency.policy->takes ? per_update : 0;
    c->group_count = consistency_groups_of(&c->consistency, o->workers);
    TRY(damping_open(&c->damping, o->settings));
    TRY(damping_allocate(&c->damping, workers_max));
    TRY(aggregate_open(&c->aggregate, o->settings, workers_max, o->count,
                       c->consistency.policy->holds || c->consistency.policy->takes));
    TRY(schedule_open(&c->schedule, o->settings, o->workers, o->total_samples, o->epoch_samples));
    TRY(open_optimizer(c, o));
    c->helpers = o->helpers;
    optimizer_share(c->optimizer, c->helpers);
    TRY(allocate(c));
    divide_into_groups(c);
    TRY(core_allocate_checkpoint(c));
    memcpy(c->slots[0], o->initial, o->count * sizeof *o->initial);
    if (o->start != NULL)
        TRY(core_resume(c, o));
    *out = c;
    c = NULL;
done:
    server_core_close(&c);
    return result;
}

void server_core_close(server_core **pointer)
{
    server_core *c = *pointer;
    if (c == NULL)
        return;
    total_momentum_close(&c->total);
    optimizer_close(&c->optimizer);
    aggregate_close(&c->aggregate);
    damping_close(&c->damping);
    memory_free(c->checkpoint_account);
    memory_free(c->checkpoint_vectors);
    memory_free(c->checkpoint_batches);
    memory_free(c->slot_readers);
    memory_free(c->slot_version);
    memory_free(c->ready);
    memory_free(c->groups);
    memory_free(c->members);
    memory_free(c->taken);
    memory_free(c->actions);
    memory_free(c);
    *pointer = NULL;
}

/* ---- releases ---- */

static void emit_release(server_core *c, const struct member *member)
{
    REQUIRE(c->slot_version[member->slot] == member->version);
    struct server_action *action = core_emit(c, SERVER_RELEASE);
    action->worker = core_number_of(c, member);
    action->version = member->version;
    action->samples = member->samples;
    action->slot = member->slot;
    action->record.waited_for = member->waited_for;
}

/* The lowest clock of members not LOST, or UINT64_MAX. It rises only when the last member at this
 * clock advances. So a search over W members is due once in about W pushes. */
static uint64_t slowest_clock(server_core *c)
{
    if (c->at_slowest == 0) {
        c->slowest = UINT64_MAX;
        for (const struct member *member = c->members; member < c->members + c->workers_max;
             member++) {
            if (member->state != MEMBER_LOST && member->clock <= c->slowest) {
                c->at_slowest = member->clock < c->slowest ? 1 : c->at_slowest + 1;
                c->slowest = member->clock;
            }
        }
    }
    return c->slowest;
}

/* Call before a member's clock rises or is ignored. */
static void leave_clock(server_core *c, const struct member *member)
{
    c->at_slowest -= c->at_slowest > 0 && member->clock == c->slowest;
}

static void release(server_core *c, struct member *member)
{
    core_move(c, member, MEMBER_READING);
    member->waited_for = core_number_of(c, member) == c->cause ? NO_WORKER : (int32_t)c->cause;
    member->version = c->version;
    member->samples = c->samples_used;
    member->slot = c->latest;
    c->slot_readers[c->latest]++;
    emit_release(c, member);
}

/* In order of worker numbers. */
static void release_ready(server_core *c)
{
    if (c->evaluating || c->ended)
        return;
    const struct consistency_policy *policy = c->consistency.policy;
    struct consistency_view view = core_view(c);
    view.slowest = policy->may_go != NULL ? slowest_clock(c) : 0;
    for (unsigned at = 0; at < words_of(c); at++) {
        for (uint64_t left = c->ready[at]; left != 0; left &= left - 1) {
            struct member *member = &c->members[64 * at + (unsigned)__builtin_ctzll(left)];
            view.clock = member->clock;
            if (policy->may_go == NULL || policy->may_go(c->consistency.parameters, &view))
                release(c, member);
        }
    }
}

static struct server_actions actions_of(const server_core *c)
{
    return (struct server_actions){c->actions, c->action_count};
}

static void begin_event(server_core *c, unsigned cause)
{
    REQUIRE(!c->evaluating); /* the caller must call server_core_evaluated() first */
    c->action_count = 0;
    c->cause = cause;
}

/* ---- events ---- */

struct server_actions server_core_hello(server_core *c, unsigned worker)
{
    REQUIRE(worker < c->workers_max);
    begin_event(c, worker);
    struct member *member = &c->members[worker];
    if (member->state == MEMBER_READING) {
        emit_release(c, member);
    } else if (member->state == MEMBER_EMPTY || member->state == MEMBER_LOST) {
        bool returns = member->state == MEMBER_LOST;
        uint64_t others = returns ? slowest_clock(c) : UINT64_MAX;
        c->joined++;
        c->at_slowest += returns && c->at_slowest > 0; /* its clock becomes the slowest */
        *member = (struct member){.state = member->state,
                                  .group = member->group,
                                  .next_batch = member->next_batch,
                                  .clock = others != UINT64_MAX ? others : member->clock};
        core_move(c, member, MEMBER_READY);
        if (!c->ended)
            core_request_evaluation(c, c->samples_used); /* a resumed run may be complete */
        release_ready(c);
    }
    return actions_of(c);
}

static status check_push(const server_core *c, const struct server_push *push)
{
    status result = OK;
    if (push->worker >= c->workers_max) {
        FAIL(ERROR_PROTOCOL,
             "push from worker %u, but this run has workers 0 to %u; start the workers with the "
             "server's settings",
             push->worker, c->workers_max - 1);
    }
    const struct member *member = &c->members[push->worker];
    if (member->state == MEMBER_EMPTY || member->state == MEMBER_LOST) {
        FAIL(ERROR_PROTOCOL, "push from worker %u, which %s; it must send hello before a push",
             push->worker, member->state == MEMBER_LOST ? "is lost" : "has not joined");
    }
    if (push->sequence < member->next_sequence)
        goto done;
    if (push->sequence > member->next_sequence) {
        FAIL(ERROR_PROTOCOL,
             "push %" PRIu64 " from worker %u, but the next one must be push %" PRIu64
             "; a push was lost, or another incarnation of the worker sent it",
             push->sequence, push->worker, member->next_sequence);
    }
    if (member->state != MEMBER_READING) {
        FAIL(ERROR_PROTOCOL,
             "push %" PRIu64 " from worker %u before its release; a worker must wait for the "
             "release after each push",
             push->sequence, push->worker);
    }
    if (push->read_version != member->version) {
        FAIL(ERROR_PROTOCOL,
             "push %" PRIu64 " from worker %u was computed at version %" PRIu64
             ", but the worker was released with version %" PRIu64
             "; it must use the parameters of its release",
             push->sequence, push->worker, push->read_version, member->version);
    }
    if (push->samples == 0) {
        FAIL(ERROR_PROTOCOL,
             "push %" PRIu64 " from worker %u has samples=0; a gradient needs a batch of at least "
             "one sample",
             push->sequence, push->worker);
    }
done:
    return result;
}

static void accept_push(server_core *c, struct member *member, const struct server_push *push)
{
    member->next_sequence++;
    member->next_batch = push->batch + 1;
    leave_clock(c, member);
    member->clock++;
    member->arrival = c->arrivals++;
    member->push = *push;
    core_move(c, member, MEMBER_HELD);
    member->staleness = c->version - member->version;
    member->scale = 0;
    member->gap = member->staleness == 0 ? 0 : NAN; /* not measured yet */
    member->norm = NAN;
    member->momentum = member->total_momentum = NOT_MEASURED;
    member->measured = false;
    c->samples_computed += push->samples;
    schedule_at(&c->schedule, push->at_seconds);
}

status server_core_push(server_core *c, const struct server_push *push, struct server_actions *out)
{
    status result = OK;
    begin_event(c, push->worker);
    *out = actions_of(c);
    TRY(check_push(c, push));
    struct member *member = &c->members[push->worker];
    if (push->sequence < member->next_sequence) {
        if (member->state == MEMBER_READING)
            emit_release(c, member);
    } else {
        accept_push(c, member, push);
        if (c->ended)
            core_drop_late(c, member, PUSH_AFTER_END, MEMBER_READY);
        else if (c->total_seconds > 0 && push->at_seconds >= c->total_seconds)
            core_end_by_time(c, member);
        else if (!isfinite(push->loss))
            core_reject_not_finite(c, member, PUSH_BAD_LOSS);
        else
            core_decide(c, member);
        release_ready(c);
    }
    *out = actions_of(c);
done:
    return result;
}

struct server_actions server_core_lost(server_core *c, unsigned worker)
{
    REQUIRE(worker < c->workers_max);
    begin_event(c, worker);
    struct member *member = &c->members[worker];
    if (member->state == MEMBER_LOST)
        return actions_of(c);
    c->joined -= member->state != MEMBER_EMPTY;
    leave_clock(c, member);
    if (member->state == MEMBER_HELD)
        core_drop_late(c, member, PUSH_WORKER_LOST, MEMBER_LOST);
    else if (member->state == MEMBER_READING)
        core_stop_reading(c, member, MEMBER_LOST);
    core_move(c, member, MEMBER_LOST);
    if (!c->ended) {
        core_apply_if_due(c);
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
        core_emit(c, SERVER_FINISHED);
    }
    release_ready(c);
    return actions_of(c);
}

struct server_actions server_core_end(server_core *c)
{
    c->action_count = 0;
    c->evaluating = false;
    c->ended = true;
    core_drop_all(c, PUSH_RUN_ENDED);
    return actions_of(c);
}

/* ---- queries ---- */

uint64_t server_core_version(const server_core *c)
{
    return c->version;
}

unsigned server_core_latest_slot(const server_core *c)
{
    return c->latest;
}

uint64_t server_core_arrivals(const server_core *c)
{
    return c->arrivals;
}

uint64_t server_core_samples_used(const server_core *c)
{
    return c->samples_used;
}

uint64_t server_core_samples_computed(const server_core *c)
{
    return c->samples_computed;
}

bool server_core_complete(const server_core *c)
{
    return c->complete;
}

bool server_core_ended(const server_core *c)
{
    return c->ended;
}

bool server_core_awaits(const server_core *c, unsigned worker)
{
    REQUIRE(worker < c->workers_max);
    return c->members[worker].state == MEMBER_READING;
}

uint64_t server_core_next_batch(const server_core *c, unsigned worker)
{
    REQUIRE(worker < c->workers_max);
    return c->members[worker].next_batch;
}

const float *server_core_optimizer_state(const server_core *c, size_t *count)
{
    *count = optimizer_state_count(c->optimizer);
    return optimizer_state(c->optimizer);
}
