/*
 * packed.h — numbers of push rows in fewer bytes than eight: as an INTEGER where one of these forms
 * holds the value exactly (times: to the nanosecond), else as the REAL that it is. push.sql undoes
 * them in plain SQL. Internal to results/.
 */
#ifndef GRADLAG_RESULTS_PACKED_H
#define GRADLAG_RESULTS_PACKED_H

#include "results/database.h"

/* m / 2^s as 64 m + s, with |m| < 2^25 and 0 ≤ s ≤ 62: every float32 of at least 2^-39 and below
 * 2^25, in four bytes or less. */
bool packed_fraction(double value, int64_t *out);
/* Rounded to whole nanoseconds, six bytes for a day and a half. */
bool packed_seconds(double value, int64_t *out);
/* A learning rate before its scale, in billionths: 0.02 is 20000000, and `rate` is exactly
 * *out / 1e9 × scale. */
bool packed_rate(double rate, double scale, int64_t *out);

/* For bringing an older file up to date: gradlag_fraction(x), gradlag_nanoseconds(x) and
 * gradlag_base_rate(rate, scale) give what is stored. */
status packed_offer_functions(sqlite3 *db) MUST_CHECK;

#endif
