/*
 * endpoint.h — addresses of parameter servers: ipc://PATH or tcp://ADDRESS:PORT.
 */
#ifndef GRADLAG_PS_NET_ENDPOINT_H
#define GRADLAG_PS_NET_ENDPOINT_H

#include "base/status.h"

#include <string.h>

enum { ENDPOINT_BYTES = 256 }; /* of the longest, with its end */

/* The end of an error about an endpoint at which nothing answers: how to write IPv6, or "". Host
 * names mean their first IPv4 address, * means IPv4. The text is constant. */
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
