/* plain_link.c — see plain_link.h. */
#include "experiments/bench/plain_link.h"

#include "base/memory.h"

#include <errno.h>
#include <malloc.h>
#include <string.h>
#include <zmq.h>

enum { LINGER_MS = 2000, ENDPOINT_BYTES = 256, GLIBC_MMAP_THRESHOLD = 128 << 10 };

struct plain_link {
    void *context, *socket;
    zmq_msg_t received;
    char endpoint[ENDPOINT_BYTES];
};

static status link_open(plain_link **out, const char *endpoint, bool binds)
{
    status result = OK;
    plain_link *l = NULL;
    size_t size = sizeof l->endpoint;
    const int linger = LINGER_MS;
    TRY(memory_new(&l, 1, sizeof *l, "a link"));
    mallopt(M_MMAP_THRESHOLD, GLIBC_MMAP_THRESHOLD);
    zmq_msg_init(&l->received);
    l->context = zmq_ctx_new();
    l->socket = l->context != NULL ? zmq_socket(l->context, binds ? ZMQ_REP : ZMQ_REQ) : NULL;
    if (l->socket == NULL || zmq_setsockopt(l->socket, ZMQ_LINGER, &linger, sizeof linger) != 0)
        FAIL(ERROR_OTHER, "cannot make a ZeroMQ socket: %s", zmq_strerror(zmq_errno()));
    if ((binds ? zmq_bind(l->socket, endpoint) : zmq_connect(l->socket, endpoint)) != 0 ||
        zmq_getsockopt(l->socket, ZMQ_LAST_ENDPOINT, l->endpoint, &size) != 0)
        FAIL(ERROR_OTHER, "cannot %s %s: %s", binds ? "listen on" : "connect to", endpoint,
             zmq_strerror(zmq_errno()));
done:
    if (result != OK)
        plain_link_close(&l);
    *out = l;
    return result;
}

status plain_link_bind(plain_link **out, const char *endpoint)
{
    return link_open(out, endpoint, true);
}

status plain_link_connect(plain_link **out, const char *endpoint)
{
    return link_open(out, endpoint, false);
}

void plain_link_close(plain_link **p)
{
    if (*p == NULL)
        return;
    plain_link *l = *p;
    zmq_msg_close(&l->received);
    if (l->socket != NULL)
        zmq_close(l->socket);
    while (l->context != NULL && zmq_ctx_term(l->context) != 0 && zmq_errno() == EINTR)
        continue;
    memory_free(l);
    *p = NULL;
}

const char *plain_link_endpoint(const plain_link *l)
{
    return l->endpoint;
}

/* Frees the last received message. */
static void free_received(plain_link *l)
{
    zmq_msg_close(&l->received);
    zmq_msg_init(&l->received);
}

status plain_link_send(plain_link *l, const void *bytes, size_t size)
{
    status result = OK;
    zmq_msg_t m;
    int sent;
    free_received(l);
    if (zmq_msg_init_size(&m, size) != 0)
        FAIL(ERROR_OTHER, "out of memory for a message of %zu bytes", size);
    if (size > 0)
        memcpy(zmq_msg_data(&m), bytes, size);
    do /* an open link has room for one message; EFSM: it is not its turn */
        sent = zmq_msg_send(&m, l->socket, ZMQ_DONTWAIT);
    while (sent < 0 && zmq_errno() == EINTR);
    if (sent < 0) {
        zmq_msg_close(&m);
        FAIL(ERROR_OTHER, "cannot send a message of %zu bytes: %s", size,
             zmq_strerror(zmq_errno()));
    }
done:
    return result;
}

status plain_link_receive(plain_link *l, unsigned timeout_ms, const void **bytes, size_t *size)
{
    status result = OK;
    zmq_pollitem_t one = {.socket = l->socket, .events = ZMQ_POLLIN};
    int code;
    free_received(l);
    do
        code = zmq_poll(&one, 1, (long)timeout_ms);
    while (code < 0 && zmq_errno() == EINTR);
    if (code <= 0)
        FAIL(ERROR_PEER, "no message came within %u ms; the other end may have died", timeout_ms);
    if (zmq_msg_recv(&l->received, l->socket, ZMQ_DONTWAIT) < 0)
        FAIL(ERROR_OTHER, "cannot receive: %s", zmq_strerror(zmq_errno()));
    *bytes = zmq_msg_data(&l->received);
    *size = zmq_msg_size(&l->received);
done:
    return result;
}
