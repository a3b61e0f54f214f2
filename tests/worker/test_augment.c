/* test_augment.c — crops of training samples, and the random stream that draws them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "worker/data/augment.h"
#include "base/random.h"

static const uint32_t label = 0;

/* One image with one or more channels as a dataset. The model reads 2·byte + 10, plus 100 per
 * channel. */
static struct dataset of_one(const uint8_t *image, uint32_t channels, uint32_t height,
                             uint32_t width)
{
    struct dataset d = {.channels = channels, .height = height, .width = width, .classes = 1};
    d.count[SPLIT_TRAIN] = 1;
    d.images[SPLIT_TRAIN] = image;
    d.labels[SPLIT_TRAIN] = &label;
    for (uint32_t c = 0; c < channels; c++) {
        d.scale[c] = 2;
        d.shift[c] = 10 + 100 * (float)c;
    }
    return d;
}

static const uint8_t small[12] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}; /* 3 rows of 4 */

static void crops_equal_values_computed_by_hand(void **state)
{
    (void)state;
    static const struct {
        struct crop crop;
        float wanted[12];
    } golden[] = {
        {{0, 0, 0, 0}, {12, 14, 16, 18, 20, 22, 24, 26, 28, 30, 32, 34}},
        {{0, 0, 1, 0}, {18, 16, 14, 12, 26, 24, 22, 20, 34, 32, 30, 28}},
        {{1, 0, 0, 0}, {0, 12, 14, 16, 0, 20, 22, 24, 0, 28, 30, 32}},
        {{-2, 0, 0, 0}, {16, 18, 0, 0, 24, 26, 0, 0, 32, 34, 0, 0}},
        {{0, 1, 0, 0}, {0, 0, 0, 0, 12, 14, 16, 18, 20, 22, 24, 26}},
        {{1, -1, 1, 0}, {24, 22, 20, 0, 32, 30, 28, 0, 0, 0, 0, 0}},
        {{4, 0, 0, 0}, {0}},
        {{-4, 0, 1, 0}, {0}},
        {{0, -3, 0, 0}, {0}},
        {{127, -128, 1, 0}, {0}},
    };
    struct dataset d = of_one(small, 1, 3, 4);
    for (size_t i = 0; i < COUNT_OF(golden); i++) {
        float out[12];
        memset(out, 0xff, sizeof out);
        dataset_gather(&d, SPLIT_TRAIN, NULL, 0, 1, &golden[i].crop, out, NULL);
        for (int p = 0; p < 12; p++) {
            if (out[p] != golden[i].wanted[p]) {
                fail_msg("crop %zu, position %d: %g instead of %g", i, p, (double)out[p],
                         (double)golden[i].wanted[p]);
            }
        }
    }
}

/* Position (y, x) of a cropped image, as defined by struct crop: first shifted, then mirrored. */
static float shown(const struct dataset *d, struct crop crop, uint32_t c, int y, int x)
{
    int from_x = (crop.flip ? (int)d->width - 1 - x : x) - crop.dx, from_y = y - crop.dy;
    if (from_x < 0 || from_x >= (int)d->width || from_y < 0 || from_y >= (int)d->height)
        return 0;
    uint32_t at = (c * d->height + (uint32_t)from_y) * d->width + (uint32_t)from_x;
    return d->scale[c] * (float)d->images[SPLIT_TRAIN][at] + d->shift[c];
}

static void crops_shift_and_mirror_every_channel_equally(void **state)
{
    (void)state;
    static const uint32_t shapes[][3] = {{3, 32, 32}, {1, 28, 28}, {4, 5, 7}, {2, 1, 1}, {3, 9, 3}};
    static uint8_t image[4 * 32 * 32];
    static float out[4 * 32 * 32];
    struct random_stream r;
    random_open(&r, RANDOM_TEST, 1, 0, 0);
    for (size_t i = 0; i < sizeof image; i++)
        image[i] = (uint8_t)random_bits(&r);
    for (int round = 0; round < 500; round++) {
        const uint32_t *s = shapes[(size_t)round % COUNT_OF(shapes)];
        struct dataset d = of_one(image, s[0], s[1], s[2]);
        struct crop crop = {(int8_t)((int)random_below(&r, 17) - 8),
                            (int8_t)((int)random_below(&r, 17) - 8), random_below(&r, 2) != 0, 0};
        dataset_gather(&d, SPLIT_TRAIN, NULL, 0, 1, &crop, out, NULL);
        for (uint32_t i = 0; i < s[0] * s[1] * s[2]; i++) {
            int x = (int)(i % s[2]), y = (int)(i / s[2] % s[1]);
            assert_true(out[i] == shown(&d, crop, i / (s[1] * s[2]), y, x));
        }
    }
}

static void every_crop_is_drawn_equally_often(void **state)
{
    (void)state;
    enum { WAYS = 9, BATCH = 1000, BATCHES = 162 };
    static struct crop crops[BATCH];
    static unsigned seen[WAYS][WAYS][2];
    memset(seen, 0, sizeof seen);
    for (uint64_t batch = 0; batch < BATCHES; batch++) {
        augment_draw(3, 1, batch, BATCH, crops);
        for (int i = 0; i < BATCH; i++) {
            assert_in_range(crops[i].dx + 4, 0, WAYS - 1);
            assert_in_range(crops[i].dy + 4, 0, WAYS - 1);
            assert_in_range(crops[i].flip, 0, 1);
            seen[crops[i].dx + 4][crops[i].dy + 4][crops[i].flip]++;
        }
    }
    double chi = 0; /* 161 degrees of freedom: mean 161, standard deviation 18 */
    for (int i = 0; i < WAYS * WAYS * 2; i++) {
        double apart = (double)seen[i / 2 % WAYS][i / 2 / WAYS][i % 2] - BATCH;
        chi += apart * apart / BATCH;
    }
    assert_true(chi > 161 - 5 * 18 && chi < 161 + 5 * 18);
}

static void crops_are_a_pure_function_of_seed_worker_and_batch(void **state)
{
    (void)state;
    struct crop first[64], again[64], other[64];
    augment_draw(7, 2, 5, 64, first);
    augment_draw(7, 2, 6, 64, other);
    assert_memory_not_equal(first, other, sizeof first);
    augment_draw(7, 3, 5, 64, other);
    assert_memory_not_equal(first, other, sizeof first);
    augment_draw(8, 2, 5, 64, other);
    assert_memory_not_equal(first, other, sizeof first);
    augment_draw(7, 2, 5, 64, again);
    assert_memory_equal(first, again, sizeof first);
    /* A smaller batch crops its samples in the same way. */
    augment_draw(7, 2, 5, 10, again);
    assert_memory_equal(first, again, 10 * sizeof *first);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(crops_equal_values_computed_by_hand),
        cmocka_unit_test(crops_shift_and_mirror_every_channel_equally),
        cmocka_unit_test(every_crop_is_drawn_equally_often),
        cmocka_unit_test(crops_are_a_pure_function_of_seed_worker_and_batch),
    };
    return cmocka_run_group_tests_name("augment", tests, NULL, NULL);
}
