#include "worker/data/dataset_archive.h"

#include "base/memory.h"
#include "base/text.h"

#include <archive.h>
#include <archive_entry.h>
#include <stdio.h>

enum { BLOCK_BYTES = 1 << 18, NAME_BYTES = 256 };

struct tar_reader {
    struct archive *archive;
    char *path;
    char member[NAME_BYTES]; /* for messages, truncated; libarchive's name is valid only until the
                                next member */
};

static const char *cause(const tar_reader *r)
{
    const char *text = archive_error_string(r->archive);
    return text != NULL ? text : "not a tar archive, or damaged";
}

status tar_reader_open(tar_reader **out, const char *path)
{
    status result = OK;
    tar_reader *r = NULL;

    *out = NULL;
    TRY(memory_new(&r, 1, sizeof *r, "an archive reader"));
    r->path = text_copy(path);
    r->archive = archive_read_new();
    if (r->archive == NULL) {
        FAIL(ERROR_OTHER, "%s: cannot open an archive reader: out of memory; free some memory",
             path);
    }
    /* Name the filters: "all" includes filters that start other programs. So does a filter whose
     * library libarchive was built without; it returns ARCHIVE_WARN then. */
    if (archive_read_support_filter_gzip(r->archive) != ARCHIVE_OK ||
        archive_read_support_filter_bzip2(r->archive) != ARCHIVE_OK ||
        archive_read_support_filter_xz(r->archive) != ARCHIVE_OK ||
        archive_read_support_filter_zstd(r->archive) != ARCHIVE_OK) {
        FAIL(
            ERROR_OTHER,
            "%s: the installed libarchive lacks gzip, bzip2, xz or zstd; install one with all four",
            path);
    }
    (void)archive_read_support_format_tar(r->archive);
    if (archive_read_open_filename(r->archive, path, BLOCK_BYTES) != ARCHIVE_OK)
        FAIL(ERROR_DATA, "%s: %s", path, cause(r));
    *out = r;
    r = NULL;
done:
    tar_reader_close(&r);
    return result;
}

void tar_reader_close(tar_reader **r)
{
    if (*r != NULL) {
        if ((*r)->archive != NULL)
            (void)archive_read_free((*r)->archive);
        memory_free((*r)->path);
        memory_free(*r);
        *r = NULL;
    }
}

status tar_reader_next(tar_reader *r, const char **name, uint64_t *bytes)
{
    status result = OK;
    struct archive_entry *entry = NULL;
    const char *found;

    *name = NULL;
    *bytes = 0;
    for (;;) {
        int code = archive_read_next_header(r->archive, &entry);
        if (code == ARCHIVE_EOF)
            goto done;
        if (code != ARCHIVE_OK && code != ARCHIVE_WARN) {
            FAIL(ERROR_DATA, "%s: the archive cannot be read after member %s: %s", r->path,
                 r->member[0] != '\0' ? r->member : "(none)", cause(r));
        }
        found = archive_entry_pathname(entry);
        if (found == NULL) {
            FAIL(ERROR_DATA,
                 "%s: the name of the member after %s cannot be decoded; give it a name in ASCII",
                 r->path, r->member[0] != '\0' ? r->member : "(none)");
        }
        snprintf(r->member, sizeof r->member, "%s", found);
        if (archive_entry_filetype(entry) == AE_IFREG && archive_entry_hardlink(entry) == NULL)
            break;
    }
    if (!archive_entry_size_is_set(entry) || archive_entry_size(entry) < 0)
        FAIL(ERROR_DATA, "%s: member %s has no size", r->path, r->member);
    *name = found;
    *bytes = (uint64_t)archive_entry_size(entry);
done:
    return result;
}

status tar_reader_read(tar_reader *r, void *out, size_t bytes)
{
    status result = OK;
    for (size_t so_far = 0; so_far < bytes;) {
        la_ssize_t n = archive_read_data(r->archive, (uint8_t *)out + so_far, bytes - so_far);
        if (n <= 0) {
            FAIL(ERROR_DATA, "%s: member %s cannot be read: %s", r->path, r->member,
                 n < 0 ? cause(r) : "truncated: data are missing at its end");
        }
        so_far += (size_t)n;
    }
done:
    return result;
}
