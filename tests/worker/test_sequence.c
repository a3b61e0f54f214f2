/* test_sequence.c — operations on sequences and model=gpt: against finite differences, PyTorch in
 * float64 and their definitions. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <malloc.h>
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "tests/worker/gradients.h"
#include "tests/worker/op_graphs.h"
#include "worker/cpu/backend_cpu_attention.h"
#include "worker/cpu/backend_cpu_lines.h"

enum { CLASSES = 11 };

static struct model of_graph(struct model_kind *kind, const struct op_graph *g)
{
    *kind = (struct model_kind){
        .about = {.name = g->name}, .forward = g->forward, .reads_tokens = g->tokens};
    return (struct model){.kind = kind, .classes = CLASSES};
}

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(operations_match_finite_differences),
        cmocka_unit_test(gpt_matches_finite_differences),
    };
    return cmocka_run_group_tests_name("sequence", tests, NULL, NULL);
}
