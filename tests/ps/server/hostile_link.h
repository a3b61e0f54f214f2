/*
 * hostile_link.h — connections of an attacker to a live server.
 *
 * A hostile_link is a ZeroMQ DEALER whose bytes pass through this process on their way to the
 * server. ZeroMQ does the handshake and the encryption; the link damages bytes, cuts them by a
 * reset, or never reads the answers. A link without credentials has no DEALER: it sends a ZMTP
 * handshake without waiting for the server's. A recording stores the bytes that a correct worker
 * sends.
 */
#ifndef GRADLAG_TESTS_PS_SERVER_HOSTILE_LINK_H
#define GRADLAG_TESTS_PS_SERVER_HOSTILE_LINK_H

#include "ps/net/curve.h"

struct hostile_target {
    uint16_t port;                 /* on 127.0.0.1 */
    const struct curve_keys *keys; /* a worker's; NULL: the server has none */
    uint64_t run_token;
};

typedef struct hostile_link hostile_link;

enum hostile_credentials {
    HOSTILE_NONE,  /* ZMTP's mechanism NULL */
    HOSTILE_WRONG, /* another run's token, or a key that the server does not list */
    HOSTILE_RIGHT, /* the run's token, or a worker's key */
};

struct hostile_link_options {
    enum hostile_credentials credentials;
    uint64_t flip_at; /* this byte is damaged; 0: none */
    bool deaf;        /* no answers are read after the handshake */
};

/* NULL: the server did not accept the connection (it may have too many). `context`: ZeroMQ's. */
hostile_link *hostile_link_open(void *context, const struct hostile_target *to,
                                const struct hostile_link_options *o);
/* Sends a frame if there is room. `more`: another frame of the same message follows. Returns false
 * if the link has no credentials. */
bool hostile_link_send(hostile_link *l, const void *bytes, size_t size, bool more);
/* Sends these bytes of ZMTP unchanged after the handshake. False: earlier bytes are still being
 * sent.
 */
bool hostile_link_inject(hostile_link *l, const uint8_t *bytes, size_t size);
/* Whether injected bytes can be messages; on an encrypted link they cannot. */
bool hostile_link_is_plain(const hostile_link *l);
/* Moves bytes in both directions without waiting. False: the server has closed the connection. */
bool hostile_link_pump(hostile_link *l);
/* Number of messages received. */
uint64_t hostile_link_answers(const hostile_link *l);
/* `reset`: ends the connection by TCP's RST. */
void hostile_link_close(hostile_link **l, bool reset);

/* Opens a plain TCP connection; −1: refused. Closes it, orderly or by RST. */
int hostile_connect(const struct hostile_target *to);
void hostile_hang_up(int fd, bool reset);

/* ---- recording ---------------------------------------------------------------------------------
 */

/* The bytes that a correct worker sent on its first connection, from the first byte on. */
struct hostile_recording {
    uint8_t *bytes;
    size_t size, capacity;
};
/* Listens on a free port (*port), and forwards all bytes to `to` in a thread, until
 * hostile_record_end(). */
typedef struct hostile_recorder hostile_recorder;
hostile_recorder *hostile_record(const struct hostile_target *to,
                                 struct hostile_recording *recording, uint16_t *port);
void hostile_record_end(hostile_recorder **r);

#endif
