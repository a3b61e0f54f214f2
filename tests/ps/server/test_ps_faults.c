/* What the parameter server and its workers do when others die, fall silent or may not come in. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "tests/ps/server/ps_rig.h"
#include "tests/results/results_rig.h"
#include "tests/rigs/scratch.h"

static const uint64_t FOREVER = 1000000000;

/* ---- deaths and silence -------------------------------------------------------------------- */

static void a_killed_worker_ends_the_run_at_once_and_is_named(void **state UNUSED)
{
    options *o;
    struct rig *r = rig_open_with(&o, 2, "1000");
    r->total_samples = FOREVER;
    pid_t server = rig_serve(r, o), a = rig_train(r, o, 0, 1), b = rig_train(r, o, 1, 50);
    assert_true(rig_until(&r->worker[1].stage, 2, 10));
    kill(b, SIGKILL);
    assert_int_equal(rig_wait(b, 5), 128 + SIGKILL);
    assert_int_equal(rig_wait(server, 10), ERROR_PEER); /* long before the timeout */
    assert_int_equal(rig_wait(a, 10), ERROR_PEER);
    rig_expect_said(r->message, "worker 1");
    rig_expect_said(r->worker[0].message, "worker 1");
    rig_close_with(r, o);
}

static void training_goes_on_without_a_lost_worker_and_another_takes_its_place(void **state UNUSED)
{
    options *o;
    struct rig *r = rig_open_with(&o, 2, "20");
    rig_set(o, "on_lost", "continue");
    r->total_samples = 20000;
    pid_t server = rig_serve(r, o), a = rig_train(r, o, 0, 1), b = rig_train(r, o, 1, 1);
    assert_true(rig_until(&r->worker[1].stage, 5, 10));
    kill(b, SIGKILL);
    assert_int_equal(rig_wait(b, 5), 128 + SIGKILL);
    int before = r->worker[0].stage;
    assert_true(rig_until(&r->worker[0].stage, before + 50, 10));
    pid_t again = rig_train(r, o, 1, 1);
    assert_int_equal(rig_wait(again, 20), OK);
    assert_int_equal(rig_wait(a, 20), OK);
    assert_int_equal(rig_wait(server, 20), OK);
    assert_true(r->worker[1].first_batch >= 4); /* where the lost one was */
    assert_int_equal(r->outcome.updates, 2000);
    rig_close_with(r, o);
}

static void a_barrier_does_not_wait_for_a_lost_worker(void **state UNUSED)
{
    options *o;
    struct rig *r = rig_open_with(&o, 2, "20");
    rig_set(o, "on_lost", "continue");
    rig_set(o, "consistency", "bsp");
    r->total_samples = 2000;
    pid_t server = rig_serve(r, o), a = rig_train(r, o, 0, 0), b = rig_train(r, o, 1, 500);
    assert_true(rig_until(&r->worker[1].stage, 1, 10));
    kill(b, SIGKILL);
    rig_wait(b, 5);
    assert_int_equal(rig_wait(a, 10), OK);
    assert_int_equal(rig_wait(server, 10), OK);
    rig_close_with(r, o);
}

static void the_last_worker_lost_ends_the_run_even_so(void **state UNUSED)
{
    options *o;
    struct rig *r = rig_open_with(&o, 1, "20");
    rig_set(o, "on_lost", "continue");
    r->total_samples = FOREVER;
    pid_t server = rig_serve(r, o), a = rig_train(r, o, 0, 1);
    assert_true(rig_until(&r->worker[0].stage, 2, 10));
    kill(a, SIGKILL);
    rig_wait(a, 5);
    assert_int_equal(rig_wait(server, 10), ERROR_PEER);
    rig_expect_said(r->message, "no worker is left");
    rig_close_with(r, o);
}

static void a_stopped_worker_is_lost_after_the_timeout(void **state UNUSED)
{
    options *o;
    struct rig *r = rig_open_with(&o, 2, "1.2");
    r->total_samples = FOREVER;
    pid_t server = rig_serve(r, o), a = rig_train(r, o, 0, 1), b = rig_train(r, o, 1, 1);
    assert_true(rig_until(&r->worker[1].stage, 2, 10));
    kill(b, SIGSTOP);
    assert_int_equal(rig_wait(server, 10), ERROR_PEER);
    rig_expect_said(r->message, "worker 1");
    rig_expect_said(r->message, "silent");
    assert_int_equal(rig_wait(a, 10), ERROR_PEER);
    kill(b, SIGCONT); /* it finds out when it next speaks, or reads what it was told meanwhile */
    assert_int_equal(rig_wait(b, 10), ERROR_PEER);
    rig_close_with(r, o);
}

static void a_worker_that_is_awaited_and_stopped_is_not_said_to_live(void **state UNUSED)
{
    options *o;
    struct rig *r = rig_open_with(&o, 1, "1.2");
    r->total_samples = FOREVER;
    pid_t server = rig_serve(r, o), a = rig_train(r, o, 0, 1);
    assert_true(rig_until(&r->worker[0].stage, 2, 10));
    kill(a, SIGSTOP);
    assert_int_equal(rig_wait(server, 10), ERROR_PEER);
    rig_expect_said(r->message, "was silent for");
    kill(a, SIGKILL);
    rig_wait(a, 5);
    rig_close_with(r, o);
}

static void nobody_takes_the_place_of_a_lost_worker_that_still_lives(void **state UNUSED)
{
    options *o;
    struct rig *r = rig_open_with(&o, 2, "1.2");
    rig_set(o, "on_lost", "continue");
    rig_set(o, "payload", "shm");
    r->total_samples = FOREVER;
    pid_t server = rig_serve(r, o), a = rig_train(r, o, 0, 1), b = rig_train(r, o, 1, 1);
    assert_true(rig_until(&r->worker[1].stage, 2, 10));
    kill(b, SIGSTOP);
    clock_sleep_until_ns(clock_ns() + 4000000000); /* lost, and given time to end */
    struct rig *second = rig_open(2, 1000);
    memcpy(second->endpoint, r->endpoint, sizeof r->endpoint);
    pid_t c = rig_train(second, o, 1, 1);
    assert_int_equal(rig_wait(c, 10), ERROR_PEER);
    rig_expect_said(second->worker[1].message, "still lives");
    kill(b, SIGKILL);
    rig_wait(b, 5);
    c = rig_train(second, o, 1, 1);
    assert_true(rig_until(&second->worker[1].stage, 2, 10));
    r->stop = 1;
    assert_int_equal(rig_wait(server, 10), STOPPED);
    assert_int_equal(rig_wait(a, 10), OK);
    assert_int_equal(rig_wait(c, 10), OK);
    rig_close(second);
    rig_close_with(r, o);
}

static void a_slow_step_is_not_a_death(void **state UNUSED)
{
    options *o;
    struct rig *r = rig_open_with(&o, 1, "0.8");
    r->total_samples = 10;
    pid_t server = rig_serve(r, o), a = rig_train(r, o, 0, 1500);
    assert_int_equal(rig_wait(a, 10), OK);
    assert_int_equal(rig_wait(server, 10), OK);
    rig_close_with(r, o);
}

static void a_worker_gives_signs_of_life_as_often_as_its_server_wants_them(void **state UNUSED)
{
    options *o, *patient;
    struct rig *r = rig_open_with(&o, 1, "0.8"), *second = rig_open_with(&patient, 1, "20");
    r->total_samples = 10;
    pid_t server = rig_serve(r, o), a = rig_train(r, patient, 0, 1500);
    assert_int_equal(rig_wait(a, 10), OK);
    assert_int_equal(rig_wait(server, 10), OK);
    rig_close_with(second, patient);
    rig_close_with(r, o);
}

/* A worker that stays alive and computes for ever from its third step on. */
static status hang(struct rig *r, const options *settings, unsigned w, unsigned unused UNUSED)
{
    status result = OK;
    ps_client *client = NULL;
    struct ps_release at;
    TRY(ps_client_open(&client,
                       &(struct ps_client_options){.settings = settings,
                                                   .endpoint = r->endpoint,
                                                   .run_token = r->token,
                                                   .worker = w,
                                                   .count = r->count},
                       &at));
    while (!at.finished && ++r->worker[w].stage < 3) {
        memset(at.gradient, 0, r->count * sizeof(float));
        TRY(ps_client_push_pull(client, &(struct ps_push){.loss = 1, .samples = 10}, &at));
    }
    for (;;)
        pause();
done:
    ps_client_close(&client);
    return result;
}

static void a_worker_that_hangs_but_gives_signs_of_life_does_not_hold_a_barrier(void **state UNUSED)
{
    static const char *const policies[] = {"stop", "continue"};
    for (size_t i = 0; i < COUNT_OF(policies); i++) {
        options *o;
        struct rig *r = rig_open_with(&o, 2, "0.8"); /* the limit for work: 16 s */
        rig_set(o, "consistency", "bsp");
        rig_set(o, "on_lost", policies[i]);
        r->total_samples = 1000;
        pid_t server = rig_serve(r, o), a = rig_train(r, o, 0, 1), b = rig_fork(r, o, 1, 0, hang);
        bool goes_on = i == 1;
        assert_int_equal(rig_wait(server, 40), goes_on ? OK : ERROR_PEER);
        assert_int_equal(rig_wait(a, 10), goes_on ? OK : ERROR_PEER);
        if (!goes_on) {
            rig_expect_said(r->message, "worker 1");
            rig_expect_said(r->message, "no gradient");
            assert_null(strstr(r->message, "worker 0"));
        }
        kill(b, SIGKILL);
        rig_wait(b, 5);
        rig_close_with(r, o);
    }
}

/* The other worker does not wait for it. */
static void a_worker_that_hangs_while_others_go_on_is_named_and_lost_in_the_end(void **state UNUSED)
{
    options *o;
    struct rig *r = rig_open_with(&o, 2, "0.8");
    r->total_samples = FOREVER;
    r->results = rig_path;
    pid_t server = rig_serve(r, o), a = rig_train(r, o, 0, 5), b = rig_fork(r, o, 1, 0, hang);
    assert_true(rig_until(&r->worker[1].stage, 3, 10));
    const uint64_t hung = clock_ns();
    assert_int_equal(rig_wait(server, 40), ERROR_PEER);
    assert_true(clock_ns() - hung > 15000000000); /* twenty times the timeout are 16 s */
    assert_int_equal(rig_wait(a, 10), ERROR_PEER);
    rig_expect_said(r->message, "worker 1");
    rig_expect_said(r->message, "no gradient");
    assert_string_equal(rig_ask("SELECT group_concat(worker || ' ' || severity || ' ' || (detail "
                                "LIKE '%up to 16 s')) FROM event WHERE code = 'worker_slow'"),
                        "1 warning 1");
    kill(b, SIGKILL);
    rig_wait(b, 5);
    rig_close_with(r, o);
}

static void a_worker_slower_than_the_timeout_takes_part_beside_a_fast_one(void **state UNUSED)
{
    options *o;
    struct rig *r = rig_open_with(&o, 2, "0.8");
    r->total_samples = FOREVER;
    pid_t server = rig_serve(r, o), a = rig_train(r, o, 0, 2), b = rig_train(r, o, 1, 2000);
    assert_true(rig_until(&r->worker[1].stage, 3, 20));
    r->stop = 1;
    assert_int_equal(rig_wait(server, 10), STOPPED);
    assert_int_equal(rig_wait(a, 10), OK);
    assert_int_equal(rig_wait(b, 10), OK);
    rig_close_with(r, o);
}

/* A worker that leaves for a reason: `code` is what it says. */
static status leave(struct rig *r, const options *settings, unsigned w, unsigned code)
{
    status result = OK;
    ps_client *client = NULL;
    struct ps_release at;
    struct ps_client_options o = {.settings = settings,
                                  .endpoint = r->endpoint,
                                  .run_token = r->token,
                                  .worker = w,
                                  .count = r->count};
    TRY(ps_client_open(&client, &o, &at));
    ps_client_leave(client, (status)code, "of its own");
done:
    ps_client_close(&client);
    return result;
}

static void
a_workers_own_failure_is_the_runs_and_what_it_blames_others_for_is_not(void **state UNUSED)
{
    static const status said[] = {ERROR_OTHER, ERROR_DATA, ERROR_PEER, ERROR_DIVERGED};
    static const status wanted[] = {ERROR_OTHER, ERROR_DATA, ERROR_PEER, ERROR_PEER};
    for (size_t i = 0; i < COUNT_OF(said); i++) {
        options *o;
        struct rig *r = rig_open_with(&o, 1, "20");
        pid_t server = rig_serve(r, o), a = rig_fork(r, o, 0, said[i], leave);
        assert_int_equal(rig_wait(a, 10), OK);
        assert_int_equal(rig_wait(server, 10), wanted[i]);
        rig_expect_said(r->message, "left: of its own");
        rig_close_with(r, o);
    }
}

static void workers_notice_at_once_that_their_server_was_killed(void **state UNUSED)
{
    options *o;
    struct rig *r = rig_open_with(&o, 1, "1000");
    r->total_samples = FOREVER;
    pid_t server = rig_serve(r, o), a = rig_train(r, o, 0, 1);
    assert_true(rig_until(&r->worker[0].stage, 2, 10));
    kill(server, SIGKILL);
    rig_wait(server, 5);
    assert_int_equal(rig_wait(a, 10), ERROR_PEER);
    rig_expect_said(r->worker[0].message, r->endpoint);
    unlink(r->listen + strlen("ipc://"));
    rig_close_with(r, o);
}

static void a_stopped_server_is_given_up_after_the_timeout(void **state UNUSED)
{
    options *o;
    struct rig *r = rig_open_with(&o, 1, "1.2");
    r->total_samples = FOREVER;
    pid_t server = rig_serve(r, o), a = rig_train(r, o, 0, 1);
    assert_true(rig_until(&r->worker[0].stage, 2, 10));
    kill(server, SIGSTOP);
    assert_int_equal(rig_wait(a, 10), ERROR_PEER);
    rig_expect_said(r->worker[0].message, "silent");
    kill(server, SIGKILL);
    rig_wait(server, 5);
    unlink(r->listen + strlen("ipc://"));
    rig_close_with(r, o);
}

static void a_worker_without_a_server_gives_up_after_the_timeout(void **state UNUSED)
{
    options *o;
    struct rig *r = rig_open_with(&o, 1, "0.5");
    snprintf(r->endpoint, sizeof r->endpoint, "%s", r->listen);
    pid_t a = rig_train(r, o, 0, 0);
    assert_int_equal(rig_wait(a, 5), ERROR_PEER);
    rig_expect_said(r->worker[0].message, r->endpoint);
    rig_close_with(r, o);
}

static void a_worker_that_never_joins_is_named(void **state UNUSED)
{
    options *o;
    struct rig *r = rig_open_with(&o, 2, "0.5");
    pid_t server = rig_serve(r, o), a = rig_train(r, o, 0, 0);
    assert_int_equal(rig_wait(server, 30), ERROR_PEER);
    rig_expect_said(r->message, "worker 1");
    assert_null(strstr(r->message, "worker 0"));
    assert_int_equal(rig_wait(a, 10), ERROR_PEER);
    rig_close_with(r, o);
}

/* ---- who is not let in --------------------------------------------------------------------- */

static void the_same_number_twice_is_refused_and_the_first_goes_on(void **state UNUSED)
{
    options *o;
    struct rig *r = rig_open_with(&o, 1, "20");
    r->total_samples = 3000;
    pid_t server = rig_serve(r, o), a = rig_train(r, o, 0, 2);
    assert_true(rig_until(&r->worker[0].stage, 2, 10));
    struct rig *second = rig_open(1, 1000); /* the same worker again, with a report of its own */
    memcpy(second->endpoint, r->endpoint, sizeof r->endpoint);
    pid_t b = rig_train(second, o, 0, 0);
    assert_int_equal(rig_wait(b, 10), ERROR_PROTOCOL);
    rig_expect_said(second->worker[0].message, "wants to be worker 0");
    assert_int_equal(rig_wait(a, 10), OK);
    assert_int_equal(rig_wait(server, 10), OK);
    assert_int_equal(r->outcome.updates, 300);
    rig_close(second);
    rig_close_with(r, o);
}

static void another_model_other_settings_and_another_token_are_refused(void **state UNUSED)
{
    options *o;
    struct rig *r = rig_open_with(&o, 2, "3");
    pid_t server = rig_serve(r, o);
    struct rig *other = rig_open(2, 999);
    memcpy(other->endpoint, r->endpoint, sizeof r->endpoint);
    pid_t a = rig_train(other, o, 0, 0);
    assert_int_equal(rig_wait(a, 10), ERROR_PROTOCOL);
    rig_expect_said(other->worker[0].message, "999 parameters");
    other->count = 1000;
    other->settings_hash = r->settings_hash + 1;
    a = rig_train(other, o, 0, 0);
    assert_int_equal(rig_wait(a, 10), ERROR_PROTOCOL);
    rig_expect_said(other->worker[0].message, "settings");
    other->settings_hash = r->settings_hash;
    other->token++;
    a = rig_train(other, o, 0, 0);
    assert_int_equal(rig_wait(a, 10), ERROR_PROTOCOL);
    rig_expect_said(other->worker[0].message, "token");
    assert_null(strstr(other->worker[0].message, "1234567890abcdef"));
    kill(server, SIGTERM);
    rig_wait(server, 5);
    unlink(r->listen + strlen("ipc://"));
    rig_close(other);
    rig_close_with(r, o);
}

/* ---- endpoints ---------------------------------------------------------------------------------
 */

static void assert_cannot_listen(const char *endpoint, status code, const char *what)
{
    options *o;
    struct rig *r = rig_open_with(&o, 1, "1");
    snprintf(r->listen, sizeof r->listen, "%s", endpoint);
    assert_int_equal(rig_wait(rig_serve(r, o), 5), code);
    rig_expect_said(r->message, what);
    rig_close_with(r, o);
}

static void endpoints_that_cannot_be_are_errors_that_say_what_to_do(void **state UNUSED)
{
    char path[128] = "ipc:///tmp/";
    memset(path + 11, 'x', 110);
    assert_cannot_listen("tcp://0.0.0.0:5555", ERROR_USAGE, "loopback");
    assert_cannot_listen("tcp://*:*", ERROR_USAGE, "loopback");
    assert_cannot_listen("tcp://192.168.1.1:5555", ERROR_USAGE, "gradlag keygen");
    assert_cannot_listen("tcp://127.example.org:5555", ERROR_USAGE, "loopback");
    assert_cannot_listen("tcp://127.0.0.1.example.org:5555", ERROR_USAGE, "loopback");
    assert_cannot_listen("tcp://127.1:5555", ERROR_USAGE, "loopback");
    assert_cannot_listen("tcp://[::1]:1;10.0.0.1:5555", ERROR_USAGE, "loopback");
    assert_cannot_listen("tcp://127.0.0.1:99999", ERROR_USAGE, "99999");
    assert_cannot_listen("tcp://127.0.0.1", ERROR_USAGE, "port");
    assert_cannot_listen("nonsense", ERROR_USAGE, "nonsense");
    assert_cannot_listen(path, ERROR_USAGE, "shorter");
    assert_cannot_listen("ipc:///tmp/gradlag-no-such-folder/x", ERROR_USAGE, "folder");
}

static void a_worker_needs_to_know_where_its_server_is(void **state UNUSED)
{
    options *o;
    struct rig *r = rig_open_with(&o, 1, "20");
    snprintf(r->endpoint, sizeof r->endpoint, "tcp://127.0.0.1:*");
    assert_int_equal(rig_wait(rig_train(r, o, 0, 0), 5), ERROR_USAGE);
    rig_expect_said(r->worker[0].message, "* is for the server that listens");
    rig_close_with(r, o);
}

static void an_endpoint_in_use_is_an_error_and_its_owner_goes_on(void **state UNUSED)
{
    static const char *const endpoints[] = {NULL, "tcp://127.0.0.1:*"};
    for (size_t i = 0; i < COUNT_OF(endpoints); i++) {
        options *o;
        struct rig *r = rig_open_with(&o, 1, "10");
        if (endpoints[i] != NULL)
            snprintf(r->listen, sizeof r->listen, "%s", endpoints[i]);
        pid_t server = rig_serve(r, o);
        assert_cannot_listen(r->endpoint, ERROR_OTHER, "in use");
        pid_t a = rig_train(r, o, 0, 0);
        assert_int_equal(rig_wait(a, 10), OK);
        assert_int_equal(rig_wait(server, 10), OK);
        rig_close_with(r, o);
    }
}

/* It listens, answers nobody, and more have called already than its queue has room for. */
static void an_endpoint_whose_owner_hangs_is_in_use(void **state UNUSED)
{
    char endpoint[80];
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int callers[16], count = 0, owner = socket(AF_UNIX, SOCK_STREAM, 0);
    snprintf(address.sun_path, sizeof address.sun_path, "%s/gradlag-test-%d.hangs",
             scratch_folder(), (int)getpid());
    snprintf(endpoint, sizeof endpoint, "ipc://%.70s", address.sun_path);
    assert_int_equal(bind(owner, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(owner, 0), 0);
    do
        callers[count] = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
    while (connect(callers[count++], (struct sockaddr *)&address, sizeof address) == 0 &&
           count < 16);
    assert_true(count < 16);
    assert_cannot_listen(endpoint, ERROR_OTHER, "in use");
    while (count-- > 0)
        close(callers[count]);
    close(owner);
    unlink(address.sun_path);
}

static void a_file_that_is_no_socket_is_not_removed(void **state UNUSED)
{
    char path[64], endpoint[80];
    struct stat file;
    snprintf(path, sizeof path, "%s/gradlag-test-%d.txt", scratch_folder(), (int)getpid());
    snprintf(endpoint, sizeof endpoint, "ipc://%s", path);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fclose(f);
    assert_cannot_listen(endpoint, ERROR_USAGE, "not a socket");
    assert_int_equal(stat(path, &file), 0);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_killed_worker_ends_the_run_at_once_and_is_named),
        cmocka_unit_test(training_goes_on_without_a_lost_worker_and_another_takes_its_place),
        cmocka_unit_test(a_barrier_does_not_wait_for_a_lost_worker),
        cmocka_unit_test(the_last_worker_lost_ends_the_run_even_so),
        cmocka_unit_test(a_stopped_worker_is_lost_after_the_timeout),
        cmocka_unit_test(a_worker_that_is_awaited_and_stopped_is_not_said_to_live),
        cmocka_unit_test(nobody_takes_the_place_of_a_lost_worker_that_still_lives),
        cmocka_unit_test(a_slow_step_is_not_a_death),
        cmocka_unit_test(a_worker_gives_signs_of_life_as_often_as_its_server_wants_them),
        cmocka_unit_test(a_worker_that_hangs_but_gives_signs_of_life_does_not_hold_a_barrier),
        RIG_TEST(a_worker_that_hangs_while_others_go_on_is_named_and_lost_in_the_end),
        cmocka_unit_test(a_worker_slower_than_the_timeout_takes_part_beside_a_fast_one),
        cmocka_unit_test(a_workers_own_failure_is_the_runs_and_what_it_blames_others_for_is_not),
        cmocka_unit_test(workers_notice_at_once_that_their_server_was_killed),
        cmocka_unit_test(a_stopped_server_is_given_up_after_the_timeout),
        cmocka_unit_test(a_worker_without_a_server_gives_up_after_the_timeout),
        cmocka_unit_test(a_worker_that_never_joins_is_named),
        cmocka_unit_test(the_same_number_twice_is_refused_and_the_first_goes_on),
        cmocka_unit_test(another_model_other_settings_and_another_token_are_refused),
        cmocka_unit_test(endpoints_that_cannot_be_are_errors_that_say_what_to_do),
        cmocka_unit_test(a_worker_needs_to_know_where_its_server_is),
        cmocka_unit_test(an_endpoint_in_use_is_an_error_and_its_owner_goes_on),
        cmocka_unit_test(an_endpoint_whose_owner_hangs_is_in_use),
        cmocka_unit_test(a_file_that_is_no_socket_is_not_removed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
