/*
 * mpirun.h — the command line of mpirun that starts ranks of this program on this host.
 *
 * No port is open to other hosts: mpirun listens on loopback only, and ranks of one host use no
 * network (sync_start). An enclosing Slurm allocation is ignored.
 */
#ifndef GRADLAG_EXPERIMENTS_RUN_MPIRUN_H
#define GRADLAG_EXPERIMENTS_RUN_MPIRUN_H

#include "base/text.h"

struct mpirun {
    char count[16];
    struct text preload, restore; /* LD_PRELOAD of mpirun; the user's LD_PRELOAD, for the ranks */
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
/* Call after mpirun has ended. Does nothing for a zeroed struct that was never opened. */
void mpirun_close(struct mpirun *m);

#endif
