/* server_queue.c — states, the training clock, the queue of events, failure. See server_state.h. */
#include "base/clock.h"
#include "base/log.h"
#include "ps/server/server_state.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>

/* ---- the training clock: S3 ----------------------------------------------------------------- */

/* Only the sum of the pauses before the last one is kept. A caller that needs an earlier time keeps
 * the answer (arrived_training_ns). */
uint64_t training_ns_at(const struct server *s, uint64_t t)
{
    if (!s->begun || t < s->began_ns)
        return s->before_ns;
    uint64_t not_training = s->began_ns + s->paused_ns;
    if (s->pause_from_ns != 0 && t >= s->pause_from_ns)
        if (s->pause_to_ns == 0 || t < s->pause_to_ns)
            t = s->pause_from_ns;
        else
            not_training += s->pause_to_ns - s->pause_from_ns;
    else if (t < s->former_to_ns)
        t = s->former_to_ns;
    return s->before_ns + (t > not_training ? t - not_training : 0);
}

double training_seconds(const struct server *s)
{
    return (double)training_ns_at(s, clock_ns()) * 1e-9;
}

static bool stands_still(const struct server *s)
{
    return s->pause_from_ns != 0 && s->pause_to_ns == 0;
}

/* A pause within another one (a checkpoint after an evaluation) is part of it. */
void training_hold_clock(struct server *s)
{
    if (stands_still(s))
        return;
    s->paused_ns += s->pause_to_ns - s->pause_from_ns;
    s->former_to_ns = s->pause_to_ns;
    s->pause_from_ns = clock_ns();
    s->pause_to_ns = 0;
}

void training_run_clock(struct server *s)
{
    if (stands_still(s))
        s->pause_to_ns = clock_ns();
}

void training_start_clock(struct server *s)
{
    s->begun = true;
    s->began_ns = s->progress_ns = clock_ns();
}

/* ---- states --------------------------------------------------------------------------------- */

enum {
    TO_TRAIN = 1 << STATE_TRAINING,
    TO_PROBE = 1 << STATE_PROBING,
    TO_GATHER = 1 << STATE_GATHERING,
    TO_EVALUATE = 1 << STATE_EVALUATING,
    TO_SAVE = 1 << STATE_SAVING,
    TO_PAUSE = 1 << STATE_PAUSED,
    TO_LEAVE = 1 << STATE_LEAVING,
    TO_DISMISS = 1 << STATE_DISMISSING,
    TO_CLOSE = 1 << STATE_CLOSED,
    TO_WIND_UP = TO_GATHER | TO_SAVE | TO_LEAVE, /* T7, T8 */
};

static const unsigned transitions[STATES] = {
    [STATE_JOINING] = TO_TRAIN | TO_PAUSE | TO_LEAVE,
    [STATE_TRAINING] = TO_PROBE | TO_EVALUATE | TO_PAUSE | TO_WIND_UP,
    [STATE_PROBING] = TO_TRAIN | TO_WIND_UP,
    [STATE_GATHERING] = TO_EVALUATE | TO_SAVE | TO_LEAVE,
    [STATE_EVALUATING] = TO_TRAIN | TO_EVALUATE | TO_WIND_UP,
    [STATE_SAVING] = TO_TRAIN | TO_WIND_UP,
    [STATE_PAUSED] = TO_TRAIN | TO_LEAVE,
    [STATE_LEAVING] = TO_DISMISS | TO_CLOSE,
    [STATE_DISMISSING] = TO_CLOSE,
};

enum { CLOCK_STANDS = TO_PROBE | TO_GATHER | TO_EVALUATE | TO_SAVE | TO_PAUSE }; /* S3 */

void server_enter(struct server *s, enum server_state state)
{
    REQUIRE((transitions[s->state] >> state & 1) != 0);
    const uint64_t now = clock_ns(), took_ns = now > s->since_ns ? now - s->since_ns : 0;
    if (took_ns > s->longest_ns[s->state])
        s->longest_ns[s->state] = took_ns;
    s->state = state;
    s->since_ns = now;
    s->late_named = false;
    if ((CLOCK_STANDS >> state & 1) != 0)
        training_hold_clock(s);
    else
        training_run_clock(s);
}

void server_begin(struct server *s)
{
    training_start_clock(s);
    if (s->state == STATE_JOINING)
        server_enter(s, STATE_TRAINING); /* T1 */
}

/* ---- the queue ------------------------------------------------------------------------------ */

void training_queue(struct server *s, enum event_kind kind, unsigned w)
{
    REQUIRE(s->queue_count < s->queue_size);
    unsigned last = (s->queue_first + s->queue_count) % s->queue_size;
    s->queue[last] = (struct event){.kind = kind, .worker = w};
    s->queue_count++;
    if (kind != EVENT_PUSH)
        s->peers[w].entered = kind == EVENT_HELLO;
}

/* ---- failure, watched descriptors, rows of events ------------------------------------------- */

void server_fail(struct server *s, status code, const char *format, ...)
{
    char text[sizeof s->message];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (code == STOPPED && s->stopped_ns == 0) /* a peer's request, too, lets an evaluation end */
        s->stopped_ns = clock_ns();
    /* The first reason counts, except a request to stop: a stopped run that cannot write its
     * checkpoint has failed. */
    if (s->result == OK || (s->result == STOPPED && code != STOPPED)) {
        memcpy(s->message, text, sizeof text);
        s->result = code;
    } else if (code != STOPPED) {
        log_error("%s", text);
    }
    if (server_follows(s))
        follower_failed(s);
}

void server_watch(struct server *s, int fd)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLET};
    if (epoll_ctl(s->wake_fd, EPOLL_CTL_ADD, fd, &event) != 0)
        log_debug("cannot watch a descriptor: %s", strerror(errno)); /* tick() sees it later */
}

void server_event(struct server *s, enum severity severity, const char *code, int w,
                  const char *detail)
{
    if (server_follows(s))
        follower_note(s, training_seconds(s), PUSHES_UNKNOWN, severity, code, w, detail);
    else if (s->o->recorder != NULL)
        recorder_event(s->o->recorder, training_seconds(s), severity, code, w, detail);
}

void server_member_event(struct server *s, enum severity severity, const char *code, unsigned w,
                         const char *detail)
{
    const uint64_t before =
        server_core_ended(s->core) ? PUSHES_UNKNOWN : server_core_arrivals(s->core);
    if (server_follows(s) && !s->one_order)
        follower_note(s, training_seconds(s), before, severity, code, (int)w, detail);
    else if (s->o->recorder != NULL && !server_follows(s)) /* one order: the leader writes it */
        recorder_event_between(s->o->recorder, training_seconds(s), before, severity, code, (int)w,
                               detail);
}
