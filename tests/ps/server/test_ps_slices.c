/* Three real servers and a real worker: how the worker cuts its vectors and puts them together; how
 * all end. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "tests/ps/server/ps_rig.h"
#include "tests/rigs/patience.h"

enum { ALL = 3 };

struct servers {
    options *o;
    struct rig *r[ALL]; /* r[0]->endpoint: the endpoints of all servers */
    pid_t pid[ALL];
};

static void serve(struct servers *s, size_t count, const char *timeout_s)
{
    char places[RIG_ENDPOINT_BYTES] = "";
    s->o = rig_settings();
    rig_set(s->o, "servers", "3");
    rig_set(s->o, "payload", "shm");
    rig_set(s->o, "timeout_s", timeout_s);
    rig_set(s->o, "checkpoint", "x.safetensors");
    for (unsigned i = 0; i < ALL; i++) {
        struct rig *r = s->r[i] = rig_open(1, count);
        r->server = i;
        snprintf(r->listen, sizeof r->listen, "tcp://127.0.0.1:*");
        snprintf(r->leader, sizeof r->leader, "%s", s->r[0]->endpoint);
        s->pid[i] = rig_serve(r, s->o);
        snprintf(places + strlen(places), sizeof places - strlen(places), "%s%s", i > 0 ? "," : "",
                 r->endpoint);
    }
    snprintf(s->r[0]->endpoint, sizeof s->r[0]->endpoint, "%s", places);
}

static void expect_ends(struct servers *s, int code)
{
    for (unsigned i = 0; i < ALL; i++)
        assert_int_equal(rig_wait(s->pid[i], 10), code);
}

static void forget(struct servers *s)
{
    for (unsigned i = 0; i < ALL; i++)
        rig_close(s->r[i]);
    options_close(&s->o);
}

/* Slices of 1024, 1023 and 1023 parameters: the second begins at a page, the third does not. */
static void slices_that_happen_to_begin_at_a_page_are_shared_correctly(void **state UNUSED)
{
    struct servers s;
    serve(&s, 3 * 1023 + 1, "10");
    pid_t trainer = rig_train(s.r[0], s.o, 0, 0);
    if (rig_wait(trainer, 10) != OK)
        fail_msg("%s", s.r[0]->worker[0].message);
    expect_ends(&s, OK);
    assert_int_equal(s.r[0]->outcome.samples_used, s.r[0]->total_samples);
    forget(&s);
}

/* Its third gradient is not finite in the last parameter alone. */
static status spoil(struct rig *r, const options *settings, unsigned w, unsigned unused UNUSED)
{
    status result = OK;
    ps_client *client = NULL;
    struct ps_release at;
    TRY(rig_join(r, settings, w, &client, &at));
    for (unsigned n = 0; n < 4 && !at.finished; n++) {
        memcpy(at.gradient, at.parameters, r->count * sizeof(float));
        at.gradient[r->count - 1] = n < 2 ? 1 : NAN;
        TRY(ps_client_push_pull(client, &(struct ps_push){.loss = 1, .samples = 10}, &at));
    }
done:
    ps_client_close(&client);
    return result;
}

static void divergence_in_one_slice_names_worker_server_and_slice(void **state UNUSED)
{
    struct servers s;
    serve(&s, 3000, "10");
    pid_t trainer = rig_fork(s.r[0], s.o, 0, 0, spoil);
    assert_int_not_equal(rig_wait(trainer, 10), OK);
    expect_ends(&s, ERROR_DIVERGED);
    static const char *const names[] = {"worker 0", "server 2", "2000", "2999"};
    for (size_t i = 0; i < COUNT_OF(names); i++)
        rig_expect_named(s.r[0]->message, names[i]);
    forget(&s);
}

static void save_slowly(struct rig *r UNUSED)
{
    clock_sleep_until_ns(clock_ns() + 3000 * STRETCH * 1000000ULL);
}

static void
all_servers_told_to_stop_wait_for_a_checkpoint_longer_than_the_timeout(void **state UNUSED)
{
    struct servers s;
    serve(&s, 3000, STRETCH > 1 ? "20" : "2");
    s.r[0]->at_checkpoint = save_slowly;
    pid_t trainer = rig_train(s.r[0], s.o, 0, 100);
    assert_true(rig_until(&s.r[0]->worker[0].stage, 2, 10));
    for (unsigned i = 0; i < ALL; i++)
        s.r[i]->stop = 1;
    expect_ends(&s, STOPPED);
    assert_int_equal(rig_wait(trainer, 10), OK);
    assert_int_equal(s.r[0]->checkpoints, 1);
    forget(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slices_that_happen_to_begin_at_a_page_are_shared_correctly),
        cmocka_unit_test(divergence_in_one_slice_names_worker_server_and_slice),
        cmocka_unit_test(all_servers_told_to_stop_wait_for_a_checkpoint_longer_than_the_timeout),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
