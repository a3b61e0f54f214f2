/*
 * random.h — counter-based random streams: Philox4x32-10 (Salmon et al., "Parallel random numbers:
 * as easy as 1, 2, 3", SC 2011).
 *
 * A stream is named by (purpose, seed, worker, step) and never by arrival order, so any process can
 * draw any number again. Two streams with different names share no numbers.
 */
#ifndef GRADLAG_BASE_RANDOM_H
#define GRADLAG_BASE_RANDOM_H

#include "base/status.h"

enum random_purpose { /* never renumber: the values determine the streams of recorded runs */
                      RANDOM_INITIALISATION = 1, /* worker 0, step = parameter slice */
                      RANDOM_SHUFFLE = 2,        /* step = pass over the shard */
                      RANDOM_DATASET = 3,        /* synthetic data: step = sample or class */
                      RANDOM_PACE = 4,           /* step = the worker's step */
                      RANDOM_AUGMENTATION = 5,   /* step = batch; its samples in turn */
                      RANDOM_SEARCH = 7,
                      RANDOM_TEST = 8,
                      RANDOM_CRASH = 9,     /* step = the virtual worker's life */
                      RANDOM_JITTER = 10,   /* step = the virtual worker's messages */
                      RANDOM_SHARE = 11,    /* step = the virtual worker's messages */
                      RANDOM_WINDOWS = 12,  /* windows of a text: step = batch */
                      RANDOM_SLOWDOWN = 13, /* slow-downs: worker = rack, step = window of time */
                      RANDOM_JOIN = 14,     /* step 0: the late virtual worker */
};

struct random_stream {
    uint32_t key[2], counter[4], block[4];
    unsigned used; /* words of `block` that are used */
};

/* The raw function: counter, key → 4 words. */
void philox4x32_10(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

void random_open(struct random_stream *r, enum random_purpose purpose, uint64_t seed,
                 uint32_t worker, uint64_t step);
uint32_t random_bits(struct random_stream *r);
double random_uniform(struct random_stream *r);                 /* [0, 1), 53 bits */
uint32_t random_below(struct random_stream *r, uint32_t bound); /* [0, bound), unbiased */
double random_normal(struct random_stream *r);                  /* mean 0, variance 1 */
/* `count` values of random_normal, faster. */
void random_normals(struct random_stream *r, double *out, size_t count);
double random_gamma(struct random_stream *r, double shape); /* mean = shape, scale 1 */
/* Fisher–Yates. */
void random_permutation(struct random_stream *r, uint32_t *out, uint32_t count);

#endif
