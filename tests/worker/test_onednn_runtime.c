/* test_onednn_runtime.c — the CPU backend refuses a oneDNN build that computes asynchronously or in
 * other memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include <oneapi/dnnl/dnnl.h>

#include "worker/backend.h"

/* Replaces the runtime that oneDNN reports. */
static unsigned built_for;

const dnnl_version_t *dnnl_version(void)
{
    static dnnl_version_t version = {.major = 3, .cpu_runtime = DNNL_RUNTIME_OMP};
    version.cpu_runtime = built_for != 0 ? built_for : DNNL_RUNTIME_OMP;
    return &version;
}

static void an_asynchronous_onednn_is_a_usage_error(void **state)
{
    (void)state;
    static const struct {
        unsigned runtime;
        status expected;
    } cases[] = {{DNNL_RUNTIME_SYCL, ERROR_USAGE},
                 {DNNL_RUNTIME_THREADPOOL, ERROR_USAGE},
                 {DNNL_RUNTIME_SEQ, OK},
                 {DNNL_RUNTIME_TBB, OK},
                 {DNNL_RUNTIME_OMP, OK}};
    static const struct backend_options plain = {.threads = 1};
    const struct backend_kind *kind =
        (const struct backend_kind *)registry_find(&backend_registry, "cpu");
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        backend *b = NULL;
        built_for = cases[i].runtime;
        assert_int_equal(kind->open(&b, &plain), cases[i].expected);
        backend_close(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_asynchronous_onednn_is_a_usage_error),
    };
    return cmocka_run_group_tests_name("onednn_runtime", tests, NULL, NULL);
}
