/* core_bench.c — see core_bench.h. */
#include "tests/ps/core/core_bench.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include <string.h>

void bench_absorb(struct core_bench *b, struct server_actions actions)
{
    b->releases = b->records = b->applied = b->evaluations = b->finished = b->diverged = 0;
    for (size_t i = 0; i < actions.count; i++) {
        const struct server_action *a = &actions.at[i];
        switch (a->kind) {
        case SERVER_RELEASE:
            b->version[a->worker] = a->version;
            b->samples[a->worker] = a->samples;
            b->slot[a->worker] = a->slot;
            b->releases++;
            break;
        case SERVER_RECORD:
            b->record[b->records++] = a->record;
            break;
        case SERVER_APPLIED:
            b->applied++;
            break;
        case SERVER_EVALUATE:
            b->evaluations++;
            break;
        case SERVER_FINISHED:
            b->finished++;
            break;
        case SERVER_DIVERGED:
            b->diverged++;
            break;
        }
    }
}

void bench_open(struct core_bench *b, struct server_core_options o, const char *const *settings)
{
    memset(b, 0, sizeof *b);
    o.count = BENCH_COUNT;
    core_rig_open(&b->rig, o, settings);
    for (unsigned w = 0; w < BENCH_WORKERS; w++)
        core_rig_fill(b->gradient[w], BENCH_COUNT, 100 + w);
}

void bench_hello(struct core_bench *b, unsigned worker)
{
    b->next[worker] = 0;
    bench_absorb(b, server_core_hello(b->rig.core, worker));
}

void bench_hello_all(struct core_bench *b)
{
    for (unsigned w = 0; w < b->rig.workers; w++) {
        bench_hello(b, w);
        assert_int_equal(b->releases, 1);
    }
}

struct server_push bench_push_of(const struct core_bench *b, unsigned worker)
{
    return (struct server_push){.worker = worker,
                                .sequence = b->next[worker],
                                .read_version = b->version[worker],
                                .gradient = b->gradient[worker],
                                .samples = 10,
                                .loss = 1.5};
}

void bench_feed(struct core_bench *b, struct server_push push)
{
    struct server_actions actions;
    if (server_core_push(b->rig.core, &push, &actions) != OK)
        fail_msg("%s", error_message());
    b->next[push.worker] = push.sequence + 1;
    bench_absorb(b, actions);
}

void bench_push(struct core_bench *b, unsigned worker)
{
    bench_feed(b, bench_push_of(b, worker));
}

void bench_expect_refused(struct core_bench *b, struct server_push wrong, const char *value)
{
    struct server_actions actions;
    uint64_t version = server_core_version(b->rig.core);
    uint64_t computed = server_core_samples_computed(b->rig.core);
    assert_int_equal(server_core_push(b->rig.core, &wrong, &actions), ERROR_PROTOCOL);
    assert_non_null(strstr(error_message(), value));
    assert_int_equal(actions.count, 0);
    assert_int_equal(server_core_version(b->rig.core), version);
    assert_int_equal(server_core_samples_computed(b->rig.core), computed);
}

const float *bench_latest(const struct core_bench *b)
{
    return b->rig.slots[server_core_latest_slot(b->rig.core)];
}

void bench_evaluated(struct core_bench *b)
{
    bench_absorb(b, server_core_evaluated(b->rig.core));
}

void bench_lost(struct core_bench *b, unsigned worker)
{
    bench_absorb(b, server_core_lost(b->rig.core, worker));
}
