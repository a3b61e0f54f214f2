/*
 * bench_push_pull.c — parameter traffic between real processes: a server and workers that push the
 * gradient they have and pull the next parameters, as fast as they can.
 *
 * Everybody counts what it completes in common windows of time, `repeats` of them after a warm-up.
 * "exchange" is push + apply (momentum) + pull as one worker sees it; "together" the exchanges of
 * all workers per second. "one way" is what chunks of 1 MiB carry into the memory of the receiver,
 * nothing applied; "small" is a round trip of two control messages without any training.
 */
#include "experiments/bench.h"

#include "ps/channel.h"
#include "ps/client.h"
#include "ps/consistency.h"
#include "ps/correction.h"
#include "ps/damping.h"
#include "ps/server.h"
#include "worker/optimizer.h"
#include "worker/schedule.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

const struct option bench_push_pull_keys[] = {
    {.key = "repeats",
     .type = OPTION_INTEGER,
     .initial = "7",
     .minimum = 1,
     .maximum = BENCH_REPEATS,
     .help = "windows of time that are measured"},
    {.key = "window_s",
     .type = OPTION_REAL,
     .initial = "0.3",
     .minimum = 0.01,
     .maximum = 60,
     .help = "length of one window; longer where exchanges are slow"},
    {.key = "sizes",
     .type = OPTION_TEXT,
     .initial = "16,400000,25600000",
     .help = "floats, comma-separated"},
    {.key = "counts",
     .type = OPTION_TEXT,
     .initial = "1,2",
     .help = "numbers of workers, comma-separated"},
    {.key = "cases",
     .type = OPTION_TEXT,
     .initial = "small,one-way,shm,tcp",
     .help = "which of small, one-way, shm, ipc and tcp (the last two: payload in frames)"},
    {0},
};

/* What server and workers read. */
static const struct option training_table[] = {
    {.key = "workers", .type = OPTION_INTEGER, .initial = "1", .minimum = 1, .maximum = 64},
    {.key = "batch", .type = OPTION_INTEGER, .initial = "1", .minimum = 1, .maximum = 1},
    {.key = "optimizer",
     .type = OPTION_NAME,
     .initial = "momentum",
     .registry = &optimizer_registry},
    {.key = "momentum", .type = OPTION_REAL, .initial = "0.9", .maximum = 1},
    {.key = "weight_decay", .type = OPTION_REAL, .initial = "0", .maximum = 1},
    {.key = "lr", .type = OPTION_REAL, .initial = "1e-6", .maximum = 1},
    {.key = "schedule", .type = OPTION_NAME, .initial = "constant", .registry = &schedule_registry},
    {.key = "warmup_epochs", .type = OPTION_REAL, .initial = "0", .maximum = 1},
    {.key = "lr_scaling", .type = OPTION_NAME, .initial = "none", .names = "none|linear|sqrt"},
    {.key = "consistency",
     .type = OPTION_NAME,
     .initial = "asp",
     .registry = &consistency_registry},
    {.key = "damping", .type = OPTION_NAME, .initial = "none", .registry = &damping_registry},
    {.key = "correction", .type = OPTION_NAME, .initial = "none", .registry = &correction_registry},
    {.key = "curve", .type = OPTION_TEXT, .initial = ""},
    {.key = "payload", .type = OPTION_NAME, .initial = "auto", .names = "auto|shm|frames"},
    {.key = "timeout_s", .type = OPTION_REAL, .initial = "30", .minimum = 1, .maximum = 100},
    {.key = "on_lost", .type = OPTION_NAME, .initial = "stop", .names = "stop"},
    {.key = "checkpoint", .type = OPTION_TEXT, .initial = ""},
    {.key = "checkpoint_every", .type = OPTION_REAL, .initial = "0", .maximum = 0},
    {.key = "record", .type = OPTION_NAME, .initial = "all", .names = "all"},
    {0},
};

enum { WORKERS = 64, WARM_UP = 6, IN_WINDOW = 12 };
static const uint64_t TOKEN = 1;
static const double START_LIMIT_S = 30;

/* Shared by the processes of one case. */
struct board {
    volatile bool bound;
    char endpoint[256];
    volatile unsigned warm; /* workers past their warm-up */
    uint64_t slowest_ns;    /* of their mean exchanges in it */
    uint64_t window_ns;     /* set before `begin_ns` */
    volatile uint64_t begin_ns;
    struct window {
        uint64_t done, first_ns, last_ns;
    } window[WORKERS][BENCH_REPEATS];
    status code[WORKERS + 1];
    char message[WORKERS + 1][256];
};

struct scenario {
    const struct bench *b;
    struct board *board;
    options *settings; /* of server and workers */
    const char *listen;
    size_t count;
    unsigned workers;
    uint64_t window_ns;
};

typedef status role_function(const struct scenario *s, unsigned index);

/* ---- windows of time ----------------------------------------------------------------------------
 */

/* Everybody calls this once it is warm, after `exchanges` since `started_ns`; the last one sets the
 * time. A window holds some exchanges of the slowest. */
static void ready(const struct scenario *s, uint64_t started_ns, unsigned exchanges)
{
    struct board *board = s->board;
    uint64_t mine = (clock_ns() - started_ns) / exchanges;
    uint64_t slowest = __atomic_load_n(&board->slowest_ns, __ATOMIC_SEQ_CST);
    while (mine > slowest && !__atomic_compare_exchange_n(&board->slowest_ns, &slowest, mine, false,
                                                          __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        continue;
    if (__atomic_add_fetch(&board->warm, 1, __ATOMIC_SEQ_CST) == s->workers) {
        uint64_t enough = IN_WINDOW * board->slowest_ns;
        board->window_ns = s->window_ns > enough ? s->window_ns : enough;
        __atomic_store_n(&board->begin_ns, clock_ns() + 2000000, __ATOMIC_SEQ_CST);
    }
}

/* Books what was done just now. False: the last window is over. */
static bool book(const struct scenario *s, unsigned index)
{
    uint64_t now = clock_ns(), begin = s->board->begin_ns;
    if (begin == 0 || now < begin)
        return true;
    uint64_t window = (now - begin) / s->board->window_ns;
    if (window >= s->b->repeats)
        return false;
    struct window *mine = &s->board->window[index][window];
    if (mine->done++ == 0)
        mine->first_ns = now;
    mine->last_ns = now;
    return true;
}

/* ---- processes ----------------------------------------------------------------------------- */

static pid_t start(const struct scenario *s, unsigned index, role_function *role)
{
    fflush(NULL);
    pid_t pid = fork();
    if (pid != 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* a bench that is killed leaves nobody behind */
    status code = role(s, index);
    if (code == STOPPED)
        code = OK;
    s->board->code[index] = code;
    snprintf(s->board->message[index], sizeof s->board->message[index], "%s",
             code == OK ? "" : error_message());
    s->board->bound = true;
    _exit(code);
}

/* Waits for process `index`; an error unless it ended well. */
static status reap(const struct scenario *s, pid_t pid, unsigned index)
{
    int state = -1;
    const char *text = s->board->message[index];
    while (waitpid(pid, &state, 0) < 0 && errno == EINTR)
        continue;
    if (state == 0)
        return OK;
    return error_set(s->board->code[index] != OK ? s->board->code[index] : ERROR_PEER, __FILE__,
                     __LINE__, "bench: %s", text[0] != '\0' ? text : "a process died");
}

/* Server is number `workers`; it is there before the workers start. The first error is told. */
static status run_processes(const struct scenario *s, role_function *server, role_function *role)
{
    status result = OK;
    pid_t pids[WORKERS + 1] = {0};
    unsigned started = 0;
    pid_t serving = start(s, s->workers, server);
    if (serving < 0)
        FAIL(ERROR_OTHER, "bench: cannot fork: %s", strerror(errno));
    for (double until = clock_seconds() + START_LIMIT_S;
         !s->board->bound && clock_seconds() < until;)
        clock_sleep_until_ns(clock_ns() + 1000000);
    if (!s->board->bound)
        kill(serving, SIGKILL);
    if (!s->board->bound || s->board->code[s->workers] != OK)
        return reap(s, serving, s->workers);
    for (; started < s->workers; started++) {
        pids[started] = start(s, started, role);
        if (pids[started] < 0) {
            result = error_set(ERROR_OTHER, __FILE__, __LINE__, "bench: cannot fork: %s",
                               strerror(errno));
            break;
        }
    }
    for (unsigned w = 0; result != OK && w <= started; w++)
        kill(w < started ? pids[w] : serving, SIGKILL);
    for (unsigned w = 0; w <= started; w++) {
        status code = w < started ? reap(s, pids[w], w) : reap(s, serving, s->workers);
        result = result != OK ? result : code;
    }
done:
    return result;
}

static struct board *board_open(void)
{
    void *at =
        mmap(NULL, sizeof(struct board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return at == MAP_FAILED ? NULL : at;
}

/* ---- push + apply + pull ------------------------------------------------------------------- */

static struct board *bound_board;

static void bound(void *context UNUSED, const char *endpoint)
{
    snprintf(bound_board->endpoint, sizeof bound_board->endpoint, "%s", endpoint);
    __atomic_store_n(&bound_board->bound, true, __ATOMIC_SEQ_CST);
}

static status no_evaluation(void *context UNUSED, const float *parameters UNUSED,
                            struct evaluation *out)
{
    *out = (struct evaluation){NAN, NAN, NAN, NAN, NAN};
    return OK;
}

static status serve(const struct scenario *s, unsigned index UNUSED)
{
    status result = OK;
    float *initial = NULL;
    struct training_outcome outcome;
    bound_board = s->board;
    TRY(memory_new(&initial, s->count, sizeof *initial, "parameters"));
    TRY(ps_server_run(&(struct ps_server_options){.settings = s->settings,
                                                  .workers = s->workers,
                                                  .count = s->count,
                                                  .initial = initial,
                                                  .epoch_samples = 1,
                                                  .length = {.total_samples = UINT64_MAX / 2},
                                                  .run_token = TOKEN,
                                                  .endpoint = s->listen,
                                                  .bound = bound,
                                                  .hooks = {.evaluate = no_evaluation}},
                      &outcome));
done:
    memory_free(initial);
    return result;
}

static status push_and_pull(const struct scenario *s, unsigned index)
{
    status result = OK;
    ps_client *client = NULL;
    struct ps_release at;
    const struct ps_push push = {.loss = 1, .samples = 1};
    TRY(ps_client_open(&client,
                       &(struct ps_client_options){.settings = s->settings,
                                                   .endpoint = s->board->endpoint,
                                                   .run_token = TOKEN,
                                                   .worker = index,
                                                   .count = s->count},
                       &at));
    for (size_t i = 0; i < s->count; i++)
        at.gradient[i] = 1e-3f * (float)(i % 13);
    /* Every version slot is touched once before the clock runs. */
    const unsigned warm_up = WARM_UP + 2 * s->workers;
    uint64_t started = clock_ns();
    for (unsigned i = 0; i < warm_up && !at.finished; i++)
        TRY(ps_client_push_pull(client, &push, &at));
    ready(s, started, warm_up);
    while (!at.finished && book(s, index))
        TRY(ps_client_push_pull(client, &push, &at));
    ps_client_leave(client, STOPPED, "measured");
done:
    ps_client_close(&client);
    return result;
}

/* ---- without training ---------------------------------------------------------------------- */

static const struct wire_message PING = {.type = WIRE_PING, .run_token = TOKEN};

/* Receives whatever comes into memory of its own and answers pings, until a goodbye. */
static status sink(const struct scenario *s, unsigned index UNUSED)
{
    status result = OK;
    channel *c = NULL;
    uint8_t *into = NULL;
    struct channel_received r = {0};
    TRY(memory_new(&into, s->count, sizeof(float), "what is received"));
    TRY(channel_bind(
        &c, s->listen,
        &(struct channel_options){.timeout_ms = 1000, .may_spin = channel_may_spin(2)}));
    bound_board = s->board;
    bound(NULL, channel_endpoint(c));
    for (double until = clock_seconds() + START_LIMIT_S; r.message.type != WIRE_GOODBYE;) {
        if (channel_receive(c, &r) != CHANNEL_MESSAGE) {
            if (clock_seconds() > until)
                FAIL(ERROR_PEER, "bench: nothing arrives any more");
            channel_wait(c, -1, 100);
        } else if (r.message.type == WIRE_GRADIENT) {
            memcpy(into + r.message.chunk.offset, r.payload, r.message.payload_bytes);
        } else if (r.message.type == WIRE_PING) {
            (void)channel_send(c, &r.from, &PING, NULL);
        }
    }
done:
    channel_close(&c);
    memory_free(into);
    return result;
}

static status ping_once(channel *c)
{
    struct channel_received r;
    (void)channel_send(c, NULL, &PING, NULL);
    double until = 0;
    while (channel_receive(c, &r) != CHANNEL_MESSAGE) {
        if (until == 0)
            until = clock_seconds() + START_LIMIT_S;
        if (clock_seconds() > until)
            return error_set(ERROR_PEER, __FILE__, __LINE__, "bench: a ping was not answered");
        channel_wait(c, -1, 100);
    }
    return OK;
}

/* `count` floats in chunks (none for the small messages), then a ping whose answer says: received.
 */
static status source(const struct scenario *s, unsigned index)
{
    status result = OK;
    channel *c = NULL;
    uint8_t *from = NULL;
    const size_t size = s->count < 1000 ? 0 : s->count * sizeof(float);
    struct wire_message m = {.type = WIRE_GRADIENT, .run_token = TOKEN};
    TRY(memory_new(&from, s->count, sizeof(float), "what is sent"));
    TRY(channel_connect(
        &c, s->board->endpoint,
        &(struct channel_options){.timeout_ms = 1000, .may_spin = channel_may_spin(2)}));
    uint64_t started = clock_ns();
    for (unsigned i = 1;; i++) {
        for (size_t at = 0; at < size; at += m.payload_bytes) {
            m.chunk.offset = at;
            m.payload_bytes =
                (uint32_t)(size - at < WIRE_CHUNK_BYTES ? size - at : WIRE_CHUNK_BYTES);
            (void)channel_send(c, NULL, &m, from + at);
        }
        TRY(ping_once(c));
        if (i == WARM_UP)
            ready(s, started, WARM_UP);
        if (i > WARM_UP && !book(s, index))
            break;
    }
done:
    if (c != NULL) {
        struct wire_message bye = {.type = WIRE_GOODBYE, .run_token = TOKEN};
        (void)channel_send(c, NULL, &bye, NULL);
    }
    channel_close(&c);
    memory_free(from);
    return result;
}

/* ---- cases --------------------------------------------------------------------------------- */

/* Exchanges per second, from the first one completed in the window to the last. */
static double rate_in(const struct window *w)
{
    return w->done < 2 ? 0 : (double)(w->done - 1) * 1e9 / (double)(w->last_ns - w->first_ns);
}

static status report(const struct scenario *s, const char *name, bool one_way)
{
    status result = OK;
    char what[96];
    const double megabytes = (double)s->count * sizeof(float) * 1e-6;
    struct bench_series each = {0}, together = {0}, gigabytes = {0};
    if (s->count < 1000)
        snprintf(what, sizeof what, "%s %u worker%s", name, s->workers, s->workers > 1 ? "s" : "");
    else
        snprintf(what, sizeof what, "%s %.4g MB %u worker%s", name, megabytes, s->workers,
                 s->workers > 1 ? "s" : "");
    for (unsigned i = 0; i < s->b->repeats; i++) {
        double rate = 0;
        for (unsigned w = 0; w < s->workers; w++)
            rate += rate_in(&s->board->window[w][i]);
        if (!(rate > 0))
            FAIL(ERROR_USAGE,
                 "bench push-pull: %s: no worker made two exchanges within %.3g s; raise window_s",
                 what, (double)s->board->window_ns * 1e-9);
        bench_add(&each, 1e3 * s->workers / rate);
        bench_add(&together, rate);
        bench_add(&gigabytes, rate * megabytes * 1e-3);
    }
    if (one_way) {
        bench_report(s->b, what, "GB/s", &gigabytes);
        goto done;
    }
    bench_report(s->b, what, "ms", &each);
    if (s->workers > 1)
        bench_report(s->b, strcat(what, " together"), "1/s", &together);
done:
    return result;
}

struct kind {
    const char *name, *label, *payload, *listen;
    bool training;
};

static const struct kind kinds[] = {
    {"small", "round trip, ipc", "frames", "ipc://@gradlag-bench-", false},
    {"one-way", "one way, tcp", "frames", "tcp://127.0.0.1:*", false},
    {"shm", "exchange, shm", "shm", "ipc://@gradlag-bench-", true},
    {"ipc", "exchange, ipc", "frames", "ipc://@gradlag-bench-", true},
    {"tcp", "exchange, tcp", "frames", "tcp://127.0.0.1:*", true},
};

static status run_case(const struct bench *b, const struct kind *k, size_t count, unsigned workers)
{
    status result = OK;
    char listen[64], number[16];
    struct scenario s = {.b = b, .count = count, .workers = workers, .listen = listen};
    s.window_ns = (uint64_t)(options_real(b->settings, "window_s") * 1e9);
    snprintf(listen, sizeof listen, k->listen[0] == 'i' ? "%s%d" : "%s", k->listen, (int)getpid());
    snprintf(number, sizeof number, "%u", workers);
    TRY(options_open(&s.settings));
    TRY(options_declare(s.settings, training_table));
    TRY(options_set(s.settings, "workers", number, "bench"));
    TRY(options_set(s.settings, "payload", k->payload, "bench"));
    s.board = board_open();
    if (s.board == NULL)
        FAIL(ERROR_OTHER, "bench: out of memory");
    TRY(run_processes(&s, k->training ? serve : sink, k->training ? push_and_pull : source));
    TRY(report(&s, k->label, strcmp(k->name, "one-way") == 0));
done:
    if (s.board != NULL)
        munmap(s.board, sizeof *s.board);
    options_close(&s.settings);
    return result;
}

static status run_kind(const struct bench *b, const struct kind *k)
{
    status result = OK;
    char item[64], workers[64];
    const char *sizes = options_text(b->settings, "sizes");
    if (!k->training)
        return run_case(b, k, strcmp(k->name, "small") == 0 ? 1 : 25600000, 1);
    while (bench_next_item(&sizes, item)) {
        const char *counts = options_text(b->settings, "counts");
        size_t count = strtoull(item, NULL, 10);
        while (bench_next_item(&counts, workers)) {
            unsigned long number = strtoul(workers, NULL, 10);
            if (count == 0 || count > 1UL << 32 || number == 0 || number > WORKERS)
                FAIL(ERROR_USAGE, "bench push-pull: sizes are 1 to 2^32 floats, counts 1 to %d",
                     WORKERS);
            TRY(run_case(b, k, count, (unsigned)number));
        }
    }
done:
    return result;
}

status bench_push_pull(int argc, char **argv)
{
    status result = OK;
    struct bench b;
    char item[64];
    TRY(bench_open(&b, "push-pull", bench_push_pull_keys, argc, argv));
    memory_keep_large_blocks();
    const char *cases = options_text(b.settings, "cases");
    while (bench_next_item(&cases, item)) {
        const struct kind *k = NULL;
        for (size_t i = 0; i < COUNT_OF(kinds); i++)
            if (strcmp(kinds[i].name, item) == 0)
                k = &kinds[i];
        if (k == NULL)
            FAIL(ERROR_USAGE,
                 "bench push-pull: there is no case '%s': small, one-way, shm, ipc, tcp", item);
        TRY(run_kind(&b, k));
    }
done:
    bench_close(&b);
    return result;
}
