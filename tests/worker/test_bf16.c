/*
 * test_bf16.c — precision=bf16 on the CPU against fp32: every operation and every model. If the
 * processor has no bf16, oneDNN emulates it. If oneDNN cannot emulate it, the tests are skipped.
 *
 * The bound. Rounding to the 8 significant bits of bf16 has an error of at most 2⁻⁹, 1.1e-3 root
 * mean square. A product of two rounded operands has a relative error of 1.6e-3, and so have sums
 * of such products, because they are summed in float32. A gradient passes through each product
 * forward and backward: ten independent products give 5e-3. The bound on ‖a − b‖/‖b‖ is therefore
 * 1e-2.
 *
 * A ReLU or a maximum adds to this without an error in the arithmetic. About 2⁻⁹ of its inputs are
 * so close to the kink that rounding moves them to the other side, where the gradient differs. This
 * changes one sample's gradient by a few percent. The changes are independent between samples, so
 * they vanish in the mean over a batch unless the gradient itself vanishes too. The batches are
 * therefore large, with similar images and one label, at the initial weights.
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

#include "tests/rigs/built_in_models.h"
#include "tests/worker/gradients.h"
#include "tests/worker/op_graphs.h"

#define BOUND 1e-2
/* A smaller difference means that the arithmetic is not bf16. */
#define NOTICEABLE 1e-4

enum { CLASSES = 10, BATCH = 256 };

static const struct backend_options fp32 = {.threads = 1};
static const struct backend_options bf16 = {.threads = 1, .precision = PRECISION_BF16};

static status try_to_open(void)
{
    backend *b;
    const struct backend_kind *kind =
        (const struct backend_kind *)registry_find(&backend_registry, "cpu");
    status s = kind->open(&b, &bf16);
    if (s == OK)
        backend_close(&b);
    return s;
}

/* Skips a test on processors without bf16 and AVX-512. */
static void need_bf16(void)
{
    if (try_to_open() == OK)
        return;
#if defined(__x86_64__)
    bool wide = __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                __builtin_cpu_supports("avx512dq") && getenv("ONEDNN_MAX_CPU_ISA") == NULL &&
                getenv("DNNL_MAX_CPU_ISA") == NULL;
#else
    bool wide = false;
#endif
    if (wide)
        fail_msg("bf16 is refused on a processor with AVX-512: %s", error_message());
    print_message("skipped: no bf16, and no AVX-512 to emulate it: %s\n", error_message());
    skip();
}

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
    if (m.kind->about.options != NULL)
        assert_int_equal(options_declare(o, m.kind->about.options), OK);
    if (m.kind->configure != NULL)
        assert_int_equal(m.kind->configure(&m, o), OK);
    options_close(&o);
    return m;
}

/* Two fixtures that differ only in precision: initial weights, images similar to the first, one
 * label. */
static void pair_open(struct fixture f[2], const struct model *m, struct shape images,
                      uint32_t batch)
{
    const struct backend_options *o[2] = {&bf16, &fp32};
    for (int i = 0; i < 2; ++i) {
        fixture_open_on(&f[i], o[i], m, images, batch, 3);
        parameter_table_initialise(f[i].table, 3, f[i].parameters);
        memset(f[i].labels, 0, (size_t)batch * f[i].targets * sizeof(uint32_t));
        size_t size = shape_count(images);
        for (size_t k = size; k < batch * size && !m->kind->reads_tokens; ++k)
            f[i].pixels[k] = f[i].pixels[k % size] + f[i].pixels[k];
    }
}

static void pair_close(struct fixture f[2])
{
    fixture_close(&f[0]);
    fixture_close(&f[1]);
}

static void assert_near(const char *name, const struct model *m, struct shape images,
                        uint32_t batch, double bound)
{
    struct fixture f[2];
    double loss[2];
    pair_open(f, m, images, batch);
    for (int i = 0; i < 2; ++i) {
        memset(f[i].gradient, 0x7f,
               f[i].count * sizeof(float)); /* elements that are not written become visible */
        loss[i] = fixture_step(&f[i], f[i].parameters, f[i].gradient);
    }
    double of_loss = fabs(loss[0] - loss[1]) / loss[1];
    double of_gradient = gradient_distance(f[0].gradient, f[1].gradient, f[0].count);
    if (!(of_loss < bound && of_gradient < bound && of_gradient > NOTICEABLE)) {
        fail_msg("%s on %u×%u×%u images: bf16 differs from fp32 by %g in the loss and %g in the "
                 "gradient; "
                 "expected: at most %g, and at least %g in the gradient",
                 name, images.channels, images.height, images.width, of_loss, of_gradient, bound,
                 NOTICEABLE);
    }
    pair_close(f);
}

static void every_operation_is_near_fp32(void **state)
{
    (void)state;
    need_bf16();
    for (size_t i = 0; i < op_graph_count; ++i) {
        struct model_kind kind;
        struct model m = of_graph(&kind, op_graphs[i].forward);
        assert_near(op_graphs[i].name, &m, op_graphs[i].images, BATCH, BOUND);
    }
}

static void operations_on_sequences_are_near_fp32(void **state)
{
    (void)state;
    need_bf16();
    for (size_t i = 0; i < sequence_graph_count; ++i) {
        struct model_kind kind;
        struct model m = of_graph(&kind, sequence_graphs[i].forward);
        kind.reads_tokens = sequence_graphs[i].tokens;
        assert_near(sequence_graphs[i].name, &m, sequence_graphs[i].images, BATCH, BOUND);
    }
}

static void gpt_is_near_fp32(void **state)
{
    (void)state;
    need_bf16();
    struct model m = of_registry(built_in_models());
    assert_string_equal(m.kind->about.name, "gpt");
    assert_near("gpt", &m, (struct shape){1, 33, 1}, 32, BOUND);
}

static void every_model_is_near_fp32(void **state)
{
    (void)state;
    need_bf16();
    for (size_t i = 0; i < built_in_models(); ++i) {
        struct model m = of_registry(i);
        /* Twenty products in sequence, forward and backward, and as many kinks, whose contribution
         * falls with the square root of the batch. */
        bool deep = strcmp(m.kind->about.name, "resnet20") == 0;
        double bound = deep ? 3 * BOUND : BOUND;
        uint32_t batch = deep ? 2 * BATCH : BATCH;
        if (!deep) /* it has the operations of resnet8 */
            assert_near(m.kind->about.name, &m, (struct shape){1, 28, 28}, batch, bound);
        assert_near(m.kind->about.name, &m, (struct shape){2, 21, 17}, batch, bound);
    }
}

/* ---- which values are rounded ---- */

static tensor *one_linear(tape *t, tensor *x, const struct model *m)
{
    return linear(t, x, "fc", m->classes);
}

/* The window is as large as the image, so the results are the logits. */
static tensor *one_convolution(tape *t, tensor *x, const struct model *m)
{
    return conv2d(t, x, "conv", m->classes, tensor_shape(x).height, 1, 0);
}

/* Truncates to numbers that bf16 represents. */
static void truncate_all(float *v, size_t count)
{
    for (size_t i = 0; i < count; ++i) {
        uint32_t bits;
        memcpy(&bits, &v[i], sizeof bits);
        bits &= 0xffff0000u;
        memcpy(&v[i], &bits, sizeof bits);
    }
}

static void products_are_summed_in_float32(void **state)
{
    (void)state;
    need_bf16();
    forward_function *layers[] = {one_linear, one_convolution};
    for (size_t k = 0; k < COUNT_OF(layers); ++k) {
        struct model_kind kind;
        struct model m = of_graph(&kind, layers[k]);
        struct fixture f[2];
        double rounded[2], exact[2];
        pair_open(f, &m, (struct shape){24, 9, 9}, 8);
        for (int i = 0; i < 2; ++i) {
            rounded[i] = fixture_step(&f[i], f[i].parameters, f[i].gradient);
            truncate_all(f[i].parameters, f[i].count);
            truncate_all(f[i].pixels, 8 * shape_count(f[i].images));
            exact[i] = fixture_step(&f[i], f[i].parameters, f[i].gradient);
        }
        /* A sum in bf16 of 1944 products would have a much larger error. */
        assert_true(fabs(exact[0] - exact[1]) < 1e-6 * exact[1]);
        assert_true(fabs(rounded[0] - rounded[1]) > 1e-5 * rounded[1]);
        pair_close(f);
    }
}

enum { WIDE = 32, WIDE_BATCH = 8 };
static float wide[2 * WIDE * WIDE_BATCH];

/* one_convolution with results in bf16. */
static tensor *one_wide_convolution(tape *t, tensor *x, const struct model *m)
{
    x = conv2d(t, x, "conv", WIDE, tensor_shape(x).height, 1, 0);
    if (tape_batch(t) == WIDE_BATCH) /* not in the discovery pass */
        memcpy(wide, tape_value(t, x), sizeof wide / 2);
    return linear(t, x, "fc", m->classes);
}

static void bf16_results_are_rounded_once(void **state)
{
    (void)state;
    need_bf16();
    struct model_kind kind;
    struct model m = of_graph(&kind, one_wide_convolution);
    struct fixture f[2];
    const size_t count = WIDE * WIDE_BATCH;
    pair_open(f, &m, (struct shape){24, 9, 9}, WIDE_BATCH);
    for (int i = 0; i < 2; ++i) { /* fp32 last */
        truncate_all(f[i].parameters, f[i].count);
        truncate_all(f[i].pixels, WIDE_BATCH * shape_count(f[i].images));
        memcpy(wide + count, wide, count * sizeof(float));
        fixture_step(&f[i], f[i].parameters, f[i].gradient);
    }
    for (size_t i = 0; i < count; ++i) {
        /* Half a unit in the last of 8 bits, plus the order in which 1944 products are summed. */
        double off = fabs((double)wide[count + i] - (double)wide[i]);
        assert_true(off <= fabs((double)wide[i]) / 256 + 1e-5);
    }
    pair_close(f);
}

static size_t not_in_bf16(const float *v, size_t count)
{
    size_t found = 0;
    for (size_t i = 0; i < count; ++i) {
        uint32_t bits;
        memcpy(&bits, &v[i], sizeof bits);
        found += (bits & 0xffffu) != 0;
    }
    return found;
}

static size_t kept_in_float32, kept_in_bf16; /* values seen between layers */

static tensor *look(tape *t, tensor *x)
{
    size_t count = tape_batch(t) * shape_count(tensor_shape(x));
    size_t found = not_in_bf16(tape_value(t, x), count);
    kept_in_float32 += found;
    kept_in_bf16 += count - found;
    return x;
}

/* Every operation of cnn and resnet8 between whole blocks of 16 channels. */
static tensor *with_inspected_blocks(tape *t, tensor *x, const struct model *m)
{
    x = look(t, relu(t, conv2d(t, x, "conv1", 16, 3, 1, 1)));
    x = look(t, max_pool(t, x, 2, 2));
    tensor *y = look(t, conv2d_unbiased(t, x, "conv2", 32, 3, 1, 1));
    y = look(t, relu(t, batch_norm(t, y, "bn1")));
    tensor *z = look(t, conv2d_unbiased(t, x, "conv3", 32, 1, 1, 0));
    z = batch_norm(t, z, "bn2");
    y = look(t, relu(t, add(t, z, y)));
    return linear(t, y, "fc", m->classes);
}

static void activations_stay_in_bf16_between_layers(void **state)
{
    (void)state;
    need_bf16();
    struct model_kind kind;
    struct model m = of_graph(&kind, with_inspected_blocks);
    struct fixture f[2];
    pair_open(f, &m, (struct shape){3, 9, 7}, 8);
    for (int i = 0; i < 2; ++i) {
        kept_in_float32 = kept_in_bf16 = 0;
        fixture_step(&f[i], f[i].parameters, f[i].gradient);
        if (i == 0) {
            assert_int_equal(kept_in_float32, 0);
            assert_true(not_in_bf16(f[i].gradient, f[i].count) > f[i].count / 2);
        } else {
            assert_true(kept_in_float32 > kept_in_bf16);
        }
    }
    pair_close(f);
}

/* ---- training ---- */

/* Fits one batch; loss[]: before, in the middle and at the end. */
static void learn(struct fixture *f, double loss[3])
{
    enum { STEPS = 40 };
    const float rate = 0.02f;
    for (int step = 0; step <= STEPS; ++step) {
        double now = fixture_step(f, f->parameters, f->gradient);
        loss[step == 0 ? 0 : step <= STEPS / 2 ? 1 : 2] = now;
        for (size_t i = 0; i < f->count; ++i)
            f->parameters[i] -= rate * f->gradient[i];
    }
}

static void training_in_bf16_converges_as_in_fp32(void **state)
{
    (void)state;
    need_bf16();
    static const char *const names[] = {"mlp", "cnn", "resnet8"};
    for (size_t i = 0; i < built_in_models(); ++i) {
        struct model m = of_registry(i);
        bool wanted = false;
        for (size_t k = 0; k < COUNT_OF(names); ++k)
            wanted |= strcmp(m.kind->about.name, names[k]) == 0;
        const struct backend_options *o[2] = {&bf16, &fp32};
        double loss[2][3];
        for (int k = 0; wanted && k < 2; ++k) {
            struct fixture f;
            fixture_open_on(&f, o[k], &m, (struct shape){1, 16, 16}, 32, 5);
            parameter_table_initialise(f.table, 5, f.parameters);
            learn(&f, loss[k]);
            fixture_close(&f);
        }
        for (int at = 1; wanted && at < 3; ++at) {
            if (!(loss[0][2] < 0.7 * loss[0][0] &&
                  fabs(loss[0][at] - loss[1][at]) < 0.05 * loss[1][0])) {
                fail_msg("%s: the loss went from %g to %g in bf16, from %g to %g in fp32",
                         m.kind->about.name, loss[0][0], loss[0][at], loss[1][0], loss[1][at]);
            }
        }
    }
}

/* ---- promises that do not depend on the precision ---- */

static void the_same_step_gives_the_same_bits(void **state)
{
    (void)state;
    need_bf16();
    for (size_t i = 0; i < built_in_models(); ++i) {
        for (uint32_t threads = 1; threads <= 2; ++threads) {
            const struct backend_options o = {.threads = threads, .precision = PRECISION_BF16};
            struct model m = of_registry(i);
            struct fixture f, other;
            fixture_open_on(&f, &o, &m, (struct shape){2, 21, 17}, 16, 3);
            fixture_open_on(&other, &o, &m, (struct shape){2, 21, 17}, 16, 3);
            double loss = fixture_step(&f, f.parameters, f.gradient);
            assert_true(fixture_step(&f, f.parameters, f.shifted) == loss);
            assert_memory_equal(f.gradient, f.shifted, f.count * sizeof(float));
            assert_true(fixture_step(&other, other.parameters, other.gradient) == loss);
            assert_memory_equal(f.gradient, other.gradient, f.count * sizeof(float));
            fixture_close(&f);
            fixture_close(&other);
        }
    }
}

static void steps_allocate_no_memory(void **state)
{
    (void)state;
    need_bf16();
    enum { STEPS = 20 };
    for (size_t i = 0; i < built_in_models(); ++i) {
        struct model m = of_registry(i);
        struct fixture f;
        fixture_open_on(&f, &bf16, &m, (struct shape){1, 28, 28}, 4, 1);
        for (int step = 0; step < 10; ++step) /* oneDNN fills its own tables first */
            fixture_step(&f, f.parameters, f.gradient);
        struct mallinfo2 before = mallinfo2();
        for (int step = 0; step < STEPS; ++step)
            fixture_step(&f, f.parameters, f.gradient);
        struct mallinfo2 after = mallinfo2();
        /* One block per step, of the smallest size, would be 32 × STEPS. In some steps the C
         * library moves a few freed blocks between its lists and counts them as in use: with oneDNN
         * 3.2, whose calls allocate and free five blocks each, 352 bytes for any number of steps.
         */
        assert_true(after.uordblks < before.uordblks + 24 * STEPS);
        assert_int_equal(before.hblkhd, after.hblkhd);
        fixture_close(&f);
    }
}

static void unsupported_bf16_is_a_usage_error_that_names_the_key(void **state)
{
    (void)state;
    unsetenv("GRADLAG_BF16_EMULATED");
    status s = try_to_open();
    setenv("GRADLAG_BF16_EMULATED", "1", 1);
    if (s == OK) {
        print_message("skipped: this processor has bf16\n");
        skip();
    }
    assert_int_equal(s, ERROR_USAGE);
    assert_non_null(strstr(error_message(), "precision"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_operation_is_near_fp32),
        cmocka_unit_test(operations_on_sequences_are_near_fp32),
        cmocka_unit_test(gpt_is_near_fp32),
        cmocka_unit_test(every_model_is_near_fp32),
        cmocka_unit_test(products_are_summed_in_float32),
        cmocka_unit_test(bf16_results_are_rounded_once),
        cmocka_unit_test(activations_stay_in_bf16_between_layers),
        cmocka_unit_test(training_in_bf16_converges_as_in_fp32),
        cmocka_unit_test(the_same_step_gives_the_same_bits),
        cmocka_unit_test(steps_allocate_no_memory),
        cmocka_unit_test(unsupported_bf16_is_a_usage_error_that_names_the_key),
    };
    setenv("GRADLAG_BF16_EMULATED", "1", 1);
    return cmocka_run_group_tests_name("bf16", tests, NULL, NULL);
}
