/* background.c — see background.h. */
#include "ps/server/background.h"

#include "base/clock.h"
#include "base/memory.h"
#include "base/thread.h"
#include "ps/core/arithmetic.h"

#include <pthread.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { CLOSING_LIMIT_S = 5 };

enum background_work { NOTHING, EVALUATE, PROBE, SAVE };

/* Arguments and results of one piece of work. */
struct background_piece {
    enum background_work work;
    const float *parameters;        /* EVALUATE */
    unsigned threads;               /* EVALUATE */
    struct background_probe probe;  /* PROBE */
    struct training_state training; /* SAVE */
    struct evaluation evaluation;
    double cosine;
    status code;
    char message[512];
};

struct background {
    struct training_hooks hooks;
    pthread_t thread;
    bool thread_runs;
    int done_fd;
    pthread_mutex_t lock;
    pthread_cond_t begin;
    struct background_piece piece; /* under `lock`; its work is NOTHING when it is done */
    bool stop;                     /* under `lock` */
};

static status compare(const struct background *b, const struct background_probe *p, double *cosine)
{
    status result = OK;
    TRY(b->hooks.gradient(b->hooks.context, p->worker, p->batch, p->parameters, p->fresh));
    *cosine = vector_cosine(p->count, p->gradient, p->fresh);
done:
    return result;
}

static void do_work(const struct background *b, struct background_piece *p)
{
    void *context = b->hooks.context;
    if (p->work == EVALUATE)
        p->code = b->hooks.evaluate(context, p->parameters, p->threads, &p->evaluation);
    else if (p->work == PROBE)
        p->code = compare(b, &p->probe, &p->cosine);
    else
        p->code = b->hooks.checkpoint(context, &p->training);
    p->work = NOTHING;
    snprintf(p->message, sizeof p->message, "%s", p->code == OK ? "" : error_message());
}

static void *run(void *argument)
{
    background *b = argument;
    pthread_mutex_lock(&b->lock);
    while (true) {
        while (!b->stop && b->piece.work == NOTHING)
            pthread_cond_wait(&b->begin, &b->lock);
        if (b->piece.work == NOTHING)
            break;
        struct background_piece piece = b->piece;
        pthread_mutex_unlock(&b->lock);
        do_work(b, &piece);
        pthread_mutex_lock(&b->lock);
        b->piece = piece;
        const uint64_t one = 1;
        ssize_t written = write(b->done_fd, &one, sizeof one);
        REQUIRE(written == (ssize_t)sizeof one);
    }
    pthread_mutex_unlock(&b->lock);
    return NULL;
}

status background_open(background **out, const struct training_hooks *hooks)
{
    status result = OK;
    background *b = NULL;
    TRY(memory_new(&b, 1, sizeof *b, "the server's background work"));
    b->hooks = *hooks;
    pthread_mutex_init(&b->lock, NULL);
    pthread_cond_init(&b->begin, NULL);
    b->done_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (b->done_fd < 0)
        FAIL(ERROR_OTHER,
             "cannot make an eventfd: is the limit of open files (ulimit -n) too low?");
    TRY(thread_start(&b->thread, run, b, "the server's background thread"));
    b->thread_runs = true;
done:
    if (result != OK)
        background_close(&b);
    *out = b;
    return result;
}

bool background_is_busy(background *b)
{
    pthread_mutex_lock(&b->lock);
    const bool busy = b->piece.work != NOTHING;
    pthread_mutex_unlock(&b->lock);
    return busy;
}

static bool ends_within(background *b, unsigned seconds)
{
    const uint64_t until = clock_ns() + seconds * 1000000000ULL;
    bool busy = background_is_busy(b);
    while (busy && clock_ns() < until) {
        clock_sleep_until_ns(clock_ns() + 5000000);
        busy = background_is_busy(b);
    }
    return !busy;
}

void background_close(background **p)
{
    if (p == NULL || *p == NULL)
        return;
    background *b = *p;
    *p = NULL;
    if (b->thread_runs && !ends_within(b, CLOSING_LIMIT_S)) {
        thread_abandon(b->thread);
        return;
    }
    if (b->thread_runs) {
        pthread_mutex_lock(&b->lock);
        b->stop = true;
        pthread_cond_signal(&b->begin);
        pthread_mutex_unlock(&b->lock);
        pthread_join(b->thread, NULL);
    }
    if (b->done_fd >= 0)
        close(b->done_fd);
    pthread_cond_destroy(&b->begin);
    pthread_mutex_destroy(&b->lock);
    memory_free(b);
}

int background_fd(const background *b)
{
    return b->done_fd;
}

/* ---- beginning a piece of work -------------------------------------------------------------- */

static void begin(background *b, const struct background_piece *piece)
{
    pthread_mutex_lock(&b->lock);
    REQUIRE(b->piece.work == NOTHING);
    b->piece = *piece;
    pthread_cond_signal(&b->begin);
    pthread_mutex_unlock(&b->lock);
}

void background_evaluate(background *b, const float *parameters, unsigned threads)
{
    REQUIRE(b->hooks.evaluate != NULL);
    begin(b, &(struct background_piece){
                 .work = EVALUATE, .parameters = parameters, .threads = threads});
}

void background_probe(background *b, const struct background_probe *probe)
{
    REQUIRE(b->hooks.gradient != NULL);
    begin(b, &(struct background_piece){.work = PROBE, .probe = *probe});
}

void background_save(background *b, const struct training_state *now)
{
    REQUIRE(b->hooks.checkpoint != NULL);
    begin(b, &(struct background_piece){.work = SAVE, .training = *now});
}

/* ---- taking its result ---------------------------------------------------------------------- */

/* `what`: begins the error message. */
static bool take(background *b, const char *what, struct background_piece *out)
{
    uint64_t count;
    if (read(b->done_fd, &count, sizeof count) != (ssize_t)sizeof count)
        return false;
    pthread_mutex_lock(&b->lock);
    *out = b->piece;
    pthread_mutex_unlock(&b->lock);
    if (out->code != OK)
        error_set(out->code, __FILE__, __LINE__, "%s%s", what, out->message);
    return true;
}

bool background_take_evaluation(background *b, struct evaluation *out, status *code)
{
    struct background_piece piece;
    if (!take(b, "evaluation failed: ", &piece))
        return false;
    *out = piece.evaluation;
    *code = piece.code;
    return true;
}

bool background_take_probe(background *b, double *cosine, status *code)
{
    struct background_piece piece;
    if (!take(b, "a fresh gradient for comparison (probe_every) failed: ", &piece))
        return false;
    *cosine = piece.cosine;
    *code = piece.code;
    return true;
}

bool background_take_saved(background *b, status *code)
{
    struct background_piece piece;
    if (!take(b, "", &piece))
        return false;
    *code = piece.code;
    return true;
}
