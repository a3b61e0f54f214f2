/*
 * peer_process.h — notices when the process of a peer on the same host ends (Linux pidfd).
 */
#ifndef GRADLAG_PS_NET_PEER_PROCESS_H
#define GRADLAG_PS_NET_PEER_PROCESS_H

#include "ps/net/wire.h"

/* Returns a descriptor that becomes readable when process `pid` of `host` (payload_host()) ends.
 * Returns −1 if the process is on another host, has ended, or the kernel has no pidfd_open. The
 * caller owns the descriptor. */
int peer_process_watch(const uint8_t host[WIRE_HOST_BYTES], uint32_t pid);
/* Whether the process has ended. −1: false, since nothing is known. */
bool peer_process_has_ended(int watch);
/* Closes the descriptor and sets it to −1. Closing removes it from every epoll set. */
void peer_process_forget(int *watch);

#endif
