/*
 * expression.h — the value of a claim: arithmetic over the results of an experiment's runs.
 *
 *   accuracy(one, 1) - accuracy(async, 16)
 *
 * An expression has numbers, + - * /, parentheses, min(a, b, …), max(a, b, …), abs(a),
 * hypot(a, b, …) and measures. A measure is NAME(arm, workers) or NAME(arm, workers, number): a
 * mean over seeds. The caller provides the measures. A measure whose name begins with "paired"
 * compares two cells: NAME(arm, other, workers) or NAME(arm, workers, other, workers). If a column
 * has several levels, all of them take the place of `workers`: NAME(arm, slow, 10g, 16).
 */
#ifndef GRADLAG_EXPERIMENTS_CLAIMS_EXPRESSION_H
#define GRADLAG_EXPERIMENTS_CLAIMS_EXPRESSION_H

#include "base/status.h"

struct measures {
    void *context;
    /* Sets *out to NaN if the runs are not complete. `number` is NaN if the expression has none.
     * ERROR_USAGE: the measure, the arm or its column does not exist; the number is missing
     * or not allowed. */
    status (*measure)(void *context, const char *name, const char *arm, int64_t column,
                      double number, double *out);
    /* The column with these levels, `levels` in number. */
    size_t levels;
    status (*column)(void *context, const char (*names)[64], int64_t *out);
    bool (*is_level)(void *context, const char *name);
    /* The same as `measure` for a pair of cells; NULL: there are no such measures. */
    status (*pair)(void *context, const char *name, const char *arm, int64_t column,
                   const char *other, int64_t other_column, double *out);
};
/* *value is NaN if a measure is NaN. ERROR_USAGE: the expression is malformed. */
status expression_value(const char *text, const struct measures *m, double *value) MUST_CHECK;

#endif
