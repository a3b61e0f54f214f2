/* test_optimizer.c — the parameter update against values computed by hand and against a reference,
 * and as a transaction. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/random.h"
#include "experiments/config/config.h"
#include "worker/optimizer/optimizer.h"

static optimizer *opened_with(const char *const *set, size_t count)
{
    options *o = NULL;
    optimizer *p = NULL;
    assert_int_equal(config_compose_texts(&o, set, NULL, "test"), OK);
    assert_int_equal(optimizer_open(&p, o, count), OK);
    options_close(&o);
    return p;
}

static optimizer *opened(const char *name, const char *momentum, const char *decay, size_t count)
{
    char set[3][64];
    snprintf(set[0], sizeof set[0], "optimizer=%s", name);
    snprintf(set[1], sizeof set[1], "momentum=%s", momentum);
    snprintf(set[2], sizeof set[2], "weight_decay=%s", decay);
    return opened_with((const char *const[]){set[0], set[1], set[2], NULL}, count);
}

static float *vector(size_t count, uint32_t name)
{
    float *x = NULL;
    struct random_stream r;
    assert_int_equal(memory_new(&x, count, sizeof *x, "test vector"), OK);
    random_open(&r, RANDOM_TEST, 5, name, 0);
    for (size_t i = 0; i < count; i++)
        x[i] = (float)(2 * random_uniform(&r) - 1);
    return x;
}

/* Numbers that float32 represents exactly, computed by hand: θ = 1, gradients 1 then −0.5, η = 0.5,
 * μ = 0.5, decay 0.25 and scale 2.
 *   step 1: g = 2·1 + 0.25·1 = 2.25
 *     sgd       θ = 1 − 1.125 = −0.125
 *     momentum  v = 2.25, θ = −0.125
 *     nesterov  v = 2.25, θ = 1 − 0.5·(2.25 + 1.125) = −0.6875
 *   step 2: gradient −0.5, g = −1 + 0.25·θ
 *     sgd       g = −1.03125, θ = −0.125 + 0.515625 = 0.390625
 *     momentum  v = 1.125 − 1.03125 = 0.09375, θ = −0.125 − 0.046875 = −0.171875
 *     nesterov  g = −1.171875, v = 1.125 − 1.171875 = −0.046875,
 *               θ = −0.6875 − 0.5·(−1.171875 − 0.0234375) = −0.08984375 */
static void two_steps_give_values_computed_by_hand(void **state UNUSED)
{
    static const struct {
        const char *name;
        float first, second;
    } known[] = {{"sgd", -0.125f, 0.390625f},
                 {"momentum", -0.125f, -0.171875f},
                 {"nesterov", -0.6875f, -0.08984375f}};
    enum { COUNT = 35 }; /* two vectors and a rest */
    for (size_t k = 0; k < COUNT_OF(known); k++) {
        optimizer *p = opened(known[k].name, "0.5", "0.25", COUNT);
        float a[COUNT], b[COUNT], gradient[COUNT];
        struct optimizer_pass pass;
        for (int i = 0; i < COUNT; i++)
            a[i] = gradient[i] = 1;
        optimizer_apply(p, a, gradient, 2, 0.5, NULL, b, &pass);
        assert_true(pass.finite && pass.gap == 0);
        assert_true(pass.gradient_norm == sqrt(COUNT));
        for (int i = 0; i < COUNT; i++) {
            assert_true(b[i] == known[k].first);
            gradient[i] = -0.5f;
        }
        optimizer_apply(p, b, gradient, 2, 0.5, a, a, &pass);
        assert_true(pass.gap == fabs(1 - (double)known[k].first));
        for (int i = 0; i < COUNT; i++)
            assert_true(a[i] == known[k].second);
        optimizer_close(&p);
    }
}

/* The kinds' constants in these tests: their defaults. */
struct reference {
    const char *name;
    unsigned step; /* 1, 2, … */
    double scale, lr, mu, decay;
    double factor; /* lars: factor of the whole vector, which is one layer */
};

static bool named(const struct reference *r, const char *name)
{
    return strcmp(r->name, name) == 0;
}

static void adamw_step(const struct reference *r, float gradient, float *theta, float *m, float *v)
{
    volatile float g = (float)r->scale * gradient, a = 0.9f * *m, b = (float)(1 - 0.9) * g, c, d;
    const double b2 = named(r, "muon") ? 0.95 : 0.999;
    volatile float fresh = a + b, square = g * g;
    c = (float)b2 * *v;
    d = (float)(1 - b2) * square;
    volatile float second = c + d, root = sqrtf(second);
    volatile float scaled = (float)(1 / sqrt(1 - pow(b2, r->step))) * root;
    volatile float below = scaled + 1e-8f, ratio = fresh / below;
    volatile float moved = (float)(r->lr / (1 - pow(0.9, r->step))) * ratio;
    volatile float kept = (float)(1 - r->lr * (double)(float)r->decay) * *theta;
    *m = fresh;
    *v = second;
    *theta = kept - moved;
}

/* nadamw at its defaults. It computes the product anew at each step, so it suits a few updates. */
static void nadamw_step(const struct reference *r, float gradient, float *theta, float *m, float *v)
{
    double product = 1, mu = 0, root = sqrt(1 - pow(0.999, r->step));
    for (uint32_t k = 1; k <= r->step; k++)
        product *= mu = 0.99 * (1 - 0.5 * pow(0.96, k * 0.004));
    const double next = 0.99 * (1 - 0.5 * pow(0.96, (r->step + 1) * 0.004));
    volatile float g = (float)r->scale * gradient, a = 0.99f * *m, b = (float)(1 - 0.99) * g, c, d;
    volatile float fresh = a + b, square = g * g;
    c = 0.999f * *v;
    d = (float)(1 - 0.999) * square;
    volatile float second = c + d, spread = sqrtf(second), below = spread + (float)(1e-8 * root);
    volatile float now = (float)(r->lr * root * (1 - mu) / (1 - product)) * g;
    volatile float mean = (float)(r->lr * root * next / (1 - product * next)) * fresh;
    volatile float both = now + mean, moved = both / below;
    volatile float kept = (float)(1 - r->lr * (double)(float)r->decay) * *theta;
    *m = fresh;
    *v = second;
    *theta = kept - moved;
}

static void lion_step(const struct reference *r, float gradient, float *theta, float *m)
{
    volatile float g = (float)r->scale * gradient, a = 0.9f * *m, b = (float)(1 - 0.9) * g;
    volatile float both = a + b, c = 0.99f * *m, d = (float)(1 - 0.99) * g, fresh = c + d;
    volatile float moved = both > 0 ? (float)r->lr : both < 0 ? -(float)r->lr : 0;
    volatile float kept = (float)(1 - r->lr * (double)(float)r->decay) * *theta;
    *m = fresh;
    *theta = kept - moved;
}

/* One element at a time; storing each result rounds it to float32. */
static void reference_step(const struct reference *r, float gradient, float *theta, float *v,
                           float *second)
{
    double inside = named(r, "lars") ? r->lr * r->factor : 1;
    float scale = (float)(r->scale * inside), lr = named(r, "lars") ? 1 : (float)r->lr;
    float decay = named(r, "lars") ? (float)((double)(float)r->decay * inside) : (float)r->decay;
    volatile float a = scale * gradient, b = decay * *theta, g = a + b, step = g;
    if (named(r, "adamw") || named(r, "muon")) { /* muon: without hidden matrices */
        adamw_step(r, gradient, theta, v, second);
        return;
    }
    if (named(r, "nadamw")) {
        nadamw_step(r, gradient, theta, v, second);
        return;
    }
    if (named(r, "lion")) {
        lion_step(r, gradient, theta, v);
        return;
    }
    if (named(r, "rmsprop-warmup")) { /* at epoch 0, 10 before the centre, period 5 */
        double sgd = 0.5 * exp(2 * (0.0 - 10) / 5);
        volatile float square = g * g, c = 0.99f * *second, d = (float)(1 - 0.99) * square;
        volatile float fresh = c + d, root = sqrtf(fresh), below = root + 1e-8f;
        volatile float part = (float)((1 - sgd) * 3e-4 / r->lr) / below, both = (float)sgd + part;
        *second = fresh;
        step = g = both * g;
    }
    if (!named(r, "sgd")) {
        volatile float kept = (float)r->mu * *v, fresh = kept + g;
        *v = fresh;
        step = fresh;
        if (named(r, "nesterov")) {
            volatile float ahead = (float)r->mu * fresh;
            step = g + ahead;
        }
    }
    volatile float moved = lr * step;
    *theta = *theta - moved;
}

static double norm(const float *x, size_t count)
{
    double sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += (double)x[i] * (double)x[i];
    return sqrt(sum);
}

static void every_optimizer_equals_a_plain_loop_bit_for_bit(void **state UNUSED)
{
    /* Below and above the size above which results bypass the caches. */
    static const size_t counts[] = {1, 15, 16, 17, 1000, 4099, (1 << 20) + 37};
    for (size_t k = 0; k < optimizer_registry.count; k++) {
        const char *name = optimizer_registry.entries[k]->name;
        static const char *const known[] = {"sgd",   "momentum",       "nesterov",
                                            "adamw", "rmsprop-warmup", "lars",
                                            "lion",  "muon",           "nadamw"};
        bool has_reference = false; /* a new optimizer needs a reference in reference_step */
        for (size_t i = 0; i < COUNT_OF(known); i++)
            has_reference = has_reference || strcmp(name, known[i]) == 0;
        assert_true(has_reference);
        for (size_t c = 0; c < COUNT_OF(counts); c++) {
            size_t count = counts[c];
            optimizer *p = opened(name, "0.9", "0.001", count);
            float *theta = vector(count, 1), *other = vector(count, 2), *in = theta, *out = other;
            float *expected = vector(count, 1), *velocity = vector(2 * count, 3);
            memset(velocity, 0, 2 * count * sizeof *velocity);
            for (uint32_t step = 0; step < 3; step++) {
                float *gradient = vector(count, 10 + step);
                struct optimizer_pass pass;
                double lr = 0.03 / (1 + step), scale = 1.0 / (1 + step), sum = 0, gap = 0;
                float *read_at = vector(count, 20);
                struct reference reference = {name, step + 1, scale, lr, 0.9, 0.001, 1};
                if (strcmp(name, "lars") == 0) {
                    double w = norm(in, count), g = scale * norm(gradient, count);
                    reference.factor = 0.001 * w / (g + (double)0.001f * w);
                }
                for (size_t i = 0; i < count; i++) {
                    double d = (double)in[i] - (double)read_at[i];
                    sum += (double)gradient[i] * (double)gradient[i];
                    gap += d * d;
                    reference_step(&reference, gradient[i], &expected[i], &velocity[i],
                                   &velocity[count + i]);
                }
                optimizer_apply(p, in, gradient, scale, lr, read_at, out, &pass);
                assert_true(pass.finite);
                assert_true(fabs(pass.gradient_norm / sqrt(sum) - 1) < 1e-12);
                assert_true(fabs(pass.gap / sqrt(gap / (double)count) - 1) < 1e-6);
                assert_memory_equal(out, expected, count * sizeof *out);
                if (optimizer_state_count(p) > 0) {
                    assert_memory_equal(optimizer_state(p), velocity,
                                        optimizer_state_count(p) * sizeof *velocity);
                }
                float *swap = in;
                in = out;
                out = swap;
                memory_free(gradient);
                memory_free(read_at);
            }
            memory_free(theta);
            memory_free(other);
            memory_free(expected);
            memory_free(velocity);
            optimizer_close(&p);
        }
    }
}

/* A decaying momentum ends at 0. Rounding would keep it at four of the smallest numbers, because
 * 0.9 · 4 = 3.6 rounds to 4. Two vectors and a rest of 3. */
static void a_state_that_becomes_subnormal_is_0(void **state UNUSED)
{
    static const float values[] = {FLT_MIN, 0.25f * FLT_MIN, 4 * FLT_MIN, 6e-45f, 1, 0};
    for (size_t k = 0; k < optimizer_registry.count; k++) {
        const struct reference r = {optimizer_registry.entries[k]->name, 1, 1, 0.1, 0.9, 0, 1};
        optimizer *p = opened(r.name, "0.9", "0", 35);
        const size_t count = optimizer_state_count(p);
        float in[35] = {0}, gradient[35] = {0}, out[35], now[2 * 35];
        struct optimizer_pass pass;
        for (size_t i = 0; i < COUNT_OF(now); i++)
            now[i] = values[i % COUNT_OF(values)];
        if (count > 0)
            optimizer_set_state(p, now);
        optimizer_apply(p, in, gradient, r.scale, r.lr, NULL, out, &pass);
        for (size_t i = 0; i < 35; i++)
            reference_step(&r, 0, &in[i], &now[i], &now[35 + i]);
        for (size_t i = 0; i < count; i++)
            assert_true(optimizer_state(p)[i] == (now[i] < FLT_MIN ? 0 : now[i]));
        assert_memory_equal(out, in, sizeof in);
        optimizer_close(&p);
    }
}

/* ‖(3, 4)‖ = 5. The scale counts; a gradient within the limit is not changed. */
static void a_long_gradient_is_scaled_down_to_clip_norm(void **state UNUSED)
{
    static const struct {
        const char *clip;
        double scale;
        float expected[2];
    } cases[] = {
        {"clip_norm=1", 1, {-0.6f, -0.8f}}, {"clip_norm=1", -2, {0.6f, 0.8f}},
        {"clip_norm=5", 1, {-3, -4}},       {"clip_norm=5", 0.5, {-1.5f, -2}},
        {"clip_norm=0", 2, {-6, -8}},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        for (int in_place = 0; in_place < 2; in_place++) {
            const float gradient[2] = {3, 4};
            float in[2] = {0, 0}, other[2], *out = in_place ? in : other;
            struct optimizer_pass pass;
            optimizer *p =
                opened_with((const char *const[]){"optimizer=sgd", cases[i].clip, NULL}, 2);
            optimizer_apply(p, in, gradient, cases[i].scale, 1, NULL, out, &pass);
            assert_true(pass.finite && pass.gradient_norm == 5);
            for (int k = 0; k < 2; k++)
                assert_true(fabsf(out[k] - cases[i].expected[k]) < 1e-6f);
            optimizer_close(&p);
        }
    }
}

static void weight_decay_of_matrices_leaves_vectors_out(void **state UNUSED)
{
    static const char *const kinds[] = {"optimizer=momentum", "optimizer=adamw", "optimizer=lion",
                                        "optimizer=muon"};
    const struct optimizer_layer layers[] = {{.count = 2, .rows = 2, .columns = 1},
                                             {.count = 2, .excluded = true}};
    for (size_t i = 0; i < COUNT_OF(kinds); i++) {
        float in[4] = {1, 1, 1, 1}, gradient[4] = {0}, out[4];
        struct optimizer_pass pass;
        optimizer *p = opened_with(
            (const char *const[]){kinds[i], "weight_decay=0.5", "weight_decay_of=matrices", NULL},
            4);
        assert_int_equal(optimizer_set_layers(p, &(struct optimizer_layers){layers, 2}), OK);
        optimizer_apply(p, in, gradient, 1, 0.5, NULL, out, &pass);
        for (int k = 0; k < 4; k++)
            assert_true(out[k] == (k < 2 ? 0.75f : 1));
        optimizer_close(&p);
    }
}

/* Chunks of any length and alignment together equal one call on the whole. */
static void chunks_equal_the_whole(void **state UNUSED)
{
    enum { COUNT = 10007 };
    for (size_t k = 0; k < optimizer_registry.count; k++) {
        const struct optimizer_kind *kind =
            (const struct optimizer_kind *)optimizer_registry.entries[k];
        float *in = vector(COUNT, 1), *gradient = vector(COUNT, 2), *v = vector(2 * COUNT, 3);
        float *whole = vector(COUNT, 4), *whole_v = vector(2 * COUNT, 5);
        float *parts = vector(COUNT, 6), *parts_v = vector(2 * COUNT, 7);
        for (size_t i = COUNT; i < 2 * COUNT; i++)
            v[i] = fabsf(v[i]); /* a mean of squares is positive */
        struct optimizer_call all = {.rates = {0.5f, 0.03f, 0.9f, 0.01f, {.5f, .5f, .5f, .5f, 1}},
                                     .stride = COUNT,
                                     .count = COUNT,
                                     .in = in,
                                     .gradient = gradient,
                                     .state_in = v,
                                     .state_out = whole_v,
                                     .out = whole};
        struct random_stream r;
        kind->update(&all);
        random_open(&r, RANDOM_TEST, 1, 0, k);
        for (size_t at = 0; at < COUNT;) {
            size_t n = 1 + random_below(&r, 100);
            struct optimizer_call part = all;
            part.count = n < COUNT - at ? n : COUNT - at;
            part.in += at;
            part.gradient += at;
            part.state_in += at;
            part.state_out = parts_v + at;
            part.out = parts + at;
            kind->update(&part);
            at += part.count;
        }
        assert_memory_equal(parts, whole, COUNT * sizeof *parts);
        if (kind->states > 0)
            assert_memory_equal(parts_v, whole_v, kind->states * COUNT * sizeof *parts_v);
        float *all_vectors[] = {in, gradient, v, whole, whole_v, parts, parts_v};
        for (size_t i = 0; i < COUNT_OF(all_vectors); i++)
            memory_free(all_vectors[i]);
    }
}

static void same_bits_in_place_and_into_another_buffer(size_t count)
{
    for (size_t k = 0; k < optimizer_registry.count; k++) {
        const char *name = optimizer_registry.entries[k]->name;
        optimizer *p = opened(name, "0.9", "0.01", count), *q = opened(name, "0.9", "0.01", count);
        float *here = vector(count, 1), *a = vector(count, 1), *b = vector(count, 2);
        struct optimizer_pass one, other;
        for (uint32_t step = 0; step < 4; step++) {
            float *gradient = vector(count, 10 + step);
            optimizer_apply(p, here, gradient, 1, 0.1, NULL, here, &one);
            optimizer_apply(q, a, gradient, 1, 0.1, a, b, &other);
            assert_memory_equal(here, b, count * sizeof *here);
            assert_true(one.gradient_norm == other.gradient_norm && other.gap == 0);
            memcpy(a, b, count * sizeof *a);
            memory_free(gradient);
        }
        memory_free(here);
        memory_free(a);
        memory_free(b);
        optimizer_close(&p);
        optimizer_close(&q);
    }
}

/* Short vectors have the usual way, longer ones that of the trial (optimizer_way.h). */
static void in_place_and_into_another_buffer_give_the_same_bits(void **state UNUSED)
{
    same_bits_in_place_and_into_another_buffer(3001);
    same_bits_in_place_and_into_another_buffer(70016); /* whole lines: two states may be streamed */
}

/* Small vectors that stay in the caches and large ones that bypass them; with the gap, and with
 * θ_out in place of read_at. */
static void helpers_and_buffers_do_not_change_a_bit(void **state UNUSED)
{
    static const size_t counts[] = {600001, 1100016};
    helpers *threads = NULL;
    assert_int_equal(helpers_open_for_cores(&threads), OK);
    helpers_keep_off(threads, 0);
    for (size_t k = 0; k < optimizer_registry.count; k++) {
        for (size_t c = 0; c < COUNT_OF(counts); c++) {
            const char *name = optimizer_registry.entries[k]->name;
            const size_t count = counts[c];
            optimizer *alone = opened(name, "0.9", "0.01", count);
            optimizer *shared = opened(name, "0.9", "0.01", count);
            float *theta = vector(count, 1), *gradient = vector(count, 2);
            float *read_at = vector(count, 3), *out = vector(count, 4);
            struct optimizer_pass one, other;
            optimizer_share(shared, threads);
            for (int step = 0; step < 3; step++) {
                optimizer_apply(alone, theta, gradient, 0.5, 0.1, read_at, out, &one);
                optimizer_apply(shared, theta, gradient, 0.5, 0.1, read_at, read_at, &other);
                assert_memory_equal(read_at, out, count * sizeof *out);
                assert_true(one.finite && other.finite && one.gap > 0);
                assert_true(one.gap == other.gap && one.gradient_norm == other.gradient_norm);
                memcpy(theta, out, count * sizeof *theta);
                memset(read_at, 0, count * sizeof *read_at);
            }
            gradient[count - 1] = NAN;
            optimizer_apply(shared, theta, gradient, 1, 0.1, NULL, out, &other);
            assert_false(other.finite);
            size_t state_bytes = optimizer_state_count(alone) * sizeof(float);
            if (state_bytes > 0)
                assert_memory_equal(optimizer_state(alone), optimizer_state(shared), state_bytes);
            float *all[] = {theta, gradient, read_at, out};
            for (size_t i = 0; i < COUNT_OF(all); i++)
                memory_free(all[i]);
            optimizer_close(&alone);
            optimizer_close(&shared);
        }
    }
    helpers_close(&threads);
}

static void a_gradient_that_is_not_finite_changes_nothing(void **state UNUSED)
{
    enum { COUNT = 2000 };
    static const size_t places[] = {0, 17, 1999};
    const float poison[] = {NAN, INFINITY, -INFINITY};
    for (size_t k = 0; k < optimizer_registry.count; k++) {
        const char *name = optimizer_registry.entries[k]->name;
        optimizer *p = opened(name, "0.9", "0", COUNT);
        float *theta = vector(COUNT, 1), *out = vector(COUNT, 2), *gradient = vector(COUNT, 3);
        float *kept = vector(COUNT, 1);
        struct optimizer_pass pass;
        optimizer_apply(p, theta, gradient, 1, 0.1, NULL, out, &pass);
        float *before = vector(2 * COUNT, 9);
        size_t state_bytes = optimizer_state_count(p) * sizeof *before;
        if (state_bytes > 0)
            memcpy(before, optimizer_state(p), state_bytes);
        for (size_t i = 0; i < COUNT_OF(places); i++) {
            float good = gradient[places[i]];
            gradient[places[i]] = poison[i];
            optimizer_apply(p, theta, gradient, 1, 0.1, NULL, out, &pass);
            assert_false(pass.finite);
            optimizer_apply(p, theta, gradient, 1, 0.1, NULL, theta, &pass);
            assert_false(pass.finite);
            gradient[places[i]] = good;
        }
        assert_memory_equal(theta, kept, COUNT * sizeof *theta);
        if (state_bytes > 0)
            assert_memory_equal(before, optimizer_state(p), state_bytes);
        gradient[5] = 3e38f; /* large but finite; its square is not finite */
        optimizer_apply(p, theta, gradient, 1, 1e-30, NULL, out, &pass);
        assert_true(!pass.finite && fabs(pass.gradient_norm / 3e38 - 1) < 1e-6);
        float *all[] = {theta, out, gradient, kept, before};
        for (size_t i = 0; i < COUNT_OF(all); i++)
            memory_free(all[i]);
        optimizer_close(&p);
    }
}

/* A gradient that is rejected changes neither parameters nor states, whether the optimizer stores
 * squares or not. */
static void a_gradient_with_an_infinite_square_changes_nothing(void **state UNUSED)
{
    enum { COUNT = 2000 };
    static const struct {
        float element;
        double scale;
        bool used;
    } cases[] = {{1.8e19f, 1, true}, {1.9e19f, 1, false},  {1e25f, 1, false},
                 {1e25f, -1, false}, {1.9e19f, 0.5, true}, {1e19f, 2, false}};
    for (size_t k = 0; k < optimizer_registry.count; k++) {
        const struct optimizer_kind *kind =
            (const struct optimizer_kind *)optimizer_registry.entries[k];
        for (size_t i = 0; i < COUNT_OF(cases); i++) {
            optimizer *p = opened(kind->about.name, "0.9", "0", COUNT);
            float *theta = vector(COUNT, 1), *out = vector(COUNT, 2), *gradient = vector(COUNT, 3);
            float *kept = vector(COUNT, 1);
            struct optimizer_pass pass;
            gradient[1990] = cases[i].element;
            optimizer_apply(p, theta, gradient, cases[i].scale, 0.1, NULL, out, &pass);
            assert_int_equal(pass.finite, cases[i].used);
            for (size_t e = 0; e < COUNT && cases[i].used; e++)
                assert_true(isfinite(out[e]));
            optimizer_apply(p, theta, gradient, cases[i].scale, 0.1, NULL, theta, &pass);
            assert_int_equal(pass.finite, cases[i].used);
            assert_int_equal(memcmp(theta, kept, COUNT * sizeof *kept) == 0, !cases[i].used);
            for (size_t e = 0; e < optimizer_state_count(p); e++)
                assert_true(isfinite(optimizer_state(p)[e]));
            float *all[] = {theta, out, gradient, kept};
            for (size_t v = 0; v < COUNT_OF(all); v++)
                memory_free(all[v]);
            optimizer_close(&p);
        }
    }
}

static void an_update_continues_from_a_restored_state(void **state UNUSED)
{
    enum { COUNT = 500 };
    for (size_t k = 0; k < optimizer_registry.count; k++) {
        const char *name = optimizer_registry.entries[k]->name;
        optimizer *p = opened(name, "0.9", "0", COUNT);
        optimizer *q = opened(name, "0.9", "0", COUNT);
        float *a = vector(COUNT, 1), *b = vector(COUNT, 2), *c = vector(COUNT, 3);
        float *gradient = vector(COUNT, 4);
        struct optimizer_pass pass;
        optimizer_apply(p, a, gradient, 1, 0.1, NULL, b, &pass);
        optimizer_set_state(q, optimizer_state(p));
        optimizer_set_updates(q, 1);
        optimizer_apply(p, b, gradient, 1, 0.1, NULL, a, &pass);
        optimizer_apply(q, b, gradient, 1, 0.1, NULL, c, &pass);
        assert_memory_equal(a, c, COUNT * sizeof *a);
        float *all[] = {a, b, c, gradient};
        for (size_t i = 0; i < COUNT_OF(all); i++)
            memory_free(all[i]);
        optimizer_close(&p);
        optimizer_close(&q);
    }
}

/* 2²⁴ + 1 − 2²⁴ is 0 in float32 when summed in this order and 1 in the other order. */
static void the_ordered_mean_sums_in_argument_order(void **state UNUSED)
{
    enum { COUNT = 1500, N = 3 };
    static float x[N][COUNT], out[COUNT];
    for (int i = 0; i < COUNT; i++) {
        x[0][i] = 16777216.0f;
        x[1][i] = 1;
        x[2][i] = -16777216.0f;
    }
    const float *one[] = {x[0], x[1], x[2]}, *other[] = {x[0], x[2], x[1]};
    reduce_mean_ordered(one, N, COUNT, out);
    assert_true(out[0] == 0 && out[COUNT - 1] == 0);
    reduce_mean_ordered(other, N, COUNT, out);
    assert_true(out[0] == 1.0f / 3 && out[COUNT - 1] == 1.0f / 3);
    reduce_mean_ordered(other, N, COUNT, x[0]);
    assert_memory_equal(x[0], out, sizeof out);
    reduce_mean_ordered(other, 1, COUNT, out);
    assert_memory_equal(x[0], out, sizeof out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_steps_give_values_computed_by_hand),
        cmocka_unit_test(every_optimizer_equals_a_plain_loop_bit_for_bit),
        cmocka_unit_test(a_state_that_becomes_subnormal_is_0),
        cmocka_unit_test(a_long_gradient_is_scaled_down_to_clip_norm),
        cmocka_unit_test(weight_decay_of_matrices_leaves_vectors_out),
        cmocka_unit_test(chunks_equal_the_whole),
        cmocka_unit_test(in_place_and_into_another_buffer_give_the_same_bits),
        cmocka_unit_test(helpers_and_buffers_do_not_change_a_bit),
        cmocka_unit_test(a_gradient_that_is_not_finite_changes_nothing),
        cmocka_unit_test(a_gradient_with_an_infinite_square_changes_nothing),
        cmocka_unit_test(an_update_continues_from_a_restored_state),
        cmocka_unit_test(the_ordered_mean_sums_in_argument_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
