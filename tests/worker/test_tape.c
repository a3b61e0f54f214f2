/* test_tape.c — the tape: every operation against finite differences, and the promises about reuse.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <malloc.h>
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "tests/worker/gradients.h"
#include "tests/worker/op_graphs.h"

#define CLASSES 5

static struct model model_of(struct model_kind *kind, forward_function *forward)
{
    *kind = (struct model_kind){.about = {.name = "test"}, .forward = forward};
    return (struct model){.kind = kind, .classes = CLASSES};
}

static void check_gradient(forward_function *forward, struct shape images, uint32_t batch,
                           double step, double tolerance)
{
    struct model_kind kind;
    struct model m = model_of(&kind, forward);
    struct fixture f;
    fixture_open(&f, &m, images, batch, 3);
    assert_gradient_is_right(&f, step, tolerance);
    fixture_close(&f);
}

static const struct shape small = {3, 9, 7};

static void linear_matches_finite_differences(void **state)
{
    (void)state;
    check_gradient(with_linear, small, 7, 1e-2, 5e-3);
    check_gradient(with_linear, (struct shape){32, 1, 1}, 1, 1e-2, 5e-3);
}

static tensor *without_bias(tape *t, tensor *x, const struct model *m)
{
    return linear_unbiased(t, x, "fc", m->classes);
}

static void squared_error_matches_finite_differences_and_its_definition(void **state)
{
    (void)state;
    struct model_kind kind;
    struct model m = model_of(&kind, without_bias);
    struct fixture f;
    fixture_open(&f, &m, (struct shape){2, 1, 1}, 3, 3);
    f.target_scale = 0.5;
    assert_int_equal(f.count, 2 * CLASSES);
    assert_gradient_is_right(&f, 1e-2, 5e-3);
    double sum = 0;
    for (uint32_t n = 0; n < f.batch; ++n) {
        double target = 0.5 * f.labels[n] - 1;
        for (uint32_t k = 0; k < CLASSES; ++k) {
            double y = (double)f.parameters[2 * k] * (double)f.pixels[2 * n] +
                       (double)f.parameters[2 * k + 1] * (double)f.pixels[2 * n + 1];
            sum += (y - target) * (y - target) / 2;
        }
    }
    double said = fixture_step(&f, f.parameters, f.gradient);
    assert_true(fabs(said - sum / f.batch) < 1e-5 * said);
    fixture_close(&f);
}

static void conv2d_matches_finite_differences(void **state)
{
    (void)state;
    check_gradient(with_convolutions, small, 4, 1e-2, 5e-3);
    check_gradient(with_convolutions, (struct shape){1, 12, 12}, 3, 1e-2, 5e-3);
}

static void max_pool_matches_finite_differences(void **state)
{
    (void)state;
    check_gradient(with_max_pool, small, 4, 2e-3, 2e-2);
}

static void avg_pool_matches_finite_differences(void **state)
{
    (void)state;
    check_gradient(with_avg_pool, small, 4, 1e-2, 5e-3);
}

static void relu_matches_finite_differences(void **state)
{
    (void)state;
    check_gradient(with_relu, small, 4, 2e-3, 2e-2);
    check_gradient(with_relu_and_max_pool, small, 4, 2e-3, 2e-2);
    check_gradient(with_shared_max_pools, small, 4, 2e-3, 2e-2);
}

static void tanh_matches_finite_differences(void **state)
{
    (void)state;
    check_gradient(with_tanh_after_pool, (struct shape){1, 12, 12}, 4, 2e-3, 2e-2);
    check_gradient(with_tanh_after_pool, small, 4, 2e-3, 2e-2);
}

static void narrow_convolutions_match_finite_differences(void **state)
{
    (void)state;
    static const struct shape images[] = {{3, 12, 11}, {9, 9, 14}};
    for (size_t i = 0; i < COUNT_OF(images); ++i) {
        check_gradient(with_narrow_convolutions, images[i], 16, 2e-3, 2e-2);
        check_gradient(with_narrow_convolutions, images[i], 21, 2e-3, 2e-2);
        check_gradient(with_narrow_convolutions, images[i], 3, 2e-3, 2e-2);
    }
}

static void gelu_matches_finite_differences(void **state)
{
    (void)state;
    check_gradient(with_gelu, small, 4, 1e-2, 5e-3);
}

static void add_matches_finite_differences(void **state)
{
    (void)state;
    check_gradient(with_add, small, 4, 2e-3, 2e-2);
}

static void reshape_matches_finite_differences(void **state)
{
    (void)state;
    check_gradient(with_reshape, (struct shape){3, 9, 7}, 4, 1e-2, 5e-3);
}

static void batch_norm_matches_finite_differences(void **state)
{
    (void)state;
    check_gradient(with_batch_norm, small, 6, 2e-3, 2e-2);
    check_gradient(with_shared_batch_norms, small, 6, 2e-3, 2e-2);
    check_gradient(with_residuals, small, 6, 2e-3, 2e-2);
}

/* Compares the implementations for one thread and for two. */
static void check_threads_agree(forward_function *forward, struct shape images)
{
    struct model_kind kind;
    struct model m = model_of(&kind, forward);
    struct fixture f[2];
    for (uint32_t i = 0; i < 2; ++i) {
        const struct backend_options o = {.threads = i + 1};
        fixture_open_on(&f[i], &o, &m, images, 24, 3);
        fixture_step(&f[i], f[i].parameters, f[i].gradient);
    }
    const struct gradient_reference whole = gradient_of_fixture(&f[1]);
    double apart = gradient_distance_beside_kinks(&whole, f[0].gradient, 1e-5);
    if (!(apart < 1e-5))
        fail_msg("relative distance of the gradients %.2g", apart);
    fixture_close(&f[0]);
    fixture_close(&f[1]);
}

/* With one thread, convolutions of a large batch run in parts and batch norm reads each part. With
 * two threads they run in one call, and batch norm is oneDNN's. */
static void a_batch_in_parts_has_the_gradient_of_the_whole_batch(void **state)
{
    (void)state;
    check_threads_agree(with_shared_batch_norms, (struct shape){3, 28, 28});
}

static tensor *with_wide_convolutions(tape *t, tensor *x, const struct model *m)
{
    x = hyperbolic_tangent(t, conv2d(t, x, "conv1", 32, 3, 1, 1));
    x = hyperbolic_tangent(t, conv2d(t, x, "conv2", 32, 3, 1, 1));
    x = avg_pool(t, x, 2, 2);
    x = hyperbolic_tangent(t, conv2d(t, x, "conv3", 64, 3, 1, 1));
    x = hyperbolic_tangent(t, conv2d(t, x, "conv4", 64, 3, 1, 1));
    return linear(t, x, "fc", m->classes);
}

/* One thread uses Winograd's algorithm, two threads the direct one. */
static void winograds_algorithm_has_the_gradient_of_the_direct_one(void **state)
{
    (void)state;
    check_threads_agree(with_wide_convolutions, (struct shape){3, 16, 16});
}

static void a_value_used_before_and_after_its_activation_counts_twice(void **state)
{
    (void)state;
    check_gradient(with_value_before_activation, small, 4, 2e-3, 2e-2);
}

static void layers_with_one_name_share_weights_and_add_gradients(void **state)
{
    (void)state;
    check_gradient(with_shared_weights, small, 4, 5e-3, 1e-2);
}

/* ---- control flow ---- */

/* The depth, and the layer used, depend on the result of the first layer. */
static tensor *with_decisions(tape *t, tensor *x, const struct model *m)
{
    x = hyperbolic_tangent(t, linear(t, x, "fc1", 16));
    const float *v = tape_value(t, x);
    double mean = 0;
    for (size_t i = 0; i < 16 * (size_t)tape_batch(t); ++i)
        mean += (double)v[i];
    mean /= 16 * tape_batch(t);
    if (mean > 0)
        x = hyperbolic_tangent(t, linear(t, x, "positive", 16));
    for (double left = fabs(mean); left > 0.05; left -= 0.05)
        x = hyperbolic_tangent(t, linear(t, x, "deeper", 16));
    return linear(t, x, "fc2", m->classes);
}

static void declare_decisions(tape *t, tensor *x, const struct model *m)
{
    x = linear(t, x, "fc1", 16);
    x = linear(t, x, "positive", 16);
    linear(t, x, "deeper", 16);
    (void)m;
}

static void control_flow_may_depend_on_data(void **state)
{
    (void)state;
    struct model_kind kind;
    struct model m = model_of(&kind, with_decisions);
    kind.declare = declare_decisions;
    size_t seen = 0;
    unsigned positive = 0;
    for (uint64_t seed = 0; seed < 12; ++seed) {
        struct fixture f;
        fixture_open(&f, &m, (struct shape){12, 1, 1}, 4, seed);
        assert_gradient_is_right(&f, 1e-3, 2e-2);
        positive += f.gradient[parameter_table_slice(f.table, 4)->offset] != 0;
        size_t made = tape_operation_count(f.tape);
        seen = made > seen ? made : seen;
        fixture_close(&f);
    }
    /* Both branches and several depths occurred. */
    assert_in_range(positive, 1, 11);
    assert_true(seen > 4);
}

static tensor *sometimes(tape *t, tensor *x, const struct model *m)
{
    bool other = tape_value(t, x)[0] > 1000;
    x = relu(t, conv2d(t, x, other ? "other" : "usual", 4, 3, 1, 1));
    return linear(t, x, "fc", m->classes);
}

static void declare_other(tape *t, tensor *x, const struct model *m)
{
    (void)m;
    conv2d(t, x, "other", 4, 3, 1, 1);
}

static void unused_layers_have_a_zero_gradient(void **state)
{
    (void)state;
    struct model_kind kind;
    struct model m = model_of(&kind, sometimes);
    struct fixture f;
    kind.declare = declare_other;
    fixture_open(&f, &m, small, 2, 1);
    for (int other = 0; other < 2; ++other) {
        f.pixels[0] = other ? 2000 : 0;
        memset(f.gradient, 0x7f, f.count * sizeof(float));
        fixture_step(&f, f.parameters, f.gradient);
        for (size_t k = 0; k < parameter_table_slices(f.table); ++k) {
            const struct parameter_slice *s = parameter_table_slice(f.table, k);
            bool unused = strncmp(s->name, other ? "usual" : "other", 5) == 0;
            bool zero = true;
            for (size_t i = 0; i < s->count; ++i)
                zero = zero && f.gradient[s->offset + i] == 0;
            assert_int_equal(zero, unused);
        }
    }
    fixture_close(&f);
}

static void an_undeclared_layer_is_an_error_that_names_it(void **state)
{
    (void)state;
    struct model_kind kind;
    struct model m = model_of(&kind, sometimes);
    struct fixture f;
    fixture_open(&f, &m, small, 2, 1);
    tape_images(f.tape)[0] = 2000;
    tensor *x = tape_begin(f.tape, f.parameters, f.gradient);
    tensor *logits = sometimes(f.tape, x, &m);
    struct op_loss loss;
    assert_int_equal(tape_finish(f.tape, softmax_cross_entropy(f.tape, logits), 2, &loss),
                     ERROR_USAGE);
    assert_non_null(strstr(error_message(), "other"));
    /* The tape works again after the error. */
    fixture_step(&f, f.parameters, f.gradient);
    fixture_close(&f);
}

/* ---- the watch ---- */

/* Copies final elements at once and overwrites them with marks. */
struct taker {
    struct fixture *f;
    float *taken;
    size_t from;
    unsigned calls, pieces;
};

static const float mark = 12345;

static void take(void *context, size_t final_from)
{
    struct taker *k = context;
    assert_true(final_from <= k->from);
    k->calls++;
    k->pieces += final_from < k->from;
    memcpy(k->taken + final_from, k->f->gradient + final_from,
           (k->from - final_from) * sizeof(float));
    for (size_t i = final_from; i < k->from; ++i)
        k->f->gradient[i] = mark;
    k->from = final_from;
}

/* Returns the number of parts of the gradient that the watch received. */
static unsigned check_watch(struct fixture *f)
{
    struct taker k = {.f = f, .from = f->count};
    const struct gradient_watch watch = {.context = &k, .between = take};
    assert_int_equal(memory_new(&k.taken, f->count, sizeof(float), "vectors"), OK);
    double loss = fixture_step(f, f->parameters, f->gradient);
    memcpy(f->shifted, f->gradient, f->count * sizeof(float));
    memset(f->gradient, 0x7f, f->count * sizeof(float));
    tape_watch(f->tape, &watch);
    assert_true(fixture_step(f, f->parameters, f->gradient) == loss);
    tape_watch(f->tape, NULL);
    assert_int_equal(k.from, 0);
    assert_memory_equal(k.taken, f->shifted, f->count * sizeof(float));
    for (size_t i = 0; i < f->count; ++i)
        assert_true(f->gradient[i] == mark);
    assert_true(k.calls > 2 * k.pieces); /* it is called in the forward pass too */
    memory_free(k.taken);
    return k.pieces;
}

static void elements_reported_to_the_watch_are_final(void **state)
{
    (void)state;
    struct model_kind kind;
    struct model m = model_of(&kind, with_shared_weights);
    struct fixture f;
    fixture_open(&f, &m, small, 4, 1);
    (void)check_watch(&f);
    fixture_close(&f);
    m = model_of(&kind, sometimes);
    kind.declare = declare_other;
    fixture_open(&f, &m, small, 4, 1);
    for (int other = 0; other < 2; ++other) {
        f.pixels[0] = other ? 2000 : 0;
        /* The order is "usual", "fc", "other": if "other" is used, "fc" cannot be final before it.
         */
        assert_int_equal(check_watch(&f), other ? 1 : 3);
    }
    fixture_close(&f);
}

/* ---- reuse ---- */

static void steps_allocate_nothing_after_every_path_has_run(void **state)
{
    (void)state;
    struct model_kind kind;
    struct model m = model_of(&kind, sometimes);
    struct fixture f;
    kind.declare = declare_other;
    fixture_open(&f, &m, small, 4, 1);
    for (int i = 0; i < 4; ++i) {
        f.pixels[0] = i % 2 ? 2000 : 0;
        fixture_step(&f, f.parameters, f.gradient);
    }
    size_t operations = tape_operation_count(f.tape);
    size_t before = mallinfo2().uordblks;
    for (int i = 0; i < 100; ++i) {
        f.pixels[0] = i % 2 ? 2000 : 0;
        fixture_step(&f, f.parameters, f.gradient);
        assert_int_equal(mallinfo2().uordblks, before);
    }
    /* Both convolutions have the same shape, so they share one operation. */
    assert_int_equal(tape_operation_count(f.tape), operations);
    assert_int_equal(operations, 3);
    fixture_close(&f);
}

static void the_same_step_gives_the_same_bits(void **state)
{
    (void)state;
    struct model_kind kind;
    struct model m = model_of(&kind, with_shared_weights);
    struct fixture f;
    fixture_open(&f, &m, small, 4, 1);
    double loss = fixture_step(&f, f.parameters, f.gradient);
    memcpy(f.shifted, f.gradient, f.count * sizeof(float));
    float *odd; /* also with unaligned vectors */
    assert_int_equal(memory_new(&odd, 2 * f.count + 2, sizeof(float), "vectors"), OK);
    memcpy(odd + 1, f.parameters, f.count * sizeof(float));
    for (int i = 0; i < 3; ++i) {
        assert_true(fixture_step(&f, odd + 1, odd + 1 + f.count) == loss);
        assert_memory_equal(odd + 1 + f.count, f.shifted, f.count * sizeof(float));
    }
    memory_free(odd);
    fixture_close(&f);
}

/* ---- shapes ---- */

static tensor *with_clashing_layers(tape *t, tensor *x, const struct model *m)
{
    x = linear(t, x, "fc", 12);
    return linear(t, x, "fc", m->classes);
}

static tensor *with_a_window_too_large(tape *t, tensor *x, const struct model *m)
{
    x = conv2d(t, x, "conv", 4, 9, 1, 0);
    return linear(t, x, "fc", m->classes);
}

static tensor *with_a_sum_of_different_shapes(tape *t, tensor *x, const struct model *m)
{
    return linear(t, add(t, x, linear(t, x, "fc1", 3)), "fc2", m->classes);
}

static tensor *without_logits(tape *t, tensor *x, const struct model *m)
{
    (void)m;
    return conv2d(t, x, "conv", 4, 3, 1, 0);
}

static void models_that_do_not_fit_are_errors(void **state)
{
    (void)state;
    forward_function *wrong[] = {with_clashing_layers, with_a_window_too_large,
                                 with_a_sum_of_different_shapes, without_logits};
    for (size_t i = 0; i < COUNT_OF(wrong); ++i) {
        struct model_kind kind;
        struct model m = model_of(&kind, wrong[i]);
        parameter_table *table;
        assert_int_equal(parameter_table_open(&table), OK);
        assert_int_equal(model_discover(&m, small, table), ERROR_USAGE);
        assert_non_null(strstr(error_message(), "test"));
        parameter_table_close(&table);
    }
}

static void smoothed_labels_give_the_loss_and_gradient_of_pytorch(void **state)
{
    (void)state;
    fixture_device = "cpu";
    assert_labels_are_smoothed();
}

static void relu_keeps_nan(void **state)
{
    (void)state;
    fixture_device = "cpu";
    assert_relu_keeps_nan();
}

/* ---- tests of the comparisons above ---- */

enum { UNITS = 4, KINK_PARAMETERS = 3 * UNITS };

/* The gradient of Σ vᵢ (1 + relu(aᵢ − bᵢ)); parameters are all a, all b, all v. */
static void compute_of_units(void *context, const float *parameters, float *gradient)
{
    const float *a = parameters, *b = a + UNITS, *v = b + UNITS;
    (void)context;
    for (int i = 0; i < UNITS; ++i) {
        float before = a[i] - b[i];
        gradient[i] = before > 0 ? v[i] : 0;
        gradient[UNITS + i] = -gradient[i];
        gradient[2 * UNITS + i] = 1 + (before > 0 ? before : 0);
    }
}

static void only_the_jump_at_a_kink_is_ignored(void **state)
{
    (void)state;
    /* The first two units are at their kink. */
    static const float parameters[KINK_PARAMETERS] = {1,    0.7f, 1, 1, 1, 0.7f,
                                                      0.9f, 1.1f, 1, 2, 3, 4};
    const struct gradient_reference units = {compute_of_units, NULL, parameters, KINK_PARAMETERS};
    float gradient[KINK_PARAMETERS];
    compute_of_units(NULL, parameters, gradient);
    for (unsigned i = 0; i < 2; ++i) { /* the other side of one kink, then of both */
        gradient[i] = parameters[2 * UNITS + i];
        gradient[UNITS + i] = -gradient[i];
        assert_true(gradient_distance_beside_kinks(&units, gradient, 1e-5) < 1e-5);
    }
    gradient[3] = 4; /* far from the kink of the last unit */
    gradient[UNITS + 3] = -4;
    assert_true(gradient_distance_beside_kinks(&units, gradient, 1e-5) > 0.5);
    compute_of_units(NULL, parameters, gradient);
    gradient[1] += 1e-3f; /* half a jump: b lacks the other half */
    assert_true(gradient_distance_beside_kinks(&units, gradient, 1e-5) > 1e-4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(smoothed_labels_give_the_loss_and_gradient_of_pytorch),
        cmocka_unit_test(linear_matches_finite_differences),
        cmocka_unit_test(squared_error_matches_finite_differences_and_its_definition),
        cmocka_unit_test(conv2d_matches_finite_differences),
        cmocka_unit_test(max_pool_matches_finite_differences),
        cmocka_unit_test(avg_pool_matches_finite_differences),
        cmocka_unit_test(relu_matches_finite_differences),
        cmocka_unit_test(relu_keeps_nan),
        cmocka_unit_test(tanh_matches_finite_differences),
        cmocka_unit_test(narrow_convolutions_match_finite_differences),
        cmocka_unit_test(gelu_matches_finite_differences),
        cmocka_unit_test(add_matches_finite_differences),
        cmocka_unit_test(reshape_matches_finite_differences),
        cmocka_unit_test(batch_norm_matches_finite_differences),
        cmocka_unit_test(a_batch_in_parts_has_the_gradient_of_the_whole_batch),
        cmocka_unit_test(winograds_algorithm_has_the_gradient_of_the_direct_one),
        cmocka_unit_test(a_value_used_before_and_after_its_activation_counts_twice),
        cmocka_unit_test(layers_with_one_name_share_weights_and_add_gradients),
        cmocka_unit_test(control_flow_may_depend_on_data),
        cmocka_unit_test(unused_layers_have_a_zero_gradient),
        cmocka_unit_test(an_undeclared_layer_is_an_error_that_names_it),
        cmocka_unit_test(elements_reported_to_the_watch_are_final),
        cmocka_unit_test(steps_allocate_nothing_after_every_path_has_run),
        cmocka_unit_test(the_same_step_gives_the_same_bits),
        cmocka_unit_test(models_that_do_not_fit_are_errors),
        cmocka_unit_test(only_the_jump_at_a_kink_is_ignored),
    };
    return cmocka_run_group_tests_name("tape", tests, NULL, NULL);
}
