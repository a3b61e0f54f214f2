/*
 * scripts/gpu-check with an empty bundle, and with a script in place of timeout, which records the
 * parts and runs none of them.
 */
#include "base/status.h"
#include "tests/rigs/process_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* File `slow` names the parts that reach their time limit. */
static void write_machine(struct process_rig *r)
{
    process_write(r, "timeout",
                  "#!/bin/sh\n"
                  "for last; do :; done\n"
                  "part=${last##* }\n"
                  "printf '%s ' \"$part\" >>ran\n"
                  "! grep -qx \"$part\" slow || exit 124\n");
    assert_int_equal(
        process_shell(r, "chmod +x timeout && mkdir -p bin gradlag-bundle &&"
                         " mv timeout bin && echo LD_LIBRARY_PATH= >gradlag-bundle/environment &&"
                         " echo gradlag none >gradlag-bundle/VERSION &&"
                         " tar -cf bundle.tar gradlag-bundle"),
        OK);
}

/* Runs gpu-check; returns its exit code. process_output() then lists the parts that ran. */
static int gpu_check(struct process_rig *r, const char *parts)
{
    char script[8192], tree[4096];
    assert_non_null(getcwd(tree, sizeof tree));
    snprintf(script, sizeof script,
             "rm -f ran; export PATH=$PWD/bin:$PATH\n"
             "'%s/scripts/gpu-check' --bundle bundle.tar --out out --budget 9999 %s; code=$?\n"
             "! [ -e ran ] || cat ran; exit $code",
             tree, parts);
    return process_shell(r, script);
}

static void only_a_part_that_continues_runs_again_after_its_time_limit(void **state)
{
    struct process_rig *r = *state;
    write_machine(r);
    process_write(r, "slow", "headline\nracecheck\n");
    assert_int_equal(gpu_check(r, ""), 3);
    assert_non_null(strstr(process_output(r), "headline memcheck racecheck compiled "));
    assert_int_equal(gpu_check(r, ""), 3);
    assert_string_equal(process_output(r), "headline ");
    process_write(r, "slow", "racecheck\n");
    assert_int_equal(gpu_check(r, ""), 1);
    assert_string_equal(process_output(r), "headline ");
    assert_int_equal(gpu_check(r, "racecheck"), 1);
    assert_string_equal(process_output(r), "racecheck ");
    assert_int_equal(process_shell(r, "grep -q '^| racecheck | stopped [0-9]* |$' out/gpu.md"), 0);
    process_write(r, "slow", "");
    assert_int_equal(gpu_check(r, "racecheck"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(only_a_part_that_continues_runs_again_after_its_time_limit,
                                        process_set_up, process_tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
