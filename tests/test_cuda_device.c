/*
 * What cuda_device.h promises, of the emulated GPU and of a real one where there is one: memory,
 * copies, kernels, products, graphs, errors.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "worker/cuda_calls.h"

struct rig {
    const struct cuda_kind *kind;
    cuda_device *device;
};

#define assert_ok(call)                                                                            \
    do {                                                                                           \
        if ((call) != OK) {                                                                        \
            fail_msg("%s", error_message());                                                       \
        }                                                                                          \
    } while (0)

static int open_kind(void **state, const struct cuda_kind *kind)
{
    struct rig *r = calloc(1, sizeof *r);
    r->kind = kind;
    if (kind->open(&r->device, &(struct cuda_options){.deterministic = true}) != OK) {
        print_error("%s\n", error_message());
        return -1;
    }
    *state = r;
    return 0;
}

static int open_emulated(void **state)
{
    return open_kind(state, &cuda_emulated);
}

static int close_device(void **state)
{
    struct rig *r = *state;
    r->kind->close(&r->device);
    free(r);
    return 0;
}

static void *device_memory(struct rig *r, size_t bytes)
{
    void *at;
    assert_ok(r->kind->memory_new(r->device, &at, bytes, "a test's memory"));
    assert_int_equal((uintptr_t)at % 256, 0);
    return at;
}

static void *on_device(struct rig *r, const void *host, size_t bytes)
{
    void *at = device_memory(r, bytes);
    assert_ok(r->kind->copy_up(r->device, CUDA_COMPUTE, at, host, bytes));
    assert_ok(r->kind->synchronize(r->device));
    return at;
}

static void read_back(struct rig *r, void *host, const void *at, size_t bytes)
{
    assert_ok(r->kind->copy_down(r->device, CUDA_COMPUTE, host, at, bytes));
    assert_ok(r->kind->synchronize(r->device));
}

/* Small whole numbers: their sums are exact in any order. */
static void fill(float *x, size_t count, uint32_t seed)
{
    for (size_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(seed >> 24) - 128;
    }
}

static void copies_arrive_and_clear_zeroes(void **state)
{
    struct rig *r = *state;
    enum { COUNT = 1003 };
    float x[COUNT], y[COUNT];
    fill(x, COUNT, 1);
    float *a = on_device(r, x, sizeof x), *b = device_memory(r, sizeof x);
    assert_ok(r->kind->copy_within(r->device, CUDA_COMPUTE, b, a, sizeof x));
    assert_ok(r->kind->clear(r->device, CUDA_COMPUTE, b + 1000, 2 * sizeof *b));
    read_back(r, y, b, sizeof y);
    assert_memory_equal(x, y, 1000 * sizeof *x);
    assert_true(y[1000] == 0 && y[1001] == 0 && y[1002] == x[1002]);
    r->kind->memory_free(r->device, a);
    r->kind->memory_free(r->device, b);
}

static void every_thread_of_a_grid_knows_where_it_is(void **state)
{
    struct rig *r = *state;
    const struct cuda_grid g = {5, 4, 3, 37};
    const size_t bytes = (size_t)g.x * g.y * g.z * g.threads * 4 * sizeof(uint32_t);
    uint32_t *out = device_memory(r, bytes), *seen = malloc(bytes), *at = seen;
    struct test_where_call call = {out};
    assert_ok(r->kind->launch(r->device, CUDA_COMPUTE, CUDA_test_where, g, &call));
    call.out = NULL; /* arguments are copied */
    read_back(r, seen, out, bytes);
    for (uint32_t z = 0; z < g.z; z++) {
        for (uint32_t y = 0; y < g.y; y++) {
            for (uint32_t x = 0; x < g.x; x++) {
                for (uint32_t t = 0; t < g.threads; t++, at += 4) {
                    assert_true(at[0] == x && at[1] == y && at[2] == z && at[3] == t);
                }
            }
        }
    }
    free(seen);
    r->kind->memory_free(r->device, out);
}

static void threads_of_a_block_wait_for_each_other(void **state)
{
    struct rig *r = *state;
    enum { COUNT = 5000, THREADS_EACH = 256, BLOCKS = (COUNT + 255) / THREADS_EACH };
    float x[COUNT], sums[BLOCKS];
    fill(x, COUNT, 2);
    struct test_tree_sum_call call = {on_device(r, x, sizeof x), device_memory(r, sizeof sums),
                                      COUNT};
    assert_ok(r->kind->launch(r->device, CUDA_COMPUTE, CUDA_test_tree_sum,
                              cuda_grid_over(COUNT, THREADS_EACH), &call));
    read_back(r, sums, call.sums, sizeof sums);
    for (size_t b = 0; b < BLOCKS; b++) {
        float sum = 0;
        for (size_t i = b * THREADS_EACH; i < COUNT && i < (b + 1) * THREADS_EACH; i++) {
            sum += x[i];
        }
        assert_true(sums[b] == sum);
    }
    r->kind->memory_free(r->device, (void *)call.x);
    r->kind->memory_free(r->device, call.sums);
}

static void a_captured_step_replays(void **state)
{
    struct rig *r = *state;
    const struct cuda_kind *k = r->kind;
    enum { COUNT = 300 };
    float x[COUNT], up[COUNT], down[COUNT] = {0};
    fill(x, COUNT, 3);
    memcpy(up, x, sizeof up);
    float *sum = on_device(r, x, sizeof x), *step = device_memory(r, sizeof x);
    cuda_graph *graph;
    /* step ← up; sum += step; on the other stream: down ← sum, while step is cleared */
    assert_ok(k->capture_begin(r->device));
    assert_ok(k->copy_up(r->device, CUDA_COMPUTE, step, up, sizeof up));
    struct add_into_call add = {sum, step, COUNT};
    assert_ok(k->launch(r->device, CUDA_COMPUTE, CUDA_add_into, cuda_grid_over(COUNT, 128), &add));
    add.to = NULL;
    assert_ok(k->wait(r->device, CUDA_COPY, CUDA_COMPUTE));
    assert_ok(k->copy_down(r->device, CUDA_COPY, down, sum, sizeof down));
    assert_ok(k->clear(r->device, CUDA_COMPUTE, step, sizeof x));
    assert_ok(k->wait(r->device, CUDA_COMPUTE, CUDA_COPY));
    assert_ok(k->capture_end(r->device, &graph));
    assert_ok(k->synchronize(r->device));
    assert_true(down[0] == 0); /* written down, not done */
    for (int times = 2; times < 6; times++) {
        assert_ok(k->graph_launch(r->device, graph));
        assert_ok(k->synchronize(r->device));
        for (size_t i = 0; i < COUNT; i++) {
            assert_true(down[i] == (float)times * x[i]);
        }
    }
    k->graph_close(r->device, graph);
    k->memory_free(r->device, sum);
    k->memory_free(r->device, step);
}

static void marks_measure_time(void **state)
{
    struct rig *r = *state;
    double milliseconds = -1;
    float *x = device_memory(r, 1 << 20);
    assert_ok(r->kind->mark(r->device, 0));
    for (int i = 0; i < 20; i++) {
        assert_ok(r->kind->clear(r->device, CUDA_COMPUTE, x, 1 << 20));
    }
    assert_ok(r->kind->mark(r->device, 1));
    assert_ok(r->kind->synchronize(r->device));
    assert_ok(r->kind->elapsed(r->device, 0, 1, &milliseconds));
    assert_true(milliseconds > 0 && milliseconds < 1e4);
    r->kind->memory_free(r->device, x);
}

int main(void)
{
    const struct CMUnitTest emulated[] = {
#define TEST(name) {"emulated: " #name, name, open_emulated, close_device, NULL}
        TEST(copies_arrive_and_clear_zeroes),
        TEST(every_thread_of_a_grid_knows_where_it_is),
        TEST(threads_of_a_block_wait_for_each_other),
        TEST(a_captured_step_replays),
        TEST(marks_measure_time),
#undef TEST
    };
    return cmocka_run_group_tests(emulated, NULL, NULL);
}
