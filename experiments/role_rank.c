#include "experiments/command.h"

#include "experiments/role.h"
#include "experiments/save.h"
#include "sync/pipeline.h"

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

static status train(struct role_process *p, unsigned size, communicator **c,
                    struct training_outcome *out)
{
    status result = OK;
    const options *o = p->settings;
    struct saved from = {0};
    if (size != (unsigned)options_integer(o, "workers")) {
        FAIL(ERROR_USAGE,
             "workers=%lld, but MPI knows of %u rank%s; leave workers out or set it to the number "
             "of ranks",
             (long long)options_integer(o, "workers"), size, size == 1 ? "" : "s");
    }
    if (p->index == 0) {
        TRY(role_open_recorder(p));
    }
    const bool pipeline = strcmp(options_text(o, "mode"), "pipeline") == 0;
    struct worker_options shard = {
        .settings = o, .index = p->index, .count = size, .no_gradients = pipeline};
    TRY(worker_open(&p->worker, &shard));
    const char *resume = options_text(o, "resume");
    if (p->index == 0 && resume[0] != '\0') {
        TRY(saved_open(&from, resume, o, p->worker));
    }
    TRY(communicator_open(c, o, pipeline ? 0 : worker_parameter_count(p->worker),
                          worker_place(p->worker)));
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
    saved_close(&from);
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

status command_rank(int argc, char **argv)
{
    status result = OK;
    struct settings read = {0};
    struct role_process p = {.role = ROLE_RANK};
    struct training_outcome outcome = {0};
    communicator *c = NULL;
    unsigned rank = 0, size = 0;
    bool started = false;
#ifdef GRADLAG_SANITIZE
    is_rank = 1;
#endif
    TRY(settings_read_arguments(&read, argc, argv));
    const char *mode = settings_find(&read, "mode");
    if (mode != NULL && strcmp(mode, "pipeline") == 0) {
        const char *micro_batches = settings_find(&read, "micro_batches");
        long in_flight = micro_batches != NULL ? strtol(micro_batches, NULL, 10) : 1;
        sync_expect_messages(in_flight > 0 ? (unsigned)in_flight : 1);
    }
    TRY(check_launcher());
    TRY(sync_start(&rank, &size));
    started = true;
    p.index = rank;
    role_default_workers(&read);
    TRY(role_begin(&p, ROLE_RANK, rank, &read));
    TRY(train(&p, size, &c, &outcome));
done:
    result = role_end(&p, result, &outcome);
    bool together = result == OK || result == STOPPED || result == ERROR_DIVERGED;
    if (together) {
        communicator_close(&c);
    }
    settings_free(&read);
    if (started) {
        /* How a run was stopped or diverged every rank knows; other errors the others must be
         * told, or they would wait. */
        sync_end(together ? OK : result);
    }
    return result;
}
