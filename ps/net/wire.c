/* wire.c — see wire.h. One walk over the fields both encodes and decodes, so the two directions
 * cannot differ. */
#include "ps/net/wire.h"

#include <string.h>

static const uint8_t MAGIC[4] = {'G', 'L', 'A', 'G'};

static const struct {
    const char *name;
    uint32_t body;
    bool chunk; /* a second frame with floats or code follows */
} TYPES[WIRE_TYPES] = {
    [WIRE_HELLO] = {"hello", 48, false},
    [WIRE_WELCOME] = {"welcome", 96, false},
    [WIRE_READY] = {"ready", 4, false},
    [WIRE_RELEASE] = {"release", 32, false},
    [WIRE_PARAMETERS] = {"parameters", 16, true},
    [WIRE_PUSH] = {"push", 68, false},
    [WIRE_GRADIENT] = {"gradient", 16, true},
    [WIRE_PING] = {"ping", 4, false},
    [WIRE_PONG] = {"pong", 12, false},
    [WIRE_PULL] = {"pull", 0, false},
    [WIRE_END] = {"end", 4 + WIRE_TEXT_BYTES, false},
    [WIRE_GOODBYE] = {"goodbye", 4 + WIRE_TEXT_BYTES, false},
    [WIRE_REFUSED] = {"refused", 4 + WIRE_TEXT_BYTES, false},
    [WIRE_JOIN] = {"join", 44, false},
    [WIRE_JOINED] = {"joined", 20, false},
    [WIRE_REPORT] = {"report", 16, false},
    [WIRE_LOST] = {"lost", 8 + WIRE_TEXT_BYTES, false},
    [WIRE_FAILED] = {"failed", 4 + WIRE_TEXT_BYTES, false},
    [WIRE_RECORD] = {"record", 168, false},
    [WIRE_NOTE] = {"note", 24 + WIRE_CODE_BYTES + WIRE_TEXT_BYTES, false},
    [WIRE_SLICE] = {"slice", 20, true},
    [WIRE_ORDER] = {"order", 16, false},
    [WIRE_CODED] = {"coded", 16, true},
    [WIRE_CODED_PARAMETERS] = {"coded-parameters", 16, true},
};

/* The position in a message that is encoded (out) or decoded (in). */
struct cursor {
    uint8_t *out;
    const uint8_t *in;
    size_t at;
    bool writes;
};

static void bytes(struct cursor *c, void *field, size_t size)
{
    if (c->writes)
        memcpy(c->out + c->at, field, size);
    else
        memcpy(field, c->in + c->at, size);
    c->at += size;
}

static uint64_t integer(struct cursor *c, uint64_t value, size_t size)
{
    uint64_t got = 0;
    for (size_t i = 0; i < size; i++)
        if (c->writes)
            c->out[c->at + i] = (uint8_t)(value >> (8 * i));
        else
            got |= (uint64_t)c->in[c->at + i] << (8 * i);
    c->at += size;
    return c->writes ? value : got;
}

static void u16(struct cursor *c, uint16_t *field)
{
    *field = (uint16_t)integer(c, *field, 2);
}

static void u32(struct cursor *c, uint32_t *field)
{
    *field = (uint32_t)integer(c, *field, 4);
}

static void u64(struct cursor *c, uint64_t *field)
{
    *field = integer(c, *field, 8);
}

static void f64(struct cursor *c, double *field)
{
    uint64_t bits;
    memcpy(&bits, field, sizeof bits);
    bits = integer(c, bits, 8);
    memcpy(field, &bits, sizeof bits);
}

struct head {
    uint8_t magic[4];
    uint16_t version, type;
    uint32_t body_bytes, reserved;
};

static void walk_head(struct cursor *c, struct head *h, struct wire_message *m)
{
    bytes(c, h->magic, sizeof h->magic);
    u16(c, &h->version);
    u16(c, &h->type);
    u64(c, &m->run_token);
    u64(c, &m->incarnation);
    u64(c, &m->sequence);
    u32(c, &m->worker);
    u32(c, &h->body_bytes);
    u32(c, &m->payload_bytes);
    u32(c, &h->reserved);
}

static void walk_welcome(struct cursor *c, struct wire_welcome *w)
{
    u64(c, &w->count);
    bytes(c, w->nonce, sizeof w->nonce);
    bytes(c, w->host, sizeof w->host);
    u32(c, &w->pid);
    u32(c, &w->payload);
    u32(c, &w->parameters_fd);
    u32(c, &w->gradients_fd);
    u64(c, &w->parameters_offset);
    u64(c, &w->parameters_stride);
    u64(c, &w->gradient_offset);
    u64(c, &w->first_batch);
    u32(c, &w->slots);
    u32(c, &w->timeout_ms);
}

static void i32(struct cursor *c, int32_t *field)
{
    uint32_t bits = (uint32_t)*field;
    u32(c, &bits);
    *field = (int32_t)bits;
}

static void walk_join(struct cursor *c, struct wire_join *j)
{
    u64(c, &j->count);
    u64(c, &j->settings);
    u64(c, &j->nonce);
    bytes(c, j->host, sizeof j->host);
    u32(c, &j->pid);
}

/* The receiver checks that outcome and reason exist (ps/server/server_leader.c). */
static void walk_record(struct cursor *c, struct push_record *r)
{
    uint32_t outcome = (uint32_t)r->outcome, reason = (uint32_t)r->reason;
    u64(c, &r->arrival);
    u64(c, &r->update_version);
    u32(c, &r->worker);
    i32(c, &r->waited_for);
    u64(c, &r->batch);
    u64(c, &r->sequence);
    u64(c, &r->read_version);
    u64(c, &r->staleness);
    u32(c, &outcome);
    u32(c, &reason);
    double *const reals[] = {&r->scale,         &r->rate,       &r->gap,        &r->gradient_norm,
                             &r->loss,          &r->pull_us,    &r->compute_us, &r->queue_us,
                             &r->apply_us,      &r->at_seconds, &r->cosine,     &r->momentum,
                             &r->total_momentum};
    for (size_t i = 0; i < COUNT_OF(reals); i++)
        f64(c, reals[i]);
    r->outcome = (enum push_outcome)outcome;
    r->reason = (enum push_reason)reason;
}

static void walk_note(struct cursor *c, struct wire_note *n)
{
    u32(c, &n->severity);
    i32(c, &n->worker);
    u64(c, &n->push_number);
    f64(c, &n->at_seconds);
    bytes(c, n->code, sizeof n->code);
    bytes(c, n->text, sizeof n->text);
}

/* Messages between servers. */
static void walk_server_body(struct cursor *c, struct wire_message *m)
{
    switch (m->type) {
    case WIRE_JOIN:
        walk_join(c, &m->join);
        break;
    case WIRE_JOINED:
        bytes(c, m->joined.host, sizeof m->joined.host);
        u32(c, &m->joined.pid);
        break;
    case WIRE_REPORT:
    case WIRE_ORDER:
        u32(c, &m->notice.what);
        u32(c, &m->notice.worker);
        u64(c, &m->notice.sequence);
        break;
    case WIRE_LOST:
        u32(c, &m->lost.worker);
        u32(c, &m->lost.code);
        bytes(c, m->lost.text, sizeof m->lost.text);
        break;
    case WIRE_RECORD:
        walk_record(c, &m->record);
        break;
    case WIRE_NOTE:
        walk_note(c, &m->note);
        break;
    case WIRE_SLICE:
        u32(c, &m->slice.vector);
        u64(c, &m->slice.version);
        u64(c, &m->slice.offset);
        break;
    default:
        break;
    }
}

static void walk_body(struct cursor *c, struct wire_message *m)
{
    switch (m->type) {
    case WIRE_HELLO:
        u64(c, &m->hello.count);
        u64(c, &m->hello.settings);
        u64(c, &m->hello.nonce);
        bytes(c, m->hello.host, sizeof m->hello.host);
        u32(c, &m->hello.pid);
        u32(c, &m->hello.payload);
        break;
    case WIRE_WELCOME:
        walk_welcome(c, &m->welcome);
        break;
    case WIRE_READY:
        u32(c, &m->ready.payload);
        break;
    case WIRE_RELEASE:
        u64(c, &m->release.version);
        u64(c, &m->release.samples);
        u32(c, &m->release.slot);
        u32(c, &m->release.payload);
        f64(c, &m->release.paused_us);
        break;
    case WIRE_PUSH:
        u64(c, &m->push.read_version);
        u64(c, &m->push.sent_ns);
        f64(c, &m->push.loss);
        f64(c, &m->push.pull_us);
        f64(c, &m->push.compute_us);
        f64(c, &m->push.data_us);
        f64(c, &m->push.forward_us);
        f64(c, &m->push.backward_us);
        u32(c, &m->push.samples);
        break;
    case WIRE_PARAMETERS:
    case WIRE_GRADIENT:
    case WIRE_CODED:
    case WIRE_CODED_PARAMETERS:
        u64(c, &m->chunk.version);
        u64(c, &m->chunk.offset);
        break;
    case WIRE_PING:
        u32(c, &m->ping.answer);
        break;
    case WIRE_PONG:
        u64(c, &m->pong.next);
        u32(c, &m->pong.released);
        break;
    case WIRE_END:
    case WIRE_GOODBYE:
    case WIRE_REFUSED:
    case WIRE_FAILED:
        u32(c, &m->text.code);
        bytes(c, m->text.text, sizeof m->text.text);
        break;
    case WIRE_PULL:
        break;
    default:
        walk_server_body(c, m);
        break;
    }
}

const char *wire_type_name(enum wire_type type)
{
    return type >= WIRE_HELLO && type < WIRE_TYPES ? TYPES[type].name : "?";
}

status wire_failure(uint32_t code, status unknown)
{
    bool known = (code > OK && code <= ERROR_RESULTS) || code == STOPPED;
    return known ? (status)code : unknown;
}

size_t wire_encode(const struct wire_message *m, uint8_t out[WIRE_MAX_BYTES])
{
    struct wire_message copy = *m;
    struct cursor c = {.out = out, .writes = true};
    REQUIRE(m->type >= WIRE_HELLO && m->type < WIRE_TYPES);
    REQUIRE((m->payload_bytes != 0) == TYPES[m->type].chunk);
    struct head h = {
        .version = WIRE_VERSION, .type = (uint16_t)m->type, .body_bytes = TYPES[m->type].body};
    memcpy(h.magic, MAGIC, sizeof h.magic);
    walk_head(&c, &h, &copy);
    walk_body(&c, &copy);
    REQUIRE(c.at == WIRE_HEAD_BYTES + TYPES[m->type].body);
    return c.at;
}

/* A peer's text may be printed on our terminal, so it must not contain control characters. */
static void make_printable(char *text, size_t size)
{
    text[size - 1] = '\0';
    for (char *p = text; *p != '\0'; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f)
            *p = '?';
}

static void make_texts_printable(struct wire_message *m)
{
    switch (m->type) {
    case WIRE_END:
    case WIRE_GOODBYE:
    case WIRE_REFUSED:
    case WIRE_FAILED:
        make_printable(m->text.text, sizeof m->text.text);
        break;
    case WIRE_LOST:
        make_printable(m->lost.text, sizeof m->lost.text);
        break;
    case WIRE_NOTE:
        make_printable(m->note.code, sizeof m->note.code);
        make_printable(m->note.text, sizeof m->note.text);
        break;
    default:
        break;
    }
}

status wire_decode(struct wire_message *m, const void *data, size_t size)
{
    status result = OK;
    struct cursor c = {.in = data};
    struct head h = {0}; /* the walk reads each field before it writes it */
    memset(m, 0, sizeof *m);
    if (size < WIRE_HEAD_BYTES)
        FAIL(ERROR_PROTOCOL, "a message of %zu bytes is shorter than the head (%d bytes)", size,
             WIRE_HEAD_BYTES);
    walk_head(&c, &h, m);
    if (memcmp(h.magic, MAGIC, sizeof h.magic) != 0)
        FAIL(ERROR_PROTOCOL, "a message does not begin with 'GLAG': the sender is not gradlag");
    if (h.version != WIRE_VERSION)
        FAIL(ERROR_PROTOCOL,
             "a message has wire version %u, this program uses version %d: run the same version "
             "of gradlag everywhere",
             h.version, WIRE_VERSION);
    if (h.type < WIRE_HELLO || h.type >= WIRE_TYPES)
        FAIL(ERROR_PROTOCOL, "a message has the unknown type %u", h.type);
    m->type = (enum wire_type)h.type;
    if (h.body_bytes != TYPES[h.type].body || size - WIRE_HEAD_BYTES != h.body_bytes)
        FAIL(ERROR_PROTOCOL, "a %s message of %zu bytes declares a body of %u bytes instead of %u",
             TYPES[h.type].name, size, h.body_bytes, TYPES[h.type].body);
    if (h.reserved != 0)
        FAIL(ERROR_PROTOCOL, "a %s message has a reserved field that is not zero",
             TYPES[h.type].name);
    if ((m->payload_bytes != 0) != TYPES[h.type].chunk || m->payload_bytes > WIRE_CHUNK_BYTES)
        FAIL(ERROR_PROTOCOL, "a %s message declares %u bytes of payload", TYPES[h.type].name,
             m->payload_bytes);
    walk_body(&c, m);
    make_texts_printable(m);
done:
    return result;
}
