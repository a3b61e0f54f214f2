/* Aggregates: g = (Σ sᵢ · correction(gᵢ)) × 1/n, in the order added. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "ps/core/aggregate.h"
#include "ps/core/arithmetic.h"
#include "tests/ps/core/core_rig.h"
#include "worker/optimizer/optimizer.h"

enum { COUNT = 10007, N = 4 }; /* several blocks and a rest */

static float gradients[N][COUNT], now[COUNT], then[N][COUNT];

static void fill(struct aggregate *a, bool holds)
{
    options *o = NULL;
    assert_int_equal(core_rig_settings(&o, RIG("correction=none")), OK);
    assert_int_equal(aggregate_open(a, o, N, COUNT, holds), OK);
    options_close(&o);
    core_rig_fill(now, COUNT, 1);
    for (unsigned i = 0; i < N; i++) {
        core_rig_fill(gradients[i], COUNT, 10 + i);
        core_rig_fill(then[i], COUNT, 20 + i);
    }
}

static void a_single_gradient_is_passed_on_without_a_copy(void **state)
{
    (void)state;
    struct aggregate a;
    double scale = 0;
    fill(&a, false);
    assert_null(a.mean);
    aggregate_clear(&a);
    aggregate_add(&a, gradients[2], then[2], &(struct correction_context){.scale = 0.25});
    assert_true(aggregate_is_direct(&a));
    assert_ptr_equal(aggregate_gradient(&a, now, 0.1, &scale), gradients[2]);
    assert_true(scale == 0.25);
    aggregate_close(&a);
}

static void equal_scales_are_left_to_the_optimizer(void **state)
{
    (void)state;
    static float expected[COUNT];
    const float *list[N];
    struct aggregate a;
    double scale = 0;
    fill(&a, true);
    aggregate_clear(&a);
    for (unsigned i = 0; i < N; i++) {
        list[i] = gradients[i];
        aggregate_add(&a, gradients[i], then[i], &(struct correction_context){.scale = 0.3});
    }
    reduce_mean_ordered(list, N, COUNT, expected);
    assert_memory_equal(aggregate_gradient(&a, now, 0.1, &scale), expected, sizeof expected);
    assert_true(scale == 0.3);
    aggregate_close(&a);
}

static void each_gradient_has_its_own_scale(void **state)
{
    (void)state;
    static const double scales[N] = {1, 0.1, 0, 0.5};
    struct aggregate a;
    double scale = 0;
    fill(&a, true);
    aggregate_clear(&a);
    for (unsigned i = 0; i < N; i++)
        aggregate_add(&a, gradients[i], then[i], &(struct correction_context){.scale = scales[i]});
    const float *g = aggregate_gradient(&a, now, 0.1, &scale);
    assert_true(scale == 1);
    for (size_t k = 0; k < COUNT; k++) {
        float sum = 1.0f * gradients[0][k];
        sum = sum + 0.1f * gradients[1][k];
        sum = sum + 0.0f * gradients[2][k];
        sum = sum + 0.5f * gradients[3][k];
        assert_true(g[k] == sum * 0.25f);
    }
    aggregate_close(&a);
}

/* gradient + strength × (now − read_at): uses every input of a correction. */
static void distance_block(const struct correction_call *call, size_t count,
                           const struct correction_vectors *v)
{
    for (size_t i = 0; i < count; i++)
        v->out[i] = v->gradient[i] + (float)call->parameters[0] * (v->now[i] - v->read_at[i]);
}
static const struct correction_rule distance_rule = {.about = {"distance", "", NULL, NULL},
                                                     .block = distance_block};

static void a_correction_gets_each_gradient_with_its_read_parameters(void **state)
{
    (void)state;
    for (unsigned n = 1; n <= N; n++) {
        struct aggregate a;
        double scale = 0;
        fill(&a, true);
        a.correction = (struct correction){.rule = &distance_rule, .parameters = {0.5}};
        aggregate_clear(&a);
        for (unsigned i = 0; i < n; i++)
            aggregate_add(&a, gradients[i], then[i], &(struct correction_context){.scale = 0.2});
        assert_false(aggregate_is_direct(&a));
        const float *g = aggregate_gradient(&a, now, 0.1, &scale);
        assert_true(scale == 0.2);
        for (size_t k = 0; k < COUNT; k++) {
            double sum = 0;
            for (unsigned i = 0; i < n; i++)
                sum += gradients[i][k] + 0.5 * ((double)now[k] - (double)then[i][k]);
            assert_true(fabs((double)g[k] - sum / n) < 1e-6);
        }
        aggregate_close(&a);
    }
}

static void norms_and_distances_are_exact(void **state)
{
    (void)state;
    static const float a[] = {3, 4, 12}, b[] = {3, 0, 9};
    assert_true(vector_sum_of_squares(3, a) == 169);
    assert_true(fabs(vector_rms_distance(3, a, b) - sqrt(25.0 / 3)) < 1e-15);
    static float many[COUNT], zero[COUNT];
    for (size_t i = 0; i < COUNT; i++)
        many[i] = 2;
    assert_true(vector_sum_of_squares(COUNT, many) == 4.0 * COUNT);
    assert_true(vector_rms_distance(COUNT, many, zero) == 2);
    static const float largest[] = {3.4e38f, -3.4e38f};
    assert_true(isfinite(vector_sum_of_squares(2, largest)));
    for (size_t i = 0; i < COUNT; i += 97) {
        many[i] = i % 2 ? NAN : INFINITY;
        assert_false(isfinite(vector_sum_of_squares(COUNT, many)));
        many[i] = 2;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_single_gradient_is_passed_on_without_a_copy),
        cmocka_unit_test(equal_scales_are_left_to_the_optimizer),
        cmocka_unit_test(each_gradient_has_its_own_scale),
        cmocka_unit_test(a_correction_gets_each_gradient_with_its_read_parameters),
        cmocka_unit_test(norms_and_distances_are_exact),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
