/*
 * query_rig.h — a results file with known values, and queries on it.
 */
#ifndef GRADLAG_TESTS_RESULTS_QUERY_RIG_H
#define GRADLAG_TESTS_RESULTS_QUERY_RIG_H

#include "results/report/report.h"
#include "tests/results/results_rig.h"

#include "results/query/query.h"

/* Set-up of a test: rig_path contains six runs of 4 workers: two seeds undamped (mean accuracy 0.6,
 * sd √0.02), two damped (mean 0.8, sd √0.0002), one diverged run, one synchronous run. */
int query_rig_make_file(void **state);
#define SAMPLE_TEST(name)                                                                          \
    cmocka_unit_test_setup_teardown(name, query_rig_make_file, rig_remove_folder)

/* The output of the last query. */
extern char answer[65536];

/* Runs a query on rig_path; `settings`: "key=value" texts. */
status run_query(const char *question, enum query_format format, const char *const *settings,
                 size_t count);
/* Runs a query and asserts its complete output. */
void assert_answer(const char *question, enum query_format format, const char *wanted);
void assert_contains(const char *text, const char *wanted);

/* The page that report_write() writes; free() it. */
char *rig_report(const struct report_request *request);

#endif
