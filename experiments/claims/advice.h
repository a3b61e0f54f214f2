/*
 * advice.h — reads a map of clusters (query `crossover`): which mode is ahead on clusters like a
 * user's, and what the map does not know about it.
 *
 * A map has a value of each axis in each of its cells. For each axis that the user's settings name,
 * the cells with this value are kept, or those with the next lower and the next higher one, among
 * cells with the same values of the axes before. An axis that they do not name keeps all its
 * values.
 *
 * The network counts relative to a step: a message of P floats takes 32 P bits / bandwidth. If the
 * user's model or mean step time differ from the map's, the bandwidth with the same ratio of
 * message to step is looked up, and the latency with the same ratio to a step.
 */
#ifndef GRADLAG_EXPERIMENTS_CLAIMS_ADVICE_H
#define GRADLAG_EXPERIMENTS_CLAIMS_ADVICE_H

#include "base/text.h"
#include "experiments/config/config.h"

#include <stdio.h>

enum advice_axis {
    ADVICE_WORKERS,
    ADVICE_SLOW_FACTOR,
    ADVICE_SLOW_WORKERS,
    ADVICE_WORKER_CV,
    ADVICE_GBPS, /* 0: no limit */
    ADVICE_LATENCY,
    ADVICE_AXES
};
struct advice_cell {
    double at[ADVICE_AXES], mean_ms;
    double margin, interval; /* fractions of 1, or losses; interval NaN for one seed */
    const char *experiment, *model, *dataset, *ahead, *commit; /* point into advice.csv */
    const char *sync_arm, *async_arm, *seeds;
    bool is_loss;    /* the metric */
    bool kept, near; /* near: while cells are chosen */
};
struct advice {                /* zero-initialise; close with advice_close() */
    char *csv;                 /* owned, by free() */
    struct advice_cell *cells; /* [count] */
    size_t count;
    const char *source;  /* the file; NULL: the published map */
    struct text unknown; /* lines: what the map does not know */
};

/* Reads the published map, or that of the file `results`: a results file, or a map in CSV if its
 * name ends in ".csv". `experiment`: NULL, all. ERROR_USAGE: there is no cell. ERROR_RESULTS: the
 * file. The published map is experiments/questions/crossover.csv, which `make map` writes; the
 * program may be built without it (ERROR_USAGE). */
status advice_open(struct advice *out, const char *results, const char *experiment) MUST_CHECK;
void advice_close(struct advice *a);
/* Keeps the cells of one experiment, model, dataset and mean step time: those of the settings if
 * the map has them, else the map's first model and dataset, and the nearest step time. */
void advice_choose(struct advice *a, const struct settings *s);
/* Numbers of parameters of the user's model and of the map's; 1 and 1 if they are the same model or
 * one of them is external. */
struct advice_sizes {
    double own, of_map;
};
/* Keeps the cells nearest to these settings; there is always one. */
void advice_ask(struct advice *a, const struct settings *s, const struct advice_sizes *sizes);
void advice_print(const struct advice *a, FILE *to);

#endif
