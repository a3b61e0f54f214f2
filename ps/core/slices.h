/*
 * slices.h — which parameters each of several servers holds: contiguous slices of the flat vector,
 * in the order of the servers. Their sizes differ by one at most; where each has SLICE_PAGES pages
 * or more, all but the last are whole pages, so that a worker can map them side by side
 * (payload.h), and they differ by less than two.
 */
#ifndef GRADLAG_PS_CORE_SLICES_H
#define GRADLAG_PS_CORE_SLICES_H

#include "base/options.h"

enum { SERVERS_MAX = 64, SLICE_PAGE = 1024 /* floats */, SLICE_PAGES = 16 };

/* Slice `server` of `servers` begins there; slice_begin(count, n, n) = count. Contract: no more
 * servers than parameters. */
size_t slice_begin(size_t count, unsigned servers, unsigned server);
size_t slice_count(size_t count, unsigned servers, unsigned server);

/* Keys servers and read. */
unsigned servers_of(const options *settings);
bool reads_snapshots(const options *settings);

/* ERROR_USAGE: several servers with what cannot be cut over them. */
status slices_check(const options *settings) MUST_CHECK;
/* ERROR_USAGE: more servers than parameters. */
status slices_fit(unsigned servers, size_t count) MUST_CHECK;

/* Where server `server` of several listens: its part of "e0,e1,…". One server may have a comma in
 * its own. ERROR_USAGE: the list has another length, or an empty part, or one that is too long. */
enum { SERVERS_ENDPOINT_BYTES = 256 };
status servers_endpoint(const char *list, unsigned servers, unsigned server,
                        char out[SERVERS_ENDPOINT_BYTES]) MUST_CHECK;

#endif
