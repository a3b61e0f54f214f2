/*
 * dataset_gaussian.c — classes that are normal distributions with unit variance; fast, for tests.
 *
 * The mean distance between two class means is dataset.separation, for every image size: each pixel
 * of a class mean is normal with deviation separation / √(2·pixels). A pixel is stored as a byte,
 * in steps of 1/16 within ±8. The data depend on dataset.seed, not on the run's seed.
 */
#include "base/memory.h"
#include "worker/data/dataset_store.h"
#include "base/random.h"

#include <math.h>

static const struct option gaussian_options[] = {
    {"dataset.classes", OPTION_INTEGER, "10", 2, 1000, NULL, NULL, "number of classes"},
    {"dataset.samples", OPTION_INTEGER, "2000", 1, 1e7, NULL, NULL,
     "training samples; the validation and test splits have a quarter each"},
    {"dataset.size", OPTION_INTEGER, "28", 1, 1024, NULL, NULL, "height and width in pixels"},
    {"dataset.channels", OPTION_INTEGER, "1", 1, DATASET_CHANNELS, NULL, NULL, "colour channels"},
    {"dataset.separation", OPTION_REAL, "8", 0, 1000, NULL, NULL,
     "mean distance between class means, in standard deviations of the noise"},
    {"dataset.seed", OPTION_INTEGER, "1", 0, 1e15, NULL, NULL, "seed of the generated data"},
    {0},
};

static status describe(const options *o, struct dataset *out)
{
    dataset_describe_made_up(o, 1.0f / 16, -8.0f, out);
    return OK;
}

static uint8_t to_byte(double value)
{
    double level = floor((value + 8) * 16 + 0.5);
    return (uint8_t)(level < 0 ? 0 : level > 255 ? 255 : level);
}

static status fill(void *context, const struct dataset *d, uint8_t *const images[SPLIT_COUNT],
                   uint32_t *const labels[SPLIT_COUNT])
{
    status result = OK;
    const options *o = context;
    uint64_t seed = (uint64_t)options_integer(o, "dataset.seed");
    size_t size = dataset_image_size(d);
    double deviation = options_real(o, "dataset.separation") / sqrt(2.0 * (double)size);
    double *means = NULL;
    struct random_stream r;

    TRY(memory_new(&means, d->classes * size, sizeof *means, "class means"));
    for (uint32_t c = 0; c < d->classes; c++) {
        random_open(&r, RANDOM_DATASET, seed, 0, c);
        for (size_t i = 0; i < size; i++)
            means[c * size + i] = deviation * random_normal(&r);
    }
    for (uint32_t s = 0; s < SPLIT_COUNT; s++) {
        dataset_draw_labels(d, s, seed, labels[s]);
        for (uint32_t n = 0; n < d->count[s]; n++) {
            random_open(&r, RANDOM_DATASET, seed, 1 + s, n);
            uint32_t c = labels[s][n];
            for (size_t i = 0; i < size; i++)
                images[s][n * size + i] = to_byte(means[c * size + i] + random_normal(&r));
        }
    }

done:
    memory_free(means);
    return result;
}

static status load(const options *o, struct dataset *d)
{
    return dataset_store_load(d, "gaussian", NULL, fill, (void *)(uintptr_t)o);
}

const struct dataset_kind dataset_gaussian = {
    .about = {"gaussian", "normal distributions around random class means, for tests", NULL,
              gaussian_options},
    .describe = describe,
    .load = load,
};
