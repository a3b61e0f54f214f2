/* evaluator.c — see evaluator.h. */
#include "ps/evaluator.h"

#include <pthread.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct evaluator {
    struct training_hooks hooks;
    pthread_t thread;
    bool thread_runs;
    int done_fd;
    pthread_mutex_t lock;
    pthread_cond_t work;
    const float *parameters; /* under `lock`, as all below: what to evaluate, NULL: nothing */
    bool stop;
    struct evaluation result;
    status code;
    char message[512];
};

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
        struct evaluation result;
        pthread_mutex_unlock(&e->lock);
        status code = e->hooks.evaluate(e->hooks.context, parameters, &result);
        pthread_mutex_lock(&e->lock);
        e->parameters = NULL;
        e->result = result;
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

void evaluator_close(evaluator **p)
{
    if (p == NULL || *p == NULL)
        return;
    evaluator *e = *p;
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
    *p = NULL;
}

int evaluator_fd(const evaluator *e)
{
    return e->done_fd;
}

void evaluator_begin(evaluator *e, const float *parameters)
{
    pthread_mutex_lock(&e->lock);
    REQUIRE(e->parameters == NULL);
    e->parameters = parameters;
    pthread_cond_signal(&e->work);
    pthread_mutex_unlock(&e->lock);
}

bool evaluator_take(evaluator *e, struct evaluation *out, status *code)
{
    uint64_t count;
    if (read(e->done_fd, &count, sizeof count) != (ssize_t)sizeof count)
        return false;
    pthread_mutex_lock(&e->lock);
    *out = e->result;
    *code = e->code;
    if (e->code != OK)
        error_set(e->code, __FILE__, __LINE__, "evaluation failed: %s", e->message);
    pthread_mutex_unlock(&e->lock);
    return true;
}
