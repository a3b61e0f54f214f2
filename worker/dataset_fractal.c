#include "worker/dataset_fractal.h"
#include "worker/dataset_store.h"
#include "worker/random.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum {
    ALGORITHM = 1, /* part of the cache's identity: raise it when the bytes change */
    MAPS = 4,      /* at most, per system */
    GRID = 16,     /* a class's look is judged on this many cells squared */
    ATTEMPTS = 100,
    TRIAL_POINTS = 4096,
    SETTLING = 20, /* first points of a chaos game, not yet on the attractor */
    POINTS_PER_PIXEL = 6,
    THREADS = 64,
};

struct map {
    double a[4], b[2]; /* x' = a0 x + a1 y + b0;  y' = a2 x + a3 y + b1 */
    double colour[DATASET_CHANNELS];
};

struct system {
    struct map maps[MAPS];
    unsigned count;
    uint32_t choice[MAPS]; /* map m is taken when 16 random bits are below choice[m] */
    double centre[2], reach;
    float look[GRID * GRID]; /* share of the points in each cell, scaled to unit length */
};

static double between(struct random_stream *r, double low, double high)
{
    return low + (high - low) * random_uniform(r);
}

/* A direction on the unit circle, by rejection, which needs no sine. */
static void draw_direction(struct random_stream *r, double out[2])
{
    double x, y, square;
    do {
        x = between(r, -1, 1);
        y = between(r, -1, 1);
        square = x * x + y * y;
    } while (square < 0.01 || square > 1);
    out[0] = x / sqrt(square);
    out[1] = y / sqrt(square);
}

/* A = rotation · diag(s, t) · rotation, singular values below 0.8: with the largest variation of a
 * sample (a tenth of each entry) it still contracts. */
static void draw_map(struct random_stream *r, struct map *m)
{
    double u[2], v[2], s = between(r, 0.35, 0.8), t = between(r, 0.15, 1) * s;
    draw_direction(r, u);
    draw_direction(r, v);
    if (random_bits(r) & 1) {
        t = -t;
    }
    m->a[0] = s * u[0] * v[0] - t * u[1] * v[1];
    m->a[1] = -s * u[0] * v[1] - t * u[1] * v[0];
    m->a[2] = s * u[1] * v[0] + t * u[0] * v[1];
    m->a[3] = -s * u[1] * v[1] + t * u[0] * v[0];
    m->b[0] = between(r, -1, 1);
    m->b[1] = between(r, -1, 1);
    for (int c = 0; c < DATASET_CHANNELS; c++) {
        m->colour[c] = between(r, 0.1, 1);
    }
}

/* Maps are taken as often as their image is large (FractalDB), but never hardly at all. */
static void set_choices(struct system *s)
{
    double weight[MAPS], sum = 0, so_far = 0;
    for (unsigned m = 0; m < s->count; m++) {
        const double *a = s->maps[m].a;
        weight[m] = fabs(a[0] * a[3] - a[1] * a[2]) + 0.05;
        sum += weight[m];
    }
    for (unsigned m = 0; m < s->count; m++) {
        so_far += weight[m];
        s->choice[m] = (uint32_t)(65536 * so_far / sum);
    }
    s->choice[s->count - 1] = 65536;
}

struct game { /* a chaos game in progress */
    const struct system *system;
    struct random_stream r;
    double x, y;
    uint32_t bits;
    bool half; /* the upper half of `bits` is unused yet */
};

static unsigned game_step(struct game *g)
{
    const struct system *s = g->system;
    unsigned m = 0;
    g->bits = g->half ? g->bits >> 16 : random_bits(&g->r);
    g->half = !g->half;
    while ((g->bits & 0xffff) >= s->choice[m]) {
        m++;
    }
    const double *a = s->maps[m].a, *b = s->maps[m].b;
    double x = a[0] * g->x + a[1] * g->y + b[0];
    g->y = a[2] * g->x + a[3] * g->y + b[1];
    g->x = x;
    return m;
}

static void game_begin(struct game *g, const struct system *s, const struct random_stream *r)
{
    *g = (struct game){.system = s, .r = *r};
    for (int i = 0; i < SETTLING; i++) {
        (void)game_step(g);
    }
}

/* Frames the attractor and notes its look. False where it is degenerate: a line, a few points, or a
 * blot that fills its frame. */
static bool judge(struct system *s, const struct random_stream *r)
{
    static _Thread_local double points[TRIAL_POINTS][2];
    double low[2] = {1e9, 1e9}, high[2] = {-1e9, -1e9};
    struct game g;

    game_begin(&g, s, r);
    for (int i = 0; i < TRIAL_POINTS; i++) {
        (void)game_step(&g);
        points[i][0] = g.x;
        points[i][1] = g.y;
        for (int k = 0; k < 2; k++) {
            low[k] = points[i][k] < low[k] ? points[i][k] : low[k];
            high[k] = points[i][k] > high[k] ? points[i][k] : high[k];
        }
    }
    double width = high[0] - low[0], height = high[1] - low[1];
    s->reach = 0.5 * (width > height ? width : height);
    if (!(width > 0.6 * s->reach && height > 0.6 * s->reach && s->reach > 0.05)) {
        return false;
    }
    memset(s->look, 0, sizeof s->look);
    for (int k = 0; k < 2; k++) {
        s->centre[k] = 0.5 * (low[k] + high[k]);
    }
    for (int i = 0; i < TRIAL_POINTS; i++) {
        int cell[2];
        for (int k = 0; k < 2; k++) {
            double at = (points[i][k] - s->centre[k]) / s->reach;
            int index = (int)((at + 1) * 0.5 * GRID);
            cell[k] = index < 0 ? 0 : index >= GRID ? GRID - 1 : index;
        }
        s->look[cell[1] * GRID + cell[0]]++;
    }
    int filled = 0;
    double squares = 0;
    for (int i = 0; i < GRID * GRID; i++) {
        filled += s->look[i] > 0;
        squares += (double)s->look[i] * (double)s->look[i];
    }
    for (int i = 0; i < GRID * GRID; i++) {
        s->look[i] = (float)((double)s->look[i] / sqrt(squares));
    }
    return filled > GRID * GRID / 8 && filled < GRID * GRID * 3 / 4;
}

/* Cosine of the angle between two looks: 1 is alike. */
static double likeness(const struct system *a, const struct system *b)
{
    double sum = 0;
    for (int i = 0; i < GRID * GRID; i++) {
        sum += (double)a->look[i] * (double)b->look[i];
    }
    return sum;
}

/* Takes the first system that is sound and unlike the classes before; after ATTEMPTS sound ones,
 * that which is least alike. */
static void draw_class(struct system *classes, uint32_t c, uint64_t seed)
{
    struct random_stream r;
    double best = 2;
    struct system s = {0};

    random_open(&r, RANDOM_DATASET, seed, 0, c);
    for (int attempt = 0; attempt < ATTEMPTS;) {
        s.count = 2 + random_below(&r, MAPS - 1);
        for (unsigned m = 0; m < s.count; m++) {
            draw_map(&r, &s.maps[m]);
        }
        set_choices(&s);
        if (!judge(&s, &r)) {
            continue;
        }
        attempt++;
        double worst = 0;
        for (uint32_t before = 0; before < c && worst < best; before++) {
            double alike = likeness(&s, &classes[before]);
            worst = alike > worst ? alike : worst;
        }
        if (worst < best) {
            best = worst;
            classes[c] = s;
        }
        if (best < 0.5) {
            break;
        }
    }
}

/* A sample's own system: each entry of A strays by up to a tenth, the rest by a like amount. */
static void stray(struct system *s, struct random_stream *r, double variation)
{
    double d = 0.1 * variation;
    for (unsigned m = 0; m < s->count; m++) {
        for (int i = 0; i < 4; i++) {
            s->maps[m].a[i] *= between(r, 1 - d, 1 + d);
        }
        for (int k = 0; k < 2; k++) {
            s->maps[m].b[k] += s->reach * between(r, -d, d);
        }
        for (int c = 0; c < DATASET_CHANNELS; c++) {
            s->maps[m].colour[c] *= between(r, 1 - 3 * d, 1);
        }
    }
}

struct job {
    const struct dataset *shape;
    const struct system *classes;
    uint64_t seed;
    double variation;
    uint8_t *const *images;
    uint32_t *const *labels;
    float *canvas; /* [channels][height][width] */
    unsigned thread, threads;
};

/* Turned, scaled and shifted a little, drawn on the canvas, then toned: v/(v + mean of the pixels
 * hit), which shows dense and thin parts alike. */
static void render(const struct job *job, uint32_t split, uint32_t n)
{
    const struct dataset *d = job->shape;
    const uint32_t side = d->width, plane = d->height * d->width;
    struct random_stream r;
    struct game g;

    random_open(&r, RANDOM_DATASET, job->seed, 1 + split, n);
    struct system s = job->classes[job->labels[split][n]];
    double v = job->variation;
    stray(&s, &r, v);
    double turn = between(&r, -0.25, 0.25) * v, length = sqrt(1 + turn * turn);
    double zoom = between(&r, 1 - 0.15 * v, 1 + 0.15 * v) * 0.5 * side / (1.1 * s.reach);
    double along = zoom / length, across = zoom * turn / length;
    double shift[2] = {0.5 * side + between(&r, -0.1, 0.1) * v * side,
                       0.5 * side + between(&r, -0.1, 0.1) * v * side};

    memset(job->canvas, 0, plane * d->channels * sizeof *job->canvas);
    game_begin(&g, &s, &r);
    for (uint32_t i = 0; i < plane * POINTS_PER_PIXEL; i++) {
        unsigned m = game_step(&g);
        double x = g.x - s.centre[0], y = g.y - s.centre[1];
        double column = along * x - across * y + shift[0], row = across * x + along * y + shift[1];
        if (column >= 0 && column < side && row >= 0 && row < side) {
            float *pixel = job->canvas + (uint32_t)row * side + (uint32_t)column;
            for (uint32_t c = 0; c < d->channels; c++) {
                pixel[(size_t)c * plane] += d->channels > 1 ? (float)s.maps[m].colour[c] : 1.0f;
            }
        }
    }
    float sum = 0, hit = 0.5f;
    for (uint32_t i = 0; i < plane * d->channels; i++) {
        sum += job->canvas[i];
        hit += job->canvas[i] > 0 ? 1.0f : 0.0f;
    }
    float middle = sum / hit + 1e-3f;
    uint8_t *out = job->images[split] + (size_t)n * plane * d->channels;
    for (uint32_t i = 0; i < plane * d->channels; i++) {
        out[i] = (uint8_t)(255.99f * job->canvas[i] / (job->canvas[i] + middle));
    }
}

static void *run_job(void *context)
{
    const struct job *job = context;
    for (uint32_t split = 0; split < SPLIT_COUNT; split++) {
        for (uint32_t n = job->thread; n < job->shape->count[split]; n += job->threads) {
            render(job, split, n);
        }
    }
    return NULL;
}

status fractal_generate(const struct dataset *shape, uint64_t seed, double variation,
                        unsigned threads, uint8_t *const images[SPLIT_COUNT],
                        uint32_t *const labels[SPLIT_COUNT])
{
    status result = OK;
    struct system *classes = NULL;
    float *canvas = NULL;
    struct job jobs[THREADS];
    pthread_t handles[THREADS];
    unsigned started = 0;
    size_t size = dataset_image_size(shape);

    REQUIRE(shape->width == shape->height);
    threads = threads < 1 ? 1 : threads > THREADS ? THREADS : threads;
    TRY(memory_new(&classes, shape->classes, sizeof *classes, "fractal classes"));
    TRY(memory_new(&canvas, threads * size, sizeof *canvas, "fractal canvas"));
    for (uint32_t c = 0; c < shape->classes; c++) {
        draw_class(classes, c, seed);
    }
    for (uint32_t split = 0; split < SPLIT_COUNT; split++) {
        dataset_draw_labels(shape, split, seed, labels[split]);
    }
    for (unsigned t = 0; t < threads; t++) {
        jobs[t] = (struct job){.shape = shape,
                               .classes = classes,
                               .seed = seed,
                               .variation = variation,
                               .images = images,
                               .labels = labels,
                               .canvas = canvas + t * size,
                               .thread = t,
                               .threads = threads};
    }
    while (started + 1 < threads &&
           pthread_create(&handles[started], NULL, run_job, &jobs[started]) == 0) {
        started++;
    }
    for (unsigned t = started; t < threads; t++) { /* those that got no thread are done here */
        (void)run_job(&jobs[t]);
    }
    for (unsigned t = 0; t < started; t++) {
        REQUIRE(pthread_join(handles[t], NULL) == 0);
    }
done:
    memory_free(classes);
    memory_free(canvas);
    return result;
}

/* ---- the registry's side ------------------------------------------------------------------------
 */

static const struct option fractal_options[] = {
    {"dataset.classes", OPTION_INTEGER, "10", 2, 10000, NULL, NULL, "number of classes"},
    {"dataset.samples", OPTION_INTEGER, "10000", 1, 1e7, NULL, NULL,
     "training samples; validation and test have a quarter of that each"},
    {"dataset.size", OPTION_INTEGER, "28", 8, 512, NULL, NULL, "height and width in pixels"},
    {"dataset.channels", OPTION_INTEGER, "1", 1, DATASET_CHANNELS, NULL, NULL, "colour channels"},
    {"dataset.variation", OPTION_REAL, "1", 0, 1, NULL, NULL,
     "how far a sample strays from its class: form, turn, size and place"},
    {"dataset.seed", OPTION_INTEGER, "1", 0, 1e15, NULL, NULL, "seed of the data itself"},
    {0},
};

static status describe(const options *o, struct dataset *out)
{
    /* The pixels' mean and deviation are about 0.08 and 0.19. */
    dataset_describe_made_up(o, (float)(1 / (255 * 0.19)), (float)(-0.08 / 0.19), out);
    return OK;
}

static status fill(void *context, const struct dataset *d, uint8_t *const images[SPLIT_COUNT],
                   uint32_t *const labels[SPLIT_COUNT])
{
    const options *o = context;
    return fractal_generate(d, (uint64_t)options_integer(o, "dataset.seed"),
                            options_real(o, "dataset.variation"), processor_count(), images,
                            labels);
}

static status load(const options *o, struct dataset *d)
{
    char identity[256];
    (void)snprintf(identity, sizeof identity, "fractal %d %u %u %u %u %lld %a", ALGORITHM,
                   d->classes, d->count[SPLIT_TRAIN], d->width, d->channels,
                   (long long)options_integer(o, "dataset.seed"),
                   options_real(o, "dataset.variation"));
    return dataset_store_load(d, "fractal", identity, fill, (void *)(uintptr_t)o);
}

const struct dataset_kind dataset_fractal = {
    .about = {"fractal", "formula-driven images, each class an iterated function system",
              "Kataoka et al. 2020, FractalDB; Anderson, Farrell 2022", fractal_options},
    .describe = describe,
    .load = load,
};
