/* test_models.c — every model of the registry, with several image shapes: gradients, initial
 * values, reuse. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <malloc.h>
#include <math.h>
#include <string.h>

#include "docs/examples/model_deep.c"
#include "tests/rigs/built_in_models.h"
#include "tests/rigs/documented.h"
#include "tests/worker/gradients.h"

static struct model named(const char *name)
{
    const struct about *about = registry_find(&model_registry, name);
    assert_non_null(about);
    return (struct model){.kind = (const struct model_kind *)about, .classes = 10};
}

/* A model with its options at their defaults, or `value` for its first one. */
static struct model configured(const struct model_kind *kind, const char *value)
{
    struct model m = {.kind = kind, .classes = 10};
    options *o;
    assert_int_equal(options_open(&o), OK);
    if (kind->about.options != NULL) {
        assert_int_equal(options_declare(o, kind->about.options), OK);
        if (value != NULL)
            assert_int_equal(options_set(o, kind->about.options[0].key, value, "test"), OK);
    }
    if (kind->configure != NULL)
        assert_int_equal(kind->configure(&m, o), OK);
    options_close(&o);
    return m;
}

static size_t parameters_of(const char *name, struct shape images)
{
    struct model m = configured(named(name).kind, NULL);
    parameter_table *table;
    assert_int_equal(parameter_table_open(&table), OK);
    assert_int_equal(model_discover(&m, images, table), OK);
    size_t count = parameter_table_count(table);
    parameter_table_close(&table);
    return count;
}

static const struct shape fashion = {1, 28, 28}, cifar = {3, 32, 32}, odd = {2, 21, 17};

static void models_have_their_published_sizes(void **state)
{
    (void)state;
    assert_int_equal(parameters_of("softmax", fashion), 7850);
    assert_int_equal(parameters_of("mlp", fashion), 235146);
    assert_int_equal(parameters_of("lenet", fashion), 37610);
    assert_int_equal(parameters_of("cnn", fashion), 1663370);
    assert_int_equal(parameters_of("resnet8", cifar), 78042);
    /* 269722 of He et al., plus two 1×1 convolutions with batch norm as shortcuts. */
    assert_int_equal(parameters_of("resnet20", cifar), 269722 + (512 + 64) + (2048 + 128));
}

/* Options at their defaults, but a narrow width: a wide product only takes longer. */
static struct model of_registry(size_t i)
{
    const struct model_kind *kind = (const struct model_kind *)model_registry.entries[i];
    return configured(kind, kind == named("wide").kind ? "96" : NULL);
}

static void check_differences(const struct model *m)
{
    const struct shape shapes[] = {odd, fashion, cifar};
    /* resnet20 has the operations of resnet8. */
    const size_t count = strcmp(m->kind->about.name, "resnet20") == 0 ? 1 : COUNT_OF(shapes);
    for (size_t k = 0; k < count; ++k) {
        struct fixture f;
        fixture_open(&f, m, shapes[k], 4, 5);
        /* ReLUs and maxima have many kinks: small steps and a wide tolerance. */
        assert_gradient_is_right(&f, 1e-3, 6e-2);
        fixture_close(&f);
    }
}

static void every_model_matches_finite_differences(void **state)
{
    (void)state;
    for (size_t i = 0; i < built_in_models(); ++i) {
        struct model m = of_registry(i);
        check_differences(&m);
    }
}

static void lenet_with_tanh_matches_finite_differences(void **state)
{
    (void)state;
    struct model m = configured(named("lenet").kind, "tanh");
    uint32_t batches[] = {1, 16, 21};
    for (size_t i = 0; i < COUNT_OF(batches); ++i) {
        struct fixture f;
        fixture_open(&f, &m, fashion, batches[i], 6);
        assert_gradient_is_right(&f, 1e-3, 4e-2);
        fixture_close(&f);
        fixture_open(&f, &m, odd, batches[i], 6);
        assert_gradient_is_right(&f, 1e-3, 4e-2);
        fixture_close(&f);
    }
}

/* A sample's share of the gradient must not depend on the other samples of the batch. */
static void check_copies(const struct model *m, struct shape images, uint32_t copies)
{
    struct fixture one, many;
    fixture_open(&one, m, images, 1, 7);
    fixture_open(&many, m, images, copies, 7);
    size_t size = shape_count(images);
    for (size_t n = 0; n < copies; ++n) {
        memcpy(many.pixels + n * size, one.pixels, size * sizeof(float));
        many.labels[n] = one.labels[0];
    }
    double a = fixture_step(&one, one.parameters, one.gradient);
    double b = fixture_step(&many, one.parameters, many.gradient);
    assert_true(fabs(a - b) < 1e-4 * fabs(a));
    const struct gradient_reference of_one = gradient_of_fixture(&one);
    assert_true(gradient_distance_beside_kinks(&of_one, many.gradient, 1e-4) < 1e-4);
    fixture_close(&one);
    fixture_close(&many);
}

/* True: a sample's result depends on the other samples of the batch. */
static bool has_batch_norm(const struct model *m)
{
    parameter_table *table;
    bool has = false;
    assert_int_equal(parameter_table_open(&table), OK);
    assert_int_equal(model_discover(m, fashion, table), OK);
    for (size_t i = 0; i < parameter_table_layers(table); ++i)
        has |= parameter_table_layer(table, i)->kind == OP_BATCH_NORM;
    parameter_table_close(&table);
    return has;
}

static void a_batch_of_copies_has_the_gradient_of_one(void **state)
{
    (void)state;
    static const struct shape single_place = {2, 16, 17}; /* 1×1 after lenet's last pool */
    for (size_t i = 0; i < built_in_models(); ++i) {
        struct model m = of_registry(i);
        if (!has_batch_norm(&m)) {
            check_copies(&m, fashion, 33);
            check_copies(&m, single_place, 32);
        }
    }
}

static void initial_values_have_the_deviation_of_their_layer(void **state)
{
    (void)state;
    struct model m = configured(named("cnn").kind, NULL);
    struct fixture f;
    fixture_open(&f, &m, fashion, 1, 1);
    parameter_table_initialise(f.table, 1, f.parameters);
    for (size_t k = 0; k < parameter_table_slices(f.table); ++k) {
        const struct parameter_slice *s = parameter_table_slice(f.table, k);
        double sum = 0, square = 0;
        for (size_t i = 0; i < s->count; ++i) {
            double v = (double)f.parameters[s->offset + i];
            sum += v;
            square += v * v;
        }
        if (s->rank == 1) {
            assert_true(square == 0);
            continue;
        }
        double fan_in = (double)s->count / s->shape[0];
        double wanted = (strcmp(s->name, "fc2.weight") == 0 ? 1 : 2) / fan_in;
        double variance = square / (double)s->count;
        assert_true(fabs(variance / wanted - 1) < 6 / sqrt((double)s->count));
        assert_true(fabs(sum / (double)s->count) < 5 * sqrt(wanted / (double)s->count));
    }
    fixture_close(&f);
}

static void steps_of_every_model_allocate_nothing(void **state)
{
    (void)state;
    for (size_t i = 0; i < built_in_models(); ++i) {
        struct model m = of_registry(i);
        struct fixture f;
        fixture_open(&f, &m, fashion, 8, 1);
        for (int step = 0; step < 10; ++step) /* oneDNN fills its own tables first */
            fixture_step(&f, f.parameters, f.gradient);
        struct mallinfo2 before = mallinfo2();
        for (int step = 0; step < 30; ++step)
            fixture_step(&f, f.parameters, f.gradient);
        struct mallinfo2 after = mallinfo2();
        assert_int_equal(before.uordblks, after.uordblks);
        assert_int_equal(before.hblkhd, after.hblkhd);
        fixture_close(&f);
    }
}

static void the_model_of_the_docs_works(void **state)
{
    (void)state;
    struct model wide = configured(&model_deep, "96"), plain = configured(&model_deep, NULL);
    check_differences(&wide);
    check_copies(&plain, fashion, 33);
    documented_on("docs/adding-a-model.md", "docs/examples/model_deep.c");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(models_have_their_published_sizes),
        cmocka_unit_test(every_model_matches_finite_differences),
        cmocka_unit_test(lenet_with_tanh_matches_finite_differences),
        cmocka_unit_test(a_batch_of_copies_has_the_gradient_of_one),
        cmocka_unit_test(initial_values_have_the_deviation_of_their_layer),
        cmocka_unit_test(steps_of_every_model_allocate_nothing),
        cmocka_unit_test(the_model_of_the_docs_works),
    };
    return cmocka_run_group_tests_name("models", tests, NULL, NULL);
}
