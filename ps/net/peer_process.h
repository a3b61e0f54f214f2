/*
 * peer_process.h — whether a peer's process lives, where it is one of this host's.
 */
#ifndef GRADLAG_PS_NET_PEER_PROCESS_H
#define GRADLAG_PS_NET_PEER_PROCESS_H

#include "ps/net/wire.h"

/* A descriptor that becomes readable when process `pid` of `host` (payload_host()) ends; −1: it is
 * on another host, is gone, or this kernel has no such descriptors. */
int peer_process_watch(const uint8_t host[WIRE_HOST_BYTES], uint32_t pid);
/* Of −1 nothing is known: false. */
bool peer_process_has_ended(int watch);
/* Closes it, which takes it out of every epoll set, and sets it to −1. */
void peer_process_forget(int *watch);

#endif
