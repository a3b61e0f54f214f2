#include "base/thread.h"
#include "experiments/run/child_process.h"

#include "base/memory.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define FOLDER_PREFIX "gradlag-"

/* Runs in the child after fork(): resets the signals, makes a process group, and asks the kernel to
 * kill the child when its parent dies. */
static void become_child(pid_t parent)
{
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    signal(SIGHUP, SIG_DFL);
    signal(SIGPIPE, SIG_DFL);
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(ERROR_PEER); /* the parent died before prctl() */
}

/* Runs in the child after fork(); calls only async-signal-safe functions. */
static _Noreturn void exec_child(const char *const *argv, char *const *environment, int error_fd,
                                 pid_t parent, bool keep_stdout, const cpu_set_t *cores)
{
    become_child(parent);
    if (cores != NULL)
        sched_setaffinity(0, sizeof *cores, cores); /* a failure only makes the run slower */
    int nothing = open("/dev/null", O_RDONLY);
    if (nothing >= 0) {
        dup2(nothing, STDIN_FILENO);
        close(nothing);
    }
    if (error_fd >= 0)
        dup2(error_fd, STDERR_FILENO);
    if (!keep_stdout)
        dup2(STDERR_FILENO, STDOUT_FILENO);
    execvpe(argv[0], (char *const *)argv, environment);
    _exit(CHILD_NOT_STARTED);
}

static status start(struct child *c, const char *const *argv, const char *const *environment,
                    int error_fd, bool keep_stdout, const cpu_set_t *cores)
{
    status result = OK;
    char **merged = NULL;
    size_t own = 0, added = 0;
    *c = (struct child){0};
    while (environ[own] != NULL)
        own++;
    while (environment != NULL && environment[added] != NULL)
        added++;
    TRY(memory_new(&merged, own + added + 1, sizeof *merged, "an environment"));
    /* getenv() finds the first of two entries with the same name. */
    for (size_t i = 0; i < added; i++)
        merged[i] = (char *)environment[i];
    memcpy(&merged[added], environ, own * sizeof *merged);
    pid_t parent = getpid(), pid = fork();
    if (pid < 0) {
        FAIL(ERROR_OTHER,
             "%s cannot be started: %s; check the number of running processes (`ulimit -u`)",
             argv[0], strerror(errno));
    }
    if (pid == 0)
        exec_child(argv, merged, error_fd, parent, keep_stdout, cores);
    setpgid(pid, pid); /* in parent and child, so that it is set whichever runs first */
    /* close-on-exec; fails only on a kernel older than 5.3 or without free descriptors */
    *c = (struct child){.pid = pid, .running = true, .pidfd = (int)syscall(SYS_pidfd_open, pid, 0)};
done:
    memory_free(merged);
    return result;
}

status child_start(struct child *c, const char *const *argv, const char *const *environment,
                   int error_fd)
{
    return start(c, argv, environment, error_fd, false, NULL);
}

status child_start_with_stdout(struct child *c, const char *const *argv,
                               const char *const *environment, int error_fd)
{
    return start(c, argv, environment, error_fd, true, NULL);
}

status child_start_on(struct child *c, const char *const *argv, const char *const *environment,
                      int error_fd, const cpu_set_t *cores)
{
    return start(c, argv, environment, error_fd, false, cores);
}

status child_fork(struct child *c, void (*work)(const void *context), const void *context)
{
    status result = OK;
    *c = (struct child){0};
    const pid_t parent = getpid(), pid = fork();
    if (pid < 0)
        FAIL(ERROR_OTHER, "a process cannot be started: %s", strerror(errno));
    if (pid == 0) {
        become_child(parent);
        work(context);
        _exit(OK);
    }
    setpgid(pid, pid);
    *c = (struct child){.pid = pid, .running = true, .pidfd = -1};
done:
    return result;
}

static void set_ended(struct child *c)
{
    c->running = false;
    if (c->pidfd >= 0)
        close(c->pidfd);
    c->pidfd = -1;
}

struct pollfd child_source(const struct child *c)
{
    return (struct pollfd){.fd = c->running ? c->pidfd : -1, .events = POLLIN};
}

bool child_poll(struct child *c)
{
    if (!c->running)
        return false;
    pid_t got = waitpid(c->pid, &c->wait_status, WNOHANG);
    if (got == 0 || (got < 0 && errno == EINTR))
        return false;
    set_ended(c);
    return true;
}

void child_signal(const struct child *c, int number)
{
    if (c->running)
        kill(c->pid, number);
}

void child_kill(struct child *c)
{
    if (!c->running)
        return;
    kill(-c->pid, SIGKILL);
    kill(c->pid, SIGKILL);
    /* No time limit: after SIGKILL only the kernel can delay the end. */
    while (waitpid(c->pid, &c->wait_status, 0) < 0 && errno == EINTR) {
    }
    set_ended(c);
}

void child_describe(int wait_status, char out[96])
{
    if (WIFSIGNALED(wait_status)) {
        int number = WTERMSIG(wait_status);
        snprintf(out, 96, "was killed by signal %d (%s)", number, strsignal(number));
    } else if (WEXITSTATUS(wait_status) == CHILD_NOT_STARTED) {
        snprintf(out, 96, "could not be started");
    } else {
        snprintf(out, 96, "ended with exit code %d", WEXITSTATUS(wait_status));
    }
}

status open_files_allow(unsigned processes, unsigned servers)
{
    enum {
        OWN = 64,
        EACH = 5,         /* a server opens 20 files and 4 per worker, mpirun 24 and 3 per rank */
        EACH_SERVER = 25, /* a worker opens 6 files and 24 per server */
        PLENTY = 65536    /* for connections of strangers; some libraries close every number */
    };
    status result = OK;
    struct rlimit limit;
    const rlim_t of_server = (rlim_t)EACH * processes, of_worker = (rlim_t)EACH_SERVER * servers;
    const rlim_t count = OWN + (of_server > of_worker ? of_server : of_worker);
    const rlim_t wanted = count > PLENTY ? count : PLENTY;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted)
        return OK; /* if the limit is unknown, open() will report it */
    if (limit.rlim_max < count) {
        FAIL(ERROR_USAGE,
             "%u processes need up to %llu open files, but the limit here is %llu: raise it "
             "(`ulimit -Hn`), use fewer workers or servers, or simulate them with engine=virtual",
             processes, (unsigned long long)count, (unsigned long long)limit.rlim_max);
    }
    const bool enough = limit.rlim_cur >= count;
    limit.rlim_cur = limit.rlim_max < wanted ? limit.rlim_max : wanted;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0 && !enough) {
        FAIL(ERROR_OTHER, "the limit of open files cannot be raised to %llu: %s",
             (unsigned long long)limit.rlim_cur, strerror(errno));
    }
done:
    return result;
}

/* The disposition of SIGHUP at the start of the program; the first word is the handler. It is read
 * before any library is initialised, because libpsm2 (Debian 13's Open MPI) installs a handler when
 * it is loaded. The direct system call is needed because a sanitizer's runtime is not initialised
 * yet. */
static unsigned long initial_hangup[32];

__attribute__((no_sanitize("address", "thread", "undefined"))) static void read_hangup(void)
{
    (void)syscall(SYS_rt_sigaction, SIGHUP, NULL, initial_hangup, 8);
}

__attribute__((section(".preinit_array"),
               used)) static void (*const read_hangup_first)(void) = read_hangup;

void signals_catch(void (*handler)(int))
{
    struct sigaction action = {.sa_handler = handler};
    sigemptyset(&action.sa_mask);
    sigaddset(&action.sa_mask, SIGINT);
    sigaddset(&action.sa_mask, SIGTERM);
    sigaddset(&action.sa_mask, SIGHUP);
    signal_handle(SIGINT, &action);
    signal_handle(SIGTERM, &action);
    if (initial_hangup[0] == (unsigned long)SIG_IGN)
        action.sa_handler = SIG_IGN;
    signal_handle(SIGHUP, &action);
}

/* ---- the private folder -------------------------------------------------------------------------
 */

static int remove_one(const char *path, const struct stat *about, int kind, struct FTW *where)
{
    (void)about;
    (void)kind;
    (void)where;
    remove(path);
    return 0;
}

void folder_remove(struct folder *f)
{
    if (f->path[0] != '\0') {
        nftw(f->path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
        if (f->lock >= 0)
            close(f->lock);
        f->path[0] = '\0';
    }
}

/* True for a folder that folder_make of this user created. */
static bool is_private_folder(const char *name, const char *path)
{
    struct stat about;
    return strncmp(name, FOLDER_PREFIX, strlen(FOLDER_PREFIX)) == 0 &&
           strlen(name) == strlen(FOLDER_PREFIX "XXXXXX") && lstat(path, &about) == 0 &&
           S_ISDIR(about.st_mode) && (about.st_mode & 07777) == 0700 && about.st_uid == geteuid();
}

/* Removes folders whose lock is free: their creators were killed. */
static void remove_abandoned(const char *base)
{
    DIR *all = opendir(base);
    struct dirent *entry;
    while (all != NULL && (entry = readdir(all)) != NULL) {
        struct folder found;
        char lock[128];
        snprintf(found.path, sizeof found.path, "%.48s/%.32s", base, entry->d_name);
        if (!is_private_folder(entry->d_name, found.path))
            continue;
        snprintf(lock, sizeof lock, "%s/lock", found.path);
        found.lock = open(lock, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
        if (found.lock >= 0 && flock(found.lock, LOCK_EX | LOCK_NB) == 0)
            folder_remove(&found);
        else if (found.lock >= 0)
            close(found.lock);
    }
    if (all != NULL)
        closedir(all);
}

/* The path of a socket is limited to 107 bytes, and a comma separates endpoints of several servers.
 */
static bool may_be_base(const char *path)
{
    return path[0] == '/' && strlen(path) <= 48 && strchr(path, ',') == NULL;
}

/* The value of TMPDIR that cannot be used; NULL: there is none. */
static const char *unused_place(void)
{
    const char *place = getenv("TMPDIR");
    return place != NULL && place[0] != '\0' && !may_be_base(place) ? place : NULL;
}

/* Creates and locks a folder. *taken: before this process had the lock, another one took the folder
 * for abandoned and removed it. */
static status create_locked(struct folder *f, const char *base, bool *taken)
{
    status result = OK;
    char path[96], lock[128];
    struct stat about;
    *taken = false;
    snprintf(path, sizeof path, "%s/" FOLDER_PREFIX "XXXXXX", base);
    if (mkdtemp(path) == NULL) {
        const char *unused = unused_place();
        FAIL(ERROR_OTHER, "%s cannot be created: %s; set TMPDIR to a writable folder%s%s%s", path,
             strerror(errno), unused != NULL ? " (TMPDIR=" : "", unused != NULL ? unused : "",
             unused != NULL
                 ? " is not used: it must be an absolute path of at most 48 bytes without a comma)"
                 : "");
    }
    snprintf(lock, sizeof lock, "%s/lock", path);
    f->lock = open(lock, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    memcpy(f->path, path, sizeof path);
    if (f->lock < 0 && errno == ENOENT) {
        *taken = true;
    } else if (f->lock < 0 || flock(f->lock, LOCK_EX) != 0 || fstat(f->lock, &about) != 0) {
        FAIL(ERROR_OTHER, "%s cannot be created and locked: %s; check that the disk is not full",
             lock, strerror(errno));
    } else {
        const char *place = getenv("TMPDIR");
        *taken = about.st_nlink == 0;
        dprintf(f->lock, "process %ld, TMPDIR=%s\n", (long)getpid(), place != NULL ? place : "");
    }
done:
    if (result != OK || *taken)
        folder_remove(f);
    return result;
}

status folder_make(struct folder *f, const char *base)
{
    status result = OK;
    bool taken = true;
    f->path[0] = '\0';
    base = base != NULL ? base : getenv("TMPDIR");
    if (base == NULL || !may_be_base(base))
        base = "/tmp";
    remove_abandoned(base);
    remove_abandoned("/dev/shm"); /* from killed synchronous runs */
    for (unsigned tries = 0; taken; tries++) {
        if (tries == 10) {
            FAIL(ERROR_OTHER,
                 "%s: other processes keep removing the private folder created there; set TMPDIR "
                 "to another folder",
                 base);
        }
        TRY(create_locked(f, base, &taken));
    }
done:
    return result;
}
