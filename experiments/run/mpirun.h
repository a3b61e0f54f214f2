/*
 * mpirun.h — the command line of mpirun that starts processes of this program, on this host or on
 * several.
 *
 * With mpirun_open() no port is open to other hosts: mpirun listens on loopback only, and ranks of
 * one host use no network (sync_start). An enclosing Slurm allocation is ignored.
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
    const char *environment[14]; /* additions, "NAME=value", ended by NULL */
};

/* `folder`: for Open MPI's files; NULL: TMPDIR or /tmp. `shared`: for the shared memory of ranks;
 * NULL: Open MPI's default. Both are borrowed until mpirun_close(). ERROR_OTHER: the folder has too
 * little free space, which would make mpirun hang. */
status mpirun_open(struct mpirun *m, unsigned ranks, const char *folder,
                   const char *shared) MUST_CHECK;
struct mpirun_hosts {
    unsigned count;        /* of processes */
    const char *hosts;     /* "a:4,b:4"; NULL: all of the Slurm allocation */
    bool in_allocation;    /* Slurm starts the processes, else ssh */
    const char *interface; /* networks that mpirun may use, separated by commas; or "" */
    const char *folder;    /* for Open MPI's files on this host, if several mpirun start at the
                              same time; NULL: Open MPI's own, which MPI processes need */
    bool survive;          /* the end of one process does not end the others */
    const char *passed[6]; /* names of variables that mpirun passes to other hosts; ends with NULL.
                              All other variables come from these hosts */
};
/* Borrows all texts until mpirun_close(). */
void mpirun_open_hosts(struct mpirun *m, const struct mpirun_hosts *wanted);
/* Call after mpirun has ended. Does nothing for a zeroed struct that was never opened. */
void mpirun_close(struct mpirun *m);

#endif
