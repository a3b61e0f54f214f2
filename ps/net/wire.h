/*
 * wire.h — the messages between parameter servers and workers, as bytes.
 *
 * A message is a ZeroMQ message of one frame: a head of 48 bytes, and a body whose size the type
 * determines. If the type carries floats or a code, they follow in a second frame. All fields are
 * little-endian at fixed offsets; docs/wire-format.md has the tables. The bytes come from a
 * network, so wire_decode() checks all of them.
 */
#ifndef GRADLAG_PS_NET_WIRE_H
#define GRADLAG_PS_NET_WIRE_H

#include "base/status.h"
#include "results/records.h"

enum {
    WIRE_VERSION = 2,
    WIRE_HEAD_BYTES = 48,
    WIRE_TEXT_BYTES = 192, /* with at least one NUL */
    WIRE_CODE_BYTES = 24,  /* with at least one NUL */
    WIRE_MAX_BYTES = WIRE_HEAD_BYTES + 24 + WIRE_CODE_BYTES + WIRE_TEXT_BYTES,
    WIRE_CHUNK_BYTES = 1 << 20, /* of floats or code per message, at most */
    WIRE_NONCE_BYTES = 16,
    WIRE_HOST_BYTES = 16,
};

enum wire_type {
    WIRE_HELLO = 1,  /* worker: asks to join as worker w */
    WIRE_WELCOME,    /* server: admits it; where the shared memory is */
    WIRE_READY,      /* worker: has chosen how the payload goes; waits for a release */
    WIRE_RELEASE,    /* server: compute the next gradient at this version */
    WIRE_PARAMETERS, /* server: a chunk of that version (payload=frames) */
    WIRE_PUSH,       /* worker: a gradient's version, loss and times */
    WIRE_GRADIENT,   /* worker: a chunk of that gradient (payload=frames) */
    WIRE_PING,       /* worker: a sign of life */
    WIRE_PONG,       /* server: answers a ping, or a hello whose worker has to wait */
    WIRE_PULL,       /* worker: requests the last release again */
    WIRE_END,        /* server: training is over */
    WIRE_GOODBYE,    /* worker: leaves */
    WIRE_REFUSED,    /* server: refuses a peer or a message; the text says why */
    /* Between server 0 and another server, its follower; `worker` is the follower's number: */
    WIRE_JOIN,   /* follower: asks to join as server n */
    WIRE_JOINED, /* server 0: admits it */
    WIRE_REPORT, /* follower: reports an enum wire_report */
    WIRE_LOST,   /* follower: has lost a worker */
    WIRE_FAILED, /* follower: the run must end; the text says why */
    WIRE_RECORD, /* follower: a row of table push */
    WIRE_NOTE,   /* follower: a row of table event */
    WIRE_SLICE,  /* follower: a chunk of the vector that server 0 requested */
    WIRE_ORDER,  /* server 0: orders an enum wire_order */
    /* Between a worker and a server: */
    WIRE_CODED, /* worker: a chunk of a gradient's code, instead of gradient (key compression) */
    WIRE_CODED_PARAMETERS, /* server: a chunk of the parameters' code, instead of parameters (key
                              pull_precision) */
    WIRE_TYPES,
};

enum wire_payload { WIRE_PAYLOAD_AUTO, WIRE_PAYLOAD_SHM, WIRE_PAYLOAD_FRAMES };

struct wire_hello {
    uint64_t count;                /* parameters that the worker's model has */
    uint64_t settings;             /* hash of the keys that decide the outcome; 0: unknown */
    uint64_t nonce;                /* equal in a repeated hello, different in another process */
    uint8_t host[WIRE_HOST_BYTES]; /* payload_host() */
    uint32_t pid, payload;
};

struct wire_welcome {
    uint64_t count;
    uint8_t nonce[WIRE_NONCE_BYTES]; /* also at the start of the shared memory */
    uint8_t host[WIRE_HOST_BYTES];
    uint32_t pid, payload;                /* payload: shm: offered; frames: not offered */
    uint32_t parameters_fd, gradients_fd; /* of that pid */
    uint64_t parameters_offset, parameters_stride, gradient_offset; /* bytes */
    uint64_t first_batch; /* > 0: the worker replaces a lost one, or the run was resumed */
    uint32_t slots, timeout_ms;
};

struct wire_ready {
    uint32_t payload; /* shm or frames */
};

struct wire_release {
    uint64_t version;
    uint64_t samples; /* that training has used up to this version */
    uint32_t slot, payload;
    double paused_us; /* the part of the worker's wait in which the training clock stood still */
};

struct wire_push {
    uint64_t read_version;
    uint64_t sent_ns; /* clock_ns() of the worker; comparable on one host only */
    double loss, pull_us, compute_us;
    double data_us, forward_us, backward_us; /* parts of compute_us */
    uint32_t samples;
};

struct wire_chunk { /* parameters, gradient, and codes of both; the second frame has the bytes */
    uint64_t version, offset;
};

struct wire_ping {
    uint32_t answer; /* non-zero: answer with a pong */
};

struct wire_pong {
    uint64_t next;     /* sequence of the next push that has not arrived */
    uint32_t released; /* non-zero: the worker was released to compute it */
};

struct wire_text { /* end, goodbye, refused and failed */
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

enum wire_report {
    WIRE_WORKER_READY = 1,
    WIRE_PUSH_COMPLETE,
    WIRE_WORKERS_GONE,
    WIRE_CLOSED,
    WIRE_PLACE_FREE, /* answers WIRE_ORDER_FREE; sequence: the worker's next batch here */
};
enum wire_order {
    WIRE_ORDER_HELLO = 1, /* HELLO (sequence: its first batch), PUSH, LOST: pass the event to the
                             core */
    WIRE_ORDER_PUSH,
    WIRE_ORDER_LOST,
    WIRE_ORDER_GATHER, /* pause, and send the parameters (sequence 0), or also the
                          optimizer's state (sequence 1) */
    WIRE_ORDER_RESUME, /* end the pause */
    WIRE_ORDER_CLOSE,  /* this is the last order */
    WIRE_ORDER_FREE,   /* forget the process that is this worker, so that another one can join */
};
struct wire_notice { /* report and order */
    uint32_t what;   /* enum wire_report or enum wire_order */
    uint32_t worker;
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

struct wire_slice {  /* the second frame has the bytes */
    uint32_t vector; /* 0: parameters; 1, 2, …: the optimizer's state */
    uint64_t version, offset;
};

struct wire_message {
    enum wire_type type;
    uint32_t worker;
    uint64_t run_token;
    uint64_t incarnation;   /* drawn by the server for each welcome; 0 in a hello */
    uint64_t sequence;      /* of the push that the message belongs to; release: of the next push;
                               between servers: number of the message */
    uint32_t payload_bytes; /* of the second frame; 0: no second frame */
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
        struct push_record record; /* all but `server` and the parts of compute_us */
        struct wire_note note;
        struct wire_slice slice;
    };
};

/* Writes head and body; returns their size in bytes. */
size_t wire_encode(const struct wire_message *m, uint8_t out[WIRE_MAX_BYTES]);
/* ERROR_PROTOCOL: wire_encode() cannot have written these bytes. Texts are terminated and
 * printable. The enums of notices and records are not checked here. */
status wire_decode(struct wire_message *m, const void *bytes, size_t size) MUST_CHECK;
/* "push"; "?": there is no such type. */
const char *wire_type_name(enum wire_type type);
/* The error code (or STOPPED) that a peer sent; `unknown` if the code is not one of them. */
status wire_failure(uint32_t code, status unknown);

#endif
