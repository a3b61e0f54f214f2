/*
 * `gradlag export`: CSV files of a results file with known values. python/tests/ tests the exports
 * that Python writes.
 */
#include "base/text.h"
#include "results/export_csv.h"
#include "tests/results/query_rig.h"
#include "tests/rigs/process_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[128];

static struct csv_export request_for(const char *const *runs, size_t count)
{
    snprintf(folder, sizeof folder, "%s/a/b", rig_folder);
    return (struct csv_export){
        .results = rig_path, .runs = runs, .run_count = count, .folder = folder};
}

/* Returns the number of exported runs. */
static size_t export_runs(const char *const *runs, size_t count)
{
    struct csv_export request = request_for(runs, count);
    size_t exported;
    if (export_csv(&request, &exported) != OK)
        fail_msg("%s", error_message());
    return exported;
}

/* The content of a file; the caller frees it. */
static char *read_file(const char *name)
{
    char path[512];
    struct stat about;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        fail_msg("%s is not there", path);
    assert_int_equal(stat(path, &about), 0);
    char *text = calloc(1, (size_t)about.st_size + 1);
    assert_int_equal(fread(text, 1, (size_t)about.st_size, file), about.st_size);
    fclose(file);
    return text;
}

static size_t lines_of(const char *text)
{
    size_t count = 0;
    for (; *text != '\0'; text++)
        count += *text == '\n';
    return count;
}

static void csv_has_one_file_per_table_with_all_rows(void **state)
{
    (void)state;
    static const char *const tables[] = {"run",   "evaluation", "push",          "step",
                                         "event", "checkpoint", "run_staleness", "run_worker_time"};
    assert_int_equal(export_runs(NULL, 0), 6);
    for (size_t i = 0; i < COUNT_OF(tables); i++) {
        char name[64], sql[96];
        snprintf(name, sizeof name, "%s.csv", tables[i]);
        snprintf(sql, sizeof sql, "SELECT count(*) + 1 FROM %s", tables[i]);
        char *text = read_file(name);
        assert_int_equal(lines_of(text), atoi(rig_ask(sql)));
        free(text);
    }
    char *pushes = read_file("push.csv");
    assert_contains(pushes, "staleness");
    assert_contains(pushes, ",applied");
    free(pushes);
}

static void csv_of_selected_runs_has_only_their_rows(void **state)
{
    (void)state;
    const char *const runs[] = {"2", "last"};
    assert_int_equal(export_runs(runs, 2), 2);
    char *text = read_file("run.csv");
    assert_int_equal(lines_of(text), 3);
    free(text);
    text = read_file("evaluation.csv");
    assert_int_equal(lines_of(text), 1 + 2 * 5);
    free(text);
}

static void an_unknown_run_is_a_usage_error(void **state)
{
    (void)state;
    const char *const runs[] = {"77"};
    struct csv_export request = request_for(runs, 1);
    size_t exported;
    assert_int_equal(export_csv(&request, &exported), ERROR_USAGE);
    rig_assert_error_names("'77'");
}

static void an_error_names_a_target_that_cannot_be_written(void **state)
{
    (void)state;
    struct csv_export request = request_for(NULL, 0);
    size_t exported;
    request.folder = rig_path;
    assert_int_equal(export_csv(&request, &exported), ERROR_OTHER);
    rig_assert_error_names(rig_path);
}

static void an_error_names_the_table_that_cannot_be_written(void **state)
{
    (void)state;
    char path[512];
    export_runs(NULL, 0);
    struct csv_export request = request_for(NULL, 0);
    size_t exported;
    snprintf(path, sizeof path, "%s/run.csv", folder);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(symlink("/dev/full", path), 0);
    assert_int_equal(export_csv(&request, &exported), ERROR_OTHER);
    rig_assert_error_names("run.csv");
}

static void a_second_export_replaces_the_first(void **state)
{
    (void)state;
    const char *const runs[] = {"1"};
    char command[256];
    export_runs(NULL, 0);
    export_runs(runs, 1);
    char *pushes = read_file("push.csv");
    assert_int_equal(lines_of(pushes),
                     atoi(rig_ask("SELECT count(*) + 1 FROM push WHERE run_id = 1")));
    snprintf(command, sizeof command, "test $(find %s -name '*tmp*' | wc -l) = 0", folder);
    assert_int_equal(system(command), 0);
    free(pushes);
}

static void parquet_needs_python(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", RIG_SMALL), OK);
    assert_int_equal(process_shell(r, "GRADLAG_PYTHON=$PWD/none gradlag export parquet"),
                     ERROR_OTHER);
    assert_non_null(strstr(process_errors(r), "GRADLAG_PYTHON"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        SAMPLE_TEST(csv_has_one_file_per_table_with_all_rows),
        SAMPLE_TEST(csv_of_selected_runs_has_only_their_rows),
        SAMPLE_TEST(an_unknown_run_is_a_usage_error),
        SAMPLE_TEST(an_error_names_a_target_that_cannot_be_written),
        SAMPLE_TEST(an_error_names_the_table_that_cannot_be_written),
        SAMPLE_TEST(a_second_export_replaces_the_first),
        cmocka_unit_test_setup_teardown(parquet_needs_python, process_set_up, process_tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
