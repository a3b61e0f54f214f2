/*
 * run_owner.h — which process answers for a run, and whether it is still there. Internal to
 * results/.
 *
 * A run's row notes the process that began it: the starter, which outlives the others and settles
 * the row. If that one is killed outright, nobody settles it; whoever looks at the file next finds
 * its process gone. That is judged on the same host: there a process is told apart from a later one
 * with its number by when it started, and by the boot. One on another host or in another container
 * is taken for lost when its run has said nothing for RUN_OWNER_LOST_S: while it trains it says
 * once a second how far it is. Should it live after all, its outcome is written over that.
 */
#ifndef GRADLAG_RESULTS_STORE_RUN_OWNER_H
#define GRADLAG_RESULTS_STORE_RUN_OWNER_H

#include "base/text.h"
#include "results/store/database.h"

/* This process, as JSON: host, boot, namespace, pid, started. */
void run_owner_describe(struct text *out);
/* Whether one that was described so is gone; false where that cannot be told from here: two
 * machines may have one name. */
bool run_owner_is_gone(const char *json);

enum { RUN_OWNER_LOST_S = 3600 };

struct gone_run {
    int64_t id;
    char heard_at[32]; /* when its run last said something (UTC); empty: not known */
    char why[240];     /* what became of it, in words: the same whenever one looks */
};
struct gone_runs { /* zero-initialise */
    struct gone_run *at;
    size_t count, capacity;
};
/* Runs that say queued or running, and whose process is gone. */
status run_owner_find_gone(sqlite3 *db, struct gone_runs *out) MUST_CHECK;
void run_owner_free_gone(struct gone_runs *gone);

#endif
