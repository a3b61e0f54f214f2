/*
 * gradients.h — checks of gradients, for tests of tapes and models: by finite differences, and
 * against another implementation.
 */
#ifndef GRADLAG_TESTS_GRADIENTS_H
#define GRADLAG_TESTS_GRADIENTS_H

#include "worker/model.h"
#include "worker/worker.h"

/* A model with all it needs to be run on fixed random images and labels. */
struct fixture {
    struct model model;
    backend *backend;
    parameter_table *table;
    tape *tape;
    struct shape images;
    uint32_t batch;
    size_t count;
    float *parameters, *gradient, *shifted;
    float *pixels;
    uint32_t *labels;
    float target_scale; /* not 0: squared error from the labels' numbers, not cross-entropy */
};

/* The backend that fixtures are opened on: "cpu" until somebody says otherwise. */
extern const char *fixture_device;

/* On that backend; parameters and images from the random stream (RANDOM_TEST, seed). */
void fixture_open(struct fixture *f, const struct model *model, struct shape images, uint32_t batch,
                  uint64_t seed);
/* The same with these options of the backend. */
void fixture_open_on(struct fixture *f, const struct backend_options *o, const struct model *model,
                     struct shape images, uint32_t batch, uint64_t seed);
void fixture_close(struct fixture *f);
/* Mean loss at `parameters`; its gradient goes to `gradient`. */
double fixture_step(struct fixture *f, const float *parameters, float *gradient);
/* Asserts that in each slice, along the gradient itself and along a random direction, the loss
 * changes as the gradient says. `tolerance` is relative to the slice's gradient. */
void assert_gradient_is_right(struct fixture *f, double step, double tolerance);

/* ‖gradient − reference‖ / ‖reference‖ */
double gradient_distance(const float *gradient, const float *reference, size_t count);

/* Another implementation of the gradient that a test looks at. */
struct gradient_reference {
    void (*compute)(void *context, const float *parameters, float *gradient);
    void *context;
    const float *parameters;
    size_t count;
};
/* The distance of `gradient` from the reference's at `parameters`, but for the jumps at kinks.
 *
 * A gradient jumps where the input of a ReLU is 0 or where two inputs of a maximum are equal. If an
 * input is that close to a kink, rounding decides the side: it depends on the processor, the number
 * of threads and the split of the batch, and the gradients of both sides are right. So, if the
 * distance is `bound` or more, the reference computes at neighbours of `parameters` too, some units
 * in the last place away. What they differ by from its gradient at `parameters` are the jumps at
 * the kinks nearby. Returns the length of what is left of gradient − reference outside the space
 * that these jumps span, by ‖reference‖. */
double gradient_distance_beside_kinks(const struct gradient_reference *reference,
                                      const float *gradient, double bound);
/* The gradients of a fixture, and of a worker for one batch, as references. */
struct gradient_reference gradient_of_fixture(struct fixture *f);
struct worker_batch {
    worker *worker;
    uint64_t batch;
};
struct gradient_reference gradient_of_worker(struct worker_batch *b, const float *parameters);
/* Asserts that loss and gradient with smoothed labels are PyTorch's, on that backend. */
void assert_labels_are_smoothed(void);

#endif
