/*
 * shared.h — one sweep on several hosts, each with a results file of its own: who makes which run
 * is said by files in a folder that all of them see.
 *
 * SQLite's locks are not to be trusted across a network's file system. What is: of several who
 * link() a file to one name, one succeeds (NFS, too). Of a run whose key is K there are
 *
 *     K.1, K.2, …   who makes it: the highest number counts. Another one is made where the one
 *                   before was lost, stopped or failed.
 *     K.1.end       how that went: finished, diverged, failed or stopped; and what came of it
 *     OWNER.alive   written again and again by a process as long as it lives
 *
 * No file is ever taken away or renamed, so nobody acts on what another one has just changed. A
 * process is lost once its .alive has not been written for `lost_after_s`, by the clock of the
 * folder's own host; on its own host, as soon as it is gone (results/queue.h).
 */
#ifndef GRADLAG_EXPERIMENTS_SHARED_H
#define GRADLAG_EXPERIMENTS_SHARED_H

#include "worker/base.h"

enum { SHARED_LOST_AFTER_S = 300, SHARED_KEY = 33, SHARED_CAME = 96 };

typedef struct shared shared;

enum shared_state {
    SHARED_FREE, /* nobody makes it, or whoever did was lost or stopped */
    SHARED_OWN,  /* this process makes it */
    SHARED_TAKEN,
    SHARED_FINISHED,
    SHARED_DIVERGED,
    SHARED_FAILED,
};
struct shared_run {
    enum shared_state state;
    unsigned turn;          /* the number that counts; 0: none */
    char by[192];           /* "HOST, process N"; empty where turn is 0 */
    bool same_results;      /* of this host, into this process's results file */
    char came[SHARED_CAME]; /* as its maker gave it to shared_end(); empty: nothing */
};

/* The folder is made if it is not there. `results`: this process's results file. ERROR_OTHER: it
 * cannot be written, or has no links. */
status shared_open(shared **out, const char *folder, const char *results,
                   double lost_after_s) MUST_CHECK;
/* What this process took and did not end is said to have stopped: others may take it at once. */
void shared_close(shared **s);
/* To be called several times a second; writes where it is time to. NULL-safe. */
void shared_beat(shared *s);

/* Where a run stands. */
status shared_look(shared *s, const char *key, struct shared_run *out) MUST_CHECK;
/* Takes it where it is free; with `again` also where it failed. *out is how it stands then. */
status shared_take(shared *s, const char *key, bool again, struct shared_run *out) MUST_CHECK;
/* How turn `turn` ended: SHARED_FINISHED, …; SHARED_FREE: it was stopped. `came`: figures that the
 * others want to know, less than SHARED_CAME bytes, or "". The first to say so counts. */
status shared_end(shared *s, const char *key, unsigned turn, enum shared_state how,
                  const char *came) MUST_CHECK;

#endif
