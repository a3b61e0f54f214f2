/*
 * What scripts/gpu-check says of its targets, from figures that were not measured: its parts have
 * ended, so it makes `check` alone, on the emulated GPU, and its table.
 */
#include "tests/process_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <libgen.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char figures[] = "folder/figures.jsonl", parts[] = "folder/parts.tsv";

/* PART: what its row says in place of "passed". */
static void write_parts(struct rig *r, const char *part, const char *says)
{
    static const char *const names[] = {
        "conformance", "modes",     "bits",     "steps",    "pytorch",   "products",         "wide",
        "overhead",    "epilogues", "headline", "memcheck", "racecheck", "pytorch-compiled", NULL};
    char rows[2048] = "";
    size_t length = 0;
#if defined(GRADLAG_SANITIZE)
    skip(); /* of a script, which the other build has shown */
#endif
    for (const char *const *name = names; *name != NULL; name++) {
        const char *state = strcmp(*name, part) == 0 ? says : "passed\t1\tall well";
        length +=
            (size_t)snprintf(rows + length, sizeof rows - length, "%s\t%s\t%s\n", *name,
                             strcmp(*name, "conformance") == 0 ? "required" : "optional", state);
    }
    process_write(r, parts, rows);
}

/* Of PyTorch's rates, and so of the ratios; all else as it should be. */
static void write_figures(struct rig *r, double eager, double graph, double wide, double overhead)
{
    static const char *const models[] = {"softmax", "mlp"}, *const precisions[] = {"fp32", "bf16"};
    char lines[4096];
    int length = snprintf(
        lines, sizeof lines,
        "{\"part\":\"products\",\"case\":\"16x24x40 fp32 "
        "layer/alone\",\"unit\":\"×\",\"value\":0.9}\n"
        "{\"part\":\"products\",\"case\":\"16x24x40 bf16 "
        "layer/alone\",\"unit\":\"×\",\"value\":%g}\n"
        "{\"part\":\"products\",\"case\":\"8x4x4 bf16 layer/alone\",\"unit\":\"×\",\"value\":0.1}\n"
        "{\"part\":\"overhead\",\"model\":\"mlp\",\"batch\":4,\"step\":1,\"run\":1,\"overhead\":%g}"
        "\n",
        wide, overhead);
    for (int i = 0; i < 4; i++) {
        const char *m = models[i / 2], *p = precisions[i % 2];
        length +=
            snprintf(lines + length, sizeof lines - (size_t)length,
                     "{\"part\":\"steps\",\"precision\":\"%s\",\"case\":\"%s batch=4 "
                     "resident\",\"median\":600}\n"
                     "{\"part\":\"pytorch\",\"model\": \"%s\", \"batch\": 4, \"mode\": \"eager\", "
                     "\"precision\": \"%s\", \"samples_per_second\": %g}\n"
                     "{\"part\":\"pytorch\",\"model\": \"%s\", \"batch\": 4, \"mode\": \"graph\", "
                     "\"precision\": \"%s\", \"samples_per_second\": %g}\n",
                     p, m, m, p, i == 3 ? eager : 100, m, p, i == 3 ? graph : 400);
    }
    process_write(r, figures, lines);
}

static int check(struct rig *r)
{
    char script[8192], tree[4096], program[4096];
    assert_non_null(getcwd(tree, sizeof tree));
    snprintf(program, sizeof program, "%s", process_program());
    snprintf(script, sizeof script,
             "'%s/scripts/gpu-check' --emulated --build '%s' --out folder --resume", tree,
             dirname(program));
    return process_shell(r, script);
}

static int verdicts(struct rig *r, const char *what)
{
    int count = 0;
    for (const char *at = process_output(r); (at = strstr(at, what)) != NULL; at++) {
        count++;
    }
    return count;
}

static void a_target_that_was_reached_is_met(void **state)
{
    struct rig *r = *state;
    assert_int_equal(process_shell(r, "mkdir folder"), 0);
    write_parts(r, "", "");
    write_figures(r, 200, 500, 0.8, 0.19);
    assert_int_equal(check(r), 0);
    assert_int_equal(verdicts(r, " | met |\n"), 6);
    assert_non_null(strstr(process_output(r), "| 4 of 4; least 3.00 × (mlp, batch 4, bf16) |"));
    assert_non_null(strstr(process_output(r), "| 4 of 4; least 1.20 × (mlp, batch 4, bf16) |"));
    assert_non_null(strstr(process_output(r), "| 0.8, the worst of 2 |"));
}

static void a_speed_that_was_not_reached_is_missed_and_changes_no_exit_code(void **state)
{
    struct rig *r = *state;
    assert_int_equal(process_shell(r, "mkdir folder"), 0);
    write_parts(r, "", "");
    write_figures(r, 201, 501, 0.79, 0.2);
    assert_int_equal(check(r), 0);
    assert_int_equal(verdicts(r, " | met |\n"), 2);
    assert_int_equal(verdicts(r, " | missed |\n"), 4);
    assert_non_null(strstr(process_output(r), "| 3 of 4; least 2.99 × (mlp, batch 4, bf16) |"));
}

static void a_result_that_is_not_the_cpus_is_missed_and_fails_the_check(void **state)
{
    struct rig *r = *state;
    assert_int_equal(process_shell(r, "mkdir folder"), 0);
    write_parts(r, "conformance", "FAILED\t1\tfailed: test_cuda");
    write_figures(r, 200, 500, 0.8, 0.1);
    assert_int_equal(check(r), 1);
    assert_non_null(strstr(process_output(r), "| failed: test_cuda | missed |\n"));
}

static void what_was_not_measured_says_why(void **state)
{
    struct rig *r = *state;
    assert_int_equal(process_shell(r, "mkdir folder"), 0);
    write_parts(r, "pytorch", "skipped\t1\tno PyTorch");
    write_figures(r, 200, 500, 0.8, 0.1);
    assert_int_equal(process_shell(r, "sed -i '/pytorch/d; /overhead/d' folder/figures.jsonl"), 0);
    assert_int_equal(check(r), 0);
    assert_int_equal(verdicts(r, "| – | not measured (skipped: no PyTorch) |\n"), 2);
    assert_int_equal(verdicts(r, "| not measured ("), 3);
    write_parts(r, "", "");
    write_figures(r, 200, 500, 0.8, 0.1);
    assert_int_equal(process_shell(r, "sed -i '/pytorch.*mlp.*bf16/d' folder/figures.jsonl"), 0);
    assert_int_equal(check(r), 0);
    assert_int_equal(verdicts(r, "; 1 not measured | not measured (part of it) |\n"), 2);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, process_set_up, process_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_target_that_was_reached_is_met),
        TEST(a_speed_that_was_not_reached_is_missed_and_changes_no_exit_code),
        TEST(a_result_that_is_not_the_cpus_is_missed_and_fails_the_check),
        TEST(what_was_not_measured_says_why),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
