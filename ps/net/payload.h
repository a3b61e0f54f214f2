/*
 * payload.h — parameters and gradients in memory that server and workers of one host share.
 *
 * The server creates two anonymous files (memfd): one with the version slots, one with a mailbox
 * and a gradient slot per worker. A worker maps them through /proc/PID/fd/N: all version slots for
 * reading, the mailboxes and its own gradient slot for writing. The files have no name, so none is
 * left behind if a process dies. They are sealed: no process can shrink them, and (if the kernel
 * supports it) only the server can map the parameters for writing. A nonce in the first page proves
 * that the memory is this run's.
 *
 * If the files cannot be created, the server's slots are private memory, and payloads go as frames.
 */
#ifndef GRADLAG_PS_NET_PAYLOAD_H
#define GRADLAG_PS_NET_PAYLOAD_H

#include "ps/net/mailbox.h"
#include "ps/net/wire.h"

/* ---- the server's side --------------------------------------------------------------------- */
typedef struct payload_area payload_area;

/* Creates `slots` version slots and `workers` gradient slots of `count` floats each, zeroed. */
status payload_open(payload_area **out, size_t count, unsigned slots, unsigned workers) MUST_CHECK;
/* Unmaps. Contract: no message refers to a slot any more. NULL-safe. */
void payload_close(payload_area **p);
/* [slots][count]; owned by `p`. */
float **payload_slots(payload_area *p);
/* [count]; owned by `p`. */
float *payload_gradient(payload_area *p, unsigned worker);
/* NULL: pushes and releases go through the channel. Owned by `p`. */
mailboxes *payload_mailboxes(payload_area *p);
/* Whether other processes can map it. */
bool payload_is_shared(const payload_area *p);
/* Fills in where worker `worker` finds its memory; payload=frames if the memory is not shared. */
void payload_describe(const payload_area *p, unsigned worker, struct wire_welcome *out);

/* ---- a worker's side ----------------------------------------------------------------------- */
struct payload_view {
    const uint8_t *parameters; /* first slot */
    size_t stride;             /* bytes from one slot to the next */
    unsigned slots;
    float *gradient;
    void *parameters_map, *gradient_map; /* mapped by payload_map(); NULL: it mapped over a place */
    size_t parameters_bytes, gradient_bytes;
    void *mailboxes_map; /* mapped by payload_open_mailbox() */
    size_t mailboxes_bytes;
};
/* Where in the caller's memory a slice lies, beside the slices of other servers. Version slot s is
 * at `parameters` + s × stride bytes. Private memory follows the last slot; `gradient` is private
 * memory until payload_map() maps over it. slots = 0: the slice is not whole pages, so nothing can
 * be mapped over it. */
struct payload_place {
    uint8_t *parameters, *gradient;
    size_t stride;
    unsigned slots;
};
/* Maps over `place`, or at any address if `place` is NULL. ERROR_PEER: the memory cannot be mapped
 * (the message says why); slots that were already mapped over `place` then stay, read-only. */
status payload_map(struct payload_view *out, const struct wire_welcome *w, size_t count,
                   const struct payload_place *place) MUST_CHECK;
/* Opens worker `worker`'s mailbox in the same memory. False: there is none; pushes and releases go
 * through the channel. */
bool payload_open_mailbox(struct payload_view *v, const struct wire_welcome *w, unsigned worker,
                          struct mailbox *m, struct bell *b);
/* Unmaps. What was mapped over a place stays mapped, because that memory is the caller's. */
void payload_unmap(struct payload_view *v);
/* [count]; constant until the server reuses the slot. */
const float *payload_slot(const struct payload_view *v, unsigned slot);

/* Identifies this host, its boot and its pid namespace. Two processes with equal values can find
 * each other in /proc. All zero: not known. */
void payload_host(uint8_t out[WIRE_HOST_BYTES]);
/* Whether both are known and equal. */
bool payload_same_host(const uint8_t a[WIRE_HOST_BYTES], const uint8_t b[WIRE_HOST_BYTES]);

/* Random bytes from the kernel, for nonces, incarnations and routing ids. */
void payload_random(void *out, size_t bytes);

#endif
