/*
 * check.h — what the files of `gradlag check` share: one row per fact, and what was missing.
 */
#ifndef GRADLAG_EXPERIMENTS_CLI_CHECK_H
#define GRADLAG_EXPERIMENTS_CLI_CHECK_H

#include "base/options.h"

struct check {
    bool json, quick, links;
    status verdict; /* the first thing missing that was asked for */
    char *why;      /* owned */
};

/* "gpu 0   memory   139.8 GiB", or {"check":"gpu 0","what":"memory","value":139.8,"unit":"GiB"} */
void check_number(const struct check *c, const char *about, const char *what, double value,
                  const char *unit);
void check_text(const struct check *c, const char *about, const char *what, const char *value);
/* A row with the current error; `wanted` makes it the verdict. */
void check_failed(struct check *c, const char *about, status code, bool wanted);

/* Every visible GPU; `wanted`: it is an error if there is none. */
void check_gpus(struct check *c, bool wanted);

/* `mpirun … gradlag check --links`: this process is one of several ranks. Rows of each pair of
 * hosts, and which link is slow. ERROR_PEER: two hosts do not reach each other. */
bool check_is_rank(void);
status check_between_ranks(struct check *c, const options *o) MUST_CHECK;
/* `--listen`: lets one peer measure its link to here, and ends. `endpoint=`: measures the link to
 * such a listener. */
status check_listen(const options *o) MUST_CHECK;
status check_peer(struct check *c, const options *o) MUST_CHECK;

#endif
