#include "tests/worker/cuda/cuda_rig.h"

#include "base/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct cuda_kind *kind_of_the_gpu(void)
{
    const struct cuda_kind *kind;
    unsigned count;
    return cuda_kind_get(&kind) == OK && kind->count(&count) == OK ? kind : NULL;
}

void cuda_rig_describe(struct cuda_properties *out)
{
    assert_ok(kind_of_the_gpu()->describe(0, out));
}

bool cuda_rig_on_stand_in(void)
{
    struct cuda_properties p;
    cuda_rig_describe(&p);
    return strcmp(p.name, "stand-in") == 0;
}

int cuda_rig_open(void **state)
{
    struct cuda_rig *r = calloc(1, sizeof *r);
    r->kind = kind_of_the_gpu();
    *state = r;
    if (r->kind->open(&r->device, &(struct cuda_options){0}) != OK) {
        print_error("%s\n", error_message());
        free(r);
        return -1;
    }
    return 0;
}

int cuda_rig_close(void **state)
{
    struct cuda_rig *r = *state;
    r->kind->close(&r->device);
    free(r);
    return 0;
}

static void without_a_gpu(void **state)
{
    (void)state;
    print_message("skipped: no GPU\n");
    skip();
}

int cuda_rig_run(const char *group, const struct CMUnitTest *tests, size_t count,
                 CMFixtureFunction set_up, CMFixtureFunction tear_down)
{
    const struct CMUnitTest none = {.name = group, .test_func = without_a_gpu};
    if (kind_of_the_gpu() == NULL)
        return _cmocka_run_group_tests(group, &none, 1, NULL, NULL);
    return _cmocka_run_group_tests(group, tests, count, set_up, tear_down);
}

void *cuda_rig_memory(struct cuda_rig *r, size_t bytes)
{
    void *at;
    assert_ok(r->kind->memory_new(r->device, &at, bytes, "a test's memory"));
    assert_int_equal((uintptr_t)at % 256, 0);
    return at;
}

void *cuda_rig_up(struct cuda_rig *r, const void *host, size_t bytes)
{
    void *at = cuda_rig_memory(r, bytes);
    assert_ok(r->kind->copy_up(r->device, CUDA_COMPUTE, at, host, bytes));
    assert_ok(r->kind->synchronize(r->device));
    return at;
}

void cuda_rig_down(struct cuda_rig *r, void *host, const void *at, size_t bytes)
{
    assert_ok(r->kind->copy_down(r->device, CUDA_COMPUTE, host, at, bytes));
    assert_ok(r->kind->synchronize(r->device));
}

void cuda_rig_free(struct cuda_rig *r, const void *at)
{
    r->kind->memory_free(r->device, (void *)at);
}

void cuda_rig_fill(float *x, size_t count, uint32_t seed)
{
    for (size_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(seed >> 24) - 128;
    }
}
