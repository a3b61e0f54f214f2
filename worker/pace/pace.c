/* pace.c — the registry of paces, and the two paces based on measured times. pace_draws.c has the
 * others. */
#include "worker/pace/pace.h"

#include "base/clock.h"
#include "base/memory.h"
#include "base/options.h"
#include "base/random.h"

#include <math.h>

struct pace {
    const struct pace_kind *kind;
    double parameters[PACE_PARAMETERS];
    struct pace_table table;
    uint64_t seed;
    unsigned worker;
    int64_t slow_worker; /* first slowed worker; −1: none */
    unsigned slow_workers;
    double slow_factor;
    double worker_cv; /* cv of the workers' means; 0: one mean for all */
};

static double as_measured(const struct pace_step *s)
{
    return (double)s->measured_ns;
}

static const struct option slow_options[] = {
    {"pace.worker", OPTION_INTEGER, "0", -1, 16383, NULL, NULL, "slowed worker; -1: all workers"},
    {"pace.factor", OPTION_REAL, "3", 1, 1000, NULL, NULL,
     "factor on the step time of the slowed worker"},
    {0},
};

static double slowed(const struct pace_step *s)
{
    return s->parameters[0] < 0 ? s->parameters[1] * (double)s->measured_ns
                                : (double)s->measured_ns;
}

static const struct pace_kind pace_none = {
    .about = {"none", "steps take their measured time", NULL, NULL},
    .duration = as_measured,
    .as_long = true,
};
static const struct pace_kind pace_slow = {
    .about = {"slow", "worker pace.worker takes pace.factor times the measured time", NULL,
              slow_options},
    .duration = slowed,
    .as_long = true,
};

#define PACE(name) extern const struct pace_kind pace_##name;
#include "worker/pace/pace.def"
#undef PACE

static const struct about *const entries[] = {
    &pace_none.about,
    &pace_slow.about,
#define PACE(name) &pace_##name.about,
#include "worker/pace/pace.def"
#undef PACE
};
const struct registry pace_registry = {"pace", entries, COUNT_OF(entries)};

static void read_parameters(pace *p, const options *o, const struct option *own)
{
    for (int i = 0; own != NULL && own[i].key != NULL; i++) {
        REQUIRE(i < PACE_PARAMETERS);
        if (own[i].type == OPTION_REAL || own[i].type == OPTION_INTEGER)
            p->parameters[i] = options_real(o, own[i].key);
    }
    p->slow_worker = -1;
    if (options_declared(o, "pace.factor")) {
        p->slow_worker = options_integer(o, "pace.worker");
        p->slow_factor = options_real(o, "pace.factor");
    }
    p->slow_workers = (unsigned)options_integer(o, "pace.slow_workers");
    p->worker_cv = options_real(o, "pace.worker_cv");
}

status pace_open(pace **out, const options *o, unsigned worker)
{
    status result = OK;
    const struct about *about = NULL;
    pace *p = NULL;

    *out = NULL;
    TRY(registry_require(&pace_registry, options_text(o, "pace"), &about));
    TRY(memory_new(&p, 1, sizeof *p, "pace"));
    p->kind = (const struct pace_kind *)about;
    p->seed = (uint64_t)options_integer(o, "seed");
    p->worker = worker;
    read_parameters(p, o, about->options);
    if (p->kind->reads_file)
        TRY(pace_table_read(&p->table, options_text(o, "pace.path")));
    *out = p;
    p = NULL;
done:
    pace_close(&p);
    return result;
}

void pace_close(pace **p)
{
    if (*p != NULL) {
        pace_table_free(&(*p)->table);
        memory_free(*p);
    }
    *p = NULL;
}

void pace_give(pace *p, struct pace_table *table)
{
    REQUIRE(p->kind->is_given && table->workers > 0);
    pace_table_free(&p->table);
    p->table = *table;
    *table = (struct pace_table){0};
}

uint64_t pace_whole_ns(double ns)
{
    static const double MOST = 1e18;
    return (uint64_t)(ns < MOST ? ns : MOST);
}

/* A worker's mean as a multiple of the common mean. UINT64_MAX is not the number of any step. */
static double share_of(const pace *p, unsigned worker)
{
    if (p->worker_cv < PACE_CV_LEAST)
        return 1;
    struct random_stream r;
    random_open(&r, RANDOM_PACE, p->seed, worker, UINT64_MAX);
    double shape = 1 / (p->worker_cv * p->worker_cv);
    return fmax(PACE_SHARE_LEAST, random_gamma(&r, shape) / shape);
}

static bool is_slowed(const pace *p, unsigned worker)
{
    return p->slow_worker >= 0 && worker >= p->slow_worker &&
           worker - (uint64_t)p->slow_worker < p->slow_workers;
}

uint64_t pace_duration_of(const pace *p, unsigned worker, uint64_t step, uint64_t measured_ns)
{
    double ns = p->kind->duration(&(struct pace_step){.parameters = p->parameters,
                                                      .table = &p->table,
                                                      .seed = p->seed,
                                                      .step = step,
                                                      .measured_ns = measured_ns,
                                                      .worker = worker});
    ns *= share_of(p, worker) * (is_slowed(p, worker) ? p->slow_factor : 1);
    return ns > (double)measured_ns ? pace_whole_ns(ns) : measured_ns;
}

uint64_t pace_duration(const pace *p, uint64_t step, uint64_t measured_ns)
{
    return pace_duration_of(p, p->worker, step, measured_ns);
}

void pace_wait(pace *p, uint64_t step, uint64_t started_ns, const volatile sig_atomic_t *stop)
{
    if (p == NULL)
        return;
    uint64_t measured = clock_ns() - started_ns, duration = pace_duration(p, step, measured);
    if (duration > measured)
        clock_sleep_until_stop(started_ns + duration, stop);
}
