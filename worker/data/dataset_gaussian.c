/*
 * dataset_gaussian.c — classes that are normal distributions with unit variance; fast, for tests.
 *
 * The mean distance between two class means is dataset.separation: each pixel of a class mean is
 * normal with deviation separation / √(2·pixels). A pixel is stored as a byte, in steps of 1/16
 * within ±8. So the stored distance is smaller if that deviation is large: by 1 % at 3, by 5 % at
 * 4, by 10 % at 5. The data depend on dataset.seed, not on the run's seed.
 */
#include "base/memory.h"
#include "base/random.h"
#include "worker/data/dataset_shared.h"
#include "worker/data/dataset_store.h"

#include <math.h>
#include <stdio.h>

static const struct option gaussian_options[] = {
    {"dataset.classes", OPTION_INTEGER, "10", 2, 1000, NULL, NULL, "number of classes"},
    {"dataset.samples", OPTION_INTEGER, "2000", 1, 1e7, NULL, NULL,
     "training samples; the validation and test splits have a quarter each"},
    {"dataset.size", OPTION_INTEGER, "28", 1, 1024, NULL, NULL, "height and width in pixels"},
    {"dataset.channels", OPTION_INTEGER, "1", 1, DATASET_CHANNELS, NULL, NULL, "colour channels"},
    {"dataset.separation", OPTION_REAL, "8", 0, 1000, NULL, NULL,
     "mean distance between class means, in standard deviations of the noise; smaller above 3·√(2 "
     "· "
     "pixels), because pixels are stored within ±8"},
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

struct gaussian {
    uint64_t seed;
    double separation;
    double *means; /* [classes][size] */
};

static status draw_means(void *context, const struct dataset *d)
{
    status result = OK;
    struct gaussian *g = context;
    const size_t size = dataset_image_size(d);
    const double deviation = g->separation / sqrt(2.0 * (double)size);
    struct random_stream r;
    TRY(memory_new(&g->means, d->classes * size, sizeof *g->means, "class means"));
    for (uint32_t c = 0; c < d->classes; c++) {
        random_open(&r, RANDOM_DATASET, g->seed, 0, c);
        random_normals(&r, g->means + c * size, size);
        for (size_t i = 0; i < size; i++)
            g->means[c * size + i] *= deviation;
    }
done:
    return result;
}

static void draw(void *context, const struct dataset *d, enum dataset_split split, uint32_t n,
                 uint32_t label, uint8_t *image)
{
    enum { PART = 1024 };
    const struct gaussian *g = context;
    const size_t size = dataset_image_size(d);
    const double *means = g->means + label * size;
    double noise[PART];
    struct random_stream r;
    random_open(&r, RANDOM_DATASET, g->seed, 1 + (uint32_t)split, n);
    for (size_t from = 0; from < size; from += PART) {
        const size_t count = size - from < PART ? size - from : PART;
        random_normals(&r, noise, count);
        for (size_t i = 0; i < count; i++)
            image[from + i] = to_byte(means[from + i] + noise[i]);
    }
}

static status load(const options *o, struct dataset *d)
{
    struct gaussian g = {.seed = (uint64_t)options_integer(o, "dataset.seed"),
                         .separation = options_real(o, "dataset.separation")};
    const struct dataset_images images = {.prepare = draw_means, .draw = draw, .context = &g};
    char identity[256];
    (void)snprintf(identity, sizeof identity, "gaussian %u %u %u %u %llu %a", d->classes,
                   d->count[SPLIT_TRAIN], d->width, d->channels, (unsigned long long)g.seed,
                   g.separation);
    const status result = dataset_shared_load(d, identity, g.seed, &images);
    memory_free(g.means);
    return result;
}

const struct dataset_kind dataset_gaussian = {
    .about = {"gaussian", "normal distributions around random class means, for tests", NULL,
              gaussian_options},
    .describe = describe,
    .load = load,
    .shared = true,
};
