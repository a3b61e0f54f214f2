/*
 * damping_none.c — s(τ) = 1: every gradient has the full learning rate.
 *
 * Plain asynchronous SGD, as in Dean et al., "Large scale distributed deep networks" (NIPS 2012),
 * without its Adagrad.
 */
#include "ps/rules/damping/damping.h"

const struct damping_rule damping_none = {
    .about = {"none", "scale 1 for every gradient", NULL, NULL},
};
