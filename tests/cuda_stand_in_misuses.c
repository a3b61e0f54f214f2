/* cuda_stand_in_misuses.c — products that break cublasLt's rules, one each. */
#include "tests/cuda_stand_in_misuses.h"

#include <cublasLt.h>
#include <dlfcn.h>

#define LT(name) ((__typeof__(&(name)))look_up(#name))
static void *look_up(const char *name)
{
    char file[64];
    snprintf(file, sizeof file, "libcublasLt.so.%d", CUDART_VERSION / 1000);
    void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    void *at = library == NULL ? NULL : dlsym(library, name);
    must(at == NULL);
    return at;
}

/* A product of 8 × 4 by 4 × 8, column-major, and what a misuse may change of it. */
struct lt {
    cublasLtEpilogue_t epilogue;
    uint64_t k;
    cudaDataType b_type;
    size_t offset, workspace_bytes; /* offset: of A, in bytes */
    int64_t mask_bits;
    bool no_bias, other_c, other_product;
};
static const struct lt right = {
    CUBLASLT_EPILOGUE_DEFAULT, 4, CUDA_R_32F, 0, 4096, 128, false, false, false};

static void set(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t a, const void *at, size_t n)
{
    must((int)LT(cublasLtMatmulDescSetAttribute)(d, a, at, n));
}

static cublasLtMatmulDesc_t describe(const struct lt *p)
{
    cublasLtMatmulDesc_t d;
    void *bias = on_device(64), *mask = on_device(1024);
    must((int)LT(cublasLtMatmulDescCreate)(&d, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    set(d, CUBLASLT_MATMUL_DESC_EPILOGUE, &p->epilogue, sizeof p->epilogue);
    set(d, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &p->mask_bits, sizeof p->mask_bits);
    set(d, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &mask, sizeof mask);
    if (!p->no_bias) {
        set(d, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias);
    }
    return d;
}

static cublasLtMatrixLayout_t layout(cudaDataType type, uint64_t rows, uint64_t columns)
{
    cublasLtMatrixLayout_t l;
    must((int)LT(cublasLtMatrixLayoutCreate)(&l, type, rows, columns, (int64_t)rows));
    return l;
}

static cublasLtMatmulPreference_t prefer(uint64_t workspace_bytes)
{
    cublasLtMatmulPreference_t f;
    must((int)LT(cublasLtMatmulPreferenceCreate)(&f));
    must((int)LT(cublasLtMatmulPreferenceSetAttribute)(f, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                       &workspace_bytes, sizeof workspace_bytes));
    return f;
}

static void multiply(const struct lt *p)
{
    cublasLtHandle_t h;
    cublasLtMatmulHeuristicResult_t found;
    int count;
    const float one = 1, zero = 0;
    char *a = on_device(1024), *b = on_device(1024), *d = on_device(1024);
    void *workspace = on_device(4096);
    cublasLtMatmulDesc_t x = describe(p);
    cublasLtMatrixLayout_t la = layout(CUDA_R_32F, 8, p->k), lb = layout(p->b_type, p->k, 8),
                           ld = layout(CUDA_R_32F, 8, 8);
    must((int)LT(cublasLtCreate)(&h));
    misuse((int)LT(cublasLtMatmulAlgoGetHeuristic)(h, x, la, lb, ld, ld, prefer(4096), 1, &found,
                                                   &count));
    must(count != 1);
    if (p->other_product) {
        la = layout(CUDA_R_32F, 8, 2);
        lb = layout(CUDA_R_32F, 2, 8);
    }
    misuse((int)LT(cublasLtMatmul)(h, x, &one, a + p->offset, la, b, lb, &zero, p->other_c ? a : d,
                                   ld, d, ld, &found.algo, workspace, p->workspace_bytes,
                                   new_stream()));
}

void break_attribute(void)
{
    cublasLtMatmulDesc_t d = describe(&right);
    const int64_t too_long = 0;
    misuse((int)LT(cublasLtMatmulDescSetAttribute)(d, CUBLASLT_MATMUL_DESC_TRANSA, &too_long,
                                                   sizeof too_long));
}

void break_leading(void)
{
    cublasLtMatrixLayout_t l;
    misuse((int)LT(cublasLtMatrixLayoutCreate)(&l, CUDA_R_32F, 8, 4, 4));
}

void break_shapes(void)
{
    cublasLtHandle_t h;
    cublasLtMatmulHeuristicResult_t found;
    int count;
    must((int)LT(cublasLtCreate)(&h));
    cublasLtMatrixLayout_t d = layout(CUDA_R_32F, 8, 8);
    misuse((int)LT(cublasLtMatmulAlgoGetHeuristic)(h, describe(&right), layout(CUDA_R_32F, 8, 4),
                                                   layout(CUDA_R_32F, 5, 8), d, d, prefer(4096), 1,
                                                   &found, &count));
}

void multiply_right(void)
{
    multiply(&right);
}

#define BREAK(rule, ...)                                                                           \
    void break_##rule(void)                                                                        \
    {                                                                                              \
        struct lt p = right;                                                                       \
        __VA_ARGS__;                                                                               \
        multiply(&p);                                                                              \
    }
BREAK(types, p.b_type = CUDA_R_16BF)
BREAK(in_place, p.other_c = true)
BREAK(alignment, p.offset = 4)
BREAK(workspace, p.workspace_bytes = 4095)
BREAK(algorithm, p.other_product = true)
BREAK(mask, p.epilogue = CUBLASLT_EPILOGUE_DRELU; p.mask_bits = 64)
BREAK(bias, p.epilogue = CUBLASLT_EPILOGUE_BIAS; p.no_bias = true)
BREAK(single_term, p.epilogue = CUBLASLT_EPILOGUE_BGRADB; p.k = 1)
