/* test_dataset.c — datasets from files, all defects of such files, and the cache. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zlib.h>

#include "tests/worker/dataset_rig.h"

/* ---- generated IDX files ---- */

enum { TRAIN_IMAGES, TRAIN_LABELS, TEST_IMAGES, TEST_LABELS };
static const char *const names[] = {"train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz",
                                    "t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"};

static uint8_t pixel_of(uint32_t image, uint32_t pixel, bool test)
{
    return (uint8_t)(image * 7 + pixel + (test ? 1 : 0));
}

/* Writes a valid file, except for the given differences. */
static void write_idx(int f, uint32_t magic, uint32_t count, uint32_t side, uint8_t label_offset,
                      int32_t items_more)
{
    char path[160];
    bool images = f == TRAIN_IMAGES || f == TEST_IMAGES, test = f >= TEST_IMAGES;
    uint32_t head[4] = {magic, count, side, side};
    uint8_t item[784];
    snprintf(path, sizeof path, "%s/%s", dataset_source, names[f]);
    gzFile out = gzopen(path, "wb1");
    assert_non_null(out);
    for (int i = 0; i < (images ? 4 : 2); i++) {
        const uint8_t bytes[4] = {(uint8_t)(head[i] >> 24), (uint8_t)(head[i] >> 16),
                                  (uint8_t)(head[i] >> 8), (uint8_t)head[i]};
        assert_int_equal(gzwrite(out, bytes, 4), 4);
    }
    for (uint32_t i = 0; (int64_t)i < (int64_t)count + items_more; i++) {
        unsigned bytes = images ? 784 : 1;
        for (uint32_t p = 0; images && p < 784; p++)
            item[p] = pixel_of(i, p, test);
        if (!images)
            item[0] = (uint8_t)(i % 10 + (i == count - 1 ? label_offset : 0));
        assert_int_equal(gzwrite(out, item, bytes), (int)bytes);
    }
    assert_int_equal(gzclose(out), Z_OK);
}

static void write_good(int f)
{
    bool images = f == TRAIN_IMAGES || f == TEST_IMAGES;
    write_idx(f, images ? 0x803 : 0x801, f < TEST_IMAGES ? 60000 : 10000, 28, 0, 0);
}

static void cut(int f, long bytes_less, long flip_at)
{
    char path[160];
    snprintf(path, sizeof path, "%s/%s", dataset_source, names[f]);
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(truncate(path, info.st_size - bytes_less), 0);
    if (flip_at > 0) {
        FILE *file = fopen(path, "r+b");
        assert_non_null(file);
        fseek(file, info.st_size - flip_at, SEEK_SET);
        int byte = fgetc(file);
        fseek(file, info.st_size - flip_at, SEEK_SET);
        fputc(byte ^ 0x55, file);
        fclose(file);
    }
}

static status load_source(struct dataset *d)
{
    char setting[128];
    snprintf(setting, sizeof setting, "dataset.path=%s", dataset_source);
    return dataset_rig_load("fashion-mnist", SET(setting), true, d);
}

/* `number`: of the defect, chosen by the test. */
static void assert_source_is_refused(int f, const char *number)
{
    struct dataset d;
    if (load_source(&d) != ERROR_DATA)
        fail_msg("%s: accepted", names[f]);
    char bare[64];
    snprintf(bare, sizeof bare, "%.*s", (int)strlen(names[f]) - 3, names[f]);
    const char *message = error_message();
    if (!strstr(message, bare) || !strstr(message, number) || !strstr(message, "dataset.path"))
        fail_msg("the message lacks %s, '%s' or the key: %s", bare, number, message);
    assert_null(d.owner);
}

static void idx_files_become_three_splits(void **state)
{
    (void)state;
    struct dataset d;
    for (int f = 0; f < 4; f++)
        write_good(f);
    assert_int_equal(load_source(&d), OK);
    assert_int_equal(d.count[SPLIT_TRAIN], 55000);
    assert_int_equal(d.count[SPLIT_VALIDATION], 5000);
    assert_int_equal(d.count[SPLIT_TEST], 10000);
    static const struct {
        enum dataset_split split;
        uint32_t index, item;
        bool test;
    } places[] = {{SPLIT_TRAIN, 0, 0, false},
                  {SPLIT_TRAIN, 54999, 54999, false},
                  {SPLIT_VALIDATION, 0, 55000, false},
                  {SPLIT_VALIDATION, 4999, 59999, false},
                  {SPLIT_TEST, 0, 0, true},
                  {SPLIT_TEST, 9999, 9999, true}};
    for (size_t i = 0; i < COUNT_OF(places); i++) {
        float image[784];
        uint32_t label;
        dataset_gather(&d, places[i].split, &places[i].index, 0, 1, NULL, image, &label);
        assert_int_equal(label, places[i].item % 10);
        for (uint32_t p = 0; p < 784; p++) {
            double x = pixel_of(places[i].item, p, places[i].test);
            assert_true(fabs((double)image[p] - (x / 255 - 0.286) / 0.353) < 1e-6);
        }
    }
    dataset_close(&d);
}

static void every_malformed_file_is_a_data_error_that_names_it(void **state)
{
    (void)state;
    char path[160];
    for (int f = 0; f < 4; f++)
        write_good(f);
    struct dataset sound;
    assert_int_equal(load_source(&sound), OK);
    dataset_close(&sound);
    for (int f = 3; f >= 0; f--) {
        bool images = f == TRAIN_IMAGES || f == TEST_IMAGES;
        uint32_t magic = images ? 0x803 : 0x801, count = f < TEST_IMAGES ? 60000 : 10000;
        snprintf(path, sizeof path, "%s/%s", dataset_source, names[f]);
        unlink(path);
        assert_source_is_refused(f, "");
        write_idx(f, 0x802, 100, 28, 0, 0);
        assert_source_is_refused(f, "802");
        write_idx(f, magic, 100, 28, 0, 0);
        assert_source_is_refused(f, "100");
        if (f == TRAIN_IMAGES) {
            continue; /* large files of this kind are slow to write; the other files cover these
                         cases */
        }
        write_idx(f, magic, count, 28, 0, -1);
        assert_source_is_refused(f, "");
        write_idx(f, magic, count, 28, 0, 1);
        assert_source_is_refused(f, "");
        write_good(f);
        cut(f, 20, 0);
        assert_source_is_refused(f, "");
        if (strcmp(zlibVersion(), "1.3.2") != 0) { /* this version accepts it */
            write_good(f);
            cut(f, 4, 0); /* half of the trailer */
            assert_source_is_refused(f, "");
        }
        write_good(f);
        cut(f, 0, 6); /* the checksum in the trailer */
        assert_source_is_refused(f, "");
        truncate(path, 0) == 0 ? (void)0 : fail();
        assert_source_is_refused(f, "");
        if (images) {
            write_idx(f, magic, count, 27, 0, -9999);
            assert_source_is_refused(f, "27");
        } else {
            write_idx(f, magic, count, 28, 1, 0);
            assert_source_is_refused(f, "");
        }
        write_good(f);
    }
}

static void a_missing_folder_is_a_data_error(void **state)
{
    (void)state;
    struct dataset d;
    assert_int_equal(dataset_rig_load("fashion-mnist", SET("dataset.path=/nowhere"), true, &d),
                     ERROR_DATA);
    assert_non_null(strstr(error_message(), "/nowhere/train-images"));
    assert_int_equal(dataset_rig_load("fashion-mnist", SET("dataset.path=/nowhere"), false, &d),
                     OK);
    assert_int_equal(d.count[SPLIT_TRAIN], 55000);
    dataset_close(&d);
}

static void the_installed_fashion_mnist_is_read(void **state)
{
    (void)state;
    if (access("/usr/share/datasets/fashion-mnist", R_OK) != 0)
        skip();
    static const uint32_t first[] = {9, 0, 0, 3, 0}, first_test[] = {9, 2, 1, 1, 6};
    static float images[1000 * 784];
    struct dataset d;
    double sum = 0, squares = 0;
    assert_int_equal(dataset_rig_load("fashion-mnist", SET("dataset.path="), true, &d), OK);
    assert_memory_equal(d.labels[SPLIT_TRAIN], first, sizeof first);
    assert_memory_equal(d.labels[SPLIT_TEST], first_test, sizeof first_test);
    dataset_gather(&d, SPLIT_TRAIN, NULL, 0, 1000, NULL, images, NULL);
    for (size_t i = 0; i < COUNT_OF(images); i++) {
        sum += (double)images[i];
        squares += (double)images[i] * (double)images[i];
    }
    assert_true(fabs(sum / COUNT_OF(images)) < 0.02);
    assert_true(fabs(squares / COUNT_OF(images) - 1) < 0.03);
    dataset_close(&d);
}

/* ---- the cache ---- */

static const char *const small_fractal[] = {"dataset.samples=80", "dataset.classes=4",
                                            "dataset.size=16", NULL};

static bool find_cache_file(char path[512])
{
    char name[128];
    bool found = false;
    snprintf(name, sizeof name, "%s/gradlag", dataset_cache);
    DIR *listing = opendir(name);
    for (const struct dirent *e; listing != NULL && (e = readdir(listing)) != NULL;) {
        size_t length = strlen(e->d_name);
        if (length > 8 && strcmp(e->d_name + length - 8, ".dataset") == 0) {
            snprintf(path, 512, "%s/%s", name, e->d_name);
            found = true;
        }
        assert_null(strstr(e->d_name, ".tmp"));
    }
    if (listing != NULL)
        closedir(listing);
    return found;
}

static void assert_same_data(const struct dataset *a, const struct dataset *b)
{
    for (int s = 0; s < SPLIT_COUNT; s++) {
        assert_int_equal(a->count[s], b->count[s]);
        assert_memory_equal(a->images[s], b->images[s], a->count[s] * dataset_image_size(a));
        assert_memory_equal(a->labels[s], b->labels[s], a->count[s] * sizeof(uint32_t));
    }
}

static void a_dataset_is_cached_and_mapped(void **state)
{
    (void)state;
    char path[512];
    struct dataset made, again;
    struct stat before, after;
    dataset_rig_forget_cache();
    assert_int_equal(dataset_rig_load("fractal", small_fractal, true, &made), OK);
    assert_true(made.mapped_bytes > 0);
    assert_true(find_cache_file(path) && stat(path, &before) == 0);
    assert_int_equal(dataset_rig_load("fractal", small_fractal, true, &again), OK);
    assert_true(stat(path, &after) == 0 && before.st_ino == after.st_ino); /* not built again */
    assert_same_data(&made, &again);
    dataset_close(&made);
    dataset_close(&again);
    assert_null(again.owner);
}

/* Loads the dataset and counts warnings about a damaged cache. */
static unsigned load_small_fractal(struct dataset *out)
{
    unsigned warnings = 0;
    char line[800];
    FILE *output = tmpfile();
    int kept = dup(STDERR_FILENO);
    assert_true(output != NULL && kept >= 0 && dup2(fileno(output), STDERR_FILENO) >= 0);
    status code = dataset_rig_load("fractal", small_fractal, true, out);
    assert_true(dup2(kept, STDERR_FILENO) >= 0);
    close(kept);
    assert_int_equal(code, OK);
    rewind(output);
    while (fgets(line, sizeof line, output) != NULL)
        warnings += strstr(line, dataset_cache) != NULL;
    fclose(output);
    return warnings;
}

static void a_damaged_cache_is_rebuilt(void **state)
{
    (void)state;
    char path[512];
    struct dataset good, again;
    dataset_rig_forget_cache();
    assert_int_equal(dataset_rig_load("fractal", small_fractal, true, &good), OK);
    assert_true(find_cache_file(path));
    for (int damage = 0; damage < 5; damage++) {
        struct stat info;
        assert_int_equal(stat(path, &info), 0);
        /* A new inode, because `good` maps the old one. */
        char copy[600];
        uint8_t *bytes = malloc((size_t)info.st_size);
        FILE *from = fopen(path, "rb");
        assert_true(from != NULL && bytes != NULL);
        assert_int_equal(fread(bytes, 1, (size_t)info.st_size, from), info.st_size);
        fclose(from);
        static const size_t places[] = {0, 8, 20, 4096 + 300, 0};
        size_t length = (size_t)info.st_size - (damage == 4 ? 64 : 0);
        bytes[places[damage]] ^= 1;
        snprintf(copy, sizeof copy, "%s.copy", path);
        FILE *to = fopen(copy, "wb");
        assert_non_null(to);
        assert_int_equal(fwrite(bytes, 1, length, to), length);
        fclose(to);
        assert_int_equal(rename(copy, path), 0);
        assert_int_equal(stat(path, &info), 0);
        assert_int_equal(load_small_fractal(&again), 1);
        assert_same_data(&good, &again);
        assert_true(again.mapped_bytes > 0);
        dataset_close(&again);
        struct stat fresh;
        assert_true(stat(path, &fresh) == 0 && fresh.st_ino != info.st_ino);
        free(bytes);
    }
    assert_int_equal(load_small_fractal(&again), 0);
    dataset_close(&again);
    dataset_close(&good);
}

static void without_a_cache_the_dataset_is_in_private_memory(void **state)
{
    (void)state;
    struct dataset with, without;
    assert_int_equal(dataset_rig_load("fractal", small_fractal, true, &with), OK);
    setenv("XDG_CACHE_HOME", "/proc/nowhere", 1);
    assert_int_equal(dataset_rig_load("fractal", small_fractal, true, &without), OK);
    setenv("XDG_CACHE_HOME", dataset_cache, 1);
    assert_int_equal(without.mapped_bytes, 0);
    assert_same_data(&with, &without);
    dataset_close(&with);
    dataset_close(&without);
}

static void processes_that_start_together_share_one_file(void **state)
{
    (void)state;
    enum { PROCESSES = 4 };
    pid_t children[PROCESSES];
    char path[512];
    dataset_rig_forget_cache();
    for (int i = 0; i < PROCESSES; i++) {
        children[i] = fork();
        assert_true(children[i] >= 0);
        if (children[i] == 0) {
            struct dataset d;
            status code = dataset_rig_load("fractal", small_fractal, true, &d);
            _exit(code == OK && d.mapped_bytes > 0 ? 0 : 1);
        }
    }
    for (int i = 0; i < PROCESSES; i++) {
        int code;
        assert_int_equal(waitpid(children[i], &code, 0), children[i]);
        assert_true(WIFEXITED(code) && WEXITSTATUS(code) == 0);
    }
    assert_true(find_cache_file(path));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(idx_files_become_three_splits),
        cmocka_unit_test(every_malformed_file_is_a_data_error_that_names_it),
        cmocka_unit_test(a_missing_folder_is_a_data_error),
        cmocka_unit_test(the_installed_fashion_mnist_is_read),
        cmocka_unit_test(a_dataset_is_cached_and_mapped),
        cmocka_unit_test(a_damaged_cache_is_rebuilt),
        cmocka_unit_test(without_a_cache_the_dataset_is_in_private_memory),
        cmocka_unit_test(processes_that_start_together_share_one_file),
    };
    return cmocka_run_group_tests(tests, dataset_rig_open, dataset_rig_close);
}
