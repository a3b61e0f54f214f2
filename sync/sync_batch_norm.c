/* sync_batch_norm.c — see sync_batch_norm.h. */
#include "sync/sync_batch_norm.h"

#include "base/memory.h"

static status sum_over_ranks(void *context, double *sums, size_t count)
{
    status result = OK;
    const struct sync_batch_norm *j = context;
    TRY(communicator_gather_all(j->c, sums, count * sizeof *sums, j->all));
    for (size_t i = 0; i < count; i++) {
        sums[i] = j->all[i];
        for (unsigned rank = 1; rank < j->c->size; rank++)
            sums[i] += j->all[rank * count + i];
    }
done:
    return result;
}

status sync_batch_norm_open(struct sync_batch_norm *j, worker *w, communicator *c)
{
    status result = OK;
    const size_t sums = worker_joint_sums(w);

    *j = (struct sync_batch_norm){0};
    if (sums == 0)
        return OK;
    if (c->kind->exchanges_nothing)
        FAIL(ERROR_USAGE,
             "batch_norm=synchronised does not work with communicator=%s, which exchanges nothing; "
             "use communicator=auto",
             c->kind->about.name);
    TRY(memory_new(&j->all, c->size * sums, sizeof(double), "batch norm's sums"));
    j->c = c;
    j->worker = w;
    j->batch = (struct batch_norm_group){.context = j, .shares = c->size, .add_up = sum_over_ranks};
    worker_join(w, &j->batch);
done:
    return result;
}

void sync_batch_norm_close(struct sync_batch_norm *j)
{
    if (j->worker != NULL)
        worker_join(j->worker, NULL);
    memory_free(j->all);
    *j = (struct sync_batch_norm){0};
}
