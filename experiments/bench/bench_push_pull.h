/*
 * bench_push_pull.h — the processes of one case of `gradlag bench push-pull`, and the board in
 * shared memory through which they synchronise. bench_push_pull.c starts them and reports their
 * counts.
 */
#ifndef GRADLAG_EXPERIMENTS_BENCH_BENCH_PUSH_PULL_H
#define GRADLAG_EXPERIMENTS_BENCH_BENCH_PUSH_PULL_H

#include "experiments/bench/bench.h"

enum {
    WORKERS = 64,
    SERVERS = 16,
    WARM_UP = 6,
    IN_WINDOW = 12,
    ENDPOINT_BYTES = 96,
    START_LIMIT_S = 30
};
static const uint64_t TOKEN = 1;

/* Shared by the processes of one case. */
struct exchange_board {
    volatile bool bound[SERVERS];
    char endpoint[SERVERS][ENDPOINT_BYTES];
    volatile unsigned warm; /* number of workers that have ended their warm-up */
    uint64_t slowest_ns;    /* the largest of their mean exchange times */
    uint64_t window_ns;     /* set before `begin_ns` */
    volatile uint64_t begin_ns;
    struct window {
        uint64_t done, first_ns, last_ns;
        double first_cpu, last_cpu; /* processor seconds of the process */
    } window[WORKERS][BENCH_REPEATS];
    status code[WORKERS + SERVERS]; /* workers, then servers */
    char message[WORKERS + SERVERS][256];
};

struct scenario {
    const struct bench *b;
    struct exchange_board *board;
    options *settings;  /* of servers and workers */
    const char *listen; /* see push_pull_endpoint() */
    size_t count;
    unsigned workers, servers;
    uint64_t window_ns;
};

/* The body of one process; index: workers from 0, then servers. */
typedef status role_function(const struct scenario *s, unsigned index);

/* The endpoint on which server `server` shall listen. */
void push_pull_endpoint(const struct scenario *s, unsigned server, char out[ENDPOINT_BYTES]);
/* Publishes the endpoint on which a server listens; workers may start then. */
void push_pull_listens(struct exchange_board *board, unsigned server, const char *endpoint);
/* Each worker calls this at the end of its warm-up: `exchanges` since `started_ns`. */
void push_pull_ready(const struct scenario *s, uint64_t started_ns, unsigned exchanges);
/* Counts an exchange of worker `index`, completed now. False: the last window is over. */
bool push_pull_count(const struct scenario *s, unsigned index);

/* bench_links.c: the source sends `count` floats and waits for an answer. A channel and a raw
 * connection transfer them in chunks, a plain link in one message. With fewer floats than
 * LINK_LEAST the channel sends only a ping. */
enum { LINK_LEAST = 1000 };
role_function link_sink, link_source, link_plain_sink, link_plain_source, link_raw_sink,
    link_raw_source;

#endif
