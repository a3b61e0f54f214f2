/* output_file.c — see output_file.h. */
#include "base/output_file.h"

#include "base/clock.h"
#include "base/memory.h"
#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST_LINKS = 40, READER_LIMIT_S = 5, RETRY_NS = 20000000 };

/* ---- where it goes ------------------------------------------------------------------------------
 */

/* The kernel follows links of folders. This function must follow a link in the last part, because a
 * rename would replace the link itself. */
status output_file_follow(const char *path, struct text *target)
{
    status result = OK;
    char link[PATH_MAX];
    ssize_t length;
    text_add(target, "%s", path);
    for (unsigned i = 0; (length = readlink(target->at, link, sizeof link - 1)) >= 0; i++) {
        const char *slash = strrchr(target->at, '/');
        if (i == MOST_LINKS)
            FAIL(ERROR_OTHER, "%s: too many levels of symbolic links; choose another path", path);
        link[length] = '\0';
        target->length = link[0] == '/' || slash == NULL ? 0 : (size_t)(slash - target->at) + 1;
        text_add(target, "%s", link);
    }
done:
    return result;
}

/* Whether the file is an SQLite database. It may hold recorded runs. */
static bool is_database(const char *path)
{
    static const char begins[16] = "SQLite format 3"; /* 16 bytes, including the NUL */
    char there[sizeof begins] = "";
    FILE *file = fopen(path, "r");
    const bool is = file != NULL && fread(there, 1, sizeof there, file) == sizeof there &&
                    memcmp(there, begins, sizeof there) == 0;
    if (file != NULL)
        fclose(file);
    return is;
}

/* Sets *in_place if the path is not a regular file. Its links are then not followed, because a link
 * in /proc may lead to a file without a path. */
static status find_target(const char *path, struct text *target, bool *in_place)
{
    status result = OK;
    struct stat about;
    if (path[0] == '\0' || strcmp(path, "-") == 0)
        FAIL(ERROR_USAGE, "'%s' is not the name of a file", path);
    const bool there = stat(path, &about) == 0;
    if (there && S_ISDIR(about.st_mode))
        FAIL(ERROR_USAGE, "%s is a folder; name a file", path);
    *in_place = there && !S_ISREG(about.st_mode);
    if (!*in_place && is_database(path))
        FAIL(ERROR_USAGE, "%s is a results file and would be replaced; choose another path", path);
    if (*in_place)
        text_add(target, "%s", path);
    else
        TRY(output_file_follow(path, target));
done:
    return result;
}

static void folder_of(const char *path, struct text *out)
{
    char *copy = text_copy(path);
    text_add(out, "%s", dirname(copy));
    memory_free(copy);
}

status output_file_check(const char *path)
{
    status result = OK;
    struct text target = {0}, folder = {0};
    bool in_place = false;
    TRY(find_target(path, &target, &in_place));
    folder_of(target.at, &folder);
    if (in_place ? access(path, W_OK) != 0 : access(folder.at, W_OK | X_OK) != 0)
        FAIL(ERROR_OTHER, "%s: %s", in_place ? path : folder.at, strerror(errno));
done:
    text_free(&target);
    text_free(&folder);
    return result;
}

/* ---- opening ------------------------------------------------------------------------------------
 */

/* A FIFO can be opened only when a reader opens it; the wait has a limit. */
static int open_in_place(const char *path)
{
    const double until = clock_seconds() + READER_LIMIT_S;
    struct stat about;
    int file = open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
    const bool fifo = stat(path, &about) == 0 && S_ISFIFO(about.st_mode);
    while (file < 0 && errno == ENXIO && fifo && clock_seconds() < until) {
        clock_sleep_until_ns(clock_ns() + RETRY_NS);
        file = open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
    }
    if (file >= 0)
        (void)fcntl(file, F_SETFL, fcntl(file, F_GETFL) & ~O_NONBLOCK);
    return file;
}

/* The file has no name if the file system supports that: a killed writer then leaves no file. */
static int open_temporary(struct output_file *f)
{
    struct text folder = {0};
    folder_of(f->target.at, &folder);
    text_add(&f->temporary, "%s.%ld.tmp", f->target.at, (long)getpid());
    int file = open(folder.at, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
    f->nameless = file >= 0;
    text_free(&folder);
    if (!f->nameless)
        file = open(f->temporary.at, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    struct stat replaced; /* the earlier file; the new one keeps its permissions */
    if (file >= 0 && stat(f->target.at, &replaced) == 0)
        (void)fchmod(file, replaced.st_mode & 0777);
    return file;
}

static void forget(struct output_file *f)
{
    text_free(&f->target);
    text_free(&f->temporary);
    f->to = NULL;
}

status output_file_open(struct output_file *f, const char *path)
{
    status result = OK;
    bool in_place = false;
    int file = -1;
    TRY(find_target(path, &f->target, &in_place));
    file = in_place ? open_in_place(path) : open_temporary(f);
    f->to = file >= 0 ? fdopen(file, "w") : NULL;
    if (f->to == NULL) {
        FAIL(ERROR_OTHER, "%s cannot be written: %s; %s", path,
             errno == ENXIO ? "no process has opened it for reading" : strerror(errno),
             in_place ? "choose a path that you may write to"
                      : "check that its folder exists and that you may write there");
    }
done:
    if (result != OK) {
        if (file >= 0)
            close(file);
        forget(f);
    }
    return result;
}

status output_file_open_or_stdout(struct output_file *f, const char *path)
{
    if (strcmp(path, "-") != 0)
        return output_file_open(f, path);
    text_add(&f->target, "standard output");
    f->to = stdout;
    return OK;
}

/* ---- closing ------------------------------------------------------------------------------------
 */

static int give_name(int file, const char *name)
{
    char self[40];
    snprintf(self, sizeof self, "/proc/self/fd/%d", file);
    (void)unlink(name);
    return linkat(AT_FDCWD, self, AT_FDCWD, name, AT_SYMLINK_FOLLOW);
}

/* A rename is on disk only after a sync of the folder, which needs permission to read it. */
static bool sync_folder_of(const char *path)
{
    struct text name = {0};
    folder_of(path, &name);
    int folder = open(name.at, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool done = folder >= 0 ? fsync(folder) == 0 || errno == EINVAL : errno == EACCES;
    const int cause = errno;
    if (folder >= 0)
        close(folder);
    text_free(&name);
    errno = cause;
    return done;
}

/* Writes all buffered data and gives the file its name. On failure errno is set. */
static bool complete(struct output_file *f, bool durable)
{
    return fflush(f->to) == 0 && ferror(f->to) == 0 &&
           (!durable || fsync(fileno(f->to)) == 0 || errno == EINVAL) &&
           (!f->nameless || give_name(fileno(f->to), f->temporary.at) == 0);
}

static bool finish(struct output_file *f, bool durable)
{
    const bool completed = complete(f, durable);
    const int cause = errno;
    const bool closed = f->to == stdout || fclose(f->to) == 0;
    errno = completed ? errno : cause;
    return completed && closed &&
           (f->temporary.length == 0 || (rename(f->temporary.at, f->target.at) == 0 &&
                                         (!durable || sync_folder_of(f->target.at))));
}

status output_file_close(struct output_file *f, bool durable)
{
    status result = OK;
    if (!finish(f, durable)) {
        const int cause = errno;
        if (f->temporary.length > 0)
            (void)unlink(f->temporary.at);
        FAIL(ERROR_OTHER, "%s cannot be written: %s; check that the disk has room", f->target.at,
             strerror(cause));
    }
done:
    forget(f);
    return result;
}

void output_file_abandon(struct output_file *f)
{
    if (f->to != NULL && f->to != stdout)
        fclose(f->to);
    if (f->to != NULL && f->temporary.length > 0 && !f->nameless)
        (void)unlink(f->temporary.at);
    forget(f);
}
