/* diverged.h — the error message of a run that ended because a number was not finite. */
#ifndef GRADLAG_PS_SERVER_DIVERGED_H
#define GRADLAG_PS_SERVER_DIVERGED_H

#include "ps/core/server_core.h"
#include "ps/net/wire.h"

struct diverged_where { /* server `server` of `servers` has parameters [begin, begin + count) */
    unsigned servers, server;
    size_t begin, count;
    bool skips; /* on_nonfinite=skip; then there is one server */
};

/* For SERVER_DIVERGED at one server: which worker's number it was, where, and what to do. The text
 * fits into a message to server 0. */
void diverged_describe(const struct push_record *culprit, const struct diverged_where *where,
                       char out[WIRE_TEXT_BYTES]);

#endif
