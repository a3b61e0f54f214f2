/* test_onednn_runtime.c — the CPU backend refuses a oneDNN build that computes asynchronously or in
 * other memory, and avoids oneDNN's reference code on processors without AVX2. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dlfcn.h>
#include <string.h>

#include <oneapi/dnnl/dnnl.h>

#include "tests/worker/gradients.h"

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

static unsigned convolutions, references;

/* Replaces that of oneDNN: counts the convolutions. */
dnnl_status_t dnnl_primitive_create(dnnl_primitive_t *out, const_dnnl_primitive_desc_t p)
{
    dnnl_status_t (*of_onednn)(dnnl_primitive_t *, const_dnnl_primitive_desc_t) = (dnnl_status_t(*)(
        dnnl_primitive_t *, const_dnnl_primitive_desc_t))dlsym(RTLD_NEXT, "dnnl_primitive_create");
    dnnl_primitive_kind_t kind = dnnl_undefined_primitive;
    const char *name = "";
    (void)dnnl_primitive_desc_query(p, dnnl_query_primitive_kind, 0, &kind);
    (void)dnnl_primitive_desc_query(p, dnnl_query_impl_info_str, 0, (void *)&name);
    convolutions += kind == dnnl_convolution;
    references += kind == dnnl_convolution && strncmp(name, "ref", 3) == 0;
    return of_onednn(out, p);
}

static dnnl_status_t limited; /* what dnnl_set_max_cpu_isa returned in main() */

static void without_avx2_no_convolution_is_reference_code(void **state)
{
    (void)state;
    static const struct {
        const char *model;
        struct shape images;
    } cases[] = {{"lenet", {1, 28, 28}}, {"cnn", {2, 21, 17}}, {"resnet8", {3, 16, 16}}};
    if (limited != dnnl_success) {
        print_message("skipped: this oneDNN cannot be limited to SSE4.1\n");
        skip();
    }
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const struct about *about = registry_find(&model_registry, cases[i].model);
        const struct model m = {.kind = (const struct model_kind *)about, .classes = 10};
        struct fixture f;
        convolutions = references = 0;
        fixture_open(&f, &m, cases[i].images, 4, 5);
        fixture_step(&f, f.parameters, f.gradient);
        assert_true(convolutions > 0);
        assert_int_equal(references, 0);
        assert_gradient_is_right(&f, 1e-3, 6e-2);
        fixture_close(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_asynchronous_onednn_is_a_usage_error),
        cmocka_unit_test(without_avx2_no_convolution_is_reference_code),
    };
    limited = dnnl_set_max_cpu_isa(dnnl_cpu_isa_sse41);
    return cmocka_run_group_tests_name("onednn_runtime", tests, NULL, NULL);
}
