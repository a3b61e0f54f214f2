/*
 * test_stage.c — models cut into stages: a chain of stages in one process computes the gradient of
 * one worker.
 */
#include "tests/worker/gradients.h"
#include "tests/sync/sync_rig.h"
#include "tests/rigs/built_in_models.h"
#include "worker/model/model.h"
#include "worker/model/stage.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 32 };

static options *settings_of(const char *model, const char *cuts)
{
    options *o = NULL;
    char name[64];
    snprintf(name, sizeof name, "model=%s", model);
    const bool tokens = strcmp(model, "gpt") == 0;
    const char *const settings[] = {name, "batch=32",
                                    tokens ? "dataset=grammar" : "dataset=gaussian",
                                    tokens ? "dataset.context=17" : "dataset.size=28", NULL};
    assert_int_equal(sync_rig_training(&o, settings), OK);
    assert_int_equal(options_set(o, "dataset.samples", "96", "test"), OK);
    assert_int_equal(options_set(o, "stage_cuts", cuts, "test"), OK);
    return o;
}

/* ---- a chain of stages ---- */

struct chain {
    struct stage_plan plan;
    stage *stage[STAGE_MOST];
    float *output[STAGE_MOST], *input_gradient[STAGE_MOST];
    unsigned micro_batches;
};

static void chain_open(struct chain *c, const options *o, unsigned stages, unsigned micro_batches,
                       bool recompute)
{
    unsigned chosen[STAGE_MOST];
    *c = (struct chain){.micro_batches = micro_batches};
    assert_int_equal(stage_cuts_choose(o, stages, BATCH / micro_batches, chosen), OK);
    assert_int_equal(stage_plan_make(&c->plan, o, stages, chosen), OK);
    for (unsigned k = 0; k < stages; k++) {
        struct stage_options how = {.settings = o,
                                    .part = &c->plan.part[k],
                                    .replicas = 1,
                                    .micro_batches = micro_batches,
                                    .slots = micro_batches,
                                    .recompute = recompute};
        if (stage_open(&c->stage[k], &how) != OK)
            fail_msg("stage %u: %s", k, error_message());
        c->output[k] = calloc(stage_output_count(c->stage[k]) + 1, sizeof(float));
        c->input_gradient[k] = calloc(stage_input_count(c->stage[k]) + 1, sizeof(float));
    }
}

static void chain_close(struct chain *c)
{
    for (unsigned k = 0; k < c->plan.stages; k++) {
        stage_close(&c->stage[k]);
        free(c->output[k]);
        free(c->input_gradient[k]);
    }
}

/* All forward passes, then all backward passes; returns the mean loss over micro-batches. */
static float chain_gradient(struct chain *c, const float *parameters, uint64_t batch,
                            float *gradient)
{
    const unsigned stages = c->plan.stages;
    float sum = 0, loss = 0;
    size_t count = 0;
    for (unsigned m = 0; m < c->micro_batches; m++) {
        for (unsigned k = 0; k < stages; k++) {
            const float *own = parameters + c->plan.part[k].offset;
            float *to = k + 1 < stages ? c->output[k] : NULL;
            assert_int_equal(stage_forward(c->stage[k], m, batch, m, own, to, &loss), OK);
            if (to != NULL)
                memcpy(stage_input(c->stage[k + 1], m), to,
                       stage_output_count(c->stage[k]) * sizeof(float));
        }
        sum += loss;
    }
    for (unsigned m = 0; m < c->micro_batches; m++) {
        for (unsigned k = stages; k-- > 0;) {
            assert_int_equal(stage_backward(c->stage[k], m,
                                            k + 1 < stages ? c->input_gradient[k + 1] : NULL,
                                            gradient + c->plan.part[k].offset, m > 0,
                                            k > 0 ? c->input_gradient[k] : NULL),
                             OK);
        }
    }
    for (unsigned k = 0; k < stages; k++)
        count += c->plan.part[k].count;
    for (size_t i = 0; i < count; i++)
        gradient[i] *= 1.0f / (float)c->micro_batches;
    return sum / (float)c->micro_batches;
}

/* ---- against one worker ---- */

struct stage_subject {
    options *o;
    worker *w;
    size_t count;
    float *parameters, *whole, *cut;
    float loss; /* of `whole` */
};

static void subject_open(struct stage_subject *s, const char *model)
{
    struct step_stats stats;
    s->o = settings_of(model, "");
    assert_int_equal(worker_open(&s->w, &(struct worker_options){.settings = s->o, .count = 1}),
                     OK);
    s->count = worker_parameter_count(s->w);
    s->parameters = calloc(s->count, sizeof(float));
    s->whole = calloc(s->count, sizeof(float));
    s->cut = calloc(s->count, sizeof(float));
    assert_int_equal(worker_initial_parameters(s->w, s->parameters, s->count), OK);
    assert_int_equal(worker_gradient(s->w, s->parameters, 3, s->whole, &stats), OK);
    s->loss = stats.loss;
}

static void subject_close(struct stage_subject *s)
{
    worker_close(&s->w);
    options_close(&s->o);
    free(s->parameters);
    free(s->whole);
    free(s->cut);
}

/* Distance of the stages' gradient from the worker's. */
static double distance(const struct stage_subject *s)
{
    struct worker_batch b = {s->w, 3};
    const struct gradient_reference whole = gradient_of_worker(&b, s->parameters);
    return gradient_distance_beside_kinks(&whole, s->cut, 2e-6);
}

static unsigned most_stages(const options *o)
{
    unsigned chosen[STAGE_MOST], k = STAGE_MOST;
    while (stage_cuts_choose(o, k, BATCH, chosen) != OK) /* the largest k needs no measurement */
        k--;
    return k;
}

static void one_stage_and_one_micro_batch_equal_the_worker_bit_for_bit(void **state UNUSED)
{
    for (size_t i = 0; i < all_built_in_models(); i++) {
        struct stage_subject s;
        struct chain c;
        subject_open(&s, model_registry.entries[i]->name);
        chain_open(&c, s.o, 1, 1, false);
        float loss = chain_gradient(&c, s.parameters, 3, s.cut);
        assert_memory_equal(&loss, &s.loss, sizeof loss);
        assert_memory_equal(s.cut, s.whole, s.count * sizeof(float));
        chain_close(&c);
        subject_close(&s);
    }
}

/* Kernels may round differently where a cut changes the layout of their input. */
static void any_number_of_stages_gives_the_workers_gradient(void **state UNUSED)
{
    for (size_t i = 0; i < all_built_in_models(); i++) {
        struct stage_subject s;
        const char *name = model_registry.entries[i]->name;
        subject_open(&s, name);
        unsigned most = most_stages(s.o);
        /* Two stages, and one stage per segment, which needs no measurement. resnet20 has the
         * operations of resnet8. */
        for (unsigned stages = strcmp(name, "resnet20") == 0 ? most : 2; stages <= most;
             stages = stages < most ? most : most + 1) {
            struct chain c;
            chain_open(&c, s.o, stages, 1, false);
            float loss = chain_gradient(&c, s.parameters, 3, s.cut);
            assert_true(fabsf(loss - s.loss) < 1e-6f);
            assert_true(distance(&s) < 2e-6);
            if (strcmp(name, "mlp") == 0)
                assert_memory_equal(s.cut, s.whole, s.count * sizeof(float));
            chain_close(&c);
        }
        subject_close(&s);
    }
}

static void micro_batches_average_to_the_workers_gradient(void **state UNUSED)
{
    const char *const models[] = {"mlp", "lenet", "cnn", "gpt"};
    for (size_t i = 0; i < COUNT_OF(models); i++) {
        struct stage_subject s;
        subject_open(&s, models[i]);
        for (unsigned micro = 2; micro <= 8; micro *= 4) {
            struct chain c;
            chain_open(&c, s.o, 3, micro, false);
            float loss = chain_gradient(&c, s.parameters, 3, s.cut);
            assert_true(fabsf(loss - s.loss) < 1e-6f);
            assert_true(distance(&s) < 2e-6);
            chain_close(&c);
        }
        subject_close(&s);
    }
}

static void recomputation_changes_no_bit_and_needs_less_memory(void **state UNUSED)
{
    const char *const models[] = {"cnn", "resnet8", "gpt"};
    for (size_t i = 0; i < COUNT_OF(models); i++) {
        struct stage_subject s;
        struct chain c, again;
        subject_open(&s, models[i]);
        chain_open(&c, s.o, 3, 4, false);
        chain_open(&again, s.o, 3, 4, true);
        (void)chain_gradient(&c, s.parameters, 3, s.whole);
        (void)chain_gradient(&again, s.parameters, 3, s.cut);
        assert_memory_equal(s.cut, s.whole, s.count * sizeof(float));
        /* A stage with one layer stores little more than its inputs. */
        assert_true(stage_activation_bytes(again.stage[0]) < stage_activation_bytes(c.stage[0]));
        chain_close(&c);
        chain_close(&again);
        subject_close(&s);
    }
}

/* ---- choosing cuts ---- */

static void a_model_is_cut_before_the_named_layers(void **state UNUSED)
{
    unsigned chosen[STAGE_MOST];
    struct stage_plan plan;
    options *o = settings_of("lenet", "conv2,fc2");
    assert_int_equal(stage_cuts_choose(o, 3, BATCH, chosen), OK);
    assert_int_equal(stage_plan_make(&plan, o, 3, chosen), OK);
    assert_string_equal(plan.part[0].from, "conv1");
    assert_string_equal(plan.part[0].to, "conv1");
    assert_string_equal(plan.part[1].from, "conv2");
    assert_string_equal(plan.part[1].to, "fc1");
    assert_string_equal(plan.part[2].from, "fc2");
    assert_int_equal(plan.part[1].offset, plan.part[0].count);
    assert_int_equal(plan.part[2].offset + plan.part[2].count, 37610);
    options_close(&o);
}

/* Two places to cut for each of 40 blocks. */
static void a_model_with_more_places_than_stages_is_cut_anywhere(void **state UNUSED)
{
    unsigned chosen[STAGE_MOST];
    struct stage_plan plan;
    options *o = settings_of("gpt", "h36.ln1");
    assert_int_equal(options_set(o, "model.layers", "40", "test"), OK);
    assert_int_equal(options_set(o, "model.width", "16", "test"), OK);
    assert_int_equal(options_set(o, "model.heads", "2", "test"), OK);
    assert_int_equal(stage_cuts_choose(o, 2, BATCH, chosen), OK);
    assert_int_equal(stage_plan_make(&plan, o, 2, chosen), OK);
    assert_string_equal(plan.part[1].from, "h36.ln1");
    options_close(&o);
}

static void a_residual_block_is_not_cut(void **state UNUSED)
{
    unsigned chosen[STAGE_MOST];
    options *o = settings_of("resnet8", "");
    assert_int_equal(most_stages(o), 5); /* the first convolution, three blocks, the last layer */
    assert_int_equal(options_set(o, "stage_cuts", "stage2.conv2", "test"), OK);
    assert_int_equal(stage_cuts_choose(o, 2, BATCH, chosen), ERROR_USAGE);
    assert_non_null(strstr(error_message(), "stage2.conv1"));
    options_close(&o);
}

static void wrong_cuts_are_usage_errors(void **state UNUSED)
{
    static const struct {
        const char *cuts, *named;
        unsigned stages;
        status code;
    } cases[] = {{"fc2,fc3", "", 3, OK},
                 {"", "mlp", 4, ERROR_USAGE},
                 {"fc2", "stage_cuts", 3, ERROR_USAGE},
                 {"fc3,fc2", "fc2", 3, ERROR_USAGE},
                 {"conv1", "conv1", 2, ERROR_USAGE}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        unsigned chosen[STAGE_MOST];
        options *o = settings_of("mlp", cases[i].cuts);
        assert_int_equal(stage_cuts_choose(o, cases[i].stages, BATCH, chosen), cases[i].code);
        assert_true(cases[i].code == OK || strstr(error_message(), cases[i].named) != NULL);
        options_close(&o);
    }
}

static void balancing_minimises_the_slowest_stage(void **state UNUSED)
{
    unsigned chosen[3];
    const double rising[] = {1, 2, 3, 4, 5, 6};
    stage_balance(rising, 6, 3, chosen); /* 1 2 3 | 4 5 | 6 */
    assert_int_equal(chosen[0], 2);
    assert_int_equal(chosen[1], 4);
    const double one_large[] = {1, 9, 1, 1};
    stage_balance(one_large, 4, 2, chosen); /* 1 9 | 1 1; the alternative 1 | 9 1 1 is worse */
    assert_int_equal(chosen[0], 1);
    stage_balance(one_large, 4, 4, chosen);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(chosen[i], i);
}

/* A stage has parameters, and a pool has none. */
static void a_model_is_not_cut_before_its_first_layer(void **state UNUSED)
{
    struct tape_cut cuts[4];
    parameter_table *table = NULL;
    tape *t = NULL;
    assert_int_equal(parameter_table_open(&table), OK);
    assert_int_equal(tape_open(&t, NULL, table, TAPE_DISCOVER, (struct shape){1, 8, 8}, 1), OK);
    tensor *x = relu(t, avg_pool(t, tape_begin(t, NULL, NULL), 2, 2));
    x = relu(t, linear(t, x, "first", 8));
    (void)linear(t, x, "second", 10);
    assert_int_equal(tape_cuts(t, cuts, COUNT_OF(cuts)), 1);
    assert_string_equal(cuts[0].layer, "second");
    assert_int_equal(tape_finish(t, NULL, 0, NULL), OK);
    tape_close(&t);
    parameter_table_close(&table);
}

/* resnet20's blocks have similar costs, so a cut by measured times is near the middle. */
static void a_measured_cut_is_not_at_an_end(void **state UNUSED)
{
    unsigned chosen[STAGE_MOST];
    options *o = settings_of("resnet20", "");
    assert_int_equal(stage_cuts_choose(o, 2, 8, chosen), OK);
    assert_in_range(chosen[0], 1, 8);
    options_close(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_stage_and_one_micro_batch_equal_the_worker_bit_for_bit),
        cmocka_unit_test(any_number_of_stages_gives_the_workers_gradient),
        cmocka_unit_test(micro_batches_average_to_the_workers_gradient),
        cmocka_unit_test(recomputation_changes_no_bit_and_needs_less_memory),
        cmocka_unit_test(a_model_is_cut_before_the_named_layers),
        cmocka_unit_test(a_model_with_more_places_than_stages_is_cut_anywhere),
        cmocka_unit_test(a_residual_block_is_not_cut),
        cmocka_unit_test(a_model_is_not_cut_before_its_first_layer),
        cmocka_unit_test(wrong_cuts_are_usage_errors),
        cmocka_unit_test(balancing_minimises_the_slowest_stage),
        cmocka_unit_test(a_measured_cut_is_not_at_an_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
