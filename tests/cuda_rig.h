/*
 * cuda_rig.h — one GPU under test: the emulated one, and the real one where there is one. Tests of
 * the real one are skipped, and counted as skipped, elsewhere.
 */
#ifndef GRADLAG_TESTS_CUDA_RIG_H
#define GRADLAG_TESTS_CUDA_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "worker/cuda_calls.h"

struct cuda_rig {
    const struct cuda_kind *kind;
    cuda_device *device; /* NULL: there is none */
};

/* cmocka's set-ups and tear-down */
int cuda_rig_emulated(void **state);
int cuda_rig_real(void **state);
int cuda_rig_close(void **state);

/* The rig, or the end of a test that needs a GPU where there is none. */
struct cuda_rig *cuda_rig_of(void **state);

/* Runs each test twice. */
struct cuda_test {
    const char *name;
    CMUnitTestFunction function;
};
int cuda_rig_run(const char *group, const struct cuda_test *tests, size_t count);
#define CUDA_TEST(name)                                                                            \
    {                                                                                              \
#name, name                                                                                \
    }

#define assert_ok(call)                                                                            \
    do {                                                                                           \
        if ((call) != OK) {                                                                        \
            fail_msg("%s", error_message());                                                       \
        }                                                                                          \
    } while (0)
/* The call must fail like that, with a message that holds `part`. */
#define assert_error(call, code, part)                                                             \
    do {                                                                                           \
        assert_int_equal((call), (code));                                                          \
        if (strstr(error_message(), (part)) == NULL) {                                             \
            fail_msg("'%s' does not say '%s'", error_message(), (part));                           \
        }                                                                                          \
    } while (0)

void *cuda_rig_memory(struct cuda_rig *r, size_t bytes);
void *cuda_rig_up(struct cuda_rig *r, const void *host, size_t bytes);
void cuda_rig_down(struct cuda_rig *r, void *host, const void *at, size_t bytes);
void cuda_rig_free(struct cuda_rig *r, const void *at);

/* Whole numbers in [−128, 128): exact in bf16 and tf32, and short sums of their products in float.
 */
void cuda_rig_fill(float *x, size_t count, uint32_t seed);

#endif
