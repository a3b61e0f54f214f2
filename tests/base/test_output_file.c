/* test_output_file.c — a file is written completely or not at all, and never replaces a device, a
 * FIFO or a symbolic link. */
#include "base/clock.h"
#include "base/output_file.h"

#include "tests/rigs/process_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

static int enter(void **state)
{
    int failed = process_set_up(state);
    const struct process_rig *r = *state;
    return failed != 0 ? failed : chdir(r->folder);
}

static int leave(void **state)
{
    return chdir("/") != 0 ? -1 : process_tear_down(state);
}

static status put(const char *path, const char *text)
{
    status result = OK;
    struct output_file file = {0};
    TRY(output_file_open(&file, path));
    fputs(text, file.to);
    TRY(output_file_close(&file, true));
done:
    output_file_abandon(&file);
    return result;
}

static void expect_text(const char *path, const char *text)
{
    char read[64] = {0};
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_true(fread(read, 1, sizeof read - 1, file) < sizeof read);
    fclose(file);
    assert_string_equal(read, text);
}

static mode_t kind_of(const char *path)
{
    struct stat about;
    assert_int_equal(lstat(path, &about), 0);
    return about.st_mode & S_IFMT;
}

static void expect_files(const char *pattern, size_t count)
{
    glob_t found = {0};
    (void)glob(pattern, 0, NULL, &found);
    assert_int_equal(found.gl_pathc, count);
    globfree(&found);
}

/* ---- regular files --------------------------------------------------------------------------- */

static void a_file_is_replaced_at_once(void **state UNUSED)
{
    struct output_file file = {0};
    assert_int_equal(put("a", "old"), OK);
    assert_int_equal(output_file_open(&file, "a"), OK);
    fputs("new", file.to);
    fflush(file.to);
    expect_text("a", "old");
    assert_int_equal(output_file_close(&file, false), OK);
    expect_text("a", "new");
    expect_files("*", 1);
}

static void a_replaced_file_keeps_its_permissions(void **state UNUSED)
{
    struct stat about;
    assert_int_equal(put("private", "old"), OK);
    assert_int_equal(chmod("private", 0600), 0);
    assert_int_equal(put("private", "new"), OK);
    expect_text("private", "new");
    assert_int_equal(stat("private", &about), 0);
    assert_int_equal(about.st_mode & 0777, 0600);
}

static void an_abandoned_file_leaves_nothing(void **state UNUSED)
{
    struct output_file file = {0};
    assert_int_equal(put("a", "old"), OK);
    assert_int_equal(output_file_open(&file, "a"), OK);
    fputs("new", file.to);
    output_file_abandon(&file);
    output_file_abandon(&file);
    expect_text("a", "old");
    expect_files("*", 1);
}

static void on_a_full_disk_the_old_file_stays(void **state UNUSED)
{
    struct output_file file = {0};
    struct rlimit kept, little;
    assert_int_equal(put("a", "old"), OK);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &kept), 0);
    little = (struct rlimit){.rlim_cur = 100, .rlim_max = kept.rlim_max};
    assert_int_equal(output_file_open(&file, "a"), OK);
    for (int i = 0; i < 200; i++)
        fputc('x', file.to);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &little), 0);
    const status closed = output_file_close(&file, true);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &kept), 0);
    assert_int_equal(closed, ERROR_OTHER);
    assert_non_null(strstr(error_message(), strerror(EFBIG)));
    expect_text("a", "old");
    expect_files("*", 1);
}

static void invalid_paths_are_errors(void **state UNUSED)
{
    assert_int_equal(put("-", ""), ERROR_USAGE);
    assert_int_equal(put("", ""), ERROR_USAGE);
    assert_int_equal(put("nowhere/a", ""), ERROR_OTHER);
    assert_int_equal(put(".", ""), ERROR_USAGE);
    assert_int_equal(output_file_check("."), ERROR_USAGE);
    assert_int_equal(output_file_check("nowhere/a"), ERROR_OTHER);
    assert_int_equal(output_file_check("a"), OK);
    expect_files("*", 0);
}

/* ---- links ----------------------------------------------------------------------------------- */

static void the_target_of_a_link_is_replaced_and_the_link_stays(void **state UNUSED)
{
    char target[256], *folder = realpath(".", NULL);
    snprintf(target, sizeof target, "%s/below/far", folder);
    free(folder);
    assert_int_equal(mkdir("below", 0700), 0);
    assert_int_equal(symlink("below/near", "relative"), 0);
    assert_int_equal(symlink(target, "absolute"), 0);
    assert_int_equal(symlink("../relative", "below/chain"), 0);
    assert_int_equal(put("relative", "1"), OK); /* its target does not exist yet */
    expect_text("below/near", "1");
    assert_int_equal(put("absolute", "2"), OK);
    expect_text("below/far", "2");
    assert_int_equal(put("below/chain", "3"), OK);
    expect_text("below/near", "3");
    assert_int_equal(kind_of("relative"), S_IFLNK);
    assert_int_equal(kind_of("absolute"), S_IFLNK);
    assert_int_equal(kind_of("below/chain"), S_IFLNK);
    assert_int_equal(kind_of("below/near"), S_IFREG);
    expect_files("*", 3);
    expect_files("below/*", 3);
}

static void links_in_a_circle_are_an_error(void **state UNUSED)
{
    assert_int_equal(symlink("b", "a"), 0);
    assert_int_equal(symlink("a", "b"), 0);
    assert_int_equal(put("a", ""), ERROR_OTHER);
    assert_int_equal(kind_of("a"), S_IFLNK);
    assert_int_equal(kind_of("b"), S_IFLNK);
}

/* ---- devices and FIFOs ----------------------------------------------------------------------- */

static void a_fifo_is_written_in_place(void **state UNUSED)
{
    char read_bytes[8] = {0};
    assert_int_equal(mkfifo("fifo", 0600), 0);
    assert_int_equal(symlink("fifo", "link"), 0);
    int reader = open("fifo", O_RDONLY | O_NONBLOCK);
    assert_true(reader >= 0);
    assert_int_equal(put("link", "text"), OK);
    assert_int_equal(read(reader, read_bytes, sizeof read_bytes), 4);
    assert_string_equal(read_bytes, "text");
    close(reader);
    assert_int_equal(kind_of("fifo"), S_IFIFO);
    assert_int_equal(kind_of("link"), S_IFLNK);
}

static void a_fifo_without_a_reader_is_an_error_soon(void **state UNUSED)
{
    const double began = clock_seconds();
    assert_int_equal(mkfifo("fifo", 0600), 0);
    assert_int_equal(put("fifo", "text"), ERROR_OTHER);
    assert_true(clock_seconds() - began < 60);
    assert_int_equal(kind_of("fifo"), S_IFIFO);
}

/* Skips the test if this user may not create a device or write to it. */
static void make_device(const char *path, unsigned minor_number)
{
    if (mknod(path, S_IFCHR | 0666, makedev(1, minor_number)) != 0)
        skip();
    int file = open(path, O_WRONLY);
    if (file < 0)
        skip();
    close(file);
}

static void a_device_is_written_in_place(void **state UNUSED)
{
    enum { OF_NULL = 3, OF_FULL = 7 };
    make_device("null", OF_NULL);
    make_device("full", OF_FULL);
    assert_int_equal(put("null", "text"), OK);
    assert_int_equal(put("full", "text"), ERROR_OTHER);
    assert_non_null(strstr(error_message(), strerror(ENOSPC)));
    assert_int_equal(output_file_check("null"), OK);
    assert_int_equal(kind_of("null"), S_IFCHR);
    assert_int_equal(kind_of("full"), S_IFCHR);
    expect_files("*", 2);
}

/* ---- the program ----------------------------------------------------------------------------- */

static void every_output_of_the_program_follows_links(void **state)
{
    struct process_rig *r = *state;
    static const char *const writers[] = {
        "gradlag run %s checkpoint=link",
        "gradlag run %s mode=sync checkpoint=link",
        "gradlag run %s trace=link",
        "gradlag run %s engine=virtual pace=constant checkpoint=link",
        "gradlag report -o link",
        "gradlag replay 1 --export link",
        "gradlag merge results.db -o link"};
    for (size_t i = 0; i < COUNT_OF(writers); i++) {
        char script[512];
        int length = snprintf(script, sizeof script, "rm -rf file link; ln -s file link; ");
        snprintf(script + length, sizeof script - (size_t)length, writers[i],
                 "dataset=gaussian dataset.size=8 dataset.samples=1000 model=softmax samples=600 "
                 "batch=10 evaluate_every=0");
        assert_int_equal(process_shell(r, script), OK);
        assert_int_equal(kind_of("link"), S_IFLNK);
        assert_int_equal(kind_of("file"), S_IFREG);
        expect_files("*tmp*", 0);
    }
}

static void no_output_replaces_a_results_file(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(process_shell(r, "gradlag run dataset=gaussian model=softmax updates=20"), OK);
    assert_int_equal(process_shell(r, "gradlag report -o results.db"), ERROR_USAGE);
    assert_int_equal(process_shell(r, "ln -s results.db link; gradlag replay 1 --export link"),
                     ERROR_USAGE);
    assert_string_equal(process_ask(r, "SELECT count(*) FROM run"), "1");
}

static void standard_output_is_for_report(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL), OK);
    assert_int_equal(RIG_RUN(r, "report", "-o", "-"), OK);
    assert_int_equal(strncmp(process_output(r), "<!DOCTYPE html>", 15), 0);
    assert_string_equal(process_output(r) + strlen(process_output(r)) - 8, "</html>\n");
    assert_int_equal(RIG_RUN(r, "export", "csv", "-o", "-"), ERROR_USAGE);
    assert_int_equal(RIG_RUN(r, "report", "--watch", "-o", "-"), ERROR_USAGE);
    assert_int_equal(RIG_RUN(r, "replay", "1", "--export", "-"), ERROR_USAGE);
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "checkpoint=-"), ERROR_USAGE);
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "trace=-"), ERROR_USAGE);
    expect_files("-*", 0);
}

static void reading_a_fifo_without_a_writer_fails_at_once(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(mkfifo("fifo", 0600), 0);
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "initial=fifo"), ERROR_DATA);
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "resume=fifo"), ERROR_DATA);
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL, "results=fifo"), ERROR_RESULTS);
    assert_int_equal(RIG_RUN(r, "query", "runs", "results=fifo"), ERROR_RESULTS);
    assert_int_equal(kind_of("fifo"), S_IFIFO);
}

int main(void)
{
#define OUTPUT_TEST(test) cmocka_unit_test_setup_teardown(test, enter, leave)
    const struct CMUnitTest tests[] = {
        OUTPUT_TEST(a_file_is_replaced_at_once),
        OUTPUT_TEST(a_replaced_file_keeps_its_permissions),
        OUTPUT_TEST(an_abandoned_file_leaves_nothing),
        OUTPUT_TEST(on_a_full_disk_the_old_file_stays),
        OUTPUT_TEST(invalid_paths_are_errors),
        OUTPUT_TEST(the_target_of_a_link_is_replaced_and_the_link_stays),
        OUTPUT_TEST(links_in_a_circle_are_an_error),
        OUTPUT_TEST(a_fifo_is_written_in_place),
        OUTPUT_TEST(a_fifo_without_a_reader_is_an_error_soon),
        OUTPUT_TEST(a_device_is_written_in_place),
        OUTPUT_TEST(every_output_of_the_program_follows_links),
        OUTPUT_TEST(no_output_replaces_a_results_file),
        OUTPUT_TEST(standard_output_is_for_report),
        OUTPUT_TEST(reading_a_fifo_without_a_writer_fails_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
