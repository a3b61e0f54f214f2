/* test_dataset_grammar.c — the language of dataset=grammar, and its entropy rate. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/worker/dataset_rig.h"
#include "worker/data/dataset_grammar.h"

/* Mean and standard error of the mean of the best predictor's loss. The error is that of means over
 * blocks, because losses of neighbouring bytes depend on each other. */
struct measured_loss {
    double mean, error;
};

static struct measured_loss best_loss(const struct grammar *g, const uint8_t *text, size_t count)
{
    enum { BLOCKS = 100 };
    struct grammar_state s = {0};
    struct grammar_choice choice[GRAMMAR_CHOICES];
    double sum = 0, squares = 0;
    for (size_t b = 0; b < BLOCKS; b++) {
        double block = 0;
        for (size_t i = b * (count / BLOCKS); i < (b + 1) * (count / BLOCKS); i++) {
            double p = 0, all = 0;
            for (size_t k = grammar_choices(g, &s, choice); k-- > 0; all += choice[k].probability)
                p = choice[k].byte == text[i] ? choice[k].probability : p;
            assert_true(p > 0 && fabs(all - 1) < 1e-12);
            block -= log(p);
            grammar_read(&s, text[i]);
        }
        block /= (double)(count / BLOCKS);
        sum += block;
        squares += block * block;
    }
    const double mean = sum / BLOCKS;
    return (struct measured_loss){mean, sqrt((squares / BLOCKS - mean * mean) / (BLOCKS - 1))};
}

static void the_best_predictors_loss_is_the_stated_entropy_rate(void **state)
{
    (void)state;
    static const char *const asides[] = {"0", "0.3", "0.5"};
    for (size_t i = 0; i < COUNT_OF(asides); i++) {
        char set[64];
        struct dataset d;
        struct grammar g;
        snprintf(set, sizeof set, "dataset.asides=%s", asides[i]);
        assert_int_equal(dataset_rig_load("grammar", SET(set, "dataset.seed=3"), true, &d), OK);
        grammar_open(&g, strtod(asides[i], NULL), 3);
        struct measured_loss found = best_loss(&g, d.images[SPLIT_TRAIN], d.length[SPLIT_TRAIN]);
        assert_true(found.error < 0.003);
        if (!(fabs(found.mean - d.entropy_rate) < 4 * found.error)) {
            fail_msg("asides %s: loss %.5f ± %.5f, stated rate %.5f", asides[i], found.mean,
                     found.error, d.entropy_rate);
        }
        dataset_close(&d);
    }
}

/* The formula's parts by hand, for a language without asides. */
static void the_rate_without_asides_is_that_of_words_and_ends(void **state)
{
    (void)state;
    double z[2] = {0};
    static const int of[2] = {26, 13};
    for (int k = 0; k < 2; k++) {
        double sum = 0;
        for (int r = 1; r <= of[k]; r++)
            sum += 1.0 / r;
        for (int r = 1; r <= of[k]; r++)
            z[k] += log(r * sum) / (r * sum);
    }
    /* Half of the sentences are "subject verb .", half "subject verb object .". */
    const double expected = (z[0] + z[1] + log(2) + z[0] / 2) / 3.5;
    assert_true(fabs(grammar_entropy_rate(0) - expected) < 1e-12);
}

/* The predictor counts which byte follows each pair of bytes. It learns from much more text than it
 * then reads. Its loss must not be below the floor, and must be far better than guessing. */
static void a_learner_stays_above_the_entropy_rate(void **state)
{
    (void)state;
    struct dataset d;
    static float counts[128][128][128];
    assert_int_equal(dataset_rig_load("grammar", SET("dataset.samples=20000"), true, &d), OK);
    const uint8_t *text = d.images[SPLIT_TRAIN];
    for (uint32_t i = 2; i < d.length[SPLIT_TRAIN]; i++)
        counts[text[i - 2]][text[i - 1]][text[i]]++;
    double loss = 0;
    text = d.images[SPLIT_VALIDATION];
    for (uint32_t i = 2; i < d.length[SPLIT_VALIDATION]; i++) {
        const float *seen = counts[text[i - 2]][text[i - 1]];
        double all = 0;
        for (int k = 0; k < 128; k++)
            all += (double)seen[k] + 0.01;
        loss -= log(((double)seen[text[i]] + 0.01) / all);
    }
    loss /= d.length[SPLIT_VALIDATION] - 2;
    assert_true(loss > d.entropy_rate && loss < 1.5 * d.entropy_rate);
    dataset_close(&d);
}

/* Reads one clause up to the byte that ends it; asserts agreement and matching brackets. */
static const uint8_t *read_clause(const uint8_t *at, unsigned *asides);

static const uint8_t *read_aside(const uint8_t *at, unsigned *asides)
{
    static const char open[] = "([{<", close[] = ")]}>";
    const char *kind = strchr(open, *at);
    if (kind == NULL)
        return at;
    ++*asides;
    at = read_clause(at + 1, asides);
    assert_int_equal(*at, close[kind - open]);
    return at + 1;
}

static const uint8_t *read_clause(const uint8_t *at, unsigned *asides)
{
    const bool plural = *at >= 'n';
    assert_true(islower(*at));
    at = read_aside(at + 1, asides);
    assert_true(isupper(*at));
    assert_int_equal(*at++ >= 'N', plural);
    return islower(*at) ? read_aside(at + 1, asides) : at;
}

static void sentences_agree_and_close_their_brackets(void **state)
{
    (void)state;
    struct dataset d;
    unsigned sentences = 0, asides = 0;
    assert_int_equal(dataset_rig_load("grammar", SET("dataset.samples=2000"), true, &d), OK);
    const uint8_t *at = d.images[SPLIT_TRAIN], *end = at + d.length[SPLIT_TRAIN];
    while (end[-1] != '.') /* the last sentence may be incomplete */
        end--;
    for (; at < end; at++, sentences++) {
        at = read_clause(at, &asides);
        assert_int_equal(*at, '.');
    }
    /* A sentence has 1 / (1 − 0.45) clauses, and each but the first is in an aside. */
    assert_true(fabs((double)asides / sentences - 0.45 / 0.55) < 0.05);
    dataset_close(&d);
}

static void a_longer_text_begins_with_the_shorter_one(void **state)
{
    (void)state;
    struct dataset small, large, other;
    assert_int_equal(dataset_rig_load("grammar", SET("dataset.samples=10"), true, &small), OK);
    assert_int_equal(
        dataset_rig_load("grammar", SET("dataset.samples=70", "dataset.context=20"), true, &large),
        OK);
    assert_int_equal(
        dataset_rig_load("grammar", SET("dataset.samples=10", "dataset.seed=2"), true, &other), OK);
    assert_int_equal(small.count[SPLIT_TRAIN], 10);
    assert_int_equal(small.length[SPLIT_TRAIN], 641);
    assert_int_equal(small.count[SPLIT_TEST], 3);
    assert_int_equal(small.classes, 128);
    assert_int_equal(small.targets, 64);
    for (int s = 0; s < SPLIT_COUNT; s++) {
        const size_t bytes = small.length[s] < large.length[s] ? small.length[s] : large.length[s];
        assert_memory_equal(small.images[s], large.images[s], bytes);
        assert_memory_not_equal(small.images[s], other.images[s], bytes);
    }
    assert_memory_not_equal(small.images[SPLIT_TEST], small.images[SPLIT_VALIDATION], 100);
    dataset_close(&small);
    dataset_close(&large);
    dataset_close(&other);
}

static void a_text_beyond_4_gib_is_a_usage_error(void **state)
{
    (void)state;
    struct dataset d;
    assert_int_equal(dataset_rig_load("grammar", SET("dataset.samples=67108864"), false, &d),
                     ERROR_USAGE);
    assert_non_null(strstr(error_message(), "dataset.samples"));
    assert_int_equal(dataset_rig_load("grammar", SET("dataset.samples=67108863"), false, &d), OK);
    dataset_close(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_best_predictors_loss_is_the_stated_entropy_rate),
        cmocka_unit_test(the_rate_without_asides_is_that_of_words_and_ends),
        cmocka_unit_test(a_learner_stays_above_the_entropy_rate),
        cmocka_unit_test(sentences_agree_and_close_their_brackets),
        cmocka_unit_test(a_longer_text_begins_with_the_shorter_one),
        cmocka_unit_test(a_text_beyond_4_gib_is_a_usage_error),
    };
    return cmocka_run_group_tests(tests, dataset_rig_open, dataset_rig_close);
}
