#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "experiments/print_columns.h"
#include "experiments/command.h"

#include "experiments/run/resume_record.h"
#include "experiments/run/role.h"
#include "experiments/run/run_checkpoint.h"
#include "sync/communicator/host_networks.h"
#include "sync/pipeline/pipeline.h"
#include "sync/replica.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#ifdef GRADLAG_SANITIZE
/* MPI_Finalize of Open MPI leaks memory, so LeakSanitizer is turned off in this process. */
static int is_rank;
int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void)
{
    return is_rank;
}
#endif

void role_ignore_leaks_of_mpi(void)
{
#ifdef GRADLAG_SANITIZE
    is_rank = 1;
#endif
}

/* Keys that may differ between ranks: the data folder, and keys that only rank 0 uses. */
static bool may_differ(const char *key)
{
    static const char *const own[] = {"dataset.path", "results",          "tag",       "experiment",
                                      "arm",          "run_id",           "run_token", "priority",
                                      "retries",      "network.interface"};
    for (size_t i = 0; i < COUNT_OF(own); i++)
        if (strcmp(key, own[i]) == 0)
            return true;
    return false;
}

/* Ranks with different settings could wait for each other forever, or finish with meaningless
 * results. */
static status check_same_settings(const struct role_process *p)
{
    status result = OK;
    const options *o = p->settings;
    struct text own = {0};
    char *first = NULL;
    unsigned other;
    for (size_t i = 0; i < options_count(o); i++) {
        const char *key = options_at(o, i)->key;
        if (!may_differ(key))
            text_add(&own, "%s=%s\n", key, options_value(o, key));
    }
    TRY(sync_compare(own.at, options_real(o, "timeout_s"), &first, &other));
    if (other == 0)
        goto done;
    size_t at = 0;
    while (own.at[at] == first[at] && own.at[at] != '\0')
        at++;
    if (own.at[at] == first[at]) {
        FAIL(ERROR_USAGE,
             "rank %u has other settings than rank 0; the message of that rank names the setting",
             other);
    }
    while (at > 0 && own.at[at - 1] != '\n')
        at--;
    FAIL(ERROR_USAGE, "rank %u has %.*s, rank 0 has %.*s: give all ranks the same settings",
         p->index, (int)strcspn(own.at + at, "\n"), own.at + at, (int)strcspn(first + at, "\n"),
         first + at);
done:
    memory_free(first);
    text_free(&own);
    return result;
}

/* communicator=auto does not know the optimizer. So it gets the GPU as an option only if the
 * replica may be on the GPU. */
static status open_communicator(communicator **c, const options *o, const worker *w, size_t count)
{
    status result = OK;
    bool may_be_on_gpu;
    TRY(replica_may_be_on_gpu(&may_be_on_gpu, o, w));
    const bool automatic = strcmp(options_text(o, "communicator"), "auto") == 0;
    TRY(communicator_open(c, o, count, automatic && !may_be_on_gpu ? NULL : worker_place(w)));
done:
    return result;
}

static status train(struct role_process *p, unsigned size, communicator **c,
                    struct training_outcome *out)
{
    status result = OK;
    const options *o = p->settings;
    struct run_checkpoint_file from = {0};
    TRY(sync_first_contact(options_real(o, "timeout_s")));
    TRY(check_same_settings(p));
    if (p->index == 0) /* sync_compare() has reached all ranks */
        status_pipe_send(&(struct status_message){.kind = STATUS_BOUND, .role = ROLE_RANK});
    if (size != (unsigned)options_integer(o, "workers")) {
        FAIL(ERROR_USAGE,
             "workers=%lld, but MPI started %u rank%s; leave workers out or set it to the number "
             "of ranks",
             (long long)options_integer(o, "workers"), size, plural(size));
    }
    if (p->index == 0)
        TRY(role_open_recorder(p));
    const bool pipeline = strcmp(options_text(o, "mode"), "pipeline") == 0;
    struct worker_options shard = {.settings = o,
                                   .index = p->index,
                                   .count = size,
                                   .no_gradients = pipeline,
                                   .stop = p->hooks.stop};
    TRY(worker_open(&p->worker, &shard));
    const char *resume = options_text(o, "resume");
    if (p->index == 0 && resume[0] != '\0') {
        TRY(run_checkpoint_open(&from, resume, o, p->worker));
        if (!options_flag(o, "restarted"))
            TRY(resume_record(p, resume, &from.state));
    }
    TRY(open_communicator(c, o, p->worker, pipeline ? 0 : worker_parameter_count(p->worker)));
    p->communicator = communicator_name(*c);
    communicator_add_network(*c, &p->network);
    struct sync_trainer_options trainer = {
        .settings = o,
        .worker = p->worker,
        .communicator = *c,
        .hooks = p->hooks,
        .recorder = p->recorder,
        .start = from.parameters != NULL ? &from.state : NULL,
    };
    if (p->index == 0) {
        struct training_length length;
        const uint64_t epoch = worker_epoch_samples(p->worker);
        unsigned stages = 1;
        uint32_t micro_batches;
        if (pipeline)
            TRY(pipeline_shape(o, &stages, &micro_batches));
        TRY(training_length_of(o, epoch, (double)options_integer(o, "batch") * size / stages,
                               &length));
        role_warn_of_warmup(o, length.total_samples, epoch);
    }
    TRY(pipeline ? pipeline_trainer_run(&trainer, out) : sync_trainer_run(&trainer, out));
done:
    run_checkpoint_close(&from);
    return result;
}

/* Without PMIx the tasks of a Slurm step cannot connect, and Open MPI aborts each with an unclear
 * message. */
static status check_launcher(void)
{
    status result = OK;
    const char *tasks = getenv("SLURM_STEP_NUM_TASKS");
    const bool connected = getenv("OMPI_COMM_WORLD_RANK") != NULL || getenv("PMIX_RANK") != NULL ||
                           getenv("PMI_RANK") != NULL;
    if (tasks != NULL && strcmp(tasks, "1") != 0 && !connected) {
        FAIL(ERROR_USAGE,
             "srun started %s ranks that cannot connect to each other: start them with srun "
             "--mpi=pmix (`srun --mpi=list` lists what this Slurm supports), or with mpirun inside "
             "the allocation",
             tasks);
    }
done:
    return result;
}

/* Called while this rank is blocked in MPI and the job must end. Reports to the starter, which
 * writes the row. Without a starter rank 0 writes the row here; the recorder is not in use
 * meanwhile. */
static void report_end(void *context, const char *why)
{
    struct role_process *p = context;
    struct status_message m = {
        .kind = STATUS_ENDED, .role = ROLE_RANK, .index = p->index, .code = ERROR_PEER};
    snprintf(m.text, sizeof m.text, "%s", why);
    status_pipe_send(&m);
    if (!status_pipe_exists() && p->recorder != NULL && p->run_id > 0) {
        const status ended = error_set(ERROR_PEER, __FILE__, __LINE__, "%s", why);
        (void)role_finish_row(p, ended, &(struct training_outcome){0});
    }
}

/* Turns off Nagle's algorithm on Open MPI's connection to mpirun. At its end a rank sends several
 * small messages to mpirun without an answer in between. By default the second message waits 40 ms
 * until the first is acknowledged. */
static void send_small_messages_at_once(void)
{
    enum { DESCRIPTORS = 256 };
    const int yes = 1;
    for (int fd = STDERR_FILENO + 1; fd < DESCRIPTORS; fd++)
        (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
}

const char command_rank_help[] =
    "gradlag rank key=value…\n\n"
    "One rank of a synchronous run or a pipeline. The launcher provides the number of ranks and\n"
    "the number of this one.\n\n"
    "  mpirun -n 4 gradlag rank mode=sync batch=64\n\n"
    "`gradlag list keys` describes the keys.\n";

status command_rank(int argc, char **argv)
{
    status result = OK;
    struct settings read = {0};
    struct role_process p = {.role = ROLE_RANK};
    struct training_outcome outcome = {0};
    communicator *c = NULL;
    unsigned rank = 0, size = 0;
    bool started = false;
    role_ignore_leaks_of_mpi();
    TRY(settings_read_arguments(&read, argc, argv));
    const char *mode = settings_find(&read, "mode");
    if (mode != NULL && strcmp(mode, "pipeline") == 0) {
        const char *micro_batches = settings_find(&read, "micro_batches");
        long in_flight = micro_batches != NULL ? strtol(micro_batches, NULL, 10) : 1;
        sync_expect_messages(in_flight > 0 ? (unsigned)in_flight : 1);
    }
    TRY(check_launcher());
    if (!sync_on_one_host())
        TRY(host_networks_choose(settings_find(&read, "network.interface")));
    TRY(sync_start(&rank, &size));
    started = true;
    send_small_messages_at_once();
    p.index = rank;
    sync_set_exit_hook(report_end, &p);
    role_default_workers(&read);
    TRY(role_begin(&p, ROLE_RANK, rank, &read));
    TRY(train(&p, size, &c, &outcome));
done:
    result = role_end(&p, result, &outcome);
    bool all_ranks_know = result == OK || result == STOPPED || result == ERROR_DIVERGED;
    if (all_ranks_know)
        communicator_close(&c);
    settings_free(&read);
    if (started && !all_ranks_know && !status_pipe_exists()) { /* sync_end may not return */
        log_error("%s", error_message());
        command_error_is_reported();
    }
    if (started) {
        /* Every rank learns of a stop or a divergence itself. Other errors must be sent to the
         * other ranks, which would otherwise wait. */
        sync_end(all_ranks_know ? OK : result);
    }
    return result;
}
