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

#include "tests/cuda_stand_in_misuses.h"
#include "worker/cuda_real.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static cudaEvent_t new_event(void)
{
    cudaEvent_t e;
    must(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
    return e;
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

/* ---- the same rules, in every other call that holds to them -------------------------------------
 */

static cudaStream_t gone_stream(void)
{
    cudaStream_t s = new_stream();
    must(cudaStreamDestroy(s));
    return s;
}

static cudaEvent_t gone_event(void)
{
    cudaEvent_t e = new_event();
    must(cudaEventDestroy(e));
    return e;
}

static cudaGraph_t gone_graph(void)
{
    cudaStream_t s = capturing();
    cudaGraph_t g;
    must(cudaStreamEndCapture(s, &g));
    must(cudaGraphDestroy(g));
    return g;
}

static cudaEvent_t captured_event(void)
{
    cudaEvent_t e = new_event();
    must(cudaEventRecord(e, capturing()));
    return e;
}

static int record_on_another_device(void)
{
    stand_in.set.devices = 2;
    cudaEvent_t e = new_event();
    must(cudaSetDevice(1));
    return (int)cudaEventRecord(e, new_stream());
}

static void *registered_in_a_capture(void)
{
    must(cudaHostRegister(host, 64, cudaHostRegisterPortable));
    capturing();
    return host;
}

static void *freed_in_a_capture(void)
{
    void *at = on_device(64);
    capturing();
    return at;
}

/* The calls of stand_in_misuses.def by number: `at` is the one that is made. */
static size_t at;
static void break_again(void)
{
    size_t number = 0;
#define MISUSE(rule, ...)                                                                          \
    if (number++ == at) {                                                                          \
        misuse((int)(__VA_ARGS__));                                                                \
    }
#include "tests/stand_in_misuses.def"
#undef MISUSE
}

static const enum stand_in_rule also[] = {
#define MISUSE(rule, ...) STAND_IN_##rule,
#include "tests/stand_in_misuses.def"
#undef MISUSE
};

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

static void expect(const char *name, enum stand_in_rule rule, void (*breaks)(void))
{
    char said[4096];
    const int how = run_apart(breaks, said, sizeof said);
    if (!WIFSIGNALED(how) || WTERMSIG(how) != SIGABRT ||
        strstr(said, stand_in_rules[rule]) == NULL) {
        fail_msg("%s: ended with %#x and said '%s'", name, (unsigned)how, said);
    }
}

static void each_rule_is_noticed_when_it_is_broken(void **state)
{
    (void)state;
    for (unsigned i = 0; i < STAND_IN_RULES; i++) {
        expect(rules[i].name, (enum stand_in_rule)i, rules[i].breaks);
    }
}

static void every_call_holds_to_them(void **state)
{
    (void)state;
    for (at = 0; at < COUNT_OF(also); at++) {
        char name[32];
        snprintf(name, sizeof name, "call %zu", at);
        expect(name, also[at], break_again);
    }
}

static void keep_to_all(void)
{
    multiply_right();
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
        cmocka_unit_test(every_call_holds_to_them),
        cmocka_unit_test(a_product_that_keeps_to_them_is_done),
    };
    return cmocka_run_group_tests_name("rules of the stand-in", tests, NULL, NULL);
}

#endif
