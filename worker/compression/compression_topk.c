/*
 * compression_topk.c — sends the k largest floats of the whole vector by absolute value; the others
 * stay in the residual (Stich et al. 2018, definition 2.1, with memory: algorithm 1).
 * k = compression.ratio × count, rounded, at least 1. Among equal ones the first are sent.
 *
 * A code is k indices, ascending, then their k values: 8·k bytes. Between P ranks, every rank sends
 * its code to all others: P·(P − 1)·8·k bytes, fewer than float32 while ratio × P < 1.
 * Values that are not finite count as the largest, so they are sent.
 */
#include "base/memory.h"
#include "worker/compression/compression.h"

#include <math.h>
#include <string.h>

/* Radix select finds the k-th largest, digit by digit from the highest bit: 2048 counts per digit.
 */
enum { DIGIT_BITS = 11, DIGITS = 3, DIGIT_VALUES = 1 << DIGIT_BITS, TABLES = 4 };

struct topk_state {
    size_t k;
    /* Neighbours are counted in different tables: they are often equal, and an increment would wait
     * for the one before it. */
    uint32_t counts[DIGIT_VALUES][TABLES];
};

static status topk_open(compression *z, const options *o)
{
    status result = OK;
    struct topk_state *s = NULL;

    if (z->count > UINT32_MAX)
        FAIL(ERROR_USAGE,
             "compression=topk: %zu parameters exceed the range of 32-bit indices; use another "
             "compression",
             z->count);
    TRY(memory_new(&s, 1, sizeof *s, "the compression"));
    s->k = (size_t)llround(options_real(o, "compression.ratio") * (double)z->count);
    s->k = s->k > 0 ? s->k : 1;
    s->k = s->k < z->count ? s->k : z->count;
    z->state = s;
done:
    return result;
}

static void topk_close(compression *z)
{
    memory_free(z->state);
}

static size_t topk_code_bytes(const compression *z)
{
    const struct topk_state *s = z->state;
    return s->k * (sizeof(uint32_t) + sizeof(float));
}

/* The bits of |value|: they order like |value|, with NaN last. */
static inline uint32_t size_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits & 0x7fffffffu;
}

static size_t counted(const struct topk_state *s, uint32_t value)
{
    size_t sum = 0;
    for (unsigned t = 0; t < TABLES; t++)
        sum += s->counts[value][t];
    return sum;
}

/* The k-th largest size. *of_equal ← how many of the k sizes equal it. */
static uint32_t threshold_of(struct topk_state *s, const float *values, size_t count,
                             size_t *of_equal)
{
    uint32_t found = 0;
    size_t left = s->k;

    for (unsigned digit = DIGITS; digit-- > 0;) {
        const unsigned shift = digit * DIGIT_BITS;
        memset(s->counts, 0, sizeof s->counts);
        for (size_t i = 0; i < count; i++) {
            uint64_t size = size_of(values[i]);
            if (size >> (shift + DIGIT_BITS) == (uint64_t)found >> (shift + DIGIT_BITS))
                s->counts[size >> shift & (DIGIT_VALUES - 1)][i % TABLES]++;
        }
        uint32_t value = DIGIT_VALUES - 1;
        for (; counted(s, value) < left; value--)
            left -= counted(s, value);
        found |= value << shift;
    }
    *of_equal = left;
    return found;
}

static void topk_encode(compression *z, float *values, size_t count, void *code)
{
    struct topk_state *s = z->state;
    uint32_t *indices = code;
    float *kept = (float *)code + s->k;
    size_t equal, n = 0;
    const uint32_t threshold = threshold_of(s, values, count, &equal);

    for (size_t i = 0; i < count && n < s->k; i++) {
        uint32_t size = size_of(values[i]);
        if (size < threshold || (size == threshold && equal == 0))
            continue;
        equal -= size == threshold;
        indices[n] = (uint32_t)i;
        kept[n++] = values[i];
        values[i] = 0;
    }
}

static void topk_add(const compression *z, const void *code, size_t count, float *sum)
{
    const struct topk_state *s = z->state;
    const uint32_t *indices = code;
    const float *kept = (const float *)code + s->k;

    for (size_t n = 0; n < s->k; n++)
        if (indices[n] < count)
            sum[indices[n]] += kept[n];
}

static bool topk_is_valid(const compression *z, const void *code)
{
    const struct topk_state *s = z->state;
    const uint32_t *indices = code;
    for (size_t n = 1; n < s->k; n++)
        if (indices[n] <= indices[n - 1])
            return false;
    return indices[s->k - 1] < z->count;
}

static const struct option topk_options[] = {
    {.key = "compression.ratio",
     .type = OPTION_REAL,
     .initial = "0.01",
     .minimum = 1e-9,
     .maximum = 1,
     .help = "share of the gradient's floats that is sent"},
    {0},
};

const struct compression_kind compression_topk = {
    .about = {.name = "topk",
              .description =
                  "the largest floats by absolute value, a share compression.ratio of all",
              .source = "Stich et al. 2018, Sparsified SGD with memory, algorithm 1",
              .options = topk_options},
    .code_bytes = topk_code_bytes,
    .open = topk_open,
    .close = topk_close,
    .encode = topk_encode,
    .add = topk_add,
    .is_valid = topk_is_valid,
};
