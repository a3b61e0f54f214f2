/* Keys: files that say what is wrong with them, and a server that talks to nobody without the right
 * one. */
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

static void expect_error(status got, status wanted, const char *part)
{
    assert_int_equal(got, wanted);
    if (strstr(error_message(), part) == NULL)
        fail_msg("'%s' does not say '%s'", error_message(), part);
}

/* ---- files ---------------------------------------------------------------------------------- */

static void what_is_made_is_read_and_fits_together(void **state)
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

/* A pair that the disk had no room for is not in the way of the next one. */
static void half_a_pair_of_keys_is_not_left(void **state)
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
    expect_error(curve_make(f.path), ERROR_USAGE, "worker.key is there already");
    assert_int_not_equal(access(file_of(&f, "server.key"), F_OK), 0);
    remove_folder(&f);
}

static void keys_are_never_written_over(void **state)
{
    (void)state;
    struct curve_folder f = folder_with_keys();
    char before[512], after[512];
    read_from(file_of(&f, "server.key"), before, sizeof before);
    unlink(file_of(&f, "worker.key"));
    expect_error(curve_make(f.path), ERROR_USAGE, "server.key is there already");
    assert_int_not_equal(access(file_of(&f, "worker.key"), F_OK), 0);
    read_from(file_of(&f, "server.key"), after, sizeof after);
    assert_string_equal(before, after);
    remove_folder(&f);
}

static void expect_unread(const struct curve_folder *f, bool server, const char *text,
                          const char *part)
{
    struct curve_keys *k = NULL;
    const char *path = file_of(f, server ? "server.key" : "worker.key");
    write_to(path, text);
    assert_int_equal(chmod(path, 0600), 0);
    expect_error(curve_open(&k, f->path, server), ERROR_USAGE, part);
    assert_null(k);
}

#define A_KEY "0123456789012345678901234567890123456789"

static void mistakes_in_a_file_name_their_line(void **state)
{
    (void)state;
    struct curve_folder f = new_folder();
    struct curve_keys *k = NULL;
    expect_error(curve_open(&k, f.path, true), ERROR_USAGE, "`gradlag keygen FOLDER` makes one");
    expect_unread(&f, true, "# words\n\npublic\n", "server.key:3: this is not a line");
    expect_unread(&f, true, "public = " A_KEY " x\n", ":1: this is not a line");
    expect_unread(&f, true, "pubic = " A_KEY "\n", ":1: 'pubic' is not a key of this file");
    expect_unread(&f, true, "server = " A_KEY "\n", "public, secret and worker are");
    expect_unread(&f, false, "worker = " A_KEY "\n", "public, secret and server are");
    expect_unread(&f, true, "public = short\n", ":1: public is not a key: 40 characters");
    expect_unread(&f, true, "public = 01234567890123456789012345678901234567\\9\n", "not a key");
    expect_unread(&f, true, "public = " A_KEY "\n", "lacks a key");
    expect_unread(&f, false, "public = " A_KEY "\nsecret = " A_KEY "\n", "and server");
    expect_unread(&f, true, "public = " A_KEY "\nsecret = " A_KEY "\n", "names no worker's key");
    chmod(file_of(&f, "server.key"), 0640);
    expect_error(curve_open(&k, f.path, true), ERROR_USAGE, "chmod 600");
    remove_folder(&f);
}

/* However long: what stands at its end is no line of its own. */
static void a_comment_lets_nobody_in(void **state)
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

/* ---- who is let in -------------------------------------------------------------------------- */

struct ends {
    status server, worker;
    char of_worker[256];
};

/* A server and one worker, each with its folder ("": none), on a socket of this host. */
static struct ends train_vector(const char *at_server, const char *at_worker, const char *payload,
                                size_t count)
{
    struct rig *r = rig_open(1, count);
    options *ours = rig_settings(), *theirs = rig_settings();
    struct ends e;
    snprintf(r->listen, sizeof r->listen, "tcp://127.0.0.1:*");
    rig_set(ours, "timeout_s", "1");
    rig_set(theirs, "timeout_s", "1");
    rig_set(ours, "curve", at_server);
    rig_set(theirs, "curve", at_worker);
    rig_set(theirs, "payload", payload);
    rig_set(ours, "payload", payload);
    pid_t server = rig_serve(r, ours);
    pid_t trainer = rig_train(r, theirs, 0, 0);
    rig_wait(trainer, 40);
    rig_wait(server, 40);
    e.server = r->code;
    e.worker = r->worker[0].code;
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

static void expect_turned_away(const struct ends *e, const char *part)
{
    assert_int_equal(e->worker, ERROR_PROTOCOL);
    assert_int_equal(e->server, ERROR_PEER); /* nobody came */
    if (strstr(e->of_worker, part) == NULL)
        fail_msg("'%s' does not say '%s'", e->of_worker, part);
}

static void with_the_right_keys_a_run_is_as_without(void **state)
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

/* CURVE makes each frame longer than what is in it. */
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

static void a_worker_whose_key_is_not_listed_is_turned_away(void **state)
{
    (void)state;
    struct curve_folder f = folder_with_keys(), other = folder_with_keys();
    struct curve_keys *k;
    char text[256];
    /* It knows the server, and the server does not know it. */
    assert_int_equal(curve_open(&k, f.path, false), OK);
    struct curve_keys *stranger;
    assert_int_equal(curve_open(&stranger, other.path, false), OK);
    snprintf(text, sizeof text, "public = %s\nsecret = %s\nserver = %s\n", stranger->public,
             stranger->secret, k->server);
    write_to(file_of(&other, "worker.key"), text);
    struct ends e = train(f.path, other.path, "auto");
    expect_turned_away(&e, "does not know our key");
    curve_close(&k);
    curve_close(&stranger);
    remove_folder(&f);
    remove_folder(&other);
}

static void a_worker_does_not_talk_to_another_server_than_its_own(void **state)
{
    (void)state;
    struct curve_folder f = folder_with_keys(), other = folder_with_keys();
    struct ends e = train(f.path, other.path, "auto");
    expect_turned_away(&e, "do not come to terms");
    remove_folder(&f);
    remove_folder(&other);
}

static void keys_on_one_side_only_are_said_to_be_so(void **state)
{
    (void)state;
    struct curve_folder f = folder_with_keys();
    struct ends e = train(f.path, "", "auto");
    expect_turned_away(&e, "has one of them no keys");
    e = train("", f.path, "auto");
    expect_turned_away(&e, "has one of them no keys");
    remove_folder(&f);
}

static void every_listed_worker_may_come(void **state)
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

/* A request's frames by RFC 27, the second of that many bytes; the bytes of it in the answer. */
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

static void the_guard_answers_requests_of_any_size(void **state)
{
    (void)state;
    struct curve_folder f = folder_with_keys();
    struct curve_keys *keys;
    handshake_guard *guard;
    const int limit_ms = 5000;
    void *context = zmq_ctx_new();
    assert_int_equal(curve_open(&keys, f.path, true), OK);
    assert_int_equal(handshake_guard_open(&guard, context, keys, 0), OK);
    void *socket = zmq_socket(context, ZMQ_REQ);
    zmq_setsockopt(socket, ZMQ_RCVTIMEO, &limit_ms, sizeof limit_ms);
    assert_int_equal(zmq_connect(socket, "inproc://zeromq.zap.01"), 0);
    assert_int_equal(answered_bytes(socket, 1), 1);
    assert_int_equal(answered_bytes(socket, 256), 256);
    assert_int_equal(answered_bytes(socket, 300), 256); /* cut off, nothing beside it is told */
    zmq_close(socket);
    zmq_ctx_term(context);
    handshake_guard_close(&guard);
    curve_close(&keys);
    remove_folder(&f);
}

static void off_loopback_keys_are_asked_for(void **state)
{
    (void)state;
    expect_error(channel_check_endpoint("tcp://10.1.2.3:5555", false), ERROR_USAGE,
                 "`gradlag keygen FOLDER` makes keys");
    expect_error(channel_check_endpoint("tcp://*:5555", false), ERROR_USAGE, "not on loopback");
    expect_error(channel_check_endpoint("tcp://trainer:5555", false), ERROR_USAGE, "not on loop");
    assert_int_equal(channel_check_endpoint("tcp://10.1.2.3:5555", true), OK);
    assert_int_equal(channel_check_endpoint("tcp://*:5555", true), OK);
    assert_int_equal(channel_check_endpoint("tcp://trainer:5555", true), OK);
    assert_int_equal(channel_check_endpoint("tcp://127.0.0.1:*", true), OK);
    expect_error(channel_check_endpoint("tcp://trainer", true), ERROR_USAGE, "a port is 1 to");
    expect_error(channel_check_endpoint("tcp://:5555", true), ERROR_USAGE, "names no host");
    expect_error(channel_check_endpoint("tcp://trainer:0", true), ERROR_USAGE, "a port is 1 to");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_made_is_read_and_fits_together),
        cmocka_unit_test(half_a_pair_of_keys_is_not_left),
        cmocka_unit_test(keys_are_never_written_over),
        cmocka_unit_test(mistakes_in_a_file_name_their_line),
        cmocka_unit_test(a_comment_lets_nobody_in),
        cmocka_unit_test(with_the_right_keys_a_run_is_as_without),
        cmocka_unit_test(vectors_longer_than_a_frame_are_encrypted_and_arrive),
        cmocka_unit_test(a_worker_whose_key_is_not_listed_is_turned_away),
        cmocka_unit_test(a_worker_does_not_talk_to_another_server_than_its_own),
        cmocka_unit_test(keys_on_one_side_only_are_said_to_be_so),
        cmocka_unit_test(every_listed_worker_may_come),
        cmocka_unit_test(the_guard_answers_requests_of_any_size),
        cmocka_unit_test(off_loopback_keys_are_asked_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
