#include "worker/data/dataset_store.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/sha256.h"
#include "base/random.h"
#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HEADER_BYTES = 4096, CACHE_VERSION = 1, PATH_BYTES = 4096 };
#define WAIT_WARNING_S 5.0
#define WAIT_LIMIT_S   900.0 /* as LOADING_LIMIT_S of experiments/run/role.h */

struct header {
    char magic[8];
    uint32_t version, byte_order;
    char identity[72]; /* SHA-256 in hex */
    uint32_t shape[4], count[SPLIT_COUNT];
    uint64_t payload_bytes, checksum;
};

static size_t aligned(size_t bytes)
{
    return (bytes + 63) & ~(size_t)63;
}

/* The labels of a text are its bytes. */
static size_t label_bytes(const struct dataset *d, int s)
{
    return d->tokens ? 0 : d->count[s] * sizeof(uint32_t);
}

static size_t payload_bytes(const struct dataset *d)
{
    size_t bytes = 0;
    for (int s = 0; s < SPLIT_COUNT; s++)
        bytes += aligned(dataset_split_bytes(d, s)) + aligned(label_bytes(d, s));
    return bytes;
}

/* Sets the start of each array within the payload at `base`. */
static void lay_out(const struct dataset *d, uint8_t *base, uint8_t *images[SPLIT_COUNT],
                    uint32_t *labels[SPLIT_COUNT])
{
    for (int s = 0; s < SPLIT_COUNT; s++) {
        images[s] = base;
        base += aligned(dataset_split_bytes(d, s));
        labels[s] = d->tokens ? NULL : (uint32_t *)(void *)base;
        base += aligned(label_bytes(d, s));
    }
}

static void point_into(struct dataset *d, uint8_t *base)
{
    uint8_t *images[SPLIT_COUNT];
    uint32_t *labels[SPLIT_COUNT];
    lay_out(d, base, images, labels);
    for (int s = 0; s < SPLIT_COUNT; s++) {
        d->images[s] = images[s];
        d->labels[s] = labels[s];
    }
}

/* Eight independent FNV-like lanes over 64-bit words: as fast as memory, and sensitive to every
 * word. `bytes` is a multiple of 64. The checksum detects damage, not manipulation. */
static uint64_t checksum(const uint8_t *data, size_t bytes)
{
    uint64_t lane[8] = {1, 2, 3, 4, 5, 6, 7, 8}, sum = 0;
    for (size_t i = 0; i < bytes; i += 64) {
        uint64_t word[8];
        memcpy(word, data + i, sizeof word);
        for (int l = 0; l < 8; l++)
            lane[l] = (lane[l] ^ word[l]) * 0x9E3779B97F4A7C15u;
    }
    for (int l = 0; l < 8; l++)
        sum = (sum ^ lane[l] ^ lane[l] >> 32) * 0x9E3779B97F4A7C15u;
    return sum;
}

static void describe_in_header(struct header *h, const struct dataset *d, const char *identity)
{
    struct sha256 hash = {0};
    memset(h, 0, sizeof *h);
    memcpy(h->magic, "gradlagD", sizeof h->magic);
    h->version = CACHE_VERSION;
    h->byte_order = 0x01020304;
    sha256_begin(&hash);
    sha256_add(&hash, identity, strlen(identity));
    sha256_end(&hash, h->identity);
    memcpy(h->shape, (uint32_t[]){d->channels, d->height, d->width, d->classes}, sizeof h->shape);
    memcpy(h->count, d->count, sizeof h->count);
    h->payload_bytes = payload_bytes(d);
}

/* Names the cache file and creates its folder. False: no folder is available. */
static bool cache_path(const char *name, const struct header *h, char path[PATH_BYTES])
{
    const char *base = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    char folder[PATH_BYTES / 2];
    int length;

    if (base != NULL && base[0] == '/')
        length = snprintf(folder, sizeof folder, "%s", base);
    else if (home != NULL && home[0] == '/')
        length = snprintf(folder, sizeof folder, "%s/.cache", home);
    else
        return false;
    if (length < 0 || (size_t)length + sizeof "/gradlag" > sizeof folder)
        return false;
    (void)mkdir(folder, 0700);
    memcpy(folder + length, "/gradlag", sizeof "/gradlag");
    if (mkdir(folder, 0700) != 0 && errno != EEXIST) {
        log_warning("dataset cache: cannot create folder %s: %s; this process keeps the data in "
                    "memory. XDG_CACHE_HOME names another folder",
                    folder, strerror(errno));
        return false;
    }
    length = snprintf(path, PATH_BYTES, "%s/%s-%.16s.dataset", folder, name, h->identity);
    return length > 0 && length < PATH_BYTES - 32; /* room for suffixes */
}

/* Maps a complete and undamaged cache file. False: the file is missing or differs in any way. */
static bool map_cache(struct dataset *d, const char *path, const struct header *expected)
{
    struct stat info;
    struct header found;
    bool good = false;
    size_t bytes = HEADER_BYTES + expected->payload_bytes;
    uint8_t *base = MAP_FAILED;
    int file = open(path, O_RDONLY | O_CLOEXEC);

    if (file < 0)
        return false;
    if (fstat(file, &info) == 0 && info.st_uid == geteuid() && (size_t)info.st_size == bytes)
        base = mmap(NULL, bytes, PROT_READ, MAP_SHARED | MAP_POPULATE, file, 0);
    close(file);
    if (base != MAP_FAILED) {
        memcpy(&found, base, sizeof found);
        uint64_t sum = found.checksum;
        found.checksum = 0;
        good = memcmp(&found, expected, sizeof found) == 0 &&
               checksum(base + HEADER_BYTES, expected->payload_bytes) == sum;
        if (!good)
            munmap(base, bytes);
    }
    if (!good)
        return false;
    d->owner = base;
    d->mapped_bytes = bytes;
    point_into(d, base + HEADER_BYTES);
    return true;
}

/* Takes an exclusive lock, which the kernel releases at the latest when the process ends. −1: no
 * lock within WAIT_LIMIT_S. */
static int lock_cache(const char *path)
{
    char name[PATH_BYTES];
    bool warned = false;
    double began = clock_seconds();

    (void)snprintf(name, sizeof name, "%s.lock", path);
    int file = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    while (file >= 0 && flock(file, LOCK_EX | LOCK_NB) != 0) {
        double waited = clock_seconds() - began;
        if (errno != EWOULDBLOCK || waited > WAIT_LIMIT_S) {
            if (errno == EWOULDBLOCK) {
                log_warning("dataset cache: another process has not built %s within %.0f s; this "
                            "process builds the data in its own memory",
                            path, WAIT_LIMIT_S);
            }
            close(file);
            return -1;
        }
        if (waited > WAIT_WARNING_S && !warned) {
            log_info("waiting for another process that builds %s", path);
            warned = true;
        }
        clock_sleep_until_ns(clock_ns() + 10000000);
    }
    return file;
}

static bool write_all(int file, const uint8_t *data, size_t bytes)
{
    while (bytes > 0) {
        ssize_t n = write(file, data, bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        data += n;
        bytes -= (size_t)n;
    }
    return true;
}

/* No sync: the checksum detects an incomplete file after a crash. The caller holds the lock, so an
 * existing temporary file belongs to a killed process. */
static bool write_cache(const char *path, const uint8_t *block, size_t bytes)
{
    char name[PATH_BYTES];
    (void)snprintf(name, sizeof name, "%s.tmp", path);
    int file = open(name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    bool good = file >= 0 && write_all(file, block, bytes);
    int cause = errno;

    if (file >= 0 && close(file) != 0) {
        good = false;
        cause = errno;
    }
    if (good && rename(name, path) != 0) {
        good = false;
        cause = errno;
    }
    if (!good) {
        log_warning("dataset cache: cannot write %s: %s; this process keeps the data in memory. "
                    "XDG_CACHE_HOME names another folder",
                    path, strerror(cause));
        (void)unlink(name);
    }
    return good;
}

/* Builds the data in private memory: one block with the header first. */
static status make_private(struct dataset *d, const struct header *h, dataset_fill fill,
                           void *context)
{
    status result = OK;
    uint8_t *block = NULL, *images[SPLIT_COUNT];
    uint32_t *labels[SPLIT_COUNT];
    struct header full = *h;

    TRY(memory_new(&block, HEADER_BYTES + h->payload_bytes, 1, "dataset"));
    lay_out(d, block + HEADER_BYTES, images, labels);
    TRY(fill(context, d, images, labels));
    full.checksum = checksum(block + HEADER_BYTES, h->payload_bytes);
    memcpy(block, &full, sizeof full);
    d->owner = block;
    d->mapped_bytes = 0;
    point_into(d, block + HEADER_BYTES);
    block = NULL;

done:
    memory_free(block);
    return result;
}

void dataset_store_name_file(struct text *identity, const char *path, uint64_t bytes,
                             struct timespec modified)
{
    char *absolute = realpath(path, NULL); /* "data" is another file in another folder */
    text_add(identity, "\n%s %llu %lld.%09ld", absolute != NULL ? absolute : path,
             (unsigned long long)bytes, (long long)modified.tv_sec, modified.tv_nsec);
    free(absolute);
}

status dataset_store_load(struct dataset *d, const char *name, const char *identity,
                          dataset_fill fill, void *context)
{
    status result = OK;
    struct header h;
    char path[PATH_BYTES];
    int lock = -1;

    describe_in_header(&h, d, identity);
    if (!cache_path(name, &h, path))
        return make_private(d, &h, fill, context);
    if (access(path, F_OK) == 0 && map_cache(d, path, &h))
        goto done;
    lock = lock_cache(path);
    if (lock >= 0 && access(path, F_OK) == 0 && map_cache(d, path, &h))
        goto done; /* another process built it in the meantime */
    if (access(path, F_OK) == 0) {
        log_warning("dataset cache: %s is damaged or has another owner; %s", path,
                    lock >= 0 ? "building it again"
                              : "leaving it unchanged, because it cannot be locked");
    }
    TRY(make_private(d, &h, fill, context));
    if (lock >= 0 && write_cache(path, d->owner, HEADER_BYTES + h.payload_bytes)) {
        void *private_copy = d->owner;
        if (map_cache(d, path, &h))
            memory_free(private_copy);
    }

done:
    if (lock >= 0)
        close(lock);
    return result;
}

void dataset_describe_made_up(const options *o, float scale, float shift, struct dataset *out)
{
    uint32_t samples = (uint32_t)options_integer(o, "dataset.samples");
    out->classes = (uint32_t)options_integer(o, "dataset.classes");
    out->channels = (uint32_t)options_integer(o, "dataset.channels");
    out->height = out->width = (uint32_t)options_integer(o, "dataset.size");
    out->count[SPLIT_TRAIN] = samples;
    out->count[SPLIT_VALIDATION] = out->count[SPLIT_TEST] = (samples + 3) / 4;
    for (uint32_t c = 0; c < out->channels; c++) {
        out->scale[c] = scale;
        out->shift[c] = shift;
    }
}

void dataset_describe_text(struct dataset *d, uint32_t context, uint32_t vocabulary)
{
    d->channels = d->width = 1;
    d->height = d->targets = context;
    d->classes = vocabulary;
    d->scale[0] = 1;
    for (int s = 0; s < SPLIT_COUNT; s++)
        d->count[s] = d->length[s] > 0 ? (d->length[s] - 1) / context : 0;
}

void dataset_draw_labels(const struct dataset *d, enum dataset_split split, uint64_t seed,
                         uint32_t *labels)
{
    struct random_stream r;
    /* Step UINT64_MAX, because the streams of samples are numbered from 0. */
    random_open(&r, RANDOM_DATASET, seed, 1 + (uint32_t)split, UINT64_MAX);
    random_permutation(&r, labels, d->count[split]);
    for (uint32_t n = 0; n < d->count[split]; n++)
        labels[n] %= d->classes;
}
