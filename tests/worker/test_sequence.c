/* test_sequence.c — operations on sequences: against finite differences and their definitions. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "base/random.h"
#include "tests/worker/gradients.h"
#include "tests/worker/op_graphs.h"
#include "worker/cpu/backend_cpu_lanes.h"

enum { CLASSES = 11 };

static struct model of_graph(struct model_kind *kind, const struct op_graph *g)
{
    *kind = (struct model_kind){
        .about = {.name = g->name}, .forward = g->forward, .reads_tokens = g->tokens};
    return (struct model){.kind = kind, .classes = CLASSES};
}

/* ---- gradients ---- */

static void operations_match_finite_differences(void **state)
{
    (void)state;
    static const uint32_t batches[] = {1, 3, 5};
    for (size_t i = 0; i < sequence_graph_count; ++i) {
        for (size_t k = 0; k < COUNT_OF(batches); ++k) {
            struct model_kind kind;
            struct model m = of_graph(&kind, &sequence_graphs[i]);
            struct fixture f;
            fixture_open(&f, &m, sequence_graphs[i].images, batches[k], 3);
            assert_gradient_is_right(&f, 5e-3, 1e-2);
            fixture_close(&f);
        }
    }
}

/* ---- values ---- */

/* One operation, or a few, on random numbers. */
struct sequence_run {
    backend *backend;
    parameter_table *table;
    tape *tape;
    struct model model;
    struct shape input;
    uint32_t batch;
    float *parameters, *gradient;
};

static float *vector_of(size_t count)
{
    float *v;
    struct random_stream r;
    assert_int_equal(memory_new(&v, count, sizeof *v, "values"), OK);
    random_open(&r, RANDOM_TEST, 1, 2, 3);
    for (size_t i = 0; i < count; ++i)
        v[i] = (float)random_normal(&r);
    return v;
}

static void run_open(struct sequence_run *r, forward_function *forward, const struct model *m,
                     struct shape input, uint32_t batch)
{
    const struct backend_options o = {.threads = 1, .place.device = -1};
    const struct backend_kind *kind =
        (const struct backend_kind *)registry_find(&backend_registry, "cpu");
    tape *discovery;
    *r = (struct sequence_run){.model = *m, .input = input, .batch = batch};
    assert_int_equal(kind->open(&r->backend, &o), OK);
    assert_int_equal(parameter_table_open(&r->table), OK);
    assert_int_equal(tape_open(&discovery, NULL, r->table, TAPE_DISCOVER, input, 1), OK);
    forward(discovery, tape_begin(discovery, NULL, NULL), m);
    assert_int_equal(tape_finish(discovery, NULL, 0, NULL), OK);
    tape_close(&discovery);
    assert_int_equal(tape_open(&r->tape, r->backend, r->table, TAPE_TRAIN, input, batch), OK);
    r->parameters = vector_of(parameter_table_count(r->table) + 1);
    r->gradient = vector_of(parameter_table_count(r->table) + 1);
}

static void run_close(struct sequence_run *r)
{
    tape_close(&r->tape);
    parameter_table_close(&r->table);
    backend_close(&r->backend);
    memory_free(r->parameters);
    memory_free(r->gradient);
}

static const float *run_on(struct sequence_run *r, forward_function *forward, const float *input)
{
    memcpy(tape_images(r->tape), input, r->batch * shape_count(r->input) * sizeof(float));
    tensor *x = tape_begin(r->tape, r->parameters, r->gradient);
    return tape_value(r->tape, forward(r->tape, x, &r->model));
}

static tensor *only_attention(tape *t, tensor *x, const struct model *m)
{
    return causal_attention(t, x, (uint32_t)m->settings[0]);
}

/* Feature `feature` of the result at position `i` of one sample x[positions][3 · width]. */
static double attention_at(const float *x, size_t width, size_t heads, size_t i, size_t feature)
{
    const size_t size = width / heads, first = feature / size * size;
    double total = 0, sum = 0;
    for (size_t j = 0; j <= i; ++j) {
        double score = 0;
        for (size_t k = first; k < first + size; ++k)
            score += (double)x[i * 3 * width + k] * (double)x[(j * 3 + 1) * width + k];
        const double p = exp(score / sqrt((double)size));
        total += p;
        sum += p * (double)x[(j * 3 + 2) * width + feature];
    }
    return sum / total;
}

static void check_attention(uint32_t positions, uint32_t width, uint32_t heads, uint32_t batch)
{
    const struct model m = {.settings = {heads}};
    const size_t row = (size_t)positions * width;
    struct sequence_run r;
    run_open(&r, only_attention, &m, (struct shape){positions, 1, 3 * width}, batch);
    float *x = vector_of(batch * 3 * row);
    const float *y = run_on(&r, only_attention, x);
    for (size_t at = 0; at < batch * row; ++at) {
        const float *sample = x + at / row * 3 * row;
        const double wanted = attention_at(sample, width, heads, at % row / width, at % width);
        if (!(fabs((double)y[at] - wanted) < 2e-6))
            fail_msg("%u positions, width %u, %u heads: element %zu is %.9g instead of %.9g",
                     positions, width, heads, at, (double)y[at], wanted);
    }
    memory_free(x);
    run_close(&r);
}

static void attention_has_the_values_of_its_definition(void **state)
{
    (void)state;
    static const uint32_t sizes[][4] = {{1, 8, 1, 1},   {1, 1, 1, 3},   {7, 8, 1, 1},
                                        {7, 8, 8, 2},   {16, 12, 3, 2}, {17, 12, 2, 1},
                                        {64, 64, 4, 2}, {70, 40, 2, 1}, {130, 66, 2, 1}};
    for (size_t i = 0; i < COUNT_OF(sizes); ++i)
        check_attention(sizes[i][0], sizes[i][1], sizes[i][2], sizes[i][3]);
}

static tensor *only_layer_norm(tape *t, tensor *x, const struct model *m)
{
    (void)m;
    return layer_norm(t, x, "ln");
}

static void layer_norm_has_the_values_of_its_definition(void **state)
{
    (void)state;
    static const uint32_t widths[] = {1, 2, 8, 15, 16, 17, 64, 100};
    const struct model m = {0};
    for (size_t k = 0; k < COUNT_OF(widths); ++k) {
        const size_t width = widths[k], rows = 2 * 3;
        struct sequence_run r;
        run_open(&r, only_layer_norm, &m, (struct shape){3, 1, widths[k]}, 2);
        float *x = vector_of(rows * width);
        const float *y = run_on(&r, only_layer_norm, x);
        for (size_t row = 0; row < rows; ++row) {
            double mean = 0, square = 0;
            for (size_t i = 0; i < width; ++i)
                mean += (double)x[row * width + i] / (double)width;
            for (size_t i = 0; i < width; ++i)
                square += pow((double)x[row * width + i] - mean, 2) / (double)width;
            for (size_t i = 0; i < width; ++i) {
                const double normal = ((double)x[row * width + i] - mean) / sqrt(square + 1e-5);
                const double wanted =
                    normal * (double)r.parameters[i] + (double)r.parameters[width + i];
                assert_true(fabs((double)y[row * width + i] - wanted) < 5e-6);
            }
        }
        memory_free(x);
        run_close(&r);
    }
}

static tensor *both_embeddings(tape *t, tensor *x, const struct model *m)
{
    x = embedding(t, x, "tokens", m->classes, 5, 0);
    return position_embedding(t, x, "places", 0);
}

static void embeddings_are_rows_of_their_tables(void **state)
{
    (void)state;
    static const float tokens[] = {0, 10, 3, 3, 7, 1};
    const struct model m = {.classes = CLASSES};
    struct sequence_run r;
    run_open(&r, both_embeddings, &m, (struct shape){1, 3, 1}, 2);
    const float *y = run_on(&r, both_embeddings, tokens);
    const float *places = r.parameters + CLASSES * 5;
    for (size_t i = 0; i < 6 * 5; ++i) {
        const size_t row = (size_t)tokens[i / 5];
        assert_true(y[i] == r.parameters[row * 5 + i % 5] + places[i % 15]);
    }
    run_close(&r);
}

static void a_token_outside_the_table_is_an_error(void **state)
{
    (void)state;
    static const float wrong[] = {CLASSES, -1, NAN, 1e30f};
    const struct model m = {.classes = CLASSES};
    struct sequence_run r;
    run_open(&r, both_embeddings, &m, (struct shape){1, 3, 1}, 1);
    for (size_t i = 0; i < COUNT_OF(wrong); ++i) {
        const float tokens[] = {1, 2, wrong[i]};
        run_on(&r, both_embeddings, tokens);
        assert_int_equal(tape_finish(r.tape, NULL, 0, NULL), ERROR_DATA);
    }
    const float right[] = {1, 2, CLASSES - 1};
    run_on(&r, both_embeddings, right);
    assert_int_equal(tape_finish(r.tape, NULL, 0, NULL), OK);
    run_close(&r);
}

/* eˣ for every 499th float from 0 to −87; the bound is that of the function's comment. */
static double worst_of_exponential(void)
{
    double worst = 0;
    for (uint32_t bits = 0; bits < 0x42ae0000; bits += 499) {
        const uint32_t negative = 0x80000000 | bits;
        float x;
        memcpy(&x, &negative, sizeof x);
        worst = fmax(worst, fabs((double)exponential(x) / exp((double)x) - 1));
    }
    return worst;
}

static void the_exponential_has_the_error_that_it_states(void **state)
{
    (void)state;
    static const float small[] = {-88, -1e30f, -INFINITY};
    const double worst = worst_of_exponential();
    if (!(worst < ldexp(1, -22)))
        fail_msg("the relative error is %g", worst);
    assert_true(exponential(0) == 1);
    for (size_t i = 0; i < COUNT_OF(small); ++i)
        assert_true(exponential(small[i]) >= 0 && exponential(small[i]) < ldexpf(1, -125));
    assert_true(isnan(exponential(NAN)));
}

static tensor *only_gelu(tape *t, tensor *x, const struct model *m)
{
    (void)m;
    return gelu(t, x);
}

/* The error of Φ(x) = y / x stays within the bound that backend_cpu_gelu.c states. */
static void gelu_has_the_error_that_it_states(void **state)
{
    (void)state;
    enum { COUNT = 4099 };
    const struct model m = {0};
    struct sequence_run r;
    float x[COUNT];
    for (int i = 0; i < COUNT; ++i)
        x[i] = (float)(i - COUNT / 2) / 170;
    run_open(&r, only_gelu, &m, (struct shape){1, 1, COUNT}, 1);
    const float *y = run_on(&r, only_gelu, x);
    for (int i = 0; i < COUNT; ++i) {
        const double v = (double)x[i], wanted = v * erfc(-v / sqrt(2)) / 2;
        assert_true(fabs((double)y[i] - wanted) <= ldexp(1, -22) * fabs(v));
    }
    run_close(&r);
}

/* ---- losses, threads ---- */

static tensor *identity(tape *t, tensor *x, const struct model *m)
{
    (void)t;
    (void)m;
    return x;
}

/* A sum over the labels of the first `valid` samples; the others have no share. */
static void a_loss_counts_the_tokens_of_valid_samples(void **state)
{
    (void)state;
    struct model_kind kind;
    struct model m = of_graph(&kind, &sequence_graphs[3]);
    struct fixture f;
    struct op_loss loss[2];
    double sum = 0;
    uint32_t correct = 0;
    fixture_open(&f, &m, (struct shape){1, 7, 1}, 3, 3);
    const float *y = NULL;
    for (int k = 0; k < 2; ++k) {
        memcpy(tape_images(f.tape), f.pixels, 3 * 7 * sizeof(float));
        memcpy(tape_labels(f.tape), f.labels, 3 * 7 * sizeof(uint32_t));
        tensor *x = tape_begin(f.tape, f.parameters, k == 0 ? f.gradient : f.shifted);
        tensor *logits = m.kind->forward(f.tape, x, &m);
        y = tape_value(f.tape, logits);
        tensor *judged = softmax_cross_entropy(f.tape, logits);
        assert_int_equal(tape_finish(f.tape, judged, 2, &loss[k]), OK);
        for (size_t i = 2 * 7; i < 3 * 7; ++i) { /* of the sample that does not count */
            f.pixels[i] = 0;
            f.labels[i] = 1;
        }
    }
    for (size_t row = 0; row < 2 * 7; ++row) {
        double total = 0;
        uint32_t best = 0;
        for (uint32_t k = 0; k < CLASSES; ++k) {
            total += exp((double)y[row * CLASSES + k]);
            best = y[row * CLASSES + k] > y[row * CLASSES + best] ? k : best;
        }
        sum += log(total) - (double)y[row * CLASSES + f.labels[row]];
        correct += best == f.labels[row];
    }
    assert_true(fabs(loss[0].sum - sum) < 1e-5 * sum);
    assert_int_equal(loss[0].correct, correct);
    assert_true(loss[0].sum == loss[1].sum);
    assert_memory_equal(f.gradient, f.shifted, f.count * sizeof(float));
    fixture_close(&f);
}

/* With 40 classes the softmax runs in 16 lanes; with fewer than 16 through expf. */
static void a_loss_of_many_classes_matches_finite_differences(void **state)
{
    (void)state;
    struct model_kind kind;
    struct model m = of_graph(&kind, &sequence_graphs[3]);
    struct fixture f;
    m.classes = 40;
    fixture_open(&f, &m, (struct shape){1, 7, 1}, 3, 3);
    assert_gradient_is_right(&f, 5e-3, 1e-2);
    tape_smooth_labels(f.tape, 0.1);
    assert_gradient_is_right(&f, 5e-3, 1e-2);
    fixture_close(&f);
}

static tensor *without_products(tape *t, tensor *x, const struct model *m)
{
    x = layer_norm(t, embedding(t, x, "tokens", m->classes, 3 * m->classes, 0.5f), "ln");
    return causal_attention(t, position_embedding(t, x, "places", 0.5f), 1);
}

static void threads_change_no_bit_outside_the_products(void **state)
{
    (void)state;
    const struct op_graph graph = {"test", without_products, {1, 19, 1}, true};
    struct model_kind kind;
    struct model m = of_graph(&kind, &graph);
    struct fixture f[3];
    for (uint32_t i = 0; i < 3; ++i) {
        const struct backend_options o = {.threads = i + 1};
        fixture_open_on(&f[i], &o, &m, graph.images, 5, 3);
        fixture_step(&f[i], f[i].parameters, f[i].gradient);
        assert_memory_equal(f[0].gradient, f[i].gradient, f[0].count * sizeof(float));
    }
    for (uint32_t i = 0; i < 3; ++i)
        fixture_close(&f[i]);
}

/* ---- errors ---- */

static tensor *three_heads(tape *t, tensor *x, const struct model *m)
{
    (void)m;
    return causal_attention(t, x, 3);
}

static tensor *no_heads(tape *t, tensor *x, const struct model *m)
{
    (void)m;
    return causal_attention(t, x, 0);
}

static void calls_that_do_not_fit_are_errors(void **state)
{
    (void)state;
    static const struct {
        forward_function *forward;
        struct shape input;
    } wrong[] = {{three_heads, {4, 1, 12}},
                 {no_heads, {4, 1, 12}},
                 {only_layer_norm, {4, 2, 12}},
                 {three_heads, {4, 2, 9}}};
    const struct model m = {.classes = CLASSES};
    for (size_t i = 0; i < COUNT_OF(wrong); ++i) {
        tape *t;
        parameter_table *table;
        assert_int_equal(parameter_table_open(&table), OK);
        assert_int_equal(tape_open(&t, NULL, table, TAPE_DISCOVER, wrong[i].input, 1), OK);
        wrong[i].forward(t, tape_begin(t, NULL, NULL), &m);
        assert_int_equal(tape_finish(t, NULL, 0, NULL), ERROR_USAGE);
        tape_close(&t);
        parameter_table_close(&table);
    }
}

static void a_loss_needs_as_many_rows_as_labels(void **state)
{
    (void)state;
    const struct model m = {.classes = CLASSES};
    struct op_loss loss;
    struct sequence_run r;
    run_open(&r, identity, &m, (struct shape){4, 1, CLASSES}, 2);
    for (uint32_t targets = 1; targets <= 4; ++targets) {
        assert_int_equal(tape_set_targets(r.tape, targets), OK);
        tensor *x = tape_begin(r.tape, r.parameters, r.gradient);
        tensor *judged = softmax_cross_entropy(r.tape, x);
        assert_int_equal(tape_finish(r.tape, judged, 2, &loss), targets == 4 ? OK : ERROR_USAGE);
    }
    run_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(operations_match_finite_differences),
        cmocka_unit_test(attention_has_the_values_of_its_definition),
        cmocka_unit_test(layer_norm_has_the_values_of_its_definition),
        cmocka_unit_test(embeddings_are_rows_of_their_tables),
        cmocka_unit_test(a_token_outside_the_table_is_an_error),
        cmocka_unit_test(the_exponential_has_the_error_that_it_states),
        cmocka_unit_test(gelu_has_the_error_that_it_states),
        cmocka_unit_test(a_loss_counts_the_tokens_of_valid_samples),
        cmocka_unit_test(a_loss_of_many_classes_matches_finite_differences),
        cmocka_unit_test(threads_change_no_bit_outside_the_products),
        cmocka_unit_test(calls_that_do_not_fit_are_errors),
        cmocka_unit_test(a_loss_needs_as_many_rows_as_labels),
    };
    return cmocka_run_group_tests_name("sequence", tests, NULL, NULL);
}
