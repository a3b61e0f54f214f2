/*
 * statistics.h — a handful of numbers, such as the seeds of one configuration: mean, spread, and
 * the interval that holds the true mean 19 times in 20.
 */
#ifndef GRADLAG_RESULTS_QUERY_STATISTICS_H
#define GRADLAG_RESULTS_QUERY_STATISTICS_H

/* Zero-initialise. Welford's running mean: no loss of digits where the spread is small. */
struct sample {
    unsigned n;
    double mean, squares; /* squares: sum of squared distances from the mean */
    double least, most;
};
/* What is not finite is not counted. */
void sample_add(struct sample *s, double value);
/* The mean, or NaN where n is 0. */
double sample_mean(const struct sample *s);
/* Sample standard deviation (n - 1), and half of the 95 % interval of the mean by Student's t; NaN
 * for n < 2. */
double sample_deviation(const struct sample *s);
double sample_interval(const struct sample *s);

/* The 97.5 % point of Student's t: what a mean's standard error is multiplied by for that
 * interval. freedom > 0. */
double student_95(unsigned freedom);

/* With how many decimals a value is to be written beside its band, so that one sees whether it lies
 * within: two, or as many as the band's ends have, or as it takes not to be rounded across one. */
int band_decimals(double value, double low, double high);

#endif
