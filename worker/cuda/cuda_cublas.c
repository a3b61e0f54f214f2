/*
 * cuda_cublas.c — matrix products by cublasLt. The library is opened at run time (dlopen), so that
 * the program starts without it.
 *
 * cublasLt uses column-major matrices. A row-major matrix is its transpose in column-major order,
 * in the same memory, and Dᵀ = op(B)ᵀ·op(A)ᵀ. So B is the first operand of cublasLt, A the second,
 * and the columns of this interface are the rows of cublasLt. Epilogues then match:
 *
 *   bias along columns           BIAS: "length must match matrix D rows", the columns here
 *   mask                         its leading dimension, in bits: the columns, rounded up to 128
 *   CUDA_COLUMN_SUMS, Σ op(A)    BGRADB: its B is A here, "the bias size corresponds to the number
 *                                of columns of the matrix D", the rows here; "reduction over the k
 *                                dimension" (cublasLtEpilogue_t and
 *                                CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD in cublasLt.h)
 *
 * If cublasLt refuses to fuse an epilogue, a plain product and a small kernel compute it
 * (cuda_kernels_product.h). With GRADLAG_CUDA_EPILOGUES=kernels in the environment this holds for
 * all epilogues; use it if a version of cublasLt has a faulty epilogue. Shape, alignment and GPU
 * determine the algorithm. It is requested once per product and alignment, and never selected by
 * measurement.
 */
#include "base/log.h"
#include "base/memory.h"
#include "worker/cuda/kernels/cuda_calls.h"
#include "worker/cuda/cuda_real.h"

#include <cublasLt.h>

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the library --------------------------------------------------------------------------------
 */

#define FUNCTIONS(of)                                                                              \
    of(cublasLtCreate);                                                                            \
    of(cublasLtDestroy);                                                                           \
    of(cublasLtGetVersion);                                                                        \
    of(cublasLtGetStatusString);                                                                   \
    of(cublasLtMatmulDescCreate);                                                                  \
    of(cublasLtMatmulDescDestroy);                                                                 \
    of(cublasLtMatmulDescSetAttribute);                                                            \
    of(cublasLtMatrixLayoutCreate);                                                                \
    of(cublasLtMatrixLayoutDestroy);                                                               \
    of(cublasLtMatmulPreferenceCreate);                                                            \
    of(cublasLtMatmulPreferenceDestroy);                                                           \
    of(cublasLtMatmulPreferenceSetAttribute);                                                      \
    of(cublasLtMatmulAlgoGetHeuristic);                                                            \
    of(cublasLtMatmul)

#define DECLARE(name) __typeof__(&(name)) name##_
static struct {
    bool loaded;
    char why_not[512];
    FUNCTIONS(DECLARE);
} lt;

static void *open_library(void)
{
    static const char *const places[] = {
        "libcublasLt.so." GRADLAG_CUDA_MAJOR,
        GRADLAG_CUDA_LIBRARIES "/libcublasLt.so." GRADLAG_CUDA_MAJOR,
        "libcublasLt.so.13",
        "libcublasLt.so.12",
    };
    for (size_t i = 0; i < COUNT_OF(places); i++) {
        void *library = dlopen(places[i], RTLD_NOW | RTLD_LOCAL);
        if (library != NULL)
            return library;
        if (i == 0)
            snprintf(lt.why_not, sizeof lt.why_not, "%s", dlerror());
    }
    return NULL;
}

static void load_once(void)
{
    void *library = open_library();
    if (library == NULL) {
        return;
    }
#define LOOK_UP(name)                                                                              \
    do {                                                                                           \
        void *at_ = dlsym(library, #name);                                                         \
        if (at_ == NULL) {                                                                         \
            snprintf(lt.why_not, sizeof lt.why_not, "it has no %s", #name);                        \
            return;                                                                                \
        }                                                                                          \
        memcpy(&lt.name##_, &at_, sizeof at_);                                                     \
    } while (0)
    FUNCTIONS(LOOK_UP);
    lt.loaded = true;
}

static void load(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load_once);
}

size_t cuda_blas_version(void)
{
    load();
    return lt.loaded ? lt.cublasLtGetVersion_() : 0;
}

static status failed(const char *what, cublasStatus_t s)
{
    status result = OK;
    if (s == CUBLAS_STATUS_ALLOC_FAILED)
        FAIL(ERROR_OTHER, "cublasLt, %s: out of GPU memory; " CUDA_MEMORY_ADVICE, what);
    FAIL(ERROR_OTHER, "cublasLt, %s: %s", what, lt.cublasLtGetStatusString_(s));
done:
    return result;
}

#define TRY_LT(what, call)                                                                         \
    do {                                                                                           \
        const cublasStatus_t status_ = (call);                                                     \
        if (status_ != CUBLAS_STATUS_SUCCESS) {                                                    \
            result = failed((what), status_);                                                      \
            goto done;                                                                             \
        }                                                                                          \
    } while (0)

/* The handle and the workspace, of the size that cuBLAS recommends (cublasSetWorkspace). */
static status library_open(cuda_device *d)
{
    status result = OK;
    cublasLtHandle_t handle;
    if (d->blas != NULL)
        goto done;
    load();
    if (!lt.loaded) {
        FAIL(ERROR_USAGE,
             "device=cuda: cublasLt cannot be used: %s; install cuBLAS %s "
             "(libcublasLt), "
             "or add its folder to LD_LIBRARY_PATH",
             lt.why_not, GRADLAG_CUDA_MAJOR);
    }
    d->workspace_bytes = (size_t)(d->capability >= 90 ? 32 : 4) << 20;
    TRY(cuda_memory_new(d, &d->workspace, d->workspace_bytes, "workspace of matrix products"));
    TRY_LT("opening", lt.cublasLtCreate_(&handle));
    d->blas = handle;
done:
    return result;
}

void cuda_blas_close(cuda_device *d)
{
    if (d->blas != NULL) {
        (void)lt.cublasLtDestroy_(d->blas);
        d->blas = NULL;
    }
}

/* ---- a product ----------------------------------------------------------------------------------
 */

enum { ALIGNMENTS = 4, FULL_ALIGNMENT = 256 };

/* How the product runs for operands of one alignment (bytes, powers of two). */
struct cuda_cublas_plan {
    uint32_t a, b, d, bias;
    bool fused;
    cublasLtMatmulAlgo_t algorithm;
};

struct cuda_product {
    struct cuda_product_shape shape;
    cublasLtMatmulDesc_t plain,
        fused;                      /* fused: with the epilogue; NULL: cublasLt does not fuse it */
    cublasLtMatrixLayout_t a, b, d; /* cublasLt's A and B: B and A of this interface */
    struct cuda_cublas_plan plans[ALIGNMENTS];
    unsigned plan_count;
};

static cublasLtEpilogue_t epilogue_of(enum cuda_epilogue e)
{
    switch (e) {
    case CUDA_BIAS:
        return CUBLASLT_EPILOGUE_BIAS;
    case CUDA_BIAS_RELU:
        return CUBLASLT_EPILOGUE_RELU_BIAS;
    case CUDA_BIAS_RELU_MASK:
        return CUBLASLT_EPILOGUE_RELU_AUX_BIAS;
    case CUDA_MASKED:
        return CUBLASLT_EPILOGUE_DRELU;
    case CUDA_COLUMN_SUMS:
        return CUBLASLT_EPILOGUE_BGRADB;
    case CUDA_PLAIN:
        break;
    }
    return CUBLASLT_EPILOGUE_DEFAULT;
}

static bool has_bias(enum cuda_epilogue e)
{
    return e == CUDA_BIAS || e == CUDA_BIAS_RELU || e == CUDA_BIAS_RELU_MASK ||
           e == CUDA_COLUMN_SUMS;
}

static bool has_mask(enum cuda_epilogue e)
{
    return e == CUDA_BIAS_RELU_MASK || e == CUDA_MASKED;
}

#define SET(description, attribute, value)                                                         \
    TRY_LT("describing a product", lt.cublasLtMatmulDescSetAttribute_((description), (attribute),  \
                                                                      &(value), sizeof(value)))

static status describe(const struct cuda_product_shape *s, enum cuda_epilogue e,
                       cublasLtMatmulDesc_t *out)
{
    status result = OK;
    const cublasComputeType_t compute =
        s->arithmetic == CUDA_TF32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    const cublasOperation_t a = s->b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t b = s->a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasLtEpilogue_t epilogue = epilogue_of(e);
    const int64_t mask_bits = (int64_t)(cuda_mask_bytes(1, s->columns) * 8);
    TRY_LT("describing a product", lt.cublasLtMatmulDescCreate_(out, compute, CUDA_R_32F));
    SET(*out, CUBLASLT_MATMUL_DESC_TRANSA, a);
    SET(*out, CUBLASLT_MATMUL_DESC_TRANSB, b);
    SET(*out, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
    if (has_mask(e))
        SET(*out, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, mask_bits);
done:
    return result;
}

/* rows × columns row-major in memory */
static status layout(cublasLtMatrixLayout_t *out, cudaDataType type, uint32_t rows,
                     uint32_t columns)
{
    status result = OK;
    TRY_LT("describing a matrix",
           lt.cublasLtMatrixLayoutCreate_(out, type, columns, rows, (int64_t)columns));
done:
    return result;
}

void cuda_product_close(cuda_device *d, cuda_product *p)
{
    if (p == NULL)
        return;
    (void)cudaSetDevice((int)d->options.index);
    (void)cudaStreamSynchronize(d->streams[CUDA_COMPUTE]);
    cublasLtMatmulDesc_t const descriptions[] = {p->plain, p->fused};
    for (size_t i = 0; i < COUNT_OF(descriptions); i++)
        if (descriptions[i] != NULL)
            (void)lt.cublasLtMatmulDescDestroy_(descriptions[i]);
    cublasLtMatrixLayout_t const layouts[] = {p->a, p->b, p->d};
    for (size_t i = 0; i < COUNT_OF(layouts); i++)
        if (layouts[i] != NULL)
            (void)lt.cublasLtMatrixLayoutDestroy_(layouts[i]);
    memory_free(p);
}

bool cuda_product_may_fuse(const struct cuda_product_shape *s)
{
    switch (s->epilogue) {
    case CUDA_BIAS:
    case CUDA_BIAS_RELU:
    case CUDA_BIAS_RELU_MASK:
        return true;
    case CUDA_MASKED:
        return s->inner > 1;
    case CUDA_COLUMN_SUMS:
        return s->inner > 1 && s->rows > 1;
    case CUDA_PLAIN:
        break;
    }
    return false;
}

static bool may_fuse(const struct cuda_product_shape *s)
{
    const char *wanted = getenv("GRADLAG_CUDA_EPILOGUES");
    return cuda_product_may_fuse(s) && (wanted == NULL || strcmp(wanted, "kernels") != 0);
}

/* ERROR_OTHER: cuda_product_shape does not allow this product. */
static status check_shape(const struct cuda_product_shape *shape)
{
    status result = OK;
    if (shape->rows == 0 || shape->columns == 0 || shape->inner == 0 ||
        (shape->accumulate && shape->epilogue != CUDA_PLAIN)) {
        FAIL(ERROR_OTHER,
             "a product of %u×%u by %u×%u with epilogue %d%s is not possible; this is a bug in "
             "gradlag, please report it with the command line that led here",
             shape->rows, shape->inner, shape->inner, shape->columns, (int)shape->epilogue,
             shape->accumulate ? ", accumulated," : "");
    }
done:
    return result;
}

status cuda_product_open(cuda_device *d, const struct cuda_product_shape *s, cuda_product **out)
{
    status result = OK;
    cuda_product *p = NULL;
    const cudaDataType type = s->arithmetic == CUDA_BF16 ? CUDA_R_16BF : CUDA_R_32F;
    *out = NULL;
    TRY(check_shape(s));
    TRY(cuda_use(d));
    TRY(library_open(d));
    TRY(memory_new(&p, 1, sizeof *p, "matrix product"));
    p->shape = *s;
    TRY(describe(s, CUDA_PLAIN, &p->plain));
    if (may_fuse(s))
        TRY(describe(s, s->epilogue, &p->fused));
    TRY(layout(&p->a, type, s->b_transposed ? s->columns : s->inner,
               s->b_transposed ? s->inner : s->columns));
    TRY(layout(&p->b, type, s->a_transposed ? s->inner : s->rows,
               s->a_transposed ? s->rows : s->inner));
    TRY(layout(&p->d, CUDA_R_32F, s->rows, s->columns));
    *out = p;
    p = NULL;
done:
    cuda_product_close(d, p);
    return result;
}

/* ---- which algorithm ----------------------------------------------------------------------------
 */

static uint32_t alignment_of(const void *at)
{
    const uintptr_t lowest = (uintptr_t)at & (~(uintptr_t)at + 1);
    return lowest == 0 || lowest > FULL_ALIGNMENT ? FULL_ALIGNMENT : (uint32_t)lowest;
}

static status prefer(const cuda_device *d, const struct cuda_cublas_plan *plan,
                     cublasLtMatmulPreference_t f)
{
    status result = OK;
    /* Allows split sums that a second stage adds. Excludes split sums that are added in place in
     * order of completion, which are not deterministic. */
    const uint32_t reductions =
        CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE;
    const struct {
        cublasLtMatmulPreferenceAttributes_t attribute;
        const void *value;
        size_t bytes;
    } settings[] = {
        {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &d->workspace_bytes, sizeof(uint64_t)},
        {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions, sizeof reductions},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &plan->b, sizeof plan->b},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &plan->a, sizeof plan->a},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &plan->d, sizeof plan->d},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &plan->d, sizeof plan->d},
    };
    for (size_t i = 0; i < COUNT_OF(settings); i++) {
        TRY_LT("choosing an algorithm",
               lt.cublasLtMatmulPreferenceSetAttribute_(f, settings[i].attribute, settings[i].value,
                                                        settings[i].bytes));
    }
done:
    return result;
}

static bool is_refusal(cublasStatus_t s)
{
    return s == CUBLAS_STATUS_NOT_SUPPORTED || s == CUBLAS_STATUS_INVALID_VALUE;
}

/* True if the heuristics know an algorithm for `description`. */
static status ask(const cuda_device *d, const cuda_product *p, cublasLtMatmulDesc_t description,
                  struct cuda_cublas_plan *plan, bool *found)
{
    status result = OK;
    cublasLtMatmulPreference_t preference = NULL;
    cublasLtMatmulHeuristicResult_t answer = {0};
    int count = 0;
    *found = false;
    TRY_LT("choosing an algorithm", lt.cublasLtMatmulPreferenceCreate_(&preference));
    TRY(prefer(d, plan, preference));
    const cublasStatus_t s = lt.cublasLtMatmulAlgoGetHeuristic_(
        d->blas, description, p->a, p->b, p->d, p->d, preference, 1, &answer, &count);
    if (!is_refusal(s)) {
        TRY_LT("choosing an algorithm", s);
        *found = count > 0 && answer.state == CUBLAS_STATUS_SUCCESS;
    }
    plan->algorithm = answer.algo;
done:
    if (preference != NULL)
        (void)lt.cublasLtMatmulPreferenceDestroy_(preference);
    return result;
}

/* The heuristics also require the pointers of the epilogue. */
static status point_to(cuda_product *p, const struct cuda_product_call *call)
{
    status result = OK;
    const void *bias = call->bias, *mask = call->mask;
    if (p->fused != NULL && has_bias(p->shape.epilogue))
        SET(p->fused, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    if (p->fused != NULL && has_mask(p->shape.epilogue))
        SET(p->fused, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, mask);
done:
    return result;
}

static status make_plain_plan(const cuda_device *d, const cuda_product *p,
                              struct cuda_cublas_plan *plan)
{
    status result = OK;
    const struct cuda_product_shape *s = &p->shape;
    bool found = false;
    plan->fused = false;
    TRY(ask(d, p, p->plain, plan, &found));
    if (!found) {
        FAIL(ERROR_USAGE,
             "cublasLt has no algorithm for a product of %u×%u×%u in %s on this GPU (compute "
             "capability %u.%u); use another precision=",
             s->rows, s->columns, s->inner,
             s->arithmetic == CUDA_BF16   ? "bf16"
             : s->arithmetic == CUDA_TF32 ? "tf32"
                                          : "fp32",
             d->capability / 10, d->capability % 10);
    }
    if (s->epilogue != CUDA_PLAIN) {
        log_debug("cublasLt does not fuse epilogue %d into a product of %u×%u×%u (arithmetic %d, "
                  "aligned to %u, %u, %u bytes): a kernel does it",
                  (int)s->epilogue, s->rows, s->columns, s->inner, (int)s->arithmetic, plan->a,
                  plan->b, plan->d);
    }
done:
    return result;
}

static status make_plan(const cuda_device *d, const cuda_product *p, struct cuda_cublas_plan *plan)
{
    status result = OK;
    if (p->fused != NULL)
        TRY(ask(d, p, p->fused, plan, &plan->fused));
    if (!plan->fused)
        TRY(make_plain_plan(d, p, plan));
done:
    return result;
}

static status plan_for(const cuda_device *d, cuda_product *p, const struct cuda_product_call *call,
                       struct cuda_cublas_plan **out)
{
    status result = OK;
    struct cuda_cublas_plan wanted = {.a = alignment_of(call->a),
                                      .b = alignment_of(call->b),
                                      .d = alignment_of(call->d),
                                      .bias = has_bias(p->shape.epilogue) ? alignment_of(call->bias)
                                                                          : 0};
    for (unsigned i = 0; i < p->plan_count; i++) {
        struct cuda_cublas_plan *q = &p->plans[i];
        if (q->a == wanted.a && q->b == wanted.b && q->d == wanted.d && q->bias == wanted.bias) {
            *out = q;
            goto done;
        }
    }
    TRY(make_plan(d, p, &wanted));
    /* If there are more alignments than places, the last place is reused. */
    const unsigned place = p->plan_count < ALIGNMENTS ? p->plan_count++ : ALIGNMENTS - 1;
    p->plans[place] = wanted;
    *out = &p->plans[place];
done:
    return result;
}

/* ---- running it ---------------------------------------------------------------------------------
 */

/* Computes the epilogue by a kernel. */
static status finish(cuda_device *d, const struct cuda_product_shape *s,
                     const struct cuda_product_call *call)
{
    status result = OK;
    const size_t count = (size_t)s->rows * s->columns;
    const uint32_t words = (uint32_t)(cuda_mask_bytes(1, s->columns) / sizeof(uint32_t));
    const bool relu = s->epilogue == CUDA_BIAS_RELU || s->epilogue == CUDA_BIAS_RELU_MASK;
    if (relu || s->epilogue == CUDA_BIAS) {
        const struct bias_activate_call c = {
            call->d, call->bias, (uint32_t)count,
            1,       s->columns, relu ? CUDA_ACTIVATION_RELU : CUDA_ACTIVATION_NONE};
        TRY(cuda_launch(d, CUDA_COMPUTE, CUDA_bias_activate, cuda_grid_over(count, 256), &c));
    }
    if (s->epilogue == CUDA_BIAS_RELU_MASK) {
        const struct product_mask_write_call c = {call->d,    call->mask, s->rows,
                                                  s->columns, words,      0};
        TRY(cuda_launch(d, CUDA_COMPUTE, CUDA_product_mask_write,
                        cuda_grid_over((size_t)s->rows * words, 256), &c));
    }
    if (s->epilogue == CUDA_MASKED) {
        const struct product_mask_apply_call c = {call->d,    call->mask, s->rows,
                                                  s->columns, words,      0};
        TRY(cuda_launch(d, CUDA_COMPUTE, CUDA_product_mask_apply, cuda_grid_over(count, 256), &c));
    }
    if (s->epilogue == CUDA_COLUMN_SUMS) {
        const struct product_sums_call c = {.a = call->a,
                                            .out = call->bias,
                                            .row_step = s->a_transposed ? 1 : s->inner,
                                            .inner_step = s->a_transposed ? s->rows : 1,
                                            .rows = s->rows,
                                            .inner = s->inner,
                                            .bf16 = s->arithmetic == CUDA_BF16};
        const struct cuda_grid g = {(s->rows + 31) / 32, 1, 1, 256};
        TRY(cuda_launch(d, CUDA_COMPUTE, CUDA_product_sums, g, &c));
    }
done:
    return result;
}

static cublasStatus_t multiply(const cuda_device *d, const cuda_product *p,
                               const struct cuda_cublas_plan *plan,
                               const struct cuda_product_call *call)
{
    const float one = 1, beta = p->shape.accumulate ? 1 : 0;
    return lt.cublasLtMatmul_(d->blas, plan->fused ? p->fused : p->plain, &one, call->b, p->a,
                              call->a, p->b, &beta, call->d, p->d, call->d, p->d, &plan->algorithm,
                              d->workspace, d->workspace_bytes, d->streams[CUDA_COMPUTE]);
}

status cuda_product_run(cuda_device *d, cuda_product *p, const struct cuda_product_call *call)
{
    status result = OK;
    struct cuda_cublas_plan *plan;
    TRY(cuda_use(d));
    TRY(point_to(p, call));
    if (!d->capturing)
        d->last_work = "a matrix product";
    TRY(plan_for(d, p, call, &plan));
    cublasStatus_t s = multiply(d, p, plan, call);
    if (plan->fused &&
        is_refusal(s)) { /* the heuristics named an algorithm that the library then refused */
        TRY(make_plain_plan(d, p, plan));
        s = multiply(d, p, plan, call);
    }
    if (s != CUBLAS_STATUS_SUCCESS && !d->capturing) { /* the cause may be an earlier kernel */
        const cudaError_t error = cudaStreamQuery(d->streams[CUDA_COMPUTE]);
        TRY_CUDA(d, "a product", error == cudaErrorNotReady ? cudaSuccess : error);
    }
    TRY_LT("a product", s);
    if (!plan->fused)
        TRY(finish(d, &p->shape, call));
done:
    return result;
}
