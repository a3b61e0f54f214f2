#include "tests/ps/virtual/virtual_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

void assert_close(double value, double expected, double tolerance)
{
    if (!(fabs(value - expected) <= tolerance))
        fail_msg("%.9g, but %.9g ± %g was expected", value, expected, tolerance);
}

void copy_answer(struct process_rig *r, const char *sql, char out[80])
{
    snprintf(out, 80, "%s", process_ask(r, sql));
}

void expect_last_two_runs_equal(struct process_rig *r)
{
    char last[80];
    copy_answer(r, LAST_HASH, last);
    assert_int_equal(strlen(last), 64);
    assert_string_equal(process_ask(r, LAST_HASH " OFFSET 1"), last);
}
