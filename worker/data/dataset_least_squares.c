/*
 * dataset_least_squares.c — random least squares, b = A x + noise: a problem of optimisation,
 * without generalisation.
 *
 * The problem of Mishchenko, Bach, Even, Woodworth 2022 ("Asynchronous SGD beats minibatch SGD
 * under arbitrary delays", published code): entries of A are uniform on [0, 1] divided by √d, x is
 * standard normal, the noise has deviation 1e-5, n = 10⁴ rows, d = 400. The objective is f(θ) = |A
 * θ − b|² / 2n over these rows. All three splits are therefore equal, and their loss is f.
 *
 * A row is an "image" of size × size pixels. An entry is stored as a byte, in steps of 1/255 of its
 * range. b is stored in steps of 2⁻²¹ (4.8e-7) within ±4; this rounding adds as much to f as noise
 * of deviation 1.4e-7.
 */
#include "base/memory.h"
#include "worker/data/dataset_store.h"
#include "base/random.h"

#include <math.h>

#define TARGET_LEVELS 16777216 /* float32 represents every level exactly */
#define TARGET_REACH  4

static const struct option least_squares_options[] = {
    {"dataset.samples", OPTION_INTEGER, "10000", 1, 1e7, NULL, NULL, "rows of A"},
    {"dataset.size", OPTION_INTEGER, "20", 1, 1024, NULL, NULL,
     "square root of the number of unknowns"},
    {"dataset.noise", OPTION_REAL, "1e-5", 0, 1, NULL, NULL,
     "standard deviation of the noise in b"},
    {"dataset.seed", OPTION_INTEGER, "1", 0, 1e15, NULL, NULL, "seed of the generated data"},
    {0},
};

static status describe(const options *o, struct dataset *out)
{
    uint32_t size = (uint32_t)options_integer(o, "dataset.size");
    out->channels = out->classes = 1;
    out->height = out->width = size;
    out->scale[0] = 1.0f / (255 * (float)size);
    out->target_scale = 2.0f * TARGET_REACH / TARGET_LEVELS;
    out->target_shift = -TARGET_REACH;
    for (int s = 0; s < SPLIT_COUNT; s++)
        out->count[s] = (uint32_t)options_integer(o, "dataset.samples");
    return OK;
}

/* Draws one row of A; returns the level of its b. */
static uint32_t draw_row(const struct dataset *d, const double *x, double noise, uint64_t seed,
                         uint32_t n, uint8_t *row)
{
    struct random_stream r;
    double b = 0;
    random_open(&r, RANDOM_DATASET, seed, 1, n);
    for (size_t i = 0; i < dataset_image_size(d); i++) {
        row[i] = (uint8_t)random_below(&r, 256);
        b += (double)d->scale[0] * row[i] * x[i];
    }
    b += noise * random_normal(&r);
    double level = floor((b + TARGET_REACH) / (double)d->target_scale + 0.5);
    return (uint32_t)fmin(fmax(level, 0), TARGET_LEVELS - 1);
}

static status load(const options *o, struct dataset *d)
{
    status result = OK;
    uint64_t seed = (uint64_t)options_integer(o, "dataset.seed");
    double noise = options_real(o, "dataset.noise"), *x = NULL;
    size_t size = dataset_image_size(d);
    uint32_t rows = d->count[SPLIT_TRAIN];
    struct random_stream r;
    TRY(memory_new(&x, size, sizeof *x, "the solution"));
    TRY(memory_new(&d->owner, rows, size + sizeof(uint32_t), "least squares"));
    uint32_t *labels = d->owner;
    uint8_t *a = (uint8_t *)(labels + rows);
    random_open(&r, RANDOM_DATASET, seed, 0, 0);
    for (size_t i = 0; i < size; i++)
        x[i] = random_normal(&r);
    for (uint32_t n = 0; n < rows; n++)
        labels[n] = draw_row(d, x, noise, seed, n, a + n * size);
    for (int s = 0; s < SPLIT_COUNT; s++) {
        d->images[s] = a;
        d->labels[s] = labels;
    }
done:
    memory_free(x);
    return result;
}

const struct dataset_kind dataset_least_squares = {
    .about = {"least-squares", "random least squares: the targets are numbers, not classes",
              "Mishchenko, Bach, Even, Woodworth 2022, Asynchronous SGD beats minibatch SGD",
              least_squares_options},
    .describe = describe,
    .load = load,
    .numeric = true,
};
