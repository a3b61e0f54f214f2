/* The record of a run's origin, and the command that repeats the run. */
#include "base/text.h"
#include "tests/rigs/process_rig.h"

#include "experiments/run/rerun_command.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Runs the printed command of the last run in a shell, and compares the parameters. */
static void expect_repeats(struct process_rig *r)
{
    char script[4096];
    assert_int_equal(RIG_RUN(r, "show", "last", "--rerun"), OK);
    snprintf(script, sizeof script, "%s --quiet", process_output(r));
    script[strcspn(script, "\n")] = '\0';
    if (process_shell(r, script) != OK)
        fail_msg("%s: %s", script, process_errors(r));
    process_expect_answer(r,
                          "SELECT count(DISTINCT parameters_sha256) || ' ' || count(DISTINCT "
                          "config_hash) FROM (SELECT * FROM run ORDER BY id DESC LIMIT 2)",
                          "1 1");
}

static void the_printed_command_repeats_a_real_run(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "seed=7", "lr=0.0123", "optimizer=nesterov",
                             "tag=not a setting of the other run"),
                     OK);
    expect_repeats(r);
    assert_int_equal(RIG_RUN(r, "show", "last", "--rerun"), OK);
    assert_null(strstr(process_errors(r), "gradlag replay")); /* one worker: the order is fixed */
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "workers=2"), OK);
    assert_int_equal(RIG_RUN(r, "show", "last", "--rerun"), OK);
    assert_non_null(strstr(process_errors(r), "gradlag replay 3"));
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "mode=sync", "workers=2", "reduction=ordered",
                             "lr_scaling=linear"),
                     OK);
    expect_repeats(r);
}

static void the_printed_command_repeats_a_virtual_run_and_a_what_if_replay(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "engine=virtual", "workers=5", "pace=gamma",
                             "pace.cv=0.7", "damping=polynomial", "damping.power=0.25"),
                     OK);
    expect_repeats(r);
    assert_int_equal(RIG_RUN(r, "replay", "1", "damping=inverse", "lr=0.02"), OK);
    expect_repeats(r);
    assert_int_equal(RIG_RUN(r, "show", "last", "--rerun"), OK);
    assert_non_null(strstr(process_output(r), "gradlag replay "));
}

static void the_relevant_environment_is_recorded_and_printed(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(setenv("OMP_NUM_THREADS", "3", 1), 0);
    assert_int_equal(setenv("MALLOC_ARENA_MAX", "it's 1", 1), 0);
    int code = RIG_RUN(r, "run", RIG_SMALL, "engine=virtual", "pace=constant");
    unsetenv("OMP_NUM_THREADS");
    unsetenv("MALLOC_ARENA_MAX");
    assert_int_equal(code, OK);
    process_expect_answer(r, "SELECT host ->> '$.environment.OMP_NUM_THREADS' FROM run", "3");
    assert_int_equal(RIG_RUN(r, "show", "last", "--rerun"), OK);
    assert_non_null(strstr(process_output(r), "MALLOC_ARENA_MAX='it'\\''s 1' "));
    assert_non_null(strstr(process_output(r), "OMP_NUM_THREADS=3 "));
}

static unsigned times_in(const char *text, const char *part)
{
    unsigned n = 0;
    while ((text = strstr(text, part)) != NULL) {
        text += strlen(part);
        n++;
    }
    return n;
}

/* As if the run came from a processor with fewer instructions; SSE4.1 is the least of oneDNN. */
static void the_instruction_set_of_the_run_is_printed(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(setenv("ONEDNN_MAX_CPU_ISA", "SSE41", 1), 0);
    int code = RIG_RUN(r, "run", RIG_SMALL, "engine=virtual", "pace=constant");
    assert_null(strstr(process_errors(r), "SSE41"));
    setenv("ONEDNN_MAX_CPU_ISA", "SSE4", 1);
    assert_int_equal(
        RIG_RUN(r, "run", RIG_SMALL, "engine=virtual", "pace=constant", "results=other.db"), OK);
    process_expect_errors_contain(r, "ONEDNN_MAX_CPU_ISA=SSE4,");
    unsetenv("ONEDNN_MAX_CPU_ISA");
    assert_int_equal(code, OK);
    process_expect_answer(r, "SELECT host ->> '$.onednn_instructions' FROM run", "SSE41");
    assert_int_equal(RIG_RUN(r, "show", "last", "--rerun"), OK);
    assert_int_equal(times_in(process_output(r), "ONEDNN_MAX_CPU_ISA=SSE41 "), 1);
    /* The variable named a set that the processor did not have. */
    assert_int_equal(process_shell(r, "sqlite3 results.db \"UPDATE run SET host = json_set(host, "
                                      "'$.environment.ONEDNN_MAX_CPU_ISA', 'AVX9')\""),
                     OK);
    assert_int_equal(RIG_RUN(r, "show", "last", "--rerun"), OK);
    assert_int_equal(times_in(process_output(r), "ONEDNN_MAX_CPU_ISA="), 1);
    assert_int_equal(times_in(process_output(r), "ONEDNN_MAX_CPU_ISA=SSE41 "), 1);
    assert_int_equal(process_shell(r, "sqlite3 results.db \"UPDATE run SET host = "
                                      "json_remove(host, '$.environment')\""),
                     OK);
    assert_int_equal(RIG_RUN(r, "show", "last", "--rerun"), OK);
    assert_int_equal(times_in(process_output(r), "ONEDNN_MAX_CPU_ISA=SSE41 "), 1);
    expect_repeats(r);
}

/* A replay computes with the set of the recording, unless the user names another. */
static void a_replay_uses_the_instruction_set_of_the_recording(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(setenv("ONEDNN_MAX_CPU_ISA", "SSE41", 1), 0);
    int run = RIG_RUN(r, "run", RIG_SMALL, "record=all");
    unsetenv("ONEDNN_MAX_CPU_ISA");
    assert_int_equal(run, OK);
    assert_int_equal(RIG_RUN(r, "replay", "last"), OK);
    process_shell(r, "sqlite3 results.db \"UPDATE push SET gradient_norm = 2 * gradient_norm\"");
    assert_int_equal(setenv("ONEDNN_MAX_CPU_ISA", "ALL", 1), 0);
    int replay = RIG_RUN(r, "replay", "1");
    unsetenv("ONEDNN_MAX_CPU_ISA");
    assert_int_equal(replay, ERROR_OTHER);
    assert_non_null(strstr(process_errors(r), "SSE41"));
}

/* Neither the printed command nor a replay can give the same bits with fewer instructions. SSE4.1
 * runs on every x86 processor. ONEDNN_MAX_CPU_ISA=SSE41 excludes the set of the edited row on every
 * processor. */
static void an_instruction_set_that_is_missing_here_is_named(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(setenv("ONEDNN_MAX_CPU_ISA", "SSE41", 1), 0);
    int run = RIG_RUN(r, "run", RIG_SMALL, "record=all");
    process_shell(r, "sqlite3 results.db \"UPDATE run SET host = json_set(host, "
                     "'$.onednn_instructions', 'AVX512_CORE'); "
                     "UPDATE push SET gradient_norm = 2 * gradient_norm\"");
    int show = RIG_RUN(r, "show", "last", "--rerun");
    bool warned = strstr(process_errors(r), "AVX512_CORE") != NULL;
    int replay = RIG_RUN(r, "replay", "last");
    bool blamed = strstr(process_errors(r), "AVX512_CORE") != NULL;
    unsetenv("ONEDNN_MAX_CPU_ISA");
    assert_int_equal(run, OK);
    assert_int_equal(show, OK);
    assert_true(warned);
    assert_int_equal(replay, ERROR_OTHER);
    assert_true(blamed);
    process_shell(r, "sqlite3 results.db \"UPDATE run SET host = json_set(host, "
                     "'$.onednn_instructions', 'SSE41')\"");
    assert_int_equal(RIG_RUN(r, "show", "last", "--rerun"), OK);
    assert_null(strstr(process_errors(r), "SSE41"));
}

static void a_script_repeats_runs_and_compares_their_parameters(void **state)
{
    struct process_rig *r = *state;
    char script[4096], tree[2048];
    assert_non_null(getcwd(tree, sizeof tree));
    snprintf(script, sizeof script, "PROGRAM='%s' '%s/scripts/repeat-runs' results.db",
             process_program(), tree);
    assert_int_equal(process_shell(r, script), 1); /* no run */
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "engine=virtual", "pace=constant"), OK);
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "workers=2"), OK); /* not simulated */
    assert_int_equal(process_shell(r, script), OK);
    assert_non_null(strstr(process_output(r), "same   run 1 "));
    assert_null(strstr(process_output(r), "run 2 "));
    /* Data at a relative path, which is a quoted field of CSV. */
    assert_int_equal(process_shell(r, "seq 3000 >'my, text.txt'"), OK);
    assert_int_equal(RIG_RUN(r, "run", "engine=virtual", "pace=constant", "model=gpt",
                             "dataset=text", "dataset.path=my, text.txt", "dataset.context=8",
                             "batch=2", "updates=2"),
                     OK);
    assert_int_equal(process_shell(r, script), OK);
    assert_non_null(strstr(process_output(r), "same   run 3 "));
    assert_int_equal(process_shell(r, "sqlite3 results.db \"UPDATE run SET parameters_sha256 = "
                                      "'0' WHERE id = 1\""),
                     OK);
    assert_int_equal(process_shell(r, script), 1);
    assert_non_null(strstr(process_output(r), "other   run 1 "));
    assert_null(strstr(process_output(r), " instead of "));
    assert_int_equal(process_shell(r, "sqlite3 results.db \"UPDATE run SET host = "
                                      "json_set(host, '$.onednn_instructions', 'AVX9')\""),
                     OK);
    assert_int_equal(process_shell(r, script), 1);
    assert_non_null(strstr(process_output(r), " instead of AVX9"));
}

static void a_row_records_program_machine_and_folder(void **state)
{
    struct process_rig *r = *state;
    static const char *const members[] = {
        "cpu",    "system",   "kernel", "libc",   "onednn",  "zeromq", "mpi",
        "sqlite", "compiler", "flags",  "commit", "version", "folder", "onednn_instructions"};
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "engine=virtual", "pace=constant"), OK);
    for (size_t i = 0; i < COUNT_OF(members); i++) {
        char sql[128];
        snprintf(sql, sizeof sql, "SELECT length(host ->> '$.%s') > 0 FROM run", members[i]);
        process_expect_answer(r, sql, "1");
    }
    process_expect_answer(r, "SELECT host ->> '$.dirty' IN (0, 1) FROM run", "1");
    process_expect_answer(r, "SELECT (host ->> '$.argv[1]') || (host ->> '$.argv[#-1]') FROM run",
                          "runpace=constant");
}

static void settings_of_the_sweep_itself_are_not_printed(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "sweep", RIG_SMALL, "engine=virtual", "pace=constant",
                             "lr=0.02,0.03", "priority=3", "retries=2", "--quiet"),
                     OK);
    /* The recorded command line is that of the sweep. */
    process_expect_answer(r, "SELECT DISTINCT host ->> '$.argv[1]' FROM run", "sweep");
    assert_int_equal(RIG_RUN(r, "show", "1", "--rerun"), OK);
    assert_non_null(strstr(process_output(r), "gradlag run "));
    assert_non_null(strstr(process_output(r), " lr=0.02"));
    static const char *const own[] = {"priority", "retries", "GRADLAG_"};
    for (size_t i = 0; i < COUNT_OF(own); i++)
        assert_null(strstr(process_output(r), own[i]));
}

static void no_row_holds_a_run_token(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(
        RIG_RUN(r, "run", RIG_SMALL, "engine=virtual", "pace=constant", "run_token=c0ffee"), OK);
    process_expect_answer(r, "SELECT host LIKE '%c0ffee%' OR config LIKE '%c0ffee%' FROM run", "0");
}

static void version_names_release_commit_and_libraries(void **state)
{
    struct process_rig *r = *state;
    static const char *const words[] = {"gradlag ", "(commit ", "oneDNN", "MPI", "SQLite", "flags"};
    assert_int_equal(RIG_RUN(r, "--version"), OK);
    for (size_t i = 0; i < COUNT_OF(words); i++)
        if (strstr(process_output(r), words[i]) == NULL)
            fail_msg("'%s' is not in: %s", words[i], process_output(r));
}

static void words_with_special_characters_are_quoted_for_a_shell(void **state)
{
    (void)state;
    static const char *const words[][2] = {{"lr=0.03", "lr=0.03"},
                                           {"", "''"},
                                           {"two words", "'two words'"},
                                           {"it's", "'it'\\''s'"},
                                           {"$HOME", "'$HOME'"},
                                           {"~/data", "'~/data'"},
                                           {"ä", "'ä'"}};
    for (size_t i = 0; i < COUNT_OF(words); i++) {
        struct text out = {0};
        rerun_add_word(&out, words[i][0]);
        assert_string_equal(out.at, words[i][1]);
        text_free(&out);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, process_set_up, process_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(the_printed_command_repeats_a_real_run),
        TEST(the_printed_command_repeats_a_virtual_run_and_a_what_if_replay),
        TEST(the_relevant_environment_is_recorded_and_printed),
        TEST(the_instruction_set_of_the_run_is_printed),
        TEST(a_replay_uses_the_instruction_set_of_the_recording),
        TEST(an_instruction_set_that_is_missing_here_is_named),
        TEST(a_script_repeats_runs_and_compares_their_parameters),
        TEST(a_row_records_program_machine_and_folder),
        TEST(settings_of_the_sweep_itself_are_not_printed),
        TEST(no_row_holds_a_run_token),
        TEST(version_names_release_commit_and_libraries),
        cmocka_unit_test(words_with_special_characters_are_quoted_for_a_shell),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
