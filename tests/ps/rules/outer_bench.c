/* outer_bench.c — see outer_bench.h. */
#include "tests/ps/rules/outer_bench.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include <math.h>

enum { D = BENCH_COUNT };

double outer_bench_center(unsigned w, uint64_t batch, size_t i)
{
    uint64_t seed = 1 + w + OUTER_WORKERS * (batch + 1000 * i);
    return (double)(core_rig_random(&seed) >> 11) * 0x1p-53;
}

status outer_bench_gradient(void *context, const float *x, uint64_t batch, float *gradient,
                            struct step_stats *stats)
{
    struct outer_bench *c = context;
    assert_int_equal(batch, c->batches[c->worker]);
    c->batches[c->worker]++;
    for (size_t i = 0; i < D; i++)
        gradient[i] = x[i] - (c->centered ? (float)outer_bench_center(c->worker, batch, i) : 0);
    if (c->worker == 0 && batch + 1 == c->corrupted)
        gradient[D - 1] = INFINITY;
    *stats = (struct step_stats){.loss = (float)batch, .samples = OUTER_BATCH, .compute_ns = 1000};
    return OK;
}

void outer_bench_open(struct outer_bench *c, unsigned workers, float initial,
                      const char *const *settings)
{
    *c = (struct outer_bench){0};
    bench_open(&c->b,
               (struct server_core_options){.workers = workers, .total_samples = OUTER_TOTAL},
               settings);
    if (local_steps_plan_open(&c->plan, c->b.rig.settings, workers, D, OUTER_TOTAL,
                              c->b.rig.options.epoch_samples) != OK)
        fail_msg("%s", error_message());
    assert_in_range(local_steps_scratch(&c->plan), 0, COUNT_OF(c->scratch));
    for (size_t i = 0; i < D && !isnan(initial); i++)
        c->b.rig.slots[0][i] = initial;
    for (unsigned w = 0; w < workers; w++)
        assert_int_equal(local_steps_open(&c->local[w], &c->plan), OK);
    bench_hello_all(&c->b);
}

void outer_bench_close(struct outer_bench *c)
{
    for (unsigned w = 0; w < OUTER_WORKERS; w++)
        local_steps_close(&c->local[w]);
    core_rig_close(&c->b.rig);
}

struct local_steps_push outer_bench_compute(struct outer_bench *c, unsigned w)
{
    struct local_steps_push push = {.parameters = c->b.rig.slots[c->b.slot[w]],
                                    .samples = c->b.samples[w],
                                    .number = c->b.next[w],
                                    .difference = c->b.gradient[w],
                                    .scratch = c->scratch};
    c->worker = w;
    assert_int_equal(local_steps_run(&c->local[w], outer_bench_gradient, c, &push), OK);
    return push;
}

void outer_bench_round(struct outer_bench *c, unsigned w)
{
    struct local_steps_push done = outer_bench_compute(c, w);
    struct server_push push = bench_push_of(&c->b, w);
    push.samples = done.stats.samples;
    push.loss = (double)done.stats.loss;
    bench_feed(&c->b, push);
}

void outer_bench_push_of(struct outer_bench *c, unsigned w, float difference)
{
    for (size_t i = 0; i < D; i++)
        c->b.gradient[w][i] = difference;
    bench_push(&c->b, w);
}

void outer_bench_expect(const struct outer_bench *c, double value, double tolerance)
{
    for (size_t i = 0; i < D; i++) {
        double is = (double)bench_latest(&c->b)[i];
        if (!(fabs(is - value) <= tolerance))
            fail_msg("parameter %zu is %.9g, not %.9g", i, is, value);
    }
}
