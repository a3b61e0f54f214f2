/* test_muon.c — updates of whole matrices: the orthogonal factor, against plain loops and known
 * singular values; optimizer=muon against float64, and as a transaction; which slices of a model
 * are hidden matrices. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/random.h"
#include "experiments/config/config.h"
#include "worker/optimizer/newton_schulz.h"
#include "worker/optimizer/optimizer.h"
#include "worker/worker.h"

static float *zeros(size_t count)
{
    float *x = NULL;
    assert_int_equal(memory_new(&x, count, sizeof *x, "test vector"), OK);
    return x;
}

static float *vector(size_t count, uint32_t name)
{
    float *x = zeros(count);
    struct random_stream r;
    random_open(&r, RANDOM_TEST, 7, name, 0);
    for (size_t i = 0; i < count; i++)
        x[i] = (float)random_normal(&r);
    return x;
}

/* ---- the orthogonal factor ----------------------------------------------------------------- */

/* out[m × n] ← x[m × k] · y[k × n] by plain loops. */
static void multiply(size_t m, size_t n, size_t k, const float *x, const float *y, float *out)
{
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < n; j++) {
            float sum = 0;
            for (size_t e = 0; e < k; e++)
                sum += x[i * k + e] * y[e * n + j];
            out[i * n + j] = sum;
        }
}

static void transpose(size_t rows, size_t columns, const float *x, float *out)
{
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < columns; j++)
            out[j * rows + i] = x[i * columns + j];
}

/* The iteration of newton_schulz.h on X with at most as many rows as columns. */
static void iterate(size_t rows, size_t columns, float *x)
{
    const size_t square = rows * rows;
    float *turned = zeros(rows * columns), *a = zeros(square), *b = zeros(square);
    float *moved = zeros(rows * columns);
    for (int step = 0; step < 5; step++) {
        transpose(rows, columns, x, turned);
        multiply(rows, rows, columns, x, turned, a);
        multiply(rows, rows, rows, a, a, b);
        for (size_t i = 0; i < square; i++)
            b[i] = -4.7750f * a[i] + 2.0315f * b[i];
        multiply(rows, columns, rows, b, x, moved);
        for (size_t i = 0; i < rows * columns; i++)
            x[i] = 3.4445f * x[i] + moved[i];
    }
    float *all[] = {turned, a, b, moved};
    for (size_t i = 0; i < COUNT_OF(all); i++)
        memory_free(all[i]);
}

static void plain_newton_schulz(size_t rows, size_t columns, float *u)
{
    const size_t count = rows * columns;
    float *x = zeros(count);
    const float factor = (float)(1 / (sqrt(vector_sum_of_squares(count, u)) + 1e-7));
    for (size_t i = 0; i < count; i++)
        u[i] = factor * u[i];
    if (rows <= columns) {
        iterate(rows, columns, u);
    } else {
        transpose(rows, columns, u, x);
        iterate(columns, rows, x);
        transpose(columns, rows, x, u);
    }
    memory_free(x);
}

static void orthogonalise(uint32_t rows, uint32_t columns, float *u, helpers *threads)
{
    float *scratch = zeros(newton_schulz_scratch(rows, columns));
    newton_schulz(rows, columns, u, scratch, threads);
    memory_free(scratch);
}

static void products_equal_plain_loops_bit_for_bit_on_1_2_and_4_threads(void **state)
{
    (void)state;
    static const uint32_t shapes[][2] = {{1, 1},    {1, 40},    {40, 1},   {16, 16},
                                         {17, 15},  {33, 70},   {70, 33},  {64, 256},
                                         {256, 64}, {129, 200}, {250, 130}};
    helpers *threads[2] = {NULL, NULL};
    assert_int_equal(helpers_open(&threads[0], 1), OK);
    assert_int_equal(helpers_open(&threads[1], 3), OK);
    for (size_t s = 0; s < COUNT_OF(shapes); s++) {
        const uint32_t rows = shapes[s][0], columns = shapes[s][1];
        const size_t count = (size_t)rows * columns;
        float *expected = vector(count, 1);
        plain_newton_schulz(rows, columns, expected);
        for (int t = -1; t < 2; t++) {
            float *u = vector(count, 1);
            orthogonalise(rows, columns, u, t < 0 ? NULL : threads[t]);
            assert_memory_equal(u, expected, count * sizeof *u);
            memory_free(u);
        }
        memory_free(expected);
    }
    helpers_close(&threads[0]);
    helpers_close(&threads[1]);
}

/* ±1: entry of a Hadamard matrix. H / √n is orthogonal and symmetric if n is a power of 2. */
static double hadamard(size_t i, size_t j)
{
    return __builtin_parityll(i & j) ? -1 : 1;
}

/* U = P diag(s) Qᵀ with known P and Q. out[a][b] ← (Pᵀ O Q)[a][b], for b < columns, a < columns. */
static void in_known_vectors(size_t rows, size_t columns, const float *o, double *out)
{
    const double unit = sqrt((double)(rows * columns));
    for (size_t a = 0; a < columns; a++)
        for (size_t b = 0; b < columns; b++) {
            double sum = 0;
            for (size_t i = 0; i < rows; i++) {
                double along = 0;
                for (size_t j = 0; j < columns; j++)
                    along += (double)o[i * columns + j] * hadamard(j, b);
                sum += hadamard(i, a) * along;
            }
            out[a * columns + b] = sum / unit;
        }
}

/* The singular vectors stay; the singular values go through the polynomial, into [0.68, 1.21]. */
static void the_factor_is_orthogonal_in_the_range_of_the_coefficients(void **state)
{
    (void)state;
    enum { ROWS = 128, COLUMNS = 32 };
    double s[COLUMNS], norm = 0, seen[COLUMNS * COLUMNS];
    float *u = zeros((size_t)ROWS * COLUMNS);
    for (size_t k = 0; k < COLUMNS; k++) {
        s[k] = 3 * exp(-5.0 * (double)k / COLUMNS);
        norm += s[k] * s[k];
    }
    for (size_t i = 0; i < ROWS; i++)
        for (size_t j = 0; j < COLUMNS; j++) {
            double sum = 0;
            for (size_t k = 0; k < COLUMNS; k++)
                sum += hadamard(i, k) * s[k] * hadamard(j, k);
            u[i * COLUMNS + j] = (float)(sum / sqrt((double)(ROWS * COLUMNS)));
        }
    orthogonalise(ROWS, COLUMNS, u, NULL);
    in_known_vectors(ROWS, COLUMNS, u, seen);
    for (size_t a = 0; a < COLUMNS; a++)
        for (size_t b = 0; b < COLUMNS; b++) {
            double x = a == b ? s[a] / sqrt(norm) : 0;
            for (int step = 0; step < 5; step++)
                x = 3.4445 * x - 4.7750 * x * x * x + 2.0315 * x * x * x * x * x;
            assert_true(fabs(seen[a * COLUMNS + b] - x) < 1e-4);
            if (a == b && s[a] / sqrt(norm) >= 0.002)
                assert_true(seen[a * COLUMNS + a] > 0.68 && seen[a * COLUMNS + a] < 1.21);
        }
    memory_free(u);
}

static void a_matrix_of_zeros_stays(void **state)
{
    (void)state;
    float u[12] = {0};
    orthogonalise(3, 4, u, NULL);
    for (size_t i = 0; i < COUNT_OF(u); i++)
        assert_true(u[i] == 0);
}

/* ---- the optimizer ------------------------------------------------------------------------- */

static optimizer *opened(const char *decay, const char *more, const struct optimizer_layer *at,
                         size_t layers)
{
    const char *const set[] = {"optimizer=muon", decay, more, NULL};
    options *o = NULL;
    optimizer *p = NULL;
    size_t count = 0;
    for (size_t i = 0; i < layers; i++)
        count += at[i].count;
    assert_int_equal(config_compose_texts(&o, set, NULL, "test"), OK);
    assert_int_equal(optimizer_open(&p, o, count), OK);
    assert_int_equal(optimizer_set_layers(p, &(struct optimizer_layers){at, layers}), OK);
    options_close(&o);
    return p;
}

/* The expected numbers are printed by golden_muon.py. */
static float drawn(size_t i, size_t step)
{
    return (float)(((double)((i * i * 5 + i * 7 + step * 11 + 3) % 61) - 30) / 32);
}

static void muon_agrees_with_float64(void **state)
{
    (void)state;
    static const struct optimizer_layer layers[] = {{.count = 15, .rows = 3, .columns = 5},
                                                    {.count = 15, .rows = 5, .columns = 3},
                                                    {.count = 4, .excluded = true}};
    static const double rates[] = {0.1, 0.05, 0.2};
    static const double expected[34] = {
        -0.259890473, 0.0537055888, 0.624989338,  -0.129535504,  -0.735656192, 0.856495954,
        0.880937824,  -0.626564948, 0.0155942084, 0.930417446,   0.260239103,  0.0486998753,
        0.0208397737, 0.259948222,  0.930566847,  0.00579835006, -0.667999442, 0.866368838,
        0.846774413,  -0.756122028, -0.104899147, 0.634297296,   0.0461185221, -0.258179283,
        -0.31247779,  -0.107861075, 0.364739529,  -0.594362988,  0.49538651,   0.180082967,
        0.248453539,  0.290122067,  0.659242063,  0.0580384957};
    optimizer *p = opened("weight_decay=0.05", "clip_norm=0", layers, COUNT_OF(layers));
    float theta[34], gradient[34];
    for (size_t i = 0; i < COUNT_OF(theta); i++)
        theta[i] = drawn(i, 7);
    for (size_t step = 0; step < COUNT_OF(rates); step++) {
        struct optimizer_pass pass;
        for (size_t i = 0; i < COUNT_OF(gradient); i++)
            gradient[i] = drawn(i, step);
        optimizer_apply(p, theta, gradient, 1, rates[step], NULL, theta, &pass);
        assert_true(pass.finite);
    }
    for (size_t i = 0; i < COUNT_OF(theta); i++)
        if (!(fabs((double)theta[i] - expected[i]) < 2e-6))
            fail_msg("element %zu: %.9g instead of %.9g", i, (double)theta[i], expected[i]);
    optimizer_close(&p);
}

/* Two hidden matrices, one of them large enough for several threads and parts; a vector and an
 * embedding. The sanitizers make its products 60 times slower. */
#if defined(GRADLAG_SANITIZE)
enum { LARGE_ROWS = 130, LARGE_COLUMNS = 110 };
#else
enum { LARGE_ROWS = 400, LARGE_COLUMNS = 330 };
#endif
enum { LARGE = LARGE_ROWS * LARGE_COLUMNS, SOME = 48 * 64 + 37 + 1000 + LARGE };
static const struct optimizer_layer some_layers[] = {
    {.count = 48 * 64, .rows = 48, .columns = 64},
    {.count = 37, .excluded = true},
    {.count = 1000},
    {.count = LARGE, .rows = LARGE_ROWS, .columns = LARGE_COLUMNS}};

static optimizer *open_some(void)
{
    return opened("weight_decay=0.01", "clip_norm=100", some_layers, COUNT_OF(some_layers));
}

static void threads_and_buffers_do_not_change_a_bit(void **state)
{
    (void)state;
    optimizer *p[4];
    helpers *threads[2];
    float *theta[4], *other = zeros(SOME), *read_at = vector(SOME, 3);
    assert_int_equal(helpers_open(&threads[0], 1), OK);
    assert_int_equal(helpers_open(&threads[1], 3), OK);
    for (int i = 0; i < 4; i++) {
        p[i] = open_some();
        theta[i] = vector(SOME, 1);
        optimizer_share(p[i], i == 1 || i == 2 ? threads[i - 1] : NULL);
    }
    for (uint32_t step = 0; step < 3; step++) {
        float *gradient = vector(SOME, 10 + step);
        struct optimizer_pass pass[4];
        for (int i = 0; i < 3; i++) {
            optimizer_apply(p[i], theta[i], gradient, 0.5, 0.01, read_at, other, &pass[i]);
            memcpy(theta[i], other, SOME * sizeof *other);
        }
        optimizer_apply(p[3], theta[3], gradient, 0.5, 0.01, read_at, theta[3], &pass[3]);
        for (int i = 1; i < 4; i++) {
            assert_memory_equal(theta[i], theta[0], SOME * sizeof *other);
            assert_memory_equal(optimizer_state(p[i]), optimizer_state(p[0]),
                                optimizer_state_count(p[0]) * sizeof *other);
            assert_true(pass[i].finite && pass[i].gap == pass[0].gap && pass[0].gap > 0);
            assert_true(pass[i].gradient_norm == pass[0].gradient_norm);
        }
        memory_free(gradient);
    }
    for (int i = 0; i < 4; i++) {
        memory_free(theta[i]);
        optimizer_close(&p[i]);
    }
    memory_free(other);
    memory_free(read_at);
    helpers_close(&threads[0]);
    helpers_close(&threads[1]);
}

/* A gradient that is rejected, or an update that is taken back, changes nothing; a restored state
 * continues. */
static void an_update_is_a_transaction(void **state)
{
    (void)state;
    static const size_t places[] = {5, 48 * 64 + 3, SOME - 1};
    optimizer *p = open_some(), *q = open_some();
    float *theta = vector(SOME, 1), *out = zeros(SOME), *again = zeros(SOME);
    float *kept = vector(SOME, 1), *gradient = vector(SOME, 2), *before = zeros(2 * (size_t)SOME);
    struct optimizer_pass pass;
    optimizer_apply(p, theta, gradient, 1, 0.1, NULL, out, &pass);
    memcpy(before, optimizer_state(p), 2 * (size_t)SOME * sizeof *before);
    for (size_t i = 0; i < COUNT_OF(places); i++) {
        const float good = gradient[places[i]];
        gradient[places[i]] = i == 1 ? 2e19f : NAN;
        optimizer_apply(p, theta, gradient, 1, 0.1, NULL, again, &pass);
        assert_false(pass.finite);
        optimizer_apply(p, theta, gradient, 1, 0.1, NULL, theta, &pass);
        assert_false(pass.finite);
        gradient[places[i]] = good;
    }
    assert_memory_equal(theta, kept, SOME * sizeof *theta);
    optimizer_apply(p, out, gradient, 1, 0.1, NULL, again, &pass);
    optimizer_take_back(p);
    assert_memory_equal(optimizer_state(p), before, 2 * (size_t)SOME * sizeof *before);
    optimizer_set_state(q, before);
    optimizer_set_updates(q, 1);
    optimizer_apply(q, out, gradient, 1, 0.1, NULL, theta, &pass);
    assert_memory_equal(theta, again, SOME * sizeof *theta);
    assert_memory_not_equal(theta, out, SOME * sizeof *theta);
    float *all[] = {theta, out, again, kept, gradient, before};
    for (size_t i = 0; i < COUNT_OF(all); i++)
        memory_free(all[i]);
    optimizer_close(&p);
    optimizer_close(&q);
}

/* Except for the two ε; a step has a length of about 0.01. */
static void a_factor_that_all_gradients_share_does_not_change_the_updates(void **state)
{
    (void)state;
    optimizer *p = open_some(), *q = open_some();
    float *a = vector(SOME, 1), *b = vector(SOME, 1);
    assert_true(optimizer_is_scale_free(p));
    for (uint32_t step = 0; step < 3; step++) {
        float *gradient = vector(SOME, 10 + step);
        struct optimizer_pass pass;
        optimizer_apply(p, a, gradient, 0.125, 0.01, NULL, a, &pass);
        optimizer_apply(q, b, gradient, 0.015625, 0.01, NULL, b, &pass);
        memory_free(gradient);
    }
    for (size_t i = 0; i < SOME; i++)
        assert_true(fabsf(a[i] - b[i]) <= 1e-4f);
    memory_free(a);
    memory_free(b);
    optimizer_close(&p);
    optimizer_close(&q);
}

/* ---- which slices are hidden matrices ------------------------------------------------------ */

static void convolutions_and_linear_layers_below_the_logits_are_hidden_matrices(void **state)
{
    (void)state;
    static const struct {
        const char *model, *slice;
        uint32_t rows, columns;
    } known[] = {{"model=lenet", "conv1.weight", 8, 25},
                 {"model=lenet", "conv2.weight", 16, 200},
                 {"model=lenet", "conv1.bias", 0, 0},
                 {"model=mlp", "fc1.weight", 256, 784},
                 {"model=mlp", "fc2.weight", 128, 256},
                 {"model=mlp", "fc3.weight", 0, 0},
                 {"model=softmax", "fc.weight", 0, 0},
                 {"model=gpt", "wte.weight", 0, 0},
                 {"model=gpt", "wpe.weight", 0, 0},
                 {"model=gpt", "h0.ln1.weight", 0, 0},
                 {"model=gpt", "h0.attn.qkv.weight", 192, 64},
                 {"model=gpt", "h1.mlp.down.weight", 64, 256},
                 {"model=gpt", "head.weight", 0, 0}};
    for (size_t k = 0; k < COUNT_OF(known); k++) {
        const bool tokens = strcmp(known[k].model, "model=gpt") == 0;
        const char *const set[] = {known[k].model, tokens ? "dataset=grammar" : "dataset=gaussian",
                                   tokens ? NULL : "dataset.size=28", NULL};
        options *o = NULL;
        worker *w = NULL;
        size_t i = 0;
        assert_int_equal(config_compose_texts(&o, set, NULL, "test"), OK);
        const struct worker_options wanted = {.settings = o, .count = 1, .parameters_only = true};
        assert_int_equal(worker_open(&w, &wanted), OK);
        while (strcmp(worker_slice(w, i)->name, known[k].slice) != 0)
            i++;
        assert_int_equal(worker_layers(w).at[i].rows, known[k].rows);
        assert_int_equal(worker_layers(w).at[i].columns, known[k].columns);
        worker_close(&w);
        options_close(&o);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_equal_plain_loops_bit_for_bit_on_1_2_and_4_threads),
        cmocka_unit_test(the_factor_is_orthogonal_in_the_range_of_the_coefficients),
        cmocka_unit_test(a_matrix_of_zeros_stays),
        cmocka_unit_test(muon_agrees_with_float64),
        cmocka_unit_test(threads_and_buffers_do_not_change_a_bit),
        cmocka_unit_test(an_update_is_a_transaction),
        cmocka_unit_test(a_factor_that_all_gradients_share_does_not_change_the_updates),
        cmocka_unit_test(convolutions_and_linear_layers_below_the_logits_are_hidden_matrices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
