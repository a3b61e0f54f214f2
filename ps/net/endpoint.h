/*
 * endpoint.h — addresses of parameter servers: ipc://PATH or tcp://ADDRESS:PORT.
 */
#ifndef GRADLAG_PS_NET_ENDPOINT_H
#define GRADLAG_PS_NET_ENDPOINT_H

#include "base/status.h"

#include <string.h>

enum { ENDPOINT_BYTES = 256 }; /* size of the longest endpoint, including the NUL */

/* The last words of the error that nothing answers at an endpoint: how to write an IPv6 address, or
 * "". A host name means its first IPv4 address, and * means IPv4. The text is constant. */
static inline const char *endpoint_hint(const char *endpoint)
{
    return strncmp(endpoint, "tcp://", 6) == 0 && endpoint[6] != '['
               ? " (a host name means its first IPv4 address; for IPv6 write tcp://[ADDRESS]:PORT)"
               : "";
}

/* ERROR_USAGE: the endpoint is malformed or, unless `anywhere`, not on this host (ipc, tcp on 127.x
 * or [::1]). */
status endpoint_check(const char *endpoint, bool anywhere) MUST_CHECK;

#endif
