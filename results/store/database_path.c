#include "results/store/database_path.h"

#include "base/text.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

status database_path_regular(const char *path)
{
    status result = OK;
    struct stat about;
    if (stat(path, &about) != 0 || S_ISREG(about.st_mode))
        return OK;
    if (S_ISDIR(about.st_mode))
        FAIL(ERROR_RESULTS, "%s is a folder; name the results file in it with results=PATH", path);
    FAIL(ERROR_RESULTS, "%s is not a regular file; name another file with results=PATH", path);
done:
    return result;
}

/* For a folder without write permission SQLite returns "No such file or directory", because it
 * tries to open the file for reading last. */
static status check_creatable(const char *path)
{
    status result = OK;
    const char *slash = strrchr(path, '/');
    struct text folder = {0};
    text_add(&folder, "%.*s", slash == NULL ? 1 : (int)(slash - path) + 1,
             slash == NULL ? "." : path);
    if (access(folder.at, W_OK | X_OK) != 0) {
        const int why = errno;
        FAIL(ERROR_RESULTS,
             "%s: the results file cannot be created: its folder %s: %s; %s, or name another file "
             "with results=PATH",
             path, folder.at, strerror(why),
             why == ENOENT ? "create the folder" : "change the folder's permissions");
    }
done:
    text_free(&folder);
    return result;
}

static bool is_of_sqlite(const char *path)
{
    const char *end = strrchr(path, '-');
    return end != NULL &&
           (strcmp(end, "-wal") == 0 || strcmp(end, "-shm") == 0 || strcmp(end, "-journal") == 0);
}

status database_path_writable(const char *path)
{
    status result = OK;
    struct stat about;
    if (path[0] == ':' || strncmp(path, "file:", 5) == 0)
        FAIL(ERROR_USAGE, "results=%s has a meaning of its own for SQLite; name a file: ./%s", path,
             path);
    if (is_of_sqlite(path))
        FAIL(ERROR_USAGE,
             "results=%s: SQLite keeps temporary files under names that end in '%s', "
             "and would delete this one; choose another name",
             path, strrchr(path, '-'));
    TRY(database_path_regular(path));
    if (access(path, F_OK) == 0 && access(path, W_OK) != 0) {
        FAIL(ERROR_RESULTS,
             "%s: could not open the file for writing: the file is not writable for this user; "
             "change its permissions or name another file with results=PATH",
             path);
    }
    if (lstat(path, &about) != 0) /* SQLite creates the target of a dangling link */
        TRY(check_creatable(path));
done:
    return result;
}
