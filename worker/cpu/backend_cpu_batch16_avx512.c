/* backend_cpu_batch16_avx512.c — the kernels of batch16 for AVX-512: 16 lanes, 32 registers. */
#include "worker/cpu/backend_cpu_batch16.h"

#if defined(__x86_64__) && defined(__GNUC__)

#include <immintrin.h>

#define TARGET __attribute__((target("avx512f")))

enum {
    WIDTH = 16,
    FORWARD_CHANNELS = 4, /* outputs, and positions, that are computed together */
    FORWARD_PLACES = 4,
    FORWARD_REST = 1,    /* positions of the next smaller tile at the end of a row */
    DATA_INPUTS = 2,     /* inputs whose gradient is computed together */
    WEIGHT_CHANNELS = 4, /* outputs whose gradient of the weights is computed together */
};

typedef __m512 vector;
typedef __m512i integers;
typedef __mmask16 mask;

#define LOAD(from)               _mm512_loadu_ps(from)
#define STORE(to, a)             _mm512_storeu_ps(to, a)
#define ALL(a)                   _mm512_set1_ps(a)
#define ADD(a, b)                _mm512_add_ps(a, b)
#define MULTIPLY_ADD(a, b, c)    _mm512_fmadd_ps(a, b, c)
#define ABOVE(a, b)              _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ)
#define SELECT(m, a, b)          _mm512_mask_mov_ps(b, m, a)
#define RECTIFIED(a)             _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a, ALL(0), _CMP_NLE_UQ), a)
#define ALL_INTEGERS(a)          _mm512_set1_epi32(a)
#define EQUAL(a, b)              _mm512_cmpeq_epi32_mask(a, b)
#define SELECT_INTEGERS(m, a, b) _mm512_mask_mov_epi32(b, m, a)
#define LOAD_BYTES(from)                                                                           \
    _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)(from)))
#define STORE_BYTES(to, a) _mm_storeu_si128((__m128i *)(void *)(to), _mm512_cvtepi32_epi8(a))

#include "worker/cpu/backend_cpu_batch16_tiles.h"

const struct batch16_kernels batch16_avx512 = {
    "avx512", WIDTH, forward, backward_data, backward_weights, max_pool, max_pool_backward,
};

#endif
