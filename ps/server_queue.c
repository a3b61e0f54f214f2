/* server_queue.c — the training clock, the events that wait for the core, and how a run fails. See
 * server_state.h. */
#include "ps/server_state.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>

/* ---- the training clock: S3 ---------------------------------------------------------------- */

/* Of pauses before the last one only the sum is known; who asks about earlier times keeps the
 * answer (arrived_training_ns). */
uint64_t training_ns_at(const struct server *s, uint64_t t)
{
    if (!s->begun || t < s->began_ns)
        return s->before_ns;
    uint64_t not_training = s->began_ns + s->paused_ns;
    if (s->pause_from_ns != 0 && t >= s->pause_from_ns) {
        if (s->pause_to_ns == 0 || t < s->pause_to_ns)
            t = s->pause_from_ns;
        else
            not_training += s->pause_to_ns - s->pause_from_ns;
    } else if (t < s->former_to_ns) {
        t = s->former_to_ns;
    }
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

/* One that stands still already goes on doing so, and begins again but once: a pause within another
 * (a checkpoint after an evaluation) is part of it. */
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
    peers_moved(s);
}

void training_pause(struct server *s)
{
    s->evaluating = true;
    training_hold_clock(s);
}

void training_resume(struct server *s)
{
    s->evaluating = false;
    training_run_clock(s);
}

void training_start_clock(struct server *s)
{
    s->begun = true;
    s->began_ns = s->progress_ns = clock_ns();
}

/* ---- the queue ------------------------------------------------------------------------------ */

void peers_moved(struct server *s)
{
    s->moved_ns = clock_ns();
    s->stuck_named = false;
}

void training_queue(struct server *s, enum event_kind kind, unsigned w)
{
    REQUIRE(s->queue_count < s->queue_size);
    unsigned last = (s->queue_first + s->queue_count) % s->queue_size;
    s->queue[last] = (struct event){.kind = kind, .worker = w};
    s->queue_count++;
}

/* All that are ready start together: the clock and the versions begin for them at once. */
void training_begin(struct server *s)
{
    training_start_clock(s);
    for (unsigned w = 0; w < s->o->workers; w++)
        if (s->peers[w].state == PEER_READY)
            training_queue(s, EVENT_HELLO, w);
        else
            training_queue(s, EVENT_LOST, w);
}

/* ---- what is said of the run ----------------------------------------------------------------- */

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
    if (server_follows(s))
        leader_failed(s);
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
    if (server_follows(s))
        leader_note(s, training_seconds(s), PUSHES_UNKNOWN, severity, code, w, detail);
    else if (s->o->recorder != NULL)
        recorder_event(s->o->recorder, training_seconds(s), severity, code, w, detail);
}

void server_event_queued(struct server *s, enum severity severity, const char *code, unsigned w,
                         const char *detail)
{
    uint64_t before = server_core_arrivals(s->core);
    for (unsigned i = 0; i < s->queue_count; i++)
        before += s->queue[(s->queue_first + i) % s->queue_size].kind == EVENT_PUSH;
    if (server_follows(s) && !s->one_order)
        leader_note(s, training_seconds(s), before, severity, code, (int)w, detail);
    else if (s->o->recorder != NULL && !server_follows(s)) /* one order is written down once */
        recorder_event_between(s->o->recorder, training_seconds(s), before, severity, code, (int)w,
                               detail);
}
