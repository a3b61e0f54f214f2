/*
 * The stand-in for CUDA (tests/cuda_stand_in.h) notices what it says it does: each rule of
 * stand_in_rules.def is broken once, in a process of its own, which must end by that rule's word.
 */
#include "tests/cuda_rig.h"

#ifndef GRADLAG_CUDA

static void it_needs_the_headers_of_cuda(void **state)
{
    (void)state;
    print_message(
        "skipped: built without CUDA (nvcc and its headers), whose stand-in needs them\n");
    skip();
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(it_needs_the_headers_of_cuda)};
    return cmocka_run_group_tests_name("rules of the stand-in", tests, NULL, NULL);
}

#else

#include "tests/cuda_stand_in_inside.h"
#include "worker/cuda_real.h"

#include <cublasLt.h>
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { EARLIER = 3, LATER = 4 /* exits of a child whose misuse had another end */ };

/* What leads to a misuse must work. */
static void must(int error)
{
    if (error != 0) {
        fprintf(stderr, "what leads to it failed: %d\n", error);
        _exit(EARLIER);
    }
}

/* The misuse itself: its answer is nobody's. */
static void misuse(int error)
{
    (void)error;
}

static cudaStream_t new_stream(void)
{
    cudaStream_t s;
    must(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    return s;
}

static cudaEvent_t new_event(void)
{
    cudaEvent_t e;
    must(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
    return e;
}

static void *on_device(size_t bytes)
{
    void *at;
    must(cudaMalloc(&at, bytes));
    return at;
}

static cudaStream_t capturing(void)
{
    cudaStream_t s = new_stream();
    must(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed));
    return s;
}

static void launch(dim3 grid, cudaStream_t s)
{
    struct test_where_call call = {on_device(1 << 16)};
    void *arguments[] = {&call};
    misuse(cudaLaunchKernel(cuda_kernel_entries[CUDA_test_where].function, grid, (dim3){32, 1, 1},
                            arguments, 0, s));
}

/* ---- handles and streams ------------------------------------------------------------------------
 */

static void break_known(void)
{
    cudaStream_t s = new_stream();
    must(cudaStreamDestroy(s));
    misuse(cudaStreamSynchronize(s));
}

static void break_own_stream(void)
{
    misuse(cudaMemsetAsync(on_device(64), 0, 64, NULL));
}

static void break_non_blocking(void)
{
    cudaStream_t s;
    misuse(cudaStreamCreateWithFlags(&s, cudaStreamDefault));
}

static void break_same_device(void)
{
    stand_in.set.devices = 2;
    cudaStream_t s = new_stream();
    must(cudaSetDevice(1));
    launch((dim3){1, 1, 1}, s);
}

static void break_grid(void)
{
    launch((dim3){1, 65536, 1}, new_stream());
}

/* ---- captures -----------------------------------------------------------------------------------
 */

static void break_wait_in_capture(void)
{
    misuse(cudaStreamSynchronize(capturing()));
}

static void break_memory_in_capture(void)
{
    void *at;
    capturing();
    misuse(cudaMalloc(&at, 64));
}

static void break_isolation(void)
{
    cudaEvent_t e = new_event();
    must(cudaEventRecord(e, new_stream()));
    misuse(cudaStreamWaitEvent(capturing(), e, 0));
}

static void break_captured_event(void)
{
    cudaEvent_t e = new_event();
    cudaStream_t s = capturing();
    cudaGraph_t g;
    must(cudaEventRecord(e, s));
    must(cudaStreamEndCapture(s, &g));
    misuse(cudaStreamWaitEvent(new_stream(), e, 0));
}

static void break_nested(void)
{
    capturing();
    capturing();
}

static void break_unmatched(void)
{
    cudaGraph_t g;
    capturing();
    misuse(cudaStreamEndCapture(new_stream(), &g));
}

/* Forked and waited for, and then given more. */
static void break_unjoined(void)
{
    void *at = on_device(64);
    cudaEvent_t e = new_event();
    cudaStream_t other = new_stream(), s = capturing();
    cudaGraph_t g;
    must(cudaEventRecord(e, s));
    must(cudaStreamWaitEvent(other, e, 0));
    must(cudaEventRecord(e, other));
    must(cudaStreamWaitEvent(s, e, 0));
    must(cudaMemsetAsync(at, 0, 64, other));
    misuse(cudaStreamEndCapture(s, &g));
}

/* ---- memory -------------------------------------------------------------------------------------
 */

static void copy(void *to, const void *from, enum cudaMemcpyKind kind)
{
    misuse(cudaMemcpyAsync(to, from, 64, kind, new_stream()));
}

static char host[64];

static void break_device_side(void)
{
    copy(host, host, cudaMemcpyHostToDevice);
}

static void break_host_side(void)
{
    void *at = on_device(64);
    copy(at, at, cudaMemcpyHostToDevice);
}

static void break_within(void)
{
    copy(on_device(63), host, cudaMemcpyHostToDevice);
}

static void break_pinned_in_capture(void)
{
    void *at = on_device(64);
    misuse(cudaMemcpyAsync(at, host, 64, cudaMemcpyHostToDevice, capturing()));
}

static void break_read_only(void)
{
    must(cudaHostRegister(host, 64, cudaHostRegisterReadOnly));
    copy(host, on_device(64), cudaMemcpyDeviceToHost);
}

static void break_freed_alike(void)
{
    misuse(cudaFreeHost(on_device(64)));
}

static void break_unpinned_idle(void)
{
    must(cudaHostRegister(host, 64, cudaHostRegisterPortable));
    must(cudaMemcpyAsync(host, on_device(64), 64, cudaMemcpyDeviceToHost, new_stream()));
    misuse(cudaHostUnregister(host));
}

/* ---- products -----------------------------------------------------------------------------------
 */

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

static void break_attribute(void)
{
    cublasLtMatmulDesc_t d = describe(&right);
    const int64_t too_long = 0;
    misuse((int)LT(cublasLtMatmulDescSetAttribute)(d, CUBLASLT_MATMUL_DESC_TRANSA, &too_long,
                                                   sizeof too_long));
}

static void break_leading(void)
{
    cublasLtMatrixLayout_t l;
    misuse((int)LT(cublasLtMatrixLayoutCreate)(&l, CUDA_R_32F, 8, 4, 4));
}

static void break_shapes(void)
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

#define BREAK(rule, ...)                                                                           \
    static void break_##rule(void)                                                                 \
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

/* ---- each in a process of its own ---------------------------------------------------------------
 */

static const struct {
    const char *name;
    void (*breaks)(void);
} rules[STAND_IN_RULES] = {
#define RULE(name, text) {#name, break_##name},
#include "tests/stand_in_rules.def"
#undef RULE
};

/* How the child ended, and what it said. */
static int run_apart(void (*breaks)(void), char *said, size_t bytes)
{
    int pipes[2], how;
    size_t length = 0;
    assert_int_equal(pipe(pipes), 0);
    fflush(NULL);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        (void)signal(SIGABRT, SIG_DFL);
        (void)setrlimit(RLIMIT_CORE, &(struct rlimit){0});
        dup2(pipes[1], STDERR_FILENO);
        close(pipes[0]);
        (void)alarm(20);
        breaks();
        _exit(LATER);
    }
    close(pipes[1]);
    for (ssize_t more = 1; more > 0 && length < bytes - 1; length += (size_t)more) {
        more = read(pipes[0], said + length, bytes - 1 - length);
        assert_true(more >= 0);
    }
    said[length] = '\0';
    close(pipes[0]);
    assert_int_equal(waitpid(child, &how, 0), child);
    return how;
}

static void each_rule_is_noticed_when_it_is_broken(void **state)
{
    (void)state;
    for (size_t i = 0; i < STAND_IN_RULES; i++) {
        char said[4096];
        const int how = run_apart(rules[i].breaks, said, sizeof said);
        if (!WIFSIGNALED(how) || WTERMSIG(how) != SIGABRT ||
            strstr(said, stand_in_rules[i]) == NULL) {
            fail_msg("%s: ended with %#x and said '%s'", rules[i].name, (unsigned)how, said);
        }
    }
}

static void keep_to_all(void)
{
    multiply(&right);
    stand_in_finish_all();
}

static void a_product_that_keeps_to_them_is_done(void **state)
{
    (void)state;
    char said[4096];
    const int how = run_apart(keep_to_all, said, sizeof said);
    assert_true(WIFEXITED(how) && WEXITSTATUS(how) == LATER);
    assert_string_equal(said, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_rule_is_noticed_when_it_is_broken),
        cmocka_unit_test(a_product_that_keeps_to_them_is_done),
    };
    return cmocka_run_group_tests_name("rules of the stand-in", tests, NULL, NULL);
}

#endif
