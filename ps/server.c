/* server.c — the loop around the core: receive, feed, look after the peers, wait. See
 * server_state.h. */
#include "ps/server_state.h"

#include "ps/outer.h"

#include <errno.h>
#include <math.h>
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

void server_fail(struct server *s, status code, const char *format, ...)
{
    char text[sizeof s->message];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    /* The first reason is the reason, unless it was a wish: a stopped run that cannot write its
     * checkpoint has failed. */
    if (s->result == OK || (s->result == STOPPED && code != STOPPED)) {
        memcpy(s->message, text, sizeof text);
        s->result = code;
    } else if (code != STOPPED) {
        log_error("%s", text);
    }
}

void server_watch(struct server *s, int fd)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLET};
    if (epoll_ctl(s->wake_fd, EPOLL_CTL_ADD, fd, &event) != 0)
        log_debug("cannot watch a descriptor: %s", strerror(errno)); /* the tick sees it later */
}

void server_event(struct server *s, enum severity severity, const char *code, int w,
                  const char *detail)
{
    if (s->o->recorder != NULL)
        recorder_event(s->o->recorder, training_seconds(s), severity, code, w, detail);
}

void server_event_queued(struct server *s, enum severity severity, const char *code, unsigned w,
                         const char *detail)
{
    uint64_t before = server_core_arrivals(s->core);
    for (unsigned i = 0; i < s->queue_count; i++)
        before += s->queue[(s->queue_first + i) % s->queue_size].kind == EVENT_PUSH;
    if (s->o->recorder != NULL)
        recorder_event_between(s->o->recorder, training_seconds(s), before, severity, code, (int)w,
                               detail);
}

/* ---- open and close ------------------------------------------------------------------------ */

static status read_settings(struct server *s)
{
    status result = OK;
    const options *o = s->o->settings;
    struct outer outer;
    TRY(outer_open(&outer, o, s->o->workers));
    s->timeout_ms = (unsigned)(options_real(o, "timeout_s") * 1000);
    s->push_samples = (unsigned)options_integer(o, "batch") * outer.steps;
    s->lost_ends_run = strcmp(options_text(o, "on_lost"), "stop") == 0;
    s->record_pushes = strcmp(options_text(o, "record"), "all") == 0;
    s->checkpoints = options_text(o, "checkpoint")[0] != '\0';
    double every = options_real(o, "checkpoint_every");
    s->checkpoint_samples = (uint64_t)(every * (double)s->o->epoch_samples);
    if (every > 0 && s->checkpoint_samples == 0)
        s->checkpoint_samples = 1;
    s->next_checkpoint = s->checkpoint_samples;
done:
    return result;
}

static status open_core(struct server *s)
{
    status result = OK;
    const unsigned slots = s->o->workers + 2;
    TRY(payload_open(&s->payload, s->o->count, slots, s->o->workers));
    s->offer_shared = payload_is_shared(s->payload) &&
                      strcmp(options_text(s->o->settings, "payload"), "frames") != 0;
    TRY(crew_open(&s->helpers));
    TRY(server_core_open(
        &s->core, &(struct server_core_options){.settings = s->o->settings,
                                                .workers = s->o->workers,
                                                .count = s->o->count,
                                                .layers = s->o->layers,
                                                .slots = payload_slots(s->payload),
                                                .slot_count = slots,
                                                .initial = s->o->initial,
                                                .epoch_samples = s->o->epoch_samples,
                                                .total_samples = s->o->length.total_samples,
                                                .evaluate_every = s->o->length.evaluate_every,
                                                .helpers = s->helpers}));
done:
    return result;
}

static status server_open(struct server *s, const struct ps_server_options *o)
{
    status result = OK;
    struct curve_keys *keys = NULL;
    *s = (struct server){.o = o, .wake_fd = -1, .smooth_loss = NAN, .test_accuracy = NAN};
    REQUIRE(o->workers > 0 && o->count > 0 && o->hooks.evaluate != NULL);
    TRY(read_settings(s));
    TRY(curve_open(&keys, options_text(o->settings, "curve"), true));
    TRY(channel_bind(&s->channel, o->endpoint,
                     &(struct channel_options){.timeout_ms = s->timeout_ms,
                                               .may_spin = channel_may_spin(o->workers + 1),
                                               .keys = keys}));
    s->queue_size = 4 * o->workers; /* a push, a loss, a hello and another loss, at most */
    TRY(memory_new(&s->queue, s->queue_size, sizeof *s->queue, "the server's queue"));
    TRY(memory_new(&s->peers, o->workers, sizeof *s->peers, "the server's peers"));
    for (unsigned w = 0; w < o->workers; w++)
        s->peers[w].pidfd = s->peers[w].former_pidfd = -1;
    TRY(open_core(s));
    TRY(probe_open(&s->probe, o->settings, o->count));
    REQUIRE(s->probe.every == 0 || o->hooks.gradient != NULL);
    TRY(evaluator_open(&s->evaluator, &o->hooks));
    s->wake_fd = epoll_create1(EPOLL_CLOEXEC);
    if (s->wake_fd < 0)
        FAIL(ERROR_OTHER, "cannot make an epoll set: %s", strerror(errno));
    server_watch(s, evaluator_fd(s->evaluator));
    s->opened_ns = s->joined_ns = s->ticked_ns = clock_ns();
done:
    curve_close(&keys);
    return result;
}

static void server_close(struct server *s)
{
    evaluator_close(&s->evaluator);
    channel_close(&s->channel); /* before the slots that messages still refer to */
    server_core_close(&s->core);
    crew_close(&s->helpers);
    probe_close(&s->probe);
    payload_close(&s->payload);
    for (unsigned w = 0; s->peers != NULL && w < s->o->workers; w++) {
        if (s->peers[w].pidfd >= 0)
            close(s->peers[w].pidfd);
        if (s->peers[w].former_pidfd >= 0)
            close(s->peers[w].former_pidfd);
    }
    if (s->wake_fd >= 0)
        close(s->wake_fd);
    memory_free(s->peers);
    memory_free(s->queue);
}

/* ---- the loop ------------------------------------------------------------------------------ */

/* Workers that have not come: named after a while; the run starts without them, or not at all. */
static void await_workers(struct server *s, uint64_t now)
{
    char who[200], mapping[200];
    uint64_t waited_ms = now > s->joined_ns ? (now - s->joined_ns) / MS : 0;
    if (s->begun || waited_ms < (s->timeout_ms < WARN_MS ? s->timeout_ms : WARN_MS))
        return;
    peers_name(s, PEER_ABSENT, who, sizeof who);
    peers_name(s, PEER_WELCOMED, mapping, sizeof mapping);
    const char *and = who[0] != '\0' && mapping[0] != '\0' ? ", " : "";
    if (waited_ms < s->timeout_ms) {
        if (!s->missing_named)
            log_warning("waiting for %s%s%s to join at %s", who, and, mapping,
                        channel_endpoint(s->channel));
        s->missing_named = true;
    } else if (s->lost_ends_run || peers_in(s, PEER_READY) == 0) {
        server_fail(s, ERROR_PEER,
                    "%s%s%s did not join at %s within %.0f s (timeout_s): see their own "
                    "messages",
                    who, and, mapping, channel_endpoint(s->channel), (double)s->timeout_ms * 1e-3);
    } else {
        log_warning("%s%s%s did not join in time; training begins without (on_lost=continue)", who,
                    and, mapping);
        server_event(s, SEVERITY_WARNING, "workers_missing", -1, who);
        training_begin(s);
    }
}

static void tick(struct server *s, bool drained)
{
    uint64_t now = clock_ns();
    if (s->o->hooks.stop != NULL && *s->o->hooks.stop != 0 && !s->ended)
        server_fail(s, STOPPED, "stopped on request after %llu updates",
                    (unsigned long long)(s->begun ? server_core_version(s->core) : 0));
    if (now - s->ticked_ns < TICK_MS * MS)
        return;
    /* Whoever is silent may have spoken while we were busy: judge only when nothing is left unread.
     */
    if (drained || now - s->ticked_ns > 10 * TICK_MS * MS) {
        s->ticked_ns = now;
        if (drained)
            peers_tick(s, now);
    }
    await_workers(s, now);
    if (now - s->progress_ns >= PROGRESS_MS * MS) {
        s->progress_ns = now;
        training_progress(s);
    }
}

/* True when nothing is left to receive. */
static bool receive_all(struct server *s)
{
    struct channel_received r;
    for (unsigned i = 0; i < RECEIVED_AT_ONCE; i++) {
        enum channel_event event = channel_receive(s->channel, &r);
        if (event == CHANNEL_NOTHING)
            return true;
        peers_handle(s, event, &r);
    }
    return false;
}

static void wait_for_something(struct server *s)
{
    struct epoll_event events[8];
    channel_wait(s->channel, s->wake_fd, TICK_MS);
    /* Edge-triggered: taking the events makes the set quiet; what they mean is looked up. */
    while (epoll_wait(s->wake_fd, events, 8, 0) == 8)
        continue;
}

static void serve(struct server *s)
{
    while (s->result == OK && !s->ended) {
        bool drained = receive_all(s);
        if (s->evaluating)
            training_evaluated(s); /* then what waited for it is fed at once */
        if (s->probing)
            training_probed(s);
        bool fed = s->result == OK && training_feed(s);
        tick(s, drained);
        if (drained && !fed && s->result == OK && !s->ended)
            wait_for_something(s);
    }
}

/* Late pushes, and those that wait in the queue, still reach the core: they are recorded, not
 * applied. */
static void take_leave(struct server *s)
{
    bool well = s->result == OK || s->result == STOPPED;
    uint64_t until = clock_ns() + (well ? GOODBYES_MS : GOODBYES_FAILED_MS) * MS;
    peers_end(s, s->result, s->message);
    training_end(s);
    while (clock_ns() < until && peers_in(s, PEER_READY) + peers_in(s, PEER_WELCOMED) > 0) {
        bool drained = receive_all(s);
        bool fed = training_feed(s);
        if (drained && !fed) {
            peers_tick(s, clock_ns());
            wait_for_something(s);
        }
    }
    while (training_feed(s))
        continue;
}

/* ---- the run ------------------------------------------------------------------------------- */

static void fill_outcome(struct server *s, struct training_outcome *out)
{
    struct sha256 sum;
    if (s->core == NULL)
        return;
    out->updates = server_core_version(s->core);
    out->samples_used = server_core_samples_used(s->core);
    out->samples_computed = server_core_samples_computed(s->core);
    sha256_begin(&sum);
    sha256_add(&sum, payload_slots(s->payload)[server_core_latest_slot(s->core)],
               s->o->count * sizeof(float));
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
    out->train_seconds = training_seconds(&s);
    bool keep = s.result == OK || s.result == STOPPED;
    if (keep && s.begun && s.checkpoints)
        training_checkpoint(&s);
    take_leave(&s);
    fill_outcome(&s, out);
    if (s.refused > 0)
        log_info("%llu messages were refused", (unsigned long long)s.refused);
    if (s.result != OK)
        FAIL(s.result, "%s", s.message);
done:
    server_close(&s);
    return result;
}
