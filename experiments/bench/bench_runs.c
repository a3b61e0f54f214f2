/* bench_runs.c — see bench_runs.h. */
#include "experiments/bench/bench_runs.h"

#include "base/clock.h"
#include "experiments/run/role.h"
#include "results/store/database.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { LIMIT_S = 600, SETTINGS = 16 };

status bench_runs_open(struct bench_runs *r, const char *benchmark)
{
    status result = OK;
    char path[128];
    r->benchmark = benchmark;
    TRY(folder_make(&r->folder, NULL));
    TRY(folder_make(&r->shared, access("/dev/shm", W_OK) == 0 ? "/dev/shm" : NULL));
    snprintf(path, sizeof path, "%s/log", r->folder.path);
    r->log = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (r->log < 0)
        FAIL(ERROR_OTHER, "%s cannot be created: %s", path, strerror(errno));
    text_add(&r->file, "%s/results.db", r->folder.path);
    text_add(&r->results, "results=%s", r->file.at);
done:
    return result;
}

void bench_runs_close(struct bench_runs *r)
{
    text_free(&r->file);
    text_free(&r->results);
    text_free(&r->output);
    if (r->log >= 0)
        close(r->log);
    folder_remove(&r->folder);
    folder_remove(&r->shared);
}

/* The last lines of what the command printed. */
static void read_log(struct bench_runs *r)
{
    char bytes[1024];
    const off_t size = lseek(r->log, 0, SEEK_END);
    const off_t from = size > (off_t)sizeof bytes ? size - (off_t)sizeof bytes : 0;
    const ssize_t got = pread(r->log, bytes, sizeof bytes, from);
    text_add(&r->output, "%.*s", got > 0 ? (int)got : 0, bytes);
}

status bench_runs_command(struct bench_runs *r, const char *const *argv,
                          const char *const *environment, const cpu_set_t *cores, double *seconds)
{
    status result = OK;
    struct child child = {0};
    const double began_s = clock_seconds();
    TRY(child_start_on(&child, argv, environment, r->log, cores));
    while (!child_poll(&child)) {
        struct pollfd end = child_source(&child);
        poll(&end, 1, end.fd >= 0 ? 1000 : 1);
        if (clock_seconds() - began_s > LIMIT_S)
            FAIL(ERROR_PEER, "bench %s: %s did not end within %d s", r->benchmark, argv[0],
                 LIMIT_S);
    }
    *seconds = clock_seconds() - began_s;
    if (child.wait_status != 0) {
        char how[96];
        child_describe(child.wait_status, how);
        read_log(r);
        FAIL(ERROR_PEER, "bench %s: %s %s: %s", r->benchmark, argv[0], how, r->output.at);
    }
done:
    child_kill(&child);
    return result;
}

status bench_runs_gradlag(struct bench_runs *r, const char *command, const char *const *settings,
                          const cpu_set_t *cores, double *seconds)
{
    const char *argv[SETTINGS + 5] = {role_program(), command, "--quiet", r->results.at};
    for (size_t i = 0; settings[i] != NULL; i++) {
        REQUIRE(i < SETTINGS);
        argv[4 + i] = settings[i];
    }
    return bench_runs_command(r, argv, NULL, cores, seconds);
}

status bench_runs_value(struct bench_runs *r, const char *sql, double *value)
{
    status result = OK;
    sqlite3 *db = NULL;
    sqlite3_stmt *statement = NULL;
    TRY(database_open_reader(&db, r->file.at));
    TRY(database_prepare(db, &statement, sql));
    if (sqlite3_step(statement) != SQLITE_ROW || sqlite3_column_type(statement, 0) == SQLITE_NULL)
        FAIL(ERROR_OTHER, "bench %s: the runs recorded nothing for: %s", r->benchmark, sql);
    *value = sqlite3_column_double(statement, 0);
done:
    sqlite3_finalize(statement);
    database_close(&db);
    return result;
}
