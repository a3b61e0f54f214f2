/* hostile.c — see hostile.h. Each attack is one function, and a line of ATTACKS. */
#include "tests/ps/server/hostile.h"

#include "base/clock.h"
#include "base/random.h"

#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zmq.h>

enum {
    GREETING = 64, /* of ZMTP 3 */
    LINKS = 32,
    HALF_OPEN = 100,
    RAW_PIECES = 64, /* of a message without an end */
    RAW_BYTES = 32768,
    TRUSTED_BYTES = 8 * RAW_BYTES,
    GARBAGE_BYTES = 64,
    MUTATED_BYTES = 65536,
};

struct attacker {
    const struct hostile_plan *plan;
    void *context;
    struct random_stream random;
};

static uint32_t below(struct attacker *a, uint32_t bound)
{
    return random_below(&a->random, bound);
}

static bool has_time(const struct attacker *a)
{
    return clock_ns() < a->plan->until_ns;
}

/* ---- the recorded session -------------------------------------------------------------------- */

/* One ZMTP frame: flags 1: more follows, 2: eight bytes of length, 4: a command. */
static bool read_frame(const struct hostile_recording *r, size_t *at, uint8_t *flags,
                       const uint8_t **frame, size_t *size)
{
    if (*at + 9 > r->size)
        return false;
    *flags = r->bytes[*at];
    *size = r->bytes[*at + 1];
    *at += 2;
    if ((*flags & 2) != 0) {
        *size = 0;
        for (int i = 0; i < 8; i++)
            *size = *size << 8 | r->bytes[*at - 1 + (size_t)i];
        *at += 7;
    }
    *frame = r->bytes + *at;
    *at += *size;
    return *at <= r->size;
}

void hostile_session_read(struct hostile_session *s)
{
    size_t at = GREETING;
    uint8_t flags;
    struct hostile_message m = {.frames = 0};
    while (s->count < HOSTILE_FRAMES &&
           read_frame(&s->stream, &at, &flags, &m.frame[m.frames], &m.size[m.frames])) {
        if ((flags & 4) != 0)
            continue;
        m.frames++;
        if ((flags & 1) != 0 && m.frames < 2)
            continue;
        s->messages[s->count++] = m;
        m.frames = 0;
    }
}

/* ---- messages ----------------------------------------------------------------------------------
 */

/* Flips bytes, cuts or extends what is in `bytes`; returns its new size. */
static size_t mutate(struct attacker *a, uint8_t *bytes, size_t size, size_t room)
{
    for (uint32_t i = below(a, 4); i > 0 && size > 0; i--) {
        /* Mutates heads and lengths more often than floats. */
        size_t reach = below(a, 4) > 0 && size > 160 ? 160 : size;
        bytes[below(a, (uint32_t)reach)] = (uint8_t)below(a, 256);
    }
    if (below(a, 4) == 0)
        size = below(a, (uint32_t)size + 1);
    if (below(a, 4) == 0)
        size += below(a, 64);
    return size < room ? size : room;
}

static bool send_mutated(struct attacker *a, hostile_link *l)
{
    static uint8_t bytes[MUTATED_BYTES];
    const struct hostile_session *s = a->plan->session;
    const struct hostile_message *m = &s->messages[below(a, (uint32_t)s->count)];
    unsigned frames = below(a, 8) == 0 ? 1 + below(a, 4) : m->frames;
    for (unsigned i = 0; i < frames; i++) {
        unsigned from = i < m->frames ? i : 0;
        size_t size = m->size[from];
        const uint8_t *say = m->frame[from];
        if (size <= sizeof bytes) {
            memcpy(bytes, say, size);
            size = mutate(a, bytes, size, sizeof bytes);
            say = bytes;
        }
        if (!hostile_link_send(l, say, size, i + 1 < frames))
            return false;
    }
    return true;
}

struct garbage { /* messages of `parts` parts, each shorter than `bytes` */
    uint32_t parts, bytes;
};

static bool send_garbage(struct attacker *a, hostile_link *l, struct garbage g)
{
    uint8_t bytes[GARBAGE_BYTES];
    size_t size = below(a, g.bytes);
    for (size_t i = 0; i < size; i++)
        bytes[i] = (uint8_t)random_bits(&a->random);
    for (uint32_t i = 0; i < g.parts; i++)
        if (!hostile_link_send(l, bytes, size, i + 1 < g.parts))
            return false;
    return true;
}

/* Writes such messages to `out` as ZMTP bytes, `room` bytes at most. */
static size_t make_garbage(struct attacker *a, uint8_t *out, size_t room, struct garbage g)
{
    size_t at = 0;
    while (at + 2 + g.bytes <= room)
        for (uint32_t i = 0; i < g.parts && at + 2 + g.bytes <= room; i++) {
            uint8_t size = (uint8_t)below(a, g.bytes);
            out[at++] = i + 1 < g.parts;
            out[at++] = size;
            for (; size > 0; size--)
                out[at++] = (uint8_t)random_bits(&a->random);
        }
    return at;
}

/* ---- links ------------------------------------------------------------------------------------
 */

static hostile_link *open_link(struct attacker *a, const struct hostile_link_options *o)
{
    return hostile_link_open(a->context, &a->plan->target, o);
}

static unsigned open_links(struct attacker *a, hostile_link **out, unsigned wanted,
                           const struct hostile_link_options *o)
{
    unsigned count = 0;
    while (count < wanted && has_time(a) && (out[count] = open_link(a, o)) != NULL)
        count++;
    return count;
}

static void close_links(hostile_link **links, unsigned count, bool reset)
{
    for (unsigned i = 0; i < count; i++)
        hostile_link_close(&links[i], reset);
}

struct flood {
    struct garbage garbage;
    uint32_t ms;
    uint64_t bytes; /* on all links together */
};

/* An attacker without credentials sends as much as the server accepts. The server queues messages
 * of a peer with credentials without a limit: it trusts such a peer not to flood it. */
static struct flood flood_of(const struct hostile_link_options *o, struct garbage g, uint32_t ms)
{
    uint64_t bytes = o->credentials == HOSTILE_RIGHT ? TRUSTED_BYTES : UINT64_MAX;
    return (struct flood){.garbage = g, .ms = ms, .bytes = bytes};
}

/* Returns the number of bytes sent. */
static uint64_t babble(struct attacker *a, hostile_link *l, struct garbage g, const uint8_t *raw,
                       size_t size)
{
    if (hostile_link_is_plain(l))
        return hostile_link_inject(l, raw, size) ? size : 0;
    unsigned sent = 0;
    while (sent < 50 && send_garbage(a, l, g))
        sent++;
    return (uint64_t)sent * g.parts * (2 + g.bytes / 2);
}

static void flood(struct attacker *a, hostile_link **links, unsigned count, struct flood f)
{
    static uint8_t raw[RAW_BYTES];
    size_t size = make_garbage(a, raw, sizeof raw, f.garbage);
    uint64_t until = clock_ns() + f.ms * 1000000ULL, sent = 0;
    for (unsigned open = count; open > 0 && clock_ns() < until && has_time(a);) {
        open = 0;
        for (unsigned i = 0; i < count; i++) {
            if (sent < f.bytes)
                sent += babble(a, links[i], f.garbage, raw, size);
            open += hostile_link_pump(links[i]);
        }
    }
}

/* ---- attacks ----------------------------------------------------------------------------------
 */

static void connect_and_reset(struct attacker *a)
{
    for (uint32_t i = 1 + below(a, 200); i > 0 && has_time(a); i--)
        hostile_hang_up(hostile_connect(&a->plan->target), below(a, 2) == 0);
}

/* Connections that send a part of the handshake, or nothing, and stay open. */
static void half_open(struct attacker *a)
{
    int open[HALF_OPEN];
    unsigned count = 1 + below(a, HALF_OPEN);
    const struct hostile_recording *r = &a->plan->session->stream;
    bool reset = below(a, 2) == 0;
    for (unsigned i = 0; i < count; i++) {
        open[i] = hostile_connect(&a->plan->target);
        if (open[i] >= 0)
            (void)!write(open[i], r->bytes, below(a, 2 * GREETING));
    }
    usleep(1000 * below(a, 500));
    for (unsigned i = 0; i < count; i++)
        hostile_hang_up(open[i], reset);
}

/* Sends the bytes of a worker's connection, damaged and in pieces. A server with CURVE ends such a
 * connection at the greeting. */
static void mutated_stream(struct attacker *a)
{
    static uint8_t bytes[MUTATED_BYTES];
    const struct hostile_recording *r = &a->plan->session->stream;
    for (uint32_t i = 1 + below(a, 30); i > 0 && has_time(a); i--) {
        size_t size = 1 + below(a, below(a, 4) == 0 ? MUTATED_BYTES : 1000);
        size = size < r->size ? size : r->size;
        memcpy(bytes, r->bytes, size);
        /* Often the handshake stays intact, so that the server reads further. */
        size_t from = below(a, 4) > 0 && size > 200 ? 100 : 0;
        size = from + mutate(a, bytes + from, size - from, sizeof bytes - from);
        int fd = hostile_connect(&a->plan->target);
        for (size_t at = 0; fd >= 0 && at < size;) {
            size_t piece = 1 + below(a, (uint32_t)(size - at));
            if (send(fd, bytes + at, piece, MSG_DONTWAIT | MSG_NOSIGNAL) <= 0)
                break;
            at += piece;
        }
        hostile_hang_up(fd, below(a, 2) == 0);
    }
}

/* A worker's messages, damaged, from a peer with the run's token but no valid incarnation. */
static void mutated_messages(struct attacker *a)
{
    struct hostile_link_options o = {
        .credentials = below(a, 4) > 0 ? HOSTILE_RIGHT : HOSTILE_WRONG,
        .flip_at = below(a, 3) == 0 ? 1 + below(a, 2000) : 0,
    };
    hostile_link *l = open_link(a, &o);
    uint64_t until = clock_ns() + (100 + below(a, 500)) * 1000000ULL;
    while (l != NULL && clock_ns() < until && has_time(a)) {
        (void)send_mutated(a, l);
        if (!hostile_link_pump(l))
            break;
    }
    hostile_link_close(&l, below(a, 2) == 0);
}

/* ZeroMQ's timers of a connection run in steps of seconds. Some connections live until just before
 * such a step. Messages of many parts keep the server busy meanwhile. */
static void flood_and_reset(struct attacker *a)
{
    static const uint32_t least_ms[] = {1, 100, 1700}, spread_ms[] = {50, 500, 400};
    hostile_link *links[LINKS];
    uint32_t kind = below(a, COUNT_OF(least_ms));
    struct garbage g = {1, 1 + below(a, GARBAGE_BYTES)};
    if (below(a, 2) == 0)
        g = (struct garbage){2 + below(a, 300), 1};
    struct hostile_link_options o = {.credentials = below(a, 3)};
    unsigned count = open_links(a, links, 1 + below(a, LINKS), &o);
    flood(a, links, count, flood_of(&o, g, least_ms[kind] + below(a, spread_ms[kind])));
    close_links(links, count, true);
}

/* Sends messages that the server refuses, and reads no answer. */
static void unread_answers(struct attacker *a)
{
    hostile_link *links[4];
    struct hostile_link_options o = {.credentials = below(a, 3), .deaf = true};
    unsigned count = open_links(a, links, 1 + below(a, 4), &o);
    flood(a, links, count, flood_of(&o, (struct garbage){1, 2}, 500 + below(a, 1500)));
    close_links(links, count, below(a, 2) == 0);
}

/* A message of a million empty parts without a last one. ZeroMQ 4.3 has no limit for that; the
 * server trusts a peer with credentials not to do it. */
static void unfinished_message(struct attacker *a)
{
    static uint8_t parts[RAW_BYTES];
    hostile_link *links[8];
    unsigned count = open_links(a, links, 1 + below(a, 8), &(struct hostile_link_options){0});
    for (size_t i = 0; i < sizeof parts; i += 2)
        parts[i] = 1;
    for (unsigned i = 0; i < count; i++)
        for (unsigned pieces = 0; pieces < RAW_PIECES && has_time(a);) {
            pieces += hostile_link_inject(links[i], parts, sizeof parts);
            if (!hostile_link_pump(links[i]))
                break;
        }
    usleep(1000 * below(a, 500));
    close_links(links, count, below(a, 2) == 0);
}

static const struct attack {
    const char *name;
    void (*run)(struct attacker *a);
} ATTACKS[] = {
    {"mutated_messages", mutated_messages},
    {"connect_and_reset", connect_and_reset},
    {"half_open", half_open},
    {"mutated_stream", mutated_stream},
    {"flood_and_reset", flood_and_reset},
    {"unread_answers", unread_answers},
    {"unfinished_message", unfinished_message},
};

static void attack_once(const struct hostile_plan *plan, uint64_t n)
{
    struct attacker a = {.plan = plan, .context = zmq_ctx_new()};
    REQUIRE(a.context != NULL);
    random_open(&a.random, RANDOM_TEST, plan->seed, plan->attacker, n);
    const struct attack *attack;
    do
        attack = &ATTACKS[below(&a, COUNT_OF(ATTACKS))];
    while (plan->only != NULL && strcmp(plan->only, attack->name) != 0);
    attack->run(&a);
}

void hostile_attack(const struct hostile_plan *plan)
{
    for (uint64_t n = 0; clock_ns() < plan->until_ns; n++) {
        pid_t pid = fork();
        if (pid == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            attack_once(plan, n);
            _exit(0);
        }
        if (pid > 0)
            waitpid(pid, NULL, 0);
    }
}

bool hostile_knock(const struct hostile_target *target, double seconds)
{
    double until = clock_seconds() + seconds;
    hostile_link *l = hostile_link_open(
        zmq_ctx_new(), target, &(struct hostile_link_options){.credentials = HOSTILE_RIGHT});
    bool sent = l != NULL && hostile_link_send(l, "knock", 5, false);
    while (sent && hostile_link_answers(l) == 0 && clock_seconds() < until && hostile_link_pump(l))
        usleep(1000);
    return sent && hostile_link_answers(l) > 0;
}
