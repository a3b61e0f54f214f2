#include "tests/sync/sync_rig.h"

#include "base/clock.h"
#include "base/log.h"
#include "experiments/config/config.h"
#include "sync/communicator/communicator.h"
#include "sync/communicator/ranks.h"
#include "worker/compression/compression.h"
#include "tests/rigs/patience.h"
#include "tests/rigs/scratch.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <setjmp.h>
#include <cmocka.h>

/* ---- in a rank ----------------------------------------------------------------------------------
 */

/* Open MPI 5 can lose what a rank prints just before MPI_Abort(), so ranks print to mpirun's
 * stderr. */
#define STDERR_OF_MPIRUN "SYNC_RIG_STDERR"

static void print_to_mpirun(void)
{
    const char *path = getenv(STDERR_OF_MPIRUN);
    int fd = path != NULL ? open(path, O_WRONLY | O_CLOEXEC) : -1;
    if (fd >= 0) {
        dup2(fd, STDERR_FILENO);
        close(fd);
    }
}

bool sync_rig_is_rank(int argc, char **argv, const struct sync_case *cases, int *code)
{
    unsigned rank, size;
    if (argc != 3 || strcmp(argv[1], "--case") != 0)
        return false;
    *code = ERROR_USAGE;
    print_to_mpirun();
    for (const struct sync_case *c = cases; c->name != NULL; c++) {
        if (strcmp(c->name, argv[2]) != 0)
            continue;
        status result = sync_start(&rank, &size);
        if (result == OK) {
            char name[32];
            snprintf(name, sizeof name, "rank %u", rank);
            log_set_name(name);
            result = c->run(rank, size);
        }
        if (result != OK)
            log_error("%s (%s)", error_message(), error_origin());
        sync_end(result);
        *code = (int)result;
    }
    return true;
}

void sync_rig_rough(unsigned rank, size_t count, uint64_t round, float *out)
{
    uint32_t bits = rank * 7919 + (uint32_t)round + 1;
    for (size_t i = 0; i < count; i++) {
        bits = bits * 1664525u + 1013904223u;
        out[i] = (float)(int32_t)bits * (i % 3 == 0 ? 1e-9f : 1e-6f);
    }
}

/* The watchdog's thread reads the gate, so it is stopped meanwhile. */
struct gate_page *sync_rig_set_gate(communicator *c, struct gate_page *page)
{
    struct gate_page *before = c->ranks->gate.page;
    watchdog_watch(NULL);
    c->ranks->gate.page = page;
    watchdog_watch(c);
    return before;
}

/* ---- in the launcher ----------------------------------------------------------------------------
 */

static const char *sync_rig_folder(void);

static int remove_one(const char *path, const struct stat *s UNUSED, int type UNUSED,
                      struct FTW *at UNUSED)
{
    return remove(path);
}

static pid_t folder_owner;

static void remove_folder(void)
{
    if (getpid() == folder_owner)
        (void)nftw(sync_rig_folder(), remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

/* A folder of this test program, in memory if possible; removed at exit. */
static const char *sync_rig_folder(void)
{
    static char folder[64];
    if (folder[0] == '\0') {
        const char *base = access("/dev/shm", W_OK | X_OK) == 0 ? "/dev/shm" : scratch_folder();
        snprintf(folder, sizeof folder, "%s/gradlag-test-XXXXXX", base);
        assert_non_null(mkdtemp(folder));
        folder_owner = getpid();
        atexit(remove_folder);
    }
    return folder;
}

static void become_mpirun(unsigned ranks, const char *case_name)
{
    char program[4096] = "", n[16], errors[32];
    if (readlink("/proc/self/exe", program, sizeof program - 1) < 0)
        _exit(127);
    snprintf(n, sizeof n, "%u", ranks);
    snprintf(errors, sizeof errors, "/proc/%d/fd/%d", getpid(), STDERR_FILENO);
    setenv(STDERR_OF_MPIRUN, errors, 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    /* A killed launcher leaves files. They are in a folder that the test removes. */
    setenv("OMPI_MCA_orte_tmpdir_base", sync_rig_folder(), 1);
    setenv("OMPI_MCA_btl_vader_backing_directory", sync_rig_folder(), 1);
    setenv("OMPI_MCA_osc_sm_backing_directory", sync_rig_folder(), 1);
    /* Open MPI does not free all its memory. */
    setenv("ASAN_OPTIONS", "detect_leaks=0", 1);
    execlp("mpirun", "mpirun", "-n", n, "--oversubscribe", "--bind-to", "none", program, "--case",
           case_name, (char *)NULL);
    _exit(127);
}

pid_t sync_rig_start(unsigned ranks, const char *case_name, int *fd)
{
    int ends[2];
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    (void)sync_rig_folder(); /* created by this process, not by the child */
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        setpgid(0, 0);
        dup2(ends[1], STDOUT_FILENO);
        dup2(ends[1], STDERR_FILENO);
        become_mpirun(ranks, case_name);
    }
    setpgid(pid, pid);
    close(ends[1]);
    *fd = ends[0];
    return pid;
}

/* Reads until all writers have closed the pipe; false: the deadline passed first. */
static bool read_all(int fd, uint64_t deadline, char *out, size_t size)
{
    size_t length = 0;
    for (;;) {
        char rest[4096];
        uint64_t now = clock_ns();
        struct pollfd readable = {.fd = fd, .events = POLLIN};
        if (now >= deadline)
            return false;
        if (poll(&readable, 1, (int)((deadline - now) / 1000000) + 1) <= 0)
            continue;
        bool full = length + 1 >= size;
        ssize_t n = read(fd, full ? rest : out + length, full ? sizeof rest : size - 1 - length);
        if (n <= 0)
            return true;
        length += full ? 0 : (size_t)n;
        out[length] = '\0';
    }
}

static void finish(pid_t pid, int fd, const struct sync_start *start, uint64_t begun,
                   double limit_s, struct sync_run *out)
{
    int code = 0;
    memset(out, 0, sizeof *out);
    bool ended =
        read_all(fd, begun + (uint64_t)(PATIENCE * limit_s * 1e9), out->output, sizeof out->output);
    if (!ended)
        kill(-pid, SIGKILL);
    while (waitpid(pid, &code, 0) < 0 && errno == EINTR) {
    }
    close(fd);
    out->seconds = (double)(clock_ns() - begun) * 1e-9;
    out->exit_code = !ended ? -1 : WIFEXITED(code) ? WEXITSTATUS(code) : 128 + WTERMSIG(code);
    /* If another rank ends this one, a sanitizer's exit code is lost: search its report. */
    if (strstr(out->output, "Sanitizer: ") != NULL)
        fail_msg("%s on %u ranks: exit %d:\n%s", start->case_name, start->ranks, out->exit_code,
                 out->output);
}

void sync_rig_run_together(const struct sync_start *starts, size_t count, double limit_s,
                           struct sync_run *out)
{
    enum { MOST = 8 };
    pid_t pids[MOST];
    int fds[MOST];
    uint64_t begun = clock_ns();
    assert_true(count <= MOST);
    for (size_t i = 0; i < count; i++)
        pids[i] = sync_rig_start(starts[i].ranks, starts[i].case_name, &fds[i]);
    for (size_t i = 0; i < count; i++)
        finish(pids[i], fds[i], &starts[i], begun, limit_s, &out[i]);
}

void sync_rig_run(unsigned ranks, const char *case_name, double limit_s, struct sync_run *out)
{
    sync_rig_run_together(&(struct sync_start){ranks, case_name}, 1, limit_s, out);
}

unsigned sync_rig_lines(const struct sync_run *run, const char *begins, const char *part)
{
    unsigned count = 0;
    for (const char *at = run->output; (at = strstr(at, begins)) != NULL; at++)
        count += memmem(at, strcspn(at, "\n"), part, strlen(part)) != NULL;
    return count;
}

/* Whether the line has "N s" with N from least_s to most_s. */
static bool has_duration(const char *line, double least_s, double most_s)
{
    const char *at = line;
    while ((at = strpbrk(at, "0123456789")) != NULL) {
        char *end;
        const double value = strtod(at, &end);
        const bool begins = at == line || at[-1] == ' ';
        if (begins && strncmp(end, " s ", 3) == 0 && value >= least_s && value <= most_s)
            return true;
        at = end;
    }
    return false;
}

void sync_rig_expect_timeout(const struct sync_run *run, double least_s, double most_s,
                             const char *missing)
{
    char line[2400];
    for (const char *at = run->output; (at = strstr(at, ": error: ")) != NULL; at++) {
        snprintf(line, sizeof line, "%.*s", (int)strcspn(at, "\n"), at);
        if (has_duration(line, least_s, most_s * PATIENCE) &&
            (missing == NULL || strstr(line, missing) != NULL))
            return;
    }
    fail_msg("no rank reports a wait of %g s to %g s for %s: exit %d:\n%s", least_s,
             most_s * PATIENCE, missing != NULL ? missing : "another rank", run->exit_code,
             run->output);
}

void sync_rig_expect_ok(unsigned ranks, const char *case_name)
{
    static struct sync_run run;
    sync_rig_run(ranks, case_name, 100, &run);
    if (run.exit_code != 0)
        fail_msg("%s on %u ranks: exit %d after %.1f s:\n%s", case_name, ranks, run.exit_code,
                 run.seconds, run.output);
}

/* ---- settings -----------------------------------------------------------------------------------
 */

/* Declares the keys of all kinds that a test may choose later by sync_rig_set(). */
static status declare_own(options *o, const struct registry *parts)
{
    status result = OK;
    for (size_t i = 0; i < parts->count; i++) {
        const struct option *own = parts->entries[i]->options;
        if (own != NULL && !options_declared(o, own->key))
            TRY(options_declare(o, own));
    }
done:
    return result;
}

static bool sets_length(const char *const *assignments)
{
    for (; assignments != NULL && *assignments != NULL; assignments++)
        if (strncmp(*assignments, "samples=", 8) == 0 || strncmp(*assignments, "updates=", 8) == 0)
            return true;
    return false;
}

status sync_rig_training(options **out, const char *const *assignments)
{
    const char *const base[] = {"communicator=mpi",
                                "bucket_kib=256",
                                "dataset=gaussian",
                                "dataset.size=8",
                                "model=softmax",
                                "batch=10",
                                "evaluate_every=0",
                                "lr=0.05",
                                "weight_decay=0.001",
                                "warmup_epochs=0.3",
                                "lr_scaling=linear",
                                "consistency=bsp",
                                "pipeline=pipedream",
                                sets_length(assignments) ? NULL : "epochs=1",
                                NULL};
    status result = OK;
    TRY(config_compose_texts(out, base, assignments, "test"));
    TRY(declare_own(*out, &communicator_registry));
    TRY(declare_own(*out, &compression_registry));
done:
    return result;
}

options *sync_rig_settings(void)
{
    options *o = NULL;
    REQUIRE(sync_rig_training(&o, NULL) == OK);
    return o;
}

status sync_rig_set(options *o, const char *key, const char *value)
{
    return options_set(o, key, value, "test");
}
