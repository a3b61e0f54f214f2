/* cublas_stand_in.c — cublasLt without a GPU. It is linked as libcublasLt, which
 * worker/cuda/cuda_cublas.c opens by name. It implements the epilogues and attributes that gradlag
 * uses, column-major, from the documentation of cuBLAS. Products are queued on the stand-in for the
 * CUDA runtime. Other epilogues and attributes end the program. */
#include "tests/worker/cuda/cuda_stand_in_internal.h"

#include <cublasLt.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { PART = 32 /* terms of k in one partial sum, as on a GPU; one long sum is less exact */ };
enum { A, B, C, D, OPERANDS };

struct description {
    cublasComputeType_t compute;
    cublasOperation_t a, b;
    cublasLtEpilogue_t epilogue;
    int64_t mask_bits;
    void *bias, *mask;
};

struct cublas_stand_in_layout {
    cudaDataType type;
    uint64_t rows, columns;
    int64_t leading;
};

struct preference {
    uint32_t alignment[OPERANDS], reductions;
    uint64_t workspace_bytes;
};

/* The contents of cublasLtMatmulAlgo_t: the requested product. */
struct algorithm {
    struct preference promised;
    cublasLtEpilogue_t epilogue;
    uint32_t m, n, k;
};
_Static_assert(sizeof(struct algorithm) <= sizeof(cublasLtMatmulAlgo_t), "an algorithm fits");

struct product {
    struct description description;
    struct cublas_stand_in_layout a, b, d;
    uint64_t k;
    float alpha, beta;
    const void *from_a, *from_b;
    float *to;
};

static void *opened(size_t bytes)
{
    LOCK();
    stand_in_descriptions++;
    return stand_in_new(bytes);
}

static cublasStatus_t closed(void *at)
{
    LOCK();
    stand_in_descriptions--;
    free(at);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *out)
{
    *out = opened(1);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t h)
{
    return closed(h);
}

size_t cublasLtGetVersion(void)
{
    return CUBLAS_VERSION;
}

const char *cublasLtGetStatusString(cublasStatus_t s)
{
    return s == CUBLAS_STATUS_NOT_SUPPORTED ? "not supported" : "an error of the stand-in";
}

/* ---- descriptions -------------------------------------------------------------------------------
 */

struct field {
    int attribute;
    void *at;
    size_t bytes;
};

static cublasStatus_t set(const struct field *fields, size_t count, int attribute, const void *from,
                          size_t bytes)
{
    size_t i = 0;
    while (i < count && fields[i].attribute != attribute)
        i++;
    HOLD_TO(attribute, i < count && fields[i].bytes == bytes);
    memcpy(fields[i].at, from, bytes);
    return CUBLAS_STATUS_SUCCESS;
}
#define FIELD(attribute, member)                                                                   \
    {                                                                                              \
        attribute, &(member), sizeof(member)                                                       \
    }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, cublasComputeType_t compute,
                                        cudaDataType_t scale)
{
    struct description *d = opened(sizeof *d);
    HOLD_TO(types, scale == CUDA_R_32F);
    *d = (struct description){.compute = compute, .epilogue = CUBLASLT_EPILOGUE_DEFAULT};
    *out = (cublasLtMatmulDesc_t)d;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d)
{
    return closed(d);
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t description,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void *from, size_t bytes)
{
    struct description *d = (struct description *)description;
    const struct field fields[] = {
        FIELD(CUBLASLT_MATMUL_DESC_TRANSA, d->a),
        FIELD(CUBLASLT_MATMUL_DESC_TRANSB, d->b),
        FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE, d->epilogue),
        FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, d->mask_bits),
        FIELD(CUBLASLT_MATMUL_DESC_BIAS_POINTER, d->bias),
        FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, d->mask),
    };
    return set(fields, sizeof fields / sizeof *fields, (int)attribute, from, bytes);
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType type,
                                          uint64_t rows, uint64_t columns, int64_t leading)
{
    struct cublas_stand_in_layout *l = opened(sizeof *l);
    HOLD_TO(leading, leading > 0 && (uint64_t)leading >= rows);
    *l = (struct cublas_stand_in_layout){type, rows, columns, leading};
    *out = (cublasLtMatrixLayout_t)l;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l)
{
    return closed(l);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out)
{
    struct preference *p = opened(sizeof *p);
    *p = (struct preference){.alignment = {256, 256, 256, 256}};
    *out = (cublasLtMatmulPreference_t)p;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p)
{
    return closed(p);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void *from, size_t bytes)
{
    struct preference *p = (struct preference *)preference;
    const struct field fields[] = {
        FIELD(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, p->workspace_bytes),
        FIELD(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, p->reductions),
        FIELD(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, p->alignment[A]),
        FIELD(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, p->alignment[B]),
        FIELD(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, p->alignment[C]),
        FIELD(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, p->alignment[D]),
    };
    return set(fields, sizeof fields / sizeof *fields, (int)attribute, from, bytes);
}

/* ---- what may be asked for ----------------------------------------------------------------------
 */

static bool has_mask(cublasLtEpilogue_t e)
{
    return e == CUBLASLT_EPILOGUE_RELU_AUX_BIAS || e == CUBLASLT_EPILOGUE_DRELU;
}

static bool has_bias(cublasLtEpilogue_t e)
{
    return e != CUBLASLT_EPILOGUE_DEFAULT && e != CUBLASLT_EPILOGUE_DRELU;
}

static struct algorithm shape_of(const struct description *d,
                                 const struct cublas_stand_in_layout *a,
                                 const struct cublas_stand_in_layout *b,
                                 const struct cublas_stand_in_layout *o)
{
    const bool ta = d->a != CUBLAS_OP_N, tb = d->b != CUBLAS_OP_N;
    const uint64_t k = ta ? a->rows : a->columns;
    HOLD_TO(shapes, o->rows == (ta ? a->columns : a->rows) &&
                        o->columns == (tb ? b->rows : b->columns) &&
                        k == (tb ? b->columns : b->rows));
    HOLD_TO(types, a->type == b->type && o->type == CUDA_R_32F &&
                       (a->type == CUDA_R_32F || a->type == CUDA_R_16BF));
    return (struct algorithm){.epilogue = d->epilogue,
                              .m = (uint32_t)o->rows,
                              .n = (uint32_t)o->columns,
                              .k = (uint32_t)k};
}

static void check_epilogue(const struct description *d, const struct algorithm *s)
{
    const bool sums = d->epilogue == CUBLASLT_EPILOGUE_BGRADB;
    HOLD_TO(mask,
            !has_mask(d->epilogue) || (d->mask != NULL && (uintptr_t)d->mask % 16 == 0 &&
                                       d->mask_bits % 128 == 0 && d->mask_bits >= (int64_t)s->m));
    HOLD_TO(bias, !has_bias(d->epilogue) || d->bias != NULL);
    HOLD_TO(single_term, !(sums || d->epilogue == CUBLASLT_EPILOGUE_DRELU) || s->k > 1);
    HOLD_TO(single_term, !sums || s->n > 1);
}

static bool is_refused(const struct description *d, bool late)
{
    const bool refused = d->epilogue != CUBLASLT_EPILOGUE_DEFAULT &&
                         (int)d->epilogue == stand_in.set.refused_epilogue &&
                         stand_in.set.refuses_late == late;
    stand_in.seen.refused += refused;
    return refused;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t h, cublasLtMatmulDesc_t description,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t *out, int *found)
{
    (void)h;
    const struct description *x = (const struct description *)description;
    HOLD_TO(in_place, c == d);
    struct algorithm s =
        shape_of(x, (struct cublas_stand_in_layout *)a, (struct cublas_stand_in_layout *)b,
                 (struct cublas_stand_in_layout *)d);
    check_epilogue(x, &s);
    *found = 0;
    if (wanted < 1 || is_refused(x, false))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    s.promised = *(struct preference *)preference;
    memset(out, 0, sizeof *out);
    memcpy(&out->algo, &s, sizeof s);
    *found = 1;
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- the product --------------------------------------------------------------------------------
 */

/* Rounds to 10 bits of mantissa, halves away from zero. Infinities and NaN are unchanged. */
static float to_tf32(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if ((bits & 0x7f800000u) != 0x7f800000u)
        bits = (bits + 0x1000u) & ~0x1fffu;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static float element(const struct cublas_stand_in_layout *l, const void *from, uint64_t row,
                     uint64_t column, bool tf32)
{
    const uint64_t at = row + column * (uint64_t)l->leading;
    float x;
    if (l->type == CUDA_R_16BF) {
        const uint32_t bits = (uint32_t)((const uint16_t *)from)[at] << 16;
        memcpy(&x, &bits, sizeof x);
        return x;
    }
    x = ((const float *)from)[at];
    return tf32 ? to_tf32(x) : x;
}

/* Writes op(matrix) as k rows of `lines` numbers; lines are rows of op(A) or columns of op(B). */
static float *unpack(const struct cublas_stand_in_layout *l, const void *from,
                     bool lines_are_columns, uint64_t lines, uint64_t k, bool tf32)
{
    float *out = stand_in_new(lines * k * sizeof *out);
    for (uint64_t j = 0; j < k; j++) {
        for (uint64_t i = 0; i < lines; i++) {
            out[j * lines + i] =
                lines_are_columns ? element(l, from, j, i, tf32) : element(l, from, i, j, tf32);
        }
    }
    return out;
}

/* Almost all of the time of a product; optimised in sanitizer builds too. */
__attribute__((no_sanitize("address", "undefined"))) static void
add_multiple(float *restrict to, const float *restrict from, float factor, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        to[i] += factor * from[i];
}

/* Column j of op(A)·op(B) into sums[m]; part[m] is scratch. */
static void multiply_column(float *sums, float *part, const float *a, const float *b, uint64_t j,
                            const struct product *p)
{
    const uint64_t m = p->d.rows, n = p->d.columns, k = p->k;
    memset(sums, 0, m * sizeof *sums);
    for (uint64_t first = 0; first < k; first += PART) {
        memset(part, 0, m * sizeof *part);
        for (uint64_t i = first; i < k && i < first + PART; i++)
            add_multiple(part, a + i * m, b[i * n + j], m);
        add_multiple(sums, part, 1, m);
    }
}

/* Element (i, j) of D after the epilogue. The mask is 1 for 0 too. */
static float finished(const struct description *d, uint64_t i, uint64_t j, float x)
{
    const float *bias = d->bias;
    uint8_t *bits =
        d->mask == NULL ? NULL : (uint8_t *)d->mask + (j * (uint64_t)d->mask_bits + i) / 8;
    const uint8_t bit = (uint8_t)(1u << i % 8);
    switch (d->epilogue) {
    case CUBLASLT_EPILOGUE_BIAS:
        return x + bias[i];
    case CUBLASLT_EPILOGUE_RELU_BIAS:
        x += bias[i];
        return x > 0 ? x : 0;
    case CUBLASLT_EPILOGUE_RELU_AUX_BIAS:
        x += bias[i];
        *bits = (uint8_t)((*bits & ~bit) | (x >= 0 ? bit : 0));
        return x > 0 ? x : 0;
    case CUBLASLT_EPILOGUE_DRELU:
        return (*bits & bit) != 0 ? x : 0;
    default:
        return x;
    }
}

static void run(void *data)
{
    const struct product *p = data;
    const struct description *d = &p->description;
    const bool tf32 = d->compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    const uint64_t m = p->d.rows, n = p->d.columns, k = p->k;
    float *a = unpack(&p->a, p->from_a, d->a != CUBLAS_OP_N, m, k, tf32);
    float *b = unpack(&p->b, p->from_b, d->b == CUBLAS_OP_N, n, k, tf32);
    float *sums = stand_in_new(2 * m * sizeof *sums);
    for (uint64_t j = 0; j < n; j++) {
        multiply_column(sums, sums + m, a, b, j, p);
        for (uint64_t i = 0; i < m; i++) {
            float *to = p->to + i + j * (uint64_t)p->d.leading;
            const float before = p->beta == 0 ? 0 : p->beta * *to;
            *to = finished(d, i, j, p->alpha * sums[i] + before);
        }
        if (d->epilogue == CUBLASLT_EPILOGUE_BGRADB) {
            float sum = 0;
            for (uint64_t i = 0; i < k; i++)
                sum += b[i * n + j];
            ((float *)d->bias)[j] = sum;
        }
    }
    free(a);
    free(b);
    free(sums);
    stand_in_check_fences("a product");
}

/* An operand must be memory of the device of the stream, with the promised size and alignment. */
static void check_operand(cudaStream_t s, const struct cublas_stand_in_layout *l, const void *at,
                          uint32_t promised)
{
    const size_t each = l->type == CUDA_R_16BF ? sizeof(uint16_t) : sizeof(float);
    HOLD_TO(alignment, promised != 0 && (uintptr_t)at % promised == 0);
    stand_in_on_device(at, (size_t)l->leading * l->columns * each, stand_in_device_of(s));
}

static void check_algorithm(const struct algorithm *of, const struct algorithm *wanted)
{
    HOLD_TO(algorithm, of->epilogue == wanted->epilogue && of->m == wanted->m &&
                           of->n == wanted->n && of->k == wanted->k);
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t h, cublasLtMatmulDesc_t description,
                              const void *alpha, const void *from_a, cublasLtMatrixLayout_t a,
                              const void *from_b, cublasLtMatrixLayout_t b, const void *beta,
                              const void *from_c, cublasLtMatrixLayout_t c, void *to,
                              cublasLtMatrixLayout_t d, const cublasLtMatmulAlgo_t *algorithm,
                              void *workspace, size_t workspace_bytes, cudaStream_t s)
{
    (void)h;
    LOCK();
    struct algorithm asked;
    struct product p = {*(struct description *)description,
                        *(struct cublas_stand_in_layout *)a,
                        *(struct cublas_stand_in_layout *)b,
                        *(struct cublas_stand_in_layout *)d,
                        .from_a = from_a,
                        .from_b = from_b,
                        .to = to};
    memcpy(&asked, algorithm, sizeof asked);
    memcpy(&p.alpha, alpha, sizeof p.alpha);
    memcpy(&p.beta, beta, sizeof p.beta);
    const struct algorithm wanted = shape_of(&p.description, &p.a, &p.b, &p.d);
    p.k = wanted.k;
    check_epilogue(&p.description, &wanted);
    check_algorithm(&asked, &wanted);
    HOLD_TO(in_place, c == d && from_c == to);
    check_operand(s, &p.a, from_a, asked.promised.alignment[A]);
    check_operand(s, &p.b, from_b, asked.promised.alignment[B]);
    check_operand(s, &p.d, to, asked.promised.alignment[D]);
    HOLD_TO(workspace,
            (uintptr_t)workspace % 256 == 0 && workspace_bytes >= asked.promised.workspace_bytes);
    stand_in_on_device(workspace, workspace_bytes, stand_in_device_of(s));
    if (is_refused(&p.description, true))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (stand_in.set.fails_captured && stand_in_capturing(s))
        return CUBLAS_STATUS_EXECUTION_FAILED;
    stand_in.seen.products++;
    stand_in.seen.fused += p.description.epilogue != CUBLASLT_EPILOGUE_DEFAULT;
    struct product *own = stand_in_new(sizeof *own);
    *own = p;
    const cudaError_t error = stand_in_queue(s, run, own);
    return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}
