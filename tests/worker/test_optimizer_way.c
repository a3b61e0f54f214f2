/* test_optimizer_way.c — the trial of stores and prefetch distances. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/vector.h"
#include "worker/optimizer/optimizer_way.h"

static struct optimizer_way chosen_of(bool large, const double seconds[OPTIMIZER_WAYS])
{
    struct optimizer_trial t = {0};
    for (unsigned i = 0; i < OPTIMIZER_TRIALS; i++) {
        const struct optimizer_way way = optimizer_way_next(&t, large);
        const unsigned which = 2U * way.streamed + (way.ahead < 32 * VECTOR_LANES);
        const double late = i % OPTIMIZER_TURNS == 5 ? 5 : 0; /* preempted once */
        const bool first = i % OPTIMIZER_TURNS == 0; /* finds the caches of the previous way */
        optimizer_way_took(&t, large, first ? 0 : seconds[which] + late);
    }
    const struct optimizer_way result = optimizer_way_next(&t, large);
    optimizer_way_took(&t, large, 0); /* after the trial: no effect */
    assert_int_equal(optimizer_way_next(&t, large).ahead, result.ahead);
    return result;
}

static void the_shortest_way_stays(void **state)
{
    (void)state;
    const double even[] = {1, 0.99, 0.98, 0.99}, far[] = {1, 0.7, 0.9, 0.8},
                 streams[] = {1, 0.9, 0.9, 0.7};
    for (int large = 0; large < 2; large++) {
        const struct optimizer_way usual = optimizer_way_usual(large);
        assert_true(usual.streamed == large && usual.ahead == 32 * VECTOR_LANES);
        assert_true(chosen_of(large, even).streamed == usual.streamed);
        assert_true(chosen_of(large, even).ahead == usual.ahead);
        assert_false(chosen_of(large, far).streamed);
        assert_int_equal(chosen_of(large, far).ahead, 8 * VECTOR_LANES);
        assert_true(chosen_of(large, streams).streamed);
        assert_int_equal(chosen_of(large, streams).ahead, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_shortest_way_stays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
