/*
 * run_owner.h — which process owns a run, and whether that process still exists. Internal to
 * results/.
 *
 * Column run.runner names the owner: the process that started the others, outlives them and ends
 * the row. If the owner is killed, the row stays queued or running, and the next process that opens
 * the file finds that the owner no longer exists. On the same host, the start time and the boot id
 * distinguish a process from a later one with the same number. An owner on another host or in
 * another container counts as lost if its run has reported no progress for RUN_OWNER_LOST_S; a
 * training run reports once a second. If that owner lives after all, its outcome replaces the row.
 */
#ifndef GRADLAG_RESULTS_STORE_RUN_OWNER_H
#define GRADLAG_RESULTS_STORE_RUN_OWNER_H

#include "base/text.h"
#include "results/store/database.h"

/* Appends this process as a JSON object: host, boot, namespace, pid, started. */
void run_owner_describe(struct text *out);
enum { RUN_OWNER_LOST_S = 3600 };

struct gone_run {
    int64_t id;
    char heard_at[32]; /* time of its last progress report (UTC); empty: not known */
    char why[240];     /* the error message for its row; repeated calls give the same text */
};
struct gone_runs { /* zero-initialise */
    struct gone_run *at;
    size_t count, capacity;
};
/* Finds queued and running runs whose process no longer exists. */
status run_owner_find_gone(sqlite3 *db, struct gone_runs *out) MUST_CHECK;
void run_owner_free_gone(struct gone_runs *gone);

#endif
