/*
 * test_replica.c — kinds of replicas compared with replica_host, update by update: replica_device
 * on the stand-in for CUDA, on one rank; replica_shared on several ranks. And when overlap goes
 * off.
 */
#include "base/memory.h"
#include "sync/pending.h"
#include "sync/replica.h"
#include "tests/sync/trainer_rig.h"

#include <math.h>
#include <sched.h>
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

/* Makes the same updates one by one. round->made counts them until one is not finite. */
static status make_singly(replica *r, struct replica_round *round)
{
    status result = OK;
    for (unsigned i = 0; i < round->count; i++) {
        bool finite;
        TRY(replica_gradient(r, round->first + i, &round->stats[i]));
        TRY(replica_exchange(r, round->notes[i]));
        TRY(replica_apply(r, round->lr[i], &finite));
        if (!finite)
            break;
        round->made++;
    }
done:
    return result;
}

/* Makes the same round on both replicas. */
static status compare_round(replica *host, replica *device, struct replica_round *round)
{
    status result = OK;
    struct replica_round other = *round;
    TRY(make_singly(host, round));
    TRY(replica_make_round(device, &other));
    TRY(expect_same_views(host, device));
    if (round->made != other.made)
        FAIL(ERROR_OTHER, "%u updates, then a gradient that is not finite; and %u", round->made,
             other.made);
    for (unsigned i = 0; i < round->made; i++)
        if (round->stats[i].loss != other.stats[i].loss ||
            round->stats[i].correct != other.stats[i].correct ||
            other.notes[i][NOTE_LOSS] != other.stats[i].loss || other.notes[i][NOTE_STOP] != 0)
            FAIL(ERROR_OTHER, "the replicas differ in update %u of a round", i);
done:
    return result;
}

/* Compares rounds of 1 to 8 updates, with evaluations between them. */
static status compare_replicas(worker *w, replica *host, replica *device)
{
    status result = OK;
    uint64_t batch = 0;
    TRY(expect_same_views(host, device));
    for (unsigned count = 1; count <= DEVICE_STEPS_MOST; count++, batch += count) {
        struct replica_round round = {.first = batch, .count = count};
        struct evaluation e[2];
        for (unsigned i = 0; i < count; i++)
            round.lr[i] = 0.1 / (double)(batch + i + 1);
        TRY(compare_round(host, device, &round));
        TRY(worker_evaluate(w, host->parameters, &e[0]));
        TRY(worker_evaluate(w, device->parameters, &e[1]));
        if (round.made != count || e[0].test_loss != e[1].test_loss)
            FAIL(ERROR_OTHER, "the replicas differ in round %u", count);
    }
done:
    return result;
}

/* An infinite learning rate makes the next gradient infinite. Neither replica makes an update then,
 * nor another one in the same round. */
static status poison_replicas(worker *w, replica *host, replica *device)
{
    status result = OK;
    struct replica_round round = {.count = 6, .lr = {0.1, 0.1, INFINITY, 0.1, 0.1, 0.1}};
    struct replica_view before;
    float *kept = NULL;
    TRY(replica_view(host, &before));
    const size_t states = before.optimizer_state_count;
    TRY(memory_new(&kept, host->count + states, sizeof *kept, "a copy"));
    memcpy(kept, before.parameters, host->count * sizeof *kept);
    if (states > 0)
        memcpy(kept + host->count, before.optimizer_state, states * sizeof *kept);
    before.parameters = kept;
    before.optimizer_state = states > 0 ? kept + host->count : NULL;
    TRY(compare_round(host, device, &round));
    if (round.made != 3)
        FAIL(ERROR_OTHER, "%u updates before the gradient was infinite, not 3", round.made);
    TRY(replica_set(host, &before, 0));
    TRY(replica_set(device, &before, 0));
    TRY(compare_replicas(w, host, device));
done:
    memory_free(kept);
    return result;
}

static status compare_with(const char *setting)
{
    status result = OK;
    options *o = NULL;
    worker *w = NULL;
    communicator *c = NULL;
    replica *host = NULL, *device = NULL;
    TRY(sync_rig_training(&o, (const char *const[]){"device=cuda", "model=mlp", setting, NULL}));
    TRY(worker_open(&w, &(struct worker_options){.settings = o, .count = 1}));
    TRY(communicator_open(&c, o, worker_parameter_count(w), worker_place(w)));
    TRY(replica_open_kind(&host, &replica_host, o, w, c));
    TRY(replica_open(&device, o, w, c));
    if (device->kind != &replica_device)
        FAIL(ERROR_OTHER, "the replica of one rank is not on the GPU");
    TRY(compare_replicas(w, host, device));
    TRY(poison_replicas(w, host, device));
done:
    replica_close(&host);
    replica_close(&device);
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

/* Two ranks that exchange through MPI keep their replicas in host memory. */
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
        FAIL(ERROR_OTHER, "the replica is on the GPU, but the exchange is not");
done:
    replica_close(&r);
    communicator_close(&c);
    worker_close(&w);
    options_close(&o);
    return result;
}

/* ---- replica_shared -----------------------------------------------------------------------------
 */

static status open_on(replica **out, const struct replica_kind *kind, const char *way, options *o,
                      worker *w, communicator **c)
{
    status result = OK;
    TRY(sync_rig_set(o, "communicator", way));
    TRY(communicator_open(c, o, worker_parameter_count(w), NULL));
    TRY(replica_open(out, o, w, *c));
    if ((*out)->kind != kind)
        FAIL(ERROR_OTHER, "communicator=%s has a replica of kind %s", way, (*out)->kind->name);
done:
    return result;
}

/* Sets both replicas to rank 0's state, as at the beginning or when resuming. */
static status set_both(replica *both[2], uint64_t updates)
{
    status result = OK;
    struct replica_view from;
    const size_t parameters = both[0]->count * sizeof(float);
    TRY(replica_view(both[0], &from));
    float *theta = memory_allocate(parameters);
    float *state = memory_allocate(from.optimizer_state_count * sizeof(float) + 1);
    memcpy(theta, from.parameters, parameters);
    if (from.optimizer_state_count > 0)
        memcpy(state, from.optimizer_state, from.optimizer_state_count * sizeof(float));
    from = (struct replica_view){.parameters = theta,
                                 .optimizer_state = state,
                                 .optimizer_state_count = from.optimizer_state_count};
    for (unsigned i = 0; result == OK && i < 2; i++)
        result = replica_set(both[i], &from, updates);
    memory_free(theta);
    memory_free(state);
done:
    return result;
}

enum { BATCHES = 24 };

/* One step of each replica. If `bad`, one element of one rank's gradient is NaN; the element moves
 * through the shares of all ranks. Some bad updates are not even tried, as when the loss is not
 * finite. */
static status step_both(replica *both[2], unsigned rank, uint64_t batch, bool bad)
{
    status result = OK;
    struct step_stats stats;
    bool finite[2] = {false, false};
    float notes[2][COMMUNICATOR_NOTES];
    for (unsigned i = 0; i < 2; i++) {
        for (unsigned k = 0; k < COMMUNICATOR_NOTES; k++)
            notes[i][k] = (float)(rank * 7 + k) / 3;
        TRY(replica_gradient(both[i], batch, &stats));
        if (bad && rank == batch % 2)
            both[i]->gradient[both[i]->count / BATCHES * batch] = NAN;
        TRY(replica_exchange(both[i], notes[i]));
        if (bad && batch % 3 == 0)
            continue;
        TRY(replica_apply(both[i], 0.1 / (double)(batch + 1), &finite[i]));
    }
    if (memcmp(notes[0], notes[1], sizeof notes[0]) != 0 || finite[0] == bad || finite[1] == bad)
        FAIL(ERROR_OTHER, "batch %llu: other notes or another decision", (unsigned long long)batch);
done:
    return result;
}

static status compare_shared(const char *rule, unsigned rank, unsigned size)
{
    status result = OK;
    options *o = NULL;
    worker *w = NULL;
    communicator *c[2] = {NULL, NULL};
    replica *both[2] = {NULL, NULL};
    TRY(sync_rig_training(&o, SETTINGS("model=mlp", rule, "checkpoint=x")));
    TRY(worker_open(&w, &(struct worker_options){.settings = o, .index = rank, .count = size}));
    TRY(open_on(&both[0], &replica_host, "naive", o, w, &c[0]));
    TRY(open_on(&both[1], &replica_shared, "shared", o, w, &c[1]));
    TRY(set_both(both, 0));
    for (uint64_t batch = 0; batch < BATCHES; batch++) {
        TRY(step_both(both, rank, batch, batch % 5 == 3 || batch % 7 == 5));
        if (batch == 12)
            TRY(set_both(both, 10));
        TRY(replica_collect(both[1]));
        if (rank == 0)
            TRY(expect_same_views(both[0], both[1]));
        TRY(communicator_barrier(c[1]));
    }
done:
    for (unsigned i = 0; i < 2; i++) {
        replica_close(&both[i]);
        communicator_close(&c[i]);
    }
    worker_close(&w);
    options_close(&o);
    return result;
}

static status case_shared(unsigned rank, unsigned size)
{
    static const char *const rules[] = {"optimizer=sgd", "optimizer=nesterov", "optimizer=adamw",
                                        "optimizer=rmsprop-warmup"};
    status result = OK;
    for (size_t i = 0; i < COUNT_OF(rules); i++)
        TRY(compare_shared(rules[i], rank, size));
done:
    return result;
}

/* Two ranks on one processor: the rank that passes the gate first begins its next exchange before
 * the other has read the buffer. No update is between the exchanges, as when losses are not finite.
 */
static status skip_updates(replica *r, unsigned rank)
{
    status result = OK;
    unsigned wrong = 0;
    for (unsigned n = 0; n < 200; n++) {
        float notes[COMMUNICATOR_NOTES];
        for (unsigned k = 0; k < COMMUNICATOR_NOTES; k++)
            notes[k] = (float)(8 * n + 2 * rank + k);
        TRY(replica_exchange(r, notes));
        for (unsigned k = 0; k < COMMUNICATOR_NOTES; k++)
            wrong += notes[k] != (float)(8 * n + 1 + k);
    }
    if (wrong > 0)
        FAIL(ERROR_OTHER, "%u notes are not the mean over ranks", wrong);
done:
    return result;
}

static status case_skipped(unsigned rank, unsigned size)
{
    status result = OK;
    options *o = NULL;
    worker *w = NULL;
    communicator *c = NULL;
    replica *r = NULL;
    cpu_set_t all, one;
    int first = 0;
    TRY(sync_rig_training(&o, SETTINGS("model=mlp")));
    TRY(worker_open(&w, &(struct worker_options){.settings = o, .index = rank, .count = size}));
    TRY(open_on(&r, &replica_shared, "shared", o, w, &c));
    sched_getaffinity(0, sizeof all, &all);
    while (!CPU_ISSET(first, &all))
        first++;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    sched_setaffinity(0, sizeof one, &one);
    TRY(skip_updates(r, rank));
done:
    replica_close(&r);
    communicator_close(&c);
    worker_close(&w);
    options_close(&o);
    return result;
}

/* Settings that need whole layers, or a gradient per rank, exclude replica_shared. */
static status case_own(unsigned rank, unsigned size)
{
    static const char *const own[] = {"optimizer=lars", "overlap=yes", "delay=1", "local_steps=2",
                                      "decay=batch"};
    status result = OK;
    options *o = NULL;
    worker *w = NULL;
    communicator *c = NULL;
    replica *r = NULL;
    for (size_t i = 0; i < COUNT_OF(own); i++) {
        TRY(sync_rig_training(&o, SETTINGS(own[i])));
        TRY(worker_open(&w, &(struct worker_options){.settings = o, .index = rank, .count = size}));
        TRY(open_on(&r, &replica_host, "shared", o, w, &c));
        replica_close(&r);
        communicator_close(&c);
        worker_close(&w);
        options_close(&o);
    }
done:
    replica_close(&r);
    communicator_close(&c);
    worker_close(&w);
    options_close(&o);
    return result;
}

/* Whether overlap is on after `steps` steps. */
static status expect_overlap(const char *bucket, const char *setting, const char *delay,
                             unsigned steps, bool expected, unsigned rank, unsigned size)
{
    status result = OK;
    options *o = NULL;
    worker *w = NULL;
    communicator *c = NULL;
    replica *r = NULL;
    TRY(sync_rig_training(&o, SETTINGS(setting, bucket, delay, "model=mlp")));
    TRY(worker_open(&w, &(struct worker_options){.settings = o, .index = rank, .count = size}));
    TRY(open_on(&r, &replica_host, "mpi", o, w, &c));
    for (uint64_t batch = 0; batch < steps; batch++) {
        float notes[COMMUNICATOR_NOTES] = {0};
        struct step_stats stats;
        bool finite;
        TRY(replica_gradient(r, batch, &stats));
        TRY(replica_exchange(r, notes));
        TRY(replica_apply(r, 0.01, &finite));
        replica_take(r);
    }
    if (r->overlaps != expected || r->trial != NULL || r->checks_early)
        FAIL(ERROR_OTHER, "%s %s %s: after %u steps overlap is %d, %s", bucket, setting, delay,
             steps, r->overlaps, r->trial != NULL || r->checks_early ? "not decided" : "decided");
done:
    replica_close(&r);
    communicator_close(&c);
    worker_close(&w);
    options_close(&o);
    return result;
}

/* With one part, or if the first layer's gradient fills all parts, no part is final early. The
 * first step with overlap detects that. */
static status case_overlap(unsigned rank, unsigned size)
{
    status result = OK;
    static const char *const whole[] = {"bucket_kib=65536", "bucket_kib=512"};
    for (size_t i = 0; i < COUNT_OF(whole); i++)
        TRY(expect_overlap(whole[i], "overlap=yes", "delay=0", 1, false, rank, size));
    TRY(expect_overlap("bucket_kib=16", "overlap=yes", "delay=0", 3, true, rank, size));
    TRY(expect_overlap("bucket_kib=64", "overlap=yes", "delay=1", 3, true, rank, size));
done:
    return result;
}

static const struct sync_case CASES[] = {
    {"shared", case_shared},
    {"skipped", case_skipped},
    {"own", case_own},
    {"replicas", case_replicas},
    {"host", case_host},
    {"overlap", case_overlap},
    {NULL, NULL},
};

static void a_replica_on_the_device_has_the_bits_of_one_on_the_host(void **state UNUSED)
{
#ifndef GRADLAG_CUDA
    skip();
#endif
    sync_rig_expect_ok(1, "replicas");
}

static void ranks_that_exchange_on_the_host_keep_their_replicas_there(void **state UNUSED)
{
#ifndef GRADLAG_CUDA
    skip();
#endif
    sync_rig_expect_ok(2, "host");
}

static void a_shared_update_has_the_bits_of_separate_updates(void **state UNUSED)
{
    sync_rig_expect_ok(2, "shared");
    sync_rig_expect_ok(3, "shared");
    sync_rig_expect_ok(2, "own");
}

static void overlap_goes_off_if_no_part_is_final_early(void **state UNUSED)
{
    sync_rig_expect_ok(2, "overlap");
}

static void notes_are_means_if_no_update_follows(void **state UNUSED)
{
    sync_rig_expect_ok(2, "skipped");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_replica_on_the_device_has_the_bits_of_one_on_the_host),
        cmocka_unit_test(ranks_that_exchange_on_the_host_keep_their_replicas_there),
        cmocka_unit_test(a_shared_update_has_the_bits_of_separate_updates),
        cmocka_unit_test(overlap_goes_off_if_no_part_is_final_early),
        cmocka_unit_test(notes_are_means_if_no_update_follows),
    };
    int code;
    if (sync_rig_is_rank(argc, argv, CASES, &code))
        return code;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
