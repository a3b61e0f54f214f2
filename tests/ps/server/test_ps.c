/* Server and workers as real processes: over ipc and tcp, with shared memory and with frames. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "tests/rigs/patience.h"
#include "tests/ps/server/ps_rig.h"
#include "tests/rigs/scratch.h"

enum { BIG = 700001 }; /* 2.8 MB: three chunks, the last one shorter */

static void hash_of_one_worker(const char *payload, const char *listen, size_t count, char hash[65])
{
    struct rig *r = rig_open(1, count);
    options *o = rig_settings();
    rig_set(o, "payload", payload);
    if (listen != NULL)
        snprintf(r->listen, sizeof r->listen, "%s", listen);
    rig_train_all(r, o);
    assert_int_equal(r->outcome.updates, 100);
    assert_int_equal(r->outcome.samples_used, 1000);
    assert_int_equal(r->worker[0].pushes, 100);
    assert_int_equal(r->evaluations, 1);
    memcpy(hash, r->outcome.parameters_sha256, 65);
    options_close(&o);
    rig_close(r);
}

/* Some containers have no IPv6. */
static bool has_ipv6(void)
{
    const struct sockaddr_in6 loopback = {.sin6_family = AF_INET6,
                                          .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool has = fd >= 0 && bind(fd, (const struct sockaddr *)&loopback, sizeof loopback) == 0;
    if (fd >= 0)
        close(fd);
    return has;
}

static void one_worker_computes_the_same_bits_with_every_transport(void **state UNUSED)
{
    static const char *const tcp = "tcp://127.0.0.1:*";
    char first[65], other[65];
    hash_of_one_worker("shm", NULL, BIG, first);
    assert_int_equal(strlen(first), 64);
    hash_of_one_worker("frames", NULL, BIG, other);
    assert_string_equal(first, other);
    hash_of_one_worker("frames", tcp, BIG, other);
    assert_string_equal(first, other);
    hash_of_one_worker("shm", tcp, BIG, other);
    assert_string_equal(first, other);
    if (has_ipv6()) {
        hash_of_one_worker("auto", "tcp://[::1]:*", BIG, other);
        assert_string_equal(first, other);
    }
}

static void a_model_of_one_parameter_trains(void **state UNUSED)
{
    char shared[65], frames[65];
    hash_of_one_worker("shm", NULL, 1, shared);
    hash_of_one_worker("frames", NULL, 1, frames);
    assert_string_equal(shared, frames);
}

static void every_push_of_eight_workers_is_recorded_once(void **state UNUSED)
{
    char path[64];
    snprintf(path, sizeof path, "%s/gradlag-test-%d.db", scratch_folder(), (int)getpid());
    struct rig *r = rig_open(8, 1000);
    options *o = rig_settings();
    r->results = path;
    r->total_samples = 3000;
    r->evaluate_every = 1000;
    r->evaluation_ms = 600 * STRETCH;
    rig_set(o, "workers", "8");
    const double began = clock_seconds();
    rig_train_all(r, o);
    const double wall = clock_seconds() - began, evaluated = 3 * 0.6 * STRETCH;
    uint64_t pushes = 0;
    for (unsigned w = 0; w < 8; w++)
        pushes += r->worker[w].pushes;
    /* If the server answers a push with the end, the worker counts it and the row says late. */
    assert_int_equal(rig_number(path, "SELECT count(*) FROM push"), pushes);
    assert_int_equal(rig_number(path, "SELECT count(*) FROM push WHERE outcome = 'applied'"), 300);
    assert_int_equal(rig_number(path, "SELECT count(DISTINCT update_version) FROM push "
                                      "WHERE outcome = 'applied'"),
                     300);
    assert_true(pushes >= 300 && pushes <= 308);
    assert_int_equal(rig_number(path, "SELECT count(*) FROM evaluation"), 3);
    assert_int_equal(rig_number(path, "SELECT count(*) FROM evaluation WHERE train_loss IS NULL"),
                     0);
    assert_int_equal(rig_number(path, "SELECT count(*) FROM event WHERE code = 'worker_joined'"),
                     8);
    assert_int_equal(rig_number(path,
                                "SELECT count(*) FROM push WHERE outcome = 'applied' AND "
                                "(queue_us < 0 OR staleness <> update_version - 1 - read_version)"),
                     0);
    /* The recorded wait excludes evaluations. */
    assert_true(rig_number(path, "SELECT sum(queue_us) FROM push") > 0);
    assert_true(rig_number(path, "SELECT sum(pull_us) FROM push") > 0);
    rig_expect_apart(rig_longest_wait(path), evaluated, wall);
    rig_expect_apart(1e-6 * (double)rig_number(path, "SELECT 1e6 * max(seconds) FROM evaluation"),
                     evaluated, wall);
    unlink(path);
    options_close(&o);
    rig_close(r);
}

static void a_barrier_makes_every_gradient_fresh(void **state UNUSED)
{
    char hash[2][65];
    for (int i = 0; i < 2; i++) {
        struct rig *r = rig_open(3, 1000);
        options *o = rig_settings();
        rig_set(o, "workers", "3");
        rig_set(o, "consistency", "bsp");
        rig_set(o, "payload", i == 0 ? "shm" : "frames");
        r->total_samples = 1500;
        rig_train_all(r, o);
        assert_int_equal(r->outcome.updates, 50);
        memcpy(hash[i], r->outcome.parameters_sha256, 65);
        options_close(&o);
        rig_close(r);
    }
    assert_string_equal(hash[0], hash[1]);
}

static void checkpoints_are_written_at_the_set_interval_and_at_the_end(void **state UNUSED)
{
    struct rig *r = rig_open(1, 100);
    options *o = rig_settings();
    rig_set(o, "checkpoint", "x.safetensors");
    rig_set(o, "checkpoint_every", "3"); /* epochs of 100 samples; the run has 10 */
    rig_train_all(r, o);
    assert_int_equal(r->checkpoints, 4);
    options_close(&o);
    rig_close(r);
}

static void take_a_while(struct rig *r UNUSED)
{
    clock_sleep_until_ns(clock_ns() + 2500000000);
}

static void a_checkpoint_longer_than_the_timeout_loses_no_worker(void **state UNUSED)
{
    struct rig *r = rig_open(1, 100);
    options *o = rig_settings();
    rig_set(o, "timeout_s", "1.5");
    rig_set(o, "checkpoint", "x.safetensors");
    rig_set(o, "checkpoint_every", "6"); /* epochs of 100 samples; the run has 10 */
    r->at_checkpoint = take_a_while;
    const double began = clock_seconds();
    rig_train_all(r, o);
    assert_int_equal(r->checkpoints, 2);
    assert_int_equal(r->outcome.updates, 100);
    rig_expect_apart(r->outcome.train_seconds, 2 * 2.5, clock_seconds() - began);
    options_close(&o);
    rig_close(r);
}

static void a_checkpoint_interval_below_one_sample_means_every_update(void **state UNUSED)
{
    struct rig *r = rig_open(1, 100);
    options *o = rig_settings();
    rig_set(o, "checkpoint", "x.safetensors");
    rig_set(o, "checkpoint_every", "0.001"); /* a tenth of a sample */
    r->total_samples = 50;
    rig_train_all(r, o);
    assert_true(r->checkpoints >= 5);
    options_close(&o);
    rig_close(r);
}

static void a_request_to_stop_ends_the_run_cleanly(void **state UNUSED)
{
    struct rig *r = rig_open(2, 100);
    options *o = rig_settings();
    rig_set(o, "workers", "2");
    r->total_samples = 1000000000;
    pid_t server = rig_serve(r, o), a = rig_train(r, o, 0, 1), b = rig_train(r, o, 1, 1);
    assert_true(rig_until(&r->worker[0].stage, 5, 10));
    r->stop = 1;
    assert_int_equal(rig_wait(server, 10), STOPPED);
    assert_int_equal(rig_wait(a, 10), OK);
    assert_int_equal(rig_wait(b, 10), OK);
    assert_true(r->outcome.updates > 0);
    assert_int_equal(strlen(r->outcome.parameters_sha256), 64);
    options_close(&o);
    rig_close(r);
}

static void a_stopped_run_that_cannot_write_its_checkpoint_has_failed(void **state UNUSED)
{
    struct rig *r = rig_open(1, 100);
    options *o = rig_settings();
    rig_set(o, "checkpoint", "x.safetensors");
    r->checkpoint_fails = 1;
    r->total_samples = 1000000000;
    pid_t server = rig_serve(r, o), trainer = rig_train(r, o, 0, 1);
    assert_true(rig_until(&r->worker[0].stage, 5, 10));
    r->stop = 1;
    assert_int_equal(rig_wait(server, 10), ERROR_OTHER);
    assert_int_equal(rig_wait(trainer, 10), ERROR_OTHER);
    assert_non_null(strstr(r->message, "the test's checkpoint fails"));
    options_close(&o);
    rig_close(r);
}

/* ---- memory -------------------------------------------------------------------------------------
 */

#ifndef GRADLAG_SANITIZE
/* Counts the allocations of each thread of this program. ZeroMQ's own thread counts separately. */
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *p, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);
static _Thread_local unsigned long allocations;

void *malloc(size_t bytes)
{
    allocations++;
    return __libc_malloc(bytes);
}

void *calloc(size_t count, size_t size)
{
    allocations++;
    return __libc_calloc(count, size);
}

void *realloc(void *p, size_t bytes)
{
    allocations++;
    return __libc_realloc(p, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
    allocations++;
    return __libc_memalign(alignment, bytes);
}

int posix_memalign(void **out, size_t alignment, size_t bytes)
{
    allocations++;
    *out = __libc_memalign(alignment, bytes);
    return *out == NULL ? 12 : 0;
}

/* Reports how many allocations steps 100 to 399 took. */
static status count_allocations(struct rig *r, const options *settings, unsigned w,
                                unsigned unused UNUSED)
{
    status result = OK;
    ps_client *client = NULL;
    struct ps_release at;
    unsigned long before = 0;
    TRY(rig_join(r, settings, w, &client, &at));
    REQUIRE(allocations > 0);
    for (unsigned i = 0; !at.finished; i++) {
        if (i == 100)
            before = allocations;
        if (i == 400)
            r->worker[w].pushes = allocations - before;
        memset(at.gradient, 0, r->count * sizeof(float));
        TRY(ps_client_push_pull(client, &(struct ps_push){.loss = 1, .samples = 10}, &at));
    }
done:
    ps_client_close(&client);
    return result;
}

static unsigned long *of_server; /* count of the server's thread, which waits for the checkpoint */

static void note_allocations(struct rig *r)
{
    if (r->checkpoints < (int)COUNT_OF(r->noted))
        r->noted[r->checkpoints] = *of_server;
}
#endif

/* Pushes and releases go through a mailbox. Pings go through ZeroMQ, which allocates memory. */
static void a_step_through_shared_memory_allocates_nothing(void **state UNUSED)
{
#ifdef GRADLAG_SANITIZE
    skip();
#else
    struct rig *r = rig_open(1, 1000);
    options *o = rig_settings();
    rig_set(o, "payload", "shm");
    r->total_samples = 4100;
    pid_t server = rig_serve(r, o), trainer = rig_fork(r, o, 0, 0, count_allocations);
    assert_int_equal(rig_wait(trainer, 10), OK);
    assert_int_equal(rig_wait(server, 10), OK);
    assert_true(r->worker[0].pushes <= 10); /* in 300 steps */
    options_close(&o);
    rig_close(r);
#endif
}

/* The same for the server's reply, with vectors that helper threads update. */
static void a_step_of_the_server_allocates_nothing(void **state UNUSED)
{
#ifdef GRADLAG_SANITIZE
    skip();
#else
    struct rig *r = rig_open(1, 150000);
    options *o = rig_settings();
    rig_set(o, "payload", "shm");
    rig_set(o, "checkpoint", "somewhere");
    rig_set(o, "checkpoint_every", "10"); /* 100 steps */
    r->total_samples = 4000;
    r->at_checkpoint = note_allocations;
    of_server = &allocations; /* after the fork, this thread is the server's */
    pid_t server = rig_serve(r, o), trainer = rig_train(r, o, 0, 0);
    assert_int_equal(rig_wait(trainer, 20), OK);
    assert_int_equal(rig_wait(server, 20), OK);
    assert_true(r->checkpoints >= 4);
    unsigned long taken = r->noted[3] - r->noted[0]; /* in 300 steps */
    assert_true(r->noted[0] > 0);                    /* else nothing was counted */
    if (taken > 10)
        fail_msg("300 steps took %lu allocations", taken);
    options_close(&o);
    rig_close(r);
#endif
}

/* With asp the pushes wait in the queue for the end of an evaluation; with bsp they wait in the
 * core for other workers. */
static void every_push_of_a_stopped_run_is_recorded(void **state UNUSED)
{
    static const char *const policies[] = {"asp", "bsp"};
    char path[64];
    snprintf(path, sizeof path, "%s/gradlag-test-%d.db", scratch_folder(), (int)getpid());
    for (size_t i = 0; i < COUNT_OF(policies); i++) {
        struct rig *r = rig_open(4, 100);
        options *o = rig_settings();
        pid_t pids[4];
        uint64_t pushes = 0;
        r->results = path;
        r->total_samples = 1000000000;
        r->evaluate_every = 200;
        r->evaluation_ms = 300 * STRETCH;
        rig_set(o, "workers", "4");
        rig_set(o, "consistency", policies[i]);
        pid_t server = rig_serve(r, o);
        for (unsigned w = 0; w < 4; w++)
            pids[w] = rig_train(r, o, w, i == 1 && w == 3 ? 100 * STRETCH : 1);
        assert_true(rig_until(&r->evaluations, 1, 10));
        assert_true(i == 1 || rig_until(&r->evaluating, 1, 10));
        usleep(50000 * STRETCH); /* all workers except the slow one have pushed */
        r->stop = 1;
        assert_int_equal(rig_wait(server, 10), STOPPED);
        for (unsigned w = 0; w < 4; w++) {
            assert_int_equal(rig_wait(pids[w], 10), OK);
            pushes += r->worker[w].pushes;
        }
        assert_int_equal(r->outcome.samples_computed, 10 * pushes);
        assert_int_equal(rig_number(path, "SELECT count(*) FROM push"), pushes);
        assert_true(rig_number(path, "SELECT count(*) FROM push WHERE outcome = 'dropped_late'") >=
                    3);
        unlink(path);
        options_close(&o);
        rig_close(r);
    }
}

static void gradients_that_are_not_finite_end_the_run_and_name_the_worker(void **state UNUSED)
{
    struct rig *r = rig_open(1, 100);
    options *o = rig_settings();
    rig_set(o, "lr", "10"); /* θ ← θ − 10 v: soon beyond any float */
    r->total_samples = 1000000;
    pid_t server = rig_serve(r, o), trainer = rig_train(r, o, 0, 0);
    assert_int_equal(rig_wait(server, 10), ERROR_DIVERGED);
    assert_int_equal(rig_wait(trainer, 10), ERROR_DIVERGED);
    assert_non_null(strstr(r->message, "worker 0"));
    options_close(&o);
    rig_close(r);
}

static void no_socket_file_is_left_of_an_ipc_endpoint(void **state UNUSED)
{
    struct rig *r = rig_open(1, 100);
    options *o = rig_settings();
    rig_train_all(r, o);
    assert_int_equal(access(r->listen + strlen("ipc://"), F_OK), -1);
    options_close(&o);
    rig_close(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_worker_computes_the_same_bits_with_every_transport),
        cmocka_unit_test(a_model_of_one_parameter_trains),
        cmocka_unit_test(every_push_of_eight_workers_is_recorded_once),
        cmocka_unit_test(a_barrier_makes_every_gradient_fresh),
        cmocka_unit_test(checkpoints_are_written_at_the_set_interval_and_at_the_end),
        cmocka_unit_test(a_checkpoint_longer_than_the_timeout_loses_no_worker),
        cmocka_unit_test(a_checkpoint_interval_below_one_sample_means_every_update),
        cmocka_unit_test(a_request_to_stop_ends_the_run_cleanly),
        cmocka_unit_test(a_stopped_run_that_cannot_write_its_checkpoint_has_failed),
        cmocka_unit_test(a_step_through_shared_memory_allocates_nothing),
        cmocka_unit_test(a_step_of_the_server_allocates_nothing),
        cmocka_unit_test(every_push_of_a_stopped_run_is_recorded),
        cmocka_unit_test(gradients_that_are_not_finite_end_the_run_and_name_the_worker),
        cmocka_unit_test(no_socket_file_is_left_of_an_ipc_endpoint),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
