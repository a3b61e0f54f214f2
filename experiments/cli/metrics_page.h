/*
 * metrics_page.h — the running runs of a results file in Prometheus' text format 0.0.4, and an HTTP
 * server for that page on a loopback port.
 */
#ifndef GRADLAG_EXPERIMENTS_CLI_METRICS_PAGE_H
#define GRADLAG_EXPERIMENTS_CLI_METRICS_PAGE_H

#include "base/text.h"
#include "results/query/live_runs.h"

/* Adds the page. Unknown numbers have no line. */
void metrics_page_add(const struct live_runs *l, struct text *out);

/* Serves the page at http://127.0.0.1:port/metrics (port 0: a free port) and prints this address on
 * stdout. Each request reads the results file again; if the file cannot be read, the answer has
 * status 503. Returns OK when the process is asked to stop. ERROR_USAGE: the port is taken or not
 * allowed. */
status metrics_serve(const char *path, unsigned port) MUST_CHECK;

#endif
