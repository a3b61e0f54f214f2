/*
 * process.h — whether a peer's process lives, where it is one of this host's.
 */
#ifndef GRADLAG_PS_PROCESS_H
#define GRADLAG_PS_PROCESS_H

#include "ps/wire.h"

/* A descriptor that becomes readable when process `pid` of `host` (payload_host()) ends; −1: it is
 * on another host, is gone, or this kernel has no such descriptors. */
int process_watch(const uint8_t host[WIRE_HOST_BYTES], uint32_t pid);
/* Of −1 nothing is known: false. */
bool process_has_ended(int watch);
/* Closes it, which takes it out of every epoll set, and sets it to −1. */
void process_forget(int *watch);

#endif
