/*
 * results_rig.h — a results file in a temporary folder, for tests of results/.
 */
#ifndef GRADLAG_TESTS_RESULTS_RESULTS_RIG_H
#define GRADLAG_TESTS_RESULTS_RESULTS_RIG_H

/* cmocka.h requires these headers before it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "results/store/database.h"
#include "results/store/recorder.h"

/* The temporary folder of the current test, and the results file in it. */
extern char rig_folder[64], rig_path[96];

/* Set-up and teardown of a test. */
int rig_make_folder(void **state);
int rig_remove_folder(void **state);
#define RIG_TEST(name) cmocka_unit_test_setup_teardown(name, rig_make_folder, rig_remove_folder)

extern const struct run_description rig_run;
extern const struct run_outcome rig_outcome;

/* Opens a recorder on rig_path and begins `run` as running. */
recorder *rig_begin(const struct run_description *run, int64_t *id);
void rig_finish(recorder *r, const struct run_outcome *outcome);
/* The i-th push of a run of 4 workers. */
struct push_record rig_push(uint64_t i);
/* Whether rig_path with `suffix` exists. */
bool rig_exists(const char *suffix);
/* The first column of the first row of a query, as text ("NULL" for NULL); valid until the next
 * call. */
const char *rig_ask(const char *sql);
/* The same through a plain SQLite connection, without gradlag's temporary views. */
const char *rig_in_the_file(const char *sql);
/* Changes rig_path through a plain SQLite connection, without checks. */
void rig_change(const char *sql);
/* SHA-256 of the file rig_path; valid until the next call. */
const char *rig_hash(void);
/* Asserts that the last error's message contains `value`: a path, name or number that the test
 * chose. */
void rig_assert_error_names(const char *value);

#endif
