/*
 * dataset_cifar10.c — CIFAR-10 (Krizhevsky 2009) from the original binary batches or from shards of
 * JPEG images, decoded once and cached (dataset_store.h).
 *
 * Training uses the first 45 000 of the 50 000 training images, in file order. The last 5 000 are
 * the validation split, as in He et al. 2016, section 4.2. The 10 000 test images are the test
 * split. Classes are in alphabetical order (0 airplane … 9 truck) in both formats. The model reads
 * (byte/255 − mean)/deviation with the usual mean and deviation per channel of the 50 000 original
 * training images. (He et al. subtract the mean of every pixel instead.)
 */
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "base/thread.h"
#include "worker/data/dataset_archive.h"
#include "worker/data/dataset_store.h"
#include "worker/data/dataset_webdataset.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    SIDE = 32,
    CHANNELS = 3,
    CLASSES = 10,
    TRAIN = 45000,
    VALIDATION = 5000,
    TEST = 10000,
    TEST_BATCH = 5, /* binary batches: five training batches, then the test batch */
    BATCHES = 6,
    BATCH_IMAGES = 10000,
    IMAGE_BYTES = CHANNELS * SIDE * SIDE,
    RECORD_BYTES = 1 + IMAGE_BYTES, /* a label, then the red, green and blue plane */
    BATCH_BYTES = BATCH_IMAGES * RECORD_BYTES,
    PATH_BYTES = 4096,
};
#define REMEDY                                                                                     \
    "set dataset.path= to a good copy: cifar-10-binary.tar.gz from "                               \
    "https://www.cs.toronto.edu/~kriz/cifar.html, a folder with data_batch_1.bin … "             \
    "test_batch.bin, or a folder (or a pattern such as 'data/*.tar') of WebDataset shards, tar "   \
    "archives with 'train' or 'test' in their names and members KEY.jpg and KEY.cls"

static const char *const batch_names[BATCHES] = {"data_batch_1.bin", "data_batch_2.bin",
                                                 "data_batch_3.bin", "data_batch_4.bin",
                                                 "data_batch_5.bin", "test_batch.bin"};

/* Files of the dataset. Exactly one of `batch`, `archive` and `shards` is used. */
struct cifar10_source {
    glob_t files;               /* all files that dataset.path selects, sorted by name */
    const char *batch[BATCHES]; /* binary batches */
    const char *archive;        /* archive of the binary batches */
    const char **shards;        /* [files.gl_pathc]: training shards, then test shards */
    size_t train_shards, test_shards;
};

static status describe(const options *o UNUSED, struct dataset *out)
{
    static const double mean[] = {0.4914, 0.4822, 0.4465}, deviation[] = {0.2470, 0.2435, 0.2616};
    out->channels = CHANNELS;
    out->height = out->width = SIDE;
    out->classes = CLASSES;
    out->count[SPLIT_TRAIN] = TRAIN;
    out->count[SPLIT_VALIDATION] = VALIDATION;
    out->count[SPLIT_TEST] = TEST;
    for (int c = 0; c < CHANNELS; c++) {
        out->scale[c] = (float)(1 / (255 * deviation[c]));
        out->shift[c] = (float)(-mean[c] / deviation[c]);
    }
    return OK;
}

/* ---- binary batches ---- */

static const char *file_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

/* Index of the batch that this file or member contains; BATCHES: none. */
static int batch_of(const char *path)
{
    int b = 0;
    while (b < BATCHES && strcmp(file_name(path), batch_names[b]) != 0)
        b++;
    return b;
}

/* Copies one batch to its split. `member`: "" for a file outside an archive. */
static status take_batch(const uint8_t *records, int batch, const struct sample_target targets[2],
                         const char *path, const char *member)
{
    status result = OK;
    const struct sample_target *target = &targets[batch == TEST_BATCH];
    uint32_t first = batch == TEST_BATCH ? 0 : (uint32_t)batch * BATCH_IMAGES;
    for (uint32_t i = 0; i < BATCH_IMAGES; i++) {
        const uint8_t *record = records + (size_t)i * RECORD_BYTES;
        if (record[0] >= CLASSES) {
            FAIL(ERROR_DATA, "%s: %s%slabel %u is %u, but the largest class is %d", path, member,
                 member[0] != '\0' ? ": " : "", i, record[0], CLASSES - 1);
        }
        *sample_target_label(target, first + i) = record[0];
        memcpy(sample_target_image(target, first + i, IMAGE_BYTES), record + 1, IMAGE_BYTES);
    }
done:
    return result;
}

static status read_file(const char *path, uint8_t *out)
{
    status result = OK;
    struct stat info;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0 || fstat(file, &info) != 0)
        FAIL(ERROR_DATA, "%s: %s", path, strerror(errno));
    if (!S_ISREG(info.st_mode) || info.st_size != BATCH_BYTES) {
        FAIL(ERROR_DATA, "%s: has %lld bytes instead of %d (%d images)", path,
             (long long)info.st_size, BATCH_BYTES, BATCH_IMAGES);
    }
    for (size_t so_far = 0; so_far < BATCH_BYTES;) {
        ssize_t n = read(file, out + so_far, BATCH_BYTES - so_far);
        if (n == 0 || (n < 0 && errno != EINTR)) {
            FAIL(ERROR_DATA, "%s: %s", path,
                 n == 0 ? "truncated while being read" : strerror(errno));
        }
        so_far += n > 0 ? (size_t)n : 0;
    }
done:
    if (file >= 0)
        close(file);
    return result;
}

static status read_batches(const struct cifar10_source *source,
                           const struct sample_target targets[2], uint8_t *records)
{
    status result = OK;
    for (int b = 0; b < BATCHES; b++) {
        TRY(read_file(source->batch[b], records));
        TRY(take_batch(records, b, targets, source->batch[b], ""));
    }
done:
    return result;
}

static status read_archive(const char *path, const struct sample_target targets[2],
                           uint8_t *records)
{
    status result = OK;
    tar_reader *r = NULL;
    bool seen[BATCHES + 1] = {false};
    const char *name;
    uint64_t bytes;

    TRY(tar_reader_open(&r, path));
    TRY(tar_reader_next(r, &name, &bytes));
    while (name != NULL) {
        int b = batch_of(name);
        if (b < BATCHES) {
            if (seen[b] || bytes != BATCH_BYTES) {
                FAIL(ERROR_DATA, "%s: member %s %s", path, name,
                     seen[b] ? "exists twice" : "does not have 30730000 bytes (10000 images)");
            }
            TRY(tar_reader_read(r, records, BATCH_BYTES));
            TRY(take_batch(records, b, targets, path, name));
            seen[b] = true;
        }
        TRY(tar_reader_next(r, &name, &bytes));
    }
    for (int b = 0; b < BATCHES; b++)
        if (!seen[b])
            FAIL(ERROR_DATA, "%s: member %s is missing", path, batch_names[b]);
done:
    tar_reader_close(&r);
    return result;
}

/* ---- finding the files ---- */

static bool is_archive(const char *name)
{
    size_t length = strlen(name);
    static const char *const endings[] = {".tar",     ".tar.gz", ".tar.xz", ".tar.bz2",
                                          ".tar.zst", ".tgz",    ".txz"};
    for (size_t i = 0; i < COUNT_OF(endings); i++) {
        size_t ending = strlen(endings[i]);
        if (length > ending && strcmp(name + length - ending, endings[i]) == 0)
            return true;
    }
    return false;
}

/* Fills source->files with a folder's entries, one file, or the matches of a pattern. */
static status list_files(const char *path, struct cifar10_source *source)
{
    status result = OK;
    struct stat info;
    char pattern[2 * PATH_BYTES];
    size_t at = 0;

    if (strlen(path) >= PATH_BYTES - sizeof "/*")
        FAIL(ERROR_DATA, "the path is too long; choose a shorter dataset.path=");
    bool there = stat(path, &info) == 0;
    if (!there && strpbrk(path, "*?[") == NULL)
        FAIL(ERROR_DATA, "%s: %s", path, strerror(errno));
    for (const char *c = path; *c != '\0';
         c++) { /* escape pattern characters in the name of an existing file */
        if (there && strchr("*?[\\", *c) != NULL)
            pattern[at++] = '\\';
        pattern[at++] = *c;
    }
    snprintf(pattern + at, sizeof pattern - at, "%s", there && S_ISDIR(info.st_mode) ? "/*" : "");
    int code = glob(pattern, 0, NULL, &source->files);
    if (code != 0) {
        FAIL(ERROR_DATA, "%s: %s", path,
             code == GLOB_NOMATCH ? "no file found" : "cannot list the files");
    }
done:
    return result;
}

static status require_batches(const char *path, const struct cifar10_source *source)
{
    status result = OK;
    for (int b = 0; b < BATCHES; b++)
        if (source->batch[b] == NULL)
            FAIL(ERROR_DATA, "%s: batch %s is missing", path, batch_names[b]);
done:
    return result;
}

/* Classifies the files. Binary batches take precedence over their archive, and the archive over
 * shards. */
static status locate(const char *path, struct cifar10_source *source)
{
    status result = OK;
    bool has_batches = false;

    TRY(list_files(path, source));
    size_t count = source->files.gl_pathc, archives = 0, other = 0;
    TRY(memory_new(&source->shards, count, sizeof *source->shards, "file names"));
    for (size_t pass = 0; pass < 2; pass++) { /* training shards, then test shards */
        for (size_t i = 0; i < count; i++) {
            const char *file = source->files.gl_pathv[i], *name = file_name(file);
            bool train = strstr(name, "train") != NULL;
            int b = batch_of(file);
            if (pass == 0 && b < BATCHES) {
                source->batch[b] = file;
                has_batches = true;
            } else if (!is_archive(name)) {
                continue;
            } else if (strncmp(name, "cifar-10-binary", 15) == 0) {
                source->archive = file;
            } else if (pass == 0 ? train : !train && strstr(name, "test") != NULL) {
                source->shards[archives++] = file;
                *(pass == 0 ? &source->train_shards : &source->test_shards) += 1;
            } else if (pass == 0) {
                other++;
            }
        }
    }
    if (has_batches) {
        source->archive = NULL;
        TRY(require_batches(path, source));
    } else if (source->archive == NULL && count == 1 && other == 1) {
        source->archive = source->files.gl_pathv[0]; /* one archive with another name */
    } else if (source->archive == NULL && (source->train_shards == 0 || source->test_shards == 0)) {
        FAIL(ERROR_DATA,
             "%s: found %zu archives with 'train' and %zu with 'test' in their names; both are "
             "required",
             path, source->train_shards, source->test_shards);
    }
done:
    return result;
}

/* A text that identifies these files: path, size and modification time. */
static status identify(const struct cifar10_source *source, struct text *identity)
{
    status result = OK;
    text_add(identity, "cifar10 1 %d %d", TRAIN, VALIDATION);
    for (size_t i = 0; i < source->files.gl_pathc; i++) {
        const char *path = source->files.gl_pathv[i];
        struct stat info;
        if (batch_of(path) == BATCHES && !is_archive(file_name(path)))
            continue;
        if (stat(path, &info) != 0)
            FAIL(ERROR_DATA, "%s: %s", path, strerror(errno));
        dataset_store_name_file(identity, path, (uint64_t)info.st_size, info.st_mtim);
    }
done:
    return result;
}

/* ---- the registry entry ---- */

static status fill(void *context, const struct dataset *d, uint8_t *const images[SPLIT_COUNT],
                   uint32_t *const labels[SPLIT_COUNT])
{
    status result = OK;
    const struct cifar10_source *source = context;
    uint8_t *records = NULL;
    double began = clock_seconds();
    const struct sample_target targets[2] = {
        {.count = TRAIN + VALIDATION,
         .first = TRAIN,
         .images = {images[SPLIT_TRAIN], images[SPLIT_VALIDATION]},
         .labels = {labels[SPLIT_TRAIN], labels[SPLIT_VALIDATION]}},
        {.count = TEST,
         .first = TEST,
         .images = {images[SPLIT_TEST]},
         .labels = {labels[SPLIT_TEST]}},
    };
    if (source->batch[0] != NULL || source->archive != NULL) {
        TRY(memory_new(&records, BATCH_BYTES, 1, "a batch of CIFAR-10"));
        TRY(source->archive != NULL ? read_archive(source->archive, targets, records)
                                    : read_batches(source, targets, records));
    } else {
        const struct webdataset_part parts[2] = {
            {"training", source->shards, source->train_shards, targets[0]},
            {"test", source->shards + source->train_shards, source->test_shards, targets[1]},
        };
        TRY(webdataset_load(parts, 2, d, processor_count()));
    }
    log_info("cifar10: %d images read in %.1f s", TRAIN + VALIDATION + TEST,
             clock_seconds() - began);
done:
    memory_free(records);
    return result;
}

static status load(const options *o, struct dataset *d)
{
    status result = OK;
    struct cifar10_source source = {0};
    struct text identity = {0};
    const char *path = options_text(o, "dataset.path");
    char installed[PATH_BYTES];

    snprintf(installed, sizeof installed, "%s/cifar10", dataset_installed());
    TRY(locate(path[0] != '\0' ? path : installed, &source));
    TRY(identify(&source, &identity));
    TRY(dataset_store_load(d, "cifar10", identity.at, fill, &source));
done:
    if (result == ERROR_DATA)
        (void)error_set(result, __FILE__, __LINE__, "%s; %s", error_message(), REMEDY);
    text_free(&identity);
    globfree(&source.files);
    memory_free(source.shards);
    return result;
}

const struct dataset_kind dataset_cifar10 = {
    .about = {"cifar10", "32x32 colour photographs in 10 classes, 45000/5000/10000",
              "Krizhevsky 2009, Learning multiple layers of features from tiny images", NULL},
    .describe = describe,
    .load = load,
    .remedy = REMEDY,
};
