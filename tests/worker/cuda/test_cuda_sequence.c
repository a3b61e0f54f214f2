/* test_cuda_sequence.c — the CUDA backend's operations on sequences against the CPU's. */
#include <malloc.h>
#include <math.h>
#include <string.h>

#include "tests/worker/cuda/cuda_against_cpu.h"

enum { MANY_CLASSES = 70 /* several threads compute a row of the loss */ };

static struct model gpt(const char *layers, const char *width, const char *heads, const char *tied)
{
    struct model m = {.kind = (const struct model_kind *)registry_find(&model_registry, "gpt"),
                      .classes = CUDA_TEST_CLASSES};
    const char *const values[][2] = {{"model.layers", layers},
                                     {"model.width", width},
                                     {"model.heads", heads},
                                     {"model.tied", tied}};
    options *o;
    assert_int_equal(options_open(&o), OK);
    assert_int_equal(options_declare(o, m.kind->about.options), OK);
    for (size_t i = 0; i < COUNT_OF(values); ++i)
        assert_int_equal(options_set(o, values[i][0], values[i][1], "test"), OK);
    assert_int_equal(m.kind->configure(&m, o), OK);
    options_close(&o);
    return m;
}

static struct model of_sequence(struct model_kind *kind, const struct op_graph *g)
{
    struct model m = cuda_of_graph(kind, g->forward);
    kind->reads_tokens = g->tokens;
    return m;
}

/* ---- equal to the CPU's -------------------------------------------------------------------------
 */

static void every_operation_equals_that_of_the_cpu(void **state)
{
    (void)state;
    static const uint32_t batches[] = {1, 5, 33};
    for (size_t i = 0; i < sequence_graph_count; ++i) {
        const struct op_graph *g = &sequence_graphs[i];
        for (size_t k = 0; k < COUNT_OF(batches); ++k) {
            struct model_kind kind;
            struct model m = of_sequence(&kind, g);
            cuda_equals_cpu(g->name, &m, g->images, batches[k], 1e-5);
        }
    }
}

static void gpt_of_odd_sizes_equals_that_of_the_cpu(void **state)
{
    (void)state;
    static const struct {
        const char *layers, *width, *heads, *tied;
        uint32_t positions, batch, classes;
    } sizes[] = {{"1", "8", "1", "no", 1, 1, 10},   {"2", "24", "3", "no", 7, 5, 10},
                 {"1", "24", "3", "yes", 7, 1, 70}, {"1", "12", "12", "no", 65, 2, 130},
                 {"1", "64", "1", "no", 33, 1, 10}, {"1", "65", "1", "no", 17, 1, 10},
                 {"1", "128", "1", "no", 35, 1, 10}};
    for (size_t i = 0; i < COUNT_OF(sizes); ++i) {
        struct model m = gpt(sizes[i].layers, sizes[i].width, sizes[i].heads, sizes[i].tied);
        m.classes = sizes[i].classes;
        cuda_equals_cpu(sizes[i].width, &m, (struct shape){1, sizes[i].positions, 1},
                        sizes[i].batch, 1e-5);
    }
}

/* 300 positions × 5 samples: several chunks of layer norm's sums, with a remainder. */
static void long_sequences_equal_those_of_the_cpu(void **state)
{
    (void)state;
    struct model m = gpt("1", "6", "1", "no");
    cuda_equals_cpu("a long sequence", &m, (struct shape){1, 300, 1}, 5, 1e-5);
}

static void every_operation_is_near_in_tf32_and_bf16(void **state)
{
    (void)state;
    for (enum precision p = PRECISION_TF32; p <= PRECISION_BF16; ++p) {
        const double bound = p == PRECISION_TF32 ? 1e-3 : 1e-2;
        struct model m = gpt("2", "24", "3", "no");
        for (size_t i = 0; i < sequence_graph_count; ++i) {
            struct model_kind kind;
            struct model of = of_sequence(&kind, &sequence_graphs[i]);
            cuda_is_near_cpu(sequence_graphs[i].name, &of, sequence_graphs[i].images, 64, p, bound);
        }
        cuda_is_near_cpu("gpt", &m, (struct shape){1, 7, 1}, 32, p, bound);
        m = gpt("1", "64", "4", "yes");
        cuda_is_near_cpu("gpt, tied", &m, (struct shape){1, 33, 1}, 5, p, bound);
    }
}

/* ---- what only this backend does ----------------------------------------------------------------
 */

/* The mask of a ReLU has the rows of its layer. Each product before these layers has other rows. */
static tensor *with_masks_of_other_rows(tape *t, tensor *x, const struct model *m)
{
    x = relu(t, linear_per_position(t, x, "each1", 16, 0));
    x = relu(t, linear_per_position(t, x, "each2", 9, 0));
    x = relu(t, linear(t, x, "fc1", 40));
    x = relu(t, linear_per_position(t, x, "each3", 3, 0));
    return linear(t, x, "fc2", m->classes);
}

static void masks_of_other_rows_are_not_applied(void **state)
{
    (void)state;
    struct model_kind kind;
    struct model m = cuda_of_graph(&kind, with_masks_of_other_rows);
    cuda_equals_cpu("masks", &m, (struct shape){7, 1, 12}, 5, 1e-5);
}

/* A convolution writes LANES. It mixes positions and keeps features. */
static tensor *with_images_as_sequences(tape *t, tensor *x, const struct model *m)
{
    x = embedding(t, x, "tokens", m->classes, m->classes, 0.5f);
    tensor *a = layer_norm(t, conv2d(t, x, "conv1", 5, 1, 1, 0), "ln");
    tensor *b = position_embedding(t, conv2d(t, x, "conv2", 5, 1, 1, 0), "places", 0.5f);
    tensor *c =
        linear_per_position(t, conv2d(t, x, "conv3", 5, 1, 1, 0), "each", 3 * m->classes, 0.3f);
    c = causal_attention(t, conv2d(t, c, "conv4", 5, 1, 1, 0), 2);
    x = add(t, add(t, a, b), c);
    return conv2d(t, hyperbolic_tangent(t, x), "conv5", 5, 1, 1, 0);
}

/* The CPU's operations on sequences accept ROWS only, so finite differences are the reference. */
static void sequences_may_be_in_any_layout(void **state)
{
    (void)state;
    static const uint32_t classes[] = {6, MANY_CLASSES};
    for (size_t i = 0; i < COUNT_OF(classes); ++i) {
        struct model_kind kind;
        struct model m = cuda_of_graph(&kind, with_images_as_sequences);
        struct fixture f;
        kind.reads_tokens = true;
        m.classes = classes[i];
        cuda_open_on(&f, "cuda", &cuda_fp32, &m, (struct shape){1, 5, 1}, 3);
#if defined(GRADLAG_SANITIZE) /* the reference takes many steps */
        fixture_step(&f, f.parameters, f.gradient);
#else
        assert_gradient_is_right(&f, 2e-3, 2e-2);
#endif
        fixture_close(&f);
    }
}

/* A step whose loss has smoothed labels and counts `valid` samples. */
static double smoothed_step(struct fixture *f, uint32_t valid, uint32_t *correct)
{
    struct op_loss loss;
    tape_smooth_labels(f->tape, 0.1);
    memcpy(tape_images(f->tape), f->pixels, f->batch * shape_count(f->images) * sizeof(float));
    memcpy(tape_labels(f->tape), f->labels, (size_t)f->batch * f->targets * sizeof(uint32_t));
    tensor *x = tape_begin(f->tape, f->parameters, f->gradient);
    tensor *logits = f->model.kind->forward(f->tape, x, &f->model);
    assert_ok(tape_finish(f->tape, softmax_cross_entropy(f->tape, logits), valid, &loss));
    *correct = loss.correct;
    return loss.sum;
}

static void losses_count_the_rows_of_valid_samples(void **state)
{
    (void)state;
    static const uint32_t classes[] = {CUDA_TEST_CLASSES, MANY_CLASSES};
    for (size_t i = 0; i < COUNT_OF(classes); ++i) {
        for (uint32_t valid = 1; valid <= 5; valid += 2) {
            struct model m = gpt("1", "8", "1", "no");
            struct fixture cpu, cuda;
            uint32_t right, wanted_right;
            m.classes = classes[i];
            cuda_open_on(&cpu, "cpu", &cuda_fp32, &m, (struct shape){1, 7, 1}, 5);
            cuda_open_on(&cuda, "cuda", &cuda_fp32, &m, (struct shape){1, 7, 1}, 5);
            const double wanted = smoothed_step(&cpu, valid, &wanted_right);
            const double loss = smoothed_step(&cuda, valid, &right);
            assert_true(fabs(loss - wanted) < 1e-5 * wanted);
            assert_int_equal(right, wanted_right);
            assert_true(gradient_distance(cuda.gradient, cpu.gradient, cpu.count) < 1e-5);
            fixture_close(&cpu);
            fixture_close(&cuda);
        }
    }
}

static void the_first_of_equal_logits_is_the_answer(void **state)
{
    (void)state;
    static const uint32_t classes[] = {CUDA_TEST_CLASSES, MANY_CLASSES};
    for (size_t i = 0; i < COUNT_OF(classes); ++i) {
        struct model m = gpt("1", "8", "1", "no");
        struct fixture f;
        uint32_t right, first = 0;
        m.classes = classes[i];
        cuda_open_on(&f, "cuda", &cuda_fp32, &m, (struct shape){1, 7, 1}, 5);
        memset(f.parameters, 0, f.count * sizeof(float));
        for (uint32_t k = 0; k < 5 * 7; ++k) {
            f.labels[k] = k % 3;
            first += f.labels[k] == 0;
        }
        smoothed_step(&f, 5, &right);
        assert_int_equal(right, first);
        fixture_close(&f);
    }
}

/* No kernel can report the token. The caller refuses a loss that is not a number. */
static void a_token_outside_the_table_gives_no_number(void **state)
{
    (void)state;
    static const float wrong[] = {CUDA_TEST_CLASSES, -1, NAN};
    struct model m = gpt("1", "8", "1", "no");
    struct fixture f;
    cuda_open_on(&f, "cuda", &cuda_fp32, &m, (struct shape){1, 7, 1}, 5);
    assert_true(isfinite(fixture_step(&f, f.parameters, f.gradient)));
    for (size_t i = 0; i < COUNT_OF(wrong); ++i) {
        f.pixels[11] = wrong[i];
        assert_true(isnan(fixture_step(&f, f.parameters, f.gradient)));
    }
    fixture_close(&f);
}

static void heads_that_are_too_wide_are_refused(void **state)
{
    (void)state;
    const struct backend_kind *kind =
        (const struct backend_kind *)registry_find(&backend_registry, "cuda");
    const struct op_description d = {.kind = OP_ATTENTION,
                                     .batch = 1,
                                     .input = {2, 1, 3 * 258},
                                     .output = {2, 1, 258},
                                     .heads = 2};
    backend *b;
    backend_buffer *in[2] = {NULL}, *out = NULL;
    backend_op *op = NULL;
    assert_ok(kind->open(&b, &cuda_fp32));
    assert_ok(kind->buffer_open(b, 1, d.input, &in[0]));
    assert_error(kind->op_open(b, &d, in, &op, &out), ERROR_USAGE, "model.heads");
    assert_null(op);
    kind->buffer_close(b, in[0]);
    backend_close(&b);
}

/* Also detects a lost fusion. */
static void steps_repeat_their_bits_as_graphs_and_allocate_nothing(void **state)
{
    (void)state;
    enum { STEPS = 24, BYTES = 16 };
    struct model m = gpt("2", "24", "3", "no");
    struct fixture f, other;
    cuda_open_on(&f, "cuda", &cuda_fp32, &m, (struct shape){1, 40, 1}, 3);
    cuda_open_on(&other, "cuda", &cuda_fp32, &m, (struct shape){1, 40, 1}, 3);
    const double loss = fixture_step(&f, f.parameters, f.gradient);
    size_t host = 0;
    for (int step = 0; step < 3 + STEPS; ++step) {
        if (step == 3)
            host = mallinfo2().uordblks;
        memset(f.shifted, 0x7f, f.count * sizeof(float));
        assert_true(fixture_step(&f, f.parameters, f.shifted) == loss);
        assert_memory_equal(f.gradient, f.shifted, f.count * sizeof(float));
    }
    if (cuda_rig_on_stand_in()) /* a driver uses the same heap */
        assert_true(mallinfo2().uordblks < host + (size_t)BYTES * STEPS);
    const struct cuda_command_statistics s = cuda_statistics_of(&f);
    assert_in_range(s.direct, 1, 2);
    assert_int_equal(s.captured, 1);
    assert_int_equal(s.launched, 4 + STEPS - s.direct);
    assert_in_range(s.kernels, 1, 76);
    assert_true(fixture_step(&other, other.parameters, other.gradient) == loss);
    assert_memory_equal(f.gradient, other.gradient, f.count * sizeof(float));
    fixture_close(&f);
    fixture_close(&other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_operation_equals_that_of_the_cpu),
        cmocka_unit_test(gpt_of_odd_sizes_equals_that_of_the_cpu),
        cmocka_unit_test(long_sequences_equal_those_of_the_cpu),
        cmocka_unit_test(every_operation_is_near_in_tf32_and_bf16),
        cmocka_unit_test(masks_of_other_rows_are_not_applied),
        cmocka_unit_test(sequences_may_be_in_any_layout),
        cmocka_unit_test(losses_count_the_rows_of_valid_samples),
        cmocka_unit_test(the_first_of_equal_logits_is_the_answer),
        cmocka_unit_test(a_token_outside_the_table_gives_no_number),
        cmocka_unit_test(heads_that_are_too_wide_are_refused),
        cmocka_unit_test(steps_repeat_their_bits_as_graphs_and_allocate_nothing),
    };
    return cuda_rig_run("cuda sequences", tests, COUNT_OF(tests), NULL, NULL);
}
