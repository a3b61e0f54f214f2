#include "worker/cuda/cuda_rates.h"

#include "base/memory.h"

#include <string.h>

enum { ROUNDS = 3 };

const struct cuda_rates_size cuda_rates_full = {
    .product = 8192, .bytes = (size_t)1 << 28, .seconds = 0.1};

const char *cuda_arithmetic_name(enum cuda_arithmetic a)
{
    static const char *const names[] = {"fp32", "tf32", "bf16"};
    return names[a];
}

/* ---- timing -------------------------------------------------------------------------------------
 */

/* Work that may be queued repeatedly. */
struct cuda_rates_work {
    const struct cuda_kind *kind;
    cuda_device *device;
    status (*queue)(struct cuda_rates_work *w);
    cuda_product *product;
    struct cuda_product_call call;
    void *to, *from;
    size_t bytes;
};

static status timed(struct cuda_rates_work *w, unsigned times, double *seconds)
{
    status result = OK;
    double milliseconds = 0;
    TRY(w->kind->mark(w->device, 0));
    for (unsigned i = 0; i < times; i++)
        TRY(w->queue(w));
    TRY(w->kind->mark(w->device, 1));
    TRY(w->kind->synchronize(w->device));
    TRY(w->kind->elapsed(w->device, 0, 1, &milliseconds));
    *seconds = milliseconds > 0 ? milliseconds * 1e-3 : 1e-9;
done:
    return result;
}

/* Repeats per second, for each of `count` rounds. */
static status frequency(struct cuda_rates_work *w, double seconds, double *series, unsigned count)
{
    status result = OK;
    double once = 0, took = 0;
    TRY(timed(w, 1, &once)); /* loads kernels at their first use */
    TRY(timed(w, 2, &once));
    double wanted = 2 * seconds / once;
    unsigned times = wanted < 2 ? 2 : wanted > 10000 ? 10000 : (unsigned)wanted;
    TRY(timed(w, times, &took)); /* raises the clock rate */
    for (unsigned i = 0; i < count; i++) {
        TRY(timed(w, times, &took));
        series[i] = times / took;
    }
done:
    return result;
}

static double best(const double *series, unsigned count)
{
    double most = series[0];
    for (unsigned i = 1; i < count; i++)
        most = series[i] > most ? series[i] : most;
    return most;
}

/* ---- products -----------------------------------------------------------------------------------
 */

static status queue_product(struct cuda_rates_work *w)
{
    return w->kind->product_run(w->device, w->product, &w->call);
}

/* Random operands: on zeros a GPU draws less power and clocks higher than in real work. Any bits of
 * this pattern are small numbers as float32 and as pairs of bf16. */
static status fill(const struct cuda_kind *kind, cuda_device *d, void *to, size_t bytes)
{
    enum { PIECE = 1 << 20 };
    status result = OK;
    uint32_t *host = NULL, state = 12345;
    size_t piece = bytes < PIECE ? bytes : PIECE;
    TRY(kind->host_new(d, &host, PIECE, "operands"));
    for (size_t i = 0; i < PIECE / sizeof *host; i++) {
        state = state * 1664525u + 1013904223u;
        host[i] = 0x3c003c00u | ((state ^ state >> 15) & 0x837f837fu); /* ± 2^-7 … 1 */
    }
    for (size_t at = 0; at < bytes; at += piece) {
        size_t left = bytes - at;
        TRY(kind->copy_up(d, CUDA_COMPUTE, (char *)to + at, host, left < piece ? left : piece));
    }
    TRY(kind->synchronize(d));
done:
    kind->host_free(d, host);
    return result;
}

status cuda_rates_product(const struct cuda_kind *kind, cuda_device *d,
                          const struct cuda_product_shape *shape, double seconds, double *series,
                          unsigned count)
{
    status result = OK;
    struct cuda_rates_work w = {.kind = kind, .device = d, .queue = queue_product};
    void *a = NULL, *b = NULL;
    float *out = NULL, *bias = NULL;
    void *mask = NULL;
    size_t size = shape->arithmetic == CUDA_BF16 ? 2 : 4;
    size_t rows = shape->rows, columns = shape->columns, inner = shape->inner;
    size_t biases = rows > columns ? rows : columns;
    TRY(kind->memory_new(d, &a, rows * inner * size, "a measured product"));
    TRY(kind->memory_new(d, &b, inner * columns * size, "a measured product"));
    TRY(kind->memory_new(d, &out, rows * columns * sizeof *out, "a measured product"));
    TRY(kind->memory_new(d, &bias, biases * sizeof *bias, "a measured product"));
    TRY(kind->memory_new(d, &mask, cuda_mask_bytes(shape->rows, shape->columns), "a mask"));
    TRY(fill(kind, d, a, rows * inner * size));
    TRY(fill(kind, d, b, inner * columns * size));
    TRY(kind->clear(d, CUDA_COMPUTE, out, rows * columns * sizeof *out));
    TRY(kind->clear(d, CUDA_COMPUTE, bias, biases * sizeof *bias));
    TRY(kind->clear(d, CUDA_COMPUTE, mask, cuda_mask_bytes(shape->rows, shape->columns)));
    TRY(kind->product_open(d, shape, &w.product));
    w.call = (struct cuda_product_call){.a = a, .b = b, .d = out, .bias = bias, .mask = mask};
    TRY(frequency(&w, seconds, series, count));
    for (unsigned i = 0; i < count; i++)
        series[i] *= 2.0 * (double)rows * (double)columns * (double)inner;
done:
    if (w.product != NULL)
        kind->product_close(d, w.product);
    void *const all[] = {a, b, out, bias, mask};
    for (size_t i = 0; i < COUNT_OF(all); i++)
        kind->memory_free(d, all[i]);
    return result;
}

/* ---- copies -------------------------------------------------------------------------------------
 */

static status queue_within(struct cuda_rates_work *w)
{
    return w->kind->copy_within(w->device, CUDA_COMPUTE, w->to, w->from, w->bytes);
}

static status queue_up(struct cuda_rates_work *w)
{
    return w->kind->copy_up(w->device, CUDA_COMPUTE, w->to, w->from, w->bytes);
}

static status queue_down(struct cuda_rates_work *w)
{
    return w->kind->copy_down(w->device, CUDA_COMPUTE, w->to, w->from, w->bytes);
}

static status measure_copies(const struct cuda_kind *kind, cuda_device *d,
                             const struct cuda_rates_size *size, struct cuda_rates *out)
{
    status result = OK;
    void *one = NULL, *other = NULL, *host = NULL;
    double series[ROUNDS];
    struct cuda_rates_work w = {.kind = kind, .device = d, .bytes = size->bytes};
    TRY(kind->memory_new(d, &one, size->bytes, "a measured copy"));
    TRY(kind->memory_new(d, &other, size->bytes, "a measured copy"));
    TRY(kind->host_new(d, &host, size->bytes, "a measured copy"));
    memset(host, 1, size->bytes);
    const struct {
        status (*queue)(struct cuda_rates_work *w);
        void *to, *from;
        double factor, *rate;
    } copies[] = {
        {queue_up, one, host, 1, &out->up},
        {queue_within, other, one, 2, &out->memory},
        {queue_down, host, other, 1, &out->down},
    };
    for (size_t i = 0; i < COUNT_OF(copies); i++) {
        w.queue = copies[i].queue;
        w.to = copies[i].to;
        w.from = copies[i].from;
        TRY(frequency(&w, size->seconds, series, ROUNDS));
        *copies[i].rate = copies[i].factor * (double)size->bytes * best(series, ROUNDS);
    }
done:
    kind->memory_free(d, one);
    kind->memory_free(d, other);
    kind->host_free(d, host);
    return result;
}

/* ---- all ----------------------------------------------------------------------------------------
 */

status cuda_rates_measure(const struct cuda_kind *kind, unsigned index,
                          const struct cuda_rates_size *size, struct cuda_rates *out)
{
    status result = OK;
    cuda_device *d = NULL;
    const struct cuda_options o = {.index = index};
    double series[ROUNDS];
    *out = (struct cuda_rates){0};
    TRY(kind->open(&d, &o));
    for (int a = 0; a < CUDA_ARITHMETICS; a++) {
        const struct cuda_product_shape shape = {
            .rows = size->product,
            .columns = size->product,
            .inner = size->product,
            .b_transposed = true,
            .arithmetic = (enum cuda_arithmetic)a,
        };
        TRY(cuda_rates_product(kind, d, &shape, size->seconds, series, ROUNDS));
        out->product[a] = best(series, ROUNDS);
    }
    TRY(measure_copies(kind, d, size, out));
done:
    if (d != NULL)
        kind->close(&d);
    return result;
}

bool cuda_rates_slower(const double *rates, unsigned count, unsigned i)
{
    /* The median without sorting: the middle value, or the mean of the middle two. */
    double middle[2] = {rates[i], rates[i]};
    for (unsigned half = 0; half < 2; half++) {
        unsigned wanted = (count - 1 + half) / 2;
        for (unsigned c = 0; c < count; c++) {
            unsigned below = 0, equal = 0;
            for (unsigned k = 0; k < count; k++) {
                below += rates[k] < rates[c];
                equal += rates[k] == rates[c];
            }
            if (below <= wanted && wanted < below + equal)
                middle[half] = rates[c];
        }
    }
    return rates[i] < 0.9 * 0.5 * (middle[0] + middle[1]);
}
