/*
 * mpirun.h — the command that starts ranks of this program, all on this host.
 *
 * Nothing of it can be reached from other hosts: mpirun listens on loopback alone, and ranks of one
 * host use no network (sync_start). A Slurm allocation around it is not looked at.
 */
#ifndef GRADLAG_EXPERIMENTS_RUN_MPIRUN_H
#define GRADLAG_EXPERIMENTS_RUN_MPIRUN_H

#include "base/text.h"

struct mpirun {
    char count[16];
    struct text preload, restore; /* LD_PRELOAD of mpirun; of the ranks: the user's own */
    int preload_fd;
    const char *words[32]; /* "mpirun", "-n", …, ended by NULL: the rank's command follows */
    const char *environment[12]; /* additions, "NAME=value", ended by NULL */
};

/* `folder`: where Open MPI keeps its files, `shared`: the memory that ranks share; both borrowed
 * until mpirun_close(), NULL: Open MPI's choice. ERROR_OTHER where `folder` has too little room,
 * with which mpirun would hang. */
status mpirun_open(struct mpirun *m, unsigned ranks, const char *folder,
                   const char *shared) MUST_CHECK;
/* Not before mpirun has ended. NULL-safe for one that was zeroed and not opened. */
void mpirun_close(struct mpirun *m);

#endif
