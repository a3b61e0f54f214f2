/*
 * runner.h — which process answers for a run, and whether it is still there. Internal to results/.
 *
 * A run's row notes the process that began it: the starter, which outlives the others and settles
 * the row. If that one is killed outright, nobody settles it; whoever looks at the file next finds
 * its process gone. Judged on the same host alone: there a process is told apart from a later one
 * with its number by when it started, and by the boot; one in another container is left alone.
 */
#ifndef GRADLAG_RESULTS_RUNNER_H
#define GRADLAG_RESULTS_RUNNER_H

#include "results/database.h"

/* This process, as JSON: host, boot, namespace, pid, started. */
void runner_describe(struct text *out);

struct gone_run {
    int64_t id;
    char why[160]; /* what became of it, in words */
};
struct gone_runs { /* zero-initialise */
    struct gone_run *at;
    size_t count, capacity;
};
/* Runs that say queued or running, and whose process is gone. */
status runner_find_gone(sqlite3 *db, struct gone_runs *out) MUST_CHECK;
void runner_free_gone(struct gone_runs *gone);

#endif
