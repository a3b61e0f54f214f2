/* Metrics of a run during training: only gradients that were used count. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>

#include "experiments/config/config.h"
#include "ps/server/run_metrics.h"

static struct ps_metrics opened(void)
{
    options *o = NULL;
    struct ps_metrics t;
    assert_int_equal(config_compose_texts(&o, NULL, NULL, "test"), OK);
    ps_metrics_open(&t, o, NULL);
    options_close(&o);
    return t;
}

static void add(struct ps_metrics *t, enum push_outcome outcome, uint64_t staleness, double loss)
{
    ps_metrics_push(
        t, &(struct push_record){.outcome = outcome, .staleness = staleness, .loss = loss});
}

static void gradients_that_were_not_used_do_not_count(void **state)
{
    (void)state;
    struct ps_metrics t = opened();
    assert_true(ps_metrics_mean_staleness(&t) == 0 && isnan(t.smooth_loss));
    add(&t, PUSH_APPLIED, 2, 1);
    add(&t, PUSH_DROPPED_STALE, 90, 70);
    add(&t, PUSH_AGGREGATED, 4, 2);
    add(&t, PUSH_DROPPED_LATE, 90, 70);
    add(&t, PUSH_NOT_FINITE, 90, NAN);
    assert_true(ps_metrics_mean_staleness(&t) == 3);
    assert_true(fabs(t.smooth_loss - 1.02) < 1e-12); /* a new loss has a fiftieth of the weight */
}

static void losses_are_those_since_the_last_evaluation(void **state)
{
    (void)state;
    struct ps_metrics t = opened();
    add(&t, PUSH_APPLIED, 0, 1);
    add(&t, PUSH_APPLIED, 0, 2);
    struct training_state at = {.updates = 2};
    ps_metrics_begin_evaluation(&t, &at);
    assert_true(t.loss_sum == 0 && t.loss_count == 0);
    assert_true(at.loss_sum == 3 && at.loss_count == 2);
    add(&t, PUSH_APPLIED, 0, 4); /* training goes on meanwhile */
    ps_metrics_evaluation(&t, &at, NOT_MEASURED, &(struct evaluation){.test_accuracy = 0.25});
    assert_true(t.loss_sum == 4 && t.loss_count == 1);
    assert_true(t.test_accuracy == 0.25);
    ps_metrics_drop_evaluation(&t, &at);
    assert_true(t.loss_sum == 7 && t.loss_count == 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_that_were_not_used_do_not_count),
        cmocka_unit_test(losses_are_those_since_the_last_evaluation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
