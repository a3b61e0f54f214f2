/*
 * gradients.h — checks of gradients for tests of tapes and models: against finite differences and
 * against another implementation.
 */
#ifndef GRADLAG_TESTS_WORKER_GRADIENTS_H
#define GRADLAG_TESTS_WORKER_GRADIENTS_H

#include "worker/model/model.h"
#include "worker/worker.h"

/* A model with everything needed to run it on fixed random images or tokens and labels. */
struct fixture {
    struct model model;
    backend *backend;
    parameter_table *table;
    tape *tape;
    struct shape images;
    uint32_t batch;
    uint32_t targets; /* labels of one sample: 1, or images.height of a model that reads tokens */
    size_t count;
    float *parameters, *gradient, *shifted;
    float *pixels;      /* or tokens */
    uint32_t *labels;   /* [batch][targets] */
    float target_scale; /* not 0: the loss is the squared error of the labels' numbers */
};

/* The backend of the fixtures; initially "cpu". */
extern const char *fixture_device;

/* Opens a fixture on that backend; parameters and images come from the random stream (RANDOM_TEST,
 * seed). */
void fixture_open(struct fixture *f, const struct model *model, struct shape images, uint32_t batch,
                  uint64_t seed);
/* fixture_open with these backend options. */
void fixture_open_on(struct fixture *f, const struct backend_options *o, const struct model *model,
                     struct shape images, uint32_t batch, uint64_t seed);
void fixture_close(struct fixture *f);
/* Returns the mean loss over samples and labels at `parameters` and writes its gradient to
 * `gradient`. */
double fixture_step(struct fixture *f, const float *parameters, float *gradient);
/* Asserts for each slice that the loss changes along the gradient and along a random direction as
 * the gradient predicts. `tolerance` is relative to the slice's gradient. */
void assert_gradient_is_right(struct fixture *f, double step, double tolerance);

/* ‖gradient − reference‖ / ‖reference‖ */
double gradient_distance(const float *gradient, const float *reference, size_t count);

/* Another implementation of the gradient under test. */
struct gradient_reference {
    void (*compute)(void *context, const float *parameters, float *gradient);
    void *context;
    const float *parameters;
    size_t count;
};
/* The distance of `gradient` from the reference's gradient at `parameters`, without jumps at kinks.
 *
 * A gradient jumps where the input of a ReLU is 0 or where two inputs of a maximum are equal. If an
 * input is that close to a kink, rounding decides the side. It depends on the processor, the number
 * of threads and the split of the batch, and the gradients of both sides are correct. If the
 * distance is `bound` or more, the reference therefore also computes at neighbours of `parameters`,
 * a few units in the last place away. Their differences from its gradient at `parameters` are the
 * jumps at the nearby kinks. The function returns the length of gradient − reference outside the
 * space that these jumps span, divided by ‖reference‖. */
double gradient_distance_beside_kinks(const struct gradient_reference *reference,
                                      const float *gradient, double bound);
/* The gradients of a fixture, and of a worker for one batch, as references. */
struct gradient_reference gradient_of_fixture(struct fixture *f);
struct worker_batch {
    worker *worker;
    uint64_t batch;
};
struct gradient_reference gradient_of_worker(struct worker_batch *b, const float *parameters);
/* Asserts on that backend that loss and gradient with smoothed labels equal PyTorch's. */
void assert_labels_are_smoothed(void);
/* Asserts on that backend that a NaN before a ReLU makes the loss NaN. Libraries compute other
 * ReLUs: that of a convolution on several threads, and that of a linear layer on a GPU. */
void assert_relu_keeps_nan(void);

#endif
