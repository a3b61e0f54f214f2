/* virtual_rig.h — shared by the tests that run the program with engine=virtual. */
#ifndef GRADLAG_TESTS_PS_VIRTUAL_VIRTUAL_RIG_H
#define GRADLAG_TESTS_PS_VIRTUAL_VIRTUAL_RIG_H

#include "tests/rigs/process_rig.h"

#define VIRTUAL   RIG_SMALL, "engine=virtual", "pace=gamma"
#define LAST_HASH "SELECT parameters_sha256 FROM run ORDER BY id DESC LIMIT 1"

void assert_close(double value, double expected, double tolerance);
void copy_answer(struct process_rig *r, const char *sql, char out[80]);
void expect_last_two_runs_equal(struct process_rig *r);

#endif
