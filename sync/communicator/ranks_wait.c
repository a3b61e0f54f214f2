/* ranks_wait.c — waiting for other ranks with a limit: at the gate, or for messages. */
#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "base/thread.h"
#include "sync/communicator/ranks.h"

#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SPIN_NS 200000u /* a wake-up across cores costs tens of microseconds */
/* A waiting rank writes the time several times a second. A rank counts as not waiting if its time
 * is older than this, and older than half the wait of the rank that asks. On a busy machine a
 * second may pass between two writes. */
#define NOT_WAITING_NS 1000000000u
#define GAVE_UP        UINT64_MAX /* instead of a time: the wait of this rank timed out */

/* Invariant: `arrived` counts the ranks that are at the gate of round `round`. The last rank sets
 * it to 0 and then raises `round`. No rank arrives again before it has seen the new round. */
struct gate_page {
    _Alignas(64) atomic_uint arrived;
    _Alignas(64) atomic_uint round;    /* the futex */
    _Alignas(64) atomic_uint sleepers; /* no system call if it is 0 */
    atomic_uint vetoed[2];             /* [round % 2]: round + 1 if a rank voted no */
    struct {
        _Alignas(64) atomic_uint
            round; /* the next round of this rank; it equals the gate's if the rank is missing */
        unsigned world;          /* its rank in MPI_COMM_WORLD */
        atomic_ullong waited_at; /* clock_ns() when it last wrote that it waits */
    } rank[];
};

status gate_open(struct gate *g, MPI_Comm node)
{
    status result = OK;
    int rank, size, world, unit;
    MPI_Aint bytes;
    struct gate_page *page;

    MPI_Comm_rank(node, &rank);
    MPI_Comm_size(node, &size);
    MPI_Comm_rank(MPI_COMM_WORLD, &world);
    size_t all = sizeof *page + (size_t)size * sizeof page->rank[0];
    TRY(ranks_check(MPI_Win_allocate_shared(rank == 0 ? (MPI_Aint)all + 64 : 0, 1, MPI_INFO_NULL,
                                            node, &page, &g->window),
                    "shared memory for the gate (is /dev/shm full?)"));
    TRY(ranks_check(MPI_Win_shared_query(g->window, 0, &bytes, &unit, &page), "the gate"));
    page = ranks_aligned(page);
    if (rank == 0)
        memset(page, 0, all);
    TRY(ranks_check(MPI_Barrier(node), "opening the gate"));
    page->rank[rank].world = (unsigned)world;
    TRY(ranks_check(MPI_Barrier(node), "opening the gate"));
    g->index = (unsigned)rank;
    g->size = (unsigned)size;
    g->page = page;
done:
    return result;
}

void gate_close(const communicator *c, struct gate *g)
{
    ranks_free_window(c, &g->window);
    g->page = NULL;
}

/* Whether the i-th rank of a gate has arrived in the current round. */
static bool has_arrived(const struct gate *g, unsigned i)
{
    return atomic_load(&g->page->rank[i].round) != atomic_load(&g->page->round);
}

/* The ranks that one rank waits for. */
struct missing {
    const struct gate *gate;
    bool at_gate;       /* the rank waits at the gate, not for a message */
    uint64_t before_ns; /* a rank that last wrote its time before this does not wait: it died, hangs
                           or computes */
};

static bool is_missing(const struct missing *m, unsigned i)
{
    const struct gate *g = m->gate;
    const bool awaited = m->at_gate ? !has_arrived(g, i) : i != g->index;
    return awaited && atomic_load(&g->page->rank[i].waited_at) < m->before_ns;
}

/* The first missing rank from `i` on, or the size of the gate. */
static unsigned next_missing(const struct missing *m, unsigned i)
{
    const unsigned size = m->gate->page != NULL ? m->gate->size : 0;
    while (i < size && !is_missing(m, i))
        i++;
    return i < size ? i : m->gate->size;
}

/* Returns a time. A rank that last wrote its time before it counts as not waiting. */
static uint64_t silent_before_ns(uint64_t waited_ns)
{
    return clock_ns() - (waited_ns / 2 > NOT_WAITING_NS ? waited_ns / 2 : NOT_WAITING_NS);
}

static struct missing find_missing(const struct gate *g, uint64_t waited_ns)
{
    struct missing m = {.gate = g,
                        .at_gate = g->page != NULL && has_arrived(g, g->index),
                        .before_ns = silent_before_ns(waited_ns)};
    if (m.at_gate && next_missing(&m, 0) == g->size)
        m.before_ns = UINT64_MAX; /* all absent ranks wait for something else: name all of them */
    return m;
}

/* Adds the missing ranks and returns their number. 0: they are on another host, which shares no
 * page. */
static unsigned add_missing(const struct gate *g, uint64_t waited_ns, struct text *out)
{
    const struct missing m = find_missing(g, waited_ns);
    unsigned missing = 0;

    for (unsigned i = next_missing(&m, 0); i < g->size; i = next_missing(&m, i + 1))
        if (missing++ < 8)
            text_add(out, "%s%u", missing == 1 ? "rank " : ", ", g->page->rank[i].world);
    if (missing == 0)
        text_add(out, "another rank");
    else if (missing > 8)
        text_add(out, " and %u more", missing - 8);
    return missing;
}

/* On one host the gate has the ranks in the order of their numbers. */
bool ranks_is_silent(const communicator *c, unsigned rank, uint64_t waited_ns)
{
    const struct gate *g = &c->ranks->gate;
    REQUIRE(g->page != NULL && rank < g->size);
    return atomic_load(&g->page->rank[rank].waited_at) < silent_before_ns(waited_ns);
}

/* One waiting rank logs for all: the first. Without a page no rank knows which ranks wait: rank 0
 * logs, and rank 1 in case rank 0 is the missing one. */
static bool logs_for_others(const communicator *c, const struct gate *g)
{
    if (g->page == NULL)
        return c->rank < 2;
    for (unsigned i = 0; i < g->index; i++)
        if (has_arrived(g, i))
            return false;
    return true;
}

struct wait_limit {
    uint64_t since, warn_ns, limit_ns;
    bool warned;
};

static struct wait_limit wait_limit_begin(const communicator *c)
{
    return (struct wait_limit){.since = clock_ns(),
                               .warn_ns = (uint64_t)(c->warn_after_s * 1e9),
                               .limit_ns = (uint64_t)(c->timeout_s * 1e9)};
}

static void write_waiting(const struct gate *g, uint64_t at)
{
    if (g->page != NULL)
        atomic_store(&g->page->rank[g->index].waited_at, at);
}

void ranks_mark_waiting(const struct gate *g)
{
    write_waiting(g, clock_ns());
}

void ranks_add_timeout(const communicator *c, const struct gate *g, uint64_t waited_ns,
                       const char *what, bool in_call, struct text *out)
{
    struct text missing = {0};
    char host[64] = "";
    bool here = true; /* the missing ranks are on this host */
    write_waiting(g, GAVE_UP);
    if (c->ranks->name_missing != NULL) {
        (void)c->ranks->name_missing(c, waited_ns, &missing);
    } else if (g->page != NULL || in_call) {
        here = add_missing(g, waited_ns, &missing) > 0;
    } else {
        here = false;
        missing_ranks_add(c, &missing);
    }
    (void)gethostname(host, sizeof host - 1);
    text_add(out,
             "rank %u waited %.1f s for %s (%s)%s%s: it may have died, hang, or be much slower; "
             "see its error message, or raise timeout_s",
             c->ranks->name, (double)waited_ns * 1e-9, missing.at, what, here ? " on " : "",
             here ? host : "");
    text_free(&missing);
}

/* A waiting rank calls it regularly, at `g` or for messages. */
static status wait_limit_check(struct wait_limit *p, const communicator *c, const struct gate *g,
                               const char *what)
{
    status result = OK;
    struct text text = {0};
    const uint64_t waited = clock_ns() - p->since;

    ranks_mark_waiting(g);
    if (atomic_load(&c->ranks->leaves))
        FAIL(ERROR_PEER, "%s: stopped waiting, because this rank ends", what);
    if (waited >= p->limit_ns) {
        ranks_add_timeout(c, g, waited, what, false, &text);
        FAIL(ERROR_PEER, "%s", text.at);
    }
    if (waited < p->warn_ns || p->warned)
        return OK;
    bool logs;
    if (c->ranks->name_missing != NULL) {
        logs = c->ranks->name_missing(c, waited, &text);
    } else {
        logs = logs_for_others(c, g);
        add_missing(g, waited, &text);
    }
    if (logs) {
        log_warning("this rank has waited %.0f s for %s (%s); the limit is %.0f s",
                    (double)waited * 1e-9, text.at, what, (double)p->limit_ns * 1e-9);
    }
    p->warned = true;
done:
    text_free(&text);
    return result;
}

static void futex_sleep(atomic_uint *word, unsigned value)
{
    struct timespec a_while = {.tv_nsec = 100000000}; /* the caller then calls wait_limit_check */
    syscall(SYS_futex, word, FUTEX_WAIT, value, &a_while, NULL, 0);
}

static void futex_wake_all(atomic_uint *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* Spins for SPIN_NS at most, if the rank has its own processor; returns whether the gate opened. */
static bool spin_at_gate(const communicator *c, struct gate_page *gate, unsigned round,
                         uint64_t since_ns)
{
    if (c->ranks->crowded || atomic_load(&c->ranks->sleeps))
        return false;
    do {
        for (unsigned i = 0; i < 64; i++) {
            if (atomic_load_explicit(&gate->round, memory_order_acquire) != round)
                return true;
            processor_pause();
        }
        sched_yield(); /* the missing rank may be on this processor */
    } while (clock_ns() - since_ns < SPIN_NS);
    return false;
}

status gate_pass(communicator *c, struct gate *g, const char *what)
{
    status result = OK;
    struct gate_page *gate = g->page;
    unsigned round = atomic_load(&gate->round);

    atomic_store(&gate->rank[g->index].round, round + 1);
    if (atomic_fetch_add(&gate->arrived, 1) + 1 == g->size) {
        atomic_store(&gate->arrived, 0);
        atomic_store(&gate->round, round + 1);
        if (atomic_load(&gate->sleepers) != 0)
            futex_wake_all(&gate->round);
        return OK;
    }
    struct wait_limit limit = wait_limit_begin(c);
    if (spin_at_gate(c, gate, round, limit.since))
        return OK;
    atomic_fetch_add(&gate->sleepers, 1);
    while (result == OK && atomic_load(&gate->round) == round) {
        futex_sleep(&gate->round, round);
        if (atomic_load(&gate->round) == round)
            result = wait_limit_check(&limit, c, g, what);
    }
    atomic_fetch_sub(&gate->sleepers, 1);
    return result;
}

/* No rank votes again in a round of the same parity before all have read this one. */
status gate_vote(communicator *c, struct gate *g, bool vote, bool *all, const char *what)
{
    const unsigned round = atomic_load(&g->page->round);
    atomic_uint *vetoed = &g->page->vetoed[round % 2];
    if (!vote)
        atomic_store(vetoed, round + 1);
    const status result = gate_pass(c, g, what);
    *all = atomic_load(vetoed) != round + 1;
    return result;
}

status ranks_gate(communicator *c, const char *what)
{
    status result = OK;
    if (c->size == 1)
        return OK;
    if (c->ranks->gate.page != NULL)
        return gate_pass(c, &c->ranks->gate, what);
    MPI_Request request;
    TRY(ranks_check(MPI_Ibarrier(c->ranks->world, &request), what));
    TRY(ranks_wait(c, &request, 1, what));
done:
    return result;
}

static bool abandoned;

void ranks_abandon(communicator *c)
{
    c->failed = abandoned = true;
}

bool ranks_abandoned(void)
{
    return abandoned;
}

/* Spinning is fastest while all ranks exchange; crowded ranks yield the processor. 16 ranks on 2
 * processors exchange 150 kB in 1.1 ms this way, and in 2.5 ms with sleeps of 50 µs. */
static bool worth_spinning(const communicator *c, uint64_t waited_ns)
{
    return !atomic_load(&c->ranks->sleeps) &&
           waited_ns < (c->ranks->crowded ? 5000000u : 500000000u);
}

/* Waits until all are complete, or, if `index` is set, until one is. */
static status wait_for(communicator *c, MPI_Request *requests, int count, int *index,
                       const char *what)
{
    enum { SLEEP_LEAST_NS = 20000, SLEEP_MOST_NS = 200000, TESTS_PER_LOOK = 16 };
    status result = OK;
    const struct gate *marks = c->ranks->marks != NULL ? c->ranks->marks : &c->ranks->gate;
    struct wait_limit limit = wait_limit_begin(c);
    uint64_t pause_ns = SLEEP_LEAST_NS;
    bool spin = true;

    for (unsigned tests = 1;; tests++) {
        int complete = 0;
        TRY(ranks_check(index != NULL
                            ? MPI_Testany(count, requests, index, &complete, MPI_STATUS_IGNORE)
                            : MPI_Testall(count, requests, &complete, MPI_STATUSES_IGNORE),
                        what));
        if (complete)
            break;
        if (tests % TESTS_PER_LOOK == 0) {
            spin = worth_spinning(c, clock_ns() - limit.since);
            TRY(wait_limit_check(&limit, c, marks, what));
        }
        if (spin) {
            if (c->ranks->crowded)
                sched_yield();
            continue;
        }
        clock_sleep_until_ns(clock_ns() + pause_ns);
        pause_ns = pause_ns * 3 / 2 < SLEEP_MOST_NS ? pause_ns * 3 / 2 : SLEEP_MOST_NS;
    }
done:
    if (result != OK)
        ranks_abandon(c);
    return result;
}

status ranks_wait(communicator *c, MPI_Request *requests, int count, const char *what)
{
    return wait_for(c, requests, count, NULL, what);
}

status ranks_wait_any(communicator *c, MPI_Request *requests, int count, int *index,
                      const char *what)
{
    return wait_for(c, requests, count, index, what);
}
