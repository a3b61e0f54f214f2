/* curve.c — see curve.h. */
#include "ps/net/curve.h"

#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "base/thread.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

enum { PATH_BYTES = 1024, LINE_BYTES = 256, REPORTED_REFUSALS = 8, TOKEN_TEXT_BYTES = 17 };

#define ZAP_ENDPOINT "inproc://zeromq.zap.01"
#define ZAP_DOMAIN   "gradlag"
#define PLAIN_USER   "gradlag"

/* ---- files ---------------------------------------------------------------------------------- */

static status path_of(const char *folder, bool server, char out[PATH_BYTES])
{
    status result = OK;
    const char *name = server ? "server.key" : "worker.key";
    if (snprintf(out, PATH_BYTES, "%s/%s", folder, name) >= PATH_BYTES)
        FAIL(ERROR_USAGE, "curve: the folder's name is too long: %s", folder);
done:
    return result;
}

static status draw(curve_key public, curve_key secret)
{
    status result = OK;
    if (zmq_curve_keypair(public, secret) != 0)
        FAIL(ERROR_OTHER, "no keys: this ZeroMQ was built without CURVE (%s)",
             zmq_strerror(zmq_errno()));
done:
    return result;
}

/* Never over an old one: workers elsewhere may still live by it. */
static status write_file(const char *path, const char *text)
{
    status result = OK;
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0 && errno == EEXIST)
        FAIL(ERROR_USAGE, "%s is there already: remove it, or choose another folder", path);
    size_t size = strlen(text);
    if (fd < 0)
        FAIL(ERROR_OTHER, "cannot write %s: %s", path, strerror(errno));
    const ssize_t written = write(fd, text, size);
    if (written != (ssize_t)size) {
        const int cause = written < 0 ? errno : ENOSPC;
        (void)unlink(path);
        FAIL(ERROR_OTHER, "cannot write %s: %s; is the disk full?", path, strerror(cause));
    }
done:
    if (fd >= 0)
        close(fd);
    return result;
}

status curve_make(const char *folder)
{
    status result = OK;
    char path[2][PATH_BYTES];
    struct text text[2] = {{0}, {0}};
    curve_key public[2], secret[2];
    if (mkdir(folder, 0700) != 0 && errno != EEXIST)
        FAIL(ERROR_USAGE, "cannot make the folder %s: %s; name another one", folder,
             strerror(errno));
    TRY(path_of(folder, true, path[0]));
    TRY(path_of(folder, false, path[1]));
    for (int i = 0; i < 2; i++)
        if (access(path[i], F_OK) == 0)
            FAIL(ERROR_USAGE, "%s is there already: remove it, or choose another folder", path[i]);
    TRY(draw(public[0], secret[0]));
    TRY(draw(public[1], secret[1]));
    text_add(&text[0],
             "# The parameter server's keys. Keep this file to yourself.\n"
             "public = %s\nsecret = %s\n"
             "# Who may come, a line each.\nworker = %s\n",
             public[0], secret[0], public[1]);
    text_add(&text[1],
             "# A worker's keys. Copy this file to the workers' hosts, and to nobody else.\n"
             "public = %s\nsecret = %s\nserver = %s\n",
             public[1], secret[1], public[0]);
    TRY(write_file(path[0], text[0].at));
    result = write_file(path[1], text[1].at);
    if (result != OK)
        (void)unlink(path[0]); /* the server's alone would be in the way of the next pair */
done:
    for (int i = 0; i < 2; i++) {
        if (text[i].at != NULL)
            explicit_bzero(text[i].at, strlen(text[i].at));
        text_free(&text[i]);
    }
    explicit_bzero(secret, sizeof secret);
    return result;
}

/* `name = key`, with blanks as they come. False: neither that nor empty nor a comment. A comment is
 * a line of its own, since keys may have a # in them, and a =. */
static bool parse(char *line, const char **name, const char **key)
{
    static const char blank[] = " \t\r\n";
    char *equals = strchr(line, '=');
    const char first = line[strspn(line, blank)];
    *name = *key = NULL;
    if (first == '\0' || first == '#')
        return true;
    if (equals == NULL)
        return false;
    *equals = '\0';
    char *rest = NULL, *more = NULL;
    *name = strtok_r(line, blank, &rest);
    *key = strtok_r(equals + 1, blank, &more);
    return *name != NULL && *key != NULL && strtok_r(NULL, blank, &rest) == NULL &&
           strtok_r(NULL, blank, &more) == NULL;
}

static bool is_key(const char *text)
{
    uint8_t bytes[CURVE_KEY_BYTES];
    return strlen(text) == CURVE_TEXT_BYTES - 1 && zmq_z85_decode(bytes, text) != NULL;
}

static status add_worker(struct curve_keys *k, const char *key)
{
    status result = OK;
    curve_key *more;
    TRY(memory_new(&more, k->worker_count + 1, sizeof *more, "keys of workers"));
    if (k->worker_count > 0)
        memcpy(more, k->workers, k->worker_count * sizeof *more);
    memory_free(k->workers);
    k->workers = more;
    memcpy(k->workers[k->worker_count++], key, sizeof *more);
done:
    return result;
}

static status take(struct curve_keys *k, bool server, const char *name, const char *key,
                   const char *path, unsigned line)
{
    status result = OK;
    char *into = strcmp(name, "public") == 0              ? k->public
                 : strcmp(name, "secret") == 0            ? k->secret
                 : !server && strcmp(name, "server") == 0 ? k->server
                                                          : NULL;
    bool is_worker = server && strcmp(name, "worker") == 0;
    if (into == NULL && !is_worker)
        FAIL(ERROR_USAGE, "%s:%u: '%s' is not a key of this file: public, secret and %s are", path,
             line, name, server ? "worker" : "server");
    if (!is_key(key))
        FAIL(ERROR_USAGE, "%s:%u: %s is not a key: 40 characters, as `gradlag keygen` writes them",
             path, line, name);
    if (is_worker)
        TRY(add_worker(k, key));
    else
        memcpy(into, key, CURVE_TEXT_BYTES);
done:
    return result;
}

/* The next line, of which what does not fit is left out: no key is that long. */
static bool read_line(FILE *f, char line[LINE_BYTES])
{
    if (fgets(line, LINE_BYTES, f) == NULL)
        return false;
    for (int c = 0; strchr(line, '\n') == NULL && c != EOF && c != '\n';)
        c = fgetc(f);
    return true;
}

static status read_file(struct curve_keys *k, bool server, const char *path)
{
    status result = OK;
    char line[LINE_BYTES];
    const char *name, *key;
    struct stat s;
    FILE *f = fopen(path, "re");
    if (f == NULL)
        FAIL(ERROR_USAGE, "curve: cannot read %s: %s; `gradlag keygen FOLDER` makes one", path,
             strerror(errno));
    if (fstat(fileno(f), &s) != 0 || (s.st_mode & (S_IRWXG | S_IRWXO)) != 0)
        FAIL(ERROR_USAGE, "%s can be read by others than its owner: chmod 600 it", path);
    for (unsigned n = 1; read_line(f, line); n++) {
        if (!parse(line, &name, &key))
            FAIL(ERROR_USAGE, "%s:%u: this is not a line of the form `name = key`", path, n);
        if (name != NULL)
            TRY(take(k, server, name, key, path, n));
    }
    if (k->public[0] == '\0' || k->secret[0] == '\0' || (!server && k->server[0] == '\0'))
        FAIL(ERROR_USAGE, "%s lacks a key: it needs public, secret%s", path,
             server ? "" : " and server");
    if (server && k->worker_count == 0)
        FAIL(ERROR_USAGE, "%s names no worker's key: nobody could come", path);
done:
    explicit_bzero(line, sizeof line);
    if (f != NULL)
        fclose(f);
    return result;
}

status curve_open(struct curve_keys **out, const char *folder, bool server)
{
    status result = OK;
    struct curve_keys *k = NULL;
    char path[PATH_BYTES];
    *out = NULL;
    if (folder[0] == '\0')
        goto done;
    TRY(memory_new(&k, 1, sizeof *k, "keys"));
    TRY(path_of(folder, server, path));
    TRY(read_file(k, server, path));
    *out = k;
    k = NULL;
done:
    curve_close(&k);
    return result;
}

void curve_close(struct curve_keys **p)
{
    if (p == NULL || *p == NULL)
        return;
    explicit_bzero((*p)->secret, sizeof(*p)->secret);
    memory_free((*p)->workers);
    memory_free(*p);
    *p = NULL;
}

/* ---- a socket's keys or token --------------------------------------------------------------- */

static void set(void *socket, int option, const void *value, size_t size)
{
    int code = zmq_setsockopt(socket, option, value, size);
    REQUIRE(code == 0);
}

/* Whom the guard does not allow, ZeroMQ does not let in; without a guard it would let in anybody.
 * So the guard is there first, and ends after all sockets (channel.c). */
static void be_server(void *socket, int mechanism)
{
    const int yes = 1;
    set(socket, mechanism, &yes, sizeof yes);
    set(socket, ZMQ_ZAP_DOMAIN, ZAP_DOMAIN, strlen(ZAP_DOMAIN));
}

void curve_apply(const struct curve_keys *k, void *socket, bool server)
{
    set(socket, ZMQ_CURVE_SECRETKEY, k->secret, CURVE_TEXT_BYTES);
    set(socket, ZMQ_CURVE_PUBLICKEY, k->public, CURVE_TEXT_BYTES);
    if (server)
        be_server(socket, ZMQ_CURVE_SERVER);
    else
        set(socket, ZMQ_CURVE_SERVERKEY, k->server, CURVE_TEXT_BYTES);
}

static void write_token(uint64_t run_token, char out[TOKEN_TEXT_BYTES])
{
    snprintf(out, TOKEN_TEXT_BYTES, "%016llx", (unsigned long long)run_token);
}

void curve_apply_token(uint64_t run_token, void *socket, bool server)
{
    char token[TOKEN_TEXT_BYTES];
    write_token(run_token, token);
    if (server) {
        be_server(socket, ZMQ_PLAIN_SERVER);
    } else {
        set(socket, ZMQ_PLAIN_USERNAME, PLAIN_USER, strlen(PLAIN_USER));
        set(socket, ZMQ_PLAIN_PASSWORD, token, strlen(token));
    }
}

/* ---- the guard ------------------------------------------------------------------------------ */

/* A request's frames, RFC 27. The credentials come last: CURVE has the peer's public key, PLAIN the
 * user's name and the password. */
enum { VERSION, REQUEST, DOMAIN, ADDRESS, IDENTITY, MECHANISM, KEY, PASSWORD, FRAMES };

struct frame {
    uint8_t bytes[256];
    size_t size; /* more than fits was cut off */
};

struct handshake_guard {
    void *socket;
    pthread_t thread;
    uint8_t (*allowed)[CURVE_KEY_BYTES]; /* NULL: the token is what counts */
    size_t count;
    char token[TOKEN_TEXT_BYTES];
    unsigned refused;
};

/* Takes a whole message; 0 when the context has ended. */
static unsigned receive(void *socket, struct frame frames[FRAMES])
{
    unsigned n = 0;
    int more = 1;
    size_t size = sizeof more;
    for (int i = 0; i < FRAMES; i++)
        frames[i].size = 0;
    while (more) {
        struct frame beyond = {.size = 0}, *f = n < FRAMES ? &frames[n] : &beyond;
        int got = zmq_recv(socket, f->bytes, sizeof f->bytes, 0);
        if (got < 0 && zmq_errno() == EINTR)
            continue;
        if (got < 0 || zmq_getsockopt(socket, ZMQ_RCVMORE, &more, &size) != 0)
            return 0;
        f->size = (size_t)got < sizeof f->bytes ? (size_t)got : sizeof f->bytes;
        n++;
    }
    return n;
}

static bool is(const struct frame *f, const char *text)
{
    return f->size == strlen(text) && memcmp(f->bytes, text, f->size) == 0;
}

static bool may_come(const handshake_guard *g, const struct frame frames[FRAMES], unsigned n)
{
    if (g->allowed == NULL)
        return n == FRAMES && is(&frames[MECHANISM], "PLAIN") && is(&frames[KEY], PLAIN_USER) &&
               is(&frames[PASSWORD], g->token);
    if (n != KEY + 1 || !is(&frames[MECHANISM], "CURVE") || frames[KEY].size != CURVE_KEY_BYTES)
        return false;
    for (size_t i = 0; i < g->count; i++)
        if (memcmp(g->allowed[i], frames[KEY].bytes, CURVE_KEY_BYTES) == 0)
            return true;
    return false;
}

static void answer(void *socket, const struct frame *request, bool yes)
{
    const struct {
        const void *bytes;
        size_t size;
    } parts[] = {{"1.0", 3},
                 {request->bytes, request->size},
                 {yes ? "200" : "400", 3},
                 {yes ? "OK" : "unknown", yes ? 2 : 7},
                 {"", 0},
                 {"", 0}};
    for (size_t i = 0; i < COUNT_OF(parts); i++)
        (void)zmq_send(socket, parts[i].bytes, parts[i].size,
                       i + 1 < COUNT_OF(parts) ? ZMQ_SNDMORE : 0);
}

static void *guard(void *argument)
{
    handshake_guard *g = argument;
    struct frame frames[FRAMES];
    unsigned n;
    while ((n = receive(g->socket, frames)) > 0) {
        bool yes = may_come(g, frames, n);
        answer(g->socket, &frames[REQUEST], yes);
        if (!yes && g->refused++ < REPORTED_REFUSALS)
            log_warning("a peer at %.*s shows %s: refused%s", (int)frames[ADDRESS].size,
                        (const char *)frames[ADDRESS].bytes,
                        g->allowed != NULL ? "a key that server.key does not list"
                                           : "another token than this run's (run_token=)",
                        g->refused == REPORTED_REFUSALS ? "; further ones are not reported" : "");
    }
    zmq_close(g->socket);
    return NULL;
}

static status list_keys(handshake_guard *g, const struct curve_keys *keys)
{
    status result = OK;
    TRY(memory_new(&g->allowed, keys->worker_count, sizeof *g->allowed, "keys of workers"));
    for (; g->count < keys->worker_count; g->count++)
        REQUIRE(zmq_z85_decode(g->allowed[g->count], keys->workers[g->count]) != NULL);
done:
    return result;
}

status handshake_guard_open(handshake_guard **out, void *context, const struct curve_keys *keys,
                            uint64_t run_token)
{
    status result = OK;
    handshake_guard *g = NULL;
    const int none = 0;
    *out = NULL;
    TRY(memory_new(&g, 1, sizeof *g, "the guard"));
    write_token(run_token, g->token);
    if (keys != NULL)
        TRY(list_keys(g, keys));
    g->socket = zmq_socket(context, ZMQ_REP);
    if (g->socket == NULL || zmq_bind(g->socket, ZAP_ENDPOINT) != 0)
        FAIL(ERROR_OTHER, "cannot guard the server's socket: %s", zmq_strerror(zmq_errno()));
    set(g->socket, ZMQ_LINGER, &none, sizeof none);
    TRY(thread_start(&g->thread, guard, g, "the guard's thread"));
    *out = g;
    g = NULL;
done:
    if (g != NULL) {
        if (g->socket != NULL)
            zmq_close(g->socket);
        memory_free(g->allowed);
        memory_free(g);
    }
    return result;
}

void handshake_guard_close(handshake_guard **p)
{
    if (p == NULL || *p == NULL)
        return;
    pthread_join((*p)->thread, NULL);
    memory_free((*p)->allowed);
    memory_free(*p);
    *p = NULL;
}
