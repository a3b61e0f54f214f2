/* test_cuda_nccl.c — NCCL on a real GPU: one rank opens the communicator, and its sum runs after
 * the step and before the update. One GPU allows one rank only; no test covers an exchange between
 * two ranks. tests/sync/test_communicator.c covers everything before the first call of NCCL. */
#include "base/memory.h"
#include "sync/communicator/communicator.h"
#include "tests/worker/cuda/cuda_rig.h"
#include "tests/sync/sync_rig.h"
#include "worker/worker.h"

#include <stdlib.h>
#include <string.h>

static bool gpu_is_there(void)
{
    const struct cuda_kind *kind;
    unsigned count;
    return cuda_kind_get(&kind) == OK && kind->count(&count) == OK;
}

static void the_library_is_found_or_a_reason_is_given(void **state UNUSED)
{
    const char *version = sync_nccl_version();
    bool number = version[0] == '2' && version[1] == '.';
    bool reason = strncmp(version, "not found: communicator=nccl: ", 30) == 0;
    if (!number && !reason && strcmp(version, "built without NCCL") != 0)
        fail_msg("'%s'", version);
    print_message("NCCL: %s\n", version);
}

/* Three rounds of updates. With `sums` each step has a sum over one rank during its backward pass,
 * which must not change the gradient. */
static void train(worker *w, communicator *c, const options *o, bool sums, float *out)
{
    struct device_vectors at;
    struct optimizer_rule rule;
    const struct device_sum sum = {communicator_device_sum, c, c->bucket};
    const size_t count = worker_parameter_count(w);
    const unsigned steps = worker_resident_steps(w);
    assert_ok(optimizer_rule_of(o, &rule));
    assert_ok(worker_reside(w, DEVICE_NOTES, rule.states, &at));
    assert_ok(worker_initial_parameters(w, out, count));
    assert_ok(worker_resident_write(w, at.parameters, out, count));
    const struct device_update u = {
        .rule = rule, .scale = 1, .lr = 0.05, .sum = sums ? &sum : NULL};
    for (uint64_t round = 0; round < 3; round++) {
        struct step_stats stats[DEVICE_STEPS_MOST];
        struct device_result results[DEVICE_STEPS_MOST];
        if (sums)
            assert_ok(c->kind->device_begin(c, steps));
        for (unsigned i = 0; i < steps; i++)
            assert_ok(worker_resident_step(w, &at, round * steps + i, &u, &stats[i]));
        if (sums)
            assert_ok(c->kind->device_end(c, steps));
        assert_ok(worker_resident_results(w, round * steps, steps, results, stats));
        assert_true(results[steps - 1].updated);
    }
    assert_ok(worker_resident_read(w, out, at.parameters, count));
}

static void one_rank_sums_its_gradients_on_the_gpu(void **state UNUSED)
{
    unsigned rank, size;
    options *o;
    worker *w;
    communicator *c;
    float *plain, *summed;
    if (!gpu_is_there() || strncmp(sync_nccl_version(), "2.", 2) != 0) {
        print_message("skipped: no GPU here, or no NCCL\n");
        skip();
    }
    assert_ok(sync_start(&rank, &size));
    assert_ok(sync_rig_training(
        &o, (const char *const[]){"device=cuda", "model=mlp", "communicator=nccl", NULL}));
    assert_ok(worker_open(&w, &(struct worker_options){.settings = o, .count = 1}));
    const size_t count = worker_parameter_count(w);
    assert_ok(communicator_open(&c, o, count, worker_place(w)));
    assert_ok(memory_new(&plain, count, sizeof(float), "test"));
    assert_ok(memory_new(&summed, count, sizeof(float), "test"));
    train(w, c, o, false, plain);
    train(w, c, o, true, summed);
    assert_memory_equal(plain, summed, count * sizeof(float));
    communicator_close(&c);
    worker_close(&w);
    options_close(&o);
    memory_free(plain);
    memory_free(summed);
    sync_end(OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_library_is_found_or_a_reason_is_given),
        cmocka_unit_test(one_rank_sums_its_gradients_on_the_gpu),
    };
    return cmocka_run_group_tests_name("cuda, nccl", tests, NULL, NULL);
}
