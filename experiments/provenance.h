/*
 * provenance.h — what a run's row says about itself: its settings, and the machine and program it
 * was made with.
 */
#ifndef GRADLAG_EXPERIMENTS_PROVENANCE_H
#define GRADLAG_EXPERIMENTS_PROVENANCE_H

#include "results/recorder.h"
#include "worker/options.h"

/* JSON: cpu, processors, memory, kernel, host name, library versions, commit, compiler, flags. */
void provenance_host(struct text *out);

/* A row's description, with the text that it points to. */
struct run_row {
    struct run_description description;
    struct text config, settings, host;
    char hash[65];
};
void run_row_open(struct run_row *row, const options *o);
void run_row_close(struct run_row *row);

#endif
