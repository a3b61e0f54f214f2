/* Compressed pushes of one worker: nothing is lost, the server decodes the same bits, and codes
 * from the network are checked. */
#include "ps/push_codes.h"
#include "base/memory.h"
#include "worker/compression/pull_code.h"
#include "tests/ps/core/core_rig.h"
#include "tests/worker/compression/compression_rig.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

enum { COUNT = 1000, PUSHES = 50 };

static const struct optimizer_layer layer[] = {{.count = 600}, {.count = 7}, {.count = 393}};
static const struct optimizer_layers layers = {layer, COUNT_OF(layer)};

/* Without momentum, the sum of a sender's codes and its residual is the sum of its gradients. */
static options *settings_of(const char *key, const char *servers)
{
    options *o = NULL;
    if (core_rig_settings(&o, RIG(key, servers)) != OK)
        fail_msg("%s", error_message());
    if (options_declared(o, "compression.momentum"))
        assert_int_equal(options_set(o, "compression.momentum", "0", "test"), OK);
    return o;
}

static void draw(float *gradient, uint32_t *bits)
{
    for (size_t i = 0; i < COUNT; i++)
        gradient[i] = compression_rig_noise(bits) * (i % 5 == 0 ? 1.0f : 0.01f);
}

static void decoded_pushes_and_residual_sum_to_the_gradients(const char *key, const char *servers)
{
    options *o = settings_of(key, servers);
    struct push_codes codes;
    float gradient[COUNT], back[COUNT];
    double given[COUNT] = {0}, sent[COUNT] = {0};
    uint32_t bits = 7;
    assert_int_equal(push_codes_open(&codes, o, &layers, COUNT, COUNT), OK);
    for (unsigned n = 0; n < PUSHES; n++) {
        draw(gradient, &bits);
        for (size_t i = 0; i < COUNT; i++)
            given[i] += (double)gradient[i];
        assert_true(push_codes_apply(&codes, 0, gradient, 1));
        for (size_t i = 0; i < COUNT; i++)
            sent[i] += (double)gradient[i];
    }
    for (unsigned s = 0; s < codes.slices.servers; s++) {
        const struct push_code *code = &codes.servers[s];
        compression *decoder = NULL;
        assert_int_equal(
            slice_code_open(&decoder, o, &codes.slices, s, &layers, SLICE_CODE_DECODES), OK);
        assert_int_equal(slice_push_bytes(decoder, &codes.slices, s, 0), code->size);
        assert_true(compression_is_valid(decoder, code->bytes));
        compression_decode(decoder, code->bytes, back);
        const size_t begin = codes.slices.begin[s], count = decoder->count;
        assert_memory_equal(back, gradient + begin, count * sizeof *back);
        for (size_t i = 0; i < count; i++) {
            double residual = (double)code->compression->residual[i];
            assert_true(fabs(sent[begin + i] + residual - given[begin + i]) < 1e-4);
        }
        compression_close(&decoder);
    }
    push_codes_close(&codes);
    options_close(&o);
}

static void nothing_is_lost_by_any_code_with_any_servers(void **state UNUSED)
{
    for (size_t k = 1; k < compression_registry.count; k++) {
        char key[64];
        snprintf(key, sizeof key, "compression=%s", compression_registry.entries[k]->name);
        decoded_pushes_and_residual_sum_to_the_gradients(key, "servers=1");
        decoded_pushes_and_residual_sum_to_the_gradients(key, "servers=3");
    }
}

static void without_compression_there_are_no_codes(void **state UNUSED)
{
    options *o = settings_of("compression=none", "servers=1");
    struct push_codes codes;
    assert_int_equal(push_codes_open(&codes, o, &layers, COUNT, COUNT), OK);
    assert_false(push_codes_enabled(&codes));
    push_codes_reset(&codes);
    push_codes_close(&codes);
    options_close(&o);
}

static void a_push_that_is_not_finite_keeps_the_residual(void **state UNUSED)
{
    options *o = settings_of("compression=topk", "servers=1");
    struct push_codes codes;
    float gradient[COUNT], before[COUNT];
    uint32_t bits = 3;
    assert_int_equal(push_codes_open(&codes, o, &layers, COUNT, COUNT), OK);
    const float *residual = codes.servers[0].compression->residual;
    draw(gradient, &bits);
    assert_true(push_codes_apply(&codes, 0, gradient, 1));
    memcpy(before, residual, sizeof before);
    draw(gradient, &bits);
    assert_false(push_codes_apply(&codes, 0, gradient, NAN));
    gradient[COUNT - 1] = INFINITY;
    assert_false(push_codes_apply(&codes, 0, gradient, 1));
    assert_true(isinf(gradient[COUNT - 1]));
    assert_memory_equal(before, residual, sizeof before);
    push_codes_reset(&codes);
    for (size_t i = 0; i < COUNT; i++)
        assert_true(residual[i] == 0);
    push_codes_close(&codes);
    options_close(&o);
}

static compression *decoder_of(const char *key, size_t count)
{
    options *o = settings_of(key, "servers=1");
    struct slices slices;
    compression *z = NULL;
    const struct optimizer_layers none = {NULL, 0};
    slices_cut(&slices, 1, count, NULL);
    assert_int_equal(slice_code_open(&z, o, &slices, 0, &none, SLICE_CODE_DECODES), OK);
    options_close(&o);
    return z;
}

static void codes_that_no_worker_can_write_are_not_valid(void **state UNUSED)
{
    uint32_t three[6] = {0, 4, 299}; /* k = 3 of 300: three indices, three values */
    compression *z = decoder_of("compression=topk", 300);
    assert_int_equal(compression_code_bytes(z), sizeof three);
    assert_true(compression_is_valid(z, three));
    three[2] = 300;
    assert_false(compression_is_valid(z, three));
    three[2] = UINT32_MAX;
    assert_false(compression_is_valid(z, three));
    three[2] = 4;
    assert_false(compression_is_valid(z, three));
    three[2] = 3;
    assert_false(compression_is_valid(z, three));
    compression_close(&z);

    uint32_t signs[3] = {0x3f800000, 0xffffffff, 1}; /* one scale, 33 signs */
    z = decoder_of("compression=sign", 33);
    assert_int_equal(compression_code_bytes(z), sizeof signs);
    assert_true(compression_is_valid(z, signs));
    signs[2] = 2;
    assert_false(compression_is_valid(z, signs));
    compression_close(&z);
}

/* ---- pulls in 16 bits ----------------------------------------------------------------------- */

static struct pull_code pull_code_named(const char *key)
{
    options *o = settings_of(key, "servers=1");
    const struct pull_code code = pull_code_of(o);
    options_close(&o);
    return code;
}

/* From the definitions of the formats: 10 and 7 explicit bits, exponents from 2⁻¹⁴ and 2⁻¹²⁶. */
static void a_pull_is_rounded_to_the_nearest_number_of_its_format(void **state UNUSED)
{
    static const struct {
        const char *key;
        float in, out;
    } cases[] = {
        {"pull_precision=fp16", 1.0f, 1.0f},
        {"pull_precision=fp16", 1.0f + 0x1p-11f, 1.0f},             /* tie, to even */
        {"pull_precision=fp16", 1.0f + 0x1.8p-10f, 1.0f + 0x1p-9f}, /* tie, to even */
        {"pull_precision=fp16", -1.0f - 0x1.001p-11f, -1.0f - 0x1p-10f},
        {"pull_precision=fp16", 0x1.8p-24f, 0x1p-23f}, /* subnormal */
        {"pull_precision=fp16", 0x1p-26f, 0.0f},
        {"pull_precision=fp16", 1e6f, 65504.0f},
        {"pull_precision=bf16", 1.0f + 0x1p-8f, 1.0f},
        {"pull_precision=bf16", 1.0f + 0x1.8p-7f, 1.0f + 0x1p-6f},
        {"pull_precision=bf16", -1.0f - 0x1.01p-8f, -1.0f - 0x1p-7f},
        {"pull_precision=bf16", 0x1p-126f, 0x1p-126f},
        {"pull_precision=bf16", 1e6f, 999424.0f},
        {"pull_precision=bf16", 0x1.fffffep127f, 0x1.fep127f},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const struct pull_code code = pull_code_named(cases[i].key);
        float out;
        pull_code_round(&code, &cases[i].in, 1, &out);
        assert_memory_equal(&out, &cases[i].out, sizeof out);
    }
    assert_null(pull_code_named("pull_precision=fp32").kind);
    const struct pull_code none = {.kind = NULL};
    assert_int_equal(pull_code_bytes(&none, 10), 40);
}

/* A worker may therefore round parameters that frames have rounded. MANY exceeds one part of a
 * loop. */
static void a_pull_is_the_same_through_codes_and_when_rounded_twice(void **state UNUSED)
{
    enum { MANY = 5001 };
    static float in[MANY], once[MANY], twice[MANY], carried[MANY];
    static uint16_t codes[MANY];
    static uint8_t bytes[1 + sizeof codes];
    static const char *const keys[] = {"pull_precision=fp16", "pull_precision=bf16"};
    uint32_t bits = 5;
    for (size_t i = 0; i < MANY; i++)
        in[i] = compression_rig_noise(&bits) * (i % 7 == 0 ? 1e-6f : i % 11 == 0 ? 1e5f : 1.0f);
    in[3] = -0.0f;
    in[MANY - 1] = INFINITY;
    for (size_t k = 0; k < COUNT_OF(keys); k++) {
        const struct pull_code code = pull_code_named(keys[k]);
        assert_int_equal(pull_code_bytes(&code, MANY), sizeof codes);
        pull_code_round(&code, in, MANY, once);
        pull_code_round(&code, once, MANY, twice);
        assert_memory_equal(once, twice, sizeof once);
        pull_code_encode(&code, in, MANY, codes);
        memcpy(bytes + 1, codes, sizeof codes); /* not aligned, as in a message */
        pull_code_decode(&code, bytes + 1, MANY, carried);
        assert_memory_equal(once, carried, sizeof once);
        assert_true(isinf(once[MANY - 1]));
        assert_memory_not_equal(in, once, sizeof in);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_lost_by_any_code_with_any_servers),
        cmocka_unit_test(without_compression_there_are_no_codes),
        cmocka_unit_test(a_push_that_is_not_finite_keeps_the_residual),
        cmocka_unit_test(codes_that_no_worker_can_write_are_not_valid),
        cmocka_unit_test(a_pull_is_rounded_to_the_nearest_number_of_its_format),
        cmocka_unit_test(a_pull_is_the_same_through_codes_and_when_rounded_twice),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
