/* test_cuda_device.c — the contracts of cuda_device.h: memory, copies, kernels, graphs, errors. */
#include "base/memory.h"
#include "tests/worker/cuda/cuda_rig.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void copies_arrive_and_clear_zeroes(void **state)
{
    struct cuda_rig *r = *state;
    enum { COUNT = 1003 };
    float x[COUNT], y[COUNT];
    cuda_rig_fill(x, COUNT, 1);
    float *a = cuda_rig_up(r, x, sizeof x), *b = cuda_rig_memory(r, sizeof x);
    assert_ok(r->kind->copy_within(r->device, CUDA_COMPUTE, b, a, sizeof x));
    assert_ok(r->kind->clear(r->device, CUDA_COMPUTE, b + 1000, 2 * sizeof *b));
    cuda_rig_down(r, y, b, sizeof y);
    assert_memory_equal(x, y, 1000 * sizeof *x);
    assert_true(y[1000] == 0 && y[1001] == 0 && y[1002] == x[1002]);
    cuda_rig_free(r, a);
    cuda_rig_free(r, b);
}

static void every_thread_of_a_grid_has_its_position(void **state)
{
    struct cuda_rig *r = *state;
    const struct cuda_grid g = {5, 4, 3, 37};
    const size_t bytes = (size_t)g.x * g.y * g.z * g.threads * 4 * sizeof(uint32_t);
    uint32_t *out = cuda_rig_memory(r, bytes), *seen = malloc(bytes), *at = seen;
    struct test_where_call call = {out};
    assert_ok(r->kind->launch(r->device, CUDA_COMPUTE, CUDA_test_where, g, &call));
    call.out = NULL; /* the device has a copy of the arguments */
    cuda_rig_down(r, seen, out, bytes);
    for (uint32_t z = 0; z < g.z; z++) {
        for (uint32_t y = 0; y < g.y; y++) {
            for (uint32_t x = 0; x < g.x; x++)
                for (uint32_t t = 0; t < g.threads; t++, at += 4)
                    assert_true(at[0] == x && at[1] == y && at[2] == z && at[3] == t);
        }
    }
    free(seen);
    cuda_rig_free(r, out);
}

static void threads_of_a_block_wait_for_each_other(void **state)
{
    struct cuda_rig *r = *state;
    enum { COUNT = 5000, THREADS_EACH = 256, BLOCKS = (COUNT + 255) / THREADS_EACH };
    float x[COUNT], sums[BLOCKS];
    cuda_rig_fill(x, COUNT, 2);
    struct test_tree_sum_call call = {cuda_rig_up(r, x, sizeof x), cuda_rig_memory(r, sizeof sums),
                                      COUNT};
    assert_ok(r->kind->launch(r->device, CUDA_COMPUTE, CUDA_test_tree_sum,
                              cuda_grid_over(COUNT, THREADS_EACH), &call));
    cuda_rig_down(r, sums, call.sums, sizeof sums);
    for (size_t b = 0; b < BLOCKS; b++) {
        float sum = 0;
        for (size_t i = b * THREADS_EACH; i < COUNT && i < (b + 1) * THREADS_EACH; i++)
            sum += x[i];
        assert_true(sums[b] == sum);
    }
    cuda_rig_free(r, call.x);
    cuda_rig_free(r, call.sums);
}

static void a_captured_step_replays(void **state)
{
    struct cuda_rig *r = *state;
    const struct cuda_kind *k = r->kind;
    enum { COUNT = 300 };
    float x[COUNT], *up, *down;
    const size_t bytes = sizeof x;
    assert_ok(k->host_new(r->device, &up, bytes, "a test's host memory"));
    assert_ok(k->host_new(r->device, &down, bytes, "a test's host memory"));
    cuda_rig_fill(x, COUNT, 3);
    memcpy(up, x, bytes);
    down[0] = 0;
    float *sum = cuda_rig_up(r, x, sizeof x), *step = cuda_rig_memory(r, sizeof x);
    cuda_graph *graph;
    /* step ← up; sum += step; on the other stream: down ← sum, while step is cleared */
    assert_ok(k->capture_begin(r->device));
    assert_ok(k->copy_up(r->device, CUDA_COMPUTE, step, up, bytes));
    struct pass_on_call add = {sum, step, COUNT, true};
    assert_ok(k->launch(r->device, CUDA_COMPUTE, CUDA_pass_on, cuda_grid_over(COUNT, 128), &add));
    add.to = NULL;
    assert_ok(k->wait(r->device, CUDA_COPY, CUDA_COMPUTE));
    assert_ok(k->copy_down(r->device, CUDA_COPY, down, sum, bytes));
    assert_ok(k->clear(r->device, CUDA_COMPUTE, step, sizeof x));
    assert_ok(k->wait(r->device, CUDA_COMPUTE, CUDA_COPY));
    assert_ok(k->capture_end(r->device, &graph));
    assert_ok(k->synchronize(r->device));
    assert_true(down[0] == 0); /* captured, not run */
    for (int times = 2; times < 6; times++) {
        assert_ok(k->graph_launch(r->device, graph));
        assert_ok(k->synchronize(r->device));
        for (size_t i = 0; i < COUNT; i++)
            assert_true(down[i] == (float)times * x[i]);
    }
    k->graph_close(r->device, graph);
    k->host_free(r->device, up);
    k->host_free(r->device, down);
    cuda_rig_free(r, sum);
    cuda_rig_free(r, step);
}

static void marks_measure_time(void **state)
{
    struct cuda_rig *r = *state;
    double milliseconds = -1;
    float *x = cuda_rig_memory(r, 1 << 20);
    assert_ok(r->kind->mark(r->device, 0));
    for (int i = 0; i < 20; i++)
        assert_ok(r->kind->clear(r->device, CUDA_COMPUTE, x, 1 << 20));
    assert_ok(r->kind->mark(r->device, 1));
    assert_ok(r->kind->synchronize(r->device));
    assert_ok(r->kind->elapsed(r->device, 0, 1, &milliseconds));
    assert_true(milliseconds > 0 && milliseconds < 1e4);
    cuda_rig_free(r, x);
}

/* One stream copies to the host twice while the other clears. */
static void a_stream_waits_for_the_other(void **state)
{
    struct cuda_rig *r = *state;
    const struct cuda_kind *k = r->kind;
    float *x = cuda_rig_memory(r, sizeof *x), *seen;
    assert_ok(k->host_new(r->device, &seen, 2 * sizeof *seen, "a test's host memory"));
    for (int i = 0; i < 2; i++) {
        const float one = 1;
        assert_ok(k->copy_up(r->device, CUDA_COMPUTE, x, &one, sizeof one));
        assert_ok(k->wait(r->device, CUDA_COPY, CUDA_COMPUTE));
        assert_ok(k->copy_down(r->device, CUDA_COPY, &seen[i], x, sizeof *x));
        assert_ok(k->wait(r->device, CUDA_COMPUTE, CUDA_COPY));
        assert_ok(k->clear(r->device, CUDA_COMPUTE, x, sizeof *x));
        assert_ok(k->synchronize(r->device));
    }
    assert_true(seen[0] == 1 && seen[1] == 1);
    k->host_free(r->device, seen);
    cuda_rig_free(r, x);
}

static void pinned_memory_is_copied(void **state)
{
    struct cuda_rig *r = *state;
    enum { COUNT = 100000 };
    float *host, *own = calloc(COUNT, sizeof *own);
    assert_ok(r->kind->host_new(r->device, &host, COUNT * sizeof *host, "a test's host memory"));
    const bool pinned = r->kind->pin(r->device, own, COUNT * sizeof *own, false);
    cuda_rig_fill(host, COUNT, 4);
    float *x = cuda_rig_up(r, host, COUNT * sizeof *x);
    cuda_rig_down(r, own, x, COUNT * sizeof *x);
    assert_memory_equal(host, own, COUNT * sizeof *x);
    if (pinned)
        r->kind->unpin(r->device, own);
    r->kind->host_free(r->device, host);
    cuda_rig_free(r, x);
    free(own);
}

static void invalid_grids_are_errors(void **state)
{
    struct cuda_rig *r = *state;
    const struct pass_on_call call = {0};
    const struct cuda_grid wrong[] = {
        {0, 1, 1, 32}, {1, 65536, 1, 32}, {1, 1, 65536, 32}, {1, 1, 1, 1025}, {1, 1, 1, 0}};
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        assert_error(r->kind->launch(r->device, CUDA_COMPUTE, CUDA_pass_on, wrong[i], &call),
                     ERROR_OTHER, "pass_on");
    }
}

static void too_large_an_allocation_is_an_error(void **state)
{
    struct cuda_rig *r = *state;
    struct cuda_properties p;
    void *at;
    assert_ok(r->kind->describe(0, &p));
    assert_true(p.free_bytes <= p.memory_bytes && p.multiprocessors > 0 && p.name[0] != '\0');
    assert_error(r->kind->memory_new(r->device, &at, p.memory_bytes + 1, "weights"), ERROR_OTHER,
                 "weights");
    assert_non_null(strstr(error_message(), "virtual.threads"));
    cuda_rig_free(r, cuda_rig_memory(r, 1 << 20)); /* the device still works */
}

static void an_absent_device_is_a_usage_error(void **state)
{
    struct cuda_rig *r = *state;
    unsigned count;
    cuda_device *d;
    struct cuda_properties p;
    assert_ok(r->kind->count(&count));
    const struct cuda_options o = {.index = count};
    assert_int_equal(r->kind->open(&d, &o), ERROR_USAGE);
    assert_null(d);
    assert_int_equal(r->kind->describe(count, &p), ERROR_USAGE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        CUDA_TEST(copies_arrive_and_clear_zeroes),
        CUDA_TEST(every_thread_of_a_grid_has_its_position),
        CUDA_TEST(threads_of_a_block_wait_for_each_other),
        CUDA_TEST(a_captured_step_replays),
        CUDA_TEST(marks_measure_time),
        CUDA_TEST(a_stream_waits_for_the_other),
        CUDA_TEST(pinned_memory_is_copied),
        CUDA_TEST(invalid_grids_are_errors),
        CUDA_TEST(too_large_an_allocation_is_an_error),
        CUDA_TEST(an_absent_device_is_a_usage_error),
    };
    return cuda_rig_run("cuda_device", tests, COUNT_OF(tests), NULL, NULL);
}
