/*
 * checkpoint.c — safetensors files. The reader trusts nothing in a file. It checks:
 *   - the length of the header against the length of the file;
 *   - the bytes of each tensor against its shape and type;
 *   - all tensors together against the data, which they must cover without gap or overlap.
 * Only then does it write to the caller's memory.
 */
#include "worker/checkpoint.h"

#include "base/memory.h"
#include "base/text.h"
#include "base/output_file.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "safetensors data are little-endian");

enum { HEADER_LIMIT = 100000000, LENGTH_BYTES = 8 };
#define METADATA "__metadata__"

bool checkpoint_name_is_reserved(const char *name)
{
    static const struct {
        const char *begin, *after; /* of a number */
    } numbered[] = {{"correction", ""}, {"waiting", ""}, {"optimizer", "."}};
    for (size_t i = 0; i < COUNT_OF(numbered); i++) {
        const size_t length = strlen(numbered[i].begin);
        const size_t digits =
            strncmp(name, numbered[i].begin, length) == 0 ? strspn(name + length, "0123456789") : 0;
        const char *after = numbered[i].after, *rest = name + length + digits;
        if (digits > 0 && (after[0] != '\0' ? rest[0] == after[0] : rest[0] == '\0'))
            return true;
    }
    return strcmp(name, METADATA) == 0 || strcmp(name, "ranks") == 0;
}

/* ---- writing ---- */

static size_t tensor_bytes(const struct checkpoint_tensor *t)
{
    size_t bytes = sizeof(float);
    REQUIRE(t->rank <= COUNT_OF(t->shape));
    for (unsigned d = 0; d < t->rank; d++)
        REQUIRE(!__builtin_mul_overflow(bytes, t->shape[d], &bytes));
    return bytes;
}

static void add_header(struct text *h, const struct checkpoint_tensor *tensors, size_t tensor_count,
                       const struct checkpoint_note *notes, size_t note_count)
{
    size_t begin = 0;
    text_add(h, "{\"" METADATA "\":{");
    for (size_t i = 0; i < note_count; i++) {
        text_add(h, i > 0 ? "," : "");
        text_add_json(h, notes[i].key);
        text_add(h, ":");
        text_add_json(h, notes[i].value != NULL ? notes[i].value : "");
    }
    text_add(h, "}");
    for (size_t i = 0; i < tensor_count; i++) {
        size_t end = begin + tensor_bytes(&tensors[i]);
        text_add(h, ",");
        text_add_json(h, tensors[i].name);
        text_add(h, ":{\"dtype\":\"F32\",\"shape\":[");
        for (unsigned d = 0; d < tensors[i].rank; d++)
            text_add(h, "%s%u", d > 0 ? "," : "", tensors[i].shape[d]);
        text_add(h, "],\"data_offsets\":[%zu,%zu]}", begin, end);
        begin = end;
    }
    text_add(h, "}");
    while (h->length % 8 != 0) /* aligns the data in the file */
        text_add(h, " ");
}

static status write_all(FILE *to, const char *path, const void *data, size_t bytes)
{
    status result = OK;
    if (fwrite(data, 1, bytes, to) != bytes) {
        FAIL(ERROR_OTHER, "%s cannot be written: %s; free some space or choose another folder",
             path, strerror(errno));
    }
done:
    return result;
}

static status write_parts(FILE *to, const char *path, const struct text *header,
                          const struct checkpoint_tensor *tensors, size_t count)
{
    status result = OK;
    const uint64_t length = header->length;
    TRY(write_all(to, path, &length, sizeof length));
    TRY(write_all(to, path, header->at, header->length));
    for (size_t i = 0; i < count; i++)
        TRY(write_all(to, path, tensors[i].data, tensor_bytes(&tensors[i])));
done:
    return result;
}

status checkpoint_write(const char *path, const struct checkpoint_tensor *tensors,
                        size_t tensor_count, const struct checkpoint_note *notes, size_t note_count)
{
    status result = OK;
    struct text header = {0};
    struct output_file file = {0};
    add_header(&header, tensors, tensor_count, notes, note_count);
    TRY(output_file_open(&file, path));
    TRY(write_parts(file.to, path, &header, tensors, tensor_count));
    TRY(output_file_close(&file, true));
done:
    output_file_abandon(&file);
    text_free(&header);
    if (result != OK) {
        const struct error why = error_save();
        result = error_set(result, __FILE__, __LINE__, "checkpoint %s", why.message);
    }
    return result;
}

/* ---- reading ---- */

#define REMEDY "write a new checkpoint or choose another file"

struct checkpoint_entry { /* one tensor in the file */
    const char *name, *dtype;
    const json_t *shape;
    uint64_t begin, end;
};

struct checkpoint_reader {
    const char *path;
    int file;
    uint64_t data_at, data_bytes; /* position and length in the file */
    json_t *header;
    struct checkpoint_entry *entries;
    size_t count;
};

static status read_at(const struct checkpoint_reader *r, void *out, size_t bytes, uint64_t offset)
{
    status result = OK;
    for (size_t got = 0; got < bytes;) {
        ssize_t n = pread(r->file, (char *)out + got, bytes - got, (off_t)(offset + got));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            FAIL(ERROR_DATA, "checkpoint %s: %s at byte %llu; %s", r->path,
                 n < 0 ? strerror(errno) : "truncated", (unsigned long long)(offset + got), REMEDY);
        }
        got += (size_t)n;
    }
done:
    return result;
}

static status read_header(struct checkpoint_reader *r)
{
    status result = OK;
    struct stat info;
    uint64_t length = 0;
    char *bytes = NULL;
    json_error_t error;

    r->file = open(r->path, O_RDONLY | O_NONBLOCK | O_CLOEXEC); /* do not block on a FIFO */
    if (r->file < 0 || fstat(r->file, &info) != 0) {
        FAIL(ERROR_DATA, "checkpoint %s cannot be opened: %s; choose a file that checkpoint= wrote",
             r->path, strerror(errno));
    }
    if (!S_ISREG(info.st_mode) || info.st_size < LENGTH_BYTES) {
        FAIL(ERROR_DATA, "checkpoint %s: not a safetensors file, because it is %s; %s", r->path,
             S_ISREG(info.st_mode) ? "shorter than 8 bytes" : "not a regular file", REMEDY);
    }
    TRY(read_at(r, &length, sizeof length, 0));
    uint64_t most = (uint64_t)info.st_size - LENGTH_BYTES;
    if (length < 2 || length > most || length > HEADER_LIMIT) {
        FAIL(
            ERROR_DATA,
            "checkpoint %s: not a safetensors file, or truncated: the header length is %llu bytes, "
            "but %llu bytes follow; %s",
            r->path, (unsigned long long)length, (unsigned long long)most, REMEDY);
    }
    TRY(memory_new(&bytes, length, 1, "checkpoint header"));
    TRY(read_at(r, bytes, length, LENGTH_BYTES));
    r->header = json_loadb(bytes, length, JSON_REJECT_DUPLICATES, &error);
    if (!json_is_object(r->header)) {
        FAIL(ERROR_DATA, "checkpoint %s: the header is not a JSON object: %s; %s", r->path,
             r->header == NULL ? error.text : "it is valid JSON of another type", REMEDY);
    }
    r->data_at = LENGTH_BYTES + length;
    r->data_bytes = most - length;
done:
    memory_free(bytes);
    return result;
}

/* Bytes per element; 0: unknown type, whose size is not checked. */
static uint64_t element_bytes(const char *dtype)
{
    static const struct {
        const char *name;
        uint64_t bytes;
    } known[] = {{"F32", 4}, {"F64", 8}, {"F16", 2}, {"BF16", 2}, {"I64", 8},
                 {"I32", 4}, {"I16", 2}, {"I8", 1},  {"U64", 8},  {"U32", 4},
                 {"U16", 2}, {"U8", 1},  {"BOOL", 1}};
    for (size_t i = 0; i < COUNT_OF(known); i++)
        if (strcmp(known[i].name, dtype) == 0)
            return known[i].bytes;
    return 0;
}

/* element × product of the shape. False: the shape is not a list of lengths, or the product
 * overflows. */
static bool shape_bytes(const json_t *shape, uint64_t element, uint64_t *bytes)
{
    *bytes = element;
    for (size_t d = 0; d < json_array_size(shape); d++) {
        const json_t *length = json_array_get(shape, d);
        if (!json_is_integer(length) || json_integer_value(length) < 0 ||
            __builtin_mul_overflow(*bytes, (uint64_t)json_integer_value(length), bytes))
            return false;
    }
    return json_is_array(shape);
}

static status read_entry(const struct checkpoint_reader *r, const char *name, const json_t *value,
                         struct checkpoint_entry *out)
{
    status result = OK;
    const json_t *offsets = json_object_get(value, "data_offsets");
    const json_t *begin = json_array_get(offsets, 0), *end = json_array_get(offsets, 1);
    uint64_t bytes;

    out->name = name;
    out->dtype = json_string_value(json_object_get(value, "dtype"));
    out->shape = json_object_get(value, "shape");
    if (out->dtype == NULL || !json_is_array(out->shape) || json_array_size(offsets) != 2 ||
        !json_is_integer(begin) || !json_is_integer(end)) {
        FAIL(ERROR_DATA, "checkpoint %s: tensor '%s' lacks dtype, shape or data_offsets; %s",
             r->path, name, REMEDY);
    }
    json_int_t from = json_integer_value(begin), to = json_integer_value(end);
    if (from < 0 || to < from || (uint64_t)to > r->data_bytes) {
        FAIL(ERROR_DATA,
             "checkpoint %s: tensor '%s' spans bytes %lld to %lld, but the data have %llu bytes: "
             "the "
             "file is truncated or malformed; %s",
             r->path, name, (long long)from, (long long)to, (unsigned long long)r->data_bytes,
             REMEDY);
    }
    out->begin = (uint64_t)from;
    out->end = (uint64_t)to;
    uint64_t element = element_bytes(out->dtype);
    if (!shape_bytes(out->shape, element, &bytes) ||
        (element > 0 && bytes != out->end - out->begin)) {
        FAIL(ERROR_DATA,
             "checkpoint %s: the shape of tensor '%s' does not match its %llu bytes; %s", r->path,
             name, (unsigned long long)(out->end - out->begin), REMEDY);
    }
done:
    return result;
}

static int by_place(const void *a, const void *b)
{
    const struct checkpoint_entry *x = a, *y = b;
    int order = (x->begin > y->begin) - (x->begin < y->begin);
    return order != 0 ? order : (x->end > y->end) - (x->end < y->end);
}

static status read_entries(struct checkpoint_reader *r)
{
    status result = OK;
    const char *name;
    json_t *value;
    uint64_t covered = 0;

    TRY(memory_new(&r->entries, json_object_size(r->header), sizeof *r->entries, "tensor table"));
    json_object_foreach(r->header, name, value)
    {
        if (strcmp(name, METADATA) != 0) {
            TRY(read_entry(r, name, value, &r->entries[r->count]));
            r->count++;
        }
    }
    qsort(r->entries, r->count, sizeof *r->entries, by_place);
    for (size_t i = 0; i < r->count; i++) {
        if (r->entries[i].begin != covered) {
            FAIL(ERROR_DATA, "checkpoint %s: tensor '%s' %s; %s", r->path, r->entries[i].name,
                 r->entries[i].begin < covered ? "overlaps another tensor" : "follows a gap",
                 REMEDY);
        }
        covered = r->entries[i].end;
    }
    if (covered != r->data_bytes) {
        FAIL(ERROR_DATA, "checkpoint %s: %llu bytes follow the last tensor; %s", r->path,
             (unsigned long long)(r->data_bytes - covered), REMEDY);
    }
done:
    return result;
}

static status find_tensor(const struct checkpoint_reader *r, const struct checkpoint_tensor *wanted,
                          const struct checkpoint_entry **out)
{
    status result = OK;
    const struct checkpoint_entry *found = NULL;
    for (size_t i = 0; i < r->count && found == NULL; i++)
        if (strcmp(r->entries[i].name, wanted->name) == 0)
            found = &r->entries[i];
    if (found == NULL) {
        FAIL(ERROR_DATA,
             "checkpoint %s: tensor '%s' is missing; the file may belong to another model, so "
             "check key model",
             r->path, wanted->name);
    }
    if (strcmp(found->dtype, "F32") != 0) {
        FAIL(ERROR_DATA,
             "checkpoint %s: tensor '%s' has type %s, but F32 is required; convert the tensor to "
             "float32",
             r->path, wanted->name, found->dtype);
    }
    bool matches = json_array_size(found->shape) == wanted->rank;
    for (unsigned d = 0; matches && d < wanted->rank; d++) {
        matches =
            json_integer_value(json_array_get(found->shape, d)) == (json_int_t)wanted->shape[d];
    }
    if (!matches) {
        FAIL(
            ERROR_DATA,
            "checkpoint %s: the shape of tensor '%s' differs from the model's; the file may belong "
            "to another model or dataset, so check keys model and dataset",
            r->path, wanted->name);
    }
    *out = found;
done:
    return result;
}

static status check_notes(const struct checkpoint_reader *r)
{
    status result = OK;
    json_t *all = json_object_get(r->header, METADATA);
    const char *key;
    json_t *value;

    if (all != NULL && !json_is_object(all))
        FAIL(ERROR_DATA, "checkpoint %s: " METADATA " is not an object; %s", r->path, REMEDY);
    json_object_foreach(all, key, value)
    {
        if (!json_is_string(value)) {
            FAIL(ERROR_DATA, "checkpoint %s: the value of note '%s' is not text; %s", r->path, key,
                 REMEDY);
        }
    }
done:
    return result;
}

status checkpoint_read(const char *path, const struct checkpoint_tensor *tensors,
                       size_t tensor_count, struct checkpoint_note *notes, size_t note_count)
{
    status result = OK;
    struct checkpoint_reader r = {.path = path, .file = -1};
    const struct checkpoint_entry *entry;

    for (size_t i = 0; i < note_count; i++)
        notes[i].value = NULL;
    TRY(read_header(&r));
    TRY(read_entries(&r));
    TRY(check_notes(&r));
    for (size_t i = 0; i < tensor_count; i++)
        TRY(find_tensor(&r, &tensors[i], &entry));
    for (size_t i = 0; i < tensor_count; i++) {
        TRY(find_tensor(&r, &tensors[i], &entry));
        TRY(read_at(&r, tensors[i].data, entry->end - entry->begin, r.data_at + entry->begin));
    }
    for (size_t i = 0; i < note_count; i++) {
        const json_t *all = json_object_get(r.header, METADATA);
        const char *text = json_string_value(json_object_get(all, notes[i].key));
        notes[i].value = text != NULL ? text_copy(text) : NULL;
    }
done:
    json_decref(r.header);
    memory_free(r.entries);
    if (r.file >= 0)
        close(r.file);
    return result;
}
