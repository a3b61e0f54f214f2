/*
 * bench_gemm.c — `gradlag bench gemm`: the matrix products of a linear layer on a GPU, with their
 * fused epilogues, compared with cuBLAS alone at the same shape.
 *
 * A shape is batch×inputs×outputs. "alone" is the product without an epilogue, with the same sizes,
 * layouts and precision. "forward" adds bias, ReLU and its mask; "to the input" applies the mask;
 * "to the weights" sums the gradient of the bias. The ratio is the rate of all three products over
 * the rate alone.
 */
#include "experiments/bench/bench.h"
#include "worker/cuda/cuda_rates.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct option bench_gemm_keys[] = {
    {"shapes", OPTION_TEXT, "4096x4096x4096,512x1024x1024", 0, 0, NULL, NULL,
     "batch×inputs×outputs, comma-separated, with the letter x"},
    {"precisions", OPTION_TEXT, "fp32,tf32,bf16", 0, 0, NULL, NULL, "comma-separated"},
    {"seconds", OPTION_REAL, "0.05", 0.00001, 60, NULL, NULL, "how long each repeat lasts"},
    {"index", OPTION_INTEGER, "0", 0, 1023, NULL, NULL, "index of the GPU among the visible ones"},
    {0},
};

struct sizes {
    uint32_t batch, inputs, outputs;
};

enum { FORWARD, TO_INPUT, TO_WEIGHTS, PASSES };
static const char *const pass_names[PASSES] = {"forward", "to the input", "to the weights"};

/* One of a linear layer's three products; W is [outputs][inputs]. */
static struct cuda_product_shape shape_of(const struct sizes *s, int pass, bool fused)
{
    struct cuda_product_shape shape = {.epilogue = CUDA_PLAIN};
    switch (pass) {
    case FORWARD: /* y[batch][outputs] = x Wᵀ */
        shape.rows = s->batch, shape.columns = s->outputs, shape.inner = s->inputs;
        shape.b_transposed = true;
        shape.epilogue = fused ? CUDA_BIAS_RELU_MASK : CUDA_PLAIN;
        break;
    case TO_INPUT: /* dx[batch][inputs] = dy W */
        shape.rows = s->batch, shape.columns = s->inputs, shape.inner = s->outputs;
        shape.epilogue = fused ? CUDA_MASKED : CUDA_PLAIN;
        break;
    default: /* dW[outputs][inputs] = dyᵀ x */
        shape.rows = s->outputs, shape.columns = s->inputs, shape.inner = s->batch;
        shape.a_transposed = true;
        shape.epilogue = fused ? CUDA_COLUMN_SUMS : CUDA_PLAIN;
        break;
    }
    return shape;
}

static double operations(const struct sizes *s)
{
    return 2.0 * s->batch * s->inputs * s->outputs;
}

/* Fused and alone take turns, so that both run at the same GPU clock. */
static status measure(const struct bench *b, const struct cuda_kind *kind, cuda_device *d,
                      const struct sizes *s, enum cuda_arithmetic arithmetic)
{
    status result = OK;
    double seconds[2] = {0}; /* [fused] of all three products */
    char what[128];
    for (int pass = 0; pass < PASSES; pass++) {
        struct bench_series rates[2] = {0};
        for (unsigned i = 0; i < b->repeats; i++) {
            for (int fused = 0; fused < 2; fused++) {
                struct cuda_product_shape shape = shape_of(s, pass, fused == 1);
                double rate = 0;
                shape.arithmetic = arithmetic;
                TRY(cuda_rates_product(kind, d, &shape, options_real(b->settings, "seconds"), &rate,
                                       1));
                bench_add(&rates[fused], rate * 1e-12);
            }
        }
        for (int fused = 0; fused < 2; fused++) {
            snprintf(what, sizeof what, "%ux%ux%u %s %s%s", s->batch, s->inputs, s->outputs,
                     cuda_arithmetic_name(arithmetic), pass_names[pass], fused ? "" : ", alone");
            bench_report(b, what, "TFLOP/s", &rates[fused]);
            seconds[fused] += operations(s) * 1e-12 / bench_median(&rates[fused]);
        }
    }
    snprintf(what, sizeof what, "%ux%ux%u %s layer/alone", s->batch, s->inputs, s->outputs,
             cuda_arithmetic_name(arithmetic));
    bench_report_value(b, what, "×", seconds[0] / seconds[1]);
done:
    return result;
}

static status read_shape(const char *item, struct sizes *out)
{
    char rest;
    if (sscanf(item, "%ux%ux%u%c", &out->batch, &out->inputs, &out->outputs, &rest) != 3 ||
        out->batch == 0 || out->inputs == 0 || out->outputs == 0 || out->batch > 65536 ||
        out->inputs > 65536 || out->outputs > 65536) {
        return error_set(ERROR_USAGE, __FILE__, __LINE__,
                         "shapes: '%s' is not batch×inputs×outputs, for example 512x1024x1024, "
                         "each from 1 to 65536",
                         item);
    }
    return OK;
}

static status read_precision(const char *item, enum cuda_arithmetic *out)
{
    for (int a = 0; a < CUDA_ARITHMETICS; a++) {
        if (strcmp(item, cuda_arithmetic_name((enum cuda_arithmetic)a)) == 0) {
            *out = (enum cuda_arithmetic)a;
            return OK;
        }
    }
    return error_set(ERROR_USAGE, __FILE__, __LINE__, "precisions: '%s' is not fp32, tf32 or bf16",
                     item);
}

static status measure_all(const struct bench *b, const struct cuda_kind *kind, cuda_device *d)
{
    status result = OK;
    char item[64], name[64];
    const char *shapes = options_text(b->settings, "shapes");
    while (bench_next_item(&shapes, item)) {
        struct sizes s;
        TRY(read_shape(item, &s));
        const char *precisions = options_text(b->settings, "precisions");
        while (bench_next_item(&precisions, name)) {
            enum cuda_arithmetic arithmetic = CUDA_FP32;
            TRY(read_precision(name, &arithmetic));
            TRY(measure(b, kind, d, &s, arithmetic));
        }
    }
done:
    return result;
}

status bench_gemm(int argc, char **argv)
{
    status result = OK;
    struct bench b = {0};
    const struct cuda_kind *kind = NULL;
    cuda_device *d = NULL;
    TRY(bench_open(&b, "gemm", bench_gemm_keys, argc, argv));
    TRY(cuda_kind_get(&kind));
    const struct cuda_options o = {
        .index = (unsigned)options_integer(b.settings, "index"),
    };
    TRY(kind->open(&d, &o));
    TRY(measure_all(&b, kind, d));
done:
    if (d != NULL)
        kind->close(&d);
    bench_close(&b);
    return result;
}
