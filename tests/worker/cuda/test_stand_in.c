/* test_stand_in.c — the CUDA backend when CUDA or cublasLt refuses or fails, on the stand-in for
 * both (tests/worker/cuda/cuda_stand_in.h); and that the stand-in detects broken rules. Tests for a
 * real GPU are in test_cuda_*.c. */
#include "base/memory.h"
#include "experiments/config/config.h"
#include "tests/worker/cuda/cuda_rig.h"
#include "tests/worker/cuda/cuda_stand_in.h"
#include "tests/worker/dataset_rig.h"
#include "tests/worker/gradients.h"
#include "worker/cuda/backend_cuda.h"

#include <cublasLt.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const struct shape images = {2, 16, 17};
static const struct backend_options plain = {.threads = 1, .place.device = -1};

static const struct cuda_kind *gpu;

static int begin(void **state)
{
    (void)state;
    assert_ok(cuda_kind_get(&gpu));
    stand_in_reset();
    return 0;
}

/* Checks that the test has closed everything on the GPU. */
static int end(void **state)
{
    (void)state;
    const size_t left = stand_in_left();
    if (left != 0) {
        print_error("%zu streams, events, graphs, pieces of memory or descriptions are left\n",
                    left);
    }
    stand_in_reset();
    return left == 0 ? 0 : -1;
}

static struct model of_name(const char *name)
{
    struct model m = {.kind = (const struct model_kind *)registry_find(&model_registry, name),
                      .classes = 10};
    options *o;
    assert_ok(options_open(&o));
    if (m.kind->about.options != NULL)
        assert_ok(options_declare(o, m.kind->about.options));
    if (m.kind->configure != NULL)
        assert_ok(m.kind->configure(&m, o));
    options_close(&o);
    return m;
}

static void open_on(struct fixture *f, const char *device, const struct backend_options *o,
                    const char *model, uint32_t batch)
{
    const struct model m = of_name(model);
    fixture_device = device;
    fixture_open_on(f, o, &m, images, batch, 4);
}

static struct cuda_command_statistics statistics_of(const struct fixture *f)
{
    struct cuda_command_statistics s;
    cuda_command_statistics((const struct cuda *)f->backend, &s);
    return s;
}

/* Runs steps on the stand-in; each must equal the step of the CPU. */
static void expect_the_steps_of_the_cpu(const char *model, uint32_t batch, int steps,
                                        const struct backend_options *o)
{
    struct fixture cpu, cuda;
    open_on(&cpu, "cpu", &plain, model, batch);
    open_on(&cuda, "cuda", o, model, batch);
    const double wanted = fixture_step(&cpu, cpu.parameters, cpu.gradient);
    const struct gradient_reference reference = gradient_of_fixture(&cpu);
    for (int step = 0; step < steps; ++step) {
        memset(cuda.gradient, 0x7f,
               cuda.count * sizeof(float)); /* elements that are not written become visible */
        const double loss = fixture_step(&cuda, cuda.parameters, cuda.gradient);
        const double apart = gradient_distance_beside_kinks(&reference, cuda.gradient, 1e-5);
        if (!(fabs(loss - wanted) < 1e-5 * wanted && apart < 1e-5)) {
            fail_msg("%s, batch %u, step %d: a loss of %g, the CPU's is %g; a gradient that is %g "
                     "off",
                     model, batch, step, loss, wanted, apart);
        }
    }
    fixture_close(&cpu);
    fixture_close(&cuda);
}

/* ---- steps --------------------------------------------------------------------------------------
 */

static void direct_captured_and_replayed_steps_equal_those_of_the_cpu(void **state)
{
    (void)state;
    static const struct {
        const char *model;
        uint32_t batch;
    } each[] = {{"mlp", 1}, {"mlp", 33}, {"lenet", 1}, {"lenet", 33}, {"resnet8", 5}};
    for (size_t i = 0; i < COUNT_OF(each); ++i) {
        const size_t captures = stand_in.seen.captures, graphs = stand_in.seen.graph_launches;
        expect_the_steps_of_the_cpu(each[i].model, each[i].batch, 5, &plain);
        assert_int_equal(stand_in.seen.captures, captures + 1);
        assert_in_range(stand_in.seen.graph_launches, graphs + 3, graphs + 4);
    }
    assert_true(stand_in.seen.fused > 0);
}

static void steps_are_the_same_if_the_host_spins(void **state)
{
    (void)state;
    struct backend_options o = plain;
    o.may_spin = true;
    expect_the_steps_of_the_cpu("lenet", 5, 4, &o);
}

static void steps_without_graphs_are_the_same(void **state)
{
    (void)state;
    stand_in.set.refuses_graphs = true;
    expect_the_steps_of_the_cpu("lenet", 5, 4, &plain);
    assert_int_equal(stand_in.seen.captures, 1);
    assert_int_equal(stand_in.seen.graph_launches, 0);
}

/* The capture ends well, but lacks the commands after the product. */
static void steps_are_the_same_after_a_capture_without_all_commands(void **state)
{
    (void)state;
    stand_in.set.fails_captured = true;
    expect_the_steps_of_the_cpu("lenet", 5, 4, &plain);
    assert_int_equal(stand_in.seen.captures, 1);
    assert_int_equal(stand_in.seen.graph_launches, 0);
}

static void a_gradient_is_copied_in_buckets_during_backward(void **state)
{
    (void)state;
    struct fixture f;
    open_on(&f, "cuda", &plain, "cnn", 4);
    assert_true(f.count * sizeof(float) > 2 << 20);
    for (int step = 0; step < 2; ++step)
        fixture_step(&f, f.parameters, f.gradient);
    const size_t before = stand_in.seen.ahead;
    for (int step = 0; step < 4; ++step) { /* each stream runs first in two of them */
        memset(f.shifted, 0x7f, f.count * sizeof(float));
        fixture_step(&f, f.parameters, f.shifted);
        assert_memory_equal(f.shifted, f.gradient, f.count * sizeof(float));
    }
    assert_true(stand_in.seen.ahead >= before + 2);
    fixture_close(&f);
}

/* ---- what is refused ----------------------------------------------------------------------------
 */

static void a_kernel_computes_each_refused_epilogue(void **state)
{
    (void)state;
    static const struct {
        const char *model;
        cublasLtEpilogue_t epilogue;
    } each[] = {{"softmax", CUBLASLT_EPILOGUE_BIAS},
                {"mlp", CUBLASLT_EPILOGUE_RELU_AUX_BIAS},
                {"mlp", CUBLASLT_EPILOGUE_DRELU},
                {"mlp", CUBLASLT_EPILOGUE_BGRADB}};
    for (size_t i = 0; i < COUNT_OF(each); ++i) {
        for (int late = 0; late < 2; ++late) {
            stand_in.set.refused_epilogue = (int)each[i].epilogue;
            stand_in.set.refuses_late = late != 0;
            stand_in.seen.refused = 0;
            expect_the_steps_of_the_cpu(each[i].model, 5, 4, &plain);
            if (stand_in.seen.refused == 0)
                fail_msg("%s never asked for epilogue %d", each[i].model, (int)each[i].epilogue);
        }
    }
}

/* Held memory is registered and used directly. If that is refused, copies go through pinned memory.
 */
static void held_steps(struct fixture *f, float *to, struct cuda_command_statistics *out)
{
    open_on(f, "cuda", &plain, "lenet", 4);
    f->backend->kind->hold(f->backend);
    for (int step = 0; step < 4; ++step) {
        memset(f->gradient, 0x7f, f->count * sizeof(float));
        fixture_step(f, f->parameters, f->gradient);
    }
    memcpy(to, f->gradient, f->count * sizeof(float));
    *out = statistics_of(f);
    f->backend->kind->forget(f->backend);
    fixture_close(f);
}

static void gradients_are_the_same_where_pinning_is_refused(void **state)
{
    (void)state;
    enum { MOST = 200000 };
    struct fixture f;
    struct cuda_command_statistics straight, bounced;
    float *a = calloc(MOST, sizeof *a), *b = calloc(MOST, sizeof *b);
    held_steps(&f, a, &straight);
    assert_true(f.count <= MOST);
    assert_int_equal(stand_in.seen.pinned, 2);
    assert_int_equal(stand_in.seen.read_only, 1); /* the parameters */
    stand_in_reset();
    stand_in.set.refuses_pinning = true;
    held_steps(&f, b, &bounced);
    assert_int_equal(stand_in.seen.pinned, 0);
    assert_memory_equal(a, b, MOST * sizeof *a);
    assert_int_equal(straight.kernels, bounced.kernels);
    free(a);
    free(b);
}

static void copies_arrive_before_their_memory_is_unpinned(void **state)
{
    (void)state;
    cuda_device *d;
    void *at;
    char to[64] = {0};
    assert_ok(gpu->open(&d, &(struct cuda_options){0}));
    assert_ok(gpu->memory_new(d, &at, sizeof to, "a test's memory"));
    assert_true(gpu->pin(d, to, sizeof to, false));
    assert_ok(gpu->copy_down(d, CUDA_COPY, to, at, sizeof to));
    assert_int_equal(to[0], 0); /* queued, not done */
    gpu->unpin(d, to);
    assert_int_equal((unsigned char)to[0], 0xff);
    gpu->memory_free(d, at);
    gpu->close(&d);
}

/* With either stream first, for a waiting host that sleeps or spins. */
static void synchronize_waits_for_both_streams(void **state)
{
    (void)state;
    enum { TURNS = 4 };
    for (int spins = 0; spins < 2; spins++) {
        cuda_device *d;
        void *at;
        char *to;
        assert_ok(gpu->open(&d, &(struct cuda_options){.may_spin = spins != 0}));
        assert_ok(gpu->memory_new(d, &at, 1, "a test's memory"));
        assert_ok(gpu->host_new(d, &to, CUDA_STREAMS, "a test's host memory"));
        for (int turn = 0; turn < TURNS; turn++) {
            memset(to, 0, CUDA_STREAMS);
            assert_ok(gpu->copy_down(d, CUDA_COMPUTE, &to[CUDA_COMPUTE], at, 1));
            assert_ok(gpu->copy_down(d, CUDA_COPY, &to[CUDA_COPY], at, 1));
            assert_ok(gpu->synchronize(d));
            assert_memory_equal(to, "\xff\xff", CUDA_STREAMS);
        }
        gpu->memory_free(d, at);
        gpu->host_free(d, to);
        gpu->close(&d);
    }
}

/* ---- a fault ------------------------------------------------------------------------------------
 */

static status step(struct fixture *f)
{
    struct op_loss loss;
    tensor *x = tape_begin(f->tape, f->parameters, f->gradient);
    tensor *logits = f->model.kind->forward(f->tape, x, &f->model);
    return tape_finish(f->tape, softmax_cross_entropy(f->tape, logits), f->batch, &loss);
}

/* In a direct step and in a replayed one. After a fault the context is lost and nothing can be
 * freed, so the test resets the count. */
static void a_fault_of_a_kernel_fails_this_step_and_the_next(void **state)
{
    (void)state;
    for (unsigned right = 0; right < 4; right += 3) {
        struct fixture f;
        open_on(&f, "cuda", &plain, "mlp", 5);
        stand_in.set.faulty_kernel = "cross_entropy";
        stand_in.set.faulty_after = right;
        for (unsigned i = 0; i < right; i++)
            assert_ok(step(&f));
        assert_error(step(&f), ERROR_OTHER, "700");
        assert_error(step(&f), ERROR_OTHER, "700");
        fixture_close(&f);
        stand_in_reset();
    }
}

static void a_fault_names_the_last_kernel(void **state)
{
    (void)state;
    cuda_device *d;
    struct test_where_call call;
    assert_ok(gpu->open(&d, &(struct cuda_options){0}));
    assert_ok(gpu->memory_new(d, &call.out, 1 << 10, "a test's memory"));
    stand_in.set.faulty_kernel = "test_where";
    assert_ok(gpu->launch(d, CUDA_COMPUTE, CUDA_test_where, cuda_grid_over(32, 32), &call));
    assert_error(gpu->synchronize(d), ERROR_OTHER, "test_where");
    gpu->close(&d);
    stand_in_reset();
}

/* ---- several devices ----------------------------------------------------------------------------
 */

static void devices_used_in_turns_are_independent(void **state)
{
    (void)state;
    enum { DEVICES = 3 };
    struct fixture on[DEVICES];
    double loss[DEVICES];
    stand_in.set.devices = DEVICES;
    for (unsigned i = 0; i < DEVICES; i++) {
        struct backend_options o = plain;
        o.place.device = i;
        open_on(&on[i], "cuda", &o, "lenet", 5);
    }
    for (int turn = 0; turn < 4; turn++) {
        for (unsigned i = 0; i < DEVICES; i++) {
            loss[i] = fixture_step(&on[i], on[i].parameters, on[i].gradient);
            assert_true(loss[i] == loss[0]);
            assert_memory_equal(on[i].gradient, on[0].gradient, on[0].count * sizeof(float));
        }
    }
    for (unsigned i = 0; i < DEVICES; i++) {
        assert_true(stand_in.seen.kernels[i] > 0);
        assert_int_equal(stand_in.seen.kernels[i], stand_in.seen.kernels[0]);
        fixture_close(&on[i]);
    }
}

static void every_call_chooses_its_device(void **state)
{
    (void)state;
    enum { DEVICES = 2 };
    cuda_device *on[DEVICES];
    struct test_where_call call[DEVICES];
    stand_in.set.devices = DEVICES;
    for (unsigned i = 0; i < DEVICES; i++) {
        assert_ok(gpu->open(&on[i], &(struct cuda_options){.index = i}));
        assert_ok(gpu->memory_new(on[i], &call[i].out, 1 << 10, "a test's memory"));
    }
    for (unsigned turn = 0; turn < 4; turn++) {
        cuda_device *d = on[turn % DEVICES];
        assert_ok(gpu->launch(d, CUDA_COMPUTE, CUDA_test_where, cuda_grid_over(32, 32),
                              &call[turn % DEVICES]));
    }
    for (unsigned i = 0; i < DEVICES; i++) {
        assert_ok(gpu->synchronize(on[i]));
        assert_int_equal(stand_in.seen.kernels[i], 2);
        gpu->memory_free(on[i], call[i].out);
        gpu->close(&on[i]);
    }
}

static void an_absent_device_is_a_usage_error(void **state)
{
    (void)state;
    backend *b = NULL;
    struct backend_options o = plain;
    o.place.device = 1;
    const struct backend_kind *kind =
        (const struct backend_kind *)registry_find(&backend_registry, "cuda");
    assert_int_equal(kind->open(&b, &o), ERROR_USAGE);
    assert_null(b);
}

/* ---- a worker -----------------------------------------------------------------------------------
 */

/* The caller closes `settings` after the worker. */
static worker *worker_on(const char *device, options **settings)
{
    options *o;
    worker *w;
    static const char *const base[] = {"batch=8",          "model=resnet8",
                                       "dataset=gaussian", "dataset.samples=30",
                                       "dataset.size=8",   NULL};
    char chosen[32];
    snprintf(chosen, sizeof chosen, "device=%s", device);
    assert_ok(config_compose_texts(&o, base, (const char *const[]){chosen, NULL}, "test"));
    assert_ok(worker_open(&w, &(struct worker_options){.settings = o, .count = 1}));
    *settings = o;
    return w;
}

static void gradients_around_an_evaluation_equal_those_of_the_cpu(void **state)
{
    (void)state;
    options *settings[2];
    worker *cpu = worker_on("cpu", &settings[0]), *cuda = worker_on("cuda", &settings[1]);
    const size_t count = worker_parameter_count(cpu);
    float *at = calloc(2 * count, sizeof *at);
    struct evaluation wanted, seen;
    struct step_stats stats;
    assert_ok(worker_initial_parameters(cpu, at, count));
    assert_ok(worker_evaluate(cpu, at, &wanted));
    for (uint64_t batch = 0; batch < 3; ++batch) {
        assert_ok(worker_gradient(cuda, at, batch, at + count, &stats));
        struct worker_batch of_cpu = {cpu, batch};
        const struct gradient_reference reference = gradient_of_worker(&of_cpu, at);
        assert_true(gradient_distance_beside_kinks(&reference, at + count, 1e-5) < 1e-5);
        if (batch == 1)
            assert_ok(worker_evaluate(cuda, at, &seen));
    }
    assert_true(fabs(seen.test_loss - wanted.test_loss) < 1e-4 * wanted.test_loss);
    assert_true(fabs(seen.validation_loss - wanted.validation_loss) <
                1e-4 * wanted.validation_loss);
    worker_close(&cpu);
    worker_close(&cuda);
    options_close(&settings[0]);
    options_close(&settings[1]);
    free(at);
}

/* ---- what the stand-in notices ------------------------------------------------------------------
 */

static cuda_device *opened(void)
{
    cuda_device *d;
    assert_ok(gpu->open(&d, &(struct cuda_options){0}));
    return d;
}

/* True if the stand-in ends a child process that does this to a device. */
static bool ends_the_program(void (*breach)(cuda_device *d))
{
    int how = 0;
    fflush(NULL);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        stand_in_reset(); /* the tests before used CUDA in the parent */
        breach(opened());
        _exit(0);
    }
    assert_int_equal(waitpid(child, &how, 0), child);
    return WIFSIGNALED(how) && WTERMSIG(how) == SIGABRT;
}

static void launch_over(cuda_device *d, uint32_t threads)
{
    struct test_where_call call;
    assert_ok(gpu->memory_new(d, &call.out, 32 * 4 * sizeof(uint32_t), "a test's memory"));
    assert_ok(
        gpu->launch(d, CUDA_COMPUTE, CUDA_test_where, cuda_grid_over(threads, threads), &call));
    assert_ok(gpu->synchronize(d));
}

static void stay_within(cuda_device *d)
{
    launch_over(d, 32);
}

static void write_behind_memory(cuda_device *d)
{
    launch_over(d, 33);
}

static void copy_from_the_wrong_side(cuda_device *d)
{
    float host[8] = {0};
    assert_ok(gpu->copy_down(d, CUDA_COPY, host, host, sizeof host));
}

static void wait_in_a_capture(cuda_device *d)
{
    assert_ok(gpu->capture_begin(d));
    (void)(gpu->synchronize(d) == OK);
}

static void undefined_behaviour_ends_the_program(void **state)
{
    (void)state;
    assert_false(ends_the_program(stay_within));
    assert_true(ends_the_program(write_behind_memory));
    assert_true(ends_the_program(copy_from_the_wrong_side));
    assert_true(ends_the_program(wait_in_a_capture));
}

/* A copy does not wait for the stream of a kernel, although it should. It gets both possible
 * values. */
static void unordered_streams_run_in_either_order(void **state)
{
    (void)state;
    bool saw[2] = {false, false};
    uint8_t *x, *seen;
    cuda_device *d = opened();
    assert_ok(gpu->memory_new(d, &x, 1, "a test's memory"));
    assert_ok(gpu->host_new(d, &seen, 1, "a test's host memory"));
    for (int turn = 0; turn < 16; turn++) {
        *seen = 1;
        assert_ok(gpu->copy_up(d, CUDA_COMPUTE, x, seen, 1));
        assert_ok(gpu->synchronize(d));
        assert_ok(gpu->copy_down(d, CUDA_COPY, seen, x, 1));
        assert_ok(gpu->clear(d, CUDA_COMPUTE, x, 1));
        assert_ok(gpu->synchronize(d));
        saw[*seen] = true;
    }
    assert_true(saw[0] && saw[1]);
    gpu->host_free(d, seen);
    gpu->memory_free(d, x);
    gpu->close(&d);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)
    const struct CMUnitTest tests[] = {
        TEST(direct_captured_and_replayed_steps_equal_those_of_the_cpu),
        TEST(steps_are_the_same_if_the_host_spins),
        TEST(steps_without_graphs_are_the_same),
        TEST(steps_are_the_same_after_a_capture_without_all_commands),
        TEST(a_gradient_is_copied_in_buckets_during_backward),
        TEST(a_kernel_computes_each_refused_epilogue),
        TEST(gradients_are_the_same_where_pinning_is_refused),
        TEST(copies_arrive_before_their_memory_is_unpinned),
        TEST(synchronize_waits_for_both_streams),
        TEST(a_fault_of_a_kernel_fails_this_step_and_the_next),
        TEST(a_fault_names_the_last_kernel),
        TEST(devices_used_in_turns_are_independent),
        TEST(every_call_chooses_its_device),
        TEST(an_absent_device_is_a_usage_error),
        TEST(gradients_around_an_evaluation_equal_those_of_the_cpu),
        TEST(undefined_behaviour_ends_the_program),
        TEST(unordered_streams_run_in_either_order),
    };
    return cmocka_run_group_tests_name("stand-in for CUDA", tests, dataset_rig_open,
                                       dataset_rig_close);
}
