/*
 * statistics.h — mean, standard deviation and 95 % interval of a few numbers, such as the results
 * of several seeds.
 */
#ifndef GRADLAG_RESULTS_QUERY_STATISTICS_H
#define GRADLAG_RESULTS_QUERY_STATISTICS_H

/* Zero-initialise. Welford's algorithm, which keeps its precision if the spread is small. */
struct sample {
    unsigned n, infinite;
    double mean, squares; /* squares: sum of squared distances from the mean */
    double least, most;
};
/* Ignores values that are not finite, but counts the infinite ones. */
void sample_add(struct sample *s, double value);
/* The mean; NaN if n is 0. */
double sample_mean(const struct sample *s);
/* Sample standard deviation (n - 1), and half of the 95 % interval of the mean by Student's t; NaN
 * for n < 2. */
double sample_deviation(const struct sample *s);
double sample_interval(const struct sample *s);

/* The 97.5 % quantile of Student's t, the factor of the standard error for that interval.
 * freedom > 0. */
double student_95(unsigned freedom);

/* Number of decimals for a value beside its band, so that rounding does not move the value across
 * an end of the band: at least two, and at least as many as the ends of the band have. */
int band_decimals(double value, double low, double high);

#endif
