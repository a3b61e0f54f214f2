#include "base/random.h"

#include "base/vector.h"

#include <math.h>

static uint32_t multiply_high(uint32_t a, uint32_t b, uint32_t *low)
{
    uint64_t product = (uint64_t)a * b;
    *low = (uint32_t)product;
    return (uint32_t)(product >> 32);
}

static inline void philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (unsigned round = 0; round < 10; round++) {
        uint32_t low0, low1;
        uint32_t high0 = multiply_high(0xD2511F53u, c0, &low0);
        uint32_t high1 = multiply_high(0xCD9E8D57u, c2, &low1);
        c0 = high1 ^ c1 ^ k0;
        c1 = low1;
        c2 = high0 ^ c3 ^ k1;
        c3 = low0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

void philox4x32_10(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    philox(counter, key, out);
}

/* The key is the seed. Purpose and worker share counter word 3, with 8 and 24 bits. The step is
 * words 1 and 2. Word 0 counts blocks, so a stream has 2^34 words. */
void random_open(struct random_stream *r, enum random_purpose purpose, uint64_t seed,
                 uint32_t worker, uint64_t step)
{
    REQUIRE(worker < 1u << 24);
    *r = (struct random_stream){
        .key = {(uint32_t)seed, (uint32_t)(seed >> 32)},
        .counter = {0, (uint32_t)step, (uint32_t)(step >> 32), (uint32_t)purpose << 24 | worker},
        .used = 4,
    };
}

uint32_t random_bits(struct random_stream *r)
{
    if (r->used == 4) {
        philox4x32_10(r->counter, r->key, r->block);
        r->counter[0]++;
        r->used = 0;
    }
    return r->block[r->used++];
}

static double uniform_of(uint32_t first, uint32_t second)
{
    const uint64_t high = first >> 5, low = second >> 6;
    return (double)(high << 26 | low) * 0x1p-53;
}

double random_uniform(struct random_stream *r)
{
    const uint32_t first = random_bits(r);
    return uniform_of(first, random_bits(r));
}

/* Lemire 2019, "Fast random integer generation in an interval": multiply, reject the biased rest.
 */
uint32_t random_below(struct random_stream *r, uint32_t bound)
{
    REQUIRE(bound > 0);
    uint64_t product = (uint64_t)random_bits(r) * bound;
    if ((uint32_t)product < bound) {
        uint32_t threshold = -bound % bound;
        while ((uint32_t)product < threshold)
            product = (uint64_t)random_bits(r) * bound;
    }
    return (uint32_t)(product >> 32);
}

/* Box–Muller. The second value of the pair is dropped, so that a stream has no hidden state. */
static double normal_of(double radius, double angle)
{
    return sqrt(-2.0 * log(1.0 - radius)) * cos(6.283185307179586 * angle);
}

double random_normal(struct random_stream *r)
{
    const double radius = random_uniform(r);
    return normal_of(radius, random_uniform(r));
}

enum { BLOCKS = 64 };

/* out[w][i] ← word w of block i, counted from the stream's current block. */
VECTOR_CLONES
static void philox_blocks(const struct random_stream *r, uint32_t out[4][BLOCKS])
{
    for (uint32_t i = 0; i < BLOCKS; i++) {
        const uint32_t counter[4] = {r->counter[0] + i, r->counter[1], r->counter[2],
                                     r->counter[3]};
        uint32_t words[4];
        philox(counter, r->key, words);
        for (int w = 0; w < 4; w++)
            out[w][i] = words[w];
    }
}

void random_normals(struct random_stream *r, double *out, size_t count)
{
    uint32_t words[4][BLOCKS];
    while (count >= BLOCKS && r->used == 4) { /* each normal takes one block */
        philox_blocks(r, words);
        r->counter[0] += BLOCKS;
        for (int i = 0; i < BLOCKS; i++)
            out[i] = normal_of(uniform_of(words[0][i], words[1][i]),
                               uniform_of(words[2][i], words[3][i]));
        out += BLOCKS;
        count -= BLOCKS;
    }
    for (size_t i = 0; i < count; i++)
        out[i] = random_normal(r);
}

/* Marsaglia & Tsang 2000, "A simple method for generating gamma variables"; shape < 1 by their
 * boost. */
double random_gamma(struct random_stream *r, double shape)
{
    REQUIRE(shape > 0);
    if (shape < 1) {
        double boost = pow(1.0 - random_uniform(r), 1 / shape);
        return boost * random_gamma(r, shape + 1);
    }
    double d = shape - 1.0 / 3, c = 1 / sqrt(9 * d);
    for (;;) {
        double x = random_normal(r), v = 1 + c * x;
        if (v <= 0)
            continue;
        v = v * v * v;
        double u = 1.0 - random_uniform(r);
        if (log(u) < 0.5 * x * x + d - d * v + d * log(v))
            return d * v;
    }
}

void random_permutation(struct random_stream *r, uint32_t *out, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        uint32_t j = random_below(r, i + 1);
        out[i] = out[j];
        out[j] = i;
    }
}
