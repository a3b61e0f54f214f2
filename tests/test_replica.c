/*
 * test_replica.c — a replica on the device against one in the host's memory, update by update, on
 * one rank and the emulated GPU.
 */
#include "sync/replica.h"
#include "tests/sync_rig.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

static status expect_same_views(replica *a, replica *b)
{
    status result = OK;
    struct replica_view one, other;
    TRY(replica_view(a, &one));
    TRY(replica_view(b, &other));
    if (one.optimizer_state_count != other.optimizer_state_count ||
        memcmp(one.parameters, other.parameters, a->count * sizeof(float)) != 0 ||
        (one.optimizer_state_count > 0 && memcmp(one.optimizer_state, other.optimizer_state,
                                                 one.optimizer_state_count * sizeof(float)) != 0))
        FAIL(ERROR_OTHER, "the replicas differ");
done:
    return result;
}

/* Update by update, with an evaluation between. */
static status compare_replicas(worker *w, replica *here, replica *there)
{
    status result = OK;
    TRY(expect_same_views(here, there));
    for (uint64_t batch = 0; batch < 20; batch++) {
        float notes[2][COMMUNICATOR_NOTES] = {{1, 2, 3, 4}, {1, 2, 3, 4}};
        struct step_stats stats[2];
        struct evaluation e[2] = {{0}};
        bool finite[2];
        replica *const both[] = {here, there};
        for (unsigned i = 0; i < 2; i++) {
            TRY(replica_gradient(both[i], batch, &stats[i]));
            TRY(replica_exchange(both[i], notes[i]));
            TRY(replica_apply(both[i], 0.1 / (double)(batch + 1), &finite[i]));
            if (batch == 10)
                TRY(worker_evaluate(w, both[i]->parameters, &e[i]));
        }
        TRY(expect_same_views(here, there));
        if (stats[0].loss != stats[1].loss || e[0].test_loss != e[1].test_loss ||
            memcmp(notes[0], notes[1], sizeof notes[0]) != 0 || !finite[0] || !finite[1])
            FAIL(ERROR_OTHER, "the replicas differ in update %llu", (unsigned long long)batch);
    }
done:
    return result;
}

/* A bad gradient on either side leaves everything as it was. */
static status poison_replicas(worker *w, replica *here, replica *there)
{
    status result = OK;
    const float bad = NAN;
    bool finite;
    here->gradient[3] = bad;
    TRY(worker_resident_write(w, there->gradient + 3, &bad, 1));
    TRY(replica_apply(here, 0.1, &finite));
    if (!finite)
        TRY(replica_apply(there, 0.1, &finite));
    if (finite)
        FAIL(ERROR_OTHER, "a NaN was not noticed");
    TRY(expect_same_views(here, there));
    TRY(compare_replicas(w, here, there));
done:
    return result;
}

static status compare_with(const char *setting)
{
    status result = OK;
    options *o = NULL;
    worker *w = NULL;
    communicator *c = NULL;
    replica *here = NULL, *there = NULL;
    TRY(sync_rig_training(&o, (const char *const[]){"device=cuda", "model=mlp", setting, NULL}));
    TRY(worker_open(&w, &(struct worker_options){.settings = o, .count = 1}));
    TRY(communicator_open(&c, o, worker_parameter_count(w), worker_place(w)));
    TRY(replica_open_kind(&here, &replica_host, o, w, c));
    TRY(replica_open(&there, o, w, c));
    if (there->kind != &replica_device)
        FAIL(ERROR_OTHER, "one rank's replica is not on the GPU");
    TRY(compare_replicas(w, here, there));
    TRY(poison_replicas(w, here, there));
done:
    replica_close(&here);
    replica_close(&there);
    communicator_close(&c);
    worker_close(&w);
    options_close(&o);
    return result;
}

static status case_replicas(unsigned rank UNUSED, unsigned size UNUSED)
{
    status result = OK;
    TRY(compare_with("optimizer=sgd"));
    TRY(compare_with("optimizer=momentum"));
    TRY(compare_with("optimizer=nesterov"));
done:
    return result;
}

/* Two ranks that exchange through MPI: parameters have to come down for that. */
static status case_host(unsigned rank, unsigned size)
{
    status result = OK;
    options *o = NULL;
    worker *w = NULL;
    communicator *c = NULL;
    replica *r = NULL;
    TRY(sync_rig_training(&o, (const char *const[]){"device=cuda", "communicator=auto", NULL}));
    TRY(worker_open(&w, &(struct worker_options){.settings = o, .index = rank, .count = size}));
    TRY(communicator_open(&c, o, worker_parameter_count(w), worker_place(w)));
    TRY(replica_open(&r, o, w, c));
    if (r->kind != &replica_host)
        FAIL(ERROR_OTHER, "the replica is on the GPU, and nothing exchanges there");
done:
    replica_close(&r);
    communicator_close(&c);
    worker_close(&w);
    options_close(&o);
    return result;
}

static const struct sync_case CASES[] = {
    {"replicas", case_replicas},
    {"host", case_host},
    {NULL, NULL},
};

static void a_replica_on_the_device_has_the_bits_of_one_on_the_host(void **state UNUSED)
{
    sync_rig_expect_ok(1, "replicas");
}

static void ranks_that_exchange_on_the_host_keep_their_replicas_there(void **state UNUSED)
{
    sync_rig_expect_ok(2, "host");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_replica_on_the_device_has_the_bits_of_one_on_the_host),
        cmocka_unit_test(ranks_that_exchange_on_the_host_keep_their_replicas_there),
    };
    int code;
    setenv("GRADLAG_CUDA_EMULATED", "1", 1);
    if (sync_rig_is_rank(argc, argv, CASES, &code))
        return code;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
