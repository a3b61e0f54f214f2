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

/* Answers GET /metrics on 127.0.0.1:port (0: a free port), whose address it prints on stdout, with
 * the page of the results file as it is at that moment, and logs the address. Returns OK when the
 * process is asked to stop. ERROR_USAGE: the port is taken or not allowed. A file that cannot be
 * read is status 503, not an error. */
status metrics_serve(const char *path, unsigned port) MUST_CHECK;

#endif
