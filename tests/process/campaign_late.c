/*
 * campaign_late.c — late workers of a run (key workers.max); see campaign.h.
 *
 * A process of this test attends each late worker, because faults of the run last for seconds. It
 * uses no assertion of cmocka, which would return into the test that was forked.
 */
#include "base/clock.h"
#include "tests/process/campaign.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LIVES = 3, LAST_S = 60 * PATIENCE, UNEXPLAINED = 255 };

/* A worker is away, then it stays for a while, or until the run ends. */
struct life {
    double away_s, stay_s;
    bool joins;  /* true: stay_s begins with the worker's event worker_joined */
    int ends_by; /* the signal that ends it; 0: none */
};

struct late {
    struct campaign_episode *e;
    pid_t run;
    unsigned worker;
    struct life life[LIVES];
    unsigned lives;
    char endpoint[RIG_ENDPOINT_BYTES], token[64], number[32];
};

static void draw(struct late *l)
{
    static const int signals[] = {SIGKILL, SIGKILL, SIGTERM, SIGINT};
    const bool may_leave = campaign_has(l->e, "on_lost=continue");
    l->lives = may_leave && campaign_chance(l->e, 0.8) ? 2 + campaign_chance(l->e, 0.5) : 1;
    for (unsigned i = 0; i < l->lives; i++) {
        l->life[i].away_s = campaign_between(l->e, 0, i == 0 ? l->e->seconds / 2 : 0.4);
        l->life[i].joins = campaign_chance(l->e, 0.7);
        l->life[i].stay_s = campaign_between(l->e, 0, l->life[i].joins ? 0.5 : 1.5);
        if (i + 1 < l->lives)
            l->life[i].ends_by = signals[random_below(&l->e->random, COUNT_OF(signals))];
    }
}

static bool has_ended(const struct late *l)
{
    return kill(l->run, 0) != 0;
}

/* "key=value" in the line of the run that invites late workers. */
static bool find(const char *line, const char *key, char *out, size_t room)
{
    const char *at = strstr(line, key);
    if (at != NULL)
        snprintf(out, room, "%.*s", (int)strcspn(at, " \n"), at);
    return at != NULL;
}

static bool await_invitation(struct late *l)
{
    for (; !has_ended(l); usleep(5000)) {
        const char *line = strstr(process_errors(l->e->rig), "gradlag worker endpoint=");
        if (line != NULL && strchr(line, '\n') != NULL)
            return find(line, "endpoint=", l->endpoint, sizeof l->endpoint) &&
                   find(line, "run_token=", l->token, sizeof l->token);
    }
    return false;
}

static void become_worker(const struct late *l)
{
    const char *const *settings = campaign_arguments(l->e, "worker", NULL);
    const char *all[CAMPAIGN_SETTINGS + 6] = {process_program()};
    char errors[32];
    size_t count = 1;
    for (; *settings != NULL; settings++)
        all[count++] = *settings;
    all[count++] = l->endpoint;
    all[count++] = l->token;
    all[count++] = l->number;
    snprintf(errors, sizeof errors, "late-%u", l->worker);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int file = -1;
    if (chdir(l->e->rig->folder) == 0)
        file = open(errors, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (file < 0 && errno != ENOSPC)
        _exit(126);
    dup2(file, STDOUT_FILENO);
    dup2(file, STDERR_FILENO);
    setenv("TMPDIR", l->e->rig->folder, 1);
    unsetenv("GRADLAG_LOG");
    execv(all[0], (char *const *)all);
    _exit(127);
}

static int code_of(int how)
{
    return WIFSIGNALED(how) ? 128 + WTERMSIG(how) : WEXITSTATUS(how);
}

/* How often the worker has joined. */
static int joined(const struct late *l)
{
    char sql[128];
    snprintf(
        sql, sizeof sql,
        "SELECT count(*) FROM event WHERE code = 'worker_joined' AND server = 0 AND worker = %u",
        l->worker);
    return atoi(process_ask(l->e->rig, sql));
}

/* −1: the worker still runs long after the run. */
static int await_end(const struct late *l, const struct life *life, pid_t pid)
{
    double begin = clock_seconds(), ended = 0;
    const int before = joined(l);
    bool waits = life->joins;
    bool sent = life->ends_by == 0;
    int how = 0;
    while (waitpid(pid, &how, WNOHANG) == 0) {
        const double now = clock_seconds();
        if (!sent && waits) {
            waits = joined(l) == before;
            begin = now;
            usleep(20000);
        } else if (!sent && now - begin > life->stay_s)
            sent = kill(pid, life->ends_by) == 0;
        if (ended == 0 && has_ended(l))
            ended = now;
        if (ended > 0 && now - ended > LAST_S) {
            kill(pid, SIGKILL);
            return -1;
        }
        usleep(2000);
    }
    return code_of(how);
}

/* A fault may kill the worker or a process that it needs. The run may be over before it joins. */
static bool is_explained(const struct late *l, const struct life *life, int code)
{
    return campaign_explains(l->e, code) || code == ERROR_PEER || code == 128 + SIGKILL ||
           (life->ends_by != 0 && (code == STOPPED || code == 128 + life->ends_by));
}

static void tell(const struct late *l, int code)
{
    char path[128], text[2048];
    snprintf(path, sizeof path, "%s/late-%u", l->e->rig->folder, l->worker);
    FILE *file = fopen(path, "r");
    size_t length = file != NULL ? fread(text, 1, sizeof text - 1, file) : 0;
    text[length] = '\0';
    if (file != NULL)
        fclose(file);
    printf("late worker %u ended in %d, which nothing explains: %s\n", l->worker, code, text);
    fflush(stdout);
}

/* Returns the last exit code of the worker, or UNEXPLAINED. After several lives, ERROR_PEER is
 * returned as OK. */
static int attend(struct late *l)
{
    snprintf(l->number, sizeof l->number, "worker=%u", l->worker);
    campaign_sleep(l->life[0].away_s);
    int code = OK;
    unsigned i = 0;
    if (!await_invitation(l))
        return OK;
    for (; i < l->lives && !has_ended(l); i++) {
        const struct life *life = &l->life[i];
        if (i > 0)
            campaign_sleep(life->away_s);
        pid_t pid = fork();
        if (pid < 0)
            return UNEXPLAINED;
        if (pid == 0)
            become_worker(l);
        code = await_end(l, life, pid);
        printf("late worker %u: life %u ended in %d\n", l->worker, i, code);
        fflush(stdout);
        if (!is_explained(l, life, code)) {
            tell(l, code);
            return UNEXPLAINED;
        }
    }
    return i > 1 && code == ERROR_PEER ? OK : code; /* the run may end before a rejoin */
}

void campaign_start(struct campaign_episode *e, const char *last)
{
    remove(process_path(e->rig, "stderr")); /* an earlier run's invitation */
    process_start(e->rig, campaign_arguments(e, "run", last));
    for (unsigned i = 0; i < e->late; i++) {
        struct late l = {.e = e, .run = e->rig->pid, .worker = e->workers + i};
        draw(&l);
        fflush(NULL);
        e->attending[i] = fork();
        assert_true(e->attending[i] >= 0);
        if (e->attending[i] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            _exit(attend(&l));
        }
    }
}

static bool takes_part_at_the_end(struct campaign_episode *e, unsigned worker)
{
    char sql[256];
    snprintf(sql, sizeof sql,
             "SELECT code FROM event WHERE run_id = (SELECT max(id) FROM run) AND worker = %u AND "
             "server = 0 AND code IN ('worker_joined', 'worker_lost') ORDER BY rowid DESC LIMIT 1",
             worker);
    return strcmp(process_ask(e->rig, sql), "worker_joined") == 0;
}

static bool leaves_messages_alone(const struct campaign_fault *fault)
{
    return fault == NULL || strcmp(fault->name, "none") == 0 ||
           strcmp(fault->name, "kill-worker") == 0 || strcmp(fault->name, "results-locked") == 0;
}

int campaign_wait(struct campaign_episode *e)
{
    const int code = process_wait(e->rig);
    int ended[CAMPAIGN_LATE];
    for (unsigned i = 0; i < e->late; i++) {
        int how = 0;
        assert_int_equal(waitpid(e->attending[i], &how, 0), e->attending[i]);
        ended[i] = code_of(how);
    }
    for (unsigned i = 0; i < e->late; i++) {
        assert_int_not_equal(ended[i], UNEXPLAINED);
        if (code == OK && leaves_messages_alone(e->fault) && ended[i] == ERROR_PEER &&
            takes_part_at_the_end(e, e->workers + i))
            fail_msg("worker %u took part in the run, which finished, and ended in %d",
                     e->workers + i, ended[i]);
    }
    return code;
}
