/*
 * test_compression.c — codes of gradients: values computed by hand, all 16-bit codes, error
 * feedback. Exchanges between ranks: test_compression_exchange.c.
 */
#include "tests/worker/compression/compression_rig.h"
#include "base/vector.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <cmocka.h>

static void assert_floats(const float *got, const float *expected, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (memcmp(&got[i], &expected[i], sizeof *got) != 0)
            fail_msg("element %zu is %a, not %a", i, (double)got[i], (double)expected[i]);
}

/* Encodes one value with residual 0. *lost ← the new residual, *back ← the decoded value. */
static uint16_t half_code(const char *name, float value, float *lost, float *back)
{
    compression *z = NULL;
    uint16_t code;
    assert_int_equal(compression_rig_open(&z, name, NULL, 1, NULL, 0), OK);
    compression_encode(z, &value, 0, 1, &code);
    *lost = z->residual[0];
    *back = 0;
    z->kind->add(z, &code, 1, back);
    compression_close(&z);
    return code;
}

struct golden {
    float value;
    uint16_t code;
    float lost;
};

static void assert_golden(const char *name, const struct golden *g, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        float lost, back;
        uint16_t code = half_code(name, g[i].value, &lost, &back);
        if (code != g[i].code || lost != g[i].lost)
            fail_msg("%s: %a has code %04x and residual %a, not %04x and %a", name,
                     (double)g[i].value, code, (double)lost, g[i].code, (double)g[i].lost);
    }
}

/* IEEE 754-2019, table 3.5: 1 sign, 5 exponent (bias 15), 10 fraction bits. */
static void fp16_matches_codes_computed_by_hand(void **state UNUSED)
{
    static const struct golden g[] = {
        {1, 0x3c00, 0},
        {-2, 0xc000, 0},
        {65504, 0x7bff, 0},
        {65520, 0x7bff, 16},               /* would round to infinity */
        {-1e6f, 0xfbff, -934496},          /* 1 000 000 − 65 504 */
        {2049, 0x6800, 1},                 /* halfway between 2048 and 2050: to even */
        {2051, 0x6802, -1},                /* halfway between 2050 and 2052 */
        {2049.5f, 0x6801, -0.5f},          /* nearer to 2050 */
        {0x1p-14f, 0x0400, 0},             /* the smallest normal value */
        {0x1.ff8p-15f, 0x03ff, 0},         /* the largest subnormal value */
        {0x1.ffcp-15f, 0x0400, -0x1p-25f}, /* halfway between these two: to even */
        {0x1p-24f, 0x0001, 0},             /* the smallest */
        {0x1p-25f, 0x0000, 0x1p-25f},      /* half of it: to even */
        {0x1.8p-24f, 0x0002, -0x1p-25f},
        {1e-30f, 0x0000, 1e-30f},
    };
    assert_golden("fp16", g, COUNT_OF(g));
}

static void bf16_matches_codes_computed_by_hand(void **state UNUSED)
{
    static const struct golden g[] = {
        {1, 0x3f80, 0},
        {-2, 0xc000, 0},
        {1.00390625f, 0x3f80, 0.00390625f},       /* 1 + 2⁻⁸, halfway: to even */
        {1.01171875f, 0x3f82, -0.00390625f},      /* 1 + 3·2⁻⁸ */
        {257, 0x4380, 1},                         /* halfway between 256 and 258 */
        {0x1p-133f, 0x0001, 0},                   /* the smallest */
        {0x1.fffffep127f, 0x7f7f, 0x1.fffep119f}, /* would round to infinity */
    };
    assert_golden("bf16", g, COUNT_OF(g));
}

/* Decodes and encodes all 2¹⁶ codes. */
static void every_half_is_its_own_code(void **state UNUSED)
{
    static const char *const names[] = {"fp16", "bf16"};
    for (size_t n = 0; n < COUNT_OF(names); n++) {
        compression *z = NULL;
        assert_int_equal(compression_rig_open(&z, names[n], NULL, 1, NULL, 0), OK);
        for (unsigned code = 0; code <= 0xffff; code++) {
            uint16_t in = (uint16_t)code, out;
            float value = 0;
            z->kind->add(z, &in, 1, &value);
            float p = value;
            z->kind->encode(z, &p, 1, &out);
            bool same = out == in || value == 0; /* 0 + −0 is 0 */
            if (!same && !isnan(value))
                fail_msg("%s: %04x is %a, whose code is %04x", names[n], in, (double)value, out);
            if (isfinite(value) && p != 0)
                fail_msg("%s: %04x has residual %a", names[n], in, (double)p);
        }
        compression_close(&z);
    }
}

/* p = (1, −4, 3, ½, −3), k = 2: the code has −4 and the first of the two values of size 3. Then p =
 * (1, 0, 0, ½, −3) + (0, 0, 0, 1, −1): the code has the last value, −4, and 3/2. */
static void topk_matches_codes_computed_by_hand(void **state UNUSED)
{
    compression *z = NULL;
    static const float first[] = {1, -4, 3, 0.5f, -3}, second[] = {0, 0, 0, 1, -1};
    struct {
        uint32_t indices[2];
        float values[2];
    } code;
    float sum[5] = {0};

    assert_int_equal(compression_rig_open(&z, "topk", "0.4", 5, NULL, 0), OK);
    assert_int_equal(compression_code_bytes(z), sizeof code);
    compression_encode(z, first, 0, 5, &code);
    assert_true(code.indices[0] == 1 && code.indices[1] == 2);
    assert_floats(code.values, (const float[]){-4, 3}, 2);
    assert_floats(z->residual, (const float[]){1, 0, 0, 0.5f, -3}, 5);
    compression_encode(z, second, 0, 5, &code);
    assert_true(code.indices[0] == 3 && code.indices[1] == 4);
    assert_floats(code.values, (const float[]){1.5f, -4}, 2);
    assert_floats(z->residual, (const float[]){1, 0, 0, 0, 0}, 5);
    z->kind->add(z, &code, 5, sum);
    assert_floats(sum, (const float[]){0, 0, 0, 1.5f, -4}, 5);
    compression_close(&z);
}

static int larger_first(const void *a, const void *b)
{
    float x = fabsf(*(const float *)a), y = fabsf(*(const float *)b);
    return (x < y) - (x > y);
}

/* Compared with sorting; many values are equal. */
static void topk_sends_the_largest_values(void **state UNUSED)
{
    enum { COUNT = 5000 };
    static float values[COUNT], sorted[COUNT];
    static const char *const ratios[] = {"0.0001", "0.00032", "0.01", "0.3", "1"};
    uint32_t bits = 7;
    for (size_t r = 0; r < COUNT_OF(ratios); r++) {
        compression *z = NULL;
        assert_int_equal(compression_rig_open(&z, "topk", ratios[r], COUNT, NULL, 0), OK);
        const size_t k = compression_code_bytes(z) / 8;
        assert_int_equal(k, fmax(1, round(atof(ratios[r]) * COUNT)));
        uint32_t *code = malloc(8 * k);
        for (size_t i = 0; i < COUNT; i++)
            values[i] = sorted[i] = i % 3 == 0 ? roundf(8 * compression_rig_noise(&bits))
                                               : compression_rig_noise(&bits);
        qsort(sorted, COUNT, sizeof *sorted, larger_first);
        compression_encode(z, values, 0, COUNT, code);
        for (size_t n = 0; n < k; n++) {
            float kept;
            memcpy(&kept, code + k + n, sizeof kept);
            assert_true(n == 0 || code[n] > code[n - 1]);
            assert_true(kept == values[code[n]] && fabsf(kept) >= fabsf(sorted[k - 1]));
            assert_true(z->residual[code[n]] == 0);
        }
        for (size_t i = 0; i < COUNT; i++)
            assert_true(fabsf(z->residual[i]) <= fabsf(sorted[k - 1]));
        free(code);
        compression_close(&z);
    }
}

/* Two tensors, (1, −3) and (0, 4, 2): scales 4/2 and 6/3, the 0 counts as positive. */
static void sign_matches_codes_computed_by_hand(void **state UNUSED)
{
    compression *z = NULL;
    static const float first[] = {1, -3, 0, 4, 2}, second[] = {0, 0, 0, 0, 0};
    static const size_t ends[] = {2, 5};
    struct {
        float scales[2];
        uint32_t signs;
    } code;
    float sum[5] = {0};

    assert_int_equal(compression_rig_open(&z, "sign", NULL, 5, ends, 2), OK);
    assert_int_equal(compression_code_bytes(z), sizeof code);
    compression_encode(z, first, 0, 5, &code);
    assert_floats(code.scales, (const float[]){2, 2}, 2);
    assert_int_equal(code.signs, 0x02);
    assert_floats(z->residual, (const float[]){-1, -1, -2, 2, 0}, 5);
    z->kind->add(z, &code, 5, sum);
    assert_floats(sum, (const float[]){2, -2, 2, 2, 2}, 5);
    compression_encode(z, second, 0, 5, &code); /* (−1, −1), (−2, 2, 0) */
    assert_floats(code.scales, (const float[]){1, 4 / 3.0f}, 2);
    assert_int_equal(code.signs, 0x07);
    compression_close(&z);
}

/* Tensors within one word of signs and across many words, compared with the definition. */
static void sign_keeps_tensors_apart(void **state UNUSED)
{
    enum { COUNT = 1000 };
    static const size_t ends[] = {5, 40, 41, 64, 700, COUNT};
    float values[COUNT], sum[COUNT] = {0};
    uint32_t code[COUNT_OF(ends) + (COUNT + 31) / 32], bits = 11;
    compression *z = NULL;

    assert_int_equal(compression_rig_open(&z, "sign", NULL, COUNT, ends, COUNT_OF(ends)), OK);
    assert_int_equal(compression_code_bytes(z), sizeof code);
    for (size_t i = 0; i < COUNT; i++)
        values[i] = compression_rig_noise(&bits);
    compression_encode(z, values, 0, COUNT, code);
    z->kind->add(z, code, COUNT, sum);
    for (size_t t = 0, from = 0; t < COUNT_OF(ends); from = ends[t++]) {
        double scale = 0;
        for (size_t i = from; i < ends[t]; i++)
            scale += fabs((double)values[i]) / (double)(ends[t] - from);
        for (size_t i = from; i < ends[t]; i++)
            assert_true(fabs((double)sum[i] - (values[i] < 0 ? -scale : scale)) < 1e-6);
    }
    compression_close(&z);
}

/* The sum of all decoded codes plus the residual is the sum of all gradients. A code represents at
 * least a share δ: ‖p − C(p)‖² ≤ (1 − δ)·‖p‖². */
static void error_feedback_loses_nothing(void **state UNUSED)
{
    enum { COUNT = 1000, STEPS = 50 };
    static const size_t ends[] = {5, 40, 41, 64, 700, COUNT}; /* within words of signs and across */
    static float gradient[COUNT], sent[COUNT], before[COUNT];
    static char code[COUNT * sizeof(float)];
    static double all[COUNT];
    uint32_t bits = 3;

    for (size_t k = 0; k < compression_registry.count; k++) {
        const char *name = compression_registry.entries[k]->name;
        compression *z = NULL;
        if (strcmp(name, "none") == 0)
            continue;
        assert_int_equal(compression_rig_open(&z, name, NULL, COUNT, ends, COUNT_OF(ends)), OK);
        memset(all, 0, sizeof all);
        memset(sent, 0, sizeof sent);
        for (unsigned step = 0; step < STEPS; step++) {
            for (size_t i = 0; i < COUNT; i++) {
                gradient[i] = compression_rig_noise(&bits);
                all[i] += (double)gradient[i];
                before[i] = gradient[i] + z->residual[i];
            }
            compression_encode(z, gradient, 0, COUNT, code);
            z->kind->add(z, code, COUNT, sent);
            double given = vector_sum_of_squares(COUNT, before);
            double left = vector_sum_of_squares(COUNT, z->residual);
            double taken = strcmp(name, "topk") == 0   ? 0.01
                           : strcmp(name, "dgc") == 0  ? 0.25
                           : strcmp(name, "sign") == 0 ? 0.2
                                                       : 0.9999;
            if (left > (1 - taken) * given)
                fail_msg("%s: the residual has %g of %g", name, left, given);
        }
        for (size_t i = 0; i < COUNT; i++)
            if (fabs((double)sent[i] + (double)z->residual[i] - all[i]) > 1e-4)
                fail_msg("%s: element %zu: %g and %g are not %g", name, i, (double)sent[i],
                         (double)z->residual[i], all[i]);
        compression_close(&z);
    }
}

/* Lin et al. 2018, momentum correction and momentum factor masking, with m = 1/2 and k = 1 of 4. */
static void dgc_matches_codes_computed_by_hand(void **state UNUSED)
{
    static const struct {
        float gradient[4];
        uint32_t index;
        float value, velocity[4], residual[4];
    } steps[] = {
        {{1, 2, 0, 0}, 1, 2, {1, 0, 0, 0}, {1, 0, 0, 0}},
        {{0, 0, 0, 1}, 0, 1.5f, {0, 0, 0, 1}, {0, 0, 0, 1}},
        {{0, 0, 4, 0}, 2, 4, {0, 0, 0, 0.5f}, {0, 0, 0, 1.5f}},
        {{0, 0, 0, 0}, 3, 1.75f, {0, 0, 0, 0}, {0, 0, 0, 0}},
    };
    compression *z = NULL;
    assert_int_equal(compression_rig_open(&z, "dgc", NULL, 4, NULL, 0), OK);
    z->momentum = 0.5f;
    assert_int_equal(compression_state_count(z), 8);
    for (size_t n = 0; n < COUNT_OF(steps); n++) {
        struct {
            uint32_t index;
            float value;
        } code;
        float both[8];
        assert_int_equal(compression_code_bytes(z), sizeof code);
        compression_encode(z, steps[n].gradient, 0, 4, &code);
        assert_int_equal(code.index, steps[n].index);
        assert_floats(&code.value, &steps[n].value, 1);
        assert_floats(z->velocity, steps[n].velocity, 4);
        assert_floats(z->residual, steps[n].residual, 4);
        compression_state_read(z, both);
        compression_reset(z);
        compression_state_write(z, both);
    }
    z->velocity[0] = FLT_MIN; /* its half is subnormal */
    compression_encode(z, (const float[4]){0, 1, 0, 0}, 0, 4, (uint64_t[1]){0});
    assert_true(z->velocity[0] == 0 && z->residual[0] == FLT_MIN / 2);
    compression_close(&z);
}

/* The paper's 75, 93.75, 98.4375, 99.6 and 99.9 % that are not sent. */
static void dgc_sends_less_in_each_epoch_of_the_warm_up(void **state UNUSED)
{
    static const struct {
        double epoch;
        size_t k;
    } expected[] = {{0, 16384},  {0.99, 16384}, {1, 4096}, {2.5, 1024},
                    {3.99, 256}, {4, 66},       {1e9, 66}};
    compression *z = NULL;
    assert_int_equal(compression_rig_open(&z, "dgc", NULL, 65536, NULL, 0), OK);
    for (size_t n = 0; n < COUNT_OF(expected); n++) {
        assert_int_equal(compression_bytes_at(z, expected[n].epoch), 8 * expected[n].k);
        compression_set_epoch(z, expected[n].epoch);
        assert_int_equal(compression_code_bytes(z), 8 * expected[n].k);
    }
    compression_close(&z);
}

static void values_that_are_not_finite_stay_so(void **state UNUSED)
{
    static const float bad[] = {INFINITY, -INFINITY, NAN};
    for (size_t k = 1; k < compression_registry.count; k++) {
        for (size_t b = 0; b < COUNT_OF(bad); b++) {
            compression *z = NULL;
            float gradient[40] = {[7] = 1, [20] = bad[b], [30] = -1}, sum[40] = {0};
            char code[sizeof gradient];
            const char *name = compression_registry.entries[k]->name;
            assert_int_equal(compression_rig_open(&z, name, NULL, 40, NULL, 0), OK);
            compression_encode(z, gradient, 0, 40, code);
            z->kind->add(z, code, 40, sum);
            if (isfinite(sum[20]))
                fail_msg("%s: %g became %g", name, (double)bad[b], (double)sum[20]);
            compression_close(&z);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fp16_matches_codes_computed_by_hand),
        cmocka_unit_test(bf16_matches_codes_computed_by_hand),
        cmocka_unit_test(every_half_is_its_own_code),
        cmocka_unit_test(topk_matches_codes_computed_by_hand),
        cmocka_unit_test(topk_sends_the_largest_values),
        cmocka_unit_test(dgc_matches_codes_computed_by_hand),
        cmocka_unit_test(dgc_sends_less_in_each_epoch_of_the_warm_up),
        cmocka_unit_test(sign_matches_codes_computed_by_hand),
        cmocka_unit_test(sign_keeps_tensors_apart),
        cmocka_unit_test(error_feedback_loses_nothing),
        cmocka_unit_test(values_that_are_not_finite_stay_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
