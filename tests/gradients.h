/*
 * gradients.h — checks of gradients by finite differences, for tests of tapes and models.
 */
#ifndef GRADLAG_TESTS_GRADIENTS_H
#define GRADLAG_TESTS_GRADIENTS_H

#include "worker/model.h"

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
/* Asserts that loss and gradient with smoothed labels are PyTorch's, on that backend. */
void assert_labels_are_smoothed(void);

#endif
