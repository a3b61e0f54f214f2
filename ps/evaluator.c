/* evaluator.c — see evaluator.h. */
#include "ps/evaluator.h"

#include "ps/arithmetic.h"

#include <pthread.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { CLOSING_LIMIT_S = 5 };

struct evaluator {
    struct training_hooks hooks;
    pthread_t thread;
    bool thread_runs;
    int done_fd;
    pthread_mutex_t lock;
    pthread_cond_t work;
    const float *parameters; /* under `lock`, as all below: what to evaluate, NULL: nothing */
    bool probes;             /* no evaluation is wanted, but this */
    struct evaluator_probe probe;
    bool stop;
    uint64_t began_ns, longest_ns;
    struct evaluation result;
    double cosine;
    status code;
    char message[512];
};

static status compare(const struct evaluator *e, const struct evaluator_probe *p, double *cosine)
{
    status result = OK;
    TRY(e->hooks.gradient(e->hooks.context, p->worker, p->batch, p->parameters, p->fresh));
    *cosine = vector_cosine(p->count, p->gradient, p->fresh);
done:
    return result;
}

static void *run(void *argument)
{
    evaluator *e = argument;
    pthread_mutex_lock(&e->lock);
    while (true) {
        while (!e->stop && e->parameters == NULL)
            pthread_cond_wait(&e->work, &e->lock);
        if (e->parameters == NULL)
            break;
        const float *parameters = e->parameters;
        struct evaluator_probe probe = e->probe;
        bool probes = e->probes;
        struct evaluation result = {0};
        double cosine = 0;
        pthread_mutex_unlock(&e->lock);
        status code = probes ? compare(e, &probe, &cosine)
                             : e->hooks.evaluate(e->hooks.context, parameters, &result);
        pthread_mutex_lock(&e->lock);
        e->parameters = NULL;
        const uint64_t took_ns = clock_ns() - e->began_ns;
        e->longest_ns = took_ns > e->longest_ns ? took_ns : e->longest_ns;
        e->result = result;
        e->cosine = cosine;
        e->code = code;
        snprintf(e->message, sizeof e->message, "%s", code == OK ? "" : error_message());
        uint64_t one = 1;
        ssize_t written = write(e->done_fd, &one, sizeof one);
        REQUIRE(written == (ssize_t)sizeof one);
    }
    pthread_mutex_unlock(&e->lock);
    return NULL;
}

status evaluator_open(evaluator **out, const struct training_hooks *hooks)
{
    status result = OK;
    evaluator *e = NULL;
    REQUIRE(hooks->evaluate != NULL);
    TRY(memory_new(&e, 1, sizeof *e, "the evaluator"));
    e->hooks = *hooks;
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->work, NULL);
    e->done_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (e->done_fd < 0)
        FAIL(ERROR_OTHER,
             "cannot make an eventfd: is the limit of open files (ulimit -n) too low?");
    TRY(thread_start(&e->thread, run, e, "the evaluator's thread"));
    e->thread_runs = true;
done:
    if (result != OK)
        evaluator_close(&e);
    *out = e;
    return result;
}

uint64_t evaluator_busy_ns(evaluator *e)
{
    pthread_mutex_lock(&e->lock);
    const uint64_t busy_ns = e->parameters != NULL ? clock_ns() - e->began_ns + 1 : 0;
    pthread_mutex_unlock(&e->lock);
    return busy_ns;
}

void evaluator_excuse(evaluator *e, uint64_t away_ns)
{
    pthread_mutex_lock(&e->lock);
    const uint64_t now = clock_ns();
    e->began_ns = now - e->began_ns > away_ns ? e->began_ns + away_ns : now;
    pthread_mutex_unlock(&e->lock);
}

uint64_t evaluator_longest_ns(evaluator *e)
{
    pthread_mutex_lock(&e->lock);
    const uint64_t longest_ns = e->longest_ns;
    pthread_mutex_unlock(&e->lock);
    return longest_ns;
}

static bool ends_within(evaluator *e, unsigned seconds)
{
    const uint64_t until = clock_ns() + seconds * 1000000000ULL;
    bool busy = evaluator_busy_ns(e) > 0;
    while (busy && clock_ns() < until) {
        clock_sleep_until_ns(clock_ns() + 5000000);
        busy = evaluator_busy_ns(e) > 0;
    }
    return !busy;
}

void evaluator_close(evaluator **p)
{
    if (p == NULL || *p == NULL)
        return;
    evaluator *e = *p;
    *p = NULL;
    if (e->thread_runs && !ends_within(e, CLOSING_LIMIT_S)) {
        thread_abandon(e->thread); /* with all it has */
        return;
    }
    if (e->thread_runs) {
        pthread_mutex_lock(&e->lock);
        e->stop = true;
        pthread_cond_signal(&e->work);
        pthread_mutex_unlock(&e->lock);
        pthread_join(e->thread, NULL);
    }
    if (e->done_fd >= 0)
        close(e->done_fd);
    pthread_cond_destroy(&e->work);
    pthread_mutex_destroy(&e->lock);
    memory_free(e);
}

int evaluator_fd(const evaluator *e)
{
    return e->done_fd;
}

static void begin(evaluator *e, const float *parameters, const struct evaluator_probe *probe)
{
    pthread_mutex_lock(&e->lock);
    REQUIRE(e->parameters == NULL);
    e->parameters = parameters;
    e->began_ns = clock_ns();
    e->probes = probe != NULL;
    if (probe != NULL)
        e->probe = *probe;
    pthread_cond_signal(&e->work);
    pthread_mutex_unlock(&e->lock);
}

/* With the lock taken, if it is done. */
static bool is_done(evaluator *e, status *code, const char *what)
{
    uint64_t count;
    if (read(e->done_fd, &count, sizeof count) != (ssize_t)sizeof count)
        return false;
    pthread_mutex_lock(&e->lock);
    *code = e->code;
    if (e->code != OK)
        error_set(e->code, __FILE__, __LINE__, "%s failed: %s", what, e->message);
    return true;
}

void evaluator_begin(evaluator *e, const float *parameters)
{
    begin(e, parameters, NULL);
}

bool evaluator_take(evaluator *e, struct evaluation *out, status *code)
{
    if (!is_done(e, code, "evaluation"))
        return false;
    *out = e->result;
    pthread_mutex_unlock(&e->lock);
    return true;
}

void evaluator_begin_probe(evaluator *e, const struct evaluator_probe *probe)
{
    REQUIRE(e->hooks.gradient != NULL);
    begin(e, probe->parameters, probe);
}

bool evaluator_take_probe(evaluator *e, double *cosine, status *code)
{
    if (!is_done(e, code, "a fresh gradient for comparison (probe_every)"))
        return false;
    *cosine = e->cosine;
    pthread_mutex_unlock(&e->lock);
    return true;
}
