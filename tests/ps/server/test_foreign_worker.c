/* A worker that is another program joins a real server and trains; its run is marked. */
#include "tests/ps/server/foreign_worker.h"

#include "tests/rigs/documented.h"
#include "tests/rigs/process_rig.h"
#include "base/random.h"
#include "worker/data/sampler.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define PROBLEM                                                                                    \
    "dataset=least-squares", "model=linear", "dataset.size=4", "dataset.samples=400",              \
        "dataset.noise=0.01", "batch=8", "lr=1", "momentum=0", "schedule=constant",                \
        "warmup_epochs=0", "epochs=4", "evaluate_every=1"

static struct foreign_worker foreign(uint32_t worker, uint32_t workers)
{
    return (struct foreign_worker){.worker = worker,
                                   .workers = workers,
                                   .batch = 8,
                                   .size = 4,
                                   .rows = 400,
                                   .seed = 1,
                                   .dataset_seed = 1,
                                   .noise = 0.01};
}

/* Starts a process whose exit code is the result of foreign_worker_train(). */
static pid_t start_foreign(struct process_rig *r, struct foreign_worker f)
{
    char endpoint[RIG_ENDPOINT_BYTES], token[64];
    const char *why = NULL;
    process_await_endpoint(r, endpoint, token);
    f.endpoint = strchr(endpoint, '=') + 1;
    f.run_token = strchr(token, '=') + 1;
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        int code = foreign_worker_train(&f, &why);
        if (code != 0)
            fprintf(stderr, "the foreign worker: %s\n", why);
        _exit(code);
    }
    return pid;
}

static int wait_foreign(pid_t pid)
{
    int how = 0;
    assert_int_equal(waitpid(pid, &how, 0), pid); /* the worker gives up after a minute */
    return WIFEXITED(how) ? WEXITSTATUS(how) : 128 + WTERMSIG(how);
}

static double ask_number(struct process_rig *r, const char *sql)
{
    const char *text = process_ask(r, sql);
    assert_true(text[0] != '\0');
    return atof(text);
}

static double final_loss(struct process_rig *r)
{
    return ask_number(r, "SELECT final_loss FROM run ORDER BY id DESC LIMIT 1");
}

static void a_worker_written_from_the_page_trains_as_gradlags_worker(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, "run", PROBLEM), OK);
    double ours = final_loss(r);
    process_expect_answer(r, "SELECT count(*) FROM event WHERE code = 'worker_foreign'", "0");
    process_start(r, (const char *const[]){"server", PROBLEM, NULL});
    pid_t pid = start_foreign(r, foreign(0, 1));
    assert_int_equal(wait_foreign(pid), 0);
    assert_int_equal(process_wait(r), OK);
    /* The two sum in different orders. */
    double theirs = final_loss(r);
    if (!(fabs(theirs - ours) <= 1e-3 * ours))
        fail_msg("the final loss is %g, of our own worker %g", theirs, ours);
    double fell = ask_number(r, "SELECT max(test_loss) / min(test_loss) FROM evaluation "
                                "WHERE run_id = 2");
    if (!(fell > 2))
        fail_msg("the loss fell by a factor of %g only", fell);
    process_expect_answer(r,
                          "SELECT max(abs(a.loss - b.loss)) < 1e-5 AND count(*) = 200 FROM push a "
                          "JOIN push b USING (sequence) WHERE a.run_id = 1 AND b.run_id = 2",
                          "1");
}

static void a_run_with_a_foreign_worker_is_marked_and_not_replayed(void **state)
{
    struct process_rig *r = *state;
    void *more;
    char endpoint[RIG_ENDPOINT_BYTES], token[64];
    process_set_up(&more);
    struct process_rig *own = more;
    process_start(r, (const char *const[]){"server", PROBLEM, "workers=2", NULL});
    process_await_endpoint(r, endpoint, token);
    process_start(own, (const char *const[]){"worker", PROBLEM, "workers=2", "worker=0", endpoint,
                                             token, NULL});
    pid_t pid = start_foreign(r, foreign(1, 2));
    assert_int_equal(wait_foreign(pid), 0);
    assert_int_equal(process_wait(own), OK);
    assert_int_equal(process_wait(r), OK);
    process_tear_down(&more);
    process_expect_answer(r, "SELECT group_concat(worker) FROM event WHERE code = 'worker_foreign'",
                          "1");
    process_expect_answer(r, "SELECT count(DISTINCT worker) FROM push", "2");
    assert_int_equal(RIG_RUN(r, "replay", "last"), ERROR_USAGE);
    process_expect_error(r, "worker_foreign");
    assert_int_equal(RIG_RUN(r, "replay", "last", "damping=inverse"), ERROR_USAGE);
    process_expect_error(r, "worker_foreign");
    assert_int_equal(RIG_RUN(r, "replay", "last", "--export", "order.csv"), OK);
}

/* The server prints 16 hexadecimal digits after a blank (the run token has `=` before it). */
static uint64_t printed_hash(struct process_rig *r)
{
    static const char hex[] = "0123456789abcdef";
    const char *errors = process_errors(r);
    for (const char *at = errors; *at != '\0'; at += strspn(at, hex) + (strspn(at, hex) == 0))
        if (strspn(at, hex) == 16 && (at == errors || at[-1] == ' '))
            return strtoull(at, NULL, 16);
    fail_msg("no hash in: %s", errors);
    return 0;
}

static void the_printed_settings_hash_is_accepted_and_another_one_is_refused(void **state)
{
    struct process_rig *r = *state;
    char endpoint[RIG_ENDPOINT_BYTES], token[64];
    struct foreign_worker f = foreign(0, 1);
    process_start(r, (const char *const[]){"server", PROBLEM, NULL});
    process_await_endpoint(r, endpoint, token);
    f.settings_hash = printed_hash(r) + 1;
    assert_int_equal(wait_foreign(start_foreign(r, f)), 1);
    f.settings_hash = printed_hash(r);
    assert_int_equal(wait_foreign(start_foreign(r, f)), 0);
    assert_int_equal(process_wait(r), OK);
    process_expect_answer(r, "SELECT count(*) FROM event WHERE code = 'worker_foreign'", "0");
    process_expect_answer(r, "SELECT count(DISTINCT detail) FROM event WHERE code = 'peer_refused'",
                          "1");
}

/* ---- the page's example ---------------------------------------------------------------------- */

enum { ROWS = 10, WORKERS = 2, BATCH = 3, BATCHES = 4 };

static options *example_settings(void)
{
    static const struct option keys[] = {
        {"seed", OPTION_INTEGER, "1", 0, 9, NULL, NULL, ""},
        {"sampler", OPTION_TEXT, "partition", 0, 0, NULL, NULL, ""},
        {0},
    };
    options *o = NULL;
    assert_int_equal(options_open(&o), OK);
    assert_int_equal(options_declare(o, keys), OK);
    return o;
}

static void add_batches(sampler *s, struct foreign_worker *f, char *out, size_t room)
{
    uint32_t ours[BATCH], theirs[BATCH];
    size_t at = strlen(out);
    for (uint64_t k = 0; k < BATCHES; k++) {
        sampler_batch(s, k, BATCH, ours);
        foreign_worker_batch(f, k, theirs);
        assert_memory_equal(ours, theirs, sizeof ours);
        at += (size_t)snprintf(out + at, room - at, "worker 1, batch %d: samples %u %u %u\n",
                               (int)k, ours[0], ours[1], ours[2]);
    }
}

static void the_pages_example_equals_the_sampler(void **state UNUSED)
{
    char text[1024];
    uint32_t words[4];
    struct random_stream r;
    sampler *s = NULL;
    options *o = example_settings();
    struct foreign_worker f = {
        .worker = 1, .workers = WORKERS, .batch = BATCH, .rows = ROWS, .seed = 1};
    foreign_worker_words(2, 1, 1, 0, words);
    random_open(&r, RANDOM_SHUFFLE, 1, 1, 0);
    for (int i = 0; i < 4; i++)
        assert_int_equal(words[i], random_bits(&r));
    snprintf(text, sizeof text, "stream (2, 1, 1, 0): %08x %08x %08x %08x\n", words[0], words[1],
             words[2], words[3]);
    assert_int_equal(sampler_open(&s, o, &(struct dataset){.count = {ROWS}}, 1, WORKERS), OK);
    add_batches(s, &f, text, sizeof text);
    assert_string_equal(documented_block("docs/wire-format.md", "samples"), text);
    sampler_close(&s);
    options_close(&o);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, process_set_up, process_tear_down)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_pages_example_equals_the_sampler),
        TEST(a_worker_written_from_the_page_trains_as_gradlags_worker),
        TEST(a_run_with_a_foreign_worker_is_marked_and_not_replayed),
        TEST(the_printed_settings_hash_is_accepted_and_another_one_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
