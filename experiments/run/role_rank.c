#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "experiments/command.h"

#include "experiments/run/resume_record.h"
#include "experiments/run/role.h"
#include "experiments/run/run_checkpoint.h"
#include "sync/communicator/host_networks.h"
#include "sync/pipeline/pipeline.h"

#include <stdlib.h>
#include <string.h>

#ifdef GRADLAG_SANITIZE
/* Open MPI leaves memory behind in MPI_Finalize: in this process leaks are not looked for. */
static int is_rank;
int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void)
{
    return is_rank;
}
#endif

void role_leaks_are_of_mpi(void)
{
#ifdef GRADLAG_SANITIZE
    is_rank = 1;
#endif
}

/* What one rank may have of its own: where it reads data, and what rank 0 alone looks at. */
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

/* Ranks that were started with other settings would wait for each other in other places, or end
 * well with numbers of no run at all. */
static status check_alike(const struct role_process *p)
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
             "rank %u was given other settings than rank 0; its own message says which", other);
    }
    while (at > 0 && own.at[at - 1] != '\n')
        at--;
    FAIL(ERROR_USAGE, "rank %u was given %.*s, rank 0 %.*s: give all ranks the same settings",
         p->index, (int)strcspn(own.at + at, "\n"), own.at + at, (int)strcspn(first + at, "\n"),
         first + at);
done:
    memory_free(first);
    text_free(&own);
    return result;
}

static status train(struct role_process *p, unsigned size, communicator **c,
                    struct training_outcome *out)
{
    status result = OK;
    const options *o = p->settings;
    struct run_checkpoint_file from = {0};
    TRY(sync_first_contact(options_real(o, "timeout_s")));
    TRY(check_alike(p));
    if (p->index == 0) /* it has heard all others */
        status_pipe_send(&(struct status_message){.kind = STATUS_BOUND, .role = ROLE_RANK});
    if (size != (unsigned)options_integer(o, "workers")) {
        FAIL(ERROR_USAGE,
             "workers=%lld, but MPI knows of %u rank%s; leave workers out or set it to the number "
             "of ranks",
             (long long)options_integer(o, "workers"), size, size == 1 ? "" : "s");
    }
    if (p->index == 0)
        TRY(role_open_recorder(p));
    const bool pipeline = strcmp(options_text(o, "mode"), "pipeline") == 0;
    struct worker_options shard = {
        .settings = o, .index = p->index, .count = size, .no_gradients = pipeline};
    TRY(worker_open(&p->worker, &shard));
    const char *resume = options_text(o, "resume");
    if (p->index == 0 && resume[0] != '\0') {
        TRY(run_checkpoint_open(&from, resume, o, p->worker));
        TRY(resume_record(p, resume, &from.state));
    }
    TRY(communicator_open(c, o, pipeline ? 0 : worker_parameter_count(p->worker),
                          worker_place(p->worker)));
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
    TRY(pipeline ? pipeline_trainer_run(&trainer, out) : sync_trainer_run(&trainer, out));
done:
    run_checkpoint_close(&from);
    return result;
}

/* Without PMIx the tasks of a Slurm step know nothing of each other, and Open MPI would abort each
 * with words on how it was built. */
static status check_launcher(void)
{
    status result = OK;
    const char *tasks = getenv("SLURM_STEP_NUM_TASKS");
    const bool acquainted = getenv("OMPI_COMM_WORLD_RANK") != NULL || getenv("PMIX_RANK") != NULL ||
                            getenv("PMI_RANK") != NULL;
    if (tasks != NULL && strcmp(tasks, "1") != 0 && !acquainted) {
        FAIL(ERROR_USAGE,
             "srun started %s ranks that know nothing of each other: start them by srun --mpi=pmix "
             "(`srun --mpi=list` shows what this Slurm has), or by mpirun inside the allocation",
             tasks);
    }
done:
    return result;
}

/* The run's row is for whoever started this rank to write, or for the one that has the results file
 * open: it is in a call of MPI and does nothing with it. */
static void tell_end(void *context, const char *why)
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

const char command_rank_help[] = "gradlag rank key=value…\n\n"
                                 "The number of ranks and its own come from the launcher.\n\n"
                                 "  mpirun -n 4 gradlag rank mode=sync key=value…\n\n"
                                 "`gradlag list keys` shows what key may be.\n";

status command_rank(int argc, char **argv)
{
    status result = OK;
    struct settings read = {0};
    struct role_process p = {.role = ROLE_RANK};
    struct training_outcome outcome = {0};
    communicator *c = NULL;
    unsigned rank = 0, size = 0;
    bool started = false;
    role_leaks_are_of_mpi();
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
    p.index = rank;
    sync_set_exit_hook(tell_end, &p);
    role_default_workers(&read);
    TRY(role_begin(&p, ROLE_RANK, rank, &read));
    TRY(train(&p, size, &c, &outcome));
done:
    result = role_end(&p, result, &outcome);
    bool together = result == OK || result == STOPPED || result == ERROR_DIVERGED;
    if (together)
        communicator_close(&c);
    settings_free(&read);
    if (started && !together && !status_pipe_exists()) { /* sync_end may not return */
        log_error("%s", error_message());
        command_is_told();
    }
    if (started) {
        /* How a run was stopped or diverged every rank knows; other errors the others must be
         * told, or they would wait. */
        sync_end(together ? OK : result);
    }
    return result;
}
