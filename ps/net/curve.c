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
#include <stdlib.h>
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
        FAIL(ERROR_USAGE, "curve=%s: the folder's name is too long; choose a shorter one", folder);
done:
    return result;
}

static status generate_pair(curve_key public, curve_key secret)
{
    status result = OK;
    if (zmq_curve_keypair(public, secret) != 0)
        FAIL(ERROR_OTHER,
             "cannot generate keys: this ZeroMQ was built without CURVE (%s); install one with it",
             zmq_strerror(zmq_errno()));
done:
    return result;
}

/* Never overwrites a file: workers on other hosts may still use its keys. */
static status write_file(const char *path, const char *text)
{
    status result = OK;
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0 && errno == EEXIST)
        FAIL(ERROR_USAGE, "%s exists already: remove it, or choose another folder", path);
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
        FAIL(ERROR_USAGE, "cannot create the folder %s: %s; choose another one", folder,
             strerror(errno));
    TRY(path_of(folder, true, path[0]));
    TRY(path_of(folder, false, path[1]));
    for (int i = 0; i < 2; i++)
        if (access(path[i], F_OK) == 0)
            FAIL(ERROR_USAGE, "%s exists already: remove it, or choose another folder", path[i]);
    TRY(generate_pair(public[0], secret[0]));
    TRY(generate_pair(public[1], secret[1]));
    text_add(&text[0],
             "# The parameter server's keys. Do not share this file.\n"
             "public = %s\nsecret = %s\n"
             "# The public keys of the allowed workers, one a line.\nworker = %s\n",
             public[0], secret[0], public[1]);
    text_add(&text[1],
             "# A worker's keys. Copy this file to the workers' hosts only.\n"
             "public = %s\nsecret = %s\nserver = %s\n",
             public[1], secret[1], public[0]);
    TRY(write_file(path[0], text[0].at));
    result = write_file(path[1], text[1].at);
    if (result != OK)
        (void)unlink(path[0]); /* a server.key alone would block the next attempt */
done:
    for (int i = 0; i < 2; i++) {
        if (text[i].at != NULL)
            explicit_bzero(text[i].at, strlen(text[i].at));
        text_free(&text[i]);
    }
    explicit_bzero(secret, sizeof secret);
    return result;
}

/* Splits `name = key`, with any blanks. *name is NULL for an empty line or a comment. False: the
 * line is none of these. A comment is a line of its own, because keys may contain # and =. */
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

static status store_key(struct curve_keys *k, bool server, const char *name, const char *key,
                        const char *path, unsigned line)
{
    status result = OK;
    char *into = strcmp(name, "public") == 0              ? k->public
                 : strcmp(name, "secret") == 0            ? k->secret
                 : !server && strcmp(name, "server") == 0 ? k->server
                                                          : NULL;
    bool is_worker = server && strcmp(name, "worker") == 0;
    if (into == NULL && !is_worker)
        FAIL(ERROR_USAGE,
             "%s:%u: '%s' is not a name in this file; its names are public, secret and %s", path,
             line, name, server ? "worker" : "server");
    if (!is_key(key))
        FAIL(ERROR_USAGE,
             "%s:%u: %s is not a key of 40 characters (Z85), as `gradlag keygen` writes it", path,
             line, name);
    if (is_worker)
        TRY(add_worker(k, key));
    else
        memcpy(into, key, CURVE_TEXT_BYTES);
done:
    return result;
}

/* Reads a line. Skips the part that does not fit into the buffer: no key is that long. */
static bool read_line(FILE *f, char line[LINE_BYTES])
{
    if (fgets(line, LINE_BYTES, f) == NULL)
        return false;
    for (int c = 0; strchr(line, '\n') == NULL && c != EOF && c != '\n';)
        c = fgetc(f);
    return true;
}

static status read_lines(struct curve_keys *k, bool server, const char *path, FILE *f)
{
    status result = OK;
    char line[LINE_BYTES];
    const char *name, *key;
    for (unsigned n = 1; read_line(f, line); n++) {
        if (!parse(line, &name, &key))
            FAIL(ERROR_USAGE, "%s:%u: the line does not have the form `name = key`", path, n);
        if (name != NULL)
            TRY(store_key(k, server, name, key, path, n));
    }
    if (k->public[0] == '\0' || k->secret[0] == '\0' || (!server && k->server[0] == '\0'))
        FAIL(ERROR_USAGE, "%s lacks a key: it needs %s", path,
             server ? "public and secret" : "public, secret and server");
    if (server && k->worker_count == 0)
        FAIL(ERROR_USAGE,
             "%s lists no key of a worker, so none could join: add a line `worker = KEY`", path);
done:
    explicit_bzero(line, sizeof line);
    return result;
}

static status read_file(struct curve_keys *k, bool server, const char *path)
{
    status result = OK;
    struct stat s;
    FILE *f = fopen(path, "re");
    if (f == NULL)
        FAIL(ERROR_USAGE, "curve: cannot read %s: %s; create it with `gradlag keygen FOLDER`", path,
             strerror(errno));
    if (fstat(fileno(f), &s) != 0 || (s.st_mode & (S_IRWXG | S_IRWXO)) != 0)
        FAIL(ERROR_USAGE, "other users can access %s: run chmod 600 %s", path, path);
    TRY(read_lines(k, server, path, f));
done:
    if (f != NULL)
        fclose(f);
    return result;
}

/* A worker on another host has no file; its starter put the lines into the environment. */
static status read_variable(struct curve_keys *k, const char *lines)
{
    status result = OK;
    FILE *f = fmemopen((char *)(uintptr_t)lines, strlen(lines), "r");
    if (f == NULL)
        FAIL(ERROR_USAGE, CURVE_WORKER_VARIABLE " is empty; it needs the lines of worker.key");
    TRY(read_lines(k, false, CURVE_WORKER_VARIABLE, f));
done:
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
    const char *lines = server ? NULL : getenv(CURVE_WORKER_VARIABLE);
    if (lines != NULL) {
        TRY(read_variable(k, lines));
    } else {
        TRY(path_of(folder, server, path));
        TRY(read_file(k, server, path));
    }
    *out = k;
    k = NULL;
done:
    curve_close(&k);
    return result;
}

status curve_worker_variable(const char *folder, struct text *out)
{
    status result = OK;
    struct curve_keys *k = NULL;
    TRY(curve_open(&k, folder, false));
    text_add(out, CURVE_WORKER_VARIABLE "=public=%s\nsecret=%s\nserver=%s\n", k->public, k->secret,
             k->server);
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

/* ZeroMQ admits only peers that the ZAP handler accepts. Without a handler it would admit any peer.
 * So channel.c opens the handler before the socket binds, and closes it after all sockets. */
static void set_server_side(void *socket, int mechanism)
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
        set_server_side(socket, ZMQ_CURVE_SERVER);
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
        set_server_side(socket, ZMQ_PLAIN_SERVER);
    } else {
        set(socket, ZMQ_PLAIN_USERNAME, PLAIN_USER, strlen(PLAIN_USER));
        set(socket, ZMQ_PLAIN_PASSWORD, token, strlen(token));
    }
}

/* ---- the ZAP handler ------------------------------------------------------------------------ */

/* The frames of a request, RFC 27. The credentials come last: the peer's public key (CURVE), or
 * user name and password (PLAIN). */
enum { VERSION, REQUEST, DOMAIN, ADDRESS, IDENTITY, MECHANISM, KEY, PASSWORD, FRAMES };

struct frame {
    uint8_t bytes[256];
    size_t size; /* a longer frame is cut to sizeof bytes */
};

struct zap_handler {
    void *socket;
    pthread_t thread;
    uint8_t (*allowed)[CURVE_KEY_BYTES]; /* [count]; NULL: the token decides */
    size_t count;
    char token[TOKEN_TEXT_BYTES];
    unsigned refused;
};

/* Receives a whole message; returns its number of frames, 0: the context was terminated. */
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

static bool equals(const struct frame *f, const char *text)
{
    return f->size == strlen(text) && memcmp(f->bytes, text, f->size) == 0;
}

static bool is_allowed(const zap_handler *h, const struct frame frames[FRAMES], unsigned n)
{
    if (h->allowed == NULL)
        return n == FRAMES && equals(&frames[MECHANISM], "PLAIN") &&
               equals(&frames[KEY], PLAIN_USER) && equals(&frames[PASSWORD], h->token);
    if (n != KEY + 1 || !equals(&frames[MECHANISM], "CURVE") || frames[KEY].size != CURVE_KEY_BYTES)
        return false;
    for (size_t i = 0; i < h->count; i++)
        if (memcmp(h->allowed[i], frames[KEY].bytes, CURVE_KEY_BYTES) == 0)
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

static void *run(void *argument)
{
    zap_handler *h = argument;
    struct frame frames[FRAMES];
    unsigned n;
    while ((n = receive(h->socket, frames)) > 0) {
        bool yes = is_allowed(h, frames, n);
        answer(h->socket, &frames[REQUEST], yes);
        if (!yes && h->refused++ < REPORTED_REFUSALS)
            log_warning("refused a peer at %.*s: it shows %s%s", (int)frames[ADDRESS].size,
                        (const char *)frames[ADDRESS].bytes,
                        h->allowed != NULL ? "a key that server.key does not list (curve=)"
                                           : "another run's token (run_token=)",
                        h->refused == REPORTED_REFUSALS ? " (further refusals are not logged)"
                                                        : "");
    }
    zmq_close(h->socket);
    return NULL;
}

static status list_keys(zap_handler *h, const struct curve_keys *keys)
{
    status result = OK;
    TRY(memory_new(&h->allowed, keys->worker_count, sizeof *h->allowed, "keys of workers"));
    for (; h->count < keys->worker_count; h->count++)
        REQUIRE(zmq_z85_decode(h->allowed[h->count], keys->workers[h->count]) != NULL);
done:
    return result;
}

status zap_handler_open(zap_handler **out, void *context, const struct curve_keys *keys,
                        uint64_t run_token)
{
    status result = OK;
    zap_handler *h = NULL;
    const int none = 0;
    *out = NULL;
    TRY(memory_new(&h, 1, sizeof *h, "the ZAP handler"));
    write_token(run_token, h->token);
    if (keys != NULL)
        TRY(list_keys(h, keys));
    h->socket = zmq_socket(context, ZMQ_REP);
    if (h->socket == NULL || zmq_bind(h->socket, ZAP_ENDPOINT) != 0)
        FAIL(ERROR_OTHER, "cannot open the ZAP handler of the server's socket: %s",
             zmq_strerror(zmq_errno()));
    set(h->socket, ZMQ_LINGER, &none, sizeof none);
    TRY(thread_start(&h->thread, run, h, "the ZAP handler's thread"));
    *out = h;
    h = NULL;
done:
    if (h != NULL) {
        if (h->socket != NULL)
            zmq_close(h->socket);
        memory_free(h->allowed);
        memory_free(h);
    }
    return result;
}

void zap_handler_close(zap_handler **p)
{
    if (p == NULL || *p == NULL)
        return;
    pthread_join((*p)->thread, NULL);
    memory_free((*p)->allowed);
    memory_free(*p);
    *p = NULL;
}
