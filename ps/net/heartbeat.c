/* heartbeat.c — see heartbeat.h. */
#include "ps/net/heartbeat.h"

#include "base/clock.h"
#include "base/memory.h"
#include "base/thread.h"

#include <errno.h>
#include <pthread.h>
#include <time.h>

struct heartbeat {
    channel *channel;
    struct wire_message ping;
    unsigned interval_ms;
    uint64_t answer_ns; /* of the last pong; atomic */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t stop_wanted;
    bool stop, ended;
    struct wire_text end; /* if ended */
};

static void receive_and_ping(heartbeat *h)
{
    struct channel_received answer;
    enum channel_event event;
    while ((event = channel_receive(h->channel, &answer)) != CHANNEL_NOTHING) {
        if (event != CHANNEL_MESSAGE || answer.message.incarnation != h->ping.incarnation)
            continue;
        /* A refusal is ignored here: the worker gets one when it sends its next message. */
        if (answer.message.type == WIRE_PONG)
            __atomic_store_n(&h->answer_ns, clock_ns(), __ATOMIC_RELAXED);
        if (answer.message.type == WIRE_END) {
            pthread_mutex_lock(&h->lock);
            h->end = answer.message.text;
            h->ended = true;
            pthread_mutex_unlock(&h->lock);
        }
    }
    (void)channel_send(h->channel, NULL, &h->ping, NULL);
}

static void add_ms(struct timespec *when, unsigned ms)
{
    long ns = when->tv_nsec + (long)(ms % 1000) * 1000000;
    when->tv_sec += ms / 1000 + ns / 1000000000;
    when->tv_nsec = ns % 1000000000;
}

static void *run(void *argument)
{
    heartbeat *h = argument;
    struct timespec when;
    pthread_mutex_lock(&h->lock);
    while (!h->stop) {
        pthread_mutex_unlock(&h->lock);
        receive_and_ping(h);
        clock_gettime(CLOCK_MONOTONIC, &when); /* after a SIGSTOP, missed pings are not sent */
        pthread_mutex_lock(&h->lock);
        add_ms(&when, h->interval_ms);
        while (!h->stop && pthread_cond_timedwait(&h->stop_wanted, &h->lock, &when) != ETIMEDOUT)
            continue;
    }
    pthread_mutex_unlock(&h->lock);
    return NULL;
}

status heartbeat_start(heartbeat **out, const char *endpoint, const struct channel_options *o,
                       const struct wire_message *ping, unsigned interval_ms)
{
    status result = OK;
    heartbeat *h = NULL;
    pthread_condattr_t monotonic;
    *out = NULL;
    TRY(memory_new(&h, 1, sizeof *h, "a heartbeat"));
    h->ping = *ping;
    h->interval_ms = interval_ms;
    TRY(channel_connect(&h->channel, endpoint, o));
    pthread_mutex_init(&h->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&h->stop_wanted, &monotonic);
    pthread_condattr_destroy(&monotonic);
    TRY(thread_start(&h->thread, run, h, "the heartbeat thread"));
    *out = h;
    h = NULL;
done:
    if (h != NULL) {
        channel_close(&h->channel);
        memory_free(h);
    }
    return result;
}

uint64_t heartbeat_answer_ns(const heartbeat *h)
{
    return h != NULL ? __atomic_load_n(&h->answer_ns, __ATOMIC_RELAXED) : 0;
}

bool heartbeat_heard_end(heartbeat *h, struct wire_text *out)
{
    bool ended = false;
    if (h == NULL)
        return false;
    pthread_mutex_lock(&h->lock);
    ended = h->ended;
    if (ended)
        *out = h->end;
    pthread_mutex_unlock(&h->lock);
    return ended;
}

void heartbeat_stop(heartbeat **p)
{
    if (p == NULL || *p == NULL)
        return;
    heartbeat *h = *p;
    pthread_mutex_lock(&h->lock);
    h->stop = true;
    pthread_cond_signal(&h->stop_wanted);
    pthread_mutex_unlock(&h->lock);
    pthread_join(h->thread, NULL);
    pthread_cond_destroy(&h->stop_wanted);
    pthread_mutex_destroy(&h->lock);
    channel_discard_unsent(h->channel);
    channel_close(&h->channel);
    memory_free(h);
    *p = NULL;
}
