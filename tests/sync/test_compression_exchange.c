/*
 * test_compression_exchange.c — compressed gradients between ranks, under mpirun, compared with one
 * process; settings that exclude compression; training with it.
 */
#include "base/memory.h"
#include "sync/trainer.h"
#include "sync/compression/compression_exchange.h"
#include "tests/worker/compression/compression_rig.h"
#include "tests/sync/sync_rig.h"
#include "base/vector.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

enum { LARGE = (1 << 18) + 4321, UPDATES = 3 };

/* The exchange in one process: the codes of all ranks, decoded and added in rank order. Codes of
 * single floats encode the mean once more. */
struct compression_exchange_model {
    compression *of[8];
    unsigned size;
    size_t count;
    float *gradient, *mean;
    char *code;
};

static void model_close(struct compression_exchange_model *m)
{
    for (unsigned i = 0; i < m->size; i++)
        compression_close(&m->of[i]);
    memory_free(m->gradient);
    memory_free(m->mean);
    memory_free(m->code);
}

static status model_open(struct compression_exchange_model *m, const char *name, unsigned size,
                         size_t count)
{
    status result = OK;
    *m = (struct compression_exchange_model){.size = size, .count = count};
    for (unsigned i = 0; i < size; i++)
        TRY(compression_rig_open(&m->of[i], name, NULL, count, NULL, 0));
    TRY(memory_new(&m->gradient, count, sizeof(float), "test"));
    TRY(memory_new(&m->mean, count, sizeof(float), "test"));
    TRY(memory_new(&m->code, compression_code_bytes(m->of[0]), 1, "test"));
done:
    return result;
}

static void gradient_of(unsigned rank, unsigned update, size_t count, float *out)
{
    uint32_t bits = rank * 100 + update;
    for (size_t i = 0; i < count; i++)
        out[i] = compression_rig_noise(&bits) * (i % 5 == 0 ? 1 : 1e-3f);
}

static void model_update(struct compression_exchange_model *m, unsigned update)
{
    const struct compression_kind *kind = m->of[0]->kind;
    memset(m->mean, 0, m->count * sizeof(float));
    for (unsigned i = 0; i < m->size; i++) {
        gradient_of(i, update, m->count, m->gradient);
        compression_encode(m->of[i], m->gradient, 0, m->count, m->code);
        kind->add(m->of[i], m->code, m->count, m->mean);
    }
    vector_multiply(m->count, 1.0f / (float)m->size, m->mean, m->mean);
    if (kind->float_bytes == 0)
        return;
    memcpy(m->gradient, m->mean, m->count * sizeof(float));
    kind->encode(m->of[0], m->gradient, m->count, m->code);
    memset(m->mean, 0, m->count * sizeof(float));
    kind->add(m->of[0], m->code, m->count, m->mean);
    /* The rounding error goes into the residual of the rank that owns the chunk. */
    size_t piece = (1 << 18) < m->count ? 1 << 18 : m->count;
    for (size_t from = 0; from < m->count; from += piece) {
        size_t length = m->count - from < piece ? m->count - from : piece,
               lines = (length + 15) / 16;
        for (size_t i = 0; i < length; i++) {
            unsigned owner = 0;
            while (i / 16 >= lines * (owner + 1) / m->size)
                owner++;
            m->of[owner]->residual[from + i] += m->gradient[from + i] * (float)m->size;
        }
    }
}

static status check_exchange(communicator *c, const char *name, size_t count)
{
    status result = OK;
    struct compression_exchange_model m = {0};
    compression *z = NULL;
    float *data = communicator_buffer(c);
    double sent = communicator_sent_bytes(c);

    TRY(model_open(&m, name, c->size, count));
    TRY(compression_rig_open(&z, name, NULL, count, NULL, 0));
    TRY(compression_join(z, c));
    for (unsigned update = 0; update < UPDATES; update++) {
        float notes[COMMUNICATOR_NOTES] = {(float)c->rank, 1, 0, 1e-20f};
        gradient_of(c->rank, update, count, data);
        TRY(compression_mean(z, c, data, notes));
        model_update(&m, update);
        if (memcmp(data, m.mean, count * sizeof(float)) != 0)
            FAIL(ERROR_OTHER, "update %u: other bits than in one process", update);
        if (memcmp(z->residual, m.of[c->rank]->residual, count * sizeof(float)) != 0)
            FAIL(ERROR_OTHER, "update %u: another residual than in one process", update);
        if (notes[0] != (float)(c->size * (c->size - 1) / 2) * (1.0f / (float)c->size) ||
            notes[2] != 0 || notes[3] < 0.99e-20f)
            FAIL(ERROR_OTHER, "the notes are %g, %g and %g", (double)notes[0], (double)notes[2],
                 (double)notes[3]);
    }
    double code = (double)compression_code_bytes(z), ranks = c->size;
    double each = z->kind->float_bytes > 0 ? 2 * (ranks - 1) * code : ranks * (ranks - 1) * code;
    if (communicator_sent_bytes(c) - sent !=
        UPDATES * (each + ranks * (ranks - 1) * 4 * (COMMUNICATOR_NOTES + 1)))
        FAIL(ERROR_OTHER, "%g bytes were counted", communicator_sent_bytes(c) - sent);
done:
    if (result != OK)
        (void)error_add_context(result, "compression=%s of %zu", name, count);
    model_close(&m);
    compression_leave(z);
    compression_close(&z);
    return result;
}

/* If the gradient or loss of one rank is not finite, or no update takes the gradient, the result is
 * not finite on any rank, and residuals stay unchanged. */
static status check_not_finite(communicator *c, const char *name, size_t count)
{
    status result = OK;
    struct compression_exchange_model m = {0};
    compression *z = NULL;
    float *data = communicator_buffer(c);

    TRY(model_open(&m, name, c->size, count));
    TRY(compression_rig_open(&z, name, NULL, count, NULL, 0));
    TRY(compression_join(z, c));
    for (unsigned update = 0; update < 5; update++) {
        float notes[COMMUNICATOR_NOTES] = {0};
        gradient_of(c->rank, update, count, data);
        if (update == 1 && c->rank == 1)
            data[count - 1] = INFINITY;
        if (update == 2 && c->rank == 0)
            notes[0] = NAN;
        if (update == 3 && c->rank == 1)
            data[count - 1] = 1e25f;
        TRY(compression_mean(z, c, data, notes));
        if (update >= 1 && update <= 3) {
            if (isfinite(data[0]) || (update == 2 && !isnan(notes[0])))
                FAIL(ERROR_OTHER, "update %u: the result is finite", update);
            continue;
        }
        model_update(&m, update);
        if (memcmp(data, m.mean, count * sizeof(float)) != 0 ||
            memcmp(z->residual, m.of[c->rank]->residual, count * sizeof(float)) != 0)
            FAIL(ERROR_OTHER, "update %u: other bits than in one process", update);
    }
done:
    if (result != OK)
        (void)error_add_context(result, "compression=%s of %zu", name, count);
    model_close(&m);
    compression_leave(z);
    compression_close(&z);
    return result;
}

static status open_communicator(communicator **c, const char *communicator_name, const char *name)
{
    status result = OK;
    const struct compression_kind *kind;
    options *o = sync_rig_settings();
    TRY(sync_rig_set(o, "communicator", communicator_name));
    TRY(sync_rig_set(o, "compression", name));
    TRY(communicator_open(c, o, LARGE, NULL));
    TRY(compression_chosen(&kind, o, *c));
    if (((*c)->size > 1) != (kind != NULL))
        FAIL(ERROR_OTHER, "compression=%s is %s on %u ranks", name,
             kind != NULL ? "used" : "not used", (*c)->size);
done:
    options_close(&o);
    return result;
}

static status case_exchange(unsigned rank UNUSED, unsigned size UNUSED)
{
    static const size_t counts[] = {1, 17, 37610, LARGE};
    status result = OK;
    communicator *c = NULL;
    for (size_t k = 1; k < compression_registry.count; k++) {
        const char *name = compression_registry.entries[k]->name;
        TRY(open_communicator(&c, "auto", name));
        for (size_t i = 0; i < COUNT_OF(counts); i++)
            TRY(check_exchange(c, name, counts[i]));
        TRY(check_not_finite(c, name, 1000));
        communicator_close(&c);
    }
done:
    communicator_close(&c);
    return result;
}

static status case_refused(unsigned rank UNUSED, unsigned size UNUSED)
{
    static const char *const others[] = {"dummy", "hierarchical", "naive", "ring", "shared"};
    status result = OK;
    communicator *c = NULL;
    for (size_t i = 0; i < COUNT_OF(others); i++) {
        status opened = open_communicator(&c, others[i], "fp16");
        char named[64];
        snprintf(named, sizeof named, "communicator=%s", others[i]);
        if (opened != ERROR_USAGE || strstr(error_message(), named) == NULL)
            FAIL(ERROR_OTHER, "%s: %s", named, status_name(opened));
        communicator_close(&c);
    }
    TRY(open_communicator(&c, "mpi", "fp16"));
done:
    communicator_close(&c);
    return result;
}

static status case_alone(unsigned rank UNUSED, unsigned size UNUSED)
{
    communicator *c = NULL;
    status result = open_communicator(&c, "ring", "sign");
    communicator_close(&c);
    return result;
}

/* ---- in training --------------------------------------------------------------------------------
 */

struct trained {
    worker *worker;
    struct training_outcome outcome;
    double accuracy; /* on rank 0 */
};

static status evaluate(void *context, const float *parameters, unsigned threads UNUSED,
                       struct evaluation *out)
{
    return worker_evaluate(((struct trained *)context)->worker, parameters, out);
}

static status last_accuracy(void *context, const struct training_state *now)
{
    struct trained *t = context;
    struct evaluation e;
    status result = worker_evaluate(t->worker, now->parameters, &e);
    t->accuracy = e.test_accuracy;
    return result;
}

/* Trains one epoch; the trainer compares the parameters of all ranks at the end. */
static status train(struct trained *out, const char *name, const char *more, unsigned rank,
                    unsigned size)
{
    status result = OK;
    options *o = NULL;
    communicator *c = NULL;
    char assignment[64];
    const char *const settings[] = {assignment,
                                    "communicator=auto",
                                    "checkpoint=x",
                                    more,
                                    strcmp(name, "topk") == 0 ? "compression.ratio=0.1" : NULL,
                                    NULL};

    snprintf(assignment, sizeof assignment, "compression=%s", name);
    *out = (struct trained){0};
    TRY(sync_rig_training(&o, settings));
    TRY(worker_open(&out->worker,
                    &(struct worker_options){.settings = o, .index = rank, .count = size}));
    TRY(communicator_open(&c, o, worker_parameter_count(out->worker), NULL));
    TRY(sync_trainer_run(
        &(struct sync_trainer_options){
            .settings = o,
            .worker = out->worker,
            .communicator = c,
            .hooks = {.context = out, .evaluate = evaluate, .checkpoint = last_accuracy}},
        &out->outcome));
done:
    communicator_close(&c);
    worker_close(&out->worker);
    options_close(&o);
    return result;
}

/* Softmax on 8 × 8 images: 650 parameters in two tensors. Bytes as in sync/compression/README.md.
 */
static status case_training(unsigned rank, unsigned size)
{
    static const struct {
        const char *name;
        double bytes_per_update, points; /* largest loss of accuracy */
    } expected[] = {
        {"none", 0, 0}, /* communicator=auto chooses shared memory */
        {"fp16", 2 * 2 * 2 * 650 + 3 * 2 * 4 * (COMMUNICATOR_NOTES + 1), 0.01},
        {"bf16", 2 * 2 * 2 * 650 + 3 * 2 * 4 * (COMMUNICATOR_NOTES + 1), 0.02},
        {"topk", 3 * 2 * 8 * 65 + 3 * 2 * 4 * (COMMUNICATOR_NOTES + 1), 0.05},
        {"sign", 3 * 2 * (2 * 4 + 21 * 4) + 3 * 2 * 4 * (COMMUNICATOR_NOTES + 1), 0.1},
    };
    status result = OK;
    struct trained t;
    double plain = 0;
    for (size_t i = 0; i < COUNT_OF(expected); i++) {
        TRY(train(&t, expected[i].name, "overlap=auto", rank, size));
        double bytes = t.outcome.sent_bytes / (double)t.outcome.updates;
        plain = i == 0 ? t.accuracy : plain;
        if (rank == 0 && t.accuracy < plain - expected[i].points)
            FAIL(ERROR_OTHER, "compression=%s: accuracy %g, without %g", expected[i].name,
                 t.accuracy, plain);
        if (bytes != expected[i].bytes_per_update)
            FAIL(ERROR_OTHER, "compression=%s: %g bytes per update", expected[i].name, bytes);
    }
done:
    return result;
}

/* A whole gradient is encoded, so no part of it can be sent early. */
static status case_overlap(unsigned rank, unsigned size)
{
    status result = OK;
    struct trained t;
    status ended = train(&t, "fp16", "overlap=yes", rank, size);
    if (ended != ERROR_USAGE || strstr(error_message(), "overlap=yes") == NULL ||
        strstr(error_message(), "compression") == NULL)
        FAIL(ERROR_OTHER, "overlap=yes compression=fp16: %s", status_name(ended));
done:
    return result;
}

static const struct sync_case CASES[] = {{"exchange", case_exchange}, {"refused", case_refused},
                                         {"alone", case_alone},       {"training", case_training},
                                         {"overlap", case_overlap},   {NULL, NULL}};

static void ranks_get_the_mean_computed_in_one_process(void **state UNUSED)
{
    sync_rig_expect_ok(2, "exchange");
    sync_rig_expect_ok(3, "exchange");
    sync_rig_expect_ok(4, "exchange");
}

static void only_communicator_mpi_sends_codes(void **state UNUSED)
{
    sync_rig_expect_ok(2, "refused");
}

static void overlap_with_compression_is_refused(void **state UNUSED)
{
    sync_rig_expect_ok(2, "overlap");
}

static void one_rank_compresses_nothing(void **state UNUSED)
{
    sync_rig_expect_ok(1, "alone");
}

static void compressed_training_is_accurate_and_sends_fewer_bytes(void **state UNUSED)
{
    sync_rig_expect_ok(3, "training");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_get_the_mean_computed_in_one_process),
        cmocka_unit_test(only_communicator_mpi_sends_codes),
        cmocka_unit_test(overlap_with_compression_is_refused),
        cmocka_unit_test(one_rank_compresses_nothing),
        cmocka_unit_test(compressed_training_is_accurate_and_sends_fewer_bytes),
    };
    int code;
    if (sync_rig_is_rank(argc, argv, CASES, &code))
        return code;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
