#include "tests/cuda_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int open_kind(void **state, const struct cuda_kind *kind)
{
    unsigned count;
    struct cuda_rig *r = calloc(1, sizeof *r);
    r->kind = kind;
    *state = r;
    if (kind == NULL || kind->count(&count) != OK) {
        return 0;
    }
    if (kind->open(&r->device, &(struct cuda_options){.deterministic = true}) != OK) {
        print_error("%s\n", error_message());
        free(r);
        return -1;
    }
    return 0;
}

int cuda_rig_emulated(void **state)
{
    return open_kind(state, &cuda_emulated);
}

int cuda_rig_real(void **state)
{
#ifdef GRADLAG_CUDA
    return open_kind(state, &cuda_real);
#else
    return open_kind(state, NULL);
#endif
}

int cuda_rig_close(void **state)
{
    struct cuda_rig *r = *state;
    if (r->device != NULL) {
        r->kind->close(&r->device);
    }
    free(r);
    return 0;
}

struct cuda_rig *cuda_rig_of(void **state)
{
    struct cuda_rig *r = *state;
    if (r->device == NULL) {
        print_message("skipped: no GPU here\n");
        skip();
    }
    return r;
}

int cuda_rig_run(const char *group, const struct cuda_test *tests, size_t count)
{
    enum { MOST = 64 };
    static char names[MOST][96];
    static struct CMUnitTest all[MOST];
    REQUIRE(2 * count <= MOST);
    for (size_t i = 0; i < 2 * count; i++) {
        const bool real = i >= count;
        const struct cuda_test *t = &tests[i % count];
        snprintf(names[i], sizeof names[i], "%s: %s", real ? "gpu" : "emulated", t->name);
        all[i] = (struct CMUnitTest){
            names[i], t->function, real ? cuda_rig_real : cuda_rig_emulated, cuda_rig_close, NULL};
    }
    return _cmocka_run_group_tests(group, all, 2 * count, NULL, NULL);
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
