/* test_cuda_steps.c — steps that end with their update: several queued steps give the bits of
 * single ones, each runs as one graph, a gradient that is not finite stops all that follow, and
 * sums over ranks begin during the backward pass and change no bit. */
#include "base/memory.h"
#include "experiments/config/config.h"
#include "sync/communicator/communicator.h"
#include "tests/worker/cuda/cuda_rig.h"
#include "tests/worker/dataset_rig.h"
#include "worker/cuda/backend_cuda.h"
#include "worker/worker_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { UPDATES = 2 * DEVICE_STEPS_MOST };

struct training {
    options *settings;
    worker *worker;
    struct optimizer_rule rule;
    struct device_vectors at;
    size_t count;
    float *end; /* [count], the parameters after `train` */
    float losses[UPDATES];
    unsigned made; /* updates */
};

static void training_open(struct training *t, const char *model, const char *precision)
{
    char set[2][64];
    memset(t, 0, sizeof *t);
    snprintf(set[0], sizeof set[0], "model=%s", model);
    snprintf(set[1], sizeof set[1], "precision=%s", precision);
    assert_ok(config_compose_texts(&t->settings,
                                   (const char *const[]){"device=cuda", "dataset=gaussian",
                                                         "dataset.samples=300", "dataset.size=16",
                                                         "batch=4", set[0], set[1], NULL},
                                   NULL, "test"));
    assert_ok(
        worker_open(&t->worker, &(struct worker_options){.settings = t->settings, .count = 1}));
    assert_ok(optimizer_rule_of(t->settings, &t->rule));
    t->count = worker_parameter_count(t->worker);
    assert_ok(memory_new(&t->end, t->count, sizeof *t->end, "test"));
    assert_ok(worker_reside(t->worker, DEVICE_NOTES, t->rule.states, &t->at));
}

static void training_close(struct training *t)
{
    worker_close(&t->worker);
    options_close(&t->settings);
    memory_free(t->end);
}

static struct cuda *backend_of(const struct training *t)
{
    return (struct cuda *)t->worker->backend;
}

static double rate_at(uint64_t update)
{
    return 0.05 / (double)(update + 1);
}

/* UPDATES updates from the initial parameters, `queued` at a time. */
static void train(struct training *t, unsigned queued, const struct device_sum *sum)
{
    struct device_update u = {
        .rule = t->rule, .scale = sum != NULL ? 0.5 : 1, .sum = sum, .notes = {9, 0, 3, 0}};
    assert_ok(worker_reside(t->worker, DEVICE_NOTES, t->rule.states, &t->at));
    assert_ok(worker_initial_parameters(t->worker, t->end, t->count));
    assert_ok(worker_resident_write(t->worker, t->at.parameters, t->end, t->count));
    t->made = 0;
    for (uint64_t first = 0; first < UPDATES; first += queued) {
        struct step_stats stats[DEVICE_STEPS_MOST];
        struct device_result results[DEVICE_STEPS_MOST];
        for (unsigned i = 0; i < queued; i++) {
            u.lr = rate_at(first + i);
            assert_ok(worker_resident_step(t->worker, &t->at, first + i, &u, &stats[i]));
        }
        assert_ok(worker_resident_results(t->worker, first, queued, results, stats));
        for (unsigned i = 0; i < queued; i++) {
            const float ranks = sum != NULL ? 2 : 1;
            t->losses[first + i] = stats[i].loss;
            t->made += results[i].updated;
            assert_true(results[i].notes[0] == ranks * stats[i].loss);
            assert_true(results[i].notes[2] == ranks * 3);
        }
    }
    assert_ok(worker_resident_read(t->worker, t->end, t->at.parameters, t->count));
}

static void assert_same_training(const struct training *a, const struct training *b)
{
    assert_memory_equal(a->losses, b->losses, sizeof a->losses);
    assert_memory_equal(a->end, b->end, a->count * sizeof *a->end);
}

/* On the host: the gradient comes down, and the optimizer of the host updates. */
static void train_on_the_host(struct training *t)
{
    optimizer *o;
    float *gradient;
    assert_ok(memory_new(&gradient, t->count, sizeof *gradient, "test"));
    assert_ok(optimizer_open(&o, t->settings, t->count));
    assert_ok(worker_initial_parameters(t->worker, t->end, t->count));
    for (uint64_t i = 0; i < UPDATES; i++) {
        struct step_stats stats;
        struct optimizer_pass pass;
        assert_ok(worker_gradient(t->worker, t->end, i, gradient, &stats));
        optimizer_apply(o, t->end, gradient, 1, rate_at(i), NULL, t->end, &pass);
        assert_true(pass.finite);
        t->losses[i] = stats.loss;
    }
    optimizer_close(&o);
    memory_free(gradient);
}

static const struct {
    const char *model, *precision;
} trainings[] = {
    {"mlp", "fp32"},   {"lenet", "bf16"},
#if !defined(GRADLAG_SANITIZE)
    {"lenet", "fp32"}, {"mlp", "bf16"},   {"resnet8", "bf16"},
#endif
};

static void queued_steps_give_the_bits_of_single_ones_and_of_the_host(void **state UNUSED)
{
    for (size_t k = 0; k < COUNT_OF(trainings); k++) {
        static const unsigned queued[] = {1, DEVICE_STEPS_MOST / 2, DEVICE_STEPS_MOST};
        struct training host, device;
        training_open(&host, trainings[k].model, trainings[k].precision);
        training_open(&device, trainings[k].model, trainings[k].precision);
        train_on_the_host(&host);
        for (size_t i = 0; i < COUNT_OF(queued); i++) {
            train(&device, queued[i], NULL);
            assert_int_equal(device.made, UPDATES);
            assert_same_training(&host, &device);
        }
        training_close(&host);
        training_close(&device);
    }
}

/* Each place in a round has its own graph, whatever the learning rate. */
static void a_step_is_one_graph_with_its_update(void **state UNUSED)
{
    struct training t;
    struct cuda_command_statistics before, after;
    training_open(&t, "mlp", "fp32");
    train(&t, DEVICE_STEPS_MOST, NULL);
    cuda_command_statistics(backend_of(&t), &before);
    assert_int_equal(before.captured, DEVICE_STEPS_MOST);
    train(&t, DEVICE_STEPS_MOST, NULL);
    cuda_command_statistics(backend_of(&t), &after);
    assert_int_equal(after.launched, before.launched + UPDATES);
    assert_int_equal(after.direct, before.direct);
    assert_int_equal(after.captured, before.captured);
    training_close(&t);
}

static void graphs_and_queued_steps_can_be_turned_off(void **state UNUSED)
{
    struct training with, without;
    struct cuda_command_statistics s;
    training_open(&with, "mlp", "fp32");
    assert_int_equal(worker_resident_steps(with.worker), DEVICE_STEPS_MOST);
    train(&with, DEVICE_STEPS_MOST, NULL);
    setenv("GRADLAG_CUDA_GRAPHS", "none", 1);
    setenv("GRADLAG_CUDA_STEPS", "1", 1);
    training_open(&without, "mlp", "fp32");
    unsetenv("GRADLAG_CUDA_GRAPHS");
    unsetenv("GRADLAG_CUDA_STEPS");
    assert_int_equal(worker_resident_steps(without.worker), 1);
    train(&without, 1, NULL);
    cuda_command_statistics(backend_of(&without), &s);
    assert_int_equal(s.captured + s.launched, 0);
    assert_same_training(&with, &without);
    training_close(&with);
    training_close(&without);
}

/* The parameters after `updates` updates of one round; update 2 makes them infinite. */
static void diverge(struct training *t, unsigned updates, struct device_result *results)
{
    struct step_stats stats[DEVICE_STEPS_MOST];
    struct device_update u = {.rule = t->rule, .scale = 1};
    assert_ok(worker_reside(t->worker, DEVICE_NOTES, t->rule.states, &t->at));
    assert_ok(worker_initial_parameters(t->worker, t->end, t->count));
    assert_ok(worker_resident_write(t->worker, t->at.parameters, t->end, t->count));
    for (unsigned i = 0; i < updates; i++) {
        u.lr = i == 2 ? INFINITY : 0.1;
        assert_ok(worker_resident_step(t->worker, &t->at, i, &u, &stats[i]));
    }
    assert_ok(worker_resident_results(t->worker, 0, updates, results, stats));
    assert_ok(worker_resident_read(t->worker, t->end, t->at.parameters, t->count));
}

static void a_refused_update_refuses_all_that_follow_in_the_round(void **state UNUSED)
{
    struct training t, shorter;
    struct device_result results[DEVICE_STEPS_MOST];
    training_open(&t, "mlp", "fp32");
    training_open(&shorter, "mlp", "fp32");
    diverge(&shorter, 3, results);
    diverge(&t, DEVICE_STEPS_MOST, results);
    for (unsigned i = 0; i < DEVICE_STEPS_MOST; i++)
        assert_int_equal(results[i].updated, i < 3);
    assert_false(isfinite(results[3].squares));
    assert_memory_equal(t.end, shorter.end, t.count * sizeof *t.end);
    train(&t, DEVICE_STEPS_MOST, NULL); /* the next round starts afresh */
    assert_int_equal(t.made, UPDATES);
    training_close(&t);
    training_close(&shorter);
}

/* ---- sums over ranks ----------------------------------------------------------------------------
 */

/* Another rank with the same gradient: the sum is twice the gradient. */
struct twin {
    struct cuda *c;
    size_t sums, floats;
    const float *lowest; /* of the latest step so far */
};

static status add_twin(void *context, float *data, size_t count, void *stream)
{
    struct twin *t = context;
    const struct pass_on_call call = {
        .to = data, .from = data, .count = (uint32_t)count, .accumulate = true};
    assert_ptr_equal(stream, t->c->kind->native_stream(t->c->device, CUDA_COPY));
    if (data + count == (const float *)t->c->resident.gradient.at + t->c->count + DEVICE_NOTES)
        t->lowest = data + count;
    assert_ptr_equal(data + count, t->lowest); /* from the end to the beginning, without gaps */
    t->lowest = data;
    t->sums++;
    t->floats += count;
    return t->c->kind->launch(t->c->device, CUDA_COPY, CUDA_pass_on, cuda_grid_over(count, 256),
                              &call);
}

static void two_equal_ranks_train_like_one(void **state UNUSED)
{
    static const size_t buckets[] = {SIZE_MAX, 1000, 1};
    static const char *const graphs[] = {"", "all"};
    for (size_t k = 0; k < COUNT_OF(buckets) * COUNT_OF(graphs); k++) {
        struct training one, two;
        const bool captures = k >= COUNT_OF(buckets);
        setenv("GRADLAG_CUDA_GRAPHS", graphs[captures], 1);
        training_open(&one, "lenet", "fp32");
        training_open(&two, "lenet", "fp32");
        unsetenv("GRADLAG_CUDA_GRAPHS");
        struct twin twin = {.c = backend_of(&two)};
        const struct device_sum sum = {add_twin, &twin, buckets[k % COUNT_OF(buckets)]};
        train(&one, DEVICE_STEPS_MOST, NULL);
        train(&two, DEVICE_STEPS_MOST, &sum);
        assert_same_training(&one, &two);
        struct cuda_command_statistics s;
        cuda_command_statistics(twin.c, &s);
        assert_int_equal(s.captured, captures ? DEVICE_STEPS_MOST : 0);
        const size_t calls = captures ? 2 * DEVICE_STEPS_MOST : UPDATES; /* direct, captured */
        assert_int_equal(twin.floats, calls * (two.count + DEVICE_NOTES));
        assert_true(sum.bucket == SIZE_MAX ? twin.sums == calls : twin.sums > 2 * calls);
        training_close(&one);
        training_close(&two);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(queued_steps_give_the_bits_of_single_ones_and_of_the_host),
        cmocka_unit_test(a_step_is_one_graph_with_its_update),
        cmocka_unit_test(graphs_and_queued_steps_can_be_turned_off),
        cmocka_unit_test(a_refused_update_refuses_all_that_follow_in_the_round),
        cmocka_unit_test(two_equal_ranks_train_like_one),
    };
    return cuda_rig_run("cuda, steps", tests, COUNT_OF(tests), dataset_rig_open, dataset_rig_close);
}
