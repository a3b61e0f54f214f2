/* sparse.c — see sparse.h. */
#include "worker/compression/sparse.h"

#include "base/memory.h"

#include <math.h>
#include <string.h>

/* Radix select finds the k-th largest, digit by digit from the highest bit: 2048 counts per digit.
 */
enum { DIGIT_BITS = 11, DIGITS = 3, DIGIT_VALUES = 1 << DIGIT_BITS, TABLES = 4 };

struct sparse {
    /* Neighbours are counted in different tables: they are often equal, and an increment would wait
     * for the one before it. */
    uint32_t counts[DIGIT_VALUES][TABLES];
};

status sparse_open(struct sparse **out, const struct compression_kind *kind, size_t count)
{
    status result = OK;
    if (count > UINT32_MAX) {
        FAIL(ERROR_USAGE,
             "compression=%s: %zu parameters exceed the range of 32-bit indices; use another "
             "compression",
             kind->about.name, count);
    }
    TRY(memory_new(out, 1, sizeof **out, "the compression"));
done:
    return result;
}

size_t sparse_k(double ratio, size_t count)
{
    const size_t k = (size_t)llround(ratio * (double)count);
    return k == 0 ? 1 : k < count ? k : count;
}

size_t sparse_bytes(size_t k)
{
    return k * (sizeof(uint32_t) + sizeof(float));
}

/* The bits of |value|: they order like |value|, with NaN last. */
static inline uint32_t size_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits & 0x7fffffffu;
}

static size_t counted(const struct sparse *s, uint32_t value)
{
    size_t sum = 0;
    for (unsigned t = 0; t < TABLES; t++)
        sum += s->counts[value][t];
    return sum;
}

/* The k-th largest size. *of_equal ← how many of the k sizes equal it. */
static uint32_t threshold_of(struct sparse *s, size_t k, const float *values, size_t count,
                             size_t *of_equal)
{
    uint32_t found = 0;
    size_t left = k;

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

void sparse_encode(struct sparse *s, size_t k, float *values, size_t count, void *code)
{
    uint32_t *indices = code;
    float *kept = (float *)code + k;
    size_t equal, n = 0;
    const uint32_t threshold = threshold_of(s, k, values, count, &equal);

    for (size_t i = 0; i < count && n < k; i++) {
        uint32_t size = size_of(values[i]);
        if (size < threshold || (size == threshold && equal == 0))
            continue;
        equal -= size == threshold;
        indices[n] = (uint32_t)i;
        kept[n++] = values[i];
        values[i] = 0;
    }
}

void sparse_add(size_t k, const void *code, size_t count, float *sum)
{
    const uint32_t *indices = code;
    const float *kept = (const float *)code + k;

    for (size_t n = 0; n < k; n++)
        if (indices[n] < count)
            sum[indices[n]] += kept[n];
}

bool sparse_is_valid(size_t k, const void *code, size_t count)
{
    const uint32_t *indices = code;
    for (size_t n = 1; n < k; n++)
        if (indices[n] <= indices[n - 1])
            return false;
    return indices[k - 1] < count;
}
