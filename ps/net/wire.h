/*
 * wire.h — what parameter server and workers say to each other, as bytes.
 *
 * One message is one ZeroMQ message of one frame (a head of 48 bytes and a body whose size follows
 * from the type), or of two where the type carries floats: head and body first, then the floats.
 * Everything is little-endian at fixed places; docs/wire-format.md has the tables. Bytes come from
 * a network: wire_decode() trusts none of them.
 */
#ifndef GRADLAG_PS_NET_WIRE_H
#define GRADLAG_PS_NET_WIRE_H

#include "base/status.h"
#include "results/records.h"

enum {
    WIRE_VERSION = 1,
    WIRE_HEAD_BYTES = 48,
    WIRE_TEXT_BYTES = 192, /* with at least one NUL */
    WIRE_CODE_BYTES = 24,  /* with at least one NUL */
    WIRE_MAX_BYTES = WIRE_HEAD_BYTES + 24 + WIRE_CODE_BYTES + WIRE_TEXT_BYTES,
    WIRE_CHUNK_BYTES = 1 << 20, /* of floats per message, at most */
    WIRE_NONCE_BYTES = 16,
    WIRE_HOST_BYTES = 16,
};

enum wire_type {
    WIRE_HELLO = 1,  /* worker: I want to be worker w */
    WIRE_WELCOME,    /* server: you are; here is the shared memory */
    WIRE_READY,      /* worker: I take the payload this way; release me */
    WIRE_RELEASE,    /* server: go on with this version */
    WIRE_PARAMETERS, /* server: a chunk of that version (payload=frames) */
    WIRE_PUSH,       /* worker: a gradient, and what is known of it */
    WIRE_GRADIENT,   /* worker: a chunk of that gradient (payload=frames) */
    WIRE_PING,       /* worker: I live; do you? */
    WIRE_PONG,       /* server: yes, and this is where you stand */
    WIRE_PULL,       /* worker: say your last release again */
    WIRE_END,        /* server: training is over */
    WIRE_GOODBYE,    /* worker: I leave */
    WIRE_REFUSED,    /* server: not you, or not this; the text says why */
    /* Between server 0 and each other one, its follower; `worker` is that one's number: */
    WIRE_JOIN,   /* follower: I am server n, and hold its slice */
    WIRE_JOINED, /* server 0: you are */
    WIRE_REPORT, /* follower: this is so here now */
    WIRE_LOST,   /* follower: a worker is lost here */
    WIRE_FAILED, /* follower: end the run; the text says why */
    WIRE_RECORD, /* follower: what became of a push */
    WIRE_NOTE,   /* follower: something worth a row of its own */
    WIRE_SLICE,  /* follower: a chunk of what it was asked for */
    WIRE_ORDER,  /* server 0: do this next */
    WIRE_TYPES,
};

enum wire_payload { WIRE_PAYLOAD_AUTO, WIRE_PAYLOAD_SHM, WIRE_PAYLOAD_FRAMES };

struct wire_hello {
    uint64_t count;                /* parameters that the worker's model has */
    uint64_t settings;             /* a hash of those that decide the outcome; 0: not known */
    uint64_t nonce;                /* tells a repeated hello from another process's */
    uint8_t host[WIRE_HOST_BYTES]; /* payload_host() */
    uint32_t pid, payload;
};

struct wire_welcome {
    uint64_t count;
    uint8_t nonce[WIRE_NONCE_BYTES]; /* found again in the shared memory */
    uint8_t host[WIRE_HOST_BYTES];
    uint32_t pid, payload;                /* shm: offered; frames: do not try */
    uint32_t parameters_fd, gradients_fd; /* of that pid */
    uint64_t parameters_offset, parameters_stride, gradient_offset; /* bytes */
    uint64_t first_batch; /* > 0 where another had this place before, or the run goes on from a
                             checkpoint */
    uint32_t slots, timeout_ms;
};

struct wire_ready {
    uint32_t payload; /* shm or frames */
};

struct wire_release {
    uint64_t version;
    uint32_t slot, payload;
    double paused_us; /* of the wait that ends here: not training time (evaluation) */
};

struct wire_push {
    uint64_t read_version;
    uint64_t sent_ns; /* clock_ns() of the worker; means something on one host only */
    double loss, pull_us, compute_us;
    double data_us, forward_us, backward_us; /* of compute_us */
    uint32_t samples;
};

struct wire_chunk { /* parameters and gradient; the bytes are the second frame */
    uint64_t version, offset;
};

struct wire_ping {
    uint32_t answer; /* non-zero: with a pong, please */
};

struct wire_pong {
    uint64_t next;     /* sequence of the push that the server has not seen yet */
    uint32_t released; /* non-zero: it was released to compute it */
};

struct wire_text { /* end, goodbye and refused */
    uint32_t code; /* a `status` */
    char text[WIRE_TEXT_BYTES];
};

struct wire_join {
    uint64_t count; /* parameters in its slice */
    uint64_t settings, nonce;
    uint8_t host[WIRE_HOST_BYTES];
    uint32_t pid;
};

struct wire_joined {
    uint8_t host[WIRE_HOST_BYTES];
    uint32_t pid;
};

enum wire_report { WIRE_WORKER_READY = 1, WIRE_PUSH_WHOLE, WIRE_WORKERS_GONE, WIRE_CLOSED };
enum wire_order {
    WIRE_ORDER_HELLO = 1, /* these three: hand the event to the core */
    WIRE_ORDER_PUSH,
    WIRE_ORDER_LOST,
    WIRE_ORDER_ASK,    /* stand still, and send the parameters (sequence 0), or the optimizer's
                          state, too (1) */
    WIRE_ORDER_RESUME, /* go on */
    WIRE_ORDER_CLOSE,  /* there are no more orders */
};
struct wire_notice { /* report and order */
    uint32_t what;   /* one of these */
    uint32_t worker; /* whom it is about */
    uint64_t sequence;
};

struct wire_lost {
    uint32_t worker, code; /* code: a `status` */
    char text[WIRE_TEXT_BYTES];
};

struct wire_note { /* a row of table event */
    uint32_t severity;
    int32_t worker;
    uint64_t push_number;
    double at_seconds;
    char code[WIRE_CODE_BYTES], text[WIRE_TEXT_BYTES];
};

struct wire_slice {  /* the bytes are the second frame */
    uint32_t vector; /* 0: parameters; 1, 2, …: the optimizer's state */
    uint64_t version, offset;
};

struct wire_message {
    enum wire_type type;
    uint32_t worker;
    uint64_t run_token;
    uint64_t incarnation;   /* drawn by the server for each welcome; 0 in a hello */
    uint64_t sequence;      /* of the push this belongs to; release: of the next push; between
                               servers: number of the message */
    uint32_t payload_bytes; /* of the second frame; 0: there is none */
    union {
        struct wire_hello hello;
        struct wire_welcome welcome;
        struct wire_ready ready;
        struct wire_release release;
        struct wire_push push;
        struct wire_chunk chunk;
        struct wire_ping ping;
        struct wire_pong pong;
        struct wire_text text;
        struct wire_join join;
        struct wire_joined joined;
        struct wire_notice notice;
        struct wire_lost lost;
        struct push_record record; /* but for `server` */
        struct wire_note note;
        struct wire_slice slice;
    };
};

/* Writes head and body; returns their size. */
size_t wire_encode(const struct wire_message *m, uint8_t out[WIRE_MAX_BYTES]);
/* ERROR_PROTOCOL for anything that wire_encode() would not have written. Texts come out terminated
 * and printable. */
status wire_decode(struct wire_message *m, const void *bytes, size_t size) MUST_CHECK;
/* "push"; "?" for a type that does not exist. */
const char *wire_type_name(enum wire_type type);
/* The error that a peer names, or STOPPED; `unknown` where there is no such one. */
status wire_failure(uint32_t code, status unknown);
/* Bytes of a body. */
size_t wire_body_bytes(enum wire_type type);

#endif
