/* CURVE keys: creating and reading key files, and which peers a server admits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

#include "ps/net/channel.h"
#include "ps/net/endpoint.h"
#include "ps/net/curve.h"
#include "tests/ps/server/ps_rig.h"
#include "tests/rigs/scratch.h"

/* ---- folders -------------------------------------------------------------------------------- */

struct curve_folder {
    char path[128];
};

static struct curve_folder new_folder(void)
{
    struct curve_folder f;
    snprintf(f.path, sizeof f.path, "%s/glcurve-XXXXXX", scratch_folder());
    assert_non_null(mkdtemp(f.path));
    return f;
}

static const char *file_of(const struct curve_folder *f, const char *name)
{
    static char path[160];
    snprintf(path, sizeof path, "%s/%s", f->path, name);
    return path;
}

static void remove_folder(const struct curve_folder *f)
{
    unlink(file_of(f, "server.key"));
    unlink(file_of(f, "worker.key"));
    rmdir(f->path);
}

static struct curve_folder folder_with_keys(void)
{
    struct curve_folder f = new_folder();
    assert_int_equal(curve_make(f.path), OK);
    return f;
}

static void write_to(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void read_from(const char *path, char *out, size_t size)
{
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    out[fread(out, 1, size - 1, file)] = '\0';
    fclose(file);
}

static void expect_error(status got, status wanted, const char *name)
{
    assert_int_equal(got, wanted);
    rig_expect_named(error_message(), name);
}

/* ---- files ---------------------------------------------------------------------------------- */

static void generated_keys_can_be_read_and_match(void **state)
{
    (void)state;
    struct curve_folder f = folder_with_keys();
    struct curve_keys *server, *member;
    struct stat s;
    assert_int_equal(stat(file_of(&f, "server.key"), &s), 0);
    assert_int_equal(s.st_mode & 0777, 0600);
    assert_int_equal(curve_open(&server, f.path, true), OK);
    assert_int_equal(curve_open(&member, f.path, false), OK);
    assert_string_equal(member->server, server->public);
    assert_int_equal(server->worker_count, 1);
    assert_string_equal(server->workers[0], member->public);
    assert_string_not_equal(server->secret, member->secret);
    curve_close(&server);
    curve_close(&member);
    assert_int_equal(curve_open(&server, "", true), OK);
    assert_null(server);
    remove_folder(&f);
}

/* If the disk is full, curve_make() leaves no file that blocks the next attempt. */
static void no_half_of_a_key_pair_is_left_behind(void **state)
{
    (void)state;
    struct curve_folder f = folder_with_keys();
    struct rlimit kept, little;
    getrlimit(RLIMIT_FSIZE, &kept);
    signal(SIGXFSZ, SIG_IGN);
    for (rlim_t bytes = 10; bytes < 300; bytes += 10) {
        unlink(file_of(&f, "server.key"));
        unlink(file_of(&f, "worker.key"));
        little = (struct rlimit){.rlim_cur = bytes, .rlim_max = kept.rlim_max};
        setrlimit(RLIMIT_FSIZE, &little);
        status code = curve_make(f.path);
        setrlimit(RLIMIT_FSIZE, &kept);
        assert_int_equal(access(file_of(&f, "server.key"), F_OK) == 0, code == OK);
        assert_int_equal(access(file_of(&f, "worker.key"), F_OK) == 0, code == OK);
        assert_true(bytes > 10 || code == ERROR_OTHER);
    }
    unlink(file_of(&f, "server.key"));
    unlink(file_of(&f, "worker.key"));
    assert_int_equal(symlink("nowhere", file_of(&f, "worker.key")), 0); /* the second fails */
    expect_error(curve_make(f.path), ERROR_USAGE, "worker.key");
    assert_int_not_equal(access(file_of(&f, "server.key"), F_OK), 0);
    remove_folder(&f);
}

static void existing_keys_are_never_overwritten(void **state)
{
    (void)state;
    struct curve_folder f = folder_with_keys();
    char before[512], after[512];
    read_from(file_of(&f, "server.key"), before, sizeof before);
    unlink(file_of(&f, "worker.key"));
    expect_error(curve_make(f.path), ERROR_USAGE, "server.key");
    assert_int_not_equal(access(file_of(&f, "worker.key"), F_OK), 0);
    read_from(file_of(&f, "server.key"), after, sizeof after);
    assert_string_equal(before, after);
    remove_folder(&f);
}

static void expect_invalid(const struct curve_folder *f, bool server, const char *text,
                           const char *name)
{
    struct curve_keys *k = NULL;
    const char *path = file_of(f, server ? "server.key" : "worker.key");
    write_to(path, text);
    assert_int_equal(chmod(path, 0600), 0);
    expect_error(curve_open(&k, f->path, server), ERROR_USAGE, name);
    assert_null(k);
}

#define A_KEY "0123456789012345678901234567890123456789"

static void an_error_in_a_key_file_names_its_line(void **state)
{
    (void)state;
    struct curve_folder f = new_folder();
    struct curve_keys *k = NULL;
#define PAIR "public = " A_KEY "\nsecret = " A_KEY "\n"
    expect_error(curve_open(&k, f.path, true), ERROR_USAGE, "server.key");
    expect_invalid(&f, true, "# words\n\npublic\n", "server.key:3:");
    expect_invalid(&f, true, "public = " A_KEY " x\n", "server.key:1:");
    expect_invalid(&f, true, "pubic = " A_KEY "\n", ":1: 'pubic'");
    expect_invalid(&f, true, "server = " A_KEY "\n", ":1: 'server'");
    expect_invalid(&f, false, "worker = " A_KEY "\n", ":1: 'worker'");
    expect_invalid(&f, true, "public = short\n", ":1: public");
    expect_invalid(&f, true, "public = 01234567890123456789012345678901234567\\9\n", ":1: public");
    expect_invalid(&f, true, "public = " A_KEY "\n", "secret");
    expect_invalid(&f, false, PAIR, "server");
    expect_invalid(&f, true, PAIR, "worker");
    write_to(file_of(&f, "server.key"), PAIR "worker = " A_KEY "\n");
    assert_int_equal(curve_open(&k, f.path, true), OK);
    curve_close(&k);
    chmod(file_of(&f, "server.key"), 0640);
    expect_error(curve_open(&k, f.path, true), ERROR_USAGE, "server.key");
    remove_folder(&f);
}

/* The end of a comment longer than the line buffer must not be read as a line of its own. */
static void a_long_comment_adds_no_worker_key(void **state)
{
    (void)state;
    struct curve_folder f = new_folder();
    struct curve_keys *k = NULL;
    char text[1024];
    for (int length = 200; length < 600; length++) {
        snprintf(text, sizeof text,
                 "public = " A_KEY "\nsecret = " A_KEY "\nworker = " A_KEY "\n#%0*d worker = " A_KEY
                 "\n",
                 length, 0);
        write_to(file_of(&f, "server.key"), text);
        assert_int_equal(chmod(file_of(&f, "server.key"), 0600), 0);
        assert_int_equal(curve_open(&k, f.path, true), OK);
        assert_int_equal(k->worker_count, 1);
        curve_close(&k);
    }
    remove_folder(&f);
}

/* ---- admission --------------------------------------------------------------------------------
 */

struct ends {
    status server, worker;
    uint64_t updates;
    char of_worker[256];
};

/* Trains with a server and one worker over loopback; each has its key folder ("": none). */
static struct ends train_vector(const char *at_server, const char *at_worker, const char *payload,
                                size_t count)
{
    struct rig *r = rig_open(1, count);
    options *ours = rig_settings(), *theirs = rig_settings();
    struct ends e;
    snprintf(r->listen, sizeof r->listen, "tcp://127.0.0.1:*");
    rig_set(ours, "curve", at_server);
    rig_set(theirs, "curve", at_worker);
    rig_set(theirs, "payload", payload);
    if (strcmp(at_server, at_worker) != 0)
        rig_set(theirs, "timeout_s", "3"); /* a mismatch may look like a server that starts late */
    rig_set(ours, "payload", payload);
    pid_t server = rig_serve(r, ours);
    pid_t trainer = rig_train(r, theirs, 0, 0);
    if (rig_wait(trainer, 20) != OK)
        r->stop = 1; /* else the server waits for its worker */
    rig_wait(server, 20);
    e.server = r->code;
    e.worker = r->worker[0].code;
    e.updates = r->outcome.updates;
    snprintf(e.of_worker, sizeof e.of_worker, "%s", r->worker[0].message);
    options_close(&ours);
    options_close(&theirs);
    rig_close(r);
    return e;
}

static struct ends train(const char *at_server, const char *at_worker, const char *payload)
{
    return train_vector(at_server, at_worker, payload, 1000);
}

/* The server admitted no worker: it is still waiting for one when the test stops it. */
static void expect_rejected(const struct ends *e, const char *name)
{
    assert_int_equal(e->worker, ERROR_PROTOCOL);
    assert_int_equal(e->server, STOPPED);
    assert_int_equal(e->updates, 0);
    rig_expect_named(e->of_worker, name);
}

static void a_run_with_matching_keys_succeeds(void **state)
{
    (void)state;
    static const char *const payloads[] = {"shm", "frames"};
    struct curve_folder f = folder_with_keys();
    for (size_t i = 0; i < COUNT_OF(payloads); i++) {
        struct ends e = train(f.path, f.path, payloads[i]);
        assert_int_equal(e.server, OK);
        assert_int_equal(e.worker, OK);
    }
    remove_folder(&f);
}

/* CURVE adds bytes to each frame. */
static void vectors_longer_than_a_frame_are_encrypted_and_arrive(void **state)
{
    (void)state;
    struct curve_folder f = folder_with_keys();
    struct ends e =
        train_vector(f.path, f.path, "frames", 2 * WIRE_CHUNK_BYTES / sizeof(float) + 1);
    if (e.worker != OK)
        fail_msg("%s", e.of_worker);
    assert_int_equal(e.server, OK);
    remove_folder(&f);
}

static void a_worker_whose_key_is_not_listed_is_rejected(void **state)
{
    (void)state;
    struct curve_folder f = folder_with_keys(), other = folder_with_keys();
    struct curve_keys *k;
    char text[256];
    /* The worker has the server's public key, but the server does not list the worker's. */
    assert_int_equal(curve_open(&k, f.path, false), OK);
    struct curve_keys *unlisted;
    assert_int_equal(curve_open(&unlisted, other.path, false), OK);
    snprintf(text, sizeof text, "public = %s\nsecret = %s\nserver = %s\n", unlisted->public,
             unlisted->secret, k->server);
    write_to(file_of(&other, "worker.key"), text);
    struct ends e = train(f.path, other.path, "auto");
    expect_rejected(&e, "server.key");
    curve_close(&k);
    curve_close(&unlisted);
    remove_folder(&f);
    remove_folder(&other);
}

static void a_worker_rejects_a_server_with_another_key(void **state)
{
    (void)state;
    struct curve_folder f = folder_with_keys(), other = folder_with_keys();
    struct ends e = train(f.path, other.path, "auto");
    expect_rejected(&e, "curve=");
    remove_folder(&f);
    remove_folder(&other);
}

static void keys_on_one_side_only_are_a_protocol_error(void **state)
{
    (void)state;
    struct curve_folder f = folder_with_keys();
    struct ends e = train(f.path, "", "auto");
    expect_rejected(&e, "curve=");
    e = train("", f.path, "auto");
    expect_rejected(&e, "curve=");
    remove_folder(&f);
}

static void every_listed_worker_is_admitted(void **state)
{
    (void)state;
    struct curve_folder f = folder_with_keys(), other = folder_with_keys();
    struct curve_keys *mine, *second;
    char text[512];
    assert_int_equal(curve_open(&mine, f.path, true), OK);
    assert_int_equal(curve_open(&second, other.path, false), OK);
    snprintf(text, sizeof text,
             "public = %s\nsecret = %s\nworker = %s\n# the second\nworker = %s\n", mine->public,
             mine->secret, mine->workers[0], second->public);
    write_to(file_of(&f, "server.key"), text);
    snprintf(text, sizeof text, "public = %s\nsecret = %s\nserver = %s\n", second->public,
             second->secret, mine->public);
    write_to(file_of(&other, "worker.key"), text);
    struct ends e = train(f.path, other.path, "auto");
    assert_int_equal(e.server, OK);
    assert_int_equal(e.worker, OK);
    curve_close(&mine);
    curve_close(&second);
    remove_folder(&f);
    remove_folder(&other);
}

/* Sends a request by RFC 27 whose second frame (the request id) has `request` bytes. Returns how
 * many bytes of the request id the answer contains. */
static int answered_bytes(void *socket, size_t request)
{
    static const char *const rest[] = {"gradlag", "127.0.0.1", "", "CURVE", "no key"};
    char long_one[512] = {0};
    int got = 0;
    zmq_send(socket, "1.0", 3, ZMQ_SNDMORE);
    zmq_send(socket, long_one, request, ZMQ_SNDMORE);
    for (size_t i = 0; i < COUNT_OF(rest); i++)
        zmq_send(socket, rest[i], strlen(rest[i]), i + 1 < COUNT_OF(rest) ? ZMQ_SNDMORE : 0);
    for (int i = 0; i < 6; i++) {
        int size = zmq_recv(socket, long_one, sizeof long_one, 0);
        assert_true(size >= 0);
        got = i == 1 ? size : got;
    }
    return got;
}

static void the_zap_handler_answers_requests_of_any_size(void **state)
{
    (void)state;
    struct curve_folder f = folder_with_keys();
    struct curve_keys *keys;
    zap_handler *guard;
    const int limit_ms = 5000;
    void *context = zmq_ctx_new();
    assert_int_equal(curve_open(&keys, f.path, true), OK);
    assert_int_equal(zap_handler_open(&guard, context, keys, 0), OK);
    void *socket = zmq_socket(context, ZMQ_REQ);
    zmq_setsockopt(socket, ZMQ_RCVTIMEO, &limit_ms, sizeof limit_ms);
    assert_int_equal(zmq_connect(socket, "inproc://zeromq.zap.01"), 0);
    assert_int_equal(answered_bytes(socket, 1), 1);
    assert_int_equal(answered_bytes(socket, 256), 256);
    assert_int_equal(answered_bytes(socket, 300),
                     256); /* truncated: the buffer's size, no memory behind it */
    zmq_close(socket);
    zmq_ctx_term(context);
    zap_handler_close(&guard);
    curve_close(&keys);
    remove_folder(&f);
}

static void endpoints_off_loopback_require_keys(void **state)
{
    (void)state;
    expect_error(endpoint_check("tcp://10.1.2.3:5555", false), ERROR_USAGE, "curve=");
    expect_error(endpoint_check("tcp://*:5555", false), ERROR_USAGE, "curve=");
    expect_error(endpoint_check("tcp://trainer:5555", false), ERROR_USAGE, "curve=");
    assert_int_equal(endpoint_check("tcp://10.1.2.3:5555", true), OK);
    assert_int_equal(endpoint_check("tcp://*:5555", true), OK);
    assert_int_equal(endpoint_check("tcp://trainer:5555", true), OK);
    assert_int_equal(endpoint_check("tcp://127.0.0.1:*", true), OK);
    expect_error(endpoint_check("tcp://trainer", true), ERROR_USAGE, "65535");
    expect_error(endpoint_check("tcp://:5555", true), ERROR_USAGE, "tcp://:5555");
    expect_error(endpoint_check("tcp://trainer:0", true), ERROR_USAGE, "65535");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(generated_keys_can_be_read_and_match),
        cmocka_unit_test(no_half_of_a_key_pair_is_left_behind),
        cmocka_unit_test(existing_keys_are_never_overwritten),
        cmocka_unit_test(an_error_in_a_key_file_names_its_line),
        cmocka_unit_test(a_long_comment_adds_no_worker_key),
        cmocka_unit_test(a_run_with_matching_keys_succeeds),
        cmocka_unit_test(vectors_longer_than_a_frame_are_encrypted_and_arrive),
        cmocka_unit_test(a_worker_whose_key_is_not_listed_is_rejected),
        cmocka_unit_test(a_worker_rejects_a_server_with_another_key),
        cmocka_unit_test(keys_on_one_side_only_are_a_protocol_error),
        cmocka_unit_test(every_listed_worker_is_admitted),
        cmocka_unit_test(the_zap_handler_answers_requests_of_any_size),
        cmocka_unit_test(endpoints_off_loopback_require_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
