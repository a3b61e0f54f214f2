/*
 * provenance.h — the description of a run for its row: settings, machine and program.
 */
#ifndef GRADLAG_EXPERIMENTS_RUN_PROVENANCE_H
#define GRADLAG_EXPERIMENTS_RUN_PROVENANCE_H

#include "base/text.h"
#include "results/store/recorder.h"
#include "base/options.h"

struct version {
    const char *name, *value; /* "ZeroMQ", "4.3.4"; value lives as long as the program */
};
/* Entry i of the versions of program and libraries; false at the end. */
bool provenance_version(size_t i, struct version *out);
/* "0.1.0"; the date of the built commit, "2026-11-21", empty if unknown. */
const char *provenance_release(void);
const char *provenance_date(void);

/* A row's description, and the texts that it points to (owned). */
struct run_row {
    struct run_description description;
    struct text config, settings, host;
    char hash[65];
};
void run_row_open(struct run_row *row, const options *o);
void run_row_close(struct run_row *row);

#endif
