#include "results/query/statistics.h"

#include "base/status.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

void sample_add(struct sample *s, double value)
{
    s->infinite += isinf(value);
    if (!isfinite(value))
        return;
    double from = value - s->mean;
    s->n++;
    s->mean += from / s->n;
    s->squares += from * (value - s->mean);
    s->least = s->n == 1 ? value : fmin(s->least, value);
    s->most = s->n == 1 ? value : fmax(s->most, value);
}

double sample_mean(const struct sample *s)
{
    return s->n > 0 ? s->mean : NAN;
}

double sample_deviation(const struct sample *s)
{
    return s->n > 1 ? sqrt(s->squares / (s->n - 1)) : NAN;
}

double sample_interval(const struct sample *s)
{
    return s->n > 1 ? student_95(s->n - 1) * sample_deviation(s) / sqrt(s->n) : NAN;
}

double student_95(unsigned freedom)
{
    static const double exact[] = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365,
                                   2.306,  2.262, 2.228, 2.201, 2.179, 2.160, 2.145,
                                   2.131,  2.120, 2.110, 2.101, 2.093, 2.086};
    REQUIRE(freedom > 0);
    return freedom <= COUNT_OF(exact) ? exact[freedom - 1] : 1.96 + 2.5 / freedom;
}

/* `value` rounded to so many decimals. */
static double as_rounded(double value, int decimals)
{
    char text[400]; /* the largest double has 309 digits */
    snprintf(text, sizeof text, "%.*f", decimals, value);
    return strtod(text, NULL);
}

int band_decimals(double value, double low, double high)
{
    enum { LEAST = 2, MOST = 9 };
    int decimals = LEAST;
    for (; isfinite(value) && decimals < MOST; decimals++) {
        double written = as_rounded(value, decimals);
        bool same_side = (written >= low) == (value >= low) && (written <= high) == (value <= high);
        if (same_side && as_rounded(low, decimals) == low && as_rounded(high, decimals) == high)
            break;
    }
    return decimals;
}
