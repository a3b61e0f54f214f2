/* test_dataset_text.c — dataset=text: splits, windows, files that do not fit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/sha256.h"
#include "tests/worker/dataset_rig.h"
#include "worker/data/dataset_store.h"

enum { LENGTH = 1010, CONTEXT = 8 };

static const char *path_of(const char *name)
{
    static char path[160];
    snprintf(path, sizeof path, "%s/%s", dataset_source, name);
    return path;
}

static void write_bytes(const char *name, const void *bytes, size_t count)
{
    FILE *file = fopen(path_of(name), "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    assert_int_equal(fclose(file), 0);
}

/* Byte i of the text is i mod 101, so that every place of a window can be recognised. */
static void write_text(const char *name, uint32_t from, uint32_t count)
{
    uint8_t bytes[LENGTH];
    for (uint32_t i = 0; i < count; i++)
        bytes[i] = (uint8_t)((from + i) % 101);
    write_bytes(name, bytes, count);
}

static void forget_files(void)
{
    static const char *const names[] = {"a", "b", "c", ".hidden", "folder/a"};
    for (size_t i = 0; i < COUNT_OF(names); i++)
        unlink(path_of(names[i]));
    rmdir(path_of("folder"));
}

static status load(const char *path, const char *set, struct dataset *d)
{
    char setting[192];
    snprintf(setting, sizeof setting, "dataset.path=%s", path);
    return dataset_rig_load("text", SET(setting, "dataset.context=8", set), true, d);
}

static void assert_refused(const char *path, const char *set, const char *key)
{
    struct dataset d;
    if (load(path, set, &d) != ERROR_DATA)
        fail_msg("%s with %s: accepted", path, set);
    if (strstr(error_message(), key) == NULL)
        fail_msg("the message lacks '%s': %s", key, error_message());
    assert_null(d.owner);
}

static void a_file_becomes_three_splits(void **state)
{
    (void)state;
    struct dataset d;
    write_text("a", 0, LENGTH);
    assert_int_equal(load(path_of("a"), "dataset.vocabulary=128", &d), OK);
    assert_true(d.tokens);
    assert_int_equal(d.classes, 128);
    assert_int_equal(d.targets, CONTEXT);
    assert_int_equal(dataset_image_size(&d), CONTEXT);
    assert_int_equal(d.length[SPLIT_TRAIN], 909);
    assert_int_equal(d.length[SPLIT_TEST], 959 - 909);
    assert_int_equal(d.length[SPLIT_VALIDATION], LENGTH - 959);
    for (int s = 0; s < SPLIT_COUNT; s++) {
        assert_int_equal(d.count[s], (d.length[s] - 1) / CONTEXT);
        assert_null(d.labels[s]);
    }
    assert_int_equal(d.images[SPLIT_TRAIN][0], 0);
    assert_int_equal(d.images[SPLIT_TEST][0], 909 % 101);
    assert_int_equal(d.images[SPLIT_VALIDATION][LENGTH - 959 - 1], (LENGTH - 1) % 101);
    dataset_close(&d);
    assert_int_equal(load(path_of("a"), "dataset.test=no", &d), OK);
    assert_int_equal(d.length[SPLIT_TRAIN], 959);
    assert_int_equal(d.count[SPLIT_TEST], 0);
    assert_int_equal(d.images[SPLIT_VALIDATION][0], 959 % 101);
    dataset_close(&d);
    forget_files();
}

static void a_folder_is_read_in_the_order_of_names(void **state)
{
    (void)state;
    struct dataset d;
    write_text("b", 400, LENGTH - 400);
    write_text("a", 0, 400);
    write_text(".hidden", 7, 50);
    assert_int_equal(mkdir(path_of("folder"), 0700), 0);
    write_text("folder/a", 9, 50);
    assert_int_equal(load(dataset_source, "dataset.test=yes", &d), OK);
    assert_int_equal(d.length[SPLIT_TRAIN], 909);
    for (uint32_t i = 0; i < d.length[SPLIT_TRAIN]; i++)
        assert_int_equal(d.images[SPLIT_TRAIN][i], i % 101);
    dataset_close(&d);
    forget_files();
}

static void windows_and_their_labels_are_consecutive_bytes(void **state)
{
    (void)state;
    enum { N = 3 };
    struct dataset d;
    float tokens[N][CONTEXT];
    uint32_t labels[N][CONTEXT], alone[N][CONTEXT];
    write_text("a", 0, LENGTH);
    assert_int_equal(load(path_of("a"), "dataset.test=no", &d), OK);
    assert_int_equal(dataset_training_indices(&d), 959 - CONTEXT);
    const uint32_t starts[N] = {0, 333, dataset_training_indices(&d) - 1};
    dataset_gather(&d, SPLIT_TRAIN, starts, 0, N, NULL, tokens[0], labels[0]);
    dataset_labels(&d, SPLIT_TRAIN, starts, 0, N, alone[0]);
    assert_memory_equal(labels, alone, sizeof labels);
    for (uint32_t n = 0; n < N; n++) {
        for (uint32_t i = 0; i < CONTEXT; i++) {
            assert_int_equal((uint32_t)tokens[n][i], (starts[n] + i) % 101);
            assert_int_equal(labels[n][i], (starts[n] + i + 1) % 101);
        }
    }
    /* Evaluated windows follow each other without overlap. */
    dataset_gather(&d, SPLIT_VALIDATION, NULL, d.count[SPLIT_VALIDATION] - N, N, NULL, tokens[0],
                   labels[0]);
    for (uint32_t n = 0; n < N; n++) {
        const uint32_t start = 959 + (d.count[SPLIT_VALIDATION] - N + n) * CONTEXT;
        assert_int_equal((uint32_t)tokens[n][0], start % 101);
        assert_int_equal(labels[n][CONTEXT - 1], (start + CONTEXT) % 101);
    }
    dataset_close(&d);
    forget_files();
}

static void unfit_texts_are_refused(void **state)
{
    (void)state;
    uint8_t bytes[LENGTH] = {0};
    bytes[700] = 128;
    write_bytes("a", bytes, sizeof bytes);
    assert_refused(path_of("a"), "dataset.vocabulary=128", "offset 700 ");
    assert_refused(path_of("missing"), "dataset.test=no", "dataset.path");
    assert_refused("/dev/null", "dataset.test=no", "dataset.path");
    write_text("b", 0, 160); /* the validation split has 8 bytes: no label for the last token */
    assert_refused(path_of("b"), "dataset.test=no", "dataset.context");
    write_text("b", 0, 161); /* the validation split has 9 bytes, the test split 8 */
    assert_refused(path_of("b"), "dataset.test=yes", "dataset.test=no");
    assert_int_equal(mkdir(path_of("folder"), 0700), 0);
    assert_refused(path_of("folder"), "dataset.test=no", "dataset.path");
    forget_files();
}

static void the_checksum_is_checked(void **state)
{
    (void)state;
    struct dataset d;
    struct sha256 hash;
    uint8_t bytes[LENGTH];
    char set[96] = "dataset.sha256=";
    for (uint32_t i = 0; i < LENGTH; i++)
        bytes[i] = (uint8_t)(i % 101);
    sha256_begin(&hash);
    sha256_add(&hash, bytes, LENGTH);
    sha256_end(&hash, set + strlen(set));
    write_text("a", 0, LENGTH);
    assert_int_equal(load(path_of("a"), set, &d), OK);
    dataset_close(&d);
    write_text("a", 1, LENGTH);
    assert_refused(path_of("a"), set, "dataset.sha256");
    char folder[192];
    snprintf(folder, sizeof folder, "%s: the text of 1010 bytes", dataset_source);
    assert_refused(dataset_source, set, folder); /* the hash covers all files of the folder */
    forget_files();
}

static void a_changed_file_is_read_again(void **state)
{
    (void)state;
    struct dataset d;
    for (uint32_t from = 0; from < 2; from++) {
        write_text("a", from, LENGTH);
        for (int again = 0; again < 2; again++) {
            assert_int_equal(load(path_of("a"), "dataset.test=no", &d), OK);
            assert_true(d.mapped_bytes > 0);
            assert_int_equal(d.images[SPLIT_TRAIN][0], from);
            dataset_close(&d);
        }
    }
    forget_files();
}

static void without_an_installed_text_the_error_names_the_setup(void **state)
{
    (void)state;
    struct dataset d;
    char *set = getenv("GRADLAG_DATASETS"), kept[256] = "";
    if (set != NULL)
        snprintf(kept, sizeof kept, "%s", set);
    assert_int_equal(setenv("GRADLAG_DATASETS", dataset_source, 1), 0);
    assert_int_equal(dataset_rig_load("text", SET("dataset.test=no"), false, &d), ERROR_DATA);
    assert_non_null(strstr(error_message(), "scripts/setup"));
    assert_int_equal(
        kept[0] != '\0' ? setenv("GRADLAG_DATASETS", kept, 1) : unsetenv("GRADLAG_DATASETS"), 0);
}

static void the_installed_text_is_the_king_james_bible(void **state)
{
    (void)state;
    struct dataset d;
    if (dataset_rig_load("text", SET("dataset.test=no"), false, &d) != OK)
        skip(); /* scripts/setup writes it */
    dataset_close(&d);
    assert_int_equal(
        dataset_rig_load("text", SET("dataset.test=no", "dataset.vocabulary=128"), true, &d), OK);
    assert_int_equal(d.length[SPLIT_TRAIN], 4184191);
    assert_int_equal(d.length[SPLIT_TRAIN] + d.length[SPLIT_VALIDATION], 4404412);
    assert_memory_equal(d.images[SPLIT_TRAIN], "Ge1:1 In the beginning", 22);
    dataset_close(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_becomes_three_splits),
        cmocka_unit_test(a_folder_is_read_in_the_order_of_names),
        cmocka_unit_test(windows_and_their_labels_are_consecutive_bytes),
        cmocka_unit_test(unfit_texts_are_refused),
        cmocka_unit_test(the_checksum_is_checked),
        cmocka_unit_test(a_changed_file_is_read_again),
        cmocka_unit_test(without_an_installed_text_the_error_names_the_setup),
        cmocka_unit_test(the_installed_text_is_the_king_james_bible),
    };
    return cmocka_run_group_tests(tests, dataset_rig_open, dataset_rig_close);
}
