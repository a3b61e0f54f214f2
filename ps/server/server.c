/* server.c — open and close, and the loop: receive, advance, check limits, wait. See
 * server_state.h. */
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/sha256.h"
#include "base/thread.h"
#include "ps/server/server_state.h"

#include "ps/rules/outer/outer.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

enum {
    TICK_MS = 100,
    PROGRESS_MS = 250,
    RECEIVED_AT_ONCE = 256,
};

static const uint64_t MS = 1000000;

/* ---- open and close ------------------------------------------------------------------------- */

static status read_settings(struct server *s)
{
    status result = OK;
    const options *o = s->o->settings;
    struct outer outer;
    TRY(outer_open(&outer, o, s->o->workers));
    s->servers = servers_of(o);
    REQUIRE(s->o->server < s->servers);
    TRY(slices_open(&s->slices, o, &s->o->layers, s->o->count));
    s->begin = s->slices.begin[s->o->server];
    s->count = slice_count(&s->slices, s->o->server);
    s->one_order = s->servers > 1 && reads_snapshots(o);
    s->timeout_ms = (unsigned)(options_real(o, "timeout_s") * 1000);
    s->threads = (unsigned)options_integer(o, "threads");
    s->push_samples = (unsigned)options_integer(o, "batch") * outer.steps;
    s->lost_ends_run = strcmp(options_text(o, "on_lost"), "stop") == 0;
    ps_metrics_open(&s->tally, o, server_follows(s) ? NULL : s->o->recorder);
    const char *pause = options_text(o, "evaluation_pause");
    s->evaluation_pause = pause[0] == 'a' ? PAUSE_AUTO : pause[0] == 'y' ? PAUSE_YES : PAUSE_NO;
    s->record_parts = options_text(o, "trace")[0] != '\0';
    if (server_follows(s))
        goto done; /* the leader writes checkpoints */
    s->checkpoint_samples = training_checkpoint_every(o, s->o->epoch_samples);
    s->next_checkpoint = s->checkpoint_samples;
done:
    return result;
}

static status open_core(struct server *s)
{
    status result = OK;
    const unsigned slots = s->workers + 2;
    TRY(payload_open(&s->payload, s->count, slots, s->workers));
    s->pull = pull_code_of(s->o->settings);
    TRY(memory_new(&s->pulled, slots, sizeof *s->pulled, "codes"));
    s->offer_shared = payload_is_shared(s->payload) &&
                      strcmp(options_text(s->o->settings, "payload"), "frames") != 0;
    TRY(slice_code_open(&s->codes, s->o->settings, &s->slices, s->o->server, &s->o->layers,
                        SLICE_CODE_DECODES));
    TRY(helpers_open_for_cores(&s->helpers));
    TRY(server_core_open(&s->core,
                         &(struct server_core_options){
                             .settings = s->o->settings,
                             .workers = s->o->workers,
                             .workers_max = s->workers,
                             .count = s->count,
                             .layers = slice_layers(&s->slices, &s->o->layers, s->o->server),
                             .slots = payload_slots(s->payload),
                             .slot_count = slots,
                             .initial = s->o->initial + s->begin,
                             .epoch_samples = s->o->epoch_samples,
                             .total_samples = s->o->length.total_samples,
                             .total_seconds = s->o->length.seconds,
                             .evaluate_every = s->o->length.evaluate_every,
                             .follows = server_follows(s),
                             .helpers = s->helpers,
                             .start = s->o->start,
                             .begin = s->begin,
                             .whole = s->o->count}));
done:
    return result;
}

static void resume(struct server *s, const struct training_state *start)
{
    REQUIRE(start->batches != NULL); /* the core has been opened with it */
    s->before_ns = (uint64_t)(start->seconds * 1e9);
    s->tally.loss_sum = start->loss_sum;
    s->tally.loss_count = start->loss_count;
    s->sent_bytes = start->sent_bytes * server_share(s);
    while (s->checkpoint_samples > 0 && s->next_checkpoint <= start->samples)
        s->next_checkpoint += s->checkpoint_samples;
}

/* More messages than the protocol has under way to one peer: two releases with all chunks of the
 * parameters; for another server the orders for all workers, and an answer to each chunk of its
 * slices. */
static unsigned max_queued(const struct server *s)
{
    const size_t chunks = s->o->count * sizeof(float) / WIRE_CHUNK_BYTES + 1;
    return (unsigned)(1024 + 4 * s->workers + 8 * chunks);
}

static status open_background(struct server *s)
{
    status result = OK;
    const struct training_hooks *hooks = &s->o->hooks;
    TRY(background_open(&s->evaluator, hooks));
    server_watch(s, background_fd(s->evaluator));
    if (hooks->checkpoint == NULL || options_text(s->o->settings, "checkpoint")[0] == '\0')
        goto done;
    TRY(background_open(&s->saver, hooks));
    server_watch(s, background_fd(s->saver));
done:
    return result;
}

static status server_open(struct server *s, const struct ps_server_options *o)
{
    status result = OK;
    struct curve_keys *keys = NULL;
    *s = (struct server){
        .o = o, .workers = o->workers_max > 0 ? o->workers_max : o->workers, .wake_fd = -1};
    s->leader.life.pidfd = -1;
    REQUIRE(o->workers > 0 && s->workers >= o->workers && o->count > 0);
    REQUIRE(o->server > 0 || o->hooks.evaluate != NULL);
    TRY(read_settings(s));
    TRY(curve_open(&keys, options_text(o->settings, "curve"), true));
    TRY(channel_bind(
        &s->channel, o->endpoint,
        &(struct channel_options){.timeout_ms = s->timeout_ms,
                                  .may_spin = channel_may_spin(s->workers + s->servers),
                                  .keys = keys,
                                  .trusted = options_flag(o->settings, "trusted_network"),
                                  .run_token = o->run_token,
                                  .max_queued = max_queued(s)}));
    s->queue_size = 4 * s->workers; /* at most a push, a loss, a hello and another loss each */
    TRY(memory_new(&s->queue, s->queue_size, sizeof *s->queue, "the server's queue"));
    TRY(memory_new(&s->peers, s->workers, sizeof *s->peers, "the server's peers"));
    for (unsigned w = 0; w < s->workers; w++)
        s->peers[w].life.pidfd = s->peers[w].former_pidfd = -1;
    TRY(open_core(s));
    if (o->start != NULL)
        resume(s, o->start);
    TRY(probe_open(&s->probe, o->settings, o->count));
    REQUIRE(s->probe.every == 0 || o->hooks.gradient != NULL);
    s->wake_fd = epoll_create1(EPOLL_CLOEXEC);
    if (s->wake_fd < 0)
        FAIL(ERROR_OTHER, "cannot make an epoll set: %s", strerror(errno));
    if (server_follows(s))
        TRY(follower_open(s));
    else
        TRY(open_background(s));
    if (server_leads(s))
        TRY(leader_open(s));
    s->opened_ns = s->joined_ns = s->ticked_ns = s->since_ns = clock_ns();
done:
    curve_close(&keys);
    return result;
}

static void server_close(struct server *s)
{
    background_close(&s->evaluator);
    background_close(&s->saver);
    follower_close(s);
    channel_close(&s->channel); /* before the slots to which messages refer */
    if (threads_abandoned() > 0)
        return; /* an abandoned thread may still read the parameters */
    leader_close(s);
    server_core_close(&s->core);
    helpers_close(&s->helpers);
    probe_close(&s->probe);
    payload_close(&s->payload);
    compression_close(&s->codes);
    for (unsigned i = 0; s->pulled != NULL && i < s->workers + 2; i++)
        memory_free(s->pulled[i].code);
    memory_free(s->pulled);
    for (unsigned w = 0; s->peers != NULL && w < s->workers; w++) {
        memory_free(s->peers[w].code);
        peer_process_forget(&s->peers[w].life.pidfd);
        peer_process_forget(&s->peers[w].former_pidfd);
    }
    if (s->wake_fd >= 0)
        close(s->wake_fd);
    memory_free(s->copy);
    memory_free(s->peers);
    memory_free(s->queue);
}

/* ---- JOINING -------------------------------------------------------------------------------- */

enum { NAMED_BYTES = 640 };

/* All peers that have not joined, separated by commas. */
static void name_missing(const struct server *s, char out[NAMED_BYTES])
{
    char names[3][NAMED_BYTES / 3 - 2];
    size_t length = 0;
    names[0][0] = out[0] = '\0';
    if (server_leads(s))
        leader_name_missing(s, names[0], sizeof names[0]);
    peers_name(s, PEER_ABSENT, names[1], sizeof names[1]);
    peers_name(s, PEER_WELCOMED, names[2], sizeof names[2]);
    for (size_t i = 0; i < COUNT_OF(names); i++)
        if (names[i][0] != '\0')
            length += (size_t)snprintf(out + length, NAMED_BYTES - length, "%s%s",
                                       length > 0 ? ", " : "", names[i]);
}

/* Whether workers are missing and none of them can join, because the starter knows that their
 * processes have ended. */
static bool missing_workers_have_ended(const struct server *s)
{
    const struct training_hooks *hooks = &s->o->hooks;
    bool missing = false;
    for (unsigned w = 0; hooks->worker_ended != NULL && w < s->o->workers; w++) {
        if (peers_is_ready(s, w))
            continue;
        missing = true;
        if (!hooks->worker_ended(hooks->context, w))
            return false;
    }
    return missing;
}

/* Names the workers and servers that have not joined, then starts without them or fails (T1). The
 * wait begins again when a peer joins. It is over at once if the missing workers have ended. */
static void await_peers(struct server *s, uint64_t now)
{
    char names[NAMED_BYTES];
    const uint64_t waited_ms = liveness_ms(s->joined_ns, now);
    const uint64_t longest_ms = liveness_ms(s->opened_ns, s->joined_ns);
    const uint64_t limit_ms = liveness_limit_ms(s->timeout_ms, longest_ms);
    const bool servers_missing = server_leads(s) && !leader_has_all_followers(s);
    const bool goes_on = servers_missing || !missing_workers_have_ended(s);
    if (goes_on && waited_ms < liveness_name_ms(s->timeout_ms, 0))
        return;
    name_missing(s, names);
    if (goes_on && waited_ms < limit_ms) {
        if (!s->missing_named)
            log_warning("waiting for %s to join at %s (at most %.0f s more)", names,
                        channel_endpoint(s->channel), (double)(limit_ms - waited_ms) * 1e-3);
        s->missing_named = true;
    } else if (s->lost_ends_run || servers_missing || peers_ready(s, s->workers) == 0) {
        server_fail(s, ERROR_PEER,
                    "%s did not join at %s, or ended (limit: %.0f s, %d times timeout_s, to load "
                    "data): see their own messages",
                    names, channel_endpoint(s->channel), (double)limit_ms * 1e-3, LIVENESS_FACTOR);
    } else {
        log_warning("%s did not join; training begins without them (on_lost=continue)", names);
        server_event(s, SEVERITY_WARNING, "workers_missing", -1, names);
        peers_begin(s);
    }
}

/* ---- the loop ------------------------------------------------------------------------------- */

static void check_stop(struct server *s)
{
    if (!training_stop_wanted(&s->o->hooks) || server_is_over(s))
        return;
    s->stopped_ns = clock_ns();
    if (server_follows(s))
        server_fail(s, STOPPED, "server %u was told to stop", s->o->server);
    else
        server_fail(s, STOPPED, "stopped on request after %llu updates",
                    (unsigned long long)(s->begun ? server_core_version(s->core) : 0));
}

/* `drained`: no message is left unread. Only then does a silence mean that the peer sent nothing;
 * otherwise this server may be behind. */
static void tick(struct server *s, bool drained)
{
    const uint64_t now = clock_ns(), away_ns = now - s->ticked_ns;
    check_stop(s);
    if (away_ns < TICK_MS * MS)
        return;
    if (drained || away_ns > 10 * TICK_MS * MS) {
        s->ticked_ns = now;
        server_was_away(s, away_ns - TICK_MS * MS, now);
    }
    if (drained) {
        server_check_state(s, now);
        peers_tick(s, now);
        if (server_leads(s))
            leader_tick(s, now);
        if (server_follows(s))
            follower_tick(s, now);
    }
    if (s->state == STATE_JOINING && !server_follows(s) && !server_is_over(s))
        await_peers(s, now);
    if (now - s->progress_ns >= PROGRESS_MS * MS) {
        s->progress_ns = now;
        training_progress(s);
    }
}

/* NULL: there are no mailboxes. */
static struct bell *bell_of(const struct server *s)
{
    mailboxes *m = payload_mailboxes(s->payload);
    return m != NULL ? mailboxes_bell(m) : NULL;
}

/* Takes one message from each mailbox. The workers take turns in being first. */
static void receive_mail(struct server *s)
{
    struct bell *bell = bell_of(s);
    if (bell == NULL || !bell_rings(bell))
        return;
    bell_hear(bell);
    for (unsigned i = 0; i < s->workers; i++)
        peers_take_mail(s, (s->mail_first + i) % s->workers);
    s->mail_first = (s->mail_first + 1) % s->workers;
}

/* False: messages may be left. */
static bool receive(struct server *s)
{
    struct channel_received r;
    receive_mail(s);
    for (unsigned i = 0; i < RECEIVED_AT_ONCE; i++) {
        enum channel_event event = channel_receive(s->channel, &r);
        if (event == CHANNEL_NOTHING)
            return true;
        if (server_leads(s) && leader_handle(s, event, &r))
            continue;
        if (event == CHANNEL_MESSAGE && r.message.worker < s->workers)
            peers_take_mail(s, r.message.worker); /* its mail was sent before this message */
        peers_handle(s, event, &r);
    }
    return false;
}

static void wait(struct server *s)
{
    struct epoll_event events[8];
    channel_wait_any(s->channel, s->leader.over ? NULL : s->leader.channel, bell_of(s), s->wake_fd,
                     TICK_MS);
    /* Edge-triggered: reading the events rearms the set. Other functions look up what happened. */
    while (epoll_wait(s->wake_fd, events, 8, 0) == 8)
        continue;
}

static void serve(struct server *s)
{
    while (s->state != STATE_CLOSED) {
        bool drained = !server_follows(s) || follower_receive(s);
        drained = receive(s) && drained;
        const bool advanced = server_advance(s);
        tick(s, drained);
        if (drained && !advanced && s->state != STATE_CLOSED)
            wait(s);
    }
}

/* ---- the run -------------------------------------------------------------------------------- */

static void fill_outcome(struct server *s, struct training_outcome *out)
{
    struct sha256 sum;
    if (s->core == NULL)
        return;
    const float *parameters = payload_slots(s->payload)[server_core_latest_slot(s->core)];
    if (server_leads(s))
        parameters = s->followers.gathered ? s->followers.parameters : NULL;
    out->updates = server_core_version(s->core);
    out->samples_used = server_core_samples_used(s->core);
    out->samples_computed = server_core_samples_computed(s->core);
    out->staleness = s->tally.staleness;
    out->sent_bytes = s->sent_bytes / server_share(s);
    out->train_seconds = training_time_within(&s->o->length, s->train_seconds);
    if (parameters == NULL)
        return; /* another server's slice is lost */
    sha256_begin(&sum);
    sha256_add(&sum, parameters, (server_leads(s) ? s->o->count : s->count) * sizeof(float));
    sha256_end(&sum, out->parameters_sha256);
}

status ps_server_run(const struct ps_server_options *o, struct training_outcome *out)
{
    status result = OK;
    struct server s;
    memset(out, 0, sizeof *out);
    TRY(server_open(&s, o));
    if (o->bound != NULL)
        o->bound(o->hooks.context, channel_endpoint(s.channel));
    serve(&s);
    fill_outcome(&s, out);
    if (s.refused > 0)
        log_info("%llu messages were refused", (unsigned long long)s.refused);
    if (s.result != OK)
        FAIL(s.result, "%s", s.message);
done:
    server_close(&s);
    return result;
}
