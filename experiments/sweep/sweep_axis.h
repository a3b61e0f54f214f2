/*
 * sweep_axis.h — the values that a sweep tries for one key: a list "1,2,4" or points of a range.
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

/* Splits a setting's value at commas outside parentheses, unless it is whole, and removes enclosing
 * parentheses. A range with a number of points, "0.01..1:log:5", becomes these points.
 * ERROR_USAGE */
status axis_read(struct axis *out, const struct setting *s) MUST_CHECK;
void axis_free(struct axis *a);
/* ERROR_USAGE: a dotted key that no value of its part has (damping=none,inverse damping.power=0.5).
 * Skips keys of a search, and keys for which settings_is_overruled() is true. */
status axes_check_dotted(const struct settings *read) MUST_CHECK;
/* Adds the settings of combination `number`; the last axis varies fastest. */
void axes_choose(const struct axis *axes, size_t count, size_t number, struct settings *out);
/* Adds `fixed` and the settings of that combination. */
void axes_combine(const struct axis *axes, size_t count, const struct settings *fixed,
                  size_t number, struct settings *out);

#endif
