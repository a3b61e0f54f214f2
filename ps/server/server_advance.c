/* server_advance.c — the steps of each state, and the limit of each. See server_state.h for the
 * states, the transitions (T1 …) and the invariants. */
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/thread.h"
#include "ps/server/server_state.h"

#include <stdio.h>
#include <string.h>

static const uint64_t MS = 1000000;

/* ---- leaving: T8 to T10 --------------------------------------------------------------------- */

/* Whether a worker or a follower may still send something. */
static bool peers_remain(const struct server *s)
{
    return peers_in(s, PEER_READY) + peers_in(s, PEER_WELCOMED) > 0 ||
           (server_leads(s) && !leader_followers_are(s, FOLLOWER_GONE));
}

static void leave(struct server *s)
{
    s->until_ns = clock_ns() + (server_has_failed(s) ? END_FAILED_MS : END_MS) * MS;
    peers_end(s);
    if (server_leads(s))
        leader_end(s);
    server_enter(s, STATE_LEAVING); /* T8 */
    training_end(s);
}

/* Late and queued pushes still go to the core, which records them. */
static bool leaving(struct server *s)
{
    if (training_feed(s))
        return true;
    if (clock_ns() < s->until_ns && peers_remain(s))
        return false;
    if (server_leads(s)) {
        leader_send_order(s, WIRE_ORDER_CLOSE, 0, 0);
        s->until_ns = clock_ns() + END_FAILED_MS * MS;
        server_enter(s, STATE_DISMISSING); /* T9 */
    } else {
        server_enter(s, STATE_CLOSED); /* T10 */
    }
    return true;
}

static bool dismissing(struct server *s)
{
    const bool closed = leader_followers_are(s, FOLLOWER_CLOSED);
    if (!closed && clock_ns() < s->until_ns)
        return false;
    if (!closed)
        log_warning(
            "the results file lacks rows of other servers, which did not send them within %d s",
            END_FAILED_MS / 1000);
    server_enter(s, STATE_CLOSED); /* T10 */
    return true;
}

/* ---- gathering, evaluating, saving: T3 to T5, T7 -------------------------------------------- */

static void gather_for(struct server *s, enum server_state next, bool states)
{
    s->gather_for = next;
    server_enter(s, STATE_GATHERING);
    leader_request_slices(s, states);
}

static bool checkpoint_is_due(const struct server *s)
{
    return s->saver != NULL && s->checkpoint_samples > 0 &&
           server_core_samples_used(s->core) >= s->next_checkpoint;
}

/* Cores of this process that neither a server nor a worker of this host needs. */
static unsigned free_cores(const struct server *s)
{
    const unsigned cores = processor_count();
    unsigned used = s->servers;
    for (const struct peer *p = s->peers; p < s->peers + s->workers; p++)
        used += peers_is_member(p) && peers_on_this_host(p) ? s->threads : 0;
    return cores > used ? cores - used : 0;
}

/* Whether a pause now, on all cores, is shorter than the delay of the next evaluation if this one
 * ran on the free cores alone. True for the first evaluation: it measures the work. */
static bool pause_is_shorter(const struct server *s, unsigned free)
{
    const double work = s->evaluation_work, all = processor_count();
    const double until_next = training_seconds(s) - s->evaluated.seconds;
    return work == 0 || work / free - until_next > work / all;
}

/* Not beside a checkpoint or a probe, which use the same worker as the evaluation (training_hooks).
 * Not after the last update, when no training is left. */
bool server_may_evaluate_beside(struct server *s, unsigned free)
{
    if (s->evaluation_pause == PAUSE_YES || server_is_over(s) || s->probe.every > 0 ||
        checkpoint_is_due(s) || server_core_complete(s->core))
        return false;
    if (s->evaluation_pause == PAUSE_AUTO &&
        (free < s->threads || !s->o->evaluates_on_cores || pause_is_shorter(s, free)))
        return false;
    if (s->copy == NULL && memory_new(&s->copy, s->o->count, sizeof *s->copy, "a copy") != OK)
        return false; /* too little memory: training pauses */
    return true;
}

static void note_beside(struct server *s)
{
    char detail[96];
    if (s->beside_noted)
        return;
    s->beside_noted = true;
    snprintf(detail, sizeof detail, "training goes on during evaluations, on %u threads",
             s->evaluation_threads);
    server_event(s, SEVERITY_INFO, "evaluation_beside", -1, detail);
}

static void proceed(struct server *s);

static void evaluate(struct server *s)
{
    const float *parameters =
        server_leads(s) ? s->followers.parameters : payload_slots(s->payload)[s->evaluated_slot];
    const unsigned free = free_cores(s), threads = s->threads;
    s->beside = server_may_evaluate_beside(s, free);
    s->evaluation_threads = s->beside ? free / threads : processor_count() / threads;
    s->evaluation_threads += s->evaluation_threads == 0;
    server_enter(s, STATE_EVALUATING); /* T3 */
    s->evaluated = (struct training_state){
        .updates = server_core_version(s->core),
        .samples = server_core_samples_used(s->core),
        .seconds = training_time_within(&s->o->length, training_seconds(s))};
    ps_metrics_begin_evaluation(&s->tally, &s->evaluated);
    if (s->beside)
        parameters = memcpy(s->copy, parameters, s->o->count * sizeof *s->copy);
    background_evaluate(s->evaluator, parameters, s->evaluation_threads);
    if (s->beside) {
        note_beside(s);
        proceed(s); /* T5 */
    }
}

static void begin_evaluation(struct server *s)
{
    if (s->beside) {
        server_enter(s, STATE_EVALUATING); /* T11 */
        return;
    }
    s->evaluation_began_ns = clock_ns();
    if (server_leads(s))
        gather_for(s, STATE_EVALUATING, false);
    else
        evaluate(s);
}

static void save(struct server *s)
{
    if (server_leads(s)) {
        s->saving.parameters = s->followers.parameters;
        s->saving.optimizer_state = s->followers.states;
        s->saving.optimizer_state_count = s->followers.state_count;
        s->saving.vector_count = 0; /* the core's vectors are of this server's slice */
    }
    server_enter(s, STATE_SAVING);
    background_save(s->saver, &s->saving);
}

static void begin_checkpoint(struct server *s)
{
    struct training_state *now = &s->saving;
    if (s->beside) {
        server_enter(s, STATE_EVALUATING); /* T11 */
        return;
    }
    server_core_state(s->core, now);
    now->seconds = training_seconds(s);
    now->sent_bytes = s->sent_bytes / server_share(s);
    now->loss_sum = s->tally.loss_sum;
    now->loss_count = s->tally.loss_count;
    now->goes_on = !server_is_over(s);
    while (checkpoint_is_due(s))
        s->next_checkpoint += s->checkpoint_samples;
    if (server_leads(s))
        gather_for(s, STATE_SAVING, true);
    else
        save(s);
}

/* T7, T8: the last checkpoint, the parameters of all servers, then the goodbyes. */
static void wind_up(struct server *s)
{
    if (!s->winding_up)
        s->train_seconds = training_seconds(s);
    s->winding_up = true;
    if (s->beside && !server_has_failed(s)) {
        server_enter(s, STATE_EVALUATING); /* T11 */
        return;
    }
    const bool lacks = server_leads(s) && leader_lacks_a_follower(s);
    if (s->saver != NULL && s->begun && !server_has_failed(s) && !s->last_saved) {
        s->last_saved = true;
        begin_checkpoint(s);
    } else if (server_leads(s) && s->begun && !lacks && !s->followers.gathered) {
        gather_for(s, STATE_LEAVING, false);
    } else {
        leave(s);
    }
}

/* After an evaluation or a checkpoint. */
static void proceed(struct server *s)
{
    if (server_is_over(s)) {
        wind_up(s);
    } else if (checkpoint_is_due(s)) {
        begin_checkpoint(s); /* T4 */
    } else {
        server_enter(s, STATE_TRAINING); /* T5 */
        if (s->core_waits)
            training_perform(s, server_core_evaluated(s->core), clock_ns());
        s->core_waits = false;
        if (server_leads(s) && !server_is_over(s))
            leader_resume(s);
    }
}

static bool gathering(struct server *s)
{
    if (leader_lacks_a_follower(s)) {
        wind_up(s);
        return true;
    }
    if (leader_awaits(s) != NULL)
        return false;
    if (s->followers.differ) {
        leave(s);
        return true;
    }
    s->followers.gathered = true;
    if (server_has_failed(s) || s->gather_for == STATE_LEAVING)
        wind_up(s);
    else if (s->gather_for == STATE_EVALUATING)
        evaluate(s); /* T3 */
    else
        save(s); /* T4 */
    return true;
}

/* False: the evaluation has not ended. */
static bool take_evaluation(struct server *s)
{
    struct evaluation e;
    status code;
    if (!background_take_evaluation(s->evaluator, &e, &code))
        return false;
    s->beside = false;
    if (code != OK)
        server_fail(s, code, "%s", error_message());
    else
        training_evaluated(s, &e);
    return true;
}

/* The thread of the evaluation may still read parameters that a gathering overwrites; its result is
 * not used. */
static void drop_evaluation(struct server *s)
{
    s->beside = false;
    ps_metrics_drop_evaluation(&s->tally, &s->evaluated);
}

/* After a request to stop, the server waits END_MS for the evaluation. If it was the last one, the
 * run has ended well. */
static bool evaluating(struct server *s)
{
    const bool another = s->beside && s->core_waits;
    if (!take_evaluation(s)) {
        if (s->result == OK || (!server_has_failed(s) && clock_ns() < s->stopped_ns + END_MS * MS))
            return false;
        drop_evaluation(s);
        wind_up(s);
        return true;
    }
    if (another && !server_has_failed(s)) {
        begin_evaluation(s);
        return true;
    }
    if (s->result == STOPPED && s->core_waits && server_core_complete(s->core)) {
        training_perform(s, server_core_evaluated(s->core), clock_ns());
        s->core_waits = false;
        s->result = s->ended ? OK : s->result;
    }
    proceed(s);
    return true;
}

static bool saving(struct server *s)
{
    status code;
    if (!background_take_saved(s->saver, &code))
        return false;
    if (code != OK)
        server_fail(s, code, "%s", error_message());
    proceed(s);
    return true;
}

/* ---- training and probing: T2 to T4 --------------------------------------------------------- */

static bool must_probe(const struct server *s)
{
    return s->queue_count > 0 && s->queue[s->queue_first].kind == EVENT_PUSH && !s->probed &&
           !server_core_ended(s->core) && probe_is_due(&s->probe, server_core_arrivals(s->core));
}

/* The push stays first in the queue meanwhile. */
static void begin_probe(struct server *s)
{
    const unsigned w = s->queue[s->queue_first].worker;
    const struct peer *p = &s->peers[w];
    server_enter(s, STATE_PROBING); /* T2 */
    background_probe(s->evaluator,
                     &(struct background_probe){
                         .worker = w,
                         .batch = p->first_batch + p->push.sequence,
                         .parameters = payload_slots(s->payload)[server_core_latest_slot(s->core)],
                         .gradient = payload_gradient(s->payload, w),
                         .fresh = s->probe.fresh,
                         .count = s->probe.count});
}

static bool probing(struct server *s)
{
    status code;
    if (!background_take_probe(s->evaluator, &s->cosine, &code))
        return false;
    s->probed = code == OK;
    server_enter(s, STATE_TRAINING); /* T2 */
    if (code != OK)
        server_fail(s, code, "%s", error_message());
    return true;
}

static bool training(struct server *s)
{
    if (s->beside && take_evaluation(s))
        return true;
    if (must_probe(s)) {
        begin_probe(s);
        return true;
    }
    if (!training_feed(s))
        return false;
    if (server_is_over(s))
        return true;
    if (s->core_waits)
        begin_evaluation(s); /* T3 */
    else if (checkpoint_is_due(s))
        begin_checkpoint(s); /* T4 */
    return true;
}

/* ---- a follower ----------------------------------------------------------------------------- */

/* Waits for the leader's last order until the leader must have given up, too. */
static bool follower_leaving(struct server *s)
{
    const uint64_t now = clock_ns(), last_ns = s->until_ns + 2 * END_FAILED_MS * MS;
    if (training_feed(s))
        return true;
    if (s->leader.over || s->leader.closed || now >= last_ns) {
        server_enter(s, STATE_CLOSED); /* T10 */
        return true;
    }
    if (!s->goodbyes_reported && (!peers_remain(s) || now > s->until_ns)) {
        follower_report(s, WIRE_WORKERS_GONE, 0, 0);
        s->goodbyes_reported = true;
    }
    return false;
}

static bool follower_advance(struct server *s)
{
    if (s->state == STATE_LEAVING)
        return follower_leaving(s);
    if (s->ended || s->leader.over) {
        leave(s); /* T8 */
        return true;
    }
    return training_feed(s);
}

/* ---- the step, and the limit ---------------------------------------------------------------- */

bool server_advance(struct server *s)
{
    if (server_follows(s))
        return follower_advance(s);
    switch (s->state) {
    case STATE_GATHERING:
        return gathering(s);
    case STATE_EVALUATING:
        return evaluating(s);
    case STATE_SAVING:
        return saving(s);
    case STATE_LEAVING:
        return leaving(s);
    case STATE_DISMISSING:
        return dismissing(s);
    default:
        break;
    }
    if (server_is_over(s)) {
        wind_up(s);
        return true;
    }
    return s->state == STATE_TRAINING  ? training(s)
           : s->state == STATE_PROBING ? probing(s)
                                       : false;
}

static void fail_late(struct server *s, const char *what, double late_s)
{
    char why[64];
    if (s->state == STATE_GATHERING) {
        snprintf(why, sizeof why, "has sent nothing of its slice for %.1f s", late_s);
        leader_lose_follower(s, leader_awaits(s), ERROR_PEER, why);
        return;
    }
    server_fail(s, s->state == STATE_SAVING ? ERROR_OTHER : ERROR_PEER,
                "%s has not ended for %.1f s (limit: %d times the longer of timeout_s and the "
                "longest so far): "
                "does a device or a file system hang? If it is only slow, set a longer timeout_s",
                what, late_s, LIVENESS_FACTOR);
    wind_up(s);
}

void server_check_state(struct server *s, uint64_t now)
{
    static const char *const works[STATES] = {
        [STATE_PROBING] = "a fresh gradient for comparison (probe_every)",
        [STATE_GATHERING] = "a slice of the parameters",
        [STATE_EVALUATING] = "the evaluation",
        [STATE_SAVING] = "the checkpoint",
    };
    const char *what = works[s->state];
    if (what == NULL || (s->state == STATE_GATHERING && leader_awaits(s) == NULL))
        return;
    const uint64_t busy_ms = liveness_ms(s->since_ns, now);
    const uint64_t longest_ms = s->longest_ns[s->state] / MS;
    uint64_t limit_ms = liveness_limit_ms(s->timeout_ms, longest_ms);
    if (s->state == STATE_GATHERING && server_has_failed(s) && limit_ms > END_FAILED_MS)
        limit_ms = END_FAILED_MS;
    if (busy_ms >= limit_ms) {
        fail_late(s, what, (double)busy_ms * 1e-3);
    } else if (!s->late_named && busy_ms >= liveness_name_ms(s->timeout_ms, longest_ms)) {
        char where[32] = "";
        s->late_named = true;
        if (s->state == STATE_GATHERING)
            snprintf(where, sizeof where, " (server %u)",
                     (unsigned)(leader_awaits(s) - s->followers.at));
        log_info("%s%s has taken %.1f s so far; the limit is %.0f s", what, where,
                 (double)busy_ms * 1e-3, (double)limit_ms * 1e-3);
    }
}
