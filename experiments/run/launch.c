#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "base/thread.h"
#include "experiments/run/launch_internal.h"

#include "experiments/command.h"
#include "experiments/print_columns.h"
#include "experiments/run/provenance.h"
#include "experiments/run/queued_run.h"
#include "experiments/run/run_checkpoint.h"
#include "ps/core/slices.h"
#include "ps/net/curve.h"
#include "ps/net/endpoint.h"
#include "results/query/query.h"
#include "results/run_queue.h"
#include "results/store/recorder.h"
#include "results/query/trace.h"
#include "worker/data/dataset_shared.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

/* ---- signals ------------------------------------------------------------------------------------
 */

static volatile sig_atomic_t stop_requests;

void launch_request_stop(void)
{
    if (stop_requests < 100)
        stop_requests = stop_requests + 1;
}

/* Signals within ONE_REQUEST_MS count as one request: timeout(1) signals the process and its group.
 */
static void request_stop(int number)
{
    enum { ONE_REQUEST_MS = 100 };
    static uint64_t last_ns;
    const uint64_t now_ns = clock_ns();
    (void)number;
    if (last_ns == 0 || now_ns - last_ns > ONE_REQUEST_MS * 1000000ULL)
        launch_request_stop();
    last_ns = now_ns;
}

/* While another process locks the results file, the recorder waits until more than this many
 * requests to stop have come: 0 before the run has rows, 1 later. */
static volatile sig_atomic_t requests_endured = 1;

static bool recorder_must_give_up(void)
{
    return stop_requests > requests_endured;
}

void launch_catch_signals(void)
{
    signals_catch(request_stop);
    recorder_give_up_when(recorder_must_give_up);
}

int launch_stop_requests(void)
{
    return (int)stop_requests;
}

const volatile sig_atomic_t *launch_stop_flag(void)
{
    return &stop_requests;
}

/* ---- one run ------------------------------------------------------------------------------------
 */

static status begin_row(struct launch *l)
{
    status result = OK;
    recorder *r = NULL;
    struct run_row row;
    requests_endured = 0; /* no rows can be lost yet */
    run_row_open(&row, l->o->settings);
    if (l->o->run_id > 0) {
        bool taken = false;
        TRY(queue_take(options_text(l->o->settings, "results"), l->o->run_id, row.host.at, &taken));
        if (!taken) {
            if (getenv(QUEUED_TITLE) != NULL)
                command_error_is_reported(); /* the sweep reads the outcome from the row */
            FAIL(ERROR_USAGE,
                 "run %lld is not in the queue: it has ended, or another process executes it; see "
                 "`gradlag show %lld`",
                 (long long)l->o->run_id, (long long)l->o->run_id);
        }
        l->run_id = l->o->run_id;
        goto done;
    }
    TRY(recorder_open(&r, options_text(l->o->settings, "results")));
    TRY(recorder_begin(r, &row.description, "queued", &l->run_id));
done:
    requests_endured = 1;
    recorder_close(&r);
    run_row_close(&row);
    return result;
}

/* Passes stderr of the processes through a pipe, so that their lines do not break the progress
 * line. */
static status open_pipe(struct launch *l)
{
    status result = OK;
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0)
        FAIL(ERROR_OTHER, "a pipe for the messages of the processes cannot be created: %s",
             strerror(errno));
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    l->stderr_fd = ends[0];
    l->child_fd = ends[1];
done:
    return result;
}

static void close_descriptors(struct launch *l)
{
    int *const ends[] = {&l->stderr_fd, &l->child_fd, &l->dataset_fd};
    for (size_t i = 0; i < COUNT_OF(ends); i++) {
        if (*ends[i] >= 0) {
            close(*ends[i]);
            *ends[i] = -1;
        }
    }
}

/* Takes "gradlag worker 4: error: …" of a worker on another host, which has no status pipe. */
static bool store_error(struct launch *l)
{
    static const char before[] = "gradlag worker ", between[] = ": error: ";
    char *end = NULL;
    if (l->line.length == 0 || strncmp(l->line.at, before, strlen(before)) != 0)
        return false;
    const unsigned long index = strtoul(l->line.at + strlen(before), &end, 10);
    if (strncmp(end, between, strlen(between)) != 0)
        return false;
    for (unsigned i = 1; i < l->places; i++) {
        struct watched *w = &l->processes[i];
        if (w->host == NULL || index < w->first || index >= w->first + w->count)
            continue;
        if (w->message == NULL) {
            struct text text = {0};
            text_add(&text, "worker %lu: %.*s", index, (int)strcspn(end + strlen(between), "\n"),
                     end + strlen(between));
            w->message = text_copy(text.at);
            text_free(&text);
        }
        return true;
    }
    return false;
}

/* Passes lines of our own processes to the user. Keeps lines of mpirun for the case that no process
 * reports why the ranks ended. */
static void pass_line(struct launch *l)
{
    if (store_error(l)) {
        l->line.length = 0;
        return;
    }
    if (l->async || strncmp(l->line.at, "gradlag", 7) == 0) {
        progress_clear(&l->progress);
        ssize_t written = write(STDERR_FILENO, l->line.at, l->line.length);
        (void)written;
    } else if (l->line.length > 1 && l->line.at[0] != '-' && l->mpirun_output.length < 8192) {
        text_add(&l->mpirun_output, "%s", l->line.at);
    }
    l->line.length = 0;
}

void launch_read_stderr(struct launch *l, bool last)
{
    char bytes[4096];
    ssize_t got;
    while ((got = read(l->stderr_fd, bytes, sizeof bytes)) > 0) {
        for (ssize_t i = 0; i < got; i++) {
            text_add_bytes(&l->line, &bytes[i], 1);
            if (bytes[i] == '\n' || l->line.length > 4000)
                pass_line(l);
        }
    }
    if (last && l->line.length > 0) { /* an incomplete line of a killed process */
        text_add(&l->line, "\n");
        pass_line(l);
    }
}

/* An empty file in memory for dataset_shared.h. A process reaches it through /proc, because mpirun
 * closes descriptors. If it cannot be created, each process builds the data for itself. */
static void open_dataset_file(struct launch *l)
{
    l->dataset_fd = memfd_create("gradlag-dataset", MFD_CLOEXEC);
    snprintf(l->dataset_variable, sizeof l->dataset_variable,
             DATASET_SHARED_FILE "=/proc/%ld/fd/%d", (long)getpid(), l->dataset_fd);
}

void launch_list_hosts(struct launch *l)
{
    text_free(&l->host_list);
    /* Open MPI 5.0 gives mpirun's own host no slots if --host has an address of it. */
    for (size_t i = 0; i < l->hosts.count; i++)
        text_add(&l->host_list, "%s%s:%u", i > 0 ? "," : "",
                 l->hosts.at[i].is_here ? "localhost" : l->hosts.at[i].name, l->hosts.at[i].slots);
}

/* mpirun gives rank 0 to the first host, and rank 0 writes the results file here. */
static status put_this_host_first(struct launch *l, const char *key)
{
    status result = OK;
    size_t here = 0;
    while (here < l->hosts.count && !l->hosts.at[here].is_here)
        here++;
    if (here == l->hosts.count)
        FAIL(ERROR_USAGE,
             "hosts=%s does not contain this host; rank 0 writes the results file here, so add "
             "this host, or start the run on one of them",
             key);
    const struct run_host own = l->hosts.at[here];
    memmove(&l->hosts.at[1], &l->hosts.at[0], here * sizeof own);
    l->hosts.at[0] = own;
done:
    return result;
}

/* ERROR_USAGE: key endpoint names an endpoint that workers on other hosts cannot reach. */
static status check_reachable(const struct launch *l)
{
    static const char localhost[] = "tcp://localhost:";
    status result = OK;
    const char *chosen = options_text(l->o->settings, "endpoint");
    char endpoint[SERVERS_ENDPOINT_BYTES];
    for (unsigned i = 0; chosen[0] != '\0' && i < l->servers; i++) {
        TRY(servers_endpoint(chosen, l->servers, i, endpoint));
        if (endpoint_check(endpoint, false) == OK ||
            strncmp(endpoint, localhost, strlen(localhost)) == 0)
            FAIL(ERROR_USAGE,
                 "endpoint=%s: processes on other hosts (hosts=%s) cannot reach %s; leave endpoint "
                 "out, or fix only the port, as in 'endpoint=tcp://*:5555'",
                 chosen, options_text(l->o->settings, "hosts"), endpoint);
    }
done:
    return result;
}

status launch_read_hosts(struct launch *l, const char *key)
{
    status result = OK;
    bool others = false;
    l->count_here = l->workers;
    TRY(hosts_read(&l->hosts, key));
    for (size_t i = 0; i < l->hosts.count; i++)
        others = others || !l->hosts.at[i].is_here;
    if (l->hosts.count > 0 && l->workers > hosts_slots(&l->hosts))
        FAIL(ERROR_USAGE,
             "workers=%u, but hosts=%s has room for %u: write the number of workers behind each "
             "host, as in hosts=a:4,b:4",
             l->workers, key, hosts_slots(&l->hosts));
    if (!others) {
        hosts_free(&l->hosts);
        goto done;
    }
    if (l->async)
        TRY(check_reachable(l));
    else
        TRY(put_this_host_first(l, key));
    l->count_here = l->first_here = 0;
    for (size_t i = 0; i < l->hosts.count; i++)
        if (l->hosts.at[i].is_here)
            l->count_here = hosts_workers_of(&l->hosts, i, l->workers, &l->first_here);
    launch_list_hosts(l);
done:
    return result;
}

/* Workers on other hosts get their keys through the environment. Without key curve, the run has
 * keys of its own. */
static status prepare_keys(struct launch *l)
{
    status result = OK;
    const options *o = l->o->settings;
    struct text folder = {0};
    if (!l->async || l->hosts.count == 0 || options_flag(o, "trusted_network"))
        return OK;
    text_add(&folder, "%s", options_text(o, "curve"));
    if (folder.length == 0) {
        text_add(&folder, "%s/keys", l->folder.path);
        TRY(curve_make(folder.at));
        settings_add(&l->arguments, "curve", folder.at, "run");
    }
    TRY(curve_worker_variable(folder.at, &l->worker_key));
done:
    text_free(&folder);
    return result;
}

/* Warns about far more processes or threads than processors; raises the limit of open files. */
static status check_process_count(const struct launch *l)
{
    enum { CROWD = 64 };
    const unsigned processes = l->count_here + l->servers, processors = processor_count();
    if (processes > CROWD * processors) {
        log_warning("%u processes share %u processor%s, so steps are slow, and each needs 10 MiB "
                    "of memory or more; engine=virtual simulates these workers in one process",
                    processes, processors, plural(processors));
    }
    const options *o = l->o->settings;
    const unsigned threads = (unsigned)options_integer(o, "threads");
    if (threads > 1 && l->count_here * threads > processors &&
        strcmp(options_text(o, "device"), "cpu") == 0) {
        log_warning(
            "%u worker%s with %u threads each on %u processor%s: a worker's threads wait for each "
            "other, so sharing processors makes a step many times slower; set threads=1",
            l->count_here, plural(l->count_here), threads, processors, plural(processors));
    }
    return open_files_allow(processes, l->servers);
}

void launch_drop_argument(struct launch *l, const char *key)
{
    for (size_t i = 0; i < l->arguments.count; i++)
        if (strcmp(l->arguments.at[i].key, key) == 0)
            settings_remove(&l->arguments, i--);
}

static status prepare(struct launch *l)
{
    status result = OK;
    char number[32];
    uint64_t token = 0;
    const options *o = l->o->settings;
    TRY(folder_make(&l->folder, NULL));
    TRY(status_pipe_open(&l->pipe, l->folder.path));
    snprintf(l->status_pipe_variable, sizeof l->status_pipe_variable, STATUS_PIPE_VARIABLE "=%s",
             l->pipe.path);
    l->places = l->servers + l->workers + (unsigned)l->hosts.count;
    TRY(memory_new(&l->processes, l->places, sizeof *l->processes, "processes"));
    TRY(memory_new(&l->sources, l->places + 2, sizeof *l->sources, "processes"));
    TRY(memory_new(&l->endpoints, l->servers, sizeof *l->endpoints, "endpoints"));
    TRY(open_pipe(l));
    open_dataset_file(l);
    TRY(begin_row(l));
    config_arguments(o, &l->arguments);
    launch_drop_argument(l, "hosts");
    if (l->async)
        launch_drop_argument(l, "network.interface"); /* endpoints contain its address */
    TRY(prepare_keys(l));
    /* Always pass `workers`: inside a Slurm or MPI job a role would otherwise take the number from
     * the environment, and use shards of another size than the server. */
    if (!options_was_set(o, "workers"))
        settings_add(&l->arguments, "workers", options_value(o, "workers"), "run");
    snprintf(number, sizeof number, "%lld", (long long)l->run_id);
    settings_add(&l->arguments, "run_id", number, "run");
    if (getrandom(&token, sizeof token, 0) != (ssize_t)sizeof token)
        FAIL(ERROR_OTHER, "getrandom() failed: %s", strerror(errno));
    snprintf(l->token_variable, sizeof l->token_variable, "GRADLAG_RUN_TOKEN=%016llx",
             (unsigned long long)token);
done:
    return result;
}

/* Ends the run's row if its writer has not done so. */
static status end_row(struct launch *l)
{
    status result = OK;
    if (l->run_id == 0)
        return OK;
    bool changed = false;
    const char *how = l->verdict == OK               ? "failed"
                      : l->verdict == STOPPED        ? "stopped"
                      : l->verdict == ERROR_DIVERGED ? "diverged"
                                                     : "failed";
    const char *why = l->verdict == OK        ? "its processes ended without reporting an outcome"
                      : l->verdict == STOPPED ? NULL
                                              : l->message;
    TRY(recorder_settle(options_text(l->o->settings, "results"), l->run_id, how, why, &changed));
    if (changed && l->verdict == OK) {
        FAIL(ERROR_PEER,
             "the processes of run %lld ended without error, but %s has no outcome of the run",
             (long long)l->run_id, options_text(l->o->settings, "results"));
    }
done:
    return result;
}

/* The exit code for a row's status. False: `failed`, which has several exit codes. */
static bool status_of_row(const char *row, status *out)
{
    static const struct {
        const char *name;
        status code;
    } ends[] = {{"finished", OK}, {"stopped", STOPPED}, {"diverged", ERROR_DIVERGED}};
    for (size_t i = 0; i < COUNT_OF(ends); i++) {
        if (strcmp(row, ends[i].name) == 0) {
            *out = ends[i].code;
            return true;
        }
    }
    return false;
}

/* Makes the exit code agree with the row. They differ if a request to stop, or the loss of a
 * process, came after the writer of the row had decided how the run ended. */
static status agree_with_row(struct launch *l)
{
    status result = OK;
    char *row = NULL, *why = NULL, number[32];
    const char *const settings[] = {number}, *results = options_text(l->o->settings, "results");
    status code = l->verdict;
    if (l->run_id == 0)
        return OK;
    snprintf(number, sizeof number, "run=%lld", (long long)l->run_id);
    TRY(query_value(results, "SELECT status FROM run WHERE id = :run", settings, 1, &row));
    TRY(query_value(results, "SELECT error FROM run WHERE id = :run", settings, 1, &why));
    if (row == NULL)
        FAIL(ERROR_RESULTS, "%s: the row of run %lld was deleted", results, (long long)l->run_id);
    if (!status_of_row(row, &code) && (code == OK || code == STOPPED || code == ERROR_DIVERGED)) {
        const struct watched *writer = l->processes;
        const bool known = writer != NULL && writer->reported && writer->code != OK;
        code = known ? writer->code : ERROR_OTHER;
    }
    if (code == l->verdict)
        goto done;
    if (l->verdict != OK && l->verdict != STOPPED)
        log_warning("run %lld is %s in the results file. This error came later and does not change "
                    "that: %s",
                    (long long)l->run_id, row, l->message);
    memory_free(l->message);
    l->verdict = code;
    l->message = text_copy(why != NULL ? why : "stopped on request");
done:
    memory_free(row);
    memory_free(why);
    return result;
}

/* Writes the trace (key trace). A trace of a failed run ends at its last row. */
static status write_trace(const struct launch *l)
{
    const char *pattern = options_text(l->o->settings, "trace");
    struct text path = {0};
    char number[24];
    if (pattern[0] == '\0' || l->run_id == 0)
        return OK;
    snprintf(number, sizeof number, "%lld", (long long)l->run_id);
    run_checkpoint_path(pattern, l->run_id, NULL, &path);
    const char *results = options_text(l->o->settings, "results");
    status result = trace_write(results, number, path.at);
    if (result != OK && l->verdict == OK) {
        char *why = text_copy(error_message());
        result = error_set(result, __FILE__, __LINE__,
                           "%s. The run itself finished: `gradlag show %s results=%s`", why, number,
                           results);
        memory_free(why);
    }
    text_free(&path);
    return result;
}

static void close_all(struct launch *l)
{
    for (unsigned i = 0; l->processes != NULL && i < l->places; i++)
        memory_free(l->processes[i].message);
    for (unsigned i = 0; l->endpoints != NULL && i < l->servers; i++)
        memory_free(l->endpoints[i]);
    memory_free(l->endpoints);
    close_descriptors(l);
    memory_free(l->sources);
    memory_free(l->processes);
    memory_free(l->message);
    if (l->worker_key.length > 0)
        explicit_bzero(l->worker_key.at, l->worker_key.length);
    text_free(&l->worker_key);
    text_free(&l->host_list);
    text_free(&l->all_hosts);
    hosts_free(&l->hosts);
    text_free(&l->line);
    text_free(&l->mpirun_output);
    settings_free(&l->arguments);
    mpirun_close(&l->mpirun);
    status_pipe_close(&l->pipe);
    folder_remove(&l->folder);
    folder_remove(&l->shared);
}

/* Rejects `mpirun … gradlag run` and `srun -n 4 gradlag run`: they would start the run several
 * times, and mpirun refuses to start inside another mpirun. `srun --pty` is allowed: it starts one
 * interactive shell. */
static status reject_launcher(const struct launch *l)
{
    status result = OK;
    const char *mode = options_text(l->o->settings, "mode");
    const bool calls_mpirun =
        !l->async && strcmp(options_text(l->o->settings, "engine"), "virtual") != 0;
    const char *mpi = getenv("OMPI_COMM_WORLD_SIZE");
    const char *slurm = getenv("SLURM_PTY_PORT") == NULL ? getenv("SLURM_STEP_NUM_TASKS") : NULL;
    const char *size = mpi != NULL ? mpi : slurm;
    if (size == NULL || (atoi(size) < 2 && !(mpi != NULL && calls_mpirun)))
        return OK;
    FAIL(ERROR_USAGE,
         "`gradlag run` and `gradlag sweep` start all processes of a run themselves: leave %s "
         "out%s%s%s%s",
         mpi != NULL ? "mpirun" : "srun",
         calls_mpirun ? ", or start `gradlag rank mode=" : "; it would start this run ",
         calls_mpirun ? mode : size, calls_mpirun ? " …` with it" : " times",
         mpi != NULL ? "" : " (if each task makes another run: unset SLURM_STEP_NUM_TASKS)");
done:
    return result;
}

status launch_run(const struct launch_options *o, int64_t *run_id)
{
    status result = OK;
    struct launch l = {
        .o = o, .stderr_fd = -1, .child_fd = -1, .dataset_fd = -1, .begun_ns = clock_ns()};
    recorder_keep_open(true);
    l.stops_seen = l.stops_before = launch_stop_requests();
    l.async = strcmp(options_text(o->settings, "mode"), "async") == 0;
    l.workers = (unsigned)options_integer(o->settings, "workers");
    l.servers = servers_of(o->settings);
    progress_open(&l.progress, o->title, l.async, o->quiet);
    TRY(reject_launcher(&l));
    if (strcmp(options_text(o->settings, "engine"), "virtual") == 0) {
        TRY(begin_row(&l));
        TRY(launch_virtual(o, l.run_id, &l.progress));
        goto done;
    }
    text_add(&l.all_hosts, "%s", options_text(o->settings, "hosts"));
    TRY(launch_read_hosts(&l, l.all_hosts.at));
    TRY(check_process_count(&l));
    TRY(prepare(&l));
    TRY(l.async ? launch_start_server(&l) : launch_start_ranks(&l));
    TRY(launch_watch(&l));
    while (launch_may_restart(&l)) {
        TRY(launch_restart(&l));
        TRY(launch_watch(&l));
    }
done:
    progress_clear(&l.progress);
    if (result != OK && l.verdict == OK) {
        l.verdict = result;
        l.message = text_copy(error_message());
    }
    launch_kill_all(&l);
    status settled = end_row(&l);
    if (settled == OK)
        settled = agree_with_row(&l);
    status traced = write_trace(&l);
    result = settled != OK ? settled : traced;
    if (l.verdict != OK)
        result = error_set(l.verdict, __FILE__, __LINE__, "%s", l.message);
    *run_id = l.run_id;
    if (o->was_ready != NULL)
        *o->was_ready = *o->was_ready || l.was_ready;
    close_all(&l);
    return result;
}
