#include "experiments/run/role.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "base/thread.h"
#include "experiments/config/precision_trial.h"
#include "experiments/run/child_process.h"
#include "experiments/run/provenance.h"
#include "experiments/run/queued_run.h"
#include "experiments/run/run_checkpoint.h"
#include "ps/core/late_workers.h"
#include "worker/optimizer/schedule.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

enum { WORKERS_MAX = 4096 };

static volatile sig_atomic_t stop;

static void request_stop(int number)
{
    (void)number;
    stop = 1;
}

static void request_own_stop(void)
{
    stop = 1;
}

/* SIGUSR1, which mpirun forwards, asks a rank to stop. SIGTERM from mpirun means that another rank
 * died; it also ends this rank, and the starter records the reason. */
static void install_handlers(enum role role)
{
    struct sigaction action = {.sa_handler = request_stop};
    sigemptyset(&action.sa_mask);
    signal_handle(SIGUSR1, &action);
    if (role != ROLE_RANK || !status_pipe_exists())
        signals_catch(request_stop);
}

status role_begin(struct role_process *p, enum role role, unsigned index,
                  const struct settings *read)
{
    status result = OK;
    char name[32];
    *p = (struct role_process){.role = role, .index = index};
    install_handlers(role);
    snprintf(name, sizeof name, role == ROLE_SERVER && index == 0 ? "server" : "%s %u",
             role_name(role), index);
    log_set_name(name);
    TRY(config_compose(&p->settings, read));
    snprintf(name, sizeof name, "gradlag %s", role_name(role));
    TRY(precision_check_chosen(p->settings, name));
    const char *mode = options_text(p->settings, "mode");
    const bool async = strcmp(mode, "async") == 0;
    if (async == (role == ROLE_RANK)) {
        FAIL(ERROR_USAGE, "`gradlag %s` needs mode=%s, but the settings have mode=%s: add mode=%s",
             role_name(role), async ? "sync or mode=pipeline" : "async", mode,
             async ? "sync" : "async");
    }
    p->hooks.stop = &stop;
    p->request_stop = request_own_stop;
    progress_open(&p->progress, mode, role == ROLE_SERVER, false);
done:
    return result;
}

/* ---- hooks --------------------------------------------------------------------------------------
 */

/* Held while the process's worker computes: an evaluation, a probe, statistics. A server that is
 * asked to stop meanwhile writes its checkpoint in another thread. */
static pthread_mutex_t computing = PTHREAD_MUTEX_INITIALIZER;

static status evaluate(void *context, const float *parameters, unsigned threads,
                       struct evaluation *out)
{
    struct role_process *p = context;
    pthread_mutex_lock(&computing);
    if (threads > 0)
        worker_evaluate_on(p->worker, threads);
    const status result = worker_evaluate(p->worker, parameters, out);
    pthread_mutex_unlock(&computing);
    return result;
}

static status gradient(void *context, unsigned index, uint64_t batch, const float *parameters,
                       float *out)
{
    status result = OK;
    struct role_process *p = context;
    struct step_stats ignored;
    unsigned workers = (unsigned)options_integer(p->settings, "workers");
    pthread_mutex_lock(&computing);
    if (p->shards == NULL)
        TRY(memory_new(&p->shards, workers_max_of(p->settings), sizeof(worker_shard *),
                       "workers' shards"));
    if (p->shards[index] == NULL)
        TRY(worker_shard_open(&p->shards[index], p->worker, p->settings, index, workers));
    TRY(worker_gradient_as(p->worker, p->shards[index], parameters, batch, out, &ignored));
done:
    pthread_mutex_unlock(&computing);
    return result;
}

static void close_shards(struct role_process *p)
{
    unsigned workers = p->shards != NULL ? workers_max_of(p->settings) : 0;
    for (unsigned i = 0; i < workers; i++)
        worker_shard_close(&p->shards[i]);
    memory_free(p->shards);
    p->shards = NULL;
}

static void note_progress(struct role_process *p, const struct training_progress *now)
{
    uint64_t time = clock_ns();
    if (p->recorder == NULL || time - p->noted_ns < 1000000000u)
        return;
    p->noted_ns = time;
    recorder_progress(p->recorder, &(struct progress_record){.updates = now->updates,
                                                             .samples = now->samples_used,
                                                             .total_samples = now->total_samples,
                                                             .seconds = now->seconds,
                                                             .loss = now->loss,
                                                             .staleness = now->mean_staleness});
}

static void show_progress(void *context, const struct training_progress *now)
{
    struct role_process *p = context;
    note_progress(p, now);
    if (status_pipe_exists()) {
        struct status_message m = {
            .kind = STATUS_PROGRESS, .role = p->role, .index = p->index, .progress = *now};
        status_pipe_send(&m);
    } else {
        progress_show(&p->progress, now);
    }
}

/* Estimates the statistics of batch norm and saves the checkpoint with them. The caller holds
 * `computing`. */
static status save_with_statistics(struct role_process *p, struct run_checkpoint *what)
{
    status result = OK;
    struct worker_statistic *statistics = NULL;
    const size_t count = worker_statistic_count(p->worker);
    TRY(memory_new(&statistics, count, sizeof *statistics, "batch norm's statistics"));
    TRY(worker_estimate_statistics(p->worker, what->now->parameters, statistics));
    what->statistics = statistics;
    what->statistic_count = count;
    TRY(run_checkpoint_save(what, p->recorder));
done:
    memory_free(statistics);
    return result;
}

/* Saves without statistics if the worker is computing, or after a request to stop, because the time
 * to write is then limited. */
static status save(struct role_process *p, struct run_checkpoint *what)
{
    if (worker_statistic_count(p->worker) == 0 || training_stop_wanted(&p->hooks) ||
        pthread_mutex_trylock(&computing) != 0)
        return run_checkpoint_save(what, p->recorder);
    const status result = save_with_statistics(p, what);
    pthread_mutex_unlock(&computing);
    return result;
}

static status checkpoint(void *context, const struct training_state *now)
{
    struct role_process *p = context;
    struct run_checkpoint what = {
        .settings = p->settings, .worker = p->worker, .now = now, .run_id = p->run_id};
    status result = save(p, &what);
    if (result == OK)
        return OK;
    recorder_event(p->recorder, now->seconds, now->goes_on ? SEVERITY_WARNING : SEVERITY_ERROR,
                   "checkpoint_failed", -1, error_message());
    if (now->goes_on) {
        log_warning("%s; training continues and tries again at the next checkpoint",
                    error_message());
        result = OK;
    }
    return result;
}

/* on_results_error=stop */
static void stop_without_results(void *context)
{
    const struct role_process *p = context;
    p->request_stop();
}

status role_open_recorder(struct role_process *p)
{
    status result = OK;
    struct run_row row = {0};
    p->hooks.context = p;
    p->hooks.evaluate = evaluate;
    p->hooks.gradient = gradient;
    p->hooks.progress = show_progress;
    p->hooks.checkpoint = options_text(p->settings, "checkpoint")[0] == '\0' ? NULL : checkpoint;
    if (p->run_id == 0)
        p->run_id = options_integer(p->settings, "run_id");
    TRY(run_checkpoint_check_paths(p->settings, p->run_id));
    TRY(recorder_open(&p->recorder, options_text(p->settings, "results")));
    if (strcmp(options_text(p->settings, "on_results_error"), "stop") == 0)
        recorder_on_error(p->recorder, stop_without_results, p);
    if (p->run_id > 0) {
        TRY(recorder_resume(p->recorder, p->run_id));
    } else {
        run_row_open(&row, p->settings);
        TRY(recorder_begin(p->recorder, &row.description, "running", &p->run_id));
    }
done:
    if (result != OK)
        recorder_close(&p->recorder); /* there is no row to finish */
    run_row_close(&row);
    return result;
}

void role_warn_of_warmup(const options *o, uint64_t total_samples, uint64_t epoch_samples)
{
    const char *key = schedule_unended_warmup(o, total_samples, epoch_samples);
    if (key == NULL || getenv(QUEUED_TITLE) != NULL || options_text(o, "experiment")[0] != '\0')
        return;
    log_warning("training is not longer than its warm-up (%s=%s), so the learning rate never "
                "reaches its full value; set a smaller %s, or train for longer",
                key, options_value(o, key), key);
}

/* ---- the end ------------------------------------------------------------------------------------
 */

static void verdict_path(const char *folder, size_t length, char out[160])
{
    snprintf(out, 160, "%.*s/verdict", (int)length, folder);
}

/* Renames a complete file, so that a waiting server never reads a part of it (await_verdict). */
void role_write_verdict(const char *folder, status code, const char *text)
{
    char path[160], unfinished[168];
    verdict_path(folder, strlen(folder), path);
    snprintf(unfinished, sizeof unfinished, "%s.new", path);
    FILE *file = fopen(unfinished, "w");
    if (file != NULL) {
        fprintf(file, "%d %s", (int)code, text);
        fclose(file);
        (void)rename(unfinished, path);
    }
}

void role_forget_verdict(const char *folder)
{
    char path[160];
    verdict_path(folder, strlen(folder), path);
    unlink(path);
}

/* Waits for the verdict if a worker was asked to stop but this server was not: the worker's host
 * may have failed. The starter then writes the verdict; otherwise it asks this server to stop. */
static void await_verdict(const char *path)
{
    enum { LIMIT_S = 3, PAUSE_MS = 20 };
    const uint64_t until = clock_ns() + LIMIT_S * UINT64_C(1000000000);
    while (stop == 0 && access(path, F_OK) != 0 && clock_ns() < until)
        clock_sleep_until_ns(clock_ns() + PAUSE_MS * UINT64_C(1000000));
}

/* If the starter stopped this server because the run failed, returns the stored reason. */
static status read_verdict(const struct role_process *p, status ended)
{
    char path[160];
    int code = 0;
    struct text text = {0};
    const char *pipe = getenv(STATUS_PIPE_VARIABLE);
    const char *slash = pipe != NULL ? strrchr(pipe, '/') : NULL;
    if (ended != STOPPED || slash == NULL)
        return ended;
    verdict_path(pipe, (size_t)(slash - pipe), path);
    if (p->role == ROLE_SERVER && p->recorder != NULL)
        await_verdict(path);
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return ended;
    if (fscanf(file, "%d ", &code) == 1 && text_add_file(&text, file) == OK && text.length > 0)
        ended = error_set((status)code, __FILE__, __LINE__, "%s", text.at);
    text_free(&text);
    fclose(file);
    return ended;
}

/* With `seconds` a warm-up in samples may turn out to be longer than training. */
static void warn_of_late_warmup(const struct role_process *p, uint64_t samples_used)
{
    if (p->index == 0 && p->worker != NULL && options_real(p->settings, "seconds") > 0 &&
        options_real(p->settings, "warmup_seconds") == 0)
        role_warn_of_warmup(p->settings, samples_used, worker_epoch_samples(p->worker));
}

status role_finish_row(struct role_process *p, status ended, const struct training_outcome *outcome)
{
    const char *how = ended == OK               ? "finished"
                      : ended == STOPPED        ? "stopped"
                      : ended == ERROR_DIVERGED ? "diverged"
                                                : "failed";
    const struct error why = error_save();
    if (ended == OK)
        warn_of_late_warmup(p, outcome->samples_used);
    struct run_outcome row = {
        .status = how,
        .error = ended == OK || ended == STOPPED ? NULL : why.message,
        .updates = outcome->updates,
        .samples_used = outcome->samples_used,
        .samples_computed = outcome->samples_computed,
        .staleness = {.gradients = outcome->staleness.gradients,
                      .most = outcome->staleness.most,
                      .sum = outcome->staleness.sum},
        .train_seconds = outcome->train_seconds,
        .sent_bytes = outcome->sent_bytes,
        .parameters_sha256 =
            outcome->parameters_sha256[0] == '\0' ? NULL : outcome->parameters_sha256,
        .device = p->worker == NULL ? NULL : worker_device_description(p->worker),
        .program = p->worker == NULL ? NULL : worker_program(p->worker),
        .communicator = p->communicator,
        .network = p->network.at,
    };
    status written = recorder_finish(p->recorder, &row);
    if (written != OK && (ended == OK || ended == STOPPED))
        return written;
    error_restore(&why);
    return ended;
}

status role_end(struct role_process *p, status ended, const struct training_outcome *outcome)
{
    progress_clear(&p->progress);
    ended = read_verdict(p, ended);
    if (p->recorder != NULL && p->run_id > 0) {
        ended = role_finish_row(p, ended, outcome);
        if (!status_pipe_exists() && ended == OK) {
            log_info("run %lld finished; `gradlag show %lld results=%s` prints it",
                     (long long)p->run_id, (long long)p->run_id,
                     options_text(p->settings, "results"));
        }
    }
    recorder_close(&p->recorder);
    text_free(&p->network);
    if (threads_abandoned() == 0) { /* an abandoned thread may still use these */
        close_shards(p);
        worker_close(&p->worker);
        options_close(&p->settings);
    }
    struct status_message m = {.kind = STATUS_ENDED,
                               .role = p->role,
                               .index = p->index,
                               .code = ended,
                               .dismissal = p->dismissal};
    if (ended != OK)
        snprintf(m.text, sizeof m.text, "%s", error_message());
    status_pipe_send(&m);
    return ended;
}

/* ---- number and token
 * ----------------------------------------------------------------------------------
 */

static status read_number(const char *what, const char *text, unsigned limit, unsigned *out)
{
    status result = OK;
    char *end = NULL;
    unsigned long number = strtoul(text, &end, 10);
    if (*text < '0' || *text > '9' || *end != '\0' || number >= limit)
        FAIL(ERROR_USAGE, "%s=%s is not a number from 0 to %u", what, text, limit - 1);
    *out = (unsigned)number;
done:
    return result;
}

static const char *first_set(const char *const *names)
{
    for (; *names != NULL; names++)
        if (getenv(*names) != NULL)
            return getenv(*names);
    return NULL;
}

status role_take_number(struct settings *s, const char *key, unsigned limit, unsigned *out)
{
    status result = OK;
    for (size_t i = 0; i < s->count; i++) {
        if (strcmp(s->at[i].key, key) != 0)
            continue;
        TRY(read_number(key, s->at[i].value, limit, out));
        settings_remove(s, i--);
    }
done:
    return result;
}

status role_worker_index(struct settings *s, unsigned *index)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID", NULL};
    status result = OK;
    unsigned first = 0, rank = 0;
    *index = WORKERS_MAX;
    TRY(role_take_number(s, "worker", WORKERS_MAX, index));
    if (*index < WORKERS_MAX)
        goto done;
    TRY(role_take_number(s, "worker.first", WORKERS_MAX, &first));
    if (first_set(names) == NULL)
        FAIL(ERROR_USAGE,
             "set worker=N, the number of this worker from 0; under mpirun or srun it is the rank");
    TRY(read_number("the launcher's environment: worker", first_set(names), WORKERS_MAX - first,
                    &rank));
    *index = first + rank;
done:
    return result;
}

void role_default_workers(struct settings *s)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS", NULL};
    const char *value = first_set(names);
    if (value != NULL && settings_find(s, "workers") == NULL)
        settings_add(s, "workers", value, "the launcher's environment");
}

/* `run` passes the token in the environment, because other users can read command lines. */
status role_token(const options *o, bool draw, uint64_t *out)
{
    status result = OK;
    const char *set = options_text(o, "run_token"), *given = getenv("GRADLAG_RUN_TOKEN");
    const char *hex = set[0] == '\0' && given != NULL ? given : set;
    if (hex[0] == '\0' && !draw) {
        FAIL(ERROR_USAGE,
             "run_token= is missing; every worker, and every server except server 0, needs the "
             "token that `gradlag server` prints");
    }
    if (hex[0] == '\0') {
        if (getrandom(out, sizeof *out, 0) != (ssize_t)sizeof *out)
            FAIL(ERROR_OTHER, "getrandom() failed: %s", strerror(errno));
        goto done;
    }
    if (strlen(hex) > 16 || hex[strspn(hex, "0123456789abcdefABCDEF")] != '\0') {
        FAIL(ERROR_USAGE,
             "%s=%s is not 1 to 16 hexadecimal digits; copy the token that `gradlag server` prints",
             hex == set ? "run_token" : "GRADLAG_RUN_TOKEN", hex);
    }
    *out = strtoull(hex, NULL, 16);
done:
    return result;
}

/* /proc/PID/exe is the running file, also after a newer build has replaced it. */
const char *role_program(void)
{
    static char path[64];
    snprintf(path, sizeof path, "/proc/%ld/exe", (long)getpid());
    return path;
}

const char *role_program_path(char path[PATH_MAX])
{
    const ssize_t length = readlink("/proc/self/exe", path, PATH_MAX - 1);
    path[length > 0 ? length : 0] = '\0';
    return path;
}
