#include "tests/rigs/process_rig.h"

#include "base/clock.h"
#include "experiments/command.h"
#include "results/query/query.h"
#include "tests/rigs/scratch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <glob.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static char kept[1 << 18];

/* build/NAME/tests/test_process → build/NAME/gradlag */
const char *process_program_name = "gradlag";

static const char *program(void)
{
    static char own[4096], path[4096];
    if (own[0] == '\0') {
        ssize_t length = readlink("/proc/self/exe", own, sizeof own - 64);
        assert_true(length > 0);
        own[length] = '\0';
    }
    strcpy(path, own);
    *strrchr(path, '/') = '\0';
    snprintf(strrchr(path, '/'), 64, "/%s", process_program_name);
    return path;
}

int process_set_up(void **state)
{
    struct process_rig *r = calloc(1, sizeof *r);
    assert_non_null(r);
    (void)program(); /* in a chroot, a test that enters a mount namespace can no longer read it */
    snprintf(r->folder, sizeof r->folder, "%s/glproc-XXXXXX", scratch_folder());
    assert_non_null(mkdtemp(r->folder));
    *state = r;
    return 0;
}

static int remove_one(const char *path, const struct stat *about, int kind, struct FTW *where)
{
    (void)about;
    (void)kind;
    (void)where;
    return remove(path);
}

int process_tear_down(void **state)
{
    struct process_rig *r = *state;
    if (r->pid != 0) {
        kill(r->pid, SIGKILL);
        waitpid(r->pid, NULL, 0);
    }
    /* scripts/run-tests prints this only if a test failed. cmocka cuts messages at 1024 bytes, and
     * the cut would remove the newline before cmocka's next line. */
    if (r->ended != 0)
        print_message("    the last run ended in %d: %.800s\n", r->ended, process_errors(r));
    nftw(r->folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    free(r);
    return 0;
}

const char *process_path(struct process_rig *r, const char *name)
{
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", r->folder, name);
    return path;
}

void process_write(struct process_rig *r, const char *name, const char *text)
{
    FILE *file = fopen(process_path(r, name), "w");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

static void redirect(const char *folder, const char *name, int fd)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (file < 0 || dup2(file, fd) < 0)
        _exit(126);
    close(file);
}

/* Puts the folder of the tested program first on PATH. */
static void put_on_path(void)
{
    char all[8192], folder[4096];
    const char *path = getenv("PATH");
    snprintf(folder, sizeof folder, "%s", program());
    *strrchr(folder, '/') = '\0';
    snprintf(all, sizeof all, "%s:%s", folder, path != NULL ? path : "/usr/bin:/bin");
    setenv("PATH", all, 1);
}

/* In the forked child: sets folder, environment and output files. */
static void settle_in(const struct process_rig *r)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (chdir(r->folder) != 0)
        _exit(126);
    setenv("TMPDIR", r->folder, 1);
    unsetenv("GRADLAG_LOG");
    put_on_path();
    if (r->output_fd > 0)
        dup2(r->output_fd, STDOUT_FILENO);
    else
        redirect(r->folder, "stdout", STDOUT_FILENO);
    redirect(r->folder, "stderr", STDERR_FILENO);
}

static void start(struct process_rig *r, const char *const *argv)
{
    assert_int_equal(r->pid, 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        settle_in(r);
        execv(argv[0], (char *const *)argv);
        _exit(127);
    }
    r->pid = pid;
}

enum { ARGUMENTS = 64 };

static int command_line(const char *const *arguments, const char *argv[ARGUMENTS])
{
    int count = 1;
    argv[0] = program();
    for (; arguments[count - 1] != NULL; count++) {
        assert_true(count + 1 < ARGUMENTS);
        argv[count] = arguments[count - 1];
    }
    argv[count] = NULL;
    return count;
}

void process_start(struct process_rig *r, const char *const *arguments)
{
    const char *argv[ARGUMENTS];
    command_line(arguments, argv);
    start(r, argv);
}

int process_run_inside(struct process_rig *r, const char *const *arguments)
{
    const char *argv[ARGUMENTS];
    int count = command_line(arguments, argv);
    assert_int_equal(r->pid, 0);
    fflush(NULL); /* otherwise the child would write buffered output again */
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        settle_in(r);
        exit(command_main(count, (char **)argv));
    }
    r->pid = pid;
    return process_wait(r);
}

struct process_arguments process_run_arguments(const char *const *settings, const char *last)
{
    struct process_arguments a = {{"run"}};
    size_t count = 1;
    for (; *settings != NULL; settings++) {
        assert_true(count + 2 < COUNT_OF(a.at));
        a.at[count++] = *settings;
    }
    a.at[count] = last;
    return a;
}

void process_start_shell(struct process_rig *r, const char *script)
{
    const char *const argv[] = {"/bin/bash", "-c", script, NULL};
    start(r, argv);
}

int process_shell(struct process_rig *r, const char *script)
{
    process_start_shell(r, script);
    return process_wait(r);
}

const char *process_program(void)
{
    return program();
}

int process_wait(struct process_rig *r)
{
    double until = clock_seconds() + RIG_LIMIT_S;
    useconds_t pause_us = 100;
    int how = 0;
    assert_true(r->pid > 0);
    while (waitpid(r->pid, &how, WNOHANG) == 0) {
        if (clock_seconds() > until) {
            fail_msg("the program still runs after %d s; it wrote: %s", RIG_LIMIT_S,
                     process_errors(r));
        }
        usleep(pause_us);
        pause_us = pause_us < 5000 ? 2 * pause_us : pause_us;
    }
    r->pid = 0;
    r->ended = WIFSIGNALED(how) ? 128 + WTERMSIG(how) : WEXITSTATUS(how);
    return r->ended;
}

int process_run(struct process_rig *r, const char *const *arguments)
{
    process_start(r, arguments);
    return process_wait(r);
}

static const char *read_whole(const char *path)
{
    FILE *file = fopen(path, "r");
    size_t length = file != NULL ? fread(kept, 1, sizeof kept - 1, file) : 0;
    for (size_t i = 0; i < length; i++)
        kept[i] = kept[i] != '\0' ? kept[i] : ' '; /* Open MPI 5 writes such bytes */
    kept[length] = '\0';
    if (file != NULL)
        fclose(file);
    return kept;
}

const char *process_errors(struct process_rig *r)
{
    return read_whole(process_path(r, "stderr"));
}

const char *process_output(struct process_rig *r)
{
    return read_whole(process_path(r, "stdout"));
}

void process_expect_error(struct process_rig *r, const char *part)
{
    const char *errors = process_errors(r);
    const char *first = strstr(errors, "error: ");
    if (strstr(errors, part) == NULL)
        fail_msg("'%s' is not in: %s", part, errors);
    if (first == NULL || strstr(first + 1, "error: ") != NULL)
        fail_msg("one error is wanted, not: %s", errors);
}

void process_expect_errors_contain(struct process_rig *r, const char *part)
{
    if (strstr(process_errors(r), part) == NULL)
        fail_msg("'%s' is not in: %s", part, process_errors(r));
}

void process_expect_line(struct process_rig *r, const char *first, const char *second)
{
    char *rest = (char *)process_output(
        r); /* cut into lines in place; the failure message reads the file again */
    for (char *line = strtok_r(rest, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest))
        if (strstr(line, first) != NULL && strstr(line, second) != NULL)
            return;
    fail_msg("no line has '%s' and '%s': %s", first, second, process_output(r));
}

/* ---- processes ----------------------------------------------------------------------------------
 */

static bool read_process(const char *pid, const char *what, char *out, size_t room)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%.16s/%s", pid, what);
    int fd = open(path, O_RDONLY);
    ssize_t length = fd >= 0 ? read(fd, out, room - 1) : -1;
    if (fd >= 0)
        close(fd);
    out[length > 0 ? length : 0] = '\0';
    return length > 0;
}

static pid_t parent_of(pid_t pid)
{
    char name[16], text[512];
    snprintf(name, sizeof name, "%d", (int)pid);
    if (!read_process(name, "stat", text, sizeof text))
        return 0;
    /* "pid (name) state ppid"; the name may contain any character */
    const char *end = strrchr(text, ')');
    return end != NULL ? (pid_t)atoi(end + 4) : 0;
}

static bool descends(pid_t pid, pid_t from)
{
    for (int depth = 0; pid > 1 && depth < 8; depth++) {
        pid = parent_of(pid);
        if (pid == from)
            return true;
    }
    return false;
}

unsigned process_find(const struct process_rig *r, const char *role, pid_t *out, unsigned room)
{
    unsigned count = 0;
    DIR *all = opendir("/proc");
    struct dirent *entry;
    assert_non_null(all);
    while ((entry = readdir(all)) != NULL && count < room) {
        char line[1024] = {0};
        if (!isdigit((unsigned char)entry->d_name[0]) ||
            !read_process(entry->d_name, "cmdline", line, sizeof line))
            continue;
        const char *first = line + strlen(line) + 1;
        pid_t pid = (pid_t)atoi(entry->d_name);
        if (first < line + sizeof line && strcmp(first, role) == 0 && descends(pid, r->pid))
            out[count++] = pid;
    }
    closedir(all);
    return count;
}

unsigned process_rank(pid_t pid)
{
    static const char name[] = "OMPI_COMM_WORLD_RANK=";
    char path[64], all[65536];
    snprintf(path, sizeof path, "/proc/%d/environ", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    ssize_t size = read(fd, all, sizeof all - 1);
    close(fd);
    assert_true(size > 0);
    all[size] = '\0';
    for (const char *at = all; at < all + size; at += strlen(at) + 1)
        if (strncmp(at, name, strlen(name)) == 0)
            return (unsigned)atoi(at + strlen(name));
    fail_msg("process %d has no rank", (int)pid);
    return 0;
}

void process_await(const struct process_rig *r, const char *role, pid_t *out, unsigned count)
{
    double until = clock_seconds() + RIG_LIMIT_S;
    while (process_find(r, role, out, count) < count) {
        if (clock_seconds() > until)
            fail_msg("no %u processes `gradlag %s` after %d s", count, role, RIG_LIMIT_S);
        usleep(5000);
    }
}

void process_await_row(struct process_rig *r, const char *sql)
{
    double until = clock_seconds() + RIG_LIMIT_S;
    while (atoi(process_ask(r, sql)) < 1) {
        if (clock_seconds() > until)
            fail_msg("after %d s there is still no row: %s", RIG_LIMIT_S, sql);
        usleep(50000);
    }
}

void process_await_verdict(struct process_rig *r)
{
    const char *verdict = process_path(r, "gradlag-*/verdict");
    glob_t found;
    for (double until = clock_seconds() + RIG_LIMIT_S; glob(verdict, 0, NULL, &found) != 0;) {
        if (clock_seconds() > until)
            fail_msg("after %d s there is no %s", RIG_LIMIT_S, verdict);
        usleep(50000);
    }
    globfree(&found);
}

void process_await_endpoint(struct process_rig *r, char endpoint[128], char token[64])
{
    double until = clock_seconds() + RIG_LIMIT_S;
    const char *at;
    while ((at = strstr(process_errors(r), "run_token=")) == NULL || strchr(at, '\n') == NULL) {
        assert_true(clock_seconds() < until);
        usleep(5000);
    }
    at = strstr(process_errors(r), "endpoint=");
    assert_non_null(at);
    snprintf(endpoint, RIG_ENDPOINT_BYTES, "%.*s", (int)strcspn(at, " "), at);
    at = strstr(process_errors(r), "run_token=");
    snprintf(token, 64, "%.*s", (int)strcspn(at, " "), at);
}

const char *process_ask(struct process_rig *r, const char *sql)
{
    static char answer[4096];
    char *written = NULL, path[128];
    size_t length = 0;
    snprintf(path, sizeof path, "%s/results.db", r->folder);
    FILE *memory = open_memstream(&written, &length);
    struct query_request request = {.path = path, .question = sql, .format = QUERY_CSV};
    status result = access(path, F_OK) == 0 ? query_run(&request, memory, NULL) : ERROR_RESULTS;
    fclose(memory);
    const char *line = result == OK ? strchr(written, '\n') : NULL;
    snprintf(answer, sizeof answer, "%.*s", line != NULL ? (int)strcspn(line + 1, "\r\n") : 0,
             line != NULL ? line + 1 : "");
    free(written);
    return strcmp(answer, "\"\"") == 0 ? ""
                                       : answer; /* a NULL that is the only field of its line */
}

void process_expect_answer(struct process_rig *r, const char *sql, const char *answer)
{
    const char *observed = process_ask(r, sql);
    if (strcmp(observed, answer) != 0)
        fail_msg("%s: %s, expected %s", sql, observed, answer);
}

void process_expect_replayed(struct process_rig *r)
{
    char parameters[80];
    snprintf(parameters, sizeof parameters, "parameters %s",
             process_ask(r, "SELECT parameters_sha256 FROM run ORDER BY id DESC LIMIT 1"));
    assert_int_equal(strlen(parameters), strlen("parameters ") + 64);
    if (RIG_RUN(r, "replay", "last") != OK)
        fail_msg("%s", process_errors(r));
    process_expect_line(r, parameters, "");
}

/* ---- what is left -------------------------------------------------------------------------------
 */

static unsigned processes_in(const char *folder)
{
    unsigned count = 0;
    DIR *all = opendir("/proc");
    struct dirent *entry;
    while (all != NULL && (entry = readdir(all)) != NULL) {
        char link[64], at[256] = {0};
        snprintf(link, sizeof link, "/proc/%.16s/cwd", entry->d_name);
        if (isdigit((unsigned char)entry->d_name[0]) && readlink(link, at, sizeof at - 1) > 0 &&
            strcmp(at, folder) == 0)
            count++;
    }
    if (all != NULL)
        closedir(all);
    return count;
}

/* The number of private folders in `base` without a living owner whose launcher worked in
 * `tmpdir`. Other tests, which run in parallel, kill launchers, too. */
static unsigned abandoned_in(const char *base, const char *tmpdir)
{
    unsigned count = 0;
    DIR *all = opendir(base);
    struct dirent *entry;
    while (all != NULL && (entry = readdir(all)) != NULL) {
        char path[512], maker[512];
        snprintf(path, sizeof path, "%s/%s/lock", base, entry->d_name);
        int fd = strncmp(entry->d_name, "gradlag-", 8) == 0 ? open(path, O_RDWR | O_CLOEXEC) : -1;
        if (fd >= 0) {
            ssize_t length = read(fd, maker, sizeof maker - 1);
            maker[length > 0 ? length : 0] = '\0';
            count += strstr(maker, tmpdir) != NULL && flock(fd, LOCK_EX | LOCK_NB) == 0;
            close(fd);
        }
    }
    if (all != NULL)
        closedir(all);
    return count;
}

void process_expect_none_running(struct process_rig *r)
{
    /* A killed process disappears shortly after its parent's end, on a busy machine after some
     * seconds, but long before any timeout. */
    double until = clock_seconds() + 15;
    while (processes_in(r->folder) > 0 && clock_seconds() < until)
        usleep(5000);
    assert_int_equal(processes_in(r->folder), 0);
}

void process_expect_nothing_left(struct process_rig *r)
{
    process_expect_none_running(r);
    assert_int_equal(abandoned_in(r->folder, r->folder), 0);
    assert_int_equal(abandoned_in("/dev/shm", r->folder), 0);
}
