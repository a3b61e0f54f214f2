#include "worker/data/dataset_webdataset.h"
#include "base/memory.h"
#include "base/text.h"
#include "worker/data/dataset_archive.h"
#include "worker/data/dataset_jpeg.h"
#include "base/helpers.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

enum { KEY_BYTES = 256, IMAGE_BYTES = 1 << 15, CLASS_BYTES = 16, BLOCK = 250 };

/* A sample before all counts are known; offsets are into the shard's bytes. */
struct webdataset_sample {
    size_t name, data; /* the image's member name, NUL-terminated, and its content */
    uint32_t bytes, label;
};

struct shard {
    const char *path;
    uint32_t most, classes; /* largest number of samples, number of classes */
    size_t part;
    size_t first, slot; /* number of the shard's first sample over all parts, and within its part */
    struct text bytes;
    struct webdataset_sample *samples;
    size_t count, capacity;
    /* The sample that is being read: */
    char key[KEY_BYTES];
    bool open, has_image, has_class;
    struct webdataset_sample pending;
};

struct loading {
    const struct webdataset_part *parts;
    const struct dataset *shape;
    struct shard *shards;
    size_t shard_count, total;
    atomic_size_t decoded;
    bool terminal;
};

uint8_t *sample_target_image(const struct sample_target *t, uint32_t n, size_t image_size)
{
    return n < t->first ? t->images[0] + n * image_size
                        : t->images[1] + (n - t->first) * image_size;
}

uint32_t *sample_target_label(const struct sample_target *t, uint32_t n)
{
    return n < t->first ? t->labels[0] + n : t->labels[1] + (n - t->first);
}

/* ---- reading a shard ---- */

enum webdataset_kind { OTHER, IMAGE, CLASS };

/* The key is the path up to the first dot of the file name. */
static enum webdataset_kind kind_of(const char *name, size_t *key_length)
{
    const char *slash = strrchr(name, '/'), *last = slash != NULL ? slash + 1 : name;
    const char *dot = strchr(last, '.');
    if (dot == NULL || dot == last)
        return OTHER;
    *key_length = (size_t)(dot - name);
    if (strcasecmp(dot, ".jpg") == 0 || strcasecmp(dot, ".jpeg") == 0)
        return IMAGE;
    return strcasecmp(dot, ".cls") == 0 ? CLASS : OTHER;
}

static status finish_sample(struct shard *s)
{
    status result = OK;
    if (!s->open)
        goto done;
    if (!s->has_image || !s->has_class) {
        FAIL(ERROR_DATA, "%s: sample %s has no .%s member next to its .%s member", s->path, s->key,
             s->has_image ? "cls" : "jpg", s->has_image ? "jpg" : "cls");
    }
    if (s->count == s->most) {
        FAIL(ERROR_DATA,
             "%s: sample %s exceeds the %u samples that all shards together must contain", s->path,
             s->key, s->most);
    }
    if (s->count == s->capacity) {
        const size_t capacity = s->capacity > 0 ? 2 * s->capacity : 1024;
        TRY(memory_grow(&s->samples, s->count, capacity, sizeof *s->samples, "samples of a shard"));
        s->capacity = capacity;
    }
    s->samples[s->count++] = s->pending;
    s->open = s->has_image = s->has_class = false;
done:
    return result;
}

static status begin_sample(struct shard *s, const char *name, size_t key_length)
{
    status result = OK;
    if (s->open && strlen(s->key) == key_length && memcmp(s->key, name, key_length) == 0)
        goto done;
    TRY(finish_sample(s));
    if (key_length >= sizeof s->key) {
        FAIL(ERROR_DATA, "%s: the key of member %.60s… is too long (limit: 255 bytes)", s->path,
             name);
    }
    memcpy(s->key, name, key_length);
    s->key[key_length] = '\0';
    s->open = true;
done:
    return result;
}

static status read_image(struct shard *s, tar_reader *r, const char *name, uint64_t bytes)
{
    status result = OK;
    char content[IMAGE_BYTES];
    if (s->has_image)
        FAIL(ERROR_DATA, "%s: sample %s has two images", s->path, s->key);
    if (bytes == 0 || bytes > sizeof content) {
        FAIL(ERROR_DATA, "%s: member %s has %llu bytes, but an image must have 1 to %d", s->path,
             name, (unsigned long long)bytes, IMAGE_BYTES);
    }
    TRY(tar_reader_read(r, content, (size_t)bytes));
    s->pending.name = s->bytes.length;
    text_add_bytes(&s->bytes, name, strlen(name) + 1);
    s->pending.data = s->bytes.length;
    s->pending.bytes = (uint32_t)bytes;
    text_add_bytes(&s->bytes, content, (size_t)bytes);
    s->has_image = true;
done:
    return result;
}

static status read_class(struct shard *s, tar_reader *r, const char *name, uint64_t bytes)
{
    status result = OK;
    char content[CLASS_BYTES + 1] = "";
    size_t length = (size_t)bytes;
    uint32_t label = 0;
    if (s->has_class)
        FAIL(ERROR_DATA, "%s: sample %s has two classes", s->path, s->key);
    if (bytes > CLASS_BYTES) {
        FAIL(ERROR_DATA, "%s: member %s has %llu bytes, but a class number must have at most %d",
             s->path, name, (unsigned long long)bytes, CLASS_BYTES);
    }
    TRY(tar_reader_read(r, content, length));
    while (length > 0 && strchr(" \t\r\n", content[length - 1]) != NULL)
        length--;
    bool good = length > 0;
    for (size_t i = 0; i < length && good; i++) {
        good = content[i] >= '0' && content[i] <= '9' && label < s->classes;
        label = 10 * label + (uint32_t)(content[i] - '0');
    }
    if (!good || label >= s->classes) {
        FAIL(ERROR_DATA, "%s: member %s does not contain a class number from 0 to %u", s->path,
             name, s->classes - 1);
    }
    s->pending.label = label;
    s->has_class = true;
done:
    return result;
}

static status read_shard(void *context, size_t index)
{
    status result = OK;
    const struct loading *l = context;
    struct shard *s = &l->shards[index];
    tar_reader *r = NULL;
    const char *name;
    uint64_t bytes;
    size_t key_length;

    TRY(tar_reader_open(&r, s->path));
    TRY(tar_reader_next(r, &name, &bytes));
    while (name != NULL) {
        enum webdataset_kind kind = kind_of(name, &key_length);
        if (kind != OTHER) {
            TRY(begin_sample(s, name, key_length));
            TRY(kind == IMAGE ? read_image(s, r, name, bytes) : read_class(s, r, name, bytes));
        }
        TRY(tar_reader_next(r, &name, &bytes));
    }
    TRY(finish_sample(s));
    if (s->count == 0) {
        FAIL(ERROR_DATA, "%s: contains no sample, that is, no members KEY.jpg and KEY.cls",
             s->path);
    }
done:
    tar_reader_close(&r);
    return result;
}

/* ---- decoding ---- */

static void show_progress(const struct loading *l, size_t decoded)
{
    char line[96];
    if (l->terminal) {
        int length =
            snprintf(line, sizeof line, "\r%zu of %zu images decoded\033[K", decoded, l->total);
        (void)!write(STDERR_FILENO, line, (size_t)length);
    }
}

static status decode_sample(const struct loading *l, const struct shard *s, size_t n)
{
    status result = OK;
    const struct dataset *d = l->shape;
    const struct webdataset_sample *sample = &s->samples[n - s->first];
    const struct sample_target *target = &l->parts[s->part].target;
    uint32_t slot = (uint32_t)(s->slot + n - s->first);
    TRY(jpeg_decode_planes((const uint8_t *)s->bytes.at + sample->data, sample->bytes, d->height,
                           d->width, sample_target_image(target, slot, dataset_image_size(d))));
    *sample_target_label(target, slot) = sample->label;
done:
    if (result != OK)
        (void)error_add_context(result, "%s: member %s", s->path, s->bytes.at + sample->name);
    return result;
}

static status decode_block(void *context, size_t block)
{
    status result = OK;
    struct loading *l = context;
    const struct shard *s = l->shards;
    size_t begin = block * BLOCK, end = begin + BLOCK < l->total ? begin + BLOCK : l->total;
    for (size_t n = begin; n < end; n++) {
        while (n >= s->first + s->count)
            s++;
        TRY(decode_sample(l, s, n));
    }
    show_progress(l, atomic_fetch_add(&l->decoded, end - begin) + end - begin);
done:
    return result;
}

/* Numbers the samples and checks the number of samples of each part. */
static status count_samples(struct loading *l, size_t part_count)
{
    status result = OK;
    size_t found[2] = {0};
    REQUIRE(part_count <= COUNT_OF(found));
    for (size_t i = 0; i < l->shard_count; i++) {
        struct shard *s = &l->shards[i];
        s->first = l->total;
        s->slot = found[s->part];
        l->total += s->count;
        found[s->part] += s->count;
    }
    for (size_t p = 0; p < part_count; p++) {
        if (found[p] != l->parts[p].target.count) {
            FAIL(ERROR_DATA,
                 "%s and the other shards of its split contain %zu %s samples instead of "
                 "%u; " DATASET_IS_FIXED,
                 l->parts[p].paths[0], found[p], l->parts[p].name, l->parts[p].target.count);
        }
    }
done:
    return result;
}

status webdataset_load(const struct webdataset_part *parts, size_t part_count,
                       const struct dataset *shape, unsigned threads)
{
    status result = OK;
    struct loading l = {.parts = parts, .shape = shape, .terminal = isatty(STDERR_FILENO) == 1};

    REQUIRE(shape->channels == 3);
    for (size_t p = 0; p < part_count; p++)
        l.shard_count += parts[p].path_count;
    TRY(memory_new(&l.shards, l.shard_count, sizeof *l.shards, "shards"));
    for (size_t p = 0, i = 0; p < part_count; p++) {
        for (size_t k = 0; k < parts[p].path_count; k++, i++) {
            l.shards[i] = (struct shard){.path = parts[p].paths[k],
                                         .part = p,
                                         .most = parts[p].target.count,
                                         .classes = shape->classes};
        }
    }
    TRY(helpers_for(l.shard_count, threads, read_shard, &l));
    TRY(count_samples(&l, part_count));
    TRY(helpers_for((l.total + BLOCK - 1) / BLOCK, threads, decode_block, &l));
done:
    if (l.terminal && l.total > 0)
        (void)!write(STDERR_FILENO, "\r\033[K", 4);
    for (size_t i = 0; l.shards != NULL && i < l.shard_count; i++) {
        text_free(&l.shards[i].bytes);
        memory_free(l.shards[i].samples);
    }
    memory_free(l.shards);
    return result;
}
