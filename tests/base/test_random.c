/* test_random.c — random streams: known answers, and the properties that runs need. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "base/random.h"

/* Known answers for philox4x32 with 10 rounds, as published with Random123. */
static void philox_gives_the_published_answers(void **state)
{
    (void)state;
    static const struct {
        uint32_t counter[4], key[2], answer[4];
    } known[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < COUNT_OF(known); i++) {
        uint32_t out[4];
        philox4x32_10(known[i].counter, known[i].key, out);
        assert_memory_equal(out, known[i].answer, sizeof out);
    }
}

static void a_stream_is_a_function_of_its_key(void **state)
{
    (void)state;
    struct random_stream a, b, c;
    random_open(&a, RANDOM_TEST, 7, 3, 11);
    uint32_t first[64];
    for (size_t i = 0; i < COUNT_OF(first); i++)
        first[i] = random_bits(&a);
    random_open(&b, RANDOM_TEST, 7, 3, 11);
    random_open(&c, RANDOM_TEST, 7, 3, 12);
    size_t same = 0;
    for (size_t i = 0; i < COUNT_OF(first); i++) {
        assert_int_equal(first[i], random_bits(&b));
        same += first[i] == random_bits(&c);
    }
    assert_true(same < 2);
}

static void check_moments(double (*draw)(struct random_stream *), double mean, double variance)
{
    enum { DRAWS = 200000 };
    struct random_stream r;
    random_open(&r, RANDOM_TEST, 1, 0, 0);
    double sum = 0, squares = 0;
    for (int i = 0; i < DRAWS; i++) {
        double x = draw(&r);
        sum += x;
        squares += x * x;
    }
    double m = sum / DRAWS, v = squares / DRAWS - m * m;
    assert_true(fabs(m - mean) < 5 * sqrt(variance / DRAWS));
    assert_true(fabs(v - variance) < 0.03 * variance);
}

static double gamma_of_25(struct random_stream *r)
{
    return random_gamma(r, 25);
}

static double gamma_of_a_half(struct random_stream *r)
{
    return random_gamma(r, 0.5);
}

static void distributions_have_their_moments(void **state)
{
    (void)state;
    check_moments(random_uniform, 0.5, 1.0 / 12);
    check_moments(random_normal, 0, 1);
    check_moments(gamma_of_25, 25, 25);
    check_moments(gamma_of_a_half, 0.5, 0.5);
}

static void many_normals_are_those_drawn_one_by_one(void **state)
{
    (void)state;
    enum { MOST = 300 };
    static const size_t counts[] = {0, 1, 63, 64, 65, 128, MOST};
    double many[MOST];
    for (size_t c = 0; c < COUNT_OF(counts); c++) {
        for (uint32_t before = 0; before < 3; before++) { /* words used: also within a block */
            struct random_stream one, all;
            random_open(&one, RANDOM_TEST, 3, 1, before);
            for (uint32_t i = 0; i < before; i++)
                (void)random_bits(&one);
            all = one;
            random_normals(&all, many, counts[c]);
            for (size_t i = 0; i < counts[c]; i++)
                assert_true(many[i] == random_normal(&one));
            assert_int_equal(random_bits(&all), random_bits(&one));
        }
    }
}

static void below_is_unbiased_and_in_range(void **state)
{
    (void)state;
    struct random_stream r;
    random_open(&r, RANDOM_TEST, 2, 0, 0);
    unsigned seen[7] = {0};
    for (int i = 0; i < 70000; i++) {
        uint32_t x = random_below(&r, 7);
        assert_true(x < 7);
        seen[x]++;
    }
    for (size_t i = 0; i < COUNT_OF(seen); i++)
        assert_in_range(seen[i], 9600, 10400);
}

static void a_permutation_holds_every_number_once(void **state)
{
    (void)state;
    struct random_stream r;
    uint32_t order[1000];
    uint8_t seen[1000] = {0};
    random_open(&r, RANDOM_SHUFFLE, 5, 1, 2);
    random_permutation(&r, order, 1000);
    unsigned fixed = 0;
    for (uint32_t i = 0; i < 1000; i++) {
        assert_true(order[i] < 1000);
        assert_int_equal(seen[order[i]]++, 0);
        fixed += order[i] == i;
    }
    assert_true(fixed < 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_gives_the_published_answers),
        cmocka_unit_test(a_stream_is_a_function_of_its_key),
        cmocka_unit_test(distributions_have_their_moments),
        cmocka_unit_test(many_normals_are_those_drawn_one_by_one),
        cmocka_unit_test(below_is_unbiased_and_in_range),
        cmocka_unit_test(a_permutation_holds_every_number_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
