/* test_dataset_made_up.c — the generated datasets fractal, gaussian and least-squares. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/sha256.h"
#include "tests/worker/dataset_rig.h"
#include "worker/data/dataset_fractal.h"
#include "worker/data/dataset_shared.h"

static const char *const small_fractal[] = {"dataset.samples=80", "dataset.classes=4",
                                            "dataset.size=16", NULL};

/* Accuracy on the test split of a classifier that takes the class with the nearest mean training
 * image. */
static double nearest_mean_accuracy(const struct dataset *d)
{
    size_t size = dataset_image_size(d);
    double *means = calloc(d->classes * size, sizeof *means);
    uint32_t *counts = calloc(d->classes, sizeof *counts), correct = 0;
    assert_true(means != NULL && counts != NULL);
    for (uint32_t n = 0; n < d->count[SPLIT_TRAIN]; n++) {
        uint32_t c = d->labels[SPLIT_TRAIN][n];
        counts[c]++;
        for (size_t i = 0; i < size; i++)
            means[c * size + i] += d->images[SPLIT_TRAIN][n * size + i];
    }
    for (uint32_t n = 0; n < d->count[SPLIT_TEST]; n++) {
        double least = INFINITY;
        uint32_t best = 0;
        for (uint32_t c = 0; c < d->classes; c++) {
            double sum = 0;
            for (size_t i = 0; i < size; i++) {
                double e = d->images[SPLIT_TEST][n * size + i] - means[c * size + i] / counts[c];
                sum += e * e;
            }
            if (sum < least) {
                least = sum;
                best = c;
            }
        }
        correct += best == d->labels[SPLIT_TEST][n];
    }
    free(means);
    free(counts);
    return (double)correct / d->count[SPLIT_TEST];
}

static void generated_classes_can_be_learned(void **state)
{
    (void)state;
    struct dataset d;
    assert_int_equal(
        dataset_rig_load("fractal", SET("dataset.samples=1500", "dataset.size=20"), true, &d), OK);
    assert_true(nearest_mean_accuracy(&d) > 0.85);
    dataset_close(&d);
    assert_int_equal(
        dataset_rig_load("gaussian", SET("dataset.samples=1000", "dataset.size=8"), true, &d), OK);
    assert_true(nearest_mean_accuracy(&d) > 0.95);
    dataset_close(&d);
    /* Without separation the classes are equal: the expected accuracy is a tenth. */
    assert_int_equal(
        dataset_rig_load("gaussian", SET("dataset.separation=0", "dataset.size=8"), true, &d), OK);
    assert_true(nearest_mean_accuracy(&d) < 0.2);
    dataset_close(&d);
}

static void gaussian_pixels_have_unit_noise_and_the_requested_separation(void **state)
{
    (void)state;
    struct dataset d;
    assert_int_equal(dataset_rig_load("gaussian",
                                      SET("dataset.samples=4000", "dataset.size=16",
                                          "dataset.classes=2", "dataset.separation=12"),
                                      true, &d),
                     OK);
    double sum[2][256] = {{0}}, squares = 0, apart = 0;
    uint32_t count[2] = {0};
    float x[256];
    for (uint32_t n = 0; n < 4000; n++) {
        uint32_t label;
        dataset_gather(&d, SPLIT_TRAIN, NULL, n, 1, NULL, x, &label);
        count[label]++;
        for (int i = 0; i < 256; i++) {
            sum[label][i] += (double)x[i];
            squares += (double)x[i] * (double)x[i];
        }
    }
    assert_int_equal(count[0], 2000);
    for (int i = 0; i < 256; i++) {
        double a = sum[0][i] / 2000, b = sum[1][i] / 2000;
        apart += (a - b) * (a - b);
        squares -= 2000 * (a * a + b * b);
    }
    assert_true(fabs(squares / (4000 * 256) - 1) < 0.01);
    assert_true(fabs(sqrt(apart) / 12 - 1) < 0.2);
    dataset_close(&d);
}

static void fractal_images_do_not_depend_on_the_number_of_threads(void **state)
{
    (void)state;
    enum { N = 60, SIZE = 2 * 16 * 16 };
    const struct dataset shape = {
        .channels = 2, .height = 16, .width = 16, .classes = 5, .count = {N, N, N}};
    static uint8_t images[3][SPLIT_COUNT][N * SIZE];
    static uint32_t labels[3][SPLIT_COUNT][N];
    static const unsigned threads[] = {1, 3, 200};
    for (int k = 0; k < 3; k++) {
        uint8_t *const to[] = {images[k][0], images[k][1], images[k][2]};
        uint32_t *const labels_to[] = {labels[k][0], labels[k][1], labels[k][2]};
        assert_int_equal(fractal_generate(&shape, 7, 1, threads[k], to, labels_to), OK);
    }
    assert_memory_equal(images[0], images[1], sizeof images[0]);
    assert_memory_equal(images[0], images[2], sizeof images[0]);
    assert_memory_equal(labels[0], labels[1], sizeof labels[0]);
    assert_memory_not_equal(images[0][SPLIT_TRAIN], images[0][SPLIT_TEST], N * SIZE);
}

/* The images of a seed must not change unnoticed: increase ALGORITHM if they do. */
static void a_seed_always_gives_the_same_fractals(void **state)
{
    (void)state;
    struct dataset d, other;
    struct sha256 hash;
    char hex[65];
    assert_int_equal(dataset_rig_load("fractal", small_fractal, true, &d), OK);
    sha256_begin(&hash);
    sha256_add(&hash, d.images[SPLIT_TRAIN], d.count[SPLIT_TRAIN] * dataset_image_size(&d));
    sha256_add(&hash, d.labels[SPLIT_TRAIN], d.count[SPLIT_TRAIN] * sizeof(uint32_t));
    sha256_end(&hash, hex);
    assert_string_equal(hex, "b0110472d90a203e2fbac4114e33e7e7ff21629159e326c4dca5650f30a9fafb");
    assert_int_equal(dataset_rig_load("fractal",
                                      SET("dataset.samples=80", "dataset.classes=4",
                                          "dataset.size=16", "dataset.seed=2"),
                                      true, &other),
                     OK);
    assert_memory_not_equal(d.images[0], other.images[0], 80 * 256);
    dataset_close(&d);
    dataset_close(&other);
}

static void every_dataset_of_generated_images_matches_its_description(void **state)
{
    (void)state;
    for (size_t i = 0; i < dataset_registry.count; i++) {
        const char *name = dataset_registry.entries[i]->name;
        const struct dataset_kind *kind = (const struct dataset_kind *)dataset_registry.entries[i];
        if (kind->remedy != NULL || kind->tokens || strcmp(name, "least-squares") == 0 ||
            strcmp(name, "external") == 0)
            continue;
        const char *const *set =
            SET("dataset.samples=90", "dataset.classes=7", "dataset.size=12", "dataset.channels=3");
        struct dataset shape, d;
        assert_int_equal(dataset_rig_load(name, set, false, &shape), OK);
        assert_int_equal(dataset_rig_load(name, set, true, &d), OK);
        assert_null(shape.images[SPLIT_TRAIN]);
        assert_int_equal(dataset_image_size(&d), 3 * 12 * 12);
        assert_memory_equal(shape.count, d.count, sizeof d.count);
        assert_int_equal(d.count[SPLIT_TRAIN], 90);
        for (int s = 0; s < SPLIT_COUNT; s++) {
            uint32_t seen[7] = {0};
            for (uint32_t n = 0; n < d.count[s]; n++) {
                assert_true(d.labels[s][n] < 7);
                seen[d.labels[s][n]]++;
            }
            for (int c = 0; c < 7; c++)
                assert_in_range(seen[c], d.count[s] / 7, d.count[s] / 7 + 1);
        }
        dataset_close(&shape);
        dataset_close(&d);
    }
}

/* One unknown and no noise: every equation has the same solution. */
static void least_squares_has_a_solution(void **state)
{
    (void)state;
    struct dataset d;
    assert_int_equal(
        dataset_rig_load("least-squares",
                         SET("dataset.samples=50", "dataset.size=1", "dataset.noise=0"), true, &d),
        OK);
    assert_true(d.numeric && d.classes == 1);
    assert_ptr_equal(d.images[SPLIT_TEST], d.images[SPLIT_TRAIN]);
    double x = 0;
    for (uint32_t n = 0; n < d.count[SPLIT_TRAIN]; n++) {
        double a = d.scale[0] * d.images[SPLIT_TRAIN][n];
        double b = (double)d.target_scale * d.labels[SPLIT_TRAIN][n] + d.target_shift;
        x = a > 0.9 ? b / a : x;
    }
    assert_true(fabs(x) > 0.01);
    for (uint32_t n = 0; n < d.count[SPLIT_TRAIN]; n++) {
        double a = d.scale[0] * d.images[SPLIT_TRAIN][n];
        double b = (double)d.target_scale * d.labels[SPLIT_TRAIN][n] + d.target_shift;
        assert_true(fabs(a * x - b) < 1e-6);
    }
    dataset_close(&d);
}

static const char *const shared_settings[] = {"dataset.samples=1500", "dataset.size=28", NULL};

static void hash_of(const char *const *set, char out[72])
{
    struct dataset d;
    struct sha256 hash = {0};
    assert_int_equal(dataset_rig_load("gaussian", set, true, &d), OK);
    sha256_begin(&hash);
    for (int s = 0; s < SPLIT_COUNT; s++) {
        sha256_add(&hash, d.images[s], dataset_split_bytes(&d, s));
        sha256_add(&hash, d.labels[s], d.count[s] * sizeof *d.labels[s]);
    }
    sha256_end(&hash, out);
    dataset_close(&d);
}

/* Makes the file that the starter of a run makes. */
static int share_data(void)
{
    char path[64];
    const int file = memfd_create("dataset", MFD_CLOEXEC);
    assert_true(file >= 0);
    snprintf(path, sizeof path, "/proc/%ld/fd/%d", (long)getpid(), file);
    setenv(DATASET_SHARED_FILE, path, 1);
    return file;
}

static void end_sharing(int file)
{
    unsetenv(DATASET_SHARED_FILE);
    close(file);
}

static void processes_build_data_together_although_some_are_killed(void **state)
{
    (void)state;
    enum { PROCESSES = 6 };
    char alone[72], together[72];
    struct stat about;
    pid_t children[PROCESSES];
    hash_of(shared_settings, alone);
    const int file = share_data();
    for (int i = 0; i < PROCESSES; i++) {
        children[i] = fork();
        if (children[i] == 0) {
            hash_of(shared_settings, together);
            _exit(strcmp(together, alone) != 0);
        }
    }
    usleep(3000);
    for (int i = 0; i < PROCESSES; i++) {
        int how = 0;
        if (i % 2 == 0)
            kill(children[i], SIGKILL);
        assert_int_equal(waitpid(children[i], &how, 0), children[i]);
        assert_true(WIFSIGNALED(how) ? i % 2 == 0 : WEXITSTATUS(how) == 0);
    }
    hash_of(shared_settings, together);
    assert_string_equal(together, alone);
    assert_int_equal(fstat(file, &about), 0);
    assert_true(about.st_blocks * 512 >= 1500 * 28 * 28); /* it holds the data */
    end_sharing(file);
}

static void a_shared_file_with_other_data_is_not_used(void **state)
{
    (void)state;
    static const char *const other[] = {"dataset.samples=1500", "dataset.size=28", "dataset.seed=2",
                                        NULL};
    char first[72], alone[72], together[72];
    hash_of(other, alone);
    const int file = share_data();
    hash_of(shared_settings, first);
    hash_of(other, together);
    assert_string_equal(together, alone);
    assert_string_not_equal(together, first);
    end_sharing(file);
}

/* A shard is every W-th sample: with classes in turn it would have only some classes. */
static void every_shard_of_a_generated_dataset_has_all_classes(void **state)
{
    (void)state;
    struct dataset d;
    assert_int_equal(
        dataset_rig_load("gaussian", SET("dataset.samples=2000", "dataset.size=2"), true, &d), OK);
    for (uint32_t w = 0; w < 10; w++) {
        unsigned seen = 0;
        for (uint32_t n = w; n < 2000; n += 10)
            seen |= 1u << d.labels[SPLIT_TRAIN][n];
        assert_int_equal(seen, 1023);
    }
    dataset_close(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(generated_classes_can_be_learned),
        cmocka_unit_test(gaussian_pixels_have_unit_noise_and_the_requested_separation),
        cmocka_unit_test(fractal_images_do_not_depend_on_the_number_of_threads),
        cmocka_unit_test(a_seed_always_gives_the_same_fractals),
        cmocka_unit_test(every_dataset_of_generated_images_matches_its_description),
        cmocka_unit_test(least_squares_has_a_solution),
        cmocka_unit_test(processes_build_data_together_although_some_are_killed),
        cmocka_unit_test(a_shared_file_with_other_data_is_not_used),
        cmocka_unit_test(every_shard_of_a_generated_dataset_has_all_classes),
    };
    return cmocka_run_group_tests(tests, dataset_rig_open, dataset_rig_close);
}
