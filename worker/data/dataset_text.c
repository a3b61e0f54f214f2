/*
 * dataset_text.c — text: the bytes of a file, or of all regular files of a folder in name order.
 * Files whose names begin with a dot are left out.
 *
 * A byte is a token. The last 5 % of the bytes are the validation split, the 5 % before them the
 * test split, the rest the training split. With dataset.test=no the first 95 % are the training
 * split, and the test split is empty.
 *
 * Without dataset.path the text is the King James Bible of Debian's package bible-kjv: the
 * 4 404 412 bytes that `bible -f 'gen1:1-rev22:21'` prints. All are below 128. scripts/setup writes
 * them to the folder of installed datasets.
 */
#include "base/memory.h"
#include "base/sha256.h"
#include "base/text.h"
#include "worker/data/dataset_store.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_BYTES = 4096 };
#define INSTALLED_SHA256 "cd45f0c9cedab8e4439bd6486c8952c77cc8b0ecc5d1f6ae3513f2039f47229d"
#define REMEDY                                                                                     \
    "run scripts/setup, which writes the King James text of Debian's package bible-kjv to that "   \
    "folder, or set dataset.path= to a file or folder of text"

static const struct option text_options[] = {
    {"dataset.context", OPTION_INTEGER, "64", 1, 65536, NULL, NULL, "tokens of a window"},
    {"dataset.vocabulary", OPTION_INTEGER, "256", 2, 256, NULL, NULL,
     "number of tokens; every byte of the text must be below it (ASCII: 128)"},
    {"dataset.test", OPTION_FLAG, "true", 0, 0, NULL, NULL,
     "true: the last 10 % of the text are half test split, half validation split; false: the last "
     "5 % are the validation split, and there is no test split"},
    {"dataset.sha256", OPTION_TEXT, "", 0, 0, NULL, NULL,
     "SHA-256 of the whole text, to be checked; runs of different texts then have different "
     "settings; empty: only the installed text is checked"},
    {0},
};

struct text_file {
    char *path;
    uint64_t bytes;
    struct timespec modified;
};

struct text_source {
    struct text_file *files;
    size_t count;
    uint64_t bytes;
    uint32_t vocabulary;
    const char *sha256; /* expected; "": not checked */
    char *path;         /* the file or folder */
};

/* ---- the files ---- */

static void source_close(struct text_source *s)
{
    for (size_t i = 0; i < s->count; i++)
        memory_free(s->files[i].path);
    memory_free(s->files);
    memory_free(s->path);
}

static void add_file(struct text_source *s, const char *path, const struct stat *info)
{
    s->files[s->count++] = (struct text_file){
        .path = text_copy(path), .bytes = (uint64_t)info->st_size, .modified = info->st_mtim};
    s->bytes += (uint64_t)info->st_size;
}

static int is_visible(const struct dirent *e)
{
    return e->d_name[0] != '.';
}

/* Compares bytes, in every locale. */
static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static status list_folder(struct text_source *s, const char *folder, const char *remedy)
{
    status result = OK;
    struct dirent **entries = NULL;
    struct text path = {0};
    int count = scandir(folder, &entries, is_visible, by_name);
    if (count < 0)
        FAIL(ERROR_DATA, "cannot list folder %s: %s; %s", folder, strerror(errno), remedy);
    TRY(memory_new(&s->files, (size_t)count + 1, sizeof *s->files, "file names"));
    for (int i = 0; i < count; i++) {
        struct stat info;
        path.length = 0;
        text_add(&path, "%s/%s", folder, entries[i]->d_name);
        if (stat(path.at, &info) != 0)
            FAIL(ERROR_DATA, "%s: %s; %s", path.at, strerror(errno), remedy);
        if (S_ISREG(info.st_mode))
            add_file(s, path.at, &info);
    }
    if (s->count == 0)
        FAIL(ERROR_DATA, "folder %s contains no files; %s", folder, remedy);
done:
    for (int i = 0; i < count; i++)
        free(entries[i]);
    free(entries);
    text_free(&path);
    return result;
}

/* Lists the files; the caller closes the source, also after an error. */
static status source_open(struct text_source *s, const options *o)
{
    status result = OK;
    struct stat info;
    char installed[PATH_BYTES];
    const char *path = options_text(o, "dataset.path"), *remedy = "correct dataset.path";
    *s = (struct text_source){.vocabulary = (uint32_t)options_integer(o, "dataset.vocabulary"),
                              .sha256 = options_text(o, "dataset.sha256")};
    if (path[0] == '\0') {
        snprintf(installed, sizeof installed, "%s/text", dataset_installed());
        path = installed;
        remedy = REMEDY;
        s->sha256 = s->sha256[0] == '\0' ? INSTALLED_SHA256 : s->sha256;
    }
    s->path = text_copy(path);
    if (stat(path, &info) != 0)
        FAIL(ERROR_DATA, "cannot find %s: %s; %s", path, strerror(errno), remedy);
    if (S_ISDIR(info.st_mode)) {
        TRY(list_folder(s, path, remedy));
    } else {
        if (!S_ISREG(info.st_mode))
            FAIL(ERROR_DATA, "%s is neither a file nor a folder; %s", path, remedy);
        TRY(memory_new(&s->files, 1, sizeof *s->files, "file names"));
        add_file(s, path, &info);
    }
done:
    return result;
}

/* ---- shape ---- */

static status describe_source(const options *o, const struct text_source *s, struct dataset *out)
{
    status result = OK;
    const uint64_t context = (uint64_t)options_integer(o, "dataset.context");
    const uint64_t validation = s->bytes * 95 / 100;
    const uint64_t test = options_flag(o, "dataset.test") ? s->bytes * 90 / 100 : validation;
    if (s->bytes > UINT32_MAX) {
        FAIL(ERROR_DATA,
             "%s: the text has %llu bytes, but at most %u can be read; use a part of it", s->path,
             (unsigned long long)s->bytes, UINT32_MAX);
    }
    if (s->bytes - validation <= context) {
        FAIL(ERROR_DATA,
             "%s: the text has %llu bytes, so its validation split has %llu, but one window with "
             "its last label needs %llu; use a longer text or a smaller dataset.context",
             s->path, (unsigned long long)s->bytes, (unsigned long long)(s->bytes - validation),
             (unsigned long long)context + 1);
    }
    if (options_flag(o, "dataset.test") && validation - test <= context) {
        FAIL(ERROR_DATA,
             "%s: the text has %llu bytes, so its test split has %llu, but one window with its "
             "last label needs %llu; use a longer text or a smaller dataset.context, or set "
             "dataset.test=no",
             s->path, (unsigned long long)s->bytes, (unsigned long long)(validation - test),
             (unsigned long long)context + 1);
    }
    out->length[SPLIT_TRAIN] = (uint32_t)test;
    out->length[SPLIT_TEST] = (uint32_t)(validation - test);
    out->length[SPLIT_VALIDATION] = (uint32_t)(s->bytes - validation);
    dataset_describe_text(out, (uint32_t)context, s->vocabulary);
done:
    return result;
}

static status describe(const options *o, struct dataset *out)
{
    status result = OK;
    struct text_source source;
    TRY(source_open(&source, o));
    TRY(describe_source(o, &source, out));
done:
    source_close(&source);
    return result;
}

/* ---- bytes ---- */

static status check_bytes(const struct text_file *f, uint32_t vocabulary, const uint8_t *bytes)
{
    status result = OK;
    for (uint64_t i = 0; i < f->bytes; i++) {
        if (bytes[i] >= vocabulary) {
            FAIL(ERROR_DATA,
                 "%s: the byte at offset %llu is %u, but dataset.vocabulary=%u allows 0 to %u; set "
                 "dataset.vocabulary=256",
                 f->path, (unsigned long long)i, bytes[i], vocabulary, vocabulary - 1);
        }
    }
done:
    return result;
}

static status read_file(const struct text_file *f, uint8_t *out)
{
    status result = OK;
    uint8_t extra;
    int file = open(f->path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        FAIL(ERROR_DATA, "%s: %s; correct dataset.path", f->path, strerror(errno));
    for (uint64_t at = 0; at <= f->bytes;) {
        ssize_t n = at < f->bytes ? read(file, out + at, f->bytes - at) : read(file, &extra, 1);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            FAIL(ERROR_DATA, "%s: %s; correct dataset.path", f->path, strerror(errno));
        if ((n == 0) != (at == f->bytes)) {
            FAIL(ERROR_DATA,
                 "%s: its length changed while it was read; run again when no other "
                 "program writes to it",
                 f->path);
        }
        at += n == 0 ? 1 : (uint64_t)n;
    }
done:
    if (file >= 0)
        close(file);
    return result;
}

static status check_sha256(const struct text_source *s, const uint8_t *bytes)
{
    status result = OK;
    struct sha256 hash;
    char found[65];
    if (s->sha256[0] == '\0')
        return OK;
    sha256_begin(&hash);
    sha256_add(&hash, bytes, s->bytes);
    sha256_end(&hash, found);
    if (strcasecmp(found, s->sha256) != 0) {
        FAIL(ERROR_DATA,
             "%s: the text of %llu bytes has SHA-256 %s instead of %s; correct dataset.path or "
             "dataset.sha256, or run scripts/setup again if it is the installed text",
             s->path, (unsigned long long)s->bytes, found, s->sha256);
    }
done:
    return result;
}

static status fill(void *context, const struct dataset *d, uint8_t *const images[SPLIT_COUNT],
                   uint32_t *const labels[SPLIT_COUNT])
{
    static const enum dataset_split in_order[] = {SPLIT_TRAIN, SPLIT_TEST, SPLIT_VALIDATION};
    status result = OK;
    const struct text_source *s = context;
    uint8_t *bytes = NULL, *at;
    (void)labels;
    TRY(memory_new(&bytes, s->bytes, 1, "a text"));
    at = bytes;
    for (size_t i = 0; i < s->count; at += s->files[i++].bytes) {
        TRY(read_file(&s->files[i], at));
        TRY(check_bytes(&s->files[i], s->vocabulary, at));
    }
    TRY(check_sha256(s, bytes));
    at = bytes;
    for (size_t i = 0; i < COUNT_OF(in_order); at += d->length[in_order[i++]])
        memcpy(images[in_order[i]], at, d->length[in_order[i]]);
done:
    memory_free(bytes);
    return result;
}

static status load(const options *o, struct dataset *d)
{
    status result = OK;
    struct text_source source;
    struct text identity = {0};
    TRY(source_open(&source, o));
    TRY(describe_source(o, &source, d)); /* the files may have changed since describe() */
    text_add(&identity, "text %u %u %u %u %s", d->length[SPLIT_TRAIN], d->length[SPLIT_TEST],
             d->height, d->classes, source.sha256);
    for (size_t i = 0; i < source.count; i++) {
        const struct text_file *f = &source.files[i];
        dataset_store_name_file(&identity, f->path, f->bytes, f->modified);
    }
    TRY(dataset_store_load(d, "text", identity.at, fill, &source));
done:
    text_free(&identity);
    source_close(&source);
    return result;
}

const struct dataset_kind dataset_text = {
    .about = {"text",
              "windows of the bytes of any files; the installed text is the King James Bible",
              "Debian package bible-kjv", text_options},
    .describe = describe,
    .load = load,
    .remedy = REMEDY,
    .tokens = true,
};
