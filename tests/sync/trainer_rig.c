#include "tests/sync/trainer_rig.h"

#include "base/clock.h"
#include "base/memory.h"

#include <string.h>

static float *copy_of(const float *from, size_t count)
{
    float *copy = memory_allocate(count * sizeof *copy);
    if (count > 0)
        memcpy(copy, from, count * sizeof *copy);
    return copy;
}

static void keep(struct seen *s, const struct training_state *now)
{
    s->kept = *now;
    s->kept.parameters = copy_of(now->parameters, worker_parameter_count(s->worker));
    s->kept.optimizer_state = copy_of(now->optimizer_state, now->optimizer_state_count);
    s->kept.ranks = copy_of(now->ranks, s->ranks * now->rank_count);
    for (size_t i = 0; i < now->vector_count; i++)
        s->vectors[i] = copy_of(now->vectors[i], worker_parameter_count(s->worker));
    s->kept.vectors = (const float *const *)s->vectors;
}

static void discard(struct seen *s)
{
    memory_free((void *)(uintptr_t)s->kept.parameters);
    memory_free((void *)(uintptr_t)s->kept.optimizer_state);
    memory_free((void *)(uintptr_t)s->kept.ranks);
    for (size_t i = 0; i < s->kept.vector_count; i++)
        memory_free(s->vectors[i]);
    s->kept = (struct training_state){0};
}

static status on_checkpoint(void *context, const struct training_state *now)
{
    struct seen *s = context;
    if (s->checkpoints == 0)
        keep(s, now);
    s->checkpoint_version[s->checkpoints++ % SEEN] = now->updates;
    if (s->checkpoint_ns > 0)
        clock_sleep_until_ns(clock_ns() + s->checkpoint_ns);
    if (s->checkpoints == s->stop_after_checkpoints)
        s->stop = 1;
    return worker_evaluate(s->worker, now->parameters, &s->evaluation);
}

status run_open(struct run *r, const char *const *settings, unsigned rank, unsigned size)
{
    status result = OK;
    TRY(sync_rig_training(&r->settings, settings));
    TRY(worker_open(&r->worker, &(struct worker_options){
                                    .settings = r->settings, .index = rank, .count = size}));
    TRY(communicator_open(&r->communicator, r->settings, worker_parameter_count(r->worker),
                          worker_place(r->worker)));
    r->seen.worker = r->worker;
    r->seen.ranks = size;
done:
    return result;
}

void run_close(struct run *r)
{
    discard(&r->seen);
    communicator_close(&r->communicator);
    worker_close(&r->worker);
    options_close(&r->settings);
}

status run_train(struct run *r)
{
    struct sync_trainer_options o = {
        .settings = r->settings, .worker = r->worker, .communicator = r->communicator};
    if (r->communicator->rank == 0) {
        o.start = r->start;
        o.recorder = r->recorder;
        o.hooks = (struct training_hooks){
            .context = &r->seen, .checkpoint = on_checkpoint, .stop = &r->seen.stop};
    }
    return sync_trainer_run(&o, &r->outcome);
}

status run_expect(const struct run *r, status ended, status expected, const char *part)
{
    status result = OK;
    const char *message = ended == OK ? "" : error_message();
    if (ended != expected || (part != NULL && strstr(message, part) == NULL))
        FAIL(ERROR_OTHER, "ended as %s after %llu updates: %s", status_name(ended),
             (unsigned long long)r->outcome.updates, message);
done:
    return result;
}

status run_expect_updates(const struct run *r, uint64_t updates)
{
    status result = OK;
    if (r->outcome.updates != updates)
        FAIL(ERROR_OTHER, "%llu updates, not %llu", (unsigned long long)r->outcome.updates,
             (unsigned long long)updates);
done:
    return result;
}

status run_expect_skipped(const struct run *r, unsigned updates, unsigned size)
{
    status result = OK;
    const uint64_t skipped = r->outcome.samples_computed - r->outcome.samples_used;
    if (skipped != updates * 10 * (uint64_t)size)
        FAIL(ERROR_OTHER, "%llu samples were skipped, not %u updates of %u ranks",
             (unsigned long long)skipped, updates, size);
done:
    return result;
}

status expect_facts(const struct fact *facts, size_t count)
{
    status result = OK;
    for (size_t i = 0; i < count; i++)
        if (strcmp(rig_ask(facts[i].sql), facts[i].expected) != 0)
            FAIL(ERROR_OTHER, "%s: %s, not %s", facts[i].sql, rig_ask(facts[i].sql),
                 facts[i].expected);
done:
    return result;
}
