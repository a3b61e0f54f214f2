#include "tests/worker/cuda/cuda_against_cpu.h"

#include <math.h>
#include <string.h>

const struct backend_options cuda_fp32 = {.threads = 1, .place.device = -1};

struct backend_options cuda_in_precision(enum precision p)
{
    struct backend_options o = cuda_fp32;
    o.precision = p;
    return o;
}

struct model cuda_of_graph(struct model_kind *kind, forward_function *forward)
{
    *kind = (struct model_kind){.about = {.name = "test"}, .forward = forward};
    return (struct model){.kind = kind, .classes = CUDA_TEST_CLASSES};
}

void cuda_open_on(struct fixture *f, const char *device, const struct backend_options *o,
                  const struct model *m, struct shape images, uint32_t batch)
{
    fixture_device = device;
    fixture_open_on(f, o, m, images, batch, 3);
}

static void print_slices(const struct fixture *a, const struct fixture *b)
{
    for (size_t k = 0; k < parameter_table_slices(b->table); ++k) {
        const struct parameter_slice *s = parameter_table_slice(b->table, k);
        print_message(
            "  %s: %g\n", s->name,
            gradient_distance(a->gradient + s->offset, b->gradient + s->offset, s->count));
    }
}

void cuda_equals_cpu(const char *name, const struct model *m, struct shape images, uint32_t batch,
                     double bound)
{
    struct fixture cpu, cuda;
    cuda_open_on(&cpu, "cpu", &cuda_fp32, m, images, batch);
    cuda_open_on(&cuda, "cuda", &cuda_fp32, m, images, batch);
    const struct gradient_reference reference = gradient_of_fixture(&cpu);
    double wanted = fixture_step(&cpu, cpu.parameters, cpu.gradient);
    for (int step = 0; step < 3; ++step) {
        memset(cuda.gradient, 0x7f,
               cuda.count * sizeof(float)); /* elements that are not written become visible */
        double loss = fixture_step(&cuda, cuda.parameters, cuda.gradient);
        double of_gradient = gradient_distance_beside_kinks(&reference, cuda.gradient, bound);
        double of_loss = fabs(loss - wanted) / wanted;
        if (!(of_loss < bound && of_gradient < bound)) {
            print_slices(&cuda, &cpu);
            fail_msg("%s, batch %u, step %d: %g off the cpu in the loss, %g in the gradient; at "
                     "most %g is right",
                     name, batch, step, of_loss, of_gradient, bound);
        }
    }
    fixture_close(&cpu);
    fixture_close(&cuda);
}

static void make_similar(struct fixture *f)
{
    size_t size = shape_count(f->images);
    parameter_table_initialise(f->table, 3, f->parameters);
    memset(f->labels, 0, (size_t)f->batch * f->targets * sizeof(uint32_t));
    for (size_t k = size; k < f->batch * size && !f->model.kind->reads_tokens; ++k)
        f->pixels[k] = f->pixels[k % size] + f->pixels[k];
}

void cuda_is_near_cpu(const char *name, const struct model *m, struct shape images, uint32_t batch,
                      enum precision precision, double bound)
{
    const struct backend_options o = cuda_in_precision(precision);
    struct fixture cpu, cuda;
    cuda_open_on(&cpu, "cpu", &cuda_fp32, m, images, batch);
    cuda_open_on(&cuda, "cuda", &o, m, images, batch);
    make_similar(&cpu);
    make_similar(&cuda);
    double wanted = fixture_step(&cpu, cpu.parameters, cpu.gradient);
    double loss = fixture_step(&cuda, cuda.parameters, cuda.gradient);
    double of_gradient = gradient_distance(cuda.gradient, cpu.gradient, cpu.count);
    double of_loss = fabs(loss - wanted) / wanted;
    /* A smaller difference means another precision. */
    double noticeable = precision == PRECISION_TF32 ? 1e-5 : 1e-4;
    if (!(of_loss < bound && of_gradient < bound && of_gradient > noticeable)) {
        fail_msg("%s, %s: %g off the cpu in the loss, %g in the gradient; at most %g, and in "
                 "the gradient at least %g, is right",
                 name, precision == PRECISION_TF32 ? "tf32" : "bf16", of_loss, of_gradient, bound,
                 noticeable);
    }
    fixture_close(&cpu);
    fixture_close(&cuda);
}

struct cuda_command_statistics cuda_statistics_of(const struct fixture *f)
{
    struct cuda_command_statistics s;
    cuda_command_statistics((const struct cuda *)f->backend, &s);
    return s;
}
