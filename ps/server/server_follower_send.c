/* server_follower_send.c — messages from a follower to the leader. See server_state.h. */
#include "base/clock.h"
#include "ps/server/server_state.h"

#include <stdio.h>
#include <unistd.h>

static struct wire_message message_of(const struct server *s, enum wire_type type)
{
    return (struct wire_message){.type = type,
                                 .worker = s->o->server,
                                 .run_token = s->o->run_token,
                                 .incarnation = s->leader.incarnation,
                                 .sequence = s->leader.sent};
}

/* Messages before `joined` are dropped; ready workers are announced again in on_joined(). */
static void say(struct server *s, struct wire_message *m, const void *payload)
{
    if (!s->leader.joined)
        return;
    (void)channel_send(s->leader.channel, NULL, m, payload);
    s->leader.sent++;
}

void follower_join(struct server *s)
{
    struct wire_message m = message_of(s, WIRE_JOIN);
    m.sequence = 0;
    m.join = (struct wire_join){.count = s->count,
                                .settings = s->o->settings_hash,
                                .nonce = s->leader.nonce,
                                .pid = (uint32_t)getpid()};
    payload_host(m.join.host);
    (void)channel_send(s->leader.channel, NULL, &m, NULL);
}

void follower_ping(struct server *s)
{
    struct wire_message ping = message_of(s, WIRE_PING);
    ping.ping.answer = 1;
    (void)channel_send(s->leader.channel, NULL, &ping, NULL);
}

void follower_report(struct server *s, enum wire_report what, unsigned w, uint64_t sequence)
{
    struct wire_message m = message_of(s, WIRE_REPORT);
    m.notice = (struct wire_notice){.what = what, .worker = w, .sequence = sequence};
    say(s, &m, NULL);
}

void follower_lost(struct server *s, unsigned w, status code, const char *why)
{
    struct wire_message m = message_of(s, WIRE_LOST);
    m.lost = (struct wire_lost){.worker = w, .code = (uint32_t)code};
    snprintf(m.lost.text, sizeof m.lost.text, "%s", why);
    say(s, &m, NULL);
}

void follower_failed(struct server *s)
{
    if (s->leader.failure_sent || s->leader.over || s->ended)
        return;
    if (!s->leader.joined) {
        s->leader.over = true; /* the leader does not know this server */
        return;
    }
    struct wire_message m = message_of(s, WIRE_FAILED);
    s->leader.failure_sent = true;
    s->leader.failed_ns = clock_ns();
    m.text.code = (uint32_t)s->result;
    snprintf(m.text.text, sizeof m.text.text, "%s", s->message);
    say(s, &m, NULL);
}

void follower_record(struct server *s, const struct push_record *row)
{
    struct wire_message m = message_of(s, WIRE_RECORD);
    m.record = *row;
    say(s, &m, NULL);
}

void follower_note(struct server *s, double at_seconds, uint64_t push_number,
                   enum severity severity, const char *code, int w, const char *detail)
{
    struct wire_message m = message_of(s, WIRE_NOTE);
    m.note = (struct wire_note){
        .severity = severity, .worker = w, .push_number = push_number, .at_seconds = at_seconds};
    snprintf(m.note.code, sizeof m.note.code, "%s", code);
    snprintf(m.note.text, sizeof m.note.text, "%s", detail);
    say(s, &m, NULL);
}

/* The messages borrow `values`, which stay as they are while this server is paused (S5). */
void follower_slice(struct server *s, unsigned vector, const float *values)
{
    const size_t size = s->count * sizeof(float);
    for (size_t at = 0; at < size;) {
        struct wire_message m = message_of(s, WIRE_SLICE);
        m.payload_bytes = (uint32_t)(size - at < WIRE_CHUNK_BYTES ? size - at : WIRE_CHUNK_BYTES);
        m.slice = (struct wire_slice){
            .vector = vector, .version = server_core_version(s->core), .offset = at};
        say(s, &m, (const uint8_t *)values + at);
        at += m.payload_bytes;
    }
}
