/*
 * dataset_fashion_mnist.c — Fashion-MNIST (Xiao et al. 2017) from its four IDX files, with or
 * without gzip.
 *
 * Training uses the first 55 000 of the 60 000 images of the train file; the last 5 000 are the
 * validation split. The 10 000 images of the t10k file are the test split. The model reads
 * (byte/255 − 0.286)/0.353. Files with the same format and counts (MNIST) are accepted too.
 */
#include "base/memory.h"
#include "base/text.h"
#include "worker/data/dataset_store.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <zlib.h>

enum { SIDE = 28, CLASSES = 10, TRAIN = 55000, VALIDATION = 5000, TEST = 10000, PATH_BYTES = 4096 };
enum { TRAIN_IMAGES, TRAIN_LABELS, TEST_IMAGES, TEST_LABELS, FILE_COUNT };
#define REMEDY                                                                                     \
    "install the Debian package with `apt install dataset-fashion-mnist`, or set dataset.path= "   \
    "to "                                                                                          \
    "a folder with good copies"

static const struct {
    const char *name;
    uint32_t magic, count; /* magic: 0x08 = bytes, then the number of dimensions */
} files[FILE_COUNT] = {
    [TRAIN_IMAGES] = {"train-images-idx3-ubyte", 0x803, TRAIN + VALIDATION},
    [TRAIN_LABELS] = {"train-labels-idx1-ubyte", 0x801, TRAIN + VALIDATION},
    [TEST_IMAGES] = {"t10k-images-idx3-ubyte", 0x803, TEST},
    [TEST_LABELS] = {"t10k-labels-idx1-ubyte", 0x801, TEST},
};

struct fashion_mnist_source {
    char path[FILE_COUNT][PATH_BYTES];
};

static status describe(const options *o UNUSED, struct dataset *out)
{
    out->channels = 1;
    out->height = out->width = SIDE;
    out->classes = CLASSES;
    out->count[SPLIT_TRAIN] = TRAIN;
    out->count[SPLIT_VALIDATION] = VALIDATION;
    out->count[SPLIT_TEST] = TEST;
    out->scale[0] = (float)(1 / (255 * 0.353));
    out->shift[0] = (float)(-0.286 / 0.353);
    return OK;
}

/* Finds the four files and adds path, size and modification time of each to `identity`. */
static status locate(const char *folder, struct fashion_mnist_source *source, struct text *identity)
{
    status result = OK;
    text_add(identity, "fashion-mnist %d %d", TRAIN, VALIDATION);
    for (int f = 0; f < FILE_COUNT; f++) {
        struct stat info = {0};
        char *path = source->path[f];
        int length = snprintf(path, PATH_BYTES, "%s/%s.gz", folder, files[f].name);
        if (length < 0 || length >= PATH_BYTES) {
            FAIL(ERROR_DATA,
                 "dataset.path=%s is too long; move the files to a folder with a shorter path",
                 folder);
        }
        if (stat(path, &info) != 0)
            path[length - 3] = '\0'; /* without .gz */
        if (stat(path, &info) != 0) {
            FAIL(ERROR_DATA, "cannot find %s.gz or %s: %s; %s", path, path, strerror(errno),
                 REMEDY);
        }
        dataset_store_name_file(identity, path, (uint64_t)info.st_size, info.st_mtim);
    }
done:
    return result;
}

static uint32_t big_endian(const uint8_t *b)
{
    return (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
}

/* Reads exactly `bytes` bytes. The error distinguishes a damaged file from a truncated one. */
static status read_exactly(gzFile stream, const char *path, void *out, size_t bytes)
{
    status result = OK;
    int code = Z_OK;
    for (size_t done_bytes = 0; done_bytes < bytes;) {
        size_t rest = bytes - done_bytes;
        int n = gzread(stream, (uint8_t *)out + done_bytes,
                       (unsigned)(rest < 1u << 20 ? rest : 1u << 20));
        if (n <= 0) {
            const char *what = gzerror(stream, &code);
            FAIL(ERROR_DATA, "%s: %s; %s", path,
                 n < 0 && code != Z_BUF_ERROR ? what : "truncated: data are missing at its end",
                 REMEDY);
        }
        done_bytes += (size_t)n;
    }
done:
    return result;
}

/* Reads one IDX file of bytes: the first `first_count` items to first_out, the others to rest_out.
 */
static status read_idx(const struct fashion_mnist_source *source, int f, size_t item_bytes,
                       uint8_t *first_out, uint32_t first_count, uint8_t *rest_out)
{
    status result = OK;
    const char *path = source->path[f];
    uint8_t head[16], extra;
    size_t dimensions = files[f].magic & 0xff;
    gzFile stream = gzopen(path, "rbe");

    if (stream == NULL)
        FAIL(ERROR_DATA, "%s: %s; %s", path, strerror(errno), REMEDY);
    (void)gzbuffer(stream, 1u << 18);
    TRY(read_exactly(stream, path, head, 4 + 4 * dimensions));
    if (big_endian(head) != files[f].magic) {
        FAIL(ERROR_DATA,
             "%s: begins with 0x%08x instead of 0x%08x, so it is not an IDX file of %s; %s", path,
             big_endian(head), files[f].magic, dimensions == 3 ? "images" : "labels", REMEDY);
    }
    if (big_endian(head + 4) != files[f].count) {
        FAIL(ERROR_DATA, "%s: contains %u items instead of %u; " DATASET_IS_FIXED "; %s", path,
             big_endian(head + 4), files[f].count, REMEDY);
    }
    if (dimensions == 3 && (big_endian(head + 8) != SIDE || big_endian(head + 12) != SIDE)) {
        FAIL(ERROR_DATA,
             "%s: images have %u by %u pixels instead of %d by %d; " DATASET_IS_FIXED "; %s", path,
             big_endian(head + 8), big_endian(head + 12), SIDE, SIDE, REMEDY);
    }
    TRY(read_exactly(stream, path, first_out, first_count * item_bytes));
    TRY(read_exactly(stream, path, rest_out, (files[f].count - first_count) * item_bytes));
    int n =
        gzread(stream, &extra, 1); /* reads the gzip trailer, so that zlib verifies the checksum */
    if (n != 0) {
        FAIL(ERROR_DATA, "%s: %s; %s", path,
             n > 0 ? "data follow the last item" : gzerror(stream, &(int){0}), REMEDY);
    }
    n = gzclose_r(stream); /* Z_BUF_ERROR: the file ends within the trailer */
    stream = NULL;
    if (n != Z_OK)
        FAIL(ERROR_DATA, "%s: truncated: data are missing at its end; %s", path, REMEDY);
done:
    if (stream != NULL)
        (void)gzclose_r(stream);
    return result;
}

static status read_labels(const struct fashion_mnist_source *source, int f, uint32_t *first_out,
                          uint32_t first_count, uint32_t *rest_out)
{
    status result = OK;
    uint32_t count = files[f].count;
    uint8_t *bytes = NULL;

    TRY(memory_new(&bytes, count, 1, "labels"));
    TRY(read_idx(source, f, 1, bytes, first_count, bytes + first_count));
    for (uint32_t i = 0; i < count; i++) {
        if (bytes[i] >= CLASSES) {
            FAIL(ERROR_DATA, "%s: label %u is %u, but the largest class is %d; %s", source->path[f],
                 i, bytes[i], CLASSES - 1, REMEDY);
        }
        if (i < first_count)
            first_out[i] = bytes[i];
        else
            rest_out[i - first_count] = bytes[i];
    }
done:
    memory_free(bytes);
    return result;
}

static status fill(void *context, const struct dataset *d, uint8_t *const images[SPLIT_COUNT],
                   uint32_t *const labels[SPLIT_COUNT])
{
    status result = OK;
    const struct fashion_mnist_source *source = context;
    size_t size = dataset_image_size(d);

    /* Labels first: they are small, and most defects show there. */
    TRY(read_labels(source, TRAIN_LABELS, labels[SPLIT_TRAIN], TRAIN, labels[SPLIT_VALIDATION]));
    TRY(read_labels(source, TEST_LABELS, labels[SPLIT_TEST], TEST, NULL));
    TRY(read_idx(source, TRAIN_IMAGES, size, images[SPLIT_TRAIN], TRAIN, images[SPLIT_VALIDATION]));
    TRY(read_idx(source, TEST_IMAGES, size, images[SPLIT_TEST], TEST, NULL));
done:
    return result;
}

static status load(const options *o, struct dataset *d)
{
    status result = OK;
    struct fashion_mnist_source *source = NULL;
    struct text identity = {0};
    const char *folder = options_text(o, "dataset.path");
    char installed[PATH_BYTES];

    snprintf(installed, sizeof installed, "%s/fashion-mnist", dataset_installed());
    TRY(memory_new(&source, 1, sizeof *source, "file names"));
    TRY(locate(folder[0] != '\0' ? folder : installed, source, &identity));
    TRY(dataset_store_load(d, "fashion-mnist", identity.at, fill, source));
done:
    text_free(&identity);
    memory_free(source);
    return result;
}

const struct dataset_kind dataset_fashion_mnist = {
    .about = {"fashion-mnist", "28x28 grey images of clothing in 10 classes, 55000/5000/10000",
              "Xiao, Rasul, Vollgraf 2017, arXiv:1708.07747", NULL},
    .describe = describe,
    .load = load,
    .remedy = REMEDY,
};
