/*
 * advice.h — reads a map of clusters (query `crossover`): which mode is ahead on clusters like a
 * user's, and what the map does not know about it.
 *
 * Each cell of a map has a value on each axis. advice_ask() takes the axes one after the other. If
 * the user's settings name an axis, it keeps the cells with this value, or else those with the next
 * lower and the next higher value. It compares only cells with the same values on the earlier axes.
 * If the settings do not name an axis, all its values are kept.
 *
 * The network counts relative to a step: a message of P floats takes 32 P bits / bandwidth. If the
 * user's model or mean step time differ from the map's, advice_ask() looks up the bandwidth with
 * the same ratio of message time to step time, and the latency with the same ratio to a step.
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
    bool is_loss;    /* margin is a difference of losses, not of accuracies */
    bool kept, near; /* near: used only while advice_ask() chooses cells */
};
struct advice {                /* zero-initialise; close with advice_close() */
    char *csv;                 /* owned, by free() */
    struct advice_cell *cells; /* [count] */
    size_t count;
    const char *source;  /* the file; NULL: the published map */
    struct text unknown; /* lines: what the map does not know */
};

/* Reads the published map, or that of the file `results`: a results file, or a map in CSV if its
 * name ends in ".csv". `experiment` NULL: all experiments. ERROR_USAGE: the map has no cell.
 * ERROR_RESULTS: the file cannot be read. The published map is experiments/questions/crossover.csv,
 * which `make map` writes; the program may be built without it (ERROR_USAGE). */
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
