/*
 * The CUDA backend against the CPU's: every operation, every model, in every precision. The kernels
 * run on the emulated GPU (GRADLAG_CUDA_EMULATED), unless GRADLAG_TEST_GPU=1 says that there is a
 * real one.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <malloc.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gradients.h"
#include "tests/op_graphs.h"

enum { CLASSES = 10 };

static const struct backend_options fp32 = {
    .threads = 1, .deterministic = true, .place.device = -1};
static const uint32_t batches[] = {1, 5, 32, 33};

static struct model of_graph(struct model_kind *kind, forward_function *forward)
{
    *kind = (struct model_kind){.about = {.name = "test"}, .forward = forward};
    return (struct model){.kind = kind, .classes = CLASSES};
}

static struct model of_registry(size_t index)
{
    struct model m = {.kind = (const struct model_kind *)model_registry.entries[index],
                      .classes = CLASSES};
    options *o;
    assert_int_equal(options_open(&o), OK);
    if (m.kind->about.options != NULL) {
        assert_int_equal(options_declare(o, m.kind->about.options), OK);
    }
    if (m.kind->configure != NULL) {
        assert_int_equal(m.kind->configure(&m, o), OK);
    }
    options_close(&o);
    return m;
}

/* ‖a − b‖ / ‖b‖ */
static double distance(const float *a, const float *b, size_t count)
{
    double apart = 0, norm = 0;
    for (size_t i = 0; i < count; ++i) {
        double d = (double)a[i] - (double)b[i];
        apart += d * d;
        norm += (double)b[i] * (double)b[i];
    }
    return sqrt(apart / norm);
}

static void open_on(struct fixture *f, const char *device, const struct backend_options *o,
                    const struct model *m, struct shape images, uint32_t batch)
{
    fixture_device = device;
    fixture_open_on(f, o, m, images, batch, 3);
}

/* Three steps on each: as it is, captured, replayed. */
static void assert_alike(const char *name, const struct model *m, struct shape images,
                         uint32_t batch, const struct backend_options *o, double bound)
{
    struct fixture cpu, cuda;
    open_on(&cpu, "cpu", &fp32, m, images, batch);
    open_on(&cuda, "cuda", o, m, images, batch);
    double wanted = fixture_step(&cpu, cpu.parameters, cpu.gradient);
    for (int step = 0; step < 3; ++step) {
        memset(cuda.gradient, 0x7f, cuda.count * sizeof(float)); /* what is not written is seen */
        double loss = fixture_step(&cuda, cuda.parameters, cuda.gradient);
        double of_gradient = distance(cuda.gradient, cpu.gradient, cpu.count);
        double of_loss = fabs(loss - wanted) / wanted;
        if (!(of_loss < bound && of_gradient < bound)) {
            for (size_t k = 0; k < parameter_table_slices(cpu.table); ++k) {
                const struct parameter_slice *s = parameter_table_slice(cpu.table, k);
                print_message(
                    "  %s: %g\n", s->name,
                    distance(cuda.gradient + s->offset, cpu.gradient + s->offset, s->count));
            }
            fail_msg("%s, batch %u, step %d: %g off the cpu in the loss, %g in the gradient; at "
                     "most %g is right",
                     name, batch, step, of_loss, of_gradient, bound);
        }
    }
    fixture_close(&cpu);
    fixture_close(&cuda);
}

static void every_operation_is_that_of_the_cpu(void **state)
{
    (void)state;
    for (size_t i = 0; i < op_graph_count; ++i) {
        for (size_t k = 0; k < COUNT_OF(batches); ++k) {
            struct model_kind kind;
            struct model m = of_graph(&kind, op_graphs[i].forward);
            assert_alike(op_graphs[i].name, &m, op_graphs[i].images, batches[k], &fp32, 1e-5);
        }
    }
}

static void every_model_is_that_of_the_cpu(void **state)
{
    (void)state;
    for (size_t i = 0; i < model_registry.count; ++i) {
        for (size_t k = 0; k < COUNT_OF(batches); ++k) {
            struct model m = of_registry(i);
            /* Among the millions of ReLUs of a deep network some input is so close to 0 that the
             * last bit decides on which side it falls; one that differs is a percent of the
             * gradient below it. */
            bool deep = strcmp(model_registry.entries[i]->name, "resnet20") == 0;
            assert_alike(model_registry.entries[i]->name, &m, (struct shape){2, 17, 20}, batches[k],
                         &fp32, deep ? 5e-2 : 1e-5);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_operation_is_that_of_the_cpu),
        cmocka_unit_test(every_model_is_that_of_the_cpu),
    };
    if (getenv("GRADLAG_TEST_GPU") == NULL) {
        setenv("GRADLAG_CUDA_EMULATED", "1", 0);
    }
    return cmocka_run_group_tests_name("cuda", tests, NULL, NULL);
}
