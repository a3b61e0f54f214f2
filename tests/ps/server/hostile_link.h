/*
 * hostile_link.h — connections to a live server that do what no honest program does.
 *
 * A hostile_link is a ZeroMQ DEALER whose bytes pass through this process on their way to the
 * server. So ZeroMQ makes handshakes and encryption, and the link decides what becomes of the
 * bytes: they are damaged, are cut by a reset, or the answers are never read. A link without
 * credentials has no DEALER: it says ZMTP's handshake without waiting for the server's. A recording
 * takes down what an honest worker says.
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
    HOSTILE_WRONG, /* another run's token, or a key that the server does not know */
    HOSTILE_RIGHT, /* the run's token, or a worker's key */
};

struct hostile_link_options {
    enum hostile_credentials credentials;
    uint64_t flip_at; /* this byte is damaged; 0: none */
    bool deaf;        /* answers are not read, but for the handshake */
};

/* NULL: the server did not take the connection (it may have too many). `context`: ZeroMQ's. */
hostile_link *hostile_link_open(void *context, const struct hostile_target *to,
                                const struct hostile_link_options *o);
/* Sends a frame if there is room; `more`: another one of the same message follows. Not without
 * credentials. */
bool hostile_link_say(hostile_link *l, const void *bytes, size_t size, bool more);
/* Sends these bytes of ZMTP as they are, behind the handshake. False: what was said before is still
 * on its way. */
bool hostile_link_inject(hostile_link *l, const uint8_t *bytes, size_t size);
/* Whether injected bytes are messages: they are not where the link is encrypted. */
bool hostile_link_is_plain(const hostile_link *l);
/* Moves bytes both ways without waiting. False: the server has closed the connection. */
bool hostile_link_pump(hostile_link *l);
/* Messages that came back. */
uint64_t hostile_link_answers(const hostile_link *l);
/* `reset`: TCP's RST in place of an orderly end. */
void hostile_link_close(hostile_link **l, bool reset);

/* A plain TCP connection; −1: refused. And its end, orderly or by RST. */
int hostile_connect(const struct hostile_target *to);
void hostile_hang_up(int fd, bool reset);

/* ---- recording ---------------------------------------------------------------------------------
 */

/* What an honest worker sent on its first connection, from the first byte on. */
struct hostile_recording {
    uint8_t *bytes;
    size_t size, capacity;
};
/* Listens on a free port, which *port becomes, and hands everything on to `to` in a thread, until
 * hostile_record_end(). */
typedef struct hostile_recorder hostile_recorder;
hostile_recorder *hostile_record(const struct hostile_target *to,
                                 struct hostile_recording *recording, uint16_t *port);
void hostile_record_end(hostile_recorder **r);

#endif
