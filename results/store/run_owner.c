#include "results/store/run_owner.h"

#include "base/text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

struct identity {
    char host[128], boot[64], namespace[64];
    int64_t pid, started; /* started: clock ticks after boot; 0: unknown */
};

/* The start time of a process in clock ticks after boot; 0 if it does not exist or is a zombie. */
static int64_t started_at(int64_t pid)
{
    char path[48], line[1024], state = 'Z';
    long long started = 0;
    snprintf(path, sizeof path, "/proc/%lld/stat", (long long)pid);
    text_first_line(path, line, sizeof line);
    /* Format: "pid (name) state ppid …". The name may contain any character. Field 22 is the start.
     */
    const char *at = strrchr(line, ')');
    if (at == NULL || sscanf(at + 1, " %c", &state) != 1 || state == 'Z' || state == 'X')
        return 0;
    at += 2;
    for (int field = 3; field < 22 && at != NULL; field++)
        at = strchr(at + 1, ' ');
    return at != NULL && sscanf(at, "%lld", &started) == 1 ? started : 0;
}

static void identify(struct identity *out)
{
    struct utsname system = {0};
    *out = (struct identity){.pid = getpid()};
    uname(&system);
    snprintf(out->host, sizeof out->host, "%s", system.nodename);
    text_first_line("/proc/sys/kernel/random/boot_id", out->boot, sizeof out->boot);
    ssize_t length = readlink("/proc/self/ns/pid", out->namespace, sizeof out->namespace - 1);
    out->namespace[length > 0 ? length : 0] = '\0';
    out->started = started_at(out->pid);
}

void run_owner_describe(struct text *out)
{
    struct identity self;
    identify(&self);
    text_add(out, "{\"host\":");
    text_add_json(out, self.host);
    text_add(out, ",\"boot\":");
    text_add_json(out, self.boot);
    text_add(out, ",\"namespace\":");
    text_add_json(out, self.namespace);
    text_add(out, ",\"pid\":%lld,\"started\":%lld}", (long long)self.pid, (long long)self.started);
}

enum { WHY = sizeof((struct gone_run *)0)->why };

/* Whether the process of a run no longer exists; then `why` says what happened. false: it lives, or
 * this host cannot tell. The run's last progress report was `silent_s` ago (NaN: unknown). */
static bool is_gone(const struct identity *self, const struct identity *runner,
                    const char *heard_at, double silent_s, char why[WHY])
{
    bool known =
        strcmp(self->host, runner->host) == 0 && self->boot[0] != '\0' && runner->started != 0;
    if (known && strcmp(self->boot, runner->boot) != 0) {
        snprintf(why, WHY, "the machine of this run (%.64s) was restarted; start the run again",
                 runner->host);
        return true;
    }
    if (!known || strcmp(self->namespace, runner->namespace) != 0) {
        snprintf(why, WHY,
                 "no progress since %s: the process of this run (%.64s, process %lld) lost the "
                 "results file, or its machine failed; start the run again",
                 heard_at, runner->host, (long long)runner->pid);
        return silent_s > RUN_OWNER_LOST_S;
    }
    if (started_at(runner->pid) == runner->started)
        return false;
    snprintf(
        why, WHY,
        "the process of this run was killed (gradlag, process %lld), by SIGKILL or for lack of "
        "memory; start the run again",
        (long long)runner->pid);
    return true;
}

static void add(struct gone_runs *gone, int64_t id, const char *heard_at, const char *why)
{
    if (gone->count == gone->capacity) {
        gone->capacity = gone->capacity == 0 ? 8 : 2 * gone->capacity;
        gone->at = realloc(gone->at, gone->capacity * sizeof *gone->at);
        REQUIRE(gone->at != NULL);
    }
    struct gone_run *g = &gone->at[gone->count++];
    g->id = id;
    snprintf(g->heard_at, sizeof g->heard_at, "%s", heard_at);
    snprintf(g->why, sizeof g->why, "%s", why);
}

status run_owner_find_gone(sqlite3 *db, struct gone_runs *out)
{
    status result = OK;
    sqlite3_stmt *s = NULL;
    struct identity self, runner;
    char why[WHY], heard_at[32];
    int code;
    identify(&self);
    TRY(database_prepare(
        db, &s,
        "SELECT id, runner ->> '$.host', runner ->> '$.boot', runner ->> '$.namespace', "
        "runner ->> '$.pid', runner ->> '$.started', heard_at, "
        "(julianday('now') - julianday(heard_at)) * 86400 FROM (SELECT *, "
        "coalesce(progress ->> '$.at', started_at) AS heard_at FROM main.run) "
        "WHERE status IN ('queued', 'running') AND runner IS NOT NULL"));
    while ((code = sqlite3_step(s)) == SQLITE_ROW) {
        database_copy_text(s, 1, runner.host, sizeof runner.host);
        database_copy_text(s, 2, runner.boot, sizeof runner.boot);
        database_copy_text(s, 3, runner.namespace, sizeof runner.namespace);
        runner.pid = sqlite3_column_int64(s, 4);
        runner.started = sqlite3_column_int64(s, 5);
        database_copy_text(s, 6, heard_at, sizeof heard_at);
        double silent_s = heard_at[0] != '\0' ? sqlite3_column_double(s, 7) : NAN;
        if (is_gone(&self, &runner, heard_at, silent_s, why))
            add(out, sqlite3_column_int64(s, 0), heard_at, why);
    }
    TRY(database_check(db, code, "search for killed runs"));
done:
    sqlite3_finalize(s);
    return result;
}

void run_owner_free_gone(struct gone_runs *gone)
{
    free(gone->at);
    *gone = (struct gone_runs){0};
}
