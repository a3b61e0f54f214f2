/* server.c — the loop around the core: receive, feed, look after the peers, wait. See
 * server_state.h. */
#include "ps/server_state.h"

#include "ps/outer.h"
#include "ps/resume.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

enum {
    TICK_MS = 100,
    PROGRESS_MS = 250,
    WARN_MS = 5000,
    GOODBYES_MS = 5000, /* the longest wait for goodbyes after a run that ended well */
    GOODBYES_FAILED_MS = 1000,
    RECEIVED_AT_ONCE = 256,
};

static const uint64_t MS = 1000000;

/* ---- open and close ------------------------------------------------------------------------ */

static status read_settings(struct server *s)
{
    status result = OK;
    const options *o = s->o->settings;
    struct outer outer;
    TRY(outer_open(&outer, o, s->o->workers));
    s->servers = servers_of(o);
    REQUIRE(s->o->server < s->servers);
    TRY(slices_fit(s->servers, s->o->count));
    s->begin = slice_begin(s->o->count, s->servers, s->o->server);
    s->count = slice_count(s->o->count, s->servers, s->o->server);
    s->one_order = s->servers > 1 && reads_snapshots(o);
    s->timeout_ms = (unsigned)(options_real(o, "timeout_s") * 1000);
    s->threads = options_declared(o, "threads") ? (unsigned)options_integer(o, "threads") : 1;
    s->push_samples = (unsigned)options_integer(o, "batch") * outer.steps;
    s->lost_ends_run = strcmp(options_text(o, "on_lost"), "stop") == 0;
    tally_open(&s->tally, o, server_follows(s) ? NULL : s->o->recorder);
    s->record_parts = options_declared(o, "trace") && options_text(o, "trace")[0] != '\0';
    if (server_follows(s))
        goto done; /* server 0 writes checkpoints */
    s->checkpoints = options_text(o, "checkpoint")[0] != '\0';
    s->checkpoint_samples = training_checkpoint_every(o, s->o->epoch_samples);
    s->next_checkpoint = s->checkpoint_samples;
done:
    return result;
}

static status open_core(struct server *s)
{
    status result = OK;
    const unsigned slots = s->o->workers + 2;
    struct optimizer_layers layers = {0}; /* several servers: see slices_check() */
    if (s->servers == 1)
        layers = s->o->layers;
    TRY(payload_open(&s->payload, s->count, slots, s->o->workers));
    s->offer_shared = payload_is_shared(s->payload) &&
                      strcmp(options_text(s->o->settings, "payload"), "frames") != 0;
    TRY(crew_open(&s->helpers));
    TRY(server_core_open(
        &s->core, &(struct server_core_options){.settings = s->o->settings,
                                                .workers = s->o->workers,
                                                .count = s->count,
                                                .layers = layers,
                                                .slots = payload_slots(s->payload),
                                                .slot_count = slots,
                                                .initial = s->o->initial + s->begin,
                                                .epoch_samples = s->o->epoch_samples,
                                                .total_samples = s->o->length.total_samples,
                                                .evaluate_every = s->o->length.evaluate_every,
                                                .follows = server_follows(s),
                                                .helpers = s->helpers,
                                                .start = s->o->start,
                                                .begin = s->begin,
                                                .whole = s->o->count}));
done:
    return result;
}

static status go_on(struct server *s, const struct training_state *start)
{
    status result = OK;
    TRY(resume_check(s->o->settings));
    REQUIRE(start->batches != NULL); /* the core has been opened with it */
    s->before_ns = (uint64_t)(start->seconds * 1e9);
    s->tally.loss_sum = start->loss_sum;
    s->tally.loss_count = start->loss_count;
    while (s->checkpoint_samples > 0 && s->next_checkpoint <= start->samples)
        s->next_checkpoint += s->checkpoint_samples;
    for (unsigned w = 0; w < s->o->workers; w++)
        s->peers[w].first_batch = start->batches[w];
done:
    return result;
}

/* More than the protocol has for one peer: two releases with all chunks of the parameters; to
 * another server the orders for all workers, and an answer to each chunk of its slices. */
static unsigned most_queued(const struct server *s)
{
    const size_t chunks = s->o->count * sizeof(float) / WIRE_CHUNK_BYTES + 1;
    return (unsigned)(1024 + 4 * s->o->workers + 8 * chunks);
}

static status server_open(struct server *s, const struct ps_server_options *o)
{
    status result = OK;
    struct curve_keys *keys = NULL;
    *s = (struct server){.o = o, .wake_fd = -1};
    s->leader.pidfd = -1;
    REQUIRE(o->workers > 0 && o->count > 0 && (o->server > 0 || o->hooks.evaluate != NULL));
    TRY(read_settings(s));
    TRY(curve_open(&keys, options_text(o->settings, "curve"), true));
    TRY(channel_bind(
        &s->channel, o->endpoint,
        &(struct channel_options){.timeout_ms = s->timeout_ms,
                                  .may_spin = channel_may_spin(o->workers + s->servers),
                                  .keys = keys,
                                  .run_token = o->run_token,
                                  .most_queued = most_queued(s)}));
    s->queue_size = 4 * o->workers; /* a push, a loss, a hello and another loss, at most */
    TRY(memory_new(&s->queue, s->queue_size, sizeof *s->queue, "the server's queue"));
    TRY(memory_new(&s->peers, o->workers, sizeof *s->peers, "the server's peers"));
    for (unsigned w = 0; w < o->workers; w++)
        s->peers[w].pidfd = s->peers[w].former_pidfd = -1;
    TRY(open_core(s));
    if (o->start != NULL)
        TRY(go_on(s, o->start));
    TRY(probe_open(&s->probe, o->settings, o->count));
    REQUIRE(s->probe.every == 0 || o->hooks.gradient != NULL);
    s->wake_fd = epoll_create1(EPOLL_CLOEXEC);
    if (s->wake_fd < 0)
        FAIL(ERROR_OTHER, "cannot make an epoll set: %s", strerror(errno));
    if (server_follows(s)) {
        TRY(leader_open(s));
    } else {
        TRY(evaluator_open(&s->evaluator, &o->hooks));
        server_watch(s, evaluator_fd(s->evaluator));
    }
    if (server_leads(s))
        TRY(followers_open(s));
    s->opened_ns = s->joined_ns = s->ticked_ns = clock_ns();
done:
    curve_close(&keys);
    return result;
}

static void server_close(struct server *s)
{
    evaluator_close(&s->evaluator);
    leader_close(s);
    channel_close(&s->channel); /* before the slots that messages still refer to */
    if (threads_abandoned() > 0)
        return; /* one may still read the parameters */
    followers_close(s);
    server_core_close(&s->core);
    crew_close(&s->helpers);
    probe_close(&s->probe);
    payload_close(&s->payload);
    for (unsigned w = 0; s->peers != NULL && w < s->o->workers; w++) {
        process_forget(&s->peers[w].pidfd);
        process_forget(&s->peers[w].former_pidfd);
    }
    if (s->wake_fd >= 0)
        close(s->wake_fd);
    memory_free(s->peers);
    memory_free(s->queue);
}

/* ---- the loop ------------------------------------------------------------------------------ */

enum { NAMED_BYTES = 640 };

/* Whoever has not come, by commas. */
static void name_missing(const struct server *s, char out[NAMED_BYTES])
{
    char who[3][NAMED_BYTES / 3 - 2];
    size_t length = 0;
    who[0][0] = out[0] = '\0';
    if (server_leads(s))
        followers_name_missing(s, who[0], sizeof who[0]);
    peers_name(s, PEER_ABSENT, who[1], sizeof who[1]);
    peers_name(s, PEER_WELCOMED, who[2], sizeof who[2]);
    for (size_t i = 0; i < COUNT_OF(who); i++)
        if (who[i][0] != '\0')
            length += (size_t)snprintf(out + length, NAMED_BYTES - length, "%s%s",
                                       length > 0 ? ", " : "", who[i]);
}

/* With several servers nobody who is not with all of them when training begins comes in later. */
static void lose_those_not_everywhere(struct server *s)
{
    for (unsigned w = 0; server_leads(s) && w < s->o->workers; w++)
        if (!followers_are_ready(s, w))
            peers_lose(s, w, ERROR_PEER, "was not with all servers in time");
}

/* How long to wait for the next one to join, after the last one did. Workers may still load their
 * data: the first may take as long as own work. The others are of the same run, so they get as long
 * again as the last one took. */
static uint64_t joining_limit_ms(struct server *s)
{
    const uint64_t most_ms = (uint64_t)SERVER_OWN_WORK * s->timeout_ms;
    const uint64_t took_ms = (s->joined_ns - s->opened_ns) / MS;
    const bool none = peers_in(s, PEER_READY) == 0;
    return none || took_ms + s->timeout_ms > most_ms ? most_ms : took_ms + s->timeout_ms;
}

/* Before training: names the workers and servers that have not joined, then starts without them or
 * fails. */
static void await_workers(struct server *s, uint64_t now)
{
    char who[NAMED_BYTES];
    const uint64_t limit_ms = joining_limit_ms(s);
    uint64_t waited_ms = now > s->joined_ns ? (now - s->joined_ns) / MS : 0;
    if (s->begun || waited_ms < (s->timeout_ms < WARN_MS ? s->timeout_ms : WARN_MS))
        return;
    name_missing(s, who);
    bool servers_missing = server_leads(s) && !followers_have_joined(s);
    if (waited_ms < limit_ms) {
        if (!s->missing_named)
            log_warning("waiting for %s to join at %s (at most %.0f s more)", who,
                        channel_endpoint(s->channel), (double)(limit_ms - waited_ms) * 1e-3);
        s->missing_named = true;
    } else if (s->lost_ends_run || servers_missing || peers_in(s, PEER_READY) == 0) {
        server_fail(s, ERROR_PEER,
                    "%s did not join at %s within %.0f s (timeout_s, and the time to load data): "
                    "see their own messages",
                    who, channel_endpoint(s->channel), (double)limit_ms * 1e-3);
    } else {
        log_warning("%s did not join in time; training begins without (on_lost=continue)", who);
        server_event(s, SEVERITY_WARNING, "workers_missing", -1, who);
        lose_those_not_everywhere(s);
        if (s->result == OK && !s->begun)
            training_begin(s);
    }
}

static void tick(struct server *s, bool drained)
{
    uint64_t now = clock_ns();
    if (s->o->hooks.stop != NULL && *s->o->hooks.stop != 0 && !s->ended)
        server_fail(s, STOPPED, "stopped on request after %llu updates",
                    (unsigned long long)(s->begun ? server_core_version(s->core) : 0));
    const uint64_t away_ns = now - s->ticked_ns;
    if (away_ns < TICK_MS * MS)
        return;
    /* Whoever is silent may have spoken while we were busy: judge only when nothing is left unread.
     */
    if (drained || away_ns > 10 * TICK_MS * MS) {
        s->ticked_ns = now;
        server_was_away(s, away_ns - TICK_MS * MS, now);
        if (drained)
            peers_tick(s, now);
        if (drained && server_leads(s))
            followers_tick(s, now);
    }
    await_workers(s, now);
    if (now - s->progress_ns >= PROGRESS_MS * MS) {
        s->progress_ns = now;
        training_progress(s);
    }
}

bool server_receive(struct server *s)
{
    struct channel_received r;
    for (unsigned i = 0; i < RECEIVED_AT_ONCE; i++) {
        enum channel_event event = channel_receive(s->channel, &r);
        if (event == CHANNEL_NOTHING)
            return true;
        if (!server_leads(s) || !followers_handle(s, event, &r))
            peers_handle(s, event, &r);
    }
    return false;
}

void server_wait(struct server *s)
{
    struct epoll_event events[8];
    channel_wait_either(s->channel, s->leader.channel, s->wake_fd, TICK_MS);
    /* Edge-triggered: taking the events makes the set quiet; what they mean is looked up. */
    while (epoll_wait(s->wake_fd, events, 8, 0) == 8)
        continue;
}

static void serve(struct server *s)
{
    while (s->result == OK && !s->ended) {
        bool drained = server_receive(s);
        if (s->evaluating)
            training_evaluated(s); /* then what waited for it is fed at once */
        if (s->probing)
            training_probed(s);
        bool fed = s->result == OK && training_feed(s);
        tick(s, drained);
        if (drained && !fed && s->result == OK && !s->ended)
            server_wait(s);
    }
}

/* Members may still say something. */
static bool anybody_here(const struct server *s)
{
    return peers_in(s, PEER_READY) + peers_in(s, PEER_WELCOMED) > 0 ||
           (server_leads(s) && !followers_are_gone(s));
}

static uint64_t goodbyes_until(const struct server *s)
{
    bool well = s->result == OK || s->result == STOPPED;
    return clock_ns() + (well ? GOODBYES_MS : GOODBYES_FAILED_MS) * MS;
}

/* Late pushes, and those that wait in the queue, still reach the core: they are recorded, not
 * applied. */
static void take_leave(struct server *s)
{
    uint64_t until = goodbyes_until(s);
    peers_end(s, s->result, s->message);
    if (server_leads(s))
        followers_end(s);
    training_end(s);
    while (clock_ns() < until && anybody_here(s)) {
        bool drained = server_receive(s);
        bool fed = training_feed(s);
        if (drained && !fed) {
            peers_tick(s, clock_ns());
            if (server_leads(s))
                followers_tick(s, clock_ns());
            server_wait(s);
        }
    }
    while (training_feed(s))
        continue;
    if (server_leads(s))
        followers_dismiss(s);
}

/* ---- one that follows ----------------------------------------------------------------------- */

static void follow_tick(struct server *s, bool drained)
{
    uint64_t now = clock_ns();
    if (s->o->hooks.stop != NULL && *s->o->hooks.stop != 0 && s->result == OK && !s->ended)
        server_fail(s, STOPPED, "server %u was told to stop", s->o->server);
    if (!drained || now - s->ticked_ns < TICK_MS * MS)
        return;
    server_was_away(s, now - s->ticked_ns - TICK_MS * MS, now);
    s->ticked_ns = now;
    peers_tick(s, now);
    leader_tick(s, now);
}

static void follow_once(struct server *s)
{
    bool drained = leader_receive(s);
    drained = server_receive(s) && drained;
    bool fed = training_feed(s);
    follow_tick(s, drained);
    if (drained && !fed && !s->leader.over)
        server_wait(s);
}

/* Until server 0 says that the run is over; then until it says that it has heard enough. */
static void follow(struct server *s)
{
    while (!s->ended && !s->leader.over)
        follow_once(s);
    bool told = false;
    uint64_t until = goodbyes_until(s), give_up = until + 3 * GOODBYES_FAILED_MS * MS;
    peers_end(s, s->result, s->message);
    training_end(s);
    while (!s->leader.over && !s->leader.closed && clock_ns() < give_up) {
        if (!told && (!anybody_here(s) || clock_ns() > until)) {
            leader_report(s, WIRE_WORKERS_GONE, 0, 0);
            told = true;
        }
        follow_once(s);
    }
}

/* ---- the run ------------------------------------------------------------------------------- */

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
    if (parameters == NULL)
        return; /* another server's part of them is lost */
    sha256_begin(&sum);
    sha256_add(&sum, parameters, (server_leads(s) ? s->o->count : s->count) * sizeof(float));
    sha256_end(&sum, out->parameters_sha256);
}

static void lead(struct server *s, struct training_outcome *out)
{
    serve(s);
    if (s->result == STOPPED && s->evaluating)
        training_keep_evaluation(s);
    out->train_seconds = training_seconds(s);
    bool keep = s->result == OK || s->result == STOPPED;
    if (keep && s->begun && s->checkpoints)
        training_checkpoint(s);
    if (server_leads(s) && s->begun)
        s->followers.gathered = followers_gather(s, false);
    take_leave(s);
}

status ps_server_run(const struct ps_server_options *o, struct training_outcome *out)
{
    status result = OK;
    struct server s;
    memset(out, 0, sizeof *out);
    TRY(server_open(&s, o));
    if (o->bound != NULL)
        o->bound(o->hooks.context, channel_endpoint(s.channel));
    if (server_follows(&s))
        follow(&s);
    else
        lead(&s, out);
    fill_outcome(&s, out);
    if (s.refused > 0)
        log_info("%llu messages were refused", (unsigned long long)s.refused);
    if (s.result != OK)
        FAIL(s.result, "%s", s.message);
done:
    server_close(&s);
    return result;
}
