/* cuda_rig.h — tests of a GPU. Each test_cuda_NAME.c becomes two programs. test_cuda_NAME runs on a
 * real GPU and skips its tests without one. test_stand_in_NAME is the same object, linked with the
 * stand-in for CUDA (cuda_stand_in.h). */
#ifndef GRADLAG_TESTS_WORKER_CUDA_CUDA_RIG_H
#define GRADLAG_TESTS_WORKER_CUDA_CUDA_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "worker/cuda/kernels/cuda_calls.h"

struct cuda_rig {
    const struct cuda_kind *kind;
    cuda_device *device;
};

/* set-up and tear-down of a test whose state is a struct cuda_rig */
int cuda_rig_open(void **state);
int cuda_rig_close(void **state);
#define CUDA_TEST(name) cmocka_unit_test_setup_teardown(name, cuda_rig_open, cuda_rig_close)

/* Runs the group. Without a GPU the group is one skipped test. */
int cuda_rig_run(const char *group, const struct CMUnitTest *tests, size_t count,
                 CMFixtureFunction set_up, CMFixtureFunction tear_down);
/* Describes device 0. */
void cuda_rig_describe(struct cuda_properties *out);
/* True if this program is linked with the stand-in. */
bool cuda_rig_on_stand_in(void);

#define assert_ok(call)                                                                            \
    do {                                                                                           \
        if ((call) != OK)                                                                          \
            fail_msg("%s", error_message());                                                       \
    } while (0)
/* The call must fail with `code` and a message that names `name`. */
#define assert_error(call, code, name)                                                             \
    do {                                                                                           \
        assert_int_equal((call), (code));                                                          \
        if (strstr(error_message(), (name)) == NULL)                                               \
            fail_msg("'%s' does not name '%s'", error_message(), (name));                          \
    } while (0)

void *cuda_rig_memory(struct cuda_rig *r, size_t bytes);
void *cuda_rig_up(struct cuda_rig *r, const void *host, size_t bytes);
void cuda_rig_down(struct cuda_rig *r, void *host, const void *at, size_t bytes);
void cuda_rig_free(struct cuda_rig *r, const void *at);

/* Fills with whole numbers in [−128, 128). They are exact in bf16 and tf32, and short sums of their
 * products are exact in float. */
void cuda_rig_fill(float *x, size_t count, uint32_t seed);

#endif
