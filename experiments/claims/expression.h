/*
 * expression.h — the value of a claim: arithmetic over what the runs of an experiment came to.
 *
 *   accuracy(one, 1) - accuracy(async, 16)
 *
 * Numbers, + − × / as + - * /, parentheses, min(a, b, …), max(a, b, …), abs(a), hypot(a, b), and
 * measures NAME(arm, workers) or NAME(arm, workers, number), which are means over the seeds. Which
 * measures there are, and which want a number, the caller decides. Measures whose names begin with
 * "paired" compare two cells: NAME(arm, other, workers), or NAME(arm, workers, other, workers).
 */
#ifndef GRADLAG_EXPERIMENTS_CLAIMS_EXPRESSION_H
#define GRADLAG_EXPERIMENTS_CLAIMS_EXPRESSION_H

#include "base/status.h"

struct measures {
    void *context;
    /* *out NaN: not measured. ERROR_USAGE: there is no such measure, arm or worker count, or it
     * wants a number (`given` is NaN where none stands there), or wants none. */
    status (*measure)(void *context, const char *name, const char *arm, int64_t workers,
                      double given, double *out);
    /* The same of a pair; may be NULL: there are none. */
    status (*pair)(void *context, const char *name, const char *arm, int64_t workers,
                   const char *other, int64_t other_workers, double *out);
};
/* *value is NaN where something was not measured. ERROR_USAGE: malformed. */
status expression_value(const char *text, const struct measures *m, double *value) MUST_CHECK;

#endif
