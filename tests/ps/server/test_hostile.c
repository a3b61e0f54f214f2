/* Attackers flood and disturb a live server over TCP while a correct worker trains. The run must
 * finish with the parameters of an undisturbed run, and in bounded memory.
 *
 * GRADLAG_HOSTILE_SECONDS=n: how long each server is attacked (3). GRADLAG_HOSTILE_SEED=n: the
 * attackers' decisions (1). GRADLAG_HOSTILE_ONLY=NAME: one kind of attack, of those in hostile.c.
 */
#include "base/clock.h"
#include "tests/ps/server/hostile.h"

#include "tests/rigs/process_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    ATTACKERS = 3,
    SECONDS = 3,
    UPDATES_PER_SECOND = 20,
    RECORDED_BYTES = 4 << 20,
    MEMORY_MIB = 96, /* limit of the growth during the attack */
};

/* A gradient needs two messages: 4 × 48 × 48 × 32 weights are 1.1 MiB. */
#define TRAINING                                                                                   \
    "dataset=gaussian", "dataset.size=48", "dataset.channels=4", "dataset.classes=32",             \
        "dataset.samples=200", "model=softmax", "batch=2", "evaluate_every=0", "payload=frames",   \
        "timeout_s=20", "run_token=5ea1ed"

static unsigned number(const char *name, unsigned usual)
{
    const char *text = getenv(name);
    return text != NULL ? (unsigned)strtoul(text, NULL, 10) : usual;
}

static const char *length(void)
{
    static char text[32];
    snprintf(text, sizeof text, "updates=%u",
             UPDATES_PER_SECOND * number("GRADLAG_HOSTILE_SECONDS", SECONDS));
    return text;
}

static struct hostile_target await_target(struct process_rig *server)
{
    char endpoint[RIG_ENDPOINT_BYTES], token[64];
    process_await_endpoint(server, endpoint, token);
    return (struct hostile_target){.port = (uint16_t)atoi(strrchr(endpoint, ':') + 1),
                                   .run_token = 0x5ea1ed};
}

static struct process_rig *new_rig(void)
{
    void *state;
    process_set_up(&state);
    return state;
}

static void remove_rig(struct process_rig *r)
{
    void *state = r;
    process_tear_down(&state);
}

/* ---- the undisturbed run --------------------------------------------------------------------- */

static struct hostile_session session; /* the messages of its worker */
static char calm_sha256[65];

static int record_calm_run(void **state UNUSED)
{
    struct process_rig *server = new_rig(), *worker = new_rig();
    char endpoint[64];
    uint16_t port;
    session.stream.capacity = RECORDED_BYTES;
    session.stream.bytes = malloc(RECORDED_BYTES);
    assert_non_null(session.stream.bytes);
    process_start(server, (const char *const[]){"server", TRAINING, length(), NULL});
    struct hostile_target target = await_target(server);
    hostile_recorder *recorder = hostile_record(&target, &session.stream, &port);
    snprintf(endpoint, sizeof endpoint, "endpoint=tcp://127.0.0.1:%u", port);
    int code = RIG_RUN(worker, "worker", TRAINING, length(), endpoint, "worker=0");
    assert_int_equal(code, OK);
    assert_int_equal(process_wait(server), OK);
    hostile_record_end(&recorder);
    snprintf(calm_sha256, sizeof calm_sha256, "%s",
             process_ask(server, "SELECT parameters_sha256 FROM run"));
    assert_int_equal(strlen(calm_sha256), 64);
    hostile_session_read(&session);
    assert_true(session.count >= 8); /* hello, ready, and pushes with their gradients */
    remove_rig(worker);
    remove_rig(server);
    return 0;
}

static int forget_calm_run(void **state UNUSED)
{
    free(session.stream.bytes);
    return 0;
}

/* ---- an attacked run --------------------------------------------------------------------------
 */

struct battle {
    struct process_rig *server, *worker;
    struct curve_keys *keys;
    pid_t attackers[ATTACKERS];
    unsigned mib_before, mib_most;
};

/* The peak memory of the process in MiB; 0: it has ended. */
static unsigned memory_of(pid_t pid)
{
    char path[64], line[128];
    unsigned kib = 0;
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    FILE *file = fopen(path, "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "VmHWM: %u", &kib) == 1)
            break;
    if (file != NULL)
        fclose(file);
    return kib / 1024;
}

/* Checks that the attackers' credentials are right and their messages arrive. */
static void check_credentials(const struct hostile_target *target)
{
    int how = 0;
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        _exit(hostile_knock(target, RIG_LIMIT_S) ? 0 : 1);
    }
    assert_int_equal(waitpid(pid, &how, 0), pid);
    assert_int_equal(how, 0);
}

static pid_t start_attacker(const struct hostile_plan *plan)
{
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        hostile_attack(plan);
        _exit(0);
    }
    return pid;
}

static void start_attack(struct battle *b, struct hostile_target target)
{
    const unsigned seconds = number("GRADLAG_HOSTILE_SECONDS", SECONDS);
    const unsigned seed = number("GRADLAG_HOSTILE_SEED", 1);
    struct hostile_plan plan = {.target = target,
                                .session = &session,
                                .seed = seed,
                                .until_ns = clock_ns() + seconds * 1000000000ULL,
                                .only = getenv("GRADLAG_HOSTILE_ONLY")};
    print_message("    GRADLAG_HOSTILE_SEED=%u GRADLAG_HOSTILE_SECONDS=%u\n", seed, seconds);
    b->mib_before = b->mib_most = memory_of(b->server->pid);
    for (plan.attacker = 0; plan.attacker < ATTACKERS; plan.attacker++)
        b->attackers[plan.attacker] = start_attacker(&plan);
}

static void watch(struct battle *b)
{
    double until = clock_seconds() + number("GRADLAG_HOSTILE_SECONDS", SECONDS) + RIG_LIMIT_S;
    unsigned mib;
    while ((mib = memory_of(b->server->pid)) > 0 && clock_seconds() < until) {
        b->mib_most = mib > b->mib_most ? mib : b->mib_most;
        usleep(20000);
    }
    for (unsigned i = 0; i < ATTACKERS; i++) {
        kill(b->attackers[i], SIGKILL);
        waitpid(b->attackers[i], NULL, 0);
    }
}

static struct battle begin(bool encrypted)
{
    struct battle b = {.server = new_rig(), .worker = new_rig()};
    char endpoint[64], curve[160] = "curve=";
    if (encrypted) {
        assert_int_equal(RIG_RUN(b.server, "keygen", "keys"), OK);
        snprintf(curve, sizeof curve, "curve=%s", process_path(b.server, "keys"));
        assert_int_equal(curve_open(&b.keys, strchr(curve, '=') + 1, false), OK);
    }
    process_start(b.server, (const char *const[]){"server", TRAINING, length(), "pace=constant",
                                                  "pace.mean_ms=50", curve, NULL});
    struct hostile_target target = await_target(b.server);
    target.keys = b.keys;
    check_credentials(&target);
    snprintf(endpoint, sizeof endpoint, "endpoint=tcp://127.0.0.1:%u", target.port);
    process_start(b.worker,
                  (const char *const[]){"worker", TRAINING, length(), "pace=constant",
                                        "pace.mean_ms=50", curve, endpoint, "worker=0", NULL});
    process_await_row(b.server, "SELECT count(*) FROM event WHERE code = 'worker_joined'");
    start_attack(&b, target);
    return b;
}

static void expect_good_end(struct process_rig *r, const char *role)
{
    enum { SHOWN = 600 };
    int code = process_wait(r);
    const char *errors = process_errors(r);
    size_t length = strlen(errors);
    if (code != OK)
        fail_msg("the %s ended in %d: %s", role, code,
                 errors + (length > SHOWN ? length - SHOWN : 0));
}

static void end(struct battle *b)
{
    watch(b);
    print_message("    the server had %u MiB before, %u MiB at most\n", b->mib_before, b->mib_most);
    expect_good_end(b->server, "server");
    expect_good_end(b->worker, "worker");
    process_expect_answer(b->server, "SELECT status FROM run", "finished");
    process_expect_answer(b->server, "SELECT parameters_sha256 FROM run", calm_sha256);
    assert_in_range(b->mib_most - b->mib_before, 0, MEMORY_MIB);
    curve_close(&b->keys);
    remove_rig(b->worker);
    remove_rig(b->server);
}

static void a_server_without_keys_survives_attackers(void **state UNUSED)
{
    struct battle b = begin(false);
    end(&b);
}

static void a_server_with_keys_survives_attackers_with_a_workers_key(void **state UNUSED)
{
    struct battle b = begin(true);
    end(&b);
}

int main(void)
{
    /* Otherwise freed memory counts as the server's memory for long. */
    setenv("ASAN_OPTIONS", "quarantine_size_mb=4", 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_server_without_keys_survives_attackers),
        cmocka_unit_test(a_server_with_keys_survives_attackers_with_a_workers_key),
    };
    return cmocka_run_group_tests(tests, record_calm_run, forget_calm_run);
}
