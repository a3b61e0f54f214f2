/*
 * sweep_axis.h — the values that a sweep gives one key: "1,2,4", or so many points of a range.
 */
#ifndef GRADLAG_EXPERIMENTS_SWEEP_SWEEP_AXIS_H
#define GRADLAG_EXPERIMENTS_SWEEP_SWEEP_AXIS_H

#include "experiments/config/config.h"

enum { AXIS_VALUES = 256 };

struct axis {
    const char *key, *origin;  /* borrowed from the setting */
    char *values[AXIS_VALUES]; /* owned */
    size_t count;
};

/* Cuts a setting's value at the commas that stand outside parentheses, and takes enclosing ones
 * off; "0.01..1:log:5" becomes its points. ERROR_USAGE */
status axis_read(struct axis *out, const struct setting *s) MUST_CHECK;
void axis_free(struct axis *a);
/* What the axes come to in combination `number`, the last one running fastest. */
void axes_choose(const struct axis *axes, size_t count, size_t number, struct settings *out);
/* The settings of that combination: `fixed` and those. */
void axes_combine(const struct axis *axes, size_t count, const struct settings *fixed,
                  size_t number, struct settings *out);

#endif
