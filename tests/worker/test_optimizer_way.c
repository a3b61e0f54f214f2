/* test_optimizer_way.c — the trial of stores and prefetch distances, and the bits of every way. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/random.h"
#include "experiments/config/config.h"
#include "worker/optimizer/optimizer.h"
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

/* ---- every way computes the same bits ------------------------------------------------------- */

/* A range [at, at + count) of longer vectors, as the slices of several servers are. If `at` is a
 * multiple of 16, cache lines are aligned and the stores are those of the way. */
struct test_range {
    size_t at, count;
};

enum { READ_NOTHING, READ_APART, READ_OVER_OUT, READINGS };
enum { OUTER = 3 };

static float *vector(size_t count, uint32_t name)
{
    float *x = NULL;
    struct random_stream r;
    assert_int_equal(memory_new(&x, count, sizeof *x, "test vector"), OK);
    random_open(&r, RANDOM_TEST, 5, name, 0);
    for (size_t i = 0; i < count; i++)
        x[i] = (float)(2 * random_uniform(&r) - 1);
    return x;
}

/* The registry, then the kinds of outer rules. */
static optimizer *open_number(size_t number, size_t count)
{
    static const struct {
        const struct optimizer_kind *kind;
        double parameters[OPTIMIZER_PARAMETERS];
    } outer[OUTER] = {{&optimizer_delayed_nesterov, {0.5, 2}},
                      {&optimizer_heloco, {0.9, 0.5, 0.5, 0.5, 0.5, 1, 1}},
                      {&optimizer_outer_adam, {0.9, 0.99, 1e-8}}};
    options *o = NULL;
    optimizer *p = NULL;
    char set[64];
    if (number >= optimizer_registry.count) {
        const size_t k = number - optimizer_registry.count;
        assert_int_equal(optimizer_open_outer(&p, outer[k].kind, outer[k].parameters, count), OK);
        return p;
    }
    snprintf(set, sizeof set, "optimizer=%s", optimizer_registry.entries[number]->name);
    assert_int_equal(config_compose_texts(&o, (const char *const[]){set, "weight_decay=0.01", NULL},
                                          NULL, "test"),
                     OK);
    assert_int_equal(optimizer_open(&p, o, count), OK);
    options_close(&o);
    return p;
}

/* All that three updates compute. */
struct outcome {
    float *theta, *state; /* [count], [optimizer_state_count] */
    size_t state_count;
    double norms[3], gaps[3];
};

static void close_outcome(struct outcome *o)
{
    memory_free(o->theta);
    memory_free(o->state);
}

/* Random vectors of at + count elements, which no update changes. */
struct inputs {
    float *theta, *before, *gradient, *read_at; /* before: what θ_out holds before the update */
};

static void open_inputs(struct inputs *in, size_t count)
{
    float **all[] = {&in->theta, &in->before, &in->gradient, &in->read_at};
    for (uint32_t i = 0; i < COUNT_OF(all); i++)
        *all[i] = vector(count, i);
}

static void close_inputs(struct inputs *in)
{
    float *all[] = {in->theta, in->before, in->gradient, in->read_at};
    for (size_t i = 0; i < COUNT_OF(all); i++)
        memory_free(all[i]);
}

static float *copy_of(const float *from, size_t count)
{
    float *to = NULL;
    assert_int_equal(memory_new(&to, count, sizeof *to, "a copy"), OK);
    memcpy(to, from, count * sizeof *to);
    return to;
}

/* Three updates from the first one on: state 0, update number 0. */
static struct outcome update_in(optimizer *p, const struct inputs *from, const struct test_range *r,
                                int reading)
{
    const size_t all = r->at + r->count;
    float *theta[] = {copy_of(from->theta, all), copy_of(from->before, all)}, *zeros = NULL;
    struct outcome o = {.state_count = optimizer_state_count(p)};
    assert_int_equal(memory_new(&zeros, 2 * r->count, sizeof *zeros, "a first state"), OK);
    if (o.state_count > 0)
        optimizer_set_state(p, zeros);
    optimizer_set_updates(p, 0);
    for (int step = 0; step < 3; step++) {
        struct optimizer_pass pass;
        float *in = theta[step % 2] + r->at, *out = theta[1 - step % 2] + r->at;
        const float *read_at = reading == READ_NOTHING ? NULL
                               : reading == READ_APART ? from->read_at + r->at
                                                       : out;
        optimizer_apply(p, in, from->gradient + r->at, 0.5, 0.1, read_at, out, &pass);
        assert_true(pass.finite);
        o.norms[step] = pass.gradient_norm;
        o.gaps[step] = pass.gap;
    }
    o.theta = copy_of(theta[1] + r->at, r->count);
    if (o.state_count > 0)
        o.state = copy_of(optimizer_state(p), o.state_count);
    float *used[] = {theta[0], theta[1], zeros};
    for (size_t i = 0; i < COUNT_OF(used); i++)
        memory_free(used[i]);
    return o;
}

static void expect_equal(const struct outcome *a, const struct outcome *b, size_t count)
{
    assert_memory_equal(a->theta, b->theta, count * sizeof(float));
    if (a->state_count > 0)
        assert_memory_equal(a->state, b->state, a->state_count * sizeof(float));
    assert_memory_equal(a->norms, b->norms, sizeof a->norms);
    assert_memory_equal(a->gaps, b->gaps, sizeof a->gaps);
}

static void expect_same_bits(optimizer *p, const struct inputs *in, const struct test_range *r,
                             helpers *threads)
{
    for (int reading = 0; reading < READINGS; reading++) {
        optimizer_share(p, NULL);
        optimizer_force_way(p, 0);
        struct outcome first = update_in(p, in, r, reading);
        assert_true((reading == READ_NOTHING) == (first.gaps[0] == 0));
        optimizer_share(p, threads);
        for (unsigned way = threads != NULL ? 0 : 1; way < OPTIMIZER_WAYS; way++) {
            optimizer_force_way(p, way);
            struct outcome other = update_in(p, in, r, reading);
            expect_equal(&first, &other, r->count);
            close_outcome(&other);
        }
        close_outcome(&first);
    }
}

static void expect_same_bits_of_all(const struct test_range *r, helpers *threads)
{
    struct inputs in;
    open_inputs(&in, r->at + r->count);
    for (size_t number = 0; number < optimizer_registry.count + OUTER; number++) {
        optimizer *p = open_number(number, r->count);
        expect_same_bits(p, &in, r, threads);
        optimizer_close(&p);
    }
    close_inputs(&in);
}

static void every_way_computes_the_same_bits(void **state)
{
    (void)state;
    static const struct test_range ranges[] = {{0, 1},     {0, 16},       {0, 31},     {0, 1024},
                                               {0, 3001},  {16, 1008},    {5, 1000},   {48, 517},
                                               {0, 32768}, {4096, 65536}, {32, 33001}, {7, 66000}};
    for (size_t i = 0; i < COUNT_OF(ranges); i++)
        expect_same_bits_of_all(&ranges[i], NULL);
}

static void every_way_computes_the_same_bits_with_helper_threads(void **state)
{
    (void)state;
    static const struct test_range shared[] = {{0, 530001}, {16, 530064}};
    helpers *threads = NULL;
    assert_int_equal(helpers_open_for_cores(&threads), OK);
    helpers_keep_off(threads, 0);
    for (size_t i = 0; i < COUNT_OF(shared); i++)
        expect_same_bits_of_all(&shared[i], threads);
    helpers_close(&threads);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_shortest_way_stays),
        cmocka_unit_test(every_way_computes_the_same_bits),
        cmocka_unit_test(every_way_computes_the_same_bits_with_helper_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
