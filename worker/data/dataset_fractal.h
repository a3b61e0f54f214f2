/*
 * dataset_fractal.h — the image generator of dataset=fractal, separate from options and cache so
 * that tests can call it.
 *
 * It follows FractalDB (Kataoka et al., "Pre-training without natural images", ACCV 2020): a class
 * is an iterated function system of affine maps x ← A x + b. An image is drawn by the chaos game
 * with a slightly changed copy of its class's system. As in Anderson & Farrell 2022, A is drawn by
 * its singular values, so that every system contracts. Unlike FractalDB, a class that resembles an
 * earlier class is drawn again.
 *
 * Class c is a function of (seed, c) and the earlier classes. Sample n of a split is a function of
 * (seed, split, n) and its class. The generator uses only + − × ÷ √, so every machine produces the
 * same bytes.
 */
#ifndef GRADLAG_WORKER_DATA_DATASET_FRACTAL_H
#define GRADLAG_WORKER_DATA_DATASET_FRACTAL_H

#include "worker/data/dataset.h"

/* Fills images[s] and labels[s] of all splits with `threads` threads; the bytes do not depend on
 * the number of threads. `variation` in [0, 1]: how much a sample differs from its class. */
status fractal_generate(const struct dataset *shape, uint64_t seed, double variation,
                        unsigned threads, uint8_t *const images[SPLIT_COUNT],
                        uint32_t *const labels[SPLIT_COUNT]) MUST_CHECK;

#endif
