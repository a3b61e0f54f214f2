/*
 * check.h — shared by the files of `gradlag check`: output rows, and the first missing requirement.
 */
#ifndef GRADLAG_EXPERIMENTS_CLI_CHECK_H
#define GRADLAG_EXPERIMENTS_CLI_CHECK_H

#include "base/options.h"

struct check {
    bool json, quick, links;
    status verdict; /* code of the first requested thing that is missing */
    char *why;      /* its error message; owned */
};

/* "gpu 0   memory   139.8 GiB", or {"check":"gpu 0","what":"memory","value":139.8,"unit":"GiB"} */
void check_number(const struct check *c, const char *about, const char *what, double value,
                  const char *unit);
void check_text(const struct check *c, const char *about, const char *what, const char *value);
/* Prints a row with the current error. `wanted`: the command must fail with it. */
void check_failed(struct check *c, const char *about, status code, bool wanted);

/* Compares two doubles, for qsort(). */
int check_ascending(const void *a, const void *b);

/* Rows of every visible GPU. `wanted`: it is an error if there is none. */
void check_gpus(struct check *c, bool wanted);

/* `mpirun … gradlag check --links`. check_is_rank: this process is one of several ranks.
 * check_between_ranks prints rows for each pair of hosts and names slow links. ERROR_PEER: two
 * hosts cannot reach each other. */
bool check_is_rank(void);
status check_between_ranks(struct check *c, const options *o) MUST_CHECK;
/* check_listen (`--listen`) answers one peer that measures its link to this host, then returns.
 * check_peer (`endpoint=…`) measures the link to such a listener. */
status check_listen(const options *o) MUST_CHECK;
status check_peer(struct check *c, const options *o) MUST_CHECK;
/* Prints the rate of messages between two processes of this host, plain and encrypted. No link to
 * another host is faster. Call it before MPI_Init. */
status check_encryption(struct check *c) MUST_CHECK;

#endif
