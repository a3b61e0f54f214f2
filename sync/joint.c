/* joint.c — see joint.h. */
#include "sync/joint.h"

#include "sync/apart.h"

static status add_up(void *context, double *sums, size_t count)
{
    status result = OK;
    const struct joint *j = context;
    TRY(communicator_gather_all(j->c, sums, count * sizeof *sums, j->all));
    for (size_t i = 0; i < count; i++) {
        sums[i] = j->all[i];
        for (unsigned rank = 1; rank < j->c->size; rank++)
            sums[i] += j->all[rank * count + i];
    }
done:
    return result;
}

status joint_open(struct joint *j, const options *o, worker *w, communicator *c)
{
    status result = OK;
    const size_t sums = worker_joint_sums(w);
    struct apart apart;

    *j = (struct joint){0};
    if (sums == 0)
        return OK;
    apart_open(&apart, o, 1);
    if (apart.steps > 1)
        FAIL(ERROR_USAGE, "batch_norm=synchronised does not go with local_steps: ranks that are "
                          "apart have other parameters, and nothing in common to norm by; leave "
                          "one of them out");
    if (c->kind->exchanges_nothing)
        FAIL(ERROR_USAGE,
             "batch_norm=synchronised does not go with communicator=%s, whose ranks "
             "keep to themselves; use communicator=auto",
             c->kind->about.name);
    TRY(memory_new(&j->all, c->size * sums, sizeof(double), "batch norm's sums"));
    j->c = c;
    j->worker = w;
    j->batch = (struct joint_batch){.context = j, .shares = c->size, .add_up = add_up};
    worker_join(w, &j->batch);
done:
    return result;
}

void joint_close(struct joint *j)
{
    if (j->worker != NULL)
        worker_join(j->worker, NULL);
    if (j->c != NULL && !j->c->failed) /* else sums may be under way, to the process's end */
        memory_free(j->all);
    *j = (struct joint){0};
}
