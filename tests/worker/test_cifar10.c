/* test_cifar10.c — CIFAR-10 from binary batches and from JPEG shards, and all defects of such
 * files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/worker/archive_rig.h"
#include "tests/worker/dataset_rig.h"
#include "worker/data/dataset_jpeg.h"
#include "worker/data/dataset_webdataset.h"
#include "base/random.h"

enum { BATCHES = 6, IMAGES = 10000, RECORD = 3073, BATCH_BYTES = IMAGES * RECORD, SIDE = 32 };

static const char *in_source(const char *name)
{
    static char path[4][160];
    static unsigned turn;
    char *out = path[turn++ % COUNT_OF(path)];
    snprintf(out, sizeof path[0], "%s/%s", dataset_source, name);
    return out;
}

/* Loads with dataset.path= the source folder, or `name` in it. */
static status load(const char *name, struct dataset *d)
{
    char setting[200];
    snprintf(setting, sizeof setting, "dataset.path=%s%s%s", dataset_source,
             name[0] != '\0' ? "/" : "", name);
    dataset_rig_forget_cache();
    return dataset_rig_load("cifar10", SET(setting), true, d);
}

/* `part` NULL: asserts nothing. */
static void assert_message_has(const char *part)
{
    if (part != NULL && strstr(error_message(), part) == NULL)
        fail_msg("'%s' is not in the message: %s", part, error_message());
}

/* `file` and `detail`: a member or a number that the test chose. */
static void assert_refused(const char *name, const char *file, const char *detail)
{
    struct dataset d;
    assert_int_equal(load(name, &d), ERROR_DATA);
    assert_message_has("cifar10");
    assert_message_has("dataset.path");
    assert_message_has(file);
    assert_message_has(detail);
    assert_null(d.owner);
}

static void remove_all(void)
{
    static const char *const names[] = {
        "data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin",       "data_batch_4.bin",
        "data_batch_5.bin", "test_batch.bin",   "cifar-10-binary.tar.gz", "cifar.tar.gz",
        "x-train-0.tar.gz", "x-train-1.tar",    "x-test-0.tar.xz",        "one.tar",
    };
    for (size_t i = 0; i < COUNT_OF(names); i++)
        unlink(in_source(names[i]));
}

/* ---- binary batches ---- */

static const char *batch_name(int b)
{
    static char name[32];
    snprintf(name, sizeof name, b < 5 ? "data_batch_%d.bin" : "test_batch.bin", b + 1);
    return name;
}

static uint8_t pixel_of(int batch, uint32_t image, uint32_t place)
{
    return (uint8_t)(image * 7 + place + (uint32_t)batch);
}

static uint8_t label_of(int batch, uint32_t image)
{
    return (uint8_t)((image + (uint32_t)batch) % 10);
}

static void make_batch(int batch, uint8_t *out)
{
    for (uint32_t i = 0; i < IMAGES; i++) {
        *out++ = label_of(batch, i);
        for (uint32_t p = 0; p < RECORD - 1; p++)
            *out++ = pixel_of(batch, i, p);
    }
}

static void write_file(const char *name, const uint8_t *data, size_t bytes)
{
    FILE *file = fopen(in_source(name), "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

/* Writes a valid batch of black aeroplanes as a sparse file. */
static void write_black(const char *name, long bytes)
{
    int file = open(in_source(name), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(file >= 0);
    assert_int_equal(ftruncate(file, bytes), 0);
    close(file);
}

static void assert_holds_the_batches(const struct dataset *d)
{
    static const struct {
        enum dataset_split split;
        uint32_t index;
        int batch;
        uint32_t image;
    } places[] = {
        {SPLIT_TRAIN, 0, 0, 0},         {SPLIT_TRAIN, 9999, 0, 9999},
        {SPLIT_TRAIN, 10000, 1, 0},     {SPLIT_TRAIN, 44999, 4, 4999},
        {SPLIT_VALIDATION, 0, 4, 5000}, {SPLIT_VALIDATION, 4999, 4, 9999},
        {SPLIT_TEST, 0, 5, 0},          {SPLIT_TEST, 9999, 5, 9999},
    };
    static const double mean[] = {0.4914, 0.4822, 0.4465}, deviation[] = {0.2470, 0.2435, 0.2616};
    assert_int_equal(d->count[SPLIT_TRAIN], 45000);
    assert_int_equal(d->count[SPLIT_VALIDATION], 5000);
    assert_int_equal(d->count[SPLIT_TEST], 10000);
    for (size_t i = 0; i < COUNT_OF(places); i++) {
        float image[RECORD - 1];
        uint32_t label;
        dataset_gather(d, places[i].split, &places[i].index, 0, 1, NULL, image, &label);
        assert_int_equal(label, label_of(places[i].batch, places[i].image));
        for (uint32_t p = 0; p < RECORD - 1; p++) {
            double byte = pixel_of(places[i].batch, places[i].image, p);
            double wanted = (byte / 255 - mean[p / 1024]) / deviation[p / 1024];
            assert_true(fabs((double)image[p] - wanted) < 1e-5);
        }
    }
}

static void binary_batches_become_three_splits_from_a_folder_or_an_archive(void **state)
{
    (void)state;
    struct dataset d;
    uint8_t *records = malloc(BATCH_BYTES);
    char member[64];
    assert_non_null(records);
    remove_all();
    archive_rig *a = archive_rig_open(in_source("cifar-10-binary.tar.gz"));
    archive_rig_add(a, "cifar-10-batches-bin/batches.meta.txt", "airplane\n", 9);
    for (int b = BATCHES - 1; b >= 0; b--) { /* the order in the archive does not matter */
        make_batch(b, records);
        write_file(batch_name(b), records, BATCH_BYTES);
        snprintf(member, sizeof member, "cifar-10-batches-bin/%s", batch_name(b));
        archive_rig_add(a, member, records, BATCH_BYTES);
    }
    archive_rig_close(a);
    free(records);
    assert_int_equal(load("", &d), OK);
    assert_holds_the_batches(&d);
    dataset_close(&d);
    assert_int_equal(load("*.bin", &d), OK);
    assert_holds_the_batches(&d);
    dataset_close(&d);
    for (int b = 0; b < BATCHES; b++)
        unlink(in_source(batch_name(b)));
    assert_int_equal(load("", &d), OK);
    assert_holds_the_batches(&d);
    dataset_close(&d);
    assert_int_equal(rename(in_source("cifar-10-binary.tar.gz"), in_source("cifar.tar.gz")), 0);
    assert_int_equal(load("cifar.tar.gz", &d), OK);
    assert_holds_the_batches(&d);
    dataset_close(&d);
    struct stat info;
    assert_int_equal(stat(in_source("cifar.tar.gz"), &info), 0);
    assert_int_equal(truncate(in_source("cifar.tar.gz"), info.st_size / 2), 0);
    assert_refused("cifar.tar.gz", "cifar.tar.gz", "cifar-10-batches-bin/");
    remove_all();
}

static void every_malformed_batch_is_named_with_its_defect(void **state)
{
    (void)state;
    remove_all();
    for (int b = 0; b < BATCHES; b++)
        write_black(batch_name(b), BATCH_BYTES);
    for (int b = BATCHES - 1; b >= 0; b--) {
        write_black(batch_name(b), BATCH_BYTES - 1);
        assert_refused("", batch_name(b), "30729999");
        unlink(in_source(batch_name(b)));
        assert_refused("", batch_name(b), dataset_source);
        write_black(batch_name(b), BATCH_BYTES);
    }
    FILE *file = fopen(in_source(batch_name(2)), "r+b");
    assert_non_null(file);
    fseek(file, 77L * RECORD, SEEK_SET);
    fputc(10, file);
    fclose(file);
    assert_refused("", "data_batch_3.bin", "77");
    remove_all();
    archive_rig *a = archive_rig_open(in_source("one.tar"));
    archive_rig_add(a, "test_batch.bin", "short", 5);
    archive_rig_close(a);
    assert_refused("", "one.tar", "test_batch.bin");
    a = archive_rig_open(in_source("one.tar"));
    archive_rig_add(a, "data_batch_1", "pickled", 7);
    archive_rig_close(a);
    assert_refused("one.tar", "one.tar", "data_batch_1.bin");
    remove_all();
}

static void missing_files_are_data_errors(void **state)
{
    (void)state;
    struct dataset d;
    remove_all();
    assert_int_equal(dataset_rig_load("cifar10", SET("dataset.path="), true, &d), ERROR_DATA);
    assert_message_has("dataset.path");
    assert_int_equal(dataset_rig_load("cifar10", SET("dataset.path="), false, &d), OK);
    assert_int_equal(dataset_image_size(&d), 3 * 32 * 32);
    assert_refused("nothing", "/nothing", NULL);
    assert_refused("", dataset_source, NULL);
    assert_refused("*.tar", "/*.tar", NULL);
    archive_rig_close(archive_rig_open(in_source("x-train-1.tar")));
    assert_refused("", dataset_source, NULL);
    remove_all();
}

/* ---- shards ---- */

enum { COLOURS = 100 };
static struct jpeg pictures[COLOURS];

static uint8_t red_of(uint32_t n)
{
    return (uint8_t)(n % COLOURS * 2);
}

static void make_pictures(void)
{
    for (uint32_t n = 0; n < COLOURS; n++)
        jpeg_rig_make(&pictures[n], SIDE, SIDE, n == 7 ? 1 : 3, red_of(n), (uint8_t)(250 - n), 40);
}

/* Samples [first, last): colour n % 100, class n % 10, with extra members that are to be skipped.
 */
static void write_shard(const char *file, uint32_t first, uint32_t last, uint32_t damaged)
{
    char name[64], class[8];
    archive_rig *a = archive_rig_open(in_source(file));
    archive_rig_add(a, "README", "shards", 6);
    for (uint32_t n = first; n < last; n++) {
        const struct jpeg *p = &pictures[n % COLOURS];
        snprintf(name, sizeof name, "set/%06u.%s", n, n % 3 == 0 ? "jpeg" : "jpg");
        archive_rig_add(a, name, p->bytes, n == damaged ? p->count - 40 : p->count);
        if (n % 1000 == 0) {
            snprintf(name, sizeof name, "set/%06u.json", n);
            archive_rig_add(a, name, "{}", 2);
        }
        snprintf(name, sizeof name, "set/%06u.cls", n);
        int length = snprintf(class, sizeof class, n % 2 == 0 ? "%u" : "%u\n", n % 10);
        archive_rig_add(a, name, class, (size_t)length);
    }
    archive_rig_close(a);
}

static void assert_is_sample(const struct dataset *d, enum dataset_split split, uint32_t index,
                             uint32_t n)
{
    const uint8_t *image = d->images[split] + (size_t)index * 3072;
    int wanted[3] = {red_of(n), 250 - (int)(n % COLOURS), 40};
    assert_int_equal(d->labels[split][index], n % 10);
    if (n % COLOURS == 7)
        wanted[1] = wanted[2] = wanted[0];
    for (int c = 0; c < 3; c++)
        for (int p = 0; p < 1024; p += 31)
            assert_true(abs(image[c * 1024 + p] - wanted[c]) <= 3);
}

static void shards_of_jpeg_images_become_three_splits(void **state)
{
    (void)state;
    struct dataset d;
    remove_all();
    make_pictures();
    write_shard("x-train-0.tar.gz", 0, 20123, UINT32_MAX);
    write_shard("x-train-1.tar", 20123, 50000, UINT32_MAX);
    write_shard("x-test-0.tar.xz", 3, 10003, UINT32_MAX);
    if (load("", &d) != OK)
        fail_msg("%s", error_message());
    for (uint32_t n = 0; n < 45000; n += n < 200 ? 1 : 777)
        assert_is_sample(&d, SPLIT_TRAIN, n, n);
    assert_is_sample(&d, SPLIT_TRAIN, 20122, 20122);
    assert_is_sample(&d, SPLIT_TRAIN, 20123, 20123);
    assert_is_sample(&d, SPLIT_TRAIN, 44999, 44999);
    assert_is_sample(&d, SPLIT_VALIDATION, 0, 45000);
    assert_is_sample(&d, SPLIT_VALIDATION, 4999, 49999);
    assert_is_sample(&d, SPLIT_TEST, 0, 3);
    assert_is_sample(&d, SPLIT_TEST, 9999, 10002);
    dataset_close(&d);
    assert_int_equal(load("x-t*", &d), OK); /* a pattern */
    assert_is_sample(&d, SPLIT_TEST, 9999, 10002);
    dataset_close(&d);
    write_shard("x-train-1.tar", 20123, 50000, 47001);
    assert_refused("", "x-train-1.tar", "set/047001.jpeg");
    write_shard("x-train-1.tar", 20123, 49999, UINT32_MAX);
    assert_refused("", "x-train-0.tar.gz", "49999");
    write_shard("x-test-0.tar.xz", 0, 10001, UINT32_MAX);
    assert_refused("", "x-test-0.tar.xz", "set/010000");
    remove_all();
}

/* Loads one shard that should contain three samples of ten classes. */
static status load_three(const char *file, uint8_t images[3 * 3072], uint32_t labels[3])
{
    const char *path = in_source(file);
    const struct dataset shape = {.channels = 3, .height = SIDE, .width = SIDE, .classes = 10};
    const struct webdataset_part part = {
        "training", &path, 1, {.count = 3, .first = 3, .images = {images}, .labels = {labels}}};
    return webdataset_load(&part, 1, &shape, 2);
}

struct cifar10_member {
    const char *name;
    const void *data;
    size_t bytes;
};

static void write_members(const struct cifar10_member *m)
{
    archive_rig *a = archive_rig_open(in_source("one.tar"));
    for (; m->name != NULL; m++)
        archive_rig_add(a, m->name, m->data, m->bytes);
    archive_rig_close(a);
}

static void every_malformed_sample_is_named_with_its_defect(void **state)
{
    (void)state;
    static uint8_t images[3 * 3072], large[40000];
    uint32_t labels[3];
    struct jpeg good, narrow, cut;
    jpeg_rig_make(&good, SIDE, SIDE, 3, 9, 99, 199);
    jpeg_rig_make(&narrow, SIDE, SIDE - 1, 3, 9, 99, 199);
    cut = good;
    memset(cut.bytes + cut.count - 60, 0, 60);
    const struct cifar10_member sound[] = {{"first.jpg", good.bytes, good.count},
                                           {"first.cls", "1", 1},
                                           {"second.jpg", good.bytes, good.count},
                                           {"second.cls", "2", 1},
                                           {"third.jpg", good.bytes, good.count},
                                           {"third.cls", "2", 1},
                                           {NULL}};
    const struct {
        struct cifar10_member members[8];
        const char *member, *detail;
    } faults[] = {
        {{{"first.jpg", good.bytes, good.count},
          {"second.jpg", good.bytes, good.count},
          {"second.cls", "1", 1}},
         "first",
         ".cls"},
        {{{"first.jpg", good.bytes, good.count}, {"first.cls", "1", 1}, {"second.cls", "1", 1}},
         "second",
         ".jpg"},
        {{{"first.jpg", good.bytes, good.count}, {"first.jpeg", good.bytes, good.count}},
         "first",
         NULL},
        {{{"first.cls", "1", 1}, {"first.cls", "1", 1}}, "first", NULL},
        {{{"first.jpg", large, sizeof large}, {"first.cls", "1", 1}}, "first.jpg", "40000"},
        {{{"first.jpg", "", 0}, {"first.cls", "1", 1}}, "first.jpg", NULL},
        {{{"first.cls", "00000000000000001", 17}}, "first.cls", "17"},
        {{{"first.cls", "10", 2}}, "first.cls", NULL},
        {{{"first.cls", "99999999999999", 14}}, "first.cls", NULL},
        {{{"first.cls", "-1", 2}}, "first.cls", NULL},
        {{{"first.cls", "cat\n", 4}}, "first.cls", NULL},
        {{{"first.cls", "1 2", 3}}, "first.cls", NULL},
        {{{"first.cls", "", 0}}, "first.cls", NULL},
        {{{"first.txt", "1", 1}}, "one.tar", NULL},
        {{{"first.jpg", good.bytes, good.count}, {"first.cls", "1", 1}}, "one.tar", NULL},
        {{{"first.jpg", good.bytes, good.count},
          {"first.cls", "1", 1},
          {"second.jpg", narrow.bytes, narrow.count},
          {"second.cls", "2", 1},
          {"third.cls", "2", 1},
          {"third.jpg", good.bytes, good.count}},
         "second.jpg",
         "31"},
        {{{"first.jpg", good.bytes, good.count},
          {"first.cls", "1", 1},
          {"second.jpg", cut.bytes, cut.count},
          {"second.cls", "2", 1},
          {"third.jpg", "not at all", 10},
          {"third.cls", "2", 1}},
         "second.jpg",
         NULL},
        {{{"first.jpg", good.bytes, good.count},
          {"first.cls", "1", 1},
          {"second.jpg", good.bytes, good.count},
          {"second.cls", "2", 1},
          {"third.jpg", "not at all", 10},
          {"third.cls", "2", 1}},
         "third.jpg",
         NULL},
    };
    remove_all();
    write_members(sound);
    assert_int_equal(load_three("one.tar", images, labels), OK);
    for (size_t i = 0; i < COUNT_OF(faults); i++) {
        write_members(faults[i].members);
        if (load_three("one.tar", images, labels) != ERROR_DATA)
            fail_msg("accepted: fault %zu, in %s", i, faults[i].member);
        assert_message_has("one.tar");
        assert_message_has(faults[i].member);
        assert_message_has(faults[i].detail);
    }
    write_file("one.tar", (const uint8_t *)"no archive", 10);
    assert_int_equal(load_three("one.tar", images, labels), ERROR_DATA);
    assert_message_has("one.tar");
    remove_all();
}

/* Any bytes in an archive lead to samples or to an error. */
static void damaged_archives_are_errors_at_worst(void **state)
{
    (void)state;
    static uint8_t images[3 * 3072], whole[1 << 16], damaged[1 << 16];
    uint32_t labels[3];
    static const char *const files[] = {"one.tar", "x-train-0.tar.gz", "x-test-0.tar.xz"};
    struct random_stream r;
    unsigned refused = 0;
    random_open(&r, RANDOM_TEST, 10, 0, 0);
    remove_all();
    make_pictures();
    for (size_t f = 0; f < COUNT_OF(files); f++) {
        write_shard(files[f], 0, 3, UINT32_MAX);
        FILE *file = fopen(in_source(files[f]), "rb");
        assert_non_null(file);
        size_t bytes = fread(whole, 1, sizeof whole, file);
        fclose(file);
        assert_in_range(bytes, 100, sizeof whole - 1);
        assert_int_equal(load_three(files[f], images, labels), OK);
        assert_int_equal(labels[2], 2);
        for (int round = 0; round < 100; round++) {
            memcpy(damaged, whole, bytes);
            size_t kept = round % 4 == 0 ? random_below(&r, (uint32_t)bytes) : bytes;
            for (int i = 0; i < round % 4 * 2; i++)
                damaged[random_below(&r, (uint32_t)bytes)] = (uint8_t)random_bits(&r);
            write_file(files[f], damaged, kept);
            status code = load_three(files[f], images, labels);
            assert_true(code == OK || code == ERROR_DATA);
            assert_true(code != OK || (labels[0] < 10 && labels[1] < 10 && labels[2] < 10));
            refused += code == ERROR_DATA;
        }
    }
    assert_true(refused > 100);
    remove_all();
}

static void damaged_images_are_errors_at_worst(void **state)
{
    (void)state;
    struct jpeg good, damaged;
    uint8_t planes[3072];
    struct random_stream r;
    unsigned refused = 0;
    random_open(&r, RANDOM_TEST, 11, 0, 0);
    jpeg_rig_make(&good, SIDE, SIDE, 3, 200, 100, 50);
    assert_int_equal(jpeg_decode_planes(good.bytes, good.count, SIDE, SIDE, planes), OK);
    for (size_t less = 1; less <= 6; less++) { /* libjpeg alone would only warn */
        assert_int_equal(jpeg_decode_planes(good.bytes, good.count - less, SIDE, SIDE, planes),
                         ERROR_DATA);
    }
    for (int round = 0; round < 3000; round++) {
        damaged = good;
        for (int i = 0; i <= round % 5; i++)
            damaged.bytes[random_below(&r, (uint32_t)good.count)] = (uint8_t)random_bits(&r);
        status code = jpeg_decode_planes(
            damaged.bytes, round % 7 == 0 ? random_below(&r, (uint32_t)good.count) : good.count,
            SIDE, SIDE, planes);
        assert_true(code == OK || code == ERROR_DATA);
        refused += code == ERROR_DATA;
    }
    assert_true(refused > 500);
}

/* ---- the original files ---- */

static void the_original_cifar10_is_read(void **state)
{
    (void)state;
    static const char folder[] = "../shared/data/cifar10";
    static const uint32_t first[] = {5, 2, 3, 6, 1, 1, 8, 1};
    static float images[2000 * 3072];
    struct dataset d;
    if (access(folder, R_OK) != 0)
        skip();
    char setting[64];
    snprintf(setting, sizeof setting, "dataset.path=%s", folder);
    if (dataset_rig_load("cifar10", SET(setting), true, &d) != OK)
        fail_msg("%s", error_message());
    assert_memory_equal(d.labels[SPLIT_TRAIN], first, sizeof first);
    uint32_t seen[10] = {0};
    for (uint32_t n = 0; n < d.count[SPLIT_TEST]; n++)
        seen[d.labels[SPLIT_TEST][n]]++;
    for (int c = 0; c < 10; c++)
        assert_int_equal(seen[c], 1000);
    dataset_gather(&d, SPLIT_TRAIN, NULL, 0, 2000, NULL, images, NULL);
    for (size_t c = 0; c < 3; c++) {
        double sum = 0, squares = 0;
        for (size_t i = 0; i < 2000 * 1024; i++) {
            double v = (double)images[i / 1024 * 3072 + c * 1024 + i % 1024];
            sum += v;
            squares += v * v;
        }
        assert_true(fabs(sum / (2000 * 1024)) < 0.05);
        assert_true(fabs(squares / (2000 * 1024) - 1) < 0.06);
    }
    dataset_close(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(binary_batches_become_three_splits_from_a_folder_or_an_archive),
        cmocka_unit_test(every_malformed_batch_is_named_with_its_defect),
        cmocka_unit_test(missing_files_are_data_errors),
        cmocka_unit_test(shards_of_jpeg_images_become_three_splits),
        cmocka_unit_test(every_malformed_sample_is_named_with_its_defect),
        cmocka_unit_test(damaged_archives_are_errors_at_worst),
        cmocka_unit_test(damaged_images_are_errors_at_worst),
        cmocka_unit_test(the_original_cifar10_is_read),
    };
    return cmocka_run_group_tests_name("cifar10", tests, dataset_rig_open, dataset_rig_close);
}
