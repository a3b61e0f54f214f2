/*
 * scripts/setup with scripts in place of dpkg-query, apt-get, sudo and id, which record their
 * calls. Nothing is installed.
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

#define TEXT "datasets/text/king-james.txt"

static const char debian[] = "ID=debian\nPRETTY_NAME=\"Debian GNU/Linux\"\n";

/* setup can call only the tools in bin/, so the test does not depend on this machine. */
static void write_machine(struct process_rig *r, const char *os_release)
{
    process_write(r, "os-release", os_release);
    process_write(r, "dpkg-query",
                  "#!/bin/sh\n"
                  "for last; do :; done\n"
                  "! grep -qx \"$last\" missing || exit 1\n"
                  "printf installed\n");
    process_write(r, "apt-get",
                  "#!/bin/sh\n"
                  "echo \"apt-get $*\" >>called\n"
                  "! [ -e no-network ] || { echo 'E: no network'; exit 100; }\n");
    process_write(r, "sudo", "#!/bin/sh\necho sudo >>called\nexec \"$@\"\n");
    process_write(r, "id", "#!/bin/sh\ncat user\n");
    process_write(r, "user", "0\n");
    process_write(r, "missing", "");
    assert_int_equal(process_shell(r, "mkdir bin && chmod +x dpkg-query apt-get sudo id &&"
                                      " mv dpkg-query apt-get sudo id bin &&"
                                      " for tool in bash cat env grep install mkdir mktemp rm"
                                      " sha256sum tail wc; do\n"
                                      "    ln -s $(command -v $tool) bin || exit\n"
                                      "done\n"
                                      "mkdir -p datasets/text && touch " TEXT),
                     OK);
}

static int set_up(struct process_rig *r, const char *arguments)
{
    char script[8192], tree[4096];
    assert_non_null(getcwd(tree, sizeof tree));
    int length = snprintf(script, sizeof script,
                          "export GRADLAG_OS_RELEASE=$PWD/os-release PATH=$PWD/bin\n"
                          "export GRADLAG_DATASETS=$PWD/datasets\n"
                          "'%s/scripts/setup' %s",
                          tree, arguments);
    assert_in_range(length, 1, sizeof script - 1);
    return process_shell(r, script);
}

static const char *called(struct process_rig *r)
{
    static char text[4096];
    FILE *file = fopen(process_path(r, "called"), "r");
    size_t length = file != NULL ? fread(text, 1, sizeof text - 1, file) : 0;
    text[length] = '\0';
    if (file != NULL)
        fclose(file);
    return text;
}

static const char update_and_install[] =
    "apt-get -o DPkg::Lock::Timeout=300 update -q\n"
    "apt-get -o DPkg::Lock::Timeout=300 install -y -q --no-install-recommends libzmq3-dev "
    "libjpeg-dev\n";

static void setup_is_silent_if_nothing_is_missing(void **state)
{
    struct process_rig *r = *state;
    write_machine(r, debian);
    assert_int_equal(set_up(r, ""), 0);
    assert_string_equal(process_output(r), "");
    assert_string_equal(process_errors(r), "");
    assert_string_equal(called(r), "");
}

static void setup_installs_only_what_is_missing_and_lists_it(void **state)
{
    struct process_rig *r = *state;
    write_machine(r, "ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n");
    process_write(r, "missing", "libjpeg-dev\nlibzmq3-dev\n");
    assert_int_equal(set_up(r, ""), 0);
    assert_string_equal(process_output(r), "setup: installing libzmq3-dev libjpeg-dev\n");
    assert_string_equal(called(r), update_and_install);
}

static void tools_of_lint_are_installed_only_for_lint(void **state)
{
    struct process_rig *r = *state;
    write_machine(r, debian);
    process_write(r, "missing", "clang-format\ncppcheck\n");
    assert_int_equal(set_up(r, ""), 0);
    assert_string_equal(called(r), "");
    assert_int_equal(set_up(r, "--list"), 0);
    assert_null(strstr(process_output(r), "cppcheck"));
    assert_int_equal(set_up(r, "--lint --list"), 0);
    assert_non_null(strstr(process_output(r), "libzmq3-dev\n"));
    assert_non_null(strstr(process_output(r), "cppcheck\n"));
    assert_int_equal(set_up(r, "--lint"), 0);
    assert_string_equal(process_output(r), "setup: installing clang-format cppcheck\n");
}

static void a_machine_with_nvcc_gets_the_compiler_that_nvcc_calls(void **state)
{
    struct process_rig *r = *state;
    write_machine(r, debian);
    process_write(r, "missing", "g++\n");
    process_write(r, "nvcc", "#!/bin/sh\n");
    assert_int_equal(process_shell(r, "chmod +x nvcc && mv nvcc bin"), OK);
    assert_int_equal(set_up(r, ""), 0);
    assert_string_equal(process_output(r), "setup: installing g++\n");
}

static void a_user_installs_through_sudo(void **state)
{
    struct process_rig *r = *state;
    char expected[sizeof update_and_install + 16];
    write_machine(r, debian);
    process_write(r, "missing", "libjpeg-dev\nlibzmq3-dev\n");
    process_write(r, "user", "1000\n");
    assert_int_equal(set_up(r, ""), 0);
    const char *install = strchr(update_and_install, '\n') + 1;
    snprintf(expected, sizeof expected, "sudo\n%.*ssudo\n%s", (int)(install - update_and_install),
             update_and_install, install);
    assert_string_equal(called(r), expected);
}

static void a_user_without_sudo_gets_the_command_for_the_administrator(void **state)
{
    struct process_rig *r = *state;
    write_machine(r, debian);
    process_write(r, "missing", "libjpeg-dev\nlibzmq3-dev\n");
    process_write(r, "user", "1000\n");
    assert_int_equal(unlink(process_path(r, "bin/sudo")), 0);
    assert_int_equal(set_up(r, ""), ERROR_USAGE);
    assert_non_null(strstr(process_errors(r), "apt-get install libzmq3-dev libjpeg-dev\n"));
    assert_string_equal(called(r), "");
}

static void on_another_system_setup_lists_the_packages_and_stops(void **state)
{
    struct process_rig *r = *state;
    write_machine(r, "ID=fedora\nPRETTY_NAME=\"Fedora Linux 41\"\n");
    process_write(r, "missing", "libjpeg-dev\n");
    assert_int_equal(set_up(r, "--list"), 0);
    char list[4096], line[128];
    snprintf(list, sizeof list, "%s", process_output(r));
    assert_int_equal(set_up(r, ""), ERROR_USAGE);
    assert_non_null(strstr(process_errors(r), "Fedora Linux 41"));
    assert_non_null(strstr(process_errors(r), "SETUP=no"));
    unsigned count = 0;
    for (char *package = strtok(list, "\n"); package != NULL; package = strtok(NULL, "\n")) {
        snprintf(line, sizeof line, "\n  %s\n", package);
        if (strstr(process_errors(r), line) == NULL)
            fail_msg("%s is not named", package);
        count++;
    }
    assert_true(count > 10);
    assert_string_equal(called(r), "");
    assert_int_equal(unlink(process_path(r, "os-release")), 0); /* a system without os-release */
    assert_int_equal(set_up(r, ""), ERROR_USAGE);
    process_expect_errors_contain(r, "SETUP=no");
}

static void setup_shows_the_error_of_apt_get(void **state)
{
    struct process_rig *r = *state;
    write_machine(r, debian);
    process_write(r, "missing", "libjpeg-dev\n");
    process_write(r, "no-network", "");
    assert_int_equal(set_up(r, ""), ERROR_OTHER);
    assert_non_null(strstr(process_errors(r), "E: no network\n"));
    assert_non_null(strstr(process_errors(r), "sources.list"));
    assert_int_equal(set_up(r, "--lits"), ERROR_USAGE);
    assert_non_null(strstr(process_errors(r), "--lits"));
}

static void the_text_is_written_once_and_whole(void **state)
{
    struct process_rig *r = *state;
    write_machine(r, debian);
    if (process_shell(r, "rm -r datasets && ln -s $(command -v bible) bin/bible") != OK)
        skip(); /* bible-kjv is missing */
    assert_int_equal(set_up(r, ""), 0);
    assert_int_equal(process_shell(r, "test $(wc -c <" TEXT ") = 4404412"), 0);
    assert_int_equal(set_up(r, ""), 0);
    assert_string_equal(process_output(r), "");
    assert_string_equal(called(r), "");
}

/* Setup warns and goes on, because only dataset=text needs the text. */
static void a_wrong_or_missing_text_is_not_written(void **state)
{
    struct process_rig *r = *state;
    write_machine(r, debian);
    assert_int_equal(process_shell(r, "rm -r datasets"), 0);
    for (int wrong = 0; wrong < 2; wrong++) {
        if (wrong) {
            assert_int_equal(process_shell(r, "printf '#!/bin/sh\necho In the end\n' >bin/bible &&"
                                              " chmod +x bin/bible"),
                             0);
        }
        assert_int_equal(set_up(r, ""), 0);
        process_expect_errors_contain(r, "dataset.path");
        assert_int_equal(process_shell(r, "test -e " TEXT), 1);
    }
}

int main(void)
{
#define SETUP_TEST(f) cmocka_unit_test_setup_teardown(f, process_set_up, process_tear_down)
    const struct CMUnitTest tests[] = {
        SETUP_TEST(setup_is_silent_if_nothing_is_missing),
        SETUP_TEST(setup_installs_only_what_is_missing_and_lists_it),
        SETUP_TEST(tools_of_lint_are_installed_only_for_lint),
        SETUP_TEST(a_machine_with_nvcc_gets_the_compiler_that_nvcc_calls),
        SETUP_TEST(a_user_installs_through_sudo),
        SETUP_TEST(a_user_without_sudo_gets_the_command_for_the_administrator),
        SETUP_TEST(on_another_system_setup_lists_the_packages_and_stops),
        SETUP_TEST(setup_shows_the_error_of_apt_get),
        SETUP_TEST(the_text_is_written_once_and_whole),
        SETUP_TEST(a_wrong_or_missing_text_is_not_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
