/* test_gpt.c — model=gpt: against finite differences and PyTorch in float64, causality, layers,
 * cuts into stages. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <malloc.h>
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "tests/worker/golden_gpt.h"
#include "tests/worker/gradients.h"

enum { CLASSES = 11 };

static struct model gpt(const char *layers, const char *width, const char *heads, const char *tied)
{
    struct model m = {.kind = (const struct model_kind *)registry_find(&model_registry, "gpt"),
                      .classes = CLASSES};
    const char *const values[][2] = {{"model.layers", layers},
                                     {"model.width", width},
                                     {"model.heads", heads},
                                     {"model.tied", tied}};
    options *o;
    assert_non_null(m.kind);
    assert_int_equal(options_open(&o), OK);
    assert_int_equal(options_declare(o, m.kind->about.options), OK);
    for (size_t i = 0; i < COUNT_OF(values); ++i)
        assert_int_equal(options_set(o, values[i][0], values[i][1], "test"), OK);
    assert_int_equal(m.kind->configure(&m, o), OK);
    options_close(&o);
    return m;
}

static void gpt_matches_finite_differences(void **state)
{
    (void)state;
    static const struct {
        const char *layers, *width, *heads, *tied;
        uint32_t positions, batch;
    } sizes[] = {{"1", "8", "1", "no", 1, 1},   {"2", "8", "4", "no", 7, 1},
                 {"1", "12", "3", "yes", 7, 2}, {"2", "64", "4", "no", 33, 2},
                 {"1", "1", "1", "no", 16, 3},  {"3", "20", "2", "yes", 17, 3}};
    for (size_t i = 0; i < COUNT_OF(sizes); ++i) {
        struct model m = gpt(sizes[i].layers, sizes[i].width, sizes[i].heads, sizes[i].tied);
        struct fixture f;
        fixture_open(&f, &m, (struct shape){1, sizes[i].positions, 1}, sizes[i].batch, 4);
        assert_gradient_is_right(&f, 2e-3, 2e-2);
        fixture_close(&f);
    }
}

static void gpt_has_the_loss_and_gradient_of_pytorch(void **state)
{
    (void)state;
    struct model m = gpt("1", GOLDEN_WIDTH, GOLDEN_HEADS, "no");
    struct fixture f;
    m.classes = GOLDEN_CLASSES;
    fixture_open(&f, &m, (struct shape){1, GOLDEN_POSITIONS, 1}, GOLDEN_BATCH, 1);
    assert_int_equal(f.count, GOLDEN_COUNT);
    for (size_t i = 0; i < f.count; ++i)
        f.parameters[i] = (float)((int)(i * 37 % 101) - 50) / 64;
    for (uint32_t i = 0; i < GOLDEN_BATCH * GOLDEN_POSITIONS; ++i) {
        f.pixels[i] = (float)(5 * i % GOLDEN_CLASSES);
        f.labels[i] = (3 * i + 1) % GOLDEN_CLASSES;
    }
    const double loss = fixture_step(&f, f.parameters, f.gradient);
    const double apart = gradient_distance(f.gradient, golden_gradient, f.count);
    if (!(fabs(loss / GOLDEN_LOSS - 1) < 1e-6 && apart < 1e-5))
        fail_msg("loss %.9g, golden %.9g; gradient %g from the golden one", loss, GOLDEN_LOSS,
                 apart);
    fixture_close(&f);
}

static const float *logits_of(struct fixture *f)
{
    memcpy(tape_images(f->tape), f->pixels, f->batch * shape_count(f->images) * sizeof(float));
    tensor *x = tape_begin(f->tape, f->parameters, f->gradient);
    return tape_value(f->tape, f->model.kind->forward(f->tape, x, &f->model));
}

static void later_tokens_never_change_earlier_outputs(void **state)
{
    (void)state;
    const uint32_t positions = 35;
    struct model m = gpt("2", "24", "3", "no");
    struct fixture f;
    float *before;
    fixture_open(&f, &m, (struct shape){1, positions, 1}, 2, 5);
    assert_int_equal(memory_new(&before, positions * CLASSES, sizeof *before, "logits"), OK);
    for (uint32_t changed = 0; changed < positions; ++changed) {
        const size_t earlier = changed * CLASSES;
        memcpy(before, logits_of(&f), positions * CLASSES * sizeof(float));
        f.pixels[changed] = fmodf(f.pixels[changed] + 1, CLASSES);
        const float *y = logits_of(&f);
        assert_memory_equal(before, y, earlier * sizeof(float));
        assert_true(memcmp(before + earlier, y + earlier, CLASSES * sizeof(float)) != 0);
    }
    memory_free(before);
    fixture_close(&f);
}

static void steps_allocate_nothing_and_repeat_their_bits(void **state)
{
    (void)state;
    struct model m = gpt("2", "20", "2", "yes");
    struct fixture f;
    fixture_open(&f, &m, (struct shape){1, 21, 1}, 4, 3);
    for (int i = 0; i < 10; ++i) /* oneDNN fills its own tables first */
        fixture_step(&f, f.parameters, f.gradient);
    memcpy(f.shifted, f.gradient, f.count * sizeof(float));
    const size_t before = mallinfo2().uordblks;
    for (int i = 0; i < 20; ++i) {
        memset(f.gradient, 0x7f, f.count * sizeof(float));
        fixture_step(&f, f.parameters, f.gradient);
        assert_memory_equal(f.gradient, f.shifted, f.count * sizeof(float));
        assert_int_equal(mallinfo2().uordblks, before);
    }
    fixture_close(&f);
}

static void gpt_has_its_layers_and_initial_values(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        uint32_t rank, shape[2];
        double deviation; /* 0: all `value` */
        float value;
    } slices[] = {
        {"wte.weight", 2, {CLASSES, 64}, 0.02, 0},
        {"wpe.weight", 2, {33, 64}, 0.02, 0},
        {"h0.ln1.weight", 1, {64}, 0, 1},
        {"h0.ln1.bias", 1, {64}, 0, 0},
        {"h0.attn.qkv.weight", 2, {192, 64}, 0.02, 0},
        {"h0.attn.proj.weight", 2, {64, 64}, 0.01, 0},
        {"h0.ln2.weight", 1, {64}, 0, 1},
        {"h0.ln2.bias", 1, {64}, 0, 0},
        {"h0.mlp.up.weight", 2, {256, 64}, 0.02, 0},
        {"h0.mlp.down.weight", 2, {64, 256}, 0.01, 0},
    };
    struct model m = gpt("2", "64", "4", "no");
    struct fixture f;
    fixture_open(&f, &m, (struct shape){1, 33, 1}, 1, 1);
    parameter_table_initialise(f.table, 1, f.parameters);
    assert_int_equal(parameter_table_slices(f.table), 2 + 2 * 8 + 3);
    for (size_t k = 0; k < COUNT_OF(slices); ++k) {
        const struct parameter_slice *s = parameter_table_slice(f.table, k);
        double square = 0;
        assert_string_equal(s->name, slices[k].name);
        assert_int_equal(s->rank, slices[k].rank);
        for (size_t i = 0; i < s->count; ++i) {
            const double v = (double)f.parameters[s->offset + i];
            square += v * v;
            assert_true(slices[k].deviation > 0 || f.parameters[s->offset + i] == slices[k].value);
        }
        const double ratio = sqrt(square / (double)s->count) / slices[k].deviation;
        assert_true(slices[k].deviation == 0 || fabs(ratio - 1) < 4 / sqrt((double)s->count));
    }
    assert_string_equal(parameter_table_slice(f.table, 18)->name, "ln_f.weight");
    assert_string_equal(parameter_table_slice(f.table, 20)->name, "head.weight");
    fixture_close(&f);
}

/* Writes to `cuts` where gpt with two blocks can be cut, with the layer behind each cut; returns
 * the number of cuts. */
static size_t cuts_of(const struct model *m, struct tape_cut *cuts, parameter_table *table)
{
    tape *t;
    assert_int_equal(tape_open(&t, NULL, table, TAPE_DISCOVER, (struct shape){1, 9, 1}, 1), OK);
    tensor *x = tape_begin(t, NULL, NULL);
    m->kind->forward(t, x, m);
    const size_t count = tape_cuts(t, cuts, 16);
    assert_int_equal(tape_finish(t, NULL, 0, NULL), OK);
    tape_close(&t);
    return count;
}

static void gpt_is_cut_on_its_residual_stream(void **state)
{
    (void)state;
    static const char *const names[] = {"h0.ln1", "h0.ln2", "h1.ln1", "h1.ln2", "ln_f", "head"};
    struct tape_cut cuts[16];
    for (int tied = 0; tied < 2; ++tied) {
        const struct model m = gpt("2", "8", "2", tied ? "yes" : "no");
        parameter_table *table;
        assert_int_equal(parameter_table_open(&table), OK);
        const size_t count = cuts_of(&m, cuts, table);
        assert_int_equal(count, tied ? 0 : COUNT_OF(names)); /* the table is on both sides */
        for (size_t i = 0; i < count; ++i) {
            assert_string_equal(cuts[i].layer, names[i]);
            assert_int_equal(shape_count(cuts[i].shape), 9 * 8);
        }
        parameter_table_close(&table);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gpt_matches_finite_differences),
        cmocka_unit_test(gpt_has_the_loss_and_gradient_of_pytorch),
        cmocka_unit_test(later_tokens_never_change_earlier_outputs),
        cmocka_unit_test(steps_allocate_nothing_and_repeat_their_bits),
        cmocka_unit_test(gpt_has_its_layers_and_initial_values),
        cmocka_unit_test(gpt_is_cut_on_its_residual_stream),
    };
    return cmocka_run_group_tests_name("gpt", tests, NULL, NULL);
}
