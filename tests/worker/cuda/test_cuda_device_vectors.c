/* test_cuda_device_vectors.c — parameters that stay on the device: the gradient equals the one that
 * a copy to the host gives, the update has the bits of the host's update, and a gradient that is
 * not finite changes nothing. */
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
#include "tests/worker/cuda/cuda_rig.h"
#include "tests/worker/gradients.h"
#include "tests/worker/op_graphs.h"
#include "worker/cuda/backend_cuda.h"

static void settings_open(options **out, const char *name, const char *more)
{
    char chosen[64];
    snprintf(chosen, sizeof chosen, "optimizer=%s", name);
    assert_ok(config_compose_texts(
        out, (const char *const[]){"device=cuda", "weight_decay=0.01", chosen, more, NULL}, NULL,
        "test"));
}

/* The same training on both sides: the optimizer on the host, and the kernel on the device. */
struct pair {
    backend *backend;
    optimizer *optimizer;
    struct optimizer_rule rule;
    struct device_vectors there;
    size_t count;
    float *parameters, *gradient, *seen;
};

static void pair_open(struct pair *p, const char *name, size_t count)
{
    options *o;
    *p = (struct pair){.count = count};
    settings_open(&o, name, NULL);
    assert_ok(optimizer_open(&p->optimizer, o, count));
    assert_ok(optimizer_rule_of(o, &p->rule));
    assert_ok(backend_open(&p->backend, o, 0, 1));
    options_close(&o);
    assert_ok(memory_new(&p->parameters, count, sizeof(float), "test"));
    assert_ok(memory_new(&p->gradient, count, sizeof(float), "test"));
    assert_ok(memory_new(&p->seen, count, sizeof(float), "test"));
    assert_ok(
        p->backend->kind->device_vectors_open(p->backend, count, 4, p->rule.states, &p->there));
    assert_int_equal(p->there.state != NULL, p->rule.states > 0);
}

static void pair_close(struct pair *p)
{
    optimizer_close(&p->optimizer);
    backend_close(&p->backend);
    memory_free(p->parameters);
    memory_free(p->gradient);
    memory_free(p->seen);
}

static void upload(struct pair *p, float *to, const float *from)
{
    assert_ok(p->backend->kind->device_vectors_write(p->backend, to, from, p->count));
}

static void draw(float *out, size_t count, uint32_t name, float size)
{
    struct random_stream r;
    random_open(&r, RANDOM_TEST, 5, name, 0);
    for (size_t i = 0; i < count; i++)
        out[i] = size * (float)(2 * random_uniform(&r) - 1);
}

static void assert_same_bits(struct pair *p)
{
    assert_ok(
        p->backend->kind->device_vectors_read(p->backend, p->seen, p->there.parameters, p->count));
    assert_memory_equal(p->seen, p->parameters, p->count * sizeof(float));
    if (p->rule.states > 0) {
        assert_ok(
            p->backend->kind->device_vectors_read(p->backend, p->seen, p->there.state, p->count));
        assert_memory_equal(p->seen, optimizer_state(p->optimizer), p->count * sizeof(float));
    }
}

/* A step that only updates. */
static status update_alone(struct pair *p, double scale, double lr, struct device_result *out)
{
    status result = OK;
    backend *b = p->backend;
    const struct device_update u = {.rule = p->rule, .scale = scale, .lr = lr};
    TRY(b->kind->device_vectors_update(b, &u));
    TRY(b->kind->begin(b, p->there.parameters, p->there.gradient, p->count));
    TRY(b->kind->finish(b));
    TRY(b->kind->device_vectors_results(b, out, 1));
done:
    return result;
}

/* Applies p->gradient on both sides. True: it was finite. */
static bool step(struct pair *p, double scale, double lr)
{
    struct optimizer_pass here;
    struct device_result there;
    upload(p, p->there.gradient, p->gradient);
    optimizer_apply(p->optimizer, p->parameters, p->gradient, scale, lr, NULL, p->parameters,
                    &here);
    assert_ok(update_alone(p, scale, lr, &there));
    const double norm = sqrt(there.squares);
    assert_int_equal(here.finite, there.updated);
    if (here.finite && !(fabs(norm - here.gradient_norm) <= 1e-12 * here.gradient_norm))
        fail_msg("a norm of %.17g, not %.17g", norm, here.gradient_norm);
    return there.updated;
}

/* One element, odd ends, a little more than a chunk of the norm, several blocks. */
static const size_t counts[] = {1, 3, 4, 5, 1000, 8192, 8193, 40001};

static void an_update_has_the_bits_of_the_hosts(void **state)
{
    (void)state;
    for (size_t k = 0; k < optimizer_registry.count * COUNT_OF(counts); k++) {
        struct pair p;
        const char *name = optimizer_registry.entries[k / COUNT_OF(counts)]->name;
        pair_open(&p, name, counts[k % COUNT_OF(counts)]);
        if (p.rule.form == OPTIMIZER_HOST_ONLY) { /* it has no kernel */
            pair_close(&p);
            continue;
        }
        draw(p.parameters, p.count, 1, 1);
        upload(&p, p.there.parameters, p.parameters);
        for (uint32_t i = 0; i < 5; i++) {
            draw(p.gradient, p.count, 2 + i, i == 3 ? 1e-30f : 1);
            assert_true(step(&p, 1.0 / 3, 0.1 / (i + 1)));
            assert_same_bits(&p);
        }
        pair_close(&p);
    }
}

static void a_state_that_becomes_subnormal_is_0_as_on_the_host(void **state)
{
    (void)state;
    for (size_t k = 0; k < optimizer_registry.count; k++) {
        struct pair p;
        size_t zero = 0;
        pair_open(&p, optimizer_registry.entries[k]->name, 1001);
        if (p.rule.form == OPTIMIZER_HOST_ONLY || p.rule.states == 0) {
            pair_close(&p);
            continue;
        }
        draw(p.seen, p.count, 1, 4 * FLT_MIN);
        optimizer_set_state(p.optimizer, p.seen);
        upload(&p, p.there.state, p.seen);
        upload(&p, p.there.parameters, p.parameters);
        assert_true(step(&p, 1, 0.1));
        assert_same_bits(&p);
        for (size_t i = 0; i < p.count; i++) {
            zero += p.seen[i] == 0;
            assert_true(p.seen[i] == 0 || isnormal(p.seen[i]));
        }
        assert_true(zero > 100 && zero < 900);
        pair_close(&p);
    }
}

/* optimizer.momentum_correction=false */
static void a_rate_inside_the_velocity_has_the_bits_of_the_hosts(void **state)
{
    (void)state;
    static const char *const names[] = {"momentum", "nesterov"};
    for (size_t k = 0; k < COUNT_OF(names); k++) {
        struct pair p;
        options *o;
        pair_open(&p, names[k], 1001);
        optimizer_close(&p.optimizer);
        settings_open(&o, names[k], "optimizer.momentum_correction=false");
        assert_ok(optimizer_open(&p.optimizer, o, p.count));
        assert_ok(optimizer_rule_of(o, &p.rule));
        options_close(&o);
        assert_true(p.rule.rate_inside);
        draw(p.parameters, p.count, 1, 1);
        upload(&p, p.there.parameters, p.parameters);
        for (uint32_t i = 0; i < 5; i++) {
            draw(p.gradient, p.count, 2 + i, 1);
            assert_true(step(&p, 1.0 / 3, 0.1 / (i + 1)));
            assert_same_bits(&p);
        }
        pair_close(&p);
    }
}

static void a_gradient_that_is_not_finite_changes_nothing(void **state)
{
    (void)state;
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (size_t k = 0; k < optimizer_registry.count; k++) {
        struct pair p;
        pair_open(&p, optimizer_registry.entries[k]->name, 20000);
        if (p.rule.form == OPTIMIZER_HOST_ONLY) {
            pair_close(&p);
            continue;
        }
        draw(p.parameters, p.count, 1, 1);
        upload(&p, p.there.parameters, p.parameters);
        draw(p.gradient, p.count, 2, 1);
        assert_true(step(&p, 1, 0.1));
        const size_t places[] = {0, 8192, p.count - 1};
        for (size_t i = 0; i < COUNT_OF(places) * COUNT_OF(bad); i++) {
            draw(p.gradient, p.count, 3, 1);
            p.gradient[places[i % COUNT_OF(places)]] = bad[i / COUNT_OF(places)];
            assert_false(step(&p, 1, 0.1));
            assert_same_bits(&p);
        }
        draw(p.gradient, p.count, 4, 1);
        p.gradient[7] = FLT_MAX; /* finite, but its square overflows in float */
        assert_false(step(&p, 1, 1e-30));
        p.gradient[7] = 1e19f;
        assert_true(step(&p, 1.8, 0.1));
        assert_false(step(&p, 1.9, 0.1));
        assert_same_bits(&p);
        pair_close(&p);
    }
}

static void reopened_vectors_are_zero(void **state)
{
    (void)state;
    struct pair p;
    struct device_vectors again;
    pair_open(&p, "momentum", 1000);
    draw(p.gradient, p.count, 1, 1);
    assert_true(step(&p, 1, 0.1));
    assert_ok(p.backend->kind->device_vectors_open(p.backend, p.count, 4, 1, &again));
    assert_true(again.parameters == p.there.parameters && again.state == p.there.state);
    memset(p.parameters, 0, p.count * sizeof(float));
    assert_ok(p.backend->kind->device_vectors_read(p.backend, p.seen, again.parameters, p.count));
    assert_memory_equal(p.seen, p.parameters, p.count * sizeof(float));
    assert_ok(p.backend->kind->device_vectors_read(p.backend, p.seen, again.state, p.count));
    assert_memory_equal(p.seen, p.parameters, p.count * sizeof(float));
    pair_close(&p);
}

/* ---- gradients ----------------------------------------------------------------------------------
 */

static void open_fixture(struct fixture *f, const struct model *m, struct shape images,
                         enum precision precision, struct device_vectors *there)
{
    const struct backend_options o = {.threads = 1, .precision = precision, .place.device = -1};
    fixture_device = "cuda";
    fixture_open_on(f, &o, m, images, 5, 3);
    assert_ok(f->backend->kind->device_vectors_open(f->backend, f->count, 4, 0, there));
    assert_ok(f->backend->kind->device_vectors_write(f->backend, there->parameters, f->parameters,
                                                     f->count));
}

/* Steps with host vectors alternate with steps with resident ones: direct, captured, replayed. The
 * host parameters differ every second time and must not change the resident ones. */
static void expect_the_gradient_that_would_come_down(struct fixture *f,
                                                     struct device_vectors *there)
{
    float *seen;
    assert_ok(memory_new(&seen, f->count, sizeof(float), "test"));
    double wanted = fixture_step(f, f->parameters, f->gradient);
    for (int i = 0; i < 4; i++) {
        if (i % 2 == 1) {
            memset(f->shifted, 0, f->count * sizeof(float));
            fixture_step(f, f->shifted, seen);
        }
        double loss = fixture_step(f, there->parameters, there->gradient);
        memset(seen, 0x7f, f->count * sizeof(float));
        assert_ok(
            f->backend->kind->device_vectors_read(f->backend, seen, there->gradient, f->count));
        assert_memory_equal(seen, f->gradient, f->count * sizeof(float));
        assert_true(loss == wanted);
    }
    memory_free(seen);
}

static void a_resident_gradient_equals_the_copied_one(void **state)
{
    (void)state;
    static const enum precision precisions[] = {PRECISION_FP32, PRECISION_BF16};
    for (size_t i = 0; i < op_graph_count * COUNT_OF(precisions); i++) {
        struct model_kind kind = {.about = {.name = "test"},
                                  .forward = op_graphs[i / COUNT_OF(precisions)].forward};
        struct model m = {.kind = &kind, .classes = 10};
        struct fixture f;
        struct device_vectors there;
        open_fixture(&f, &m, op_graphs[i / COUNT_OF(precisions)].images,
                     precisions[i % COUNT_OF(precisions)], &there);
        expect_the_gradient_that_would_come_down(&f, &there);
        fixture_close(&f);
    }
}

static tensor *sometimes(tape *t, tensor *x, const struct model *m)
{
    bool other = tape_value(t, x)[0] > 1000;
    x = relu(t, conv2d(t, x, other ? "other" : "usual", 4, 3, 1, 1));
    return linear(t, x, "fc", m->classes);
}

static void declare_other(tape *t, tensor *x, const struct model *m)
{
    (void)m;
    conv2d(t, x, "other", 4, 3, 1, 1);
}

/* On the device, too, the layers of an earlier step leave no gradient. */
static void layers_not_reached_have_a_zero_gradient_there_too(void **state)
{
    (void)state;
    struct model_kind kind = {
        .about = {.name = "test"}, .forward = sometimes, .declare = declare_other};
    struct model m = {.kind = &kind, .classes = 10};
    struct fixture f;
    struct device_vectors there;
    open_fixture(&f, &m, (struct shape){2, 6, 6}, PRECISION_FP32, &there);
    for (int other = 0; other < 2; other++) {
        f.pixels[0] = other ? 2000 : 0;
        expect_the_gradient_that_would_come_down(&f, &there);
    }
    fixture_close(&f);
}

/* The last test: after it this process cannot use the GPU of the stand-in. */
static void a_fault_in_the_update_is_reported(void **state)
{
    (void)state;
    if (!cuda_rig_on_stand_in())
        skip(); /* a real GPU cannot be made to fail */
    struct pair p;
    struct device_result unused;
    pair_open(&p, "sgd", 100);
    setenv("GRADLAG_STAND_IN_FAULT", "update", 1);
    assert_int_equal(update_alone(&p, 1, 0.1, &unused), ERROR_OTHER);
    unsetenv("GRADLAG_STAND_IN_FAULT");
    pair_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_update_has_the_bits_of_the_hosts),
        cmocka_unit_test(a_state_that_becomes_subnormal_is_0_as_on_the_host),
        cmocka_unit_test(a_rate_inside_the_velocity_has_the_bits_of_the_hosts),
        cmocka_unit_test(a_gradient_that_is_not_finite_changes_nothing),
        cmocka_unit_test(reopened_vectors_are_zero),
        cmocka_unit_test(a_resident_gradient_equals_the_copied_one),
        cmocka_unit_test(layers_not_reached_have_a_zero_gradient_there_too),
        cmocka_unit_test(a_fault_in_the_update_is_reported),
    };
    return cuda_rig_run("cuda, device vectors", tests, COUNT_OF(tests), NULL, NULL);
}
