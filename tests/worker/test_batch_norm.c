/*
 * test_batch_norm.c — SyncBatchNorm (batch_norm=synchronised): the gradient of the joint batch in
 * one process, with threads as workers, and training on several ranks.
 */
#include "base/memory.h"
#include "sync/sync_batch_norm.h"
#include "tests/worker/gradients.h"
#include "tests/worker/op_graphs.h"
#include "tests/sync/trainer_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"

/* ---- shares on threads ---- */

enum { SHARES = 3, SHARE = 4, MOST_SUMS = 256 };

struct batch_norm_meeting {
    pthread_barrier_t all;
    double *sums[SHARES];
};

struct share {
    struct batch_norm_meeting *meeting;
    unsigned index;
    struct batch_norm_group joint;
    struct fixture f;
    const float *parameters;
    double loss;
};

static status add_up(void *context, double *sums, size_t count)
{
    struct share *s = context;
    double total[MOST_SUMS];
    REQUIRE(count <= MOST_SUMS);
    s->meeting->sums[s->index] = sums;
    pthread_barrier_wait(&s->meeting->all);
    for (size_t i = 0; i < count; i++) {
        total[i] = 0;
        for (unsigned k = 0; k < SHARES; k++)
            total[i] += s->meeting->sums[k][i];
    }
    pthread_barrier_wait(&s->meeting->all);
    memcpy(sums, total, count * sizeof *sums);
    return OK;
}

struct group_rig {
    struct batch_norm_meeting meeting;
    struct share shares[SHARES];
    struct fixture whole; /* the same samples in one batch */
    float *mean, *shifted;
};

static void rig_open(struct group_rig *r, const struct model *m, struct shape images,
                     uint32_t threads)
{
    const struct backend_options o = {.threads = threads};
    const size_t pixels = SHARE * shape_count(images);
    fixture_open_on(&r->whole, &o, m, images, SHARES * SHARE, 5);
    pthread_barrier_init(&r->meeting.all, NULL, SHARES);
    for (unsigned k = 0; k < SHARES; k++) {
        struct share *s = &r->shares[k];
        *s = (struct share){.meeting = &r->meeting, .index = k};
        s->joint = (struct batch_norm_group){.context = s, .shares = SHARES, .add_up = add_up};
        fixture_open_on(&s->f, &o, m, images, SHARE, 5);
        memcpy(s->f.pixels, r->whole.pixels + k * pixels, pixels * sizeof(float));
        memcpy(s->f.labels, r->whole.labels + k * SHARE, SHARE * sizeof(uint32_t));
    }
    assert_int_equal(memory_new(&r->mean, r->whole.count, sizeof(float), "test"), OK);
    assert_int_equal(memory_new(&r->shifted, r->whole.count, sizeof(float), "test"), OK);
}

static void rig_close(struct group_rig *r)
{
    for (unsigned k = 0; k < SHARES; k++)
        fixture_close(&r->shares[k].f);
    fixture_close(&r->whole);
    pthread_barrier_destroy(&r->meeting.all);
    memory_free(r->mean);
    memory_free(r->shifted);
}

static void *step_of_share(void *context)
{
    struct share *s = context;
    s->loss = fixture_step(&s->f, s->parameters, s->f.gradient);
    return NULL;
}

/* Returns the mean of the shares' losses and writes the mean of their gradients to r->mean. */
static double step(struct group_rig *r, const float *parameters)
{
    pthread_t threads[SHARES];
    double loss = 0;
    for (unsigned k = 0; k < SHARES; k++) {
        r->shares[k].parameters = parameters;
        assert_int_equal(pthread_create(&threads[k], NULL, step_of_share, &r->shares[k]), 0);
    }
    for (unsigned k = 0; k < SHARES; k++) {
        pthread_join(threads[k], NULL);
        loss += r->shares[k].loss / SHARES;
    }
    for (size_t i = 0; i < r->whole.count; i++) {
        double sum = 0;
        for (unsigned k = 0; k < SHARES; k++)
            sum += (double)r->shares[k].f.gradient[i];
        r->mean[i] = (float)(sum / SHARES);
    }
    return loss;
}

static double length_of(const float *v, size_t count)
{
    double sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += (double)v[i] * (double)v[i];
    return sqrt(sum);
}

static double shifted_loss(struct group_rig *r, const float *direction, double by)
{
    for (size_t i = 0; i < r->whole.count; i++)
        r->shifted[i] = r->whole.parameters[i] + (float)(by * (double)direction[i]);
    return step(r, r->shifted);
}

/* Checks the slope along the gradient and along a random direction. */
static void assert_slopes(struct group_rig *r)
{
    struct random_stream stream;
    const size_t count = r->whole.count;
    float *gradient = NULL, *along = NULL;
    assert_int_equal(memory_new(&gradient, count, sizeof(float), "test"), OK);
    assert_int_equal(memory_new(&along, count, sizeof(float), "test"), OK);
    random_open(&stream, RANDOM_TEST, 7, 0, 1);
    memcpy(gradient, r->mean, count * sizeof(float));
    const double norm = length_of(gradient, count);
    for (unsigned way = 0; way < 2; way++) {
        double said = 0;
        for (size_t i = 0; i < count; i++)
            along[i] = way == 0 ? gradient[i] : (float)random_normal(&stream);
        const double length = length_of(along, count);
        for (size_t i = 0; i < count; i++) {
            along[i] = (float)((double)along[i] / length);
            said += (double)along[i] * (double)gradient[i];
        }
        double seen = (shifted_loss(r, along, 2e-3) - shifted_loss(r, along, -2e-3)) / 4e-3;
        if (!(fabs(said - seen) <= 2e-2 * norm))
            fail_msg("the gradient's slope is %g, finite differences give %g (length %g)", said,
                     seen, norm);
    }
    memory_free(gradient);
    memory_free(along);
}

/* Expects the same gradient up to the rounding of another order of sums: 2e-6 of its length. With
 * local statistics the gradient would be different. */
static void check_graph(forward_function *forward, uint32_t threads)
{
    static struct group_rig r;
    const struct model_kind kind = {.about = {.name = "test"}, .forward = forward};
    const struct model m = {.kind = &kind, .classes = 5};
    rig_open(&r, &m, (struct shape){3, 9, 7}, threads);
    double whole = fixture_step(&r.whole, r.whole.parameters, r.whole.gradient);
    step(&r, r.whole.parameters);
    assert_true(gradient_distance(r.mean, r.whole.gradient, r.whole.count) > 0.02);
    for (unsigned k = 0; k < SHARES; k++)
        tape_join(r.shares[k].f.tape, &r.shares[k].joint);
    double joint = step(&r, r.whole.parameters);
    const struct gradient_reference reference = gradient_of_fixture(&r.whole);
    const double apart = gradient_distance_beside_kinks(&reference, r.mean, 2e-6);
    if (!(apart < 2e-6 && fabs(joint - whole) < 1e-5 * whole))
        fail_msg("relative distance of the gradient %g, difference of the loss %g", apart,
                 joint - whole);
    assert_slopes(&r);
    rig_close(&r);
}

static void gradient_equals_that_of_the_joint_batch(void **state UNUSED)
{
    check_graph(with_batch_norm, 1);
    check_graph(with_shared_batch_norms, 1);
    check_graph(with_residuals, 1);
}

/* With two threads every batch norm runs through oneDNN. */
static void gradient_equals_that_of_the_joint_batch_through_onednn(void **state UNUSED)
{
    check_graph(with_batch_norm, 2);
}

/* ---- ranks ---- */

#define JOINT(...) SETTINGS("batch_norm=synchronised", "model=resnet8", "updates=3", __VA_ARGS__)

static status case_sums(unsigned rank, unsigned size)
{
    status result = OK;
    struct run r = {0};
    struct sync_batch_norm j = {0};
    double sums[3] = {rank + 0.5, 1e-30, -1e30};
    TRY(run_open(&r, JOINT("communicator=auto"), rank, size));
    TRY(sync_batch_norm_open(&j, r.worker, r.communicator));
    if (worker_joint_sums(r.worker) != 2 * 64 || j.batch.shares != size)
        FAIL(ERROR_OTHER, "%zu sums, %u shares", worker_joint_sums(r.worker), j.batch.shares);
    TRY(j.batch.add_up(j.batch.context, sums, 3));
    if (sums[0] != size * (size - 1) / 2 + 0.5 * size || sums[1] != size * 1e-30 ||
        sums[2] != size * -1e30)
        FAIL(ERROR_OTHER, "%g %g %g", sums[0], sums[1], sums[2]);
done:
    sync_batch_norm_close(&j);
    run_close(&r);
    return result;
}

static status train(const char *const *settings, unsigned rank, unsigned size, char hex[65])
{
    status result = OK;
    struct run r = {0};
    TRY(run_open(&r, settings, rank, size));
    TRY(run_train(&r));
    memcpy(hex, r.outcome.parameters_sha256, 65);
done:
    run_close(&r);
    return result;
}

/* All communicators end with the same bits, and these differ from those of local batch norms. */
static status case_communicators(unsigned rank, unsigned size)
{
    status result = OK;
    static const char *const others[] = {"communicator=mpi", "communicator=ring"};
    char first[65], hex[65];
    TRY(train(JOINT("communicator=shared", "verify_every=1"), rank, size, first));
    for (size_t i = 0; i < COUNT_OF(others); i++) {
        TRY(train(JOINT(others[i], "reduction=ordered"), rank, size, hex));
        if (strcmp(first, hex) != 0)
            FAIL(ERROR_OTHER, "%s: %.12s…, not %.12s…", others[i], hex, first);
    }
    TRY(train(SETTINGS("model=resnet8", "updates=3", "communicator=shared"), rank, size, hex));
    if (strcmp(first, hex) == 0)
        FAIL(ERROR_OTHER, "batch norm used local statistics");
done:
    return result;
}

/* Ranks agree after every update, also with other messages in flight. In a grown batch each single
 * batch is normalised alone. */
static status case_together(unsigned rank, unsigned size)
{
    status result = OK;
    char hex[65];
    TRY(train(JOINT("verify_every=1", "delay=2"), rank, size, hex));
    TRY(train(JOINT("verify_every=1", "compression=fp16"), rank, size, hex));
    TRY(train(JOINT("verify_every=1", "decay=batch", "batch_growth_max=2"), rank, size, hex));
done:
    return result;
}

static status case_alone(unsigned rank, unsigned size)
{
    status result = OK;
    char hex[65], local[65];
    TRY(train(JOINT("communicator=auto"), rank, size, hex));
    TRY(train(SETTINGS("model=resnet8", "updates=3", "communicator=auto"), rank, size, local));
    if (strcmp(hex, local) != 0)
        FAIL(ERROR_OTHER, "with one rank both settings must give equal bits: %.12s… and %.12s…",
             hex, local);
done:
    return result;
}

static status expect_no_worker(const char *model, const char *device, const char *named)
{
    status result = OK;
    struct run r = {0};
    status opened = run_open(&r, SETTINGS("batch_norm=synchronised", model, device), 0, 2);
    if (opened != ERROR_USAGE || strstr(error_message(), named) == NULL)
        FAIL(ERROR_OTHER, "%s %s: %s", model, device, opened == OK ? "OK" : error_message());
done:
    run_close(&r);
    return result;
}

static status case_refused(unsigned rank UNUSED, unsigned size UNUSED)
{
    status result = OK;
    TRY(expect_no_worker("model=mlp", "device=cpu", "mlp"));
#ifdef GRADLAG_CUDA
    TRY(expect_no_worker("model=resnet8", "device=cuda", "device"));
#endif
done:
    return result;
}

static const struct sync_case CASES[] = {
    {"sums", case_sums},         {"communicators", case_communicators},
    {"together", case_together}, {"alone", case_alone},
    {"refused", case_refused},   {NULL, NULL},
};

static void ranks_add_their_sums(void **state UNUSED)
{
    sync_rig_expect_ok(3, "sums");
}

static void other_communicators_end_with_the_same_bits(void **state UNUSED)
{
    sync_rig_expect_ok(2, "communicators");
}

static void works_with_a_delay_compression_and_grown_batches(void **state UNUSED)
{
    sync_rig_expect_ok(2, "together");
}

static void one_rank_equals_local_batch_norm(void **state UNUSED)
{
    sync_rig_expect_ok(1, "alone");
}

static void refused_without_batch_norm_and_on_a_gpu(void **state UNUSED)
{
    sync_rig_expect_ok(1, "refused");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradient_equals_that_of_the_joint_batch),
        cmocka_unit_test(gradient_equals_that_of_the_joint_batch_through_onednn),
        cmocka_unit_test(ranks_add_their_sums),
        cmocka_unit_test(other_communicators_end_with_the_same_bits),
        cmocka_unit_test(works_with_a_delay_compression_and_grown_batches),
        cmocka_unit_test(one_rank_equals_local_batch_norm),
        cmocka_unit_test(refused_without_batch_norm_and_on_a_gpu),
    };
    int code;
    if (sync_rig_is_rank(argc, argv, CASES, &code))
        return code;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
