/*
 * provenance.h — what a run's row says about itself: its settings, and the machine and program it
 * was made with.
 */
#ifndef GRADLAG_EXPERIMENTS_RUN_PROVENANCE_H
#define GRADLAG_EXPERIMENTS_RUN_PROVENANCE_H

#include "base/text.h"
#include "results/store/recorder.h"
#include "base/options.h"

struct version {
    const char *name, *value; /* "ZeroMQ", "4.3.4"; value lives as long as the program */
};
/* Entry i of the libraries and of the program itself; false at the end. */
bool provenance_version(size_t i, struct version *out);
/* "0.1.0"; and the day of the commit that it is built from, "2026-11-21", empty if not known. */
const char *provenance_release(void);
const char *provenance_date(void);

/* A row's description, with the text that it points to. */
struct run_row {
    struct run_description description;
    struct text config, settings, host;
    char hash[65];
};
void run_row_open(struct run_row *row, const options *o);
void run_row_close(struct run_row *row);

#endif
