#include "results/store/atomic_file.h"

#include "base/log.h"
#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

static const char ending[] = ".merging-";

bool atomic_file_is_open(const struct atomic_file *d)
{
    return d->path.length > 0;
}

const char *atomic_file_path(const struct atomic_file *d)
{
    return d->path.at;
}

status atomic_file_open(struct atomic_file *d, const char *into)
{
    status result = OK;
    unsigned random = 0;
    if (getrandom(&random, sizeof random, 0) != (ssize_t)sizeof random)
        FAIL(ERROR_OTHER, "the kernel has no random bytes: %s", strerror(errno));
    text_add(&d->path, "%s%s%08x", into, ending, random);
    int file = open(d->path.at, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file < 0) {
        text_free(&d->path);
        FAIL(ERROR_RESULTS,
             "%s: no temporary file can be created beside it: %s; check that the folder exists and "
             "is writable and that the disk is not full",
             into, strerror(errno));
    }
    close(file);
done:
    return result;
}

/* SQLite would treat such files as parts of `into`. */
static status check_no_leftovers(const char *into)
{
    static const char *const endings[] = {"-wal", "-shm", "-journal"};
    status result = OK;
    struct text each = {0};
    for (size_t i = 0; i < COUNT_OF(endings); i++) {
        each.length = 0;
        text_add(&each, "%s%s", into, endings[i]);
        if (access(each.at, F_OK) == 0) {
            FAIL(ERROR_RESULTS,
                 "%s belongs to an earlier file %s, which no longer exists; restore that file, "
                 "remove "
                 "its leftovers, or name another file",
                 each.at, into);
        }
    }
done:
    text_free(&each);
    return result;
}

status atomic_file_publish(struct atomic_file *d, const char *into)
{
    status result = OK;
    TRY(check_no_leftovers(into));
    if (link(d->path.at, into) == 0) {
        unlink(d->path.at);
    } else if (errno == EEXIST) {
        FAIL(ERROR_RESULTS,
             "%s: another process created this file during the merge; it was not changed. Run the "
             "same command again to merge into it",
             into);
    } else if (rename(d->path.at, into) != 0) { /* the file system has no hard links */
        FAIL(ERROR_RESULTS,
             "%s: the merged file cannot be renamed to this name: %s; the merge was not saved",
             into, strerror(errno));
    }
    text_free(&d->path);
done:
    return result;
}

void atomic_file_close(struct atomic_file *d)
{
    static const char *const endings[] = {"", "-wal", "-shm", "-journal"};
    for (size_t i = 0; i < COUNT_OF(endings) && atomic_file_is_open(d); i++) {
        struct text each = {0};
        text_add(&each, "%s%s", d->path.at, endings[i]);
        unlink(each.at);
        text_free(&each);
    }
    text_free(&d->path);
}

void atomic_file_warn_of_others(const char *into)
{
    struct text pattern = {0};
    glob_t found = {0};
    for (const char *c = into; *c != '\0'; c++)
        text_add(&pattern, "%s%c", strchr("*?[\\", *c) != NULL ? "\\" : "", *c);
    text_add(&pattern, "%s????????", ending);
    if (glob(pattern.at, 0, NULL, &found) == 0) {
        log_warning("%s: temporary file of another merge; if no merge is running, remove it",
                    found.gl_pathv[0]);
        globfree(&found);
    }
    text_free(&pattern);
}
