/* backend_cpu_batch16_avx2.c — the kernels of batch16 for AVX2 and FMA: 8 lanes, 16 registers. */
#include "worker/cpu/backend_cpu_batch16.h"

#if defined(__x86_64__) && defined(__GNUC__)

#include <immintrin.h>

#define TARGET __attribute__((target("avx2,fma")))

enum {
    WIDTH = 8,
    FORWARD_CHANNELS = 4, /* outputs, and positions, that are computed together */
    FORWARD_PLACES = 3,
    FORWARD_REST = 2,    /* positions of the next smaller tile at the end of a row */
    DATA_INPUTS = 1,     /* inputs whose gradient is computed together */
    WEIGHT_CHANNELS = 2, /* outputs whose gradient of the weights is computed together */
};

typedef __m256 vector;
typedef __m256i integers;
typedef __m256 mask;

#define LOAD(from)            _mm256_loadu_ps(from)
#define STORE(to, a)          _mm256_storeu_ps(to, a)
#define ALL(a)                _mm256_set1_ps(a)
#define ADD(a, b)             _mm256_add_ps(a, b)
#define MULTIPLY_ADD(a, b, c) _mm256_fmadd_ps(a, b, c)
#define ABOVE(a, b)           _mm256_cmp_ps(a, b, _CMP_GT_OQ)
#define SELECT(m, a, b)       _mm256_blendv_ps(b, a, m)
#define RECTIFIED(a)          _mm256_and_ps(a, _mm256_cmp_ps(a, ALL(0), _CMP_NLE_UQ))
#define ALL_INTEGERS(a)       _mm256_set1_epi32(a)
#define EQUAL(a, b)           _mm256_castsi256_ps(_mm256_cmpeq_epi32(a, b))
#define SELECT_INTEGERS(m, a, b)                                                                   \
    _mm256_castps_si256(SELECT(m, _mm256_castsi256_ps(a), _mm256_castsi256_ps(b)))
#define LOAD_BYTES(from)                                                                           \
    _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(from)))

#define STORE_BYTES(to, a) _mm_storel_epi64((__m128i *)(void *)(to), low_bytes(a))

static inline __attribute__((always_inline)) TARGET __m128i low_bytes(__m256i a)
{
    __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    return _mm_packus_epi16(words, words);
}

#include "worker/cpu/backend_cpu_batch16_tiles.h"

const struct batch16_kernels batch16_avx2 = {
    "avx2", WIDTH, forward, backward_data, backward_weights, max_pool, max_pool_backward,
};

#endif
