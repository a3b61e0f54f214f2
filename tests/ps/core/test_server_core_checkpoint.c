/* A core resumed from a checkpoint equals the core that wrote it, after that core has lost and
 * rejoined all workers: bit for bit, under every combination of rules. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "ps/server/resume.h"
#include "tests/ps/core/core_bench.h"
#include "tests/ps/rules/rule_combinations.h"

enum { WORKERS = 4, BEFORE = 60, AFTER = 60 };

static struct server_push push_of(const struct core_bench *b, unsigned w, uint64_t batch,
                                  const float *gradient, double compute_us)
{
    struct server_push push = bench_push_of(b, w);
    push.batch = batch;
    push.gradient = gradient;
    push.compute_us = compute_us;
    return push;
}

/* The same push to all of `b`, from a random worker that they wait for. */
static void push_random_worker(struct core_bench *const *b, size_t count, uint64_t batch[WORKERS],
                               uint64_t *random)
{
    unsigned w = (unsigned)(core_rig_random(random) % WORKERS);
    while (!server_core_awaits(b[0]->rig.core, w))
        w = (w + 1) % WORKERS;
    const double compute_us = (double)(core_rig_random(random) % 5000);
    core_rig_fill(b[0]->gradient[w], BENCH_COUNT, core_rig_random(random));
    for (size_t i = 0; i < count; i++) {
        memcpy(b[i]->gradient[w], b[0]->gradient[w], sizeof b[0]->gradient[w]);
        assert_true(server_core_awaits(b[i]->rig.core, w));
        bench_feed(b[i], push_of(b[i], w, batch[w], b[i]->gradient[w], compute_us));
    }
    batch[w]++;
}

static void expect_equal_state(struct core_bench *a, struct core_bench *b)
{
    struct training_state x, y;
    server_core_state(a->rig.core, &x);
    server_core_state(b->rig.core, &y);
    assert_int_equal(x.updates, y.updates);
    assert_int_equal(x.samples, y.samples);
    assert_int_equal(x.computed, y.computed);
    assert_memory_equal(x.parameters, y.parameters, BENCH_COUNT * sizeof(float));
    assert_int_equal(x.optimizer_state_count, y.optimizer_state_count);
    if (x.optimizer_state_count > 0) {
        assert_memory_equal(x.optimizer_state, y.optimizer_state,
                            x.optimizer_state_count * sizeof(float));
    }
    assert_memory_equal(x.batches, y.batches, WORKERS * sizeof *x.batches);
    assert_int_equal(x.vector_count, y.vector_count);
    for (size_t i = 0; i < x.vector_count; i++)
        assert_memory_equal(x.vectors[i], y.vectors[i], BENCH_COUNT * sizeof(float));
    assert_int_equal(x.account_count, y.account_count);
    assert_memory_equal(x.account, y.account, x.account_count * sizeof *x.account);
}

/* Contract: no push is held or in the running sum. */
static void open_resumed(struct core_bench *first, struct core_bench *second,
                         const char *const *settings, uint64_t batch[WORKERS])
{
    struct training_state start;
    server_core_state(first->rig.core, &start);
    assert_memory_equal(start.batches, batch, WORKERS * sizeof *batch);
    bench_open(second,
               (struct server_core_options){.workers = WORKERS,
                                            .total_samples = 3000,
                                            .initial = start.parameters,
                                            .start = &start,
                                            .whole = BENCH_COUNT},
               settings);
    for (unsigned w = 0; w < WORKERS; w++)
        bench_lost(first, w);
    for (unsigned w = 0; w < WORKERS; w++)
        bench_hello(first, w);
    bench_hello_all(second);
    expect_equal_state(first, second);
}

static bool any_waits(struct core_bench *b, const uint64_t batch[WORKERS])
{
    struct training_state now;
    server_core_state(b->rig.core, &now);
    return memcmp(now.batches, batch, WORKERS * sizeof *batch) != 0;
}

static void expect_exact_resume(const char *const *settings)
{
    struct core_bench first, second;
    struct core_bench *const one[] = {&first}, *const both[] = {&first, &second};
    uint64_t batch[WORKERS] = {0}, random = 3;
    bench_open(&first, (struct server_core_options){.workers = WORKERS, .total_samples = 3000},
               settings);
    bench_hello_all(&first);
    for (unsigned i = 0; i < BEFORE || any_waits(&first, batch); i++)
        push_random_worker(one, 1, batch, &random);
    open_resumed(&first, &second, settings, batch);
    for (unsigned i = 0; i < AFTER; i++) {
        push_random_worker(both, 2, batch, &random);
        expect_equal_state(&first, &second);
    }
    assert_true(server_core_version(second.rig.core) > 10);
    core_rig_close(&first.rig);
    core_rig_close(&second.rig);
}

static bool can_resume(const char *const *settings)
{
    options *o = NULL;
    assert_int_equal(core_rig_settings(&o, settings), OK);
    const status may = resume_check(o);
    options_close(&o);
    assert_true(may == OK || may == ERROR_USAGE);
    return may == OK;
}

static void every_combination_resumes_exactly_or_is_refused(void **state)
{
    (void)state;
    unsigned count = 0, refused = 0;
    for (uint64_t i = 0; i < combinations(); i++) {
        const struct combination c = combination_of(i);
        const struct combination_settings s = settings_of(&c);
        const char *const settings[] = {s.text[0], s.text[1],         s.text[2], s.text[3],
                                        s.text[4], "schedule=linear", NULL};
        const bool keeps = c.correction->shared > 0 || c.correction->own;
        if (!combination_is_valid(&c))
            continue;
        const bool may = can_resume(settings);
        /* Exactly the combinations with state outside of the checkpoint are refused. */
        assert_int_equal(may,
                         !((c.outer != NULL && c.outer->elastic) || c.correction->adjust != NULL ||
                           (c.policy->takes && (keeps || c.damping->needs_history))));
        count += may;
        refused += !may;
        if (may)
            expect_exact_resume(settings);
    }
    assert_true(count > 300 && refused > 0);
}

static void every_optimizer_resumes_exactly(void **state)
{
    (void)state;
    for (size_t i = 0; i < optimizer_registry.count; i++) {
        char which[48];
        snprintf(which, sizeof which, "optimizer=%s", optimizer_registry.entries[i]->name);
        expect_exact_resume(RIG(which, "schedule=linear", "weight_decay=0.01"));
    }
}

/* ---- the first batch of each worker ---- */

static void expect_batches(struct core_bench *b, uint64_t first, uint64_t second)
{
    struct training_state now;
    server_core_state(b->rig.core, &now);
    assert_int_equal(now.batches[0], first);
    assert_int_equal(now.batches[1], second);
}

static void push_batch(struct core_bench *b, unsigned w, uint64_t batch)
{
    bench_feed(b, push_of(b, w, batch, b->gradient[w], 0));
}

static void a_held_gradient_is_computed_again_after_resume(void **state)
{
    (void)state;
    struct core_bench b;
    bench_open(&b, (struct server_core_options){.workers = 2}, RIG("consistency=bsp"));
    bench_hello_all(&b);
    push_batch(&b, 0, 5);
    expect_batches(&b, 5, 0);
    push_batch(&b, 1, 8);
    expect_batches(&b, 6, 9);
    bench_lost(&b, 1);
    bench_hello(&b, 1);
    expect_batches(&b, 6, 9);
    core_rig_close(&b.rig);
}

static void gradients_in_the_running_sum_are_computed_again_after_resume(void **state)
{
    (void)state;
    struct core_bench b;
    bench_open(&b, (struct server_core_options){.workers = 2},
               RIG("consistency=buffered", "consistency.size=4"));
    bench_hello_all(&b);
    push_batch(&b, 0, 3);
    push_batch(&b, 0, 4);
    push_batch(&b, 1, 7);
    expect_batches(&b, 3, 7);
    push_batch(&b, 0, 5);
    expect_batches(&b, 6, 8);
    core_rig_close(&b.rig);
}

/* ---- incomplete checkpoints ---- */

static void expect_open(const struct core_bench *b, struct training_state start, status expected)
{
    server_core *core = NULL;
    struct server_core_options o = b->rig.options;
    o.start = &start;
    o.whole = BENCH_COUNT;
    assert_int_equal(server_core_open(&core, &o), expected);
    assert_true((core != NULL) == (expected == OK));
    server_core_close(&core);
}

static void an_incomplete_checkpoint_is_refused(void **state)
{
    (void)state;
    struct core_bench b;
    struct training_state complete, wrong;
    bench_open(&b, (struct server_core_options){.workers = 2},
               RIG("correction=dc-asgd-a", "damping=tail"));
    server_core_state(b.rig.core, &complete);
    expect_open(&b, complete, OK);
    wrong = complete;
    wrong.batches = NULL;
    expect_open(&b, wrong, ERROR_DATA);
    wrong = complete;
    wrong.vector_count--;
    expect_open(&b, wrong, ERROR_DATA);
    wrong = complete;
    wrong.account_count--;
    expect_open(&b, wrong, ERROR_DATA);
    core_rig_close(&b.rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_combination_resumes_exactly_or_is_refused),
        cmocka_unit_test(every_optimizer_resumes_exactly),
        cmocka_unit_test(a_held_gradient_is_computed_again_after_resume),
        cmocka_unit_test(gradients_in_the_running_sum_are_computed_again_after_resume),
        cmocka_unit_test(an_incomplete_checkpoint_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
