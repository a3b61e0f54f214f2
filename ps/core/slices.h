/*
 * slices.h — which parameters each of several servers holds.
 *
 * Server i holds slice i of the flat vector; slices are contiguous. If each server has at least
 * SLICE_PAGES pages, all slices but the last are whole pages. A worker can then map them side by
 * side (ps/net/payload.h), and slice sizes differ by less than two pages. Otherwise sizes differ by
 * at most one element.
 *
 * If the update of an element depends on its whole layer (optimizer=lars, muon,
 * weight_decay_of=matrices, outer=heloco), no layer is cut: each cut moves to the nearest boundary
 * between two layers that leaves each slice a layer. Of two equally near boundaries it takes the
 * lower one.
 */
#ifndef GRADLAG_PS_CORE_SLICES_H
#define GRADLAG_PS_CORE_SLICES_H

#include "base/options.h"
#include "worker/optimizer/optimizer.h"

enum { SERVERS_MAX = 64, SLICE_PAGE = 1024 /* floats */, SLICE_PAGES = 16 };

/* The first element and the first layer of each slice; entry `servers` holds the ends of the last
 * slice. */
struct slices {
    unsigned servers;
    size_t begin[SERVERS_MAX + 1];
    size_t layer[SERVERS_MAX + 1]; /* all 0: layers may be cut */
};

/* The slices of a model with `count` parameters. Workers and servers compute the same slices from
 * the same settings and layers. ERROR_USAGE: more servers than parameters, or than layers where no
 * layer may be cut. */
status slices_open(struct slices *out, const options *settings,
                   const struct optimizer_layers *layers, size_t count) MUST_CHECK;
/* The same without settings; `layers` NULL: layers may be cut. Contract: at least `servers`
 * parameters and layers. */
void slices_cut(struct slices *out, unsigned servers, size_t count,
                const struct optimizer_layers *layers);
size_t slice_count(const struct slices *s, unsigned server);
/* The layers of one slice, within `layers`. None if layers may be cut between several servers. */
struct optimizer_layers slice_layers(const struct slices *s, const struct optimizer_layers *layers,
                                     unsigned server);

/* Keys servers and read. */
unsigned servers_of(const options *settings);
bool reads_snapshots(const options *settings);

/* ERROR_USAGE: several servers, and a setting that needs whole vectors; the message names it. */
status slices_check(const options *settings) MUST_CHECK;

/* Copies the endpoint of server `server` from the list "e0,e1,…". With one server the whole list is
 * its endpoint. ERROR_USAGE: the list does not have `servers` parts, or the part is empty or too
 * long. */
enum { SERVERS_ENDPOINT_BYTES = 256 };
status servers_endpoint(const char *list, unsigned servers, unsigned server,
                        char out[SERVERS_ENDPOINT_BYTES]) MUST_CHECK;

#endif
