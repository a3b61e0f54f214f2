/*
 * bench_push_pull.h — the processes of one case of `gradlag bench push-pull`, and the board in
 * shared memory where they meet. bench_push_pull.c starts them and judges what they counted.
 */
#ifndef GRADLAG_EXPERIMENTS_BENCH_BENCH_PUSH_PULL_H
#define GRADLAG_EXPERIMENTS_BENCH_BENCH_PUSH_PULL_H

#include "experiments/bench/bench.h"

enum { WORKERS = 64, SERVERS = 16, WARM_UP = 6, IN_WINDOW = 12, PLACE = 96, START_LIMIT_S = 30 };
static const uint64_t TOKEN = 1;

/* Shared by the processes of one case. */
struct exchange_board {
    volatile bool bound[SERVERS];
    char endpoint[SERVERS][PLACE];
    volatile unsigned warm; /* workers past their warm-up */
    uint64_t slowest_ns;    /* of their mean exchanges in it */
    uint64_t window_ns;     /* set before `begin_ns` */
    volatile uint64_t begin_ns;
    struct window {
        uint64_t done, first_ns, last_ns;
        double first_cpu, last_cpu; /* seconds of the process's own */
    } window[WORKERS][BENCH_REPEATS];
    status code[WORKERS + SERVERS]; /* workers, then servers */
    char message[WORKERS + SERVERS][256];
};

struct scenario {
    const struct bench *b;
    struct exchange_board *board;
    options *settings;  /* of server and workers */
    const char *listen; /* see push_pull_place() */
    size_t count;
    unsigned workers, servers;
    uint64_t window_ns;
};

/* What one process does: workers are 0 to workers − 1, servers come after them. */
typedef status role_function(const struct scenario *s, unsigned index);

/* Where server `server` is to listen. */
void push_pull_place(const struct scenario *s, unsigned server, char out[PLACE]);
/* It does, there: workers may start. */
void push_pull_listens(struct exchange_board *board, unsigned server, const char *endpoint);
/* Every worker calls this once it is warm, after `exchanges` since `started_ns`. */
void push_pull_ready(const struct scenario *s, uint64_t started_ns, unsigned exchanges);
/* Books what worker `index` did just now. False: the last window is over. */
bool push_pull_book(const struct scenario *s, unsigned index);

/* bench_links.c: count floats one way, in chunks through a channel or as one message through a
 * plain link, and an answer. Fewer floats than LINK_LEAST: the answer alone. */
enum { LINK_LEAST = 1000 };
role_function link_sink, link_source, link_plain_sink, link_plain_source;

#endif
