#include "tests/worker/gradients.h"
#include "tests/worker/op_graphs.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "base/memory.h"
#include "base/random.h"

static void check(status s)
{
    if (s != OK)
        fail_msg("%s", error_message());
}

const char *fixture_device = "cpu";

void fixture_open(struct fixture *f, const struct model *model, struct shape images, uint32_t batch,
                  uint64_t seed)
{
    const struct backend_options o = {.threads = 1, .place.device = -1};
    fixture_open_on(f, &o, model, images, batch, seed);
}

void fixture_open_on(struct fixture *f, const struct backend_options *o, const struct model *model,
                     struct shape images, uint32_t batch, uint64_t seed)
{
    struct random_stream r;
    const struct backend_kind *kind =
        (const struct backend_kind *)registry_find(&backend_registry, fixture_device);
    memset(f, 0, sizeof *f);
    f->model = *model;
    f->images = images;
    f->batch = batch;
    f->targets = model->kind->reads_tokens ? images.height : 1;
    check(kind->open(&f->backend, o));
    check(parameter_table_open(&f->table));
    check(model_discover(model, images, f->table));
    check(tape_open(&f->tape, f->backend, f->table, TAPE_TRAIN, images, batch));
    check(tape_set_targets(f->tape, f->targets));
    f->count = parameter_table_count(f->table);
    size_t pixels = batch * shape_count(images), labels = (size_t)batch * f->targets;
    check(memory_new(&f->parameters, f->count, sizeof(float), "parameters"));
    check(memory_new(&f->gradient, f->count, sizeof(float), "gradient"));
    check(memory_new(&f->shifted, f->count, sizeof(float), "parameters"));
    check(memory_new(&f->pixels, pixels, sizeof(float), "pixels"));
    check(memory_new(&f->labels, labels, sizeof(uint32_t), "labels"));
    parameter_table_initialise(f->table, seed, f->parameters);
    random_open(&r, RANDOM_TEST, seed, 0, 0);
    for (size_t i = 0; i < f->count; ++i)
        f->parameters[i] += (float)(0.1 * random_normal(&r)); /* non-zero biases */
    for (size_t i = 0; i < pixels; ++i)
        f->pixels[i] = model->kind->reads_tokens ? (float)random_below(&r, model->classes)
                                                 : (float)random_normal(&r);
    for (size_t i = 0; i < labels; ++i)
        f->labels[i] = random_below(&r, model->classes);
}

void fixture_close(struct fixture *f)
{
    tape_close(&f->tape);
    parameter_table_close(&f->table);
    backend_close(&f->backend);
    memory_free(f->parameters);
    memory_free(f->gradient);
    memory_free(f->shifted);
    memory_free(f->pixels);
    memory_free(f->labels);
}

double fixture_step(struct fixture *f, const float *parameters, float *gradient)
{
    struct op_loss loss;
    memcpy(tape_images(f->tape), f->pixels, f->batch * shape_count(f->images) * sizeof(float));
    memcpy(tape_labels(f->tape), f->labels, (size_t)f->batch * f->targets * sizeof(uint32_t));
    tensor *x = tape_begin(f->tape, parameters, gradient);
    tensor *logits = f->model.kind->forward(f->tape, x, &f->model);
    tensor *judged = f->target_scale != 0 ? squared_error(f->tape, logits, f->target_scale, -1)
                                          : softmax_cross_entropy(f->tape, logits);
    check(tape_finish(f->tape, judged, f->batch, &loss));
    return loss.sum / ((double)f->batch * f->targets);
}

/* The slope of the loss along `direction` (zero outside the slice), by central differences. */
static double slope(struct fixture *f, const struct parameter_slice *s, const double *direction,
                    double step)
{
    double loss[2];
    float *unused;
    check(memory_new(&unused, f->count, sizeof(float), "gradient"));
    for (int side = 0; side < 2; ++side) {
        memcpy(f->shifted, f->parameters, f->count * sizeof(float));
        for (size_t i = 0; i < s->count; ++i)
            f->shifted[s->offset + i] += (float)((side == 0 ? step : -step) * direction[i]);
        loss[side] = fixture_step(f, f->shifted, unused);
    }
    memory_free(unused);
    return (loss[0] - loss[1]) / (2 * step);
}

static void assert_slope(struct fixture *f, const struct parameter_slice *s,
                         const double *direction, double step, double scale, double tolerance)
{
    double analytic = 0;
    for (size_t i = 0; i < s->count; ++i)
        analytic += (double)f->gradient[s->offset + i] * direction[i];
    double numeric = slope(f, s, direction, step);
    if (!(fabs(analytic - numeric) <= tolerance * scale)) {
        fail_msg("%s: the gradient's slope is %g, finite differences give %g (tolerance %g)",
                 s->name, analytic, numeric, tolerance * scale);
    }
}

void assert_gradient_is_right(struct fixture *f, double step, double tolerance)
{
    struct random_stream r;
    random_open(&r, RANDOM_TEST, 1, 0, 1);
    memset(f->gradient, 0x7f,
           f->count * sizeof(float)); /* elements that are not written become visible */
    fixture_step(f, f->parameters, f->gradient);
    double all = 0;
    for (size_t i = 0; i < f->count; ++i)
        all += (double)f->gradient[i] * (double)f->gradient[i];
    for (size_t k = 0; k < parameter_table_slices(f->table); ++k) {
        const struct parameter_slice *s = parameter_table_slice(f->table, k);
        double *along, norm = 0, length = 0;
        check(memory_new(&along, s->count, sizeof(double), "a direction"));
        for (size_t i = 0; i < s->count; ++i) {
            along[i] = (double)f->gradient[s->offset + i];
            norm += along[i] * along[i];
        }
        norm = sqrt(norm);
        for (size_t i = 0; i < s->count; ++i)
            along[i] /= norm > 0 ? norm : 1;
        double scale =
            norm + 1e-2 * sqrt(all); /* allows float32 noise where a slice has little effect */
        assert_slope(f, s, along, step, scale, tolerance);
        for (size_t i = 0; i < s->count; ++i) {
            along[i] = random_normal(&r);
            length += along[i] * along[i];
        }
        for (size_t i = 0; i < s->count; ++i)
            along[i] /= sqrt(length);
        assert_slope(f, s, along, step, scale, tolerance);
        memory_free(along);
    }
}

/* ---- against another implementation ---- */

double gradient_distance(const float *gradient, const float *reference, size_t count)
{
    double apart = 0, length = 0;
    for (size_t i = 0; i < count; ++i) {
        double difference = (double)gradient[i] - (double)reference[i];
        apart += difference * difference;
        length += (double)reference[i] * (double)reference[i];
    }
    return sqrt(apart / length);
}

/* Neighbours must differ by more than two implementations do, so that they cross the kinks between
 * these; but only by little more, because each neighbour crosses other kinks too. */
enum { NEIGHBOURS = 128, MOST_KINKS = 96 };

static void neighbour_of(const float *parameters, size_t count, unsigned which, float *out)
{
    struct random_stream r;
    const double radius = ldexp(1, -20 + (int)(which % 3));
    random_open(&r, RANDOM_TEST, 2, which, 0);
    for (size_t i = 0; i < count; ++i)
        out[i] = (float)((double)parameters[i] * (1 + radius * random_normal(&r)));
}

static double product(const float *a, const float *b, size_t count)
{
    double sum = 0;
    for (size_t i = 0; i < count; ++i)
        sum += (double)a[i] * (double)b[i];
    return sum;
}

/* v ← v + factor · w */
static void add_scaled(float *v, double factor, const float *w, size_t count)
{
    for (size_t i = 0; i < count; ++i)
        v[i] = (float)((double)v[i] + factor * (double)w[i]);
}

static float *new_vector(size_t count)
{
    float *v;
    check(memory_new(&v, count, sizeof(float), "a gradient"));
    return v;
}

/* Gram-Schmidt orthogonalisation: `jumps` are orthonormal, `rest` is orthogonal to them. */
double gradient_distance_beside_kinks(const struct gradient_reference *reference,
                                      const float *gradient, double bound)
{
    const size_t count = reference->count;
    float *here = new_vector(count), *rest = new_vector(count), *neighbour = new_vector(count);
    float *jumps[MOST_KINKS];
    unsigned found = 0;
    reference->compute(reference->context, reference->parameters, here);
    const double length = sqrt(product(here, here, count));
    memcpy(rest, gradient, count * sizeof(float));
    add_scaled(rest, -1, here, count);
    double left = sqrt(product(rest, rest, count)) / length;
    for (unsigned k = 0; k < NEIGHBOURS && found < MOST_KINKS && !(left < bound); ++k) {
        float *jump = new_vector(count);
        neighbour_of(reference->parameters, count, k, neighbour);
        reference->compute(reference->context, neighbour, jump);
        add_scaled(jump, -1, here, count);
        for (unsigned i = 0; i < found; ++i)
            add_scaled(jump, -product(jump, jumps[i], count), jumps[i], count);
        const double norm = sqrt(product(jump, jump, count));
        if (!(norm > bound * length)) { /* no new kink */
            memory_free(jump);
            continue;
        }
        add_scaled(jump, 1 / norm - 1, jump, count);
        add_scaled(rest, -product(rest, jump, count), jump, count);
        left = sqrt(product(rest, rest, count)) / length;
        jumps[found++] = jump;
    }
    for (unsigned i = 0; i < found; ++i)
        memory_free(jumps[i]);
    memory_free(here);
    memory_free(rest);
    memory_free(neighbour);
    return left;
}

static void compute_of_fixture(void *context, const float *parameters, float *gradient)
{
    fixture_step(context, parameters, gradient);
}

struct gradient_reference gradient_of_fixture(struct fixture *f)
{
    return (struct gradient_reference){compute_of_fixture, f, f->parameters, f->count};
}

static void compute_of_worker(void *context, const float *parameters, float *gradient)
{
    const struct worker_batch *b = context;
    struct step_stats stats;
    check(worker_gradient(b->worker, parameters, b->batch, gradient, &stats));
}

struct gradient_reference gradient_of_worker(struct worker_batch *b, const float *parameters)
{
    return (struct gradient_reference){compute_of_worker, b, parameters,
                                       worker_parameter_count(b->worker)};
}

static tensor *logits_of_pixels(tape *t, tensor *x, const struct model *m)
{
    return linear(t, x, "fc", m->classes);
}

/* Values of torch 2.15: cross_entropy(logits, labels, label_smoothing=0.1) and its gradient. With
 * the identity as weights and no bias the pixels are the logits, and the gradient of the bias is
 * the sum of their gradients over the batch. */
void assert_labels_are_smoothed(void)
{
    static const float logits[3][4] = {{1.5f, -0.5f, 0.25f, 2}, {0, 1, -1, 0.5f}, {3, -2, 0.5f, 0}};
    static const uint32_t labels[] = {3, 1, 0};
    static const double slopes[3][4] = {
        {0.100224443, 0.00635836227, 0.0227689873, -0.129351795},
        {0.0497904904, -0.150336385, 0.0130492263, 0.0874966457},
        {-0.0155787412, -0.00636076927, 0.0156974252, 0.00624205871}};
    const struct model_kind kind = {.about = {.name = "test"}, .forward = logits_of_pixels};
    const struct model m = {.kind = &kind, .classes = 4};
    struct fixture f;
    fixture_open(&f, &m, (struct shape){4, 1, 1}, 3, 3);
    tape_smooth_labels(f.tape, 0.1);
    assert_gradient_is_right(&f, 1e-2, 5e-3);
    memset(f.parameters, 0, f.count * sizeof(float));
    for (size_t k = 0; k < 4; ++k)
        f.parameters[5 * k] = 1;
    memcpy(f.pixels, logits, sizeof logits);
    memcpy(f.labels, labels, sizeof labels);
    assert_true(fabs(fixture_step(&f, f.parameters, f.gradient) - 0.655661941) < 1e-6);
    for (size_t k = 0; k < 4; ++k) {
        double expected = slopes[0][k] + slopes[1][k] + slopes[2][k];
        assert_true(fabs((double)f.gradient[16 + k] - expected) < 1e-6);
        for (size_t i = 0; i < 4; ++i) {
            double of_weight = 0;
            for (size_t n = 0; n < 3; ++n)
                of_weight += slopes[n][k] * (double)logits[n][i];
            assert_true(fabs((double)f.gradient[4 * k + i] - of_weight) < 1e-6);
        }
    }
    fixture_close(&f);
}

static tensor *relu_of_convolution(tape *t, tensor *x, const struct model *m)
{
    return linear(t, relu(t, conv2d(t, x, "conv", 8, 3, 1, 0)), "fc", m->classes);
}

static tensor *relu_of_sum(tape *t, tensor *x, const struct model *m)
{
    tensor *a = conv2d(t, x, "a", 8, 3, 1, 0), *b = conv2d(t, x, "b", 8, 3, 1, 0);
    return linear(t, relu(t, add(t, a, b)), "fc", m->classes);
}

void assert_relu_keeps_nan(void)
{
    static forward_function *const graphs[] = {relu_of_convolution, relu_of_sum};
    for (size_t i = 0; i < COUNT_OF(graphs); ++i) {
        const struct model_kind kind = {.about = {.name = "test"}, .forward = graphs[i]};
        const struct model m = {.kind = &kind, .classes = 4};
        struct fixture f;
        fixture_open(&f, &m, (struct shape){3, 6, 6}, 16, 3);
        assert_true(isfinite(fixture_step(&f, f.parameters, f.gradient)));
        f.pixels[0] = NAN;
        assert_true(isnan(fixture_step(&f, f.parameters, f.gradient)));
        fixture_close(&f);
    }
}
