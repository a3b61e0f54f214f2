/*
 * bench_push_pull.c — `gradlag bench push-pull`: server processes, and worker processes that push a
 * gradient and pull the next parameters as fast as possible.
 *
 * After a warm-up all workers count exchanges in common windows of time, `repeats` of them. An
 * "exchange" is push + apply (momentum) + pull, as one worker sees it; "processor" is the processor
 * time of the worker's process for one exchange; "together" is the rate of all workers.
 *
 * bench_links.c has the cases without training. "one way" sends chunks of 1 MiB into the memory of
 * the receiver. "one way, by default" sends one ZeroMQ message with default options (plain_link.h),
 * "one way, raw" the same chunks without ZeroMQ (raw_link.h).
 * "small" is a round trip of two control messages.
 */
#include "experiments/bench/bench_push_pull.h"

#include "base/clock.h"
#include "base/memory.h"
#include "base/text.h"
#include "experiments/config/config.h"
#include "ps/client.h"
#include "ps/server/server.h"

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
     .help = "number of measured windows of time"},
    {.key = "window_s",
     .type = OPTION_REAL,
     .initial = "0.3",
     .minimum = 0.01,
     .maximum = 60,
     .help = "length of one window in seconds; longer if exchanges are slow"},
    {.key = "sizes",
     .type = OPTION_TEXT,
     .initial = "16,400000,25600000",
     .help = "floats, comma-separated"},
    {.key = "counts",
     .type = OPTION_TEXT,
     .initial = "1,2",
     .help = "numbers of workers, comma-separated"},
    {.key = "servers",
     .type = OPTION_TEXT,
     .initial = "1",
     .help = "numbers of servers, comma-separated"},
    {.key = "read",
     .type = OPTION_NAME,
     .initial = "snapshot",
     .names = "snapshot|torn",
     .help = "with several servers: one version of all slices, or the newest slice of each server"},
    {.key = "cases",
     .type = OPTION_TEXT,
     .initial = "small,one-way,one-way-default,one-way-raw,shm,tcp",
     .help =
         "comma-separated: small, one-way, one-way-default, one-way-raw, shm, ipc, tcp (ipc and "
         "tcp: payload in frames)"},
    {.key = "one_way_size",
     .type = OPTION_INTEGER,
     .initial = "25600000",
     .minimum = LINK_LEAST,
     .maximum = 1e9,
     .help = "floats of one message in the one-way cases"},
    {0},
};

void push_pull_endpoint(const struct scenario *s, unsigned server, char out[ENDPOINT_BYTES])
{
    snprintf(out, ENDPOINT_BYTES, s->listen[0] == 'i' ? "%s-%u" : "%s", s->listen, server);
}

void push_pull_listens(struct exchange_board *board, unsigned server, const char *endpoint)
{
    snprintf(board->endpoint[server], ENDPOINT_BYTES, "%s", endpoint);
    __atomic_store_n(&board->bound[server], true, __ATOMIC_SEQ_CST);
}

/* ---- windows of time ----------------------------------------------------------------------------
 */

/* The last worker that calls this sets the start of the first window. A window is long enough for
 * IN_WINDOW exchanges of the slowest worker. */
void push_pull_ready(const struct scenario *s, uint64_t started_ns, unsigned exchanges)
{
    struct exchange_board *board = s->board;
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

bool push_pull_count(const struct scenario *s, unsigned index)
{
    uint64_t now = clock_ns(), begin = s->board->begin_ns;
    double cpu = clock_process_cpu_seconds();
    if (begin == 0 || now < begin)
        return true;
    uint64_t window = (now - begin) / s->board->window_ns;
    if (window >= s->b->repeats)
        return false;
    struct window *mine = &s->board->window[index][window];
    if (mine->done++ == 0) {
        mine->first_ns = now;
        mine->first_cpu = cpu;
    }
    mine->last_ns = now;
    mine->last_cpu = cpu;
    return true;
}

/* ---- processes ----------------------------------------------------------------------------- */

static pid_t start(const struct scenario *s, unsigned index, role_function *role)
{
    fflush(NULL);
    pid_t pid = fork();
    if (pid != 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* no process outlives a killed benchmark */
    status code = role(s, index);
    if (code == STOPPED)
        code = OK;
    s->board->code[index] = code;
    snprintf(s->board->message[index], sizeof s->board->message[index], "%s",
             code == OK ? "" : error_message());
    if (index >= s->workers)
        s->board->bound[index - s->workers] = true;
    _exit(code);
}

/* Sets and returns the error of process `index`, which ended with an error. */
static status error_of(const struct scenario *s, unsigned index)
{
    const char *text = s->board->message[index];
    return error_set(s->board->code[index] != OK ? s->board->code[index] : ERROR_PEER, __FILE__,
                     __LINE__, "bench push-pull: %s", text[0] != '\0' ? text : "a process died");
}

static void kill_all(const pid_t pids[], unsigned all)
{
    for (unsigned i = 0; i < all; i++)
        if (pids[i] > 0)
            kill(pids[i], SIGKILL);
}

/* Waits for all processes. The first one that fails ends the others. */
static status reap(const struct scenario *s, pid_t pids[], unsigned all, status result)
{
    int state = 0;
    pid_t ended;
    while ((ended = waitpid(-1, &state, 0)) > 0 || (ended < 0 && errno == EINTR)) {
        unsigned i = 0;
        while (i < all && pids[i] != ended)
            i++;
        if (ended < 0 || i == all)
            continue;
        pids[i] = 0;
        if (state != 0 && result == OK) {
            result = error_of(s, i);
            kill_all(pids, all);
        }
    }
    return result;
}

/* Starts process `index`; waits until a server listens. */
static status start_one(const struct scenario *s, unsigned index, role_function *role, pid_t *pid)
{
    status result = OK;
    const bool serves = index >= s->workers;
    volatile bool *is_bound = serves ? &s->board->bound[index - s->workers] : NULL;
    *pid = start(s, index, role);
    if (*pid < 0)
        FAIL(ERROR_OTHER, "bench push-pull: cannot start a process: %s", strerror(errno));
    for (double until = clock_seconds() + START_LIMIT_S;
         serves && !*is_bound && clock_seconds() < until;)
        clock_sleep_until_ns(clock_ns() + 1000000);
    if (serves && !*is_bound)
        FAIL(ERROR_PEER, "bench push-pull: server %u did not listen within %d s",
             index - s->workers, START_LIMIT_S);
    if (serves && s->board->code[index] != OK)
        FAIL(s->board->code[index], "bench push-pull: %s", s->board->message[index]);
done:
    return result;
}

/* Starts the servers first. Returns the first error. */
static status run_processes(const struct scenario *s, role_function *server, role_function *role)
{
    status result = OK;
    pid_t pids[WORKERS + SERVERS] = {0};
    const unsigned all = s->workers + s->servers;
    for (unsigned i = 0; result == OK && i < all; i++) {
        unsigned index = (s->workers + i) % all;
        result = start_one(s, index, index < s->workers ? role : server, &pids[index]);
    }
    if (result != OK)
        kill_all(pids, all);
    return reap(s, pids, all, result);
}

static struct exchange_board *board_open(void)
{
    void *at = mmap(NULL, sizeof(struct exchange_board), PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return at == MAP_FAILED ? NULL : at;
}

/* ---- push + apply + pull ------------------------------------------------------------------- */

static struct exchange_board *bound_board;
static unsigned bound_server; /* the index of this server */

static void bound(void *context UNUSED, const char *endpoint)
{
    push_pull_listens(bound_board, bound_server, endpoint);
}

static status no_evaluation(void *context UNUSED, const float *parameters UNUSED,
                            unsigned threads UNUSED, struct evaluation *out)
{
    *out = (struct evaluation){NAN, NAN, NAN, NAN, NAN, NAN};
    return OK;
}

static status serve(const struct scenario *s, unsigned index)
{
    status result = OK;
    float *initial = NULL;
    struct training_outcome outcome;
    char listen[ENDPOINT_BYTES];
    bound_board = s->board;
    bound_server = index - s->workers;
    push_pull_endpoint(s, bound_server, listen);
    TRY(memory_new(&initial, s->count, sizeof *initial, "parameters"));
    TRY(ps_server_run(&(struct ps_server_options){.settings = s->settings,
                                                  .workers = s->workers,
                                                  .server = bound_server,
                                                  .leader = s->board->endpoint[0],
                                                  .count = s->count,
                                                  .initial = initial,
                                                  .epoch_samples = 1,
                                                  .length = {.total_samples = UINT64_MAX / 2},
                                                  .run_token = TOKEN,
                                                  .endpoint = listen,
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
    struct text places = {0};
    const struct ps_push push = {.loss = 1, .samples = 1};
    for (unsigned i = 0; i < s->servers; i++)
        text_add(&places, "%s%s", i > 0 ? "," : "", s->board->endpoint[i]);
    TRY(ps_client_open(&client,
                       &(struct ps_client_options){.settings = s->settings,
                                                   .endpoint = places.at,
                                                   .run_token = TOKEN,
                                                   .worker = index,
                                                   .count = s->count},
                       &at));
    for (size_t i = 0; i < s->count; i++)
        at.gradient[i] = 1e-3f * (float)(i % 13);
    /* The warm-up touches every version slot. */
    const unsigned warm_up = WARM_UP + 2 * s->workers;
    uint64_t started = clock_ns();
    for (unsigned i = 0; i < warm_up && !at.finished; i++)
        TRY(ps_client_push_pull(client, &push, &at));
    push_pull_ready(s, started, warm_up);
    while (!at.finished && push_pull_count(s, index))
        TRY(ps_client_push_pull(client, &push, &at));
    ps_client_leave(client, STOPPED, "measured");
done:
    ps_client_close(&client);
    text_free(&places);
    return result;
}

/* ---- cases --------------------------------------------------------------------------------- */

/* Exchanges per second, from the first completed one in the window to the last. */
static double rate_in(const struct window *w)
{
    return w->done < 2 ? 0 : (double)(w->done - 1) * 1e9 / (double)(w->last_ns - w->first_ns);
}

/* Processor time of a worker's process for one exchange, in ms. */
static double work_in(const struct window *w)
{
    return w->done < 2 ? 0 : 1e3 * (w->last_cpu - w->first_cpu) / (double)(w->done - 1);
}

struct push_pull_case {
    const char *name, *label, *payload, *listen;
    role_function *server, *worker;
};

static bool trains(const struct push_pull_case *k)
{
    return k->server == serve;
}

/* "exchange, shm 1.6 MB 2 workers 4 servers" */
static void describe(const struct scenario *s, const struct push_pull_case *k, char out[96])
{
    const double megabytes = (double)s->count * sizeof(float) * 1e-6;
    int length = snprintf(out, 96, "%s", k->label);
    if (s->count >= 1000)
        length += snprintf(out + length, 96 - (size_t)length, " %.4g MB", megabytes);
    length += snprintf(out + length, 96 - (size_t)length, " %u worker%s", s->workers,
                       s->workers > 1 ? "s" : "");
    if (s->servers > 1)
        snprintf(out + length, 96 - (size_t)length, " %u servers", s->servers);
}

static status report(const struct scenario *s, const struct push_pull_case *k)
{
    status result = OK;
    char what[96], more[112];
    const double megabytes = (double)s->count * sizeof(float) * 1e-6;
    struct bench_series each = {0}, work = {0}, together = {0}, gigabytes = {0};
    describe(s, k, what);
    for (unsigned i = 0; i < s->b->repeats; i++) {
        double rate = 0, worked_ms = 0;
        for (unsigned w = 0; w < s->workers; w++) {
            rate += rate_in(&s->board->window[w][i]);
            worked_ms += work_in(&s->board->window[w][i]) / s->workers;
        }
        if (!(rate > 0))
            FAIL(ERROR_USAGE,
                 "bench push-pull: %s: no worker completed two exchanges within %.3g s; raise "
                 "window_s",
                 what, (double)s->board->window_ns * 1e-9);
        bench_add(&each, 1e3 * s->workers / rate);
        bench_add(&work, worked_ms);
        bench_add(&together, rate);
        bench_add(&gigabytes, rate * megabytes * 1e-3);
    }
    if (!trains(k) && s->count >= LINK_LEAST) {
        bench_report(s->b, what, "GB/s", &gigabytes);
        goto done;
    }
    bench_report(s->b, what, "ms", &each);
    snprintf(more, sizeof more, "%s, processor", what);
    if (trains(k))
        bench_report(s->b, more, "ms", &work);
    snprintf(more, sizeof more, "%s together", what);
    if (s->workers > 1)
        bench_report(s->b, more, "1/s", &together);
done:
    return result;
}

static const char SOME_PATH[] = "ipc://@gradlag-bench-", SOME_PORT[] = "tcp://127.0.0.1:*";
static const struct push_pull_case kinds[] = {
    {"small", "round trip, ipc", "frames", SOME_PATH, link_sink, link_source},
    {"one-way", "one way, tcp", "frames", SOME_PORT, link_sink, link_source},
    {"one-way-default", "one way, tcp, by default", "frames", SOME_PORT, link_plain_sink,
     link_plain_source},
    {"one-way-raw", "one way, tcp, raw", "frames", SOME_PORT, link_raw_sink, link_raw_source},
    {"shm", "exchange, shm", "shm", SOME_PATH, serve, push_and_pull},
    {"ipc", "exchange, ipc", "frames", SOME_PATH, serve, push_and_pull},
    {"tcp", "exchange, tcp", "frames", SOME_PORT, serve, push_and_pull},
};

static status run_case(const struct bench *b, const struct push_pull_case *k, size_t count,
                       unsigned workers, unsigned servers)
{
    status result = OK;
    char listen[64], chosen[4][32];
    struct scenario s = {
        .b = b, .count = count, .workers = workers, .servers = servers, .listen = listen};
    s.window_ns = (uint64_t)(options_real(b->settings, "window_s") * 1e9);
    snprintf(listen, sizeof listen, k->listen[0] == 'i' ? "%s%d" : "%s", k->listen, (int)getpid());
    snprintf(chosen[0], sizeof chosen[0], "workers=%u", workers);
    snprintf(chosen[1], sizeof chosen[1], "servers=%u", servers);
    snprintf(chosen[2], sizeof chosen[2], "read=%s", options_text(b->settings, "read"));
    snprintf(chosen[3], sizeof chosen[3], "payload=%s", k->payload);
    TRY(config_compose_texts(
        &s.settings,
        (const char *const[]){"batch=1", "lr=1e-6", "schedule=constant", "warmup_epochs=0", NULL},
        (const char *const[]){chosen[0], chosen[1], chosen[2], chosen[3], NULL}, "bench"));
    s.board = board_open();
    if (s.board == NULL)
        FAIL(ERROR_OTHER, "bench push-pull: out of memory for the board");
    TRY(run_processes(&s, k->server, k->worker));
    TRY(report(&s, k));
done:
    if (s.board != NULL)
        munmap(s.board, sizeof *s.board);
    options_close(&s.settings);
    return result;
}

static bool next_number(const char **list, int64_t most, int64_t *out, bool *valid)
{
    char item[64];
    const bool any = bench_next_item(list, item);
    *valid = *valid && (!any || (text_to_integer(item, out) && *out >= 1 && *out <= most));
    return any && *valid;
}

static status check_numbers(const struct bench *b)
{
    status result = OK;
    bool valid = true;
    int64_t size, number;
    const char *sizes = options_text(b->settings, "sizes");
    const char *counts = options_text(b->settings, "counts");
    while (next_number(&sizes, 1L << 32, &size, &valid)) {
        const char *servers = options_text(b->settings, "servers");
        while (next_number(&servers, size < SERVERS ? size : SERVERS, &number, &valid))
            continue;
    }
    while (next_number(&counts, WORKERS, &number, &valid))
        continue;
    if (!valid)
        FAIL(ERROR_USAGE,
             "bench push-pull: sizes are 1 to 2^32 floats, counts 1 to %d, servers 1 to %d, as "
             "whole numbers, and a size is no smaller than the number of servers",
             WORKERS, SERVERS);
done:
    return result;
}

/* All combinations of numbers of workers and servers. */
static status run_counts(const struct bench *b, const struct push_pull_case *k, size_t count)
{
    status result = OK;
    char item[64];
    const char *counts = options_text(b->settings, "counts");
    while (bench_next_item(&counts, item)) {
        const char *servers = options_text(b->settings, "servers");
        const unsigned workers = (unsigned)strtoul(item, NULL, 10);
        while (bench_next_item(&servers, item))
            TRY(run_case(b, k, count, workers, (unsigned)strtoul(item, NULL, 10)));
    }
done:
    return result;
}

static status run_kind(const struct bench *b, const struct push_pull_case *k)
{
    status result = OK;
    char item[64];
    const char *sizes = options_text(b->settings, "sizes");
    if (!trains(k))
        return run_case(b, k,
                        strcmp(k->name, "small") == 0
                            ? 1
                            : (size_t)options_integer(b->settings, "one_way_size"),
                        1, 1);
    while (bench_next_item(&sizes, item))
        TRY(run_counts(b, k, strtoull(item, NULL, 10)));
done:
    return result;
}

status bench_push_pull(int argc, char **argv)
{
    status result = OK;
    struct bench b;
    char item[64];
    TRY(bench_open(&b, "push-pull", bench_push_pull_keys, argc, argv));
    TRY(check_numbers(&b));
    const char *cases = options_text(b.settings, "cases");
    while (bench_next_item(&cases, item)) {
        const struct push_pull_case *k = NULL;
        for (size_t i = 0; i < COUNT_OF(kinds); i++)
            if (strcmp(kinds[i].name, item) == 0)
                k = &kinds[i];
        if (k == NULL)
            FAIL(ERROR_USAGE,
                 "bench push-pull: there is no case '%s'; cases are small, one-way, "
                 "one-way-default, one-way-raw, shm, ipc, tcp",
                 item);
        TRY(run_kind(&b, k));
    }
done:
    bench_close(&b);
    return result;
}
