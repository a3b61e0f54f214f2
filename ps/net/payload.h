/*
 * payload.h — parameters and gradients in memory that server and workers of one host share.
 *
 * The server makes two anonymous files (memfd): one with the version slots, one with a gradient
 * slot per worker. A worker maps them through /proc/PID/fd/N: all slots to read, its own gradient
 * slot to write. The files have no name, so nothing is left behind however the processes die; they
 * are sealed, so nobody can shrink them under the others, and (where the kernel can) no one but the
 * server can map the parameters for writing. A nonce in the first page proves that it is this run's
 * memory.
 *
 * Where the files cannot be made the server's slots are private memory, and payloads go as frames.
 */
#ifndef GRADLAG_PS_NET_PAYLOAD_H
#define GRADLAG_PS_NET_PAYLOAD_H

#include "ps/net/wire.h"

/* ---- the server's side --------------------------------------------------------------------- */
typedef struct payload_area payload_area;

/* `slots` version slots and `workers` gradient slots of `count` floats each, zeroed. */
status payload_open(payload_area **out, size_t count, unsigned slots, unsigned workers) MUST_CHECK;
/* Unmaps; nothing may be in flight from the slots any more. NULL-safe. */
void payload_close(payload_area **p);
float **payload_slots(payload_area *p);
float *payload_gradient(payload_area *p, unsigned worker);
/* Whether others can map it. */
bool payload_is_shared(const payload_area *p);
/* Fills in how worker `worker` finds its part; payload=frames where nothing is shared. */
void payload_describe(const payload_area *p, unsigned worker, struct wire_welcome *out);

/* ---- a worker's side ----------------------------------------------------------------------- */
struct payload_view {
    const uint8_t *parameters; /* first slot */
    size_t stride;
    unsigned slots;
    float *gradient;
    void *parameters_map, *gradient_map; /* what is mapped */
    size_t parameters_bytes, gradient_bytes;
};
/* Where in memory of the caller's a slice lies, beside those of other servers. Version slot s is at
 * `parameters` + s × stride bytes, and after the last one there is plain memory, as for the
 * gradient. Slots are 0 where slices are not whole pages: then it is not mapped over. */
struct payload_place {
    uint8_t *parameters, *gradient;
    size_t stride;
    unsigned slots;
};
/* Maps over `place`, or (NULL) where there is room. ERROR_PEER: it cannot be mapped here (says
 * why); all plain memory is then as it was. */
status payload_map(struct payload_view *out, const struct wire_welcome *w, size_t count,
                   const struct payload_place *place) MUST_CHECK;
/* What was mapped over a place stays: that memory is the caller's. */
void payload_unmap(struct payload_view *v);
const float *payload_slot(const struct payload_view *v, unsigned slot);

/* Identifies this host, boot and process id space: equal on two processes that can find each other
 * in /proc. All zero where it cannot be told. */
void payload_host(uint8_t out[WIRE_HOST_BYTES]);
/* Whether both are known and equal. */
bool payload_same_host(const uint8_t a[WIRE_HOST_BYTES], const uint8_t b[WIRE_HOST_BYTES]);

/* Random bytes from the kernel: nonces, incarnations, routing ids. Contract: the kernel has some.
 */
void payload_random(void *out, size_t bytes);

#endif
