/*
 * mpirun.h — the command line of mpirun that starts processes of this program, on this host or on
 * several.
 *
 * With mpirun_open() no port is open to other hosts: mpirun listens on loopback only, and ranks of
 * one host use no network (sync_start). An enclosing Slurm allocation is ignored by both.
 */
#ifndef GRADLAG_EXPERIMENTS_RUN_MPIRUN_H
#define GRADLAG_EXPERIMENTS_RUN_MPIRUN_H

#include "base/text.h"

struct mpirun {
    char count[16];
    struct text first, second; /* LD_PRELOAD of mpirun and of the ranks; or the networks to use */
    int preload_fd;
    const char
        *words[32]; /* "mpirun", "-n", …, ended by NULL; the caller appends the rank's command */
    const char *environment[12]; /* additions, "NAME=value", ended by NULL */
};

/* `folder` is for Open MPI's files, `shared` for the shared memory of ranks; both are borrowed
 * until mpirun_close(), NULL: Open MPI's default. ERROR_OTHER: `folder` has too little free space,
 * which would make mpirun hang. */
status mpirun_open(struct mpirun *m, unsigned ranks, const char *folder,
                   const char *shared) MUST_CHECK;
/* For `count` processes on `hosts` ("a:4,b:4"); `interface`: the networks that mpirun may use,
 * separated by commas, or empty; `survive`: the end of one process does not end the others.
 * Processes on other hosts have of the environment only what their hosts give them and the
 * variables in `passed` (ends with NULL). Borrows all texts until mpirun_close(). */
void mpirun_open_hosts(struct mpirun *m, unsigned count, const char *hosts, const char *interface,
                       bool survive, const char *const *passed);
/* Call after mpirun has ended. Does nothing for a zeroed struct that was never opened. */
void mpirun_close(struct mpirun *m);

#endif
