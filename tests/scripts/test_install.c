/*
 * make install and make uninstall: the program runs from any folder, man(1) reads the man page
 * without a warning, and bash completes commands. Then the build's record of itself, scripts/lint,
 * and scripts/gpu-check.
 */
#include "base/status.h"
#include "tests/rigs/process_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void expect_shell(struct process_rig *r, const char *script)
{
    char all[8192];
    snprintf(all, sizeof all, "exec 2>&1; %s", script);
    int code = process_shell(r, all);
    if (code != OK)
        fail_msg("exit code %d of: %s\n%s", code, script, process_output(r));
}

/* expect_shell() with $tree, the folder of the sources. */
static void expect_in_tree(struct process_rig *r, const char *script)
{
    char all[8192], tree[4096];
    assert_non_null(getcwd(tree, sizeof tree));
    int length =
        snprintf(all, sizeof all, "unset MAKEFLAGS MFLAGS MAKELEVEL; tree='%s'; %s", tree, script);
    assert_in_range(length, 1, sizeof all - 1);
    expect_shell(r, all);
}

/* Runs `make TARGET` of this tree with DESTDIR in the rig's folder; builds nothing. */
static void make(struct process_rig *r, const char *target)
{
    char script[9000], tree[4096], build[64];
    assert_non_null(getcwd(tree, sizeof tree));
    snprintf(script, sizeof script, "%s", process_program());
    *strrchr(script, '/') = '\0';
    snprintf(build, sizeof build, "%s", strrchr(script, '/') + 1);
    snprintf(
        script, sizeof script,
        "unset MAKEFLAGS MFLAGS MAKELEVEL; make -s -C '%s' -o all BUILD=%s %s DESTDIR=\"$PWD\" "
        "PREFIX=/opt/gradlag",
        tree, build, target);
    expect_shell(r, script);
}

#define INSTALLED "opt/gradlag/bin/gradlag"

static void the_installed_program_runs_from_anywhere_without_the_sources(void **state)
{
    struct process_rig *r = *state;
    char script[9000], tree[4096];
    assert_non_null(getcwd(tree, sizeof tree));
    make(r, "install");
    /* CUDA's line tables for profilers name the folder of the kernels; the program does not open
     * that path. */
    snprintf(script, sizeof script,
             "! grep -aoE '%s[^[:cntrl:]]*' " INSTALLED " | grep -v '/[.]/worker/cuda/kernels$'",
             tree);
    expect_shell(r, script);
    expect_shell(r, "top=$PWD; mkdir elsewhere && cd elsewhere && env -i PATH=/usr/bin:/bin "
                    "TMPDIR=$TMPDIR $top/" INSTALLED " run workers=2 dataset=gaussian "
                    "dataset.size=8 dataset.samples=1000 model=softmax samples=200 batch=10 "
                    "evaluate_every=0 --quiet && test -s results.db && "
                    "env -i PATH=/usr/bin:/bin $top/" INSTALLED " show last >shown && "
                    "grep -q finished shown && "
                    "env -i PATH=/usr/bin:/bin $top/" INSTALLED " reproduce stale-gradients "
                    "--quick --dry-run >plan && test -s plan");
}

static void uninstall_removes_the_installed_files(void **state)
{
    struct process_rig *r = *state;
    make(r, "install");
    expect_shell(r, "test $(find opt -type f | wc -l) = 3");
    make(r, "uninstall");
    expect_shell(r, "test $(find opt -type f | wc -l) = 0");
}

static void all_users_can_read_what_root_installs_under_a_strict_umask(void **state)
{
    struct process_rig *r = *state;
    const mode_t before = umask(077);
    make(r, "install");
    expect_shell(r, "test $(find opt -type f -perm -a=r | wc -l) = 3 && "
                    "test -z \"$(find opt/gradlag -type d ! -perm -a=rx)\"");
    umask(before);
}

static void nothing_is_installed_if_the_program_does_not_run(void **state)
{
    expect_in_tree(*state, "! DESTDIR=$PWD \"$tree/scripts/install\" \"$(type -P false)\" && "
                           "! find usr -type f | grep .");
}

static void the_man_page_is_read_without_a_warning(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "help", "--man"), OK);
    /* Every line is ASCII, so that it looks the same in every locale. */
    expect_shell(r, "gradlag help --man >gradlag.1 && ! LC_ALL=C grep -n '[^ -~]' gradlag.1");
    if (process_shell(r, "command -v groff >/dev/null") != OK) {
        print_message("groff is not installed: the man page was not formatted\n");
        skip();
    }
    expect_shell(r, "groff -man -Tutf8 -ww -rHY=0 gradlag.1 2>warnings >page; cat warnings; "
                    "test ! -s warnings");
    expect_shell(
        r, "sed -e 's/\x1b\\[[0-9;]*m//g' -e 's/.\x08//g' page >plain; for word in damping.power "
           "staleness-histogram stale-gradients --rerun ONEDNN_ NO_COLOR; do "
           "grep -q -e $word plain || { echo $word is missing; exit 1; }; done");
    if (process_shell(r, "command -v mandoc >/dev/null") == OK)
        expect_shell(r, "mandoc -T lint -W warning gradlag.1");
}

static void the_man_page_has_every_command_and_key(void **state)
{
    struct process_rig *r = *state;
    expect_shell(r, "gradlag help --man | sed 's/\\\\-/-/g' >page; "
                    "gradlag help | sed -n 's/^  gradlag \\([a-z]*\\).*/\\1/p' | grep -v '^run$' "
                    ">commands; test $(wc -l <commands) -gt 10; "
                    "gradlag list keys | sed -n 's/^\\([a-z_.]*\\)=.*/\\1/p' >keys; "
                    "test $(wc -l <keys) -gt 60; "
                    "while read -r c; do grep -q \"^.SS gradlag $c$\" page || exit 1; done "
                    "<commands; "
                    "while read -r k; do grep -qF \"\\fB$k\\fR=\" page || { echo $k; exit 1; }; "
                    "done <keys");
}

/* The completions that bash offers after `line`, sorted, in one line. */
static void expect_offers(struct process_rig *r, const char *line, const char *offers)
{
    char script[1024];
    snprintf(script, sizeof script,
             "source <(gradlag completion bash); COMP_LINE='%s' COMP_POINT=%zu; _gradlag gradlag; "
             "printf '%%s\\n' \"${COMPREPLY[@]}\" | sort | tr '\\n' ' '",
             line, strlen(line));
    expect_shell(r, script);
    if (strcmp(process_output(r), offers) != 0)
        fail_msg("after '%s' bash offers '%s', not '%s'", line, process_output(r), offers);
}

static void bash_completes_commands_settings_values_and_names(void **state)
{
    struct process_rig *r = *state;
    expect_offers(r, "gradlag repl", "replay ");
    expect_offers(r, "gradlag run mode=", "async pipeline sync ");
    expect_offers(r, "gradlag run workers=2 damping=ge", "generation ");
    expect_offers(r, "gradlag sweep damping=none,inv", "none,inverse ");
    expect_offers(r, "gradlag run damping.po", "damping.power= ");
    expect_offers(r, "gradlag run opt", "optimizer= ");
    expect_offers(r, "gradlag show --re", "--rerun ");
    expect_offers(r, "gradlag show res", "results= ");
    expect_offers(r, "gradlag query staleness-h", "staleness-histogram ");
    expect_offers(r, "gradlag list quer", "queries ");
    expect_offers(r, "gradlag bench push", "push-pull ");
    expect_offers(r, "gradlag reproduce delay-ad", "delay-adaptive ");
    expect_offers(r, "gradlag completion ", "bash ");
    expect_offers(r, "gradlag run mode=nothing", " ");
    expect_offers(r, "gradlag bench step ba", " "); /* it has keys of its own */
    /* If the completion offers nothing, bash offers file names. */
    expect_offers(r, "gradlag merge ", " ");
    expect_shell(r,
                 "source <(gradlag completion bash); complete -p gradlag | grep -e '-o default'");
}

/* Each command reads its own flags before it refuses another one. 1/2 is the value of flags that
 * take one. */
static void every_flag_that_bash_offers_is_accepted(void **state)
{
    struct process_rig *r = *state;
    expect_shell(r,
                 "source <(gradlag completion bash); count=0; "
                 "for command in $_gradlag_commands; do words= name=; _gradlag_flags \"$command\"; "
                 "[ $command != bench ] || name=step; "
                 "for flag in $words; do [ $flag != --help ] || continue; count=$((count + 1)); "
                 "error=$(gradlag $command $name $flag 1/2 --nonsense 2>&1); "
                 "case $error in *\"'$flag'\"*) echo \"$error\"; exit 1;; esac; "
                 "done; done; test $count -gt 25");
}

/* ---- the build ----------------------------------------------------------------------------------
 */

/* A change of the flags rebuilds all objects. */
static void with_and_without_nccl_the_flags_differ(void **state)
{
    struct process_rig *r = *state;
    expect_in_tree(r, "flags() { make -s -C \"$tree\" DIR=\"$PWD\" WITH_CUDA=yes NCCL_HEADER=$1 "
                      "\"$PWD/flags\"; }; flags nccl.h && grep -e -DGRADLAG_NCCL flags && flags && "
                      "! grep NCCL flags");
}

#define BUILD_INFO "scripts/build-info 1 release cc -mcpu=native -O2 -I. "
/* The folder "copy" with build-info lies in a repository that does not have it. */
static void a_copy_without_git_does_not_record_the_commit_of_a_repository_around_it(void **state)
{
    struct process_rig *r = *state;
    expect_in_tree(r, "mkdir -p copy/scripts && cp \"$tree/scripts/build-info\" copy/scripts && "
                      "git init -q . && git -c user.name=n -c user.email=e commit -q --allow-empty "
                      "-m first && cd copy && " BUILD_INFO ">info && "
                      "grep 'COMMIT \"unknown\"' info && grep 'BUILD_DATE \"\"' info && "
                      "git init -q . && git add . && git -c user.name=n -c user.email=e commit "
                      "-q -m own && " BUILD_INFO ">info && "
                      "grep \"COMMIT \\\"$(git rev-parse --short=12 HEAD)\" info");
}

static void the_flags_of_the_processor_are_recorded(void **state)
{
    struct process_rig *r = *state;
    expect_in_tree(r, "\"$tree\"/" BUILD_INFO "| grep 'FLAGS \"-mcpu=native -O2\"'");
}

/* Without the list, lint would wait for input that never comes. */
static void lint_needs_the_list_of_files_of_git(void **state)
{
    expect_in_tree(*state, "mkdir scripts; cp \"$tree/scripts/lint\" scripts; mkfifo input\n"
                           "timeout 10 scripts/lint <>input; test $? = 2");
}

/* ---- scripts/gpu-check ------------------------------------------------------------------------
 */

/* The bundle's program writes its last argument to the file "last". Only root can mount a folder
 * from which nothing can be executed. */
static void gpu_check_needs_no_program_in_tmp_and_writes_to_a_folder_with_spaces(void **state)
{
    struct process_rig *r = *state;
    expect_in_tree(
        r, "mkdir -p gradlag-bundle/bin 'a folder' tmp; here=$PWD; cd gradlag-bundle\n"
           "echo 'export LD_LIBRARY_PATH=' >environment; echo gradlag 1 >VERSION\n"
           "printf '#!/bin/bash\necho \"${@: -1}\" >>%q/last\n' \"$here\" >bin/gradlag\n"
           "chmod +x bin/gradlag; cd ..; tar -cf bundle.tar gradlag-bundle\n"
           "check=(env TMPDIR=\"$here/tmp\" \"$tree/scripts/gpu-check\" --bundle bundle.tar --out "
           "'a folder' modes)\n"
           "if unshare --mount true; then unshare --mount bash -c 'mount -t tmpfs -o noexec none "
           "tmp; exec \"$@\"' - \"${check[@]}\"; else \"${check[@]}\"; fi\n"
           "test $? = 3 || exit\n" /* the other parts did not run */
           "cat 'a folder/modes.log'; test \"$(cat last)\" = \"$(yes \"results=$here/a "
           "folder/gpu.db\" | head -n 2)\" && ! ls -d 'a folder'/*/");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, process_set_up, process_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(the_installed_program_runs_from_anywhere_without_the_sources),
        TEST(uninstall_removes_the_installed_files),
        TEST(all_users_can_read_what_root_installs_under_a_strict_umask),
        TEST(nothing_is_installed_if_the_program_does_not_run),
        TEST(the_man_page_is_read_without_a_warning),
        TEST(the_man_page_has_every_command_and_key),
        TEST(bash_completes_commands_settings_values_and_names),
        TEST(every_flag_that_bash_offers_is_accepted),
        TEST(with_and_without_nccl_the_flags_differ),
        TEST(a_copy_without_git_does_not_record_the_commit_of_a_repository_around_it),
        TEST(the_flags_of_the_processor_are_recorded),
        TEST(lint_needs_the_list_of_files_of_git),
        TEST(gpu_check_needs_no_program_in_tmp_and_writes_to_a_folder_with_spaces),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
