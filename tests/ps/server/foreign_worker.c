/* foreign_worker.c — see foreign_worker.h. The sections are those of docs/wire-format.md. */
#include "tests/ps/server/foreign_worker.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

enum { HELLO = 1, WELCOME, READY, RELEASE, PARAMETERS, PUSH, GRADIENT, PING, PONG, PULL, END };
enum { GOODBYE = 12, REFUSED };
enum { HEAD = 48, BODY_MOST = 196, FRAMES = 2, CHUNK = 1 << 20 };
enum { SHUFFLE = 2, DATASET = 3 }; /* purposes of random streams */
enum { ASK_MS = 250, GIVE_UP_MS = 60000 };

/* ---- random streams ------------------------------------------------------------------------- */

struct stream {
    uint32_t key[2], counter[4], block[4];
    unsigned used;
};

static void philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c[4], k[2] = {key[0], key[1]};
    memcpy(c, counter, sizeof c);
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xD2511F53 * c[0], b = (uint64_t)0xCD9E8D57 * c[2];
        uint32_t next[4] = {(uint32_t)(b >> 32) ^ c[1] ^ k[0], (uint32_t)b,
                            (uint32_t)(a >> 32) ^ c[3] ^ k[1], (uint32_t)a};
        memcpy(c, next, sizeof c);
        k[0] += 0x9E3779B9;
        k[1] += 0xBB67AE85;
    }
    memcpy(out, c, sizeof c);
}

static struct stream stream_of(uint32_t purpose, uint64_t seed, uint32_t worker, uint64_t step)
{
    return (struct stream){
        .key = {(uint32_t)seed, (uint32_t)(seed >> 32)},
        .counter = {0, (uint32_t)step, (uint32_t)(step >> 32), purpose << 24 | worker},
        .used = 4};
}

static uint32_t word(struct stream *s)
{
    if (s->used == 4) {
        philox(s->counter, s->key, s->block);
        s->counter[0]++;
        s->used = 0;
    }
    return s->block[s->used++];
}

static uint32_t below(struct stream *s, uint32_t bound)
{
    uint64_t product;
    uint32_t threshold = -bound % bound;
    do
        product = (uint64_t)word(s) * bound;
    while ((uint32_t)product < threshold);
    return (uint32_t)(product >> 32);
}

static double uniform(struct stream *s)
{
    uint64_t high = word(s) >> 5, low = word(s) >> 6;
    return (double)(high * 67108864 + low) / 9007199254740992.0;
}

static double normal(struct stream *s)
{
    double radius = sqrt(-2 * log(1 - uniform(s)));
    return radius * cos(6.283185307179586 * uniform(s));
}

void foreign_worker_words(uint32_t purpose, uint64_t seed, uint32_t worker, uint64_t step,
                          uint32_t out[4])
{
    struct stream s = stream_of(purpose, seed, worker, step);
    for (int i = 0; i < 4; i++)
        out[i] = word(&s);
}

/* ---- the samples of a batch     -------------------------------------------------------------- */

static void permutation(const struct foreign_worker *f, uint64_t pass, uint32_t *out, uint32_t n)
{
    struct stream s = stream_of(SHUFFLE, f->seed, f->worker, pass);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t j = below(&s, i + 1);
        out[i] = out[j];
        out[j] = i;
    }
}

void foreign_worker_batch(const struct foreign_worker *f, uint64_t batch, uint32_t *indices)
{
    uint32_t shard = (f->rows - f->worker + f->workers - 1) / f->workers;
    uint32_t *order = calloc(shard, sizeof *order);
    uint64_t drawn = UINT64_MAX;
    for (uint32_t i = 0; order != NULL && i < f->batch; i++) {
        uint64_t position = batch * f->batch + i, pass = position / shard;
        if (pass != drawn)
            permutation(f, pass, order, shard);
        drawn = pass;
        indices[i] = f->worker + order[position % shard] * f->workers;
    }
    free(order);
}

/* ---- samples -------------------------------------------------------------------------------- */

struct problem {
    uint32_t unknowns;
    float *a, *b; /* [rows][unknowns], [rows] */
};

static float target(double b)
{
    const double step = 8.0 / 16777216;
    double level = floor((b + 4) / step + 0.5);
    level = level < 0 ? 0 : level > 16777215 ? 16777215 : level;
    return (float)(level * step - 4);
}

static bool draw_problem(const struct foreign_worker *f, struct problem *p)
{
    float scale = 1.0f / (255 * (float)f->size);
    p->unknowns = f->size * f->size;
    p->a = calloc((size_t)f->rows * p->unknowns, sizeof *p->a);
    p->b = calloc(f->rows, sizeof *p->b);
    double *x = calloc(p->unknowns, sizeof *x);
    if (p->a == NULL || p->b == NULL || x == NULL)
        return false;
    struct stream s = stream_of(DATASET, f->dataset_seed, 0, 0);
    for (uint32_t i = 0; i < p->unknowns; i++)
        x[i] = normal(&s);
    for (uint32_t n = 0; n < f->rows; n++) {
        double b = 0;
        s = stream_of(DATASET, f->dataset_seed, 1, n);
        for (uint32_t i = 0; i < p->unknowns; i++) {
            uint32_t byte = below(&s, 256);
            p->a[n * p->unknowns + i] = scale * (float)byte;
            b += (double)scale * byte * x[i];
        }
        p->b[n] = target(b + f->noise * normal(&s));
    }
    free(x);
    return true;
}

/* The gradient of the mean over the batch of (a·θ − b)²/2; returns that mean. */
static double gradient(const struct foreign_worker *f, const struct problem *p,
                       const uint32_t *indices, const float *parameters, float *out)
{
    double loss = 0;
    memset(out, 0, p->unknowns * sizeof *out);
    for (uint32_t i = 0; i < f->batch; i++) {
        const float *row = p->a + (size_t)indices[i] * p->unknowns;
        double residual = -(double)p->b[indices[i]];
        for (uint32_t j = 0; j < p->unknowns; j++)
            residual += (double)row[j] * (double)parameters[j];
        loss += residual * residual / 2 / f->batch;
        for (uint32_t j = 0; j < p->unknowns; j++)
            out[j] += (float)(residual * (double)row[j] / f->batch);
    }
    return loss;
}

/* ---- messages -------------------------------------------------------------------------------- */

struct session {
    const struct foreign_worker *f;
    void *context, *socket;
    uint64_t token, incarnation, next; /* next: sequence of the next push */
    const char *why;                   /* not NULL: the error of this session */
    bool ended;

    uint8_t head[HEAD + BODY_MOST]; /* the last message */
    zmq_msg_t floats;
    uint32_t type;

    uint64_t first_batch, version;
    bool welcomed, announced, released;
    size_t received; /* bytes of the parameters */
};

static void put(uint8_t *at, uint64_t value, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        at[i] = (uint8_t)(value >> (8 * i));
}

static uint64_t get(const uint8_t *at, size_t bytes)
{
    uint64_t value = 0;
    for (size_t i = 0; i < bytes; i++)
        value |= (uint64_t)at[i] << (8 * i);
    return value;
}

static void put_real(uint8_t *at, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    put(at, bits, 8);
}

static void send_message(struct session *s, uint32_t type, uint64_t sequence, const uint8_t *body,
                         uint32_t body_bytes, const void *floats, uint32_t float_bytes)
{
    uint8_t m[HEAD + BODY_MOST] = "GLAG";
    put(m + 4, 2, 2);
    put(m + 6, type, 2);
    put(m + 8, s->token, 8);
    put(m + 16, s->incarnation, 8);
    put(m + 24, sequence, 8);
    put(m + 32, s->f->worker, 4);
    put(m + 36, body_bytes, 4);
    put(m + 40, float_bytes, 4);
    memcpy(m + HEAD, body, body_bytes);
    zmq_send(s->socket, m, HEAD + body_bytes, floats != NULL ? ZMQ_SNDMORE : 0);
    if (floats != NULL)
        zmq_send(s->socket, floats, float_bytes, 0);
}

static void send_hello(struct session *s, uint32_t count)
{
    uint8_t body[48] = {0}; /* host and process id stay 0: not known */
    put(body, count, 8);
    put(body + 8, s->f->settings_hash, 8);
    put(body + 16, 1 + s->f->worker, 8); /* one process of this number: any nonce will do */
    put(body + 44, FRAMES, 4);
    send_message(s, HELLO, 0, body, sizeof body, NULL, 0);
}

static void send_ready(struct session *s)
{
    uint8_t body[4];
    put(body, FRAMES, 4);
    send_message(s, READY, s->next, body, sizeof body, NULL, 0);
}

static void send_ping(struct session *s)
{
    uint8_t body[4];
    put(body, 1, 4);
    send_message(s, PING, s->next, body, sizeof body, NULL, 0);
}

static void send_push(struct session *s, uint64_t sequence, const struct problem *p, double loss,
                      double compute_us, const float *vector)
{
    uint8_t body[68] = {0}, chunk[16];
    uint32_t size = p->unknowns * (uint32_t)sizeof(float);
    put(body, s->version, 8);
    put_real(body + 16, loss);
    put_real(body + 32, compute_us);
    put(body + 64, s->f->batch, 4);
    send_message(s, PUSH, sequence, body, sizeof body, NULL, 0);
    for (uint32_t at = 0; at < size; at += CHUNK) {
        put(chunk, s->version, 8);
        put(chunk + 8, at, 8);
        send_message(s, GRADIENT, sequence, chunk, sizeof chunk, (const uint8_t *)vector + at,
                     size - at < CHUNK ? size - at : CHUNK);
    }
}

static void send_goodbye(struct session *s)
{
    uint8_t body[196] = {0};
    send_message(s, GOODBYE, s->next, body, sizeof body, NULL, 0);
}

/* ---- a worker's life ------------------------------------------------------------------------- */

/* False: no message came within ASK_MS. */
static bool receive(struct session *s)
{
    int more = 0, size = zmq_recv(s->socket, s->head, sizeof s->head, 0);
    size_t more_size = sizeof more;
    if (size < 0)
        return false;
    zmq_getsockopt(s->socket, ZMQ_RCVMORE, &more, &more_size);
    zmq_msg_close(&s->floats);
    zmq_msg_init(&s->floats);
    if (more != 0)
        zmq_msg_recv(&s->floats, s->socket, 0);
    s->type = size >= HEAD ? (uint32_t)get(s->head + 6, 2) : 0;
    return true;
}

static void on_welcome(struct session *s)
{
    const uint8_t *body = s->head + HEAD;
    s->incarnation = get(s->head + 16, 8);
    s->first_batch = get(body + 80, 8);
    s->welcomed = true;
    send_ready(s);
}

static void on_release(struct session *s)
{
    if (get(s->head + 24, 8) != s->next || s->released)
        return; /* a repetition */
    s->version = get(s->head + HEAD, 8);
    s->announced = true;
    s->received = 0;
}

static void on_parameters(struct session *s, float *parameters, size_t size)
{
    size_t bytes = zmq_msg_size(&s->floats);
    if (get(s->head + 24, 8) != s->next || s->released)
        return;
    if (!s->announced || get(s->head + HEAD + 8, 8) != s->received || bytes > size - s->received) {
        s->announced = false;
        return;
    }
    memcpy((uint8_t *)parameters + s->received, zmq_msg_data(&s->floats), bytes);
    s->received += bytes;
    s->released = s->received == size;
}

/* On loopback no message is lost while its connection lives. So this worker may pull again, but it
 * never repeats a push. */
static void on_pong(struct session *s)
{
    bool was_released = get(s->head + HEAD + 8, 4) != 0;
    if (!s->released && get(s->head + HEAD, 8) == s->next && was_released)
        send_message(s, PULL, s->next, s->head, 0, NULL, 0);
}

static void on_message(struct session *s, float *parameters, size_t size)
{
    if (s->type == WELCOME)
        on_welcome(s);
    else if (s->type == RELEASE)
        on_release(s);
    else if (s->type == PARAMETERS)
        on_parameters(s, parameters, size);
    else if (s->type == PONG)
        on_pong(s);
    else if (s->type == END) {
        s->ended = true;
        s->why = get(s->head + HEAD, 4) == 0 ? NULL : (const char *)s->head + HEAD + 4;
    } else if (s->type == REFUSED)
        s->why = (const char *)s->head + HEAD + 4;
}

/* Receives messages until the worker is released with a whole vector, or the run ends. */
static void await_release(struct session *s, float *parameters, uint32_t count)
{
    int silent_ms = 0;
    s->announced = s->released = false;
    while (!s->released && !s->ended && s->why == NULL) {
        if (receive(s)) {
            silent_ms = 0;
            on_message(s, parameters, count * sizeof *parameters);
        } else if ((silent_ms += ASK_MS) >= GIVE_UP_MS) {
            s->why = "the server is silent";
        } else if (s->welcomed) {
            send_ping(s);
        } else {
            send_hello(s, count);
        }
    }
}

static void open_session(struct session *s)
{
    uint8_t name[16];
    const int ask = ASK_MS, linger = 2000;
    char password[17];
    s->token = strtoull(s->f->run_token, NULL, 16);
    snprintf(password, sizeof password, "%016llx", (unsigned long long)s->token);
    s->context = zmq_ctx_new();
    s->socket = zmq_socket(s->context, ZMQ_DEALER);
    /* The same routing id on every connection, so that the server recognises this worker. */
    memcpy(name, "foreign", 8);
    put(name + 8, (uint64_t)getpid(), 8);
    zmq_setsockopt(s->socket, ZMQ_ROUTING_ID, name, sizeof name);
    zmq_setsockopt(s->socket, ZMQ_PLAIN_USERNAME, "gradlag", 7);
    zmq_setsockopt(s->socket, ZMQ_PLAIN_PASSWORD, password, 16);
    zmq_setsockopt(s->socket, ZMQ_RCVTIMEO, &ask, sizeof ask);
    zmq_setsockopt(s->socket, ZMQ_LINGER, &linger, sizeof linger);
    zmq_msg_init(&s->floats);
    if (zmq_connect(s->socket, s->f->endpoint) != 0)
        s->why = "cannot connect";
}

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static void train(struct session *s, const struct problem *p, float *parameters, float *vector,
                  uint32_t *indices)
{
    send_hello(s, p->unknowns);
    for (;;) {
        await_release(s, parameters, p->unknowns);
        if (s->ended || s->why != NULL)
            break;
        double began = now_us();
        foreign_worker_batch(s->f, s->first_batch + s->next, indices);
        double loss = gradient(s->f, p, indices, parameters, vector);
        uint64_t sequence = s->next++;
        send_push(s, sequence, p, loss, now_us() - began, vector);
    }
    if (s->ended)
        send_goodbye(s);
}

int foreign_worker_train(const struct foreign_worker *f, const char **why)
{
    static char reason[BODY_MOST];
    struct session s = {.f = f};
    struct problem p = {0};
    uint32_t count = f->size * f->size;
    float *parameters = calloc(count, sizeof *parameters), *vector = calloc(count, sizeof *vector);
    uint32_t *indices = calloc(f->batch, sizeof *indices);
    open_session(&s);
    if (parameters == NULL || vector == NULL || indices == NULL || !draw_problem(f, &p))
        s.why = "no memory";
    else if (s.why == NULL)
        train(&s, &p, parameters, vector, indices);
    strncpy(reason, s.why != NULL ? s.why : "", sizeof reason - 1);
    *why = reason;
    zmq_msg_close(&s.floats);
    zmq_close(s.socket);
    zmq_ctx_term(s.context);
    free(p.a);
    free(p.b);
    free(parameters);
    free(vector);
    free(indices);
    return s.why == NULL ? 0 : 1;
}
