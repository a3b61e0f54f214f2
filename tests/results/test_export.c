/*
 * Exports of a results file with known values, checked by independent readers in this file.
 * test_export_readers.c uses the tools themselves.
 */
#include "base/text.h"
#include "tests/results/query_rig.h"

#include "results/export/export.h"
#include "results/export/protobuf.h"
#include "results/export/tfrecord.h"

#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static char folder[128];

static void export_as(const char *format, const char *const *runs, size_t count,
                      struct export_outcome *out)
{
    struct export_request request = {
        .format = format, .results = rig_path, .runs = runs, .run_count = count, .to = folder};
    snprintf(folder, sizeof folder, "%s/out", rig_folder);
    if (export_write(&request, out) != OK)
        fail_msg("%s", error_message());
}

/* The content of a file; the caller frees it. */
static char *read_file(const char *name, size_t *length)
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
    if (length != NULL)
        *length = (size_t)about.st_size;
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
    struct export_outcome outcome;
    static const char *const tables[] = {"run",  "evaluation", "push",
                                         "step", "event",      "checkpoint"};
    export_as("csv", NULL, 0, &outcome);
    assert_int_equal(outcome.runs, 6);
    assert_true(outcome.files >= COUNT_OF(tables));
    for (size_t i = 0; i < COUNT_OF(tables); i++) {
        char name[64], sql[96];
        snprintf(name, sizeof name, "%s.csv", tables[i]);
        snprintf(sql, sizeof sql, "SELECT count(*) + 1 FROM %s", tables[i]);
        char *text = read_file(name, NULL);
        assert_int_equal(lines_of(text), atoi(rig_ask(sql)));
        free(text);
    }
    char *pushes = read_file("push.csv", NULL);
    assert_contains(pushes, "staleness");
    assert_contains(pushes, ",applied");
    free(pushes);
}

static void csv_of_selected_runs_has_only_their_rows(void **state)
{
    (void)state;
    struct export_outcome outcome;
    const char *const runs[] = {"2", "last"};
    export_as("csv", runs, 2, &outcome);
    assert_int_equal(outcome.runs, 2);
    char *text = read_file("run.csv", NULL);
    assert_int_equal(lines_of(text), 3);
    free(text);
    text = read_file("evaluation.csv", NULL);
    assert_int_equal(lines_of(text), 1 + 2 * 5);
    free(text);
}

static void an_unknown_format_or_run_is_a_usage_error(void **state)
{
    (void)state;
    struct export_outcome outcome;
    const char *const runs[] = {"77"};
    struct export_request request = {.format = "tensorbord", .results = rig_path};
    assert_int_equal(export_write(&request, &outcome), ERROR_USAGE);
    rig_assert_error_names("'tensorboard'");
    request =
        (struct export_request){.format = "csv", .results = rig_path, .runs = runs, .run_count = 1};
    assert_int_equal(export_write(&request, &outcome), ERROR_USAGE);
    rig_assert_error_names("'77'");
}

static void an_error_names_a_target_that_cannot_be_written(void **state)
{
    (void)state;
    struct export_outcome outcome;
    struct export_request request = {.format = "csv", .results = rig_path, .to = rig_path};
    assert_int_equal(export_write(&request, &outcome), ERROR_OTHER);
    rig_assert_error_names(rig_path);
}

/* ---- TensorBoard --------------------------------------------------------------------------------
 */

static void checksums_are_those_of_rfc_3720(void **state)
{
    (void)state;
    uint8_t zeros[32] = {0}, ones[32];
    memset(ones, 0xff, sizeof ones);
    assert_int_equal(tfrecord_crc32c("123456789", 9), 0xe3069283);
    assert_int_equal(tfrecord_crc32c(zeros, sizeof zeros), 0x8a9136aa);
    assert_int_equal(tfrecord_crc32c(ones, sizeof ones), 0x62a8ab43);
}

/* The examples of protobuf.dev/programming-guides/encoding, and further fields. */
static void fields_are_encoded_as_in_the_protobuf_documentation(void **state)
{
    (void)state;
    static const unsigned char wanted[] = {
        0x08, 0x96, 0x01,                                    /* 1: 150 */
        0x12, 0x07, 't',  'e',  's',  't',  'i', 'n',        /* 2 */
        'g',  0x1a, 0x03, 0x08, 0x96, 0x01,                  /* 3: {1: 150} */
        0x25, 0x00, 0x00, 0x00, 0x3f,                        /* 4: 0.5f */
        0x29, 0,    0,    0,    0,    0,    0,   0xf8, 0x3f, /* 5: 1.5 */
        0x32, 0x08, 0,    0,    0,    0,    0,   0,    0xf8, 0x3f /* 6: [1.5] */};
    struct text message = {0}, inner = {0};
    const double numbers[] = {1.5};
    protobuf_add_integer(&inner, 1, 150);
    protobuf_add_integer(&message, 1, 150);
    protobuf_add_text(&message, 2, "testing");
    protobuf_add_bytes(&message, 3, &inner);
    protobuf_add_float(&message, 4, 0.5f);
    protobuf_add_double(&message, 5, 1.5);
    protobuf_add_doubles(&message, 6, numbers, 1);
    assert_int_equal(message.length, sizeof wanted);
    assert_memory_equal(message.at, wanted, sizeof wanted);
    text_free(&message);
    text_free(&inner);
}

static uint32_t little_endian(const char *at)
{
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

/* Checks the checksums of all records, and counts the records that contain these bytes. */
static unsigned records_holding(const char *file, size_t length, const char *bytes,
                                size_t size_of_them)
{
    unsigned count = 0;
    for (size_t at = 0; at < length;) {
        assert_true(at + 12 <= length);
        size_t size = little_endian(file + at);
        const char *data = file + at + 12;
        assert_int_equal(little_endian(file + at + 8),
                         tfrecord_masked(tfrecord_crc32c(file + at, 8)));
        assert_true(at + 16 + size <= length);
        assert_int_equal(little_endian(data + size), tfrecord_masked(tfrecord_crc32c(data, size)));
        count += memmem(data, size, bytes, size_of_them) != NULL;
        at += 16 + size;
    }
    return count;
}

static unsigned records_with(const char *file, size_t length, const char *text)
{
    return records_holding(file, length, text, strlen(text));
}

static void tensorboard_has_scalars_histograms_and_hyperparameters(void **state)
{
    (void)state;
    struct export_outcome outcome;
    size_t length;
    glob_t found;
    char pattern[256];
    export_as("tensorboard", NULL, 0, &outcome);
    assert_int_equal(outcome.runs, 6);
    assert_int_equal(outcome.files, 7);
    snprintf(pattern, sizeof pattern, "%s/*/*-run1/events.out.tfevents.*", folder);
    assert_int_equal(glob(pattern, 0, NULL, &found), 0);
    assert_int_equal(found.gl_pathc, 1);
    char *file = read_file(found.gl_pathv[0] + strlen(folder) + 1, &length);
    globfree(&found);
    assert_int_equal(records_with(file, length, "brain.Event:2"), 1);
    assert_int_equal(records_with(file, length, "accuracy/test"), 5);
    assert_int_equal(records_with(file, length, "loss/batch"), 100);
    assert_int_equal(records_with(file, length, "staleness/mean"), 100);
    assert_int_equal(records_with(file, length, "_hparams_/session_start_info"), 1);
    assert_int_equal(records_with(file, length, "damping"), 1);
    free(file);
    file = read_file("events.out.tfevents.0.gradlag", &length);
    assert_int_equal(records_with(file, length, "_hparams_/experiment"), 1);
    free(file);
}

/* Half of the gradients have staleness 1, half 5; the bucket between them is empty. */
static void a_histogram_has_empty_buckets(void **state)
{
    (void)state;
    struct export_outcome outcome;
    const char *const runs[] = {"1"};
    const double limits[] = {1.5, 4.5, 5.5}, buckets[] = {1, 0, 1};
    const double numbers[] = {0.5, 5.5, 2, 6, 26}; /* least, most, count, sum, of squares */
    struct text wanted = {0};
    size_t length;
    glob_t found;
    char pattern[256];
    rig_change("UPDATE push SET staleness = CASE WHEN number % 2 THEN 5 ELSE 1 END "
               "WHERE run_id = 1");
    for (unsigned i = 0; i < COUNT_OF(numbers); i++)
        protobuf_add_double(&wanted, i + 1, numbers[i]);
    protobuf_add_doubles(&wanted, 6, limits, COUNT_OF(limits));
    protobuf_add_doubles(&wanted, 7, buckets, COUNT_OF(buckets));
    export_as("tensorboard", runs, 1, &outcome);
    snprintf(pattern, sizeof pattern, "%s/*/*-run1/events.out.tfevents.*", folder);
    assert_int_equal(glob(pattern, 0, NULL, &found), 0);
    char *file = read_file(found.gl_pathv[0] + strlen(folder) + 1, &length);
    assert_int_equal(records_holding(file, length, wanted.at, wanted.length), 50);
    free(file);
    globfree(&found);
    text_free(&wanted);
}

/* Its gradients are rows of push, as in asynchronous runs. */
static void a_pipeline_without_flushes_has_curves(void **state)
{
    (void)state;
    struct export_outcome outcome;
    glob_t found;
    char pattern[256];
    rig_change("UPDATE run SET mode = 'pipeline' WHERE id = 1");
    export_as("mlflow", NULL, 0, &outcome);
    snprintf(pattern, sizeof pattern, "%s/*/*/metrics/staleness", folder);
    assert_int_equal(glob(pattern, 0, NULL, &found), 0);
    assert_int_equal(found.gl_pathc, 6);
    globfree(&found);
}

/* ---- others -------------------------------------------------------------------------------------
 */

static void expect_shell(const char *script)
{
    char command[1024];
    snprintf(command, sizeof command, "cd %s && { %s; }", rig_folder, script);
    if (system(command) != 0)
        fail_msg("%s", command);
}

static void mlflow_has_one_folder_per_run(void **state)
{
    (void)state;
    struct export_outcome outcome;
    export_as("mlflow", NULL, 0, &outcome);
    assert_int_equal(outcome.runs, 6);
    expect_shell("test $(ls out | wc -l) = 1 && test $(ls -d out/*/*/artifacts | wc -l) = 6");
    expect_shell("test $(cat out/*/*/metrics/test_accuracy | wc -l) = 30");
    /* Update 100 is four seconds after update 0; the first column is in milliseconds. */
    expect_shell("cat out/*/*/metrics/test_accuracy | awk '$3 == 0 { began = $1 } "
                 "$3 == 100 && $1 - began != 4000 { exit 1 }'");
    /* An update every 0.1 s; the first one is at 0 s. */
    expect_shell("cat out/*/*/metrics/updates_per_second | awk '$3 > 2 && $2 > 9.99 && $2 < 10.01 "
                 "{ n++ } END { exit n != 5 * 98 }'");
    expect_shell("grep -qx 'name: \"stale-gradients\"' out/*/meta.yaml");
    expect_shell("test $(grep -lx 'status: 4' out/*/*/meta.yaml | wc -l) = 1"); /* diverged */
}

static void optuna_has_one_line_per_run(void **state)
{
    (void)state;
    struct export_outcome outcome;
    export_as("optuna", NULL, 0, &outcome);
    assert_int_equal(outcome.runs, 6);
    expect_shell("test $(wc -l <out) = 8");
    expect_shell("head -n 1 out | grep -q '\"study_name\":\"stale-gradients\"'");
    expect_shell("head -n 1 out | grep -q '\"directions\":\\[2\\]'"); /* 2: maximise */
    expect_shell("test $(grep -c '\"state\":3' out) = 1 && test $(grep -c '\"state\":1' out) = 5");
    expect_shell("grep -q '\"params\":{.*\"damping.power\":0.5' out");
    /* The range of a number covers the values of the runs. */
    rig_change(
        "UPDATE run SET settings = json_set(coalesce(settings, config), '$.lr', 0.25) WHERE id "
        "= 1");
    rig_change(
        "UPDATE run SET settings = json_set(coalesce(settings, config), '$.lr', 0.5) WHERE id "
        "<> 1");
    export_as("optuna", NULL, 0, &outcome);
    expect_shell("grep -o 'lr.\\{0,120\\}' out | grep -q 'low.*0.25.*high.*0.5'");
}

static void names_in_an_untrusted_file_cannot_leave_the_target_folder(void **state)
{
    (void)state;
    struct export_description format;
    struct export_outcome outcome;
    rig_change("UPDATE run SET experiment = '../../evil', arm = '/../../evil' || char(10) || 'x',"
               " uuid = '../../' || id, started_at = '\"' || started_at");
    for (size_t i = 0; export_at(i, &format); i++) {
        export_as(format.name, NULL, 0, &outcome);
        expect_shell("test $(ls -A | grep -v results.db | wc -l) = 1 && test ! -e ../evil && "
                     "rm -r out");
    }
}

static void a_second_export_replaces_the_first(void **state)
{
    (void)state;
    struct export_outcome first, second;
    char command[256];
    export_as("tensorboard", NULL, 0, &first);
    export_as("tensorboard", NULL, 0, &second);
    assert_int_equal(first.files, second.files);
    snprintf(command, sizeof command, "test $(find %s -type f | wc -l) = %zu", folder, first.files);
    assert_int_equal(system(command), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        SAMPLE_TEST(csv_has_one_file_per_table_with_all_rows),
        SAMPLE_TEST(csv_of_selected_runs_has_only_their_rows),
        SAMPLE_TEST(an_unknown_format_or_run_is_a_usage_error),
        SAMPLE_TEST(an_error_names_a_target_that_cannot_be_written),
        cmocka_unit_test(checksums_are_those_of_rfc_3720),
        cmocka_unit_test(fields_are_encoded_as_in_the_protobuf_documentation),
        SAMPLE_TEST(tensorboard_has_scalars_histograms_and_hyperparameters),
        SAMPLE_TEST(a_histogram_has_empty_buckets),
        SAMPLE_TEST(a_pipeline_without_flushes_has_curves),
        SAMPLE_TEST(mlflow_has_one_folder_per_run),
        SAMPLE_TEST(optuna_has_one_line_per_run),
        SAMPLE_TEST(names_in_an_untrusted_file_cannot_leave_the_target_folder),
        SAMPLE_TEST(a_second_export_replaces_the_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
