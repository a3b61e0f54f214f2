#include "experiments/run/staleness_spread.h"

#include "base/memory.h"
#include "worker/pace/pace.h"

#include <math.h>
#include <string.h>

enum { STEPS_PER_WORKER = 20, SIMULATED = 5000 };
static const double TIMES_WIDER = 1.3, VERSIONS_WIDER = 0.5;

struct simulated_worker {
    uint64_t ends_ns, step, read_version;
};

static bool applies_to(const options *o, const struct staleness_spread *observed)
{
    static const char *const wanted[][2] = {{"mode", "async"},
                                            {"engine", "real"},
                                            {"consistency", "asp"},
                                            {"outer", "none"},
                                            {"workers.max", "0"}};
    for (size_t i = 0; i < COUNT_OF(wanted); i++)
        if (!options_is(o, wanted[i][0], wanted[i][1]))
            return false;
    const struct pace_kind *kind =
        (const struct pace_kind *)registry_find(&pace_registry, options_text(o, "pace"));
    const uint64_t workers = (uint64_t)options_integer(o, "workers");
    return kind != NULL && !kind->as_long && !kind->reads_file && !kind->is_given && workers > 1 &&
           observed->gradients >= STEPS_PER_WORKER * workers && isfinite(observed->cv);
}

/* False if all steps last equally long: then microseconds decide the order of workers. */
static bool is_drawn(const pace *p)
{
    return pace_duration_of(p, 0, 0, 0) != pace_duration_of(p, 0, 1, 0);
}

/* Simulates `gradients` gradients; returns the cv of their staleness. */
static double simulate(const pace *p, struct simulated_worker *w, unsigned workers,
                       uint64_t gradients)
{
    double sum = 0, squares = 0;
    for (unsigned i = 0; i < workers; i++)
        w[i].ends_ns = pace_duration_of(p, i, 0, 0);
    for (uint64_t version = 0; version < gradients; version++) {
        unsigned next = 0;
        for (unsigned i = 1; i < workers; i++)
            next = w[i].ends_ns < w[next].ends_ns ? i : next;
        const double staleness = (double)(version - w[next].read_version);
        sum += staleness;
        squares += staleness * staleness;
        w[next].read_version = version + 1;
        w[next].ends_ns += pace_duration_of(p, next, ++w[next].step, 0);
    }
    const double n = (double)gradients, mean = sum / n;
    return sqrt(fmax(0, squares / n - mean * mean)) / mean;
}

double staleness_spread_too_wide(const options *o, const struct staleness_spread *observed)
{
    double expected = NAN;
    pace *p = NULL;
    struct simulated_worker *w = NULL;
    if (!applies_to(o, observed))
        return NAN;
    const unsigned workers = (unsigned)options_integer(o, "workers");
    if (pace_open(&p, o, 0) == OK && is_drawn(p) &&
        memory_new(&w, workers, sizeof *w, "simulated workers") == OK) {
        const uint64_t n = observed->gradients < SIMULATED ? observed->gradients : SIMULATED;
        const uint64_t least = (uint64_t)STEPS_PER_WORKER * workers;
        expected = simulate(p, w, workers, n > least ? n : least);
    }
    memory_free(w);
    pace_close(&p);
    const double allowed = TIMES_WIDER * expected * observed->mean + VERSIONS_WIDER;
    return observed->cv * observed->mean > allowed ? expected : NAN;
}
