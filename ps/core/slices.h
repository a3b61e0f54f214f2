/*
 * slices.h — which parameters each of several servers holds.
 *
 * Server i holds slice i of the flat vector; slices are contiguous. If each server has at least
 * SLICE_PAGES pages, all slices but the last are whole pages. A worker can then map them side by
 * side (ps/net/payload.h), and slice sizes differ by less than two pages. Otherwise sizes differ by
 * at most one element.
 */
#ifndef GRADLAG_PS_CORE_SLICES_H
#define GRADLAG_PS_CORE_SLICES_H

#include "base/options.h"

enum { SERVERS_MAX = 64, SLICE_PAGE = 1024 /* floats */, SLICE_PAGES = 16 };

/* First element of slice `server`; slice_begin(count, n, n) = count. Contract: servers ≤ count. */
size_t slice_begin(size_t count, unsigned servers, unsigned server);
size_t slice_count(size_t count, unsigned servers, unsigned server);

/* Keys servers and read. */
unsigned servers_of(const options *settings);
bool reads_snapshots(const options *settings);

/* ERROR_USAGE: several servers, and a setting that needs whole vectors; the message names it. */
status slices_check(const options *settings) MUST_CHECK;
/* ERROR_USAGE: more servers than parameters. */
status slices_fit(unsigned servers, size_t count) MUST_CHECK;

/* Copies the endpoint of server `server` from the list "e0,e1,…". With one server the whole list is
 * its endpoint. ERROR_USAGE: the list does not have `servers` parts, or the part is empty or too
 * long. */
enum { SERVERS_ENDPOINT_BYTES = 256 };
status servers_endpoint(const char *list, unsigned servers, unsigned server,
                        char out[SERVERS_ENDPOINT_BYTES]) MUST_CHECK;

#endif
