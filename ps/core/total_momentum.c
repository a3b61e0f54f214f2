/* total_momentum.c — see total_momentum.h. */
#include "ps/core/total_momentum.h"

#include "base/memory.h"

#include <math.h>

status total_momentum_open(struct total_momentum *t, unsigned workers, size_t count)
{
    status result = OK;
    *t = (struct total_momentum){.count = count, .capacity = 4 * workers + 8};
    t->sample = count < TOTAL_MOMENTUM_SAMPLE ? (unsigned)count : TOTAL_MOMENTUM_SAMPLE;
    TRY(memory_new(&t->past, (size_t)t->capacity * t->sample, sizeof *t->past, "past parameters"));
    TRY(memory_new(&t->ratios, t->sample, sizeof *t->ratios, "momentum of parameters"));
done:
    return result;
}

void total_momentum_close(struct total_momentum *t)
{
    memory_free(t->past);
    memory_free(t->ratios);
    *t = (struct total_momentum){0};
}

static size_t sample_index(const struct total_momentum *t, unsigned i)
{
    return (size_t)((uint64_t)i * t->count / t->sample);
}

static const float *past(const struct total_momentum *t, uint64_t version)
{
    return t->past + version % t->capacity * t->sample;
}

void total_momentum_add_version(struct total_momentum *t, uint64_t version, const float *parameters)
{
    float *to = t->past + version % t->capacity * t->sample;
    for (unsigned i = 0; i < t->sample; i++)
        to[i] = parameters[sample_index(t, i)];
    t->version = version;
}

/* Hoare's selection: returns the k-th smallest element and moves it to at[k]; elements before it
 * are not larger. */
static double select_smallest(double *at, unsigned n, unsigned k)
{
    unsigned from = 0, to = n - 1;
    while (from < to) {
        double pivot = at[(from + to) / 2];
        unsigned i = from, j = to;
        while (i <= j) {
            while (at[i] < pivot)
                i++;
            while (at[j] > pivot)
                j--;
            if (i <= j) {
                double swapped = at[i];
                at[i++] = at[j];
                at[j] = swapped;
                if (j-- == 0)
                    break;
            }
        }
        if (k <= j && j < to)
            to = j;
        else if (k >= i)
            from = i;
        else
            break;
    }
    return at[k];
}

static double median(double *at, unsigned n)
{
    double upper = select_smallest(at, n, n / 2), lower = at[0];
    if (n % 2 == 1)
        return upper;
    for (unsigned i = 1; i < n / 2; i++)
        lower = at[i] > lower ? at[i] : lower;
    return 0.5 * (lower + upper);
}

double total_momentum_measure(struct total_momentum *t, uint64_t read, const float *gradient,
                              double rate)
{
    unsigned n = 0;
    if (read == 0 || read >= t->version || t->version - (read - 1) >= t->capacity)
        return NAN;
    const float *before = past(t, read - 1), *at = past(t, read), *after = past(t, read + 1);
    for (unsigned i = 0; i < t->sample; i++) {
        double step_before = (double)at[i] - (double)before[i];
        double step_after = (double)after[i] - (double)at[i];
        double ratio = (step_after + rate * (double)gradient[sample_index(t, i)]) / step_before;
        if (isfinite(ratio))
            t->ratios[n++] = ratio;
    }
    return n > 0 ? median(t->ratios, n) : NAN;
}
