/*
 * bench_overlap.c — `gradlag bench overlap`: a synchronous step (a gradient and its mean over
 * ranks) with and without overlap, in turn, so that both run under the same load. Restarts itself
 * under mpirun.
 *
 * exposed: the time that the exchange adds to a step. It waits and sums after the gradient is
 * complete, and it works between operators. hidden: 1 − exposed with overlap / exposed without.
 * flown: the time that the helper thread spent on parts that it exchanged before the gradient was
 * complete (step.hidden_us).
 *
 * could be hidden: the hidden share if each part were exchanged as soon as it is final, one part
 * after the other, as fast as without overlap (only with clock=wall). overlap=auto keeps it: 1 if
 * the trial of overlap=auto would keep overlap on this machine.
 *
 * With compute=slept a step sleeps for as long as each operator took, so that the exchange has the
 * processor to itself, as with a GPU or a free core. The time of the exchange during these sleeps
 * is not exposed.
 */
#include "base/clock.h"
#include "base/memory.h"
#include "experiments/bench/bench.h"
#include "experiments/config/config.h"
#include "sync/communicator/communicator.h"
#include "sync/communicator/overlap_autotune.h"
#include "worker/data/dataset.h"
#include "worker/model/model.h"
#include "worker/worker.h"

#include <stdio.h>
#include <string.h>

const struct option bench_overlap_keys[] = {
    {"ranks", OPTION_INTEGER, "2", 1, 256, NULL, NULL, "processes, started by mpirun"},
    {"models", OPTION_TEXT, "mlp,cnn,resnet8", 0, 0, NULL, NULL, "models, comma-separated"},
    {"width", OPTION_INTEGER, "1024", 1, 65536, NULL, NULL, "hidden units of model wide"},
    {"batch", OPTION_INTEGER, "64", 1, 65536, NULL, NULL, "samples per gradient of one rank"},
    {"communicators", OPTION_TEXT, "shared,mpi", 0, 0, NULL, NULL,
     "communicators, comma-separated"},
    {"reduction", OPTION_NAME, "fast", 0, 0, "fast|ordered", NULL, "the order of the sum"},
    {"bucket_kib", OPTION_INTEGER, "512", 1, 1 << 20, NULL, NULL, "size of a part"},
    {"steps", OPTION_INTEGER, "5", 1, 10000, NULL, NULL,
     "steps with, or without, overlap in one turn"},
    {"compute", OPTION_NAME, "own", 0, 0, "own|slept", NULL,
     "slept: sleep for as long as each operator took; the core is free for the exchange"},
    {"clock", OPTION_NAME, "wall", 0, 0, "wall|cpu", NULL,
     "cpu: count only the time this thread ran, on a machine that others use too"},
    {"repeats", OPTION_INTEGER, "41", 1, BENCH_REPEATS, NULL, NULL,
     "number of turns with, and without, overlap"},
    {0},
};

/* at_ns after the start of the step, elements [final_from, count) of the gradient are final. */
struct final_moment {
    uint64_t at_ns;
    size_t final_from;
};
enum { MOMENTS = 512, PROFILED = 11 };
struct gradient_profile {
    struct final_moment at[MOMENTS];
    unsigned count;
    uint64_t compute_ns; /* time of the whole gradient */
};

struct subject {
    options *settings;
    worker *worker;
    communicator *c;
    float *parameters;
    size_t count;
    uint64_t batch;
    bool cpu; /* measure processor time of this thread */
    bool slept;
    struct gradient_profile profile;
    uint64_t began_ns; /* of the profiled gradient */
};

static double now_ms(const struct subject *s)
{
    return 1e3 * (s->cpu ? clock_thread_cpu_seconds() : clock_seconds());
}

static void subject_close(struct subject *s)
{
    communicator_close(&s->c);
    worker_close(&s->worker);
    options_close(&s->settings);
    memory_free(s->parameters);
}

static void note_moment(void *context, size_t final_from)
{
    struct subject *s = context;
    struct gradient_profile *l = &s->profile;
    unsigned last = l->count < MOMENTS ? l->count++ : MOMENTS - 1;
    l->at[last] = (struct final_moment){clock_ns() - s->began_ns, final_from};
}

/* Profiles PROFILED gradients and keeps the fastest; all ranks use rank 0's. */
static status profile_gradient(struct subject *s)
{
    status result = OK;
    const struct gradient_watch watch = {.context = s, .between = note_moment};
    struct step_stats stats = {0};
    struct gradient_profile best = {.compute_ns = UINT64_MAX};
    for (unsigned i = 0; i < PROFILED; i++) {
        s->profile.count = 0;
        s->began_ns = clock_ns();
        TRY(worker_gradient_watched(s->worker, s->parameters, s->batch++, communicator_buffer(s->c),
                                    &watch, &stats));
        s->profile.compute_ns = clock_ns() - s->began_ns;
        if (s->profile.compute_ns < best.compute_ns)
            best = s->profile;
    }
    s->profile = best;
    TRY(communicator_broadcast(s->c, &s->profile, sizeof s->profile, 0));
done:
    return result;
}

static status compute(struct subject *s, float *gradient, const struct gradient_watch *watch)
{
    struct step_stats stats = {0};
    if (!s->slept)
        return worker_gradient_watched(s->worker, s->parameters, s->batch++, gradient, watch,
                                       &stats);
    uint64_t began = clock_ns();
    for (unsigned i = 0; watch != NULL && i < s->profile.count; i++) {
        clock_sleep_until_ns(began + s->profile.at[i].at_ns);
        watch->between(watch->context, s->profile.at[i].final_from);
    }
    clock_sleep_until_ns(began + s->profile.compute_ns);
    return OK;
}

static status subject_open(struct subject *s, const struct bench *b, const char *model,
                           const char *kind, unsigned rank, unsigned size)
{
    status result = OK;
    static const char *const keys[] = {"batch", "reduction", "bucket_kib"};
    char chosen[2][80];
    s->cpu = strcmp(options_text(b->settings, "clock"), "cpu") == 0;
    s->slept = strcmp(options_text(b->settings, "compute"), "slept") == 0;
    snprintf(chosen[0], sizeof chosen[0], "model=%s", model);
    snprintf(chosen[1], sizeof chosen[1], "communicator=%s", kind);
    TRY(config_compose_texts(
        &s->settings,
        (const char *const[]){"dataset=gaussian", "dataset.size=28", chosen[0], chosen[1], NULL},
        NULL, "bench"));
    for (size_t i = 0; i < COUNT_OF(keys); i++)
        TRY(bench_pass_on(b, s->settings, keys[i], keys[i]));
    if (options_declared(s->settings, "model.width"))
        TRY(bench_pass_on(b, s->settings, "model.width", "width"));
    TRY(worker_open(&s->worker, &(struct worker_options){
                                    .settings = s->settings, .index = rank, .count = size}));
    s->count = worker_parameter_count(s->worker);
    TRY(memory_new(&s->parameters, s->count, sizeof(float), "parameters"));
    TRY(worker_initial_parameters(s->worker, s->parameters, s->count));
    TRY(communicator_open(&s->c, s->settings, s->count, NULL));
    if (s->slept)
        communicator_spare_processors(s->c, true);
    TRY(profile_gradient(s));
done:
    return result;
}

/* Milliseconds. */
struct times {
    double step, exposed, flown;
};

/* The work of the exchange between operators. */
struct advance {
    struct subject *s;
    double ms;
};

static void advance_exchange(void *context, size_t final_from)
{
    struct advance *a = context;
    double began = now_ms(a->s);
    communicator_advance(a->s->c, final_from);
    a->ms += now_ms(a->s) - began;
}

static status one_step(struct subject *s, bool overlaps, struct times *sum)
{
    status result = OK;
    struct advance between = {.s = s};
    const struct gradient_watch watch = {.context = &between, .between = advance_exchange};
    float *gradient = communicator_buffer(s->c);
    uint64_t hidden_ns = 0;
    double began = now_ms(s), computed;
    if (overlaps) {
        communicator_begin(s->c, gradient, s->count);
        TRY(compute(s, gradient, &watch));
        computed = now_ms(s);
        TRY(communicator_finish(s->c, COMMUNICATOR_NOTES, &hidden_ns));
    } else {
        TRY(compute(s, gradient, NULL));
        computed = now_ms(s);
        TRY(communicator_allreduce_mean(s->c, gradient, s->count + COMMUNICATOR_NOTES));
    }
    double ended = now_ms(s);
    sum->step += ended - began;
    sum->exposed += s->slept ? ended - began - (double)s->profile.compute_ns * 1e-6
                             : ended - computed + between.ms;
    sum->flown += (double)hidden_ns * 1e-6;
done:
    return result;
}

/* The hidden share if each part of c->bucket elements starts when it is final, one after the other,
 * at the rate of the whole exchange (`exchange_ms`). */
static double could_hide(const struct subject *s, double exchange_ms)
{
    const struct gradient_profile *l = &s->profile;
    const double ms_per_float = exchange_ms / (double)s->count, end = (double)l->compute_ns * 1e-6;
    double free_at = 0;
    unsigned next = 0;
    for (size_t to = s->count; to > 0;) {
        size_t from = (to - 1) / s->c->bucket * s->c->bucket;
        while (next + 1 < l->count && l->at[next].final_from > from)
            next++;
        double there = (double)l->at[next].at_ns * 1e-6;
        free_at = (free_at > there ? free_at : there) + ms_per_float * (double)(to - from);
        to = from;
    }
    return 1 - (free_at > end ? free_at - end : 0) / exchange_ms;
}

/* Runs the trial of overlap=auto. *keeps: the share of ranks whose steps became faster. */
static status run_trial(struct subject *s, double *keeps)
{
    status result = OK;
    struct overlap_autotune trial = {0};
    float *vote = communicator_buffer(s->c);
    while (!autotune_votes(&trial)) {
        struct times of = {0};
        TRY(one_step(s, autotune_overlaps(&trial), &of));
        autotune_took(&trial, (uint64_t)(of.step * 1e6));
    }
    *vote = autotune_vote(&trial);
    TRY(communicator_allreduce_mean(s->c, vote, 1));
    *keeps = (double)*vote;
done:
    return result;
}

static void report(const struct bench *b, const char *subject, const char *what, const char *unit,
                   const struct bench_series *s)
{
    char text[160];
    snprintf(text, sizeof text, "%s %s", subject, what);
    bench_report(b, text, unit, s);
}

static void report_value(const struct bench *b, const char *subject, const char *what, double value)
{
    char text[160];
    snprintf(text, sizeof text, "%s %s", subject, what);
    bench_report_value(b, text, "×", value);
}

static status measure(const struct bench *b, struct subject *s, const char *name)
{
    status result = OK;
    enum { WITHOUT, WITH, KINDS };
    static struct bench_series step[KINDS], exposed[KINDS], flown, ratio;
    const unsigned steps = (unsigned)options_integer(b->settings, "steps");
    memset(step, 0, sizeof step);
    memset(exposed, 0, sizeof exposed);
    flown.count = ratio.count = 0;
    double keeps;
    TRY(run_trial(s, &keeps));
    for (unsigned repeat = 0; repeat <= b->repeats; repeat++) {
        struct times of[KINDS] = {0};
        for (unsigned turn = 0; turn < KINDS; turn++) {
            unsigned kind = (turn + repeat) % KINDS; /* first in every second repeat */
            TRY(communicator_barrier(s->c));
            for (unsigned i = 0; i < steps; i++)
                TRY(one_step(s, kind == WITH, &of[kind]));
        }
        for (unsigned kind = 0; repeat > 0 && kind < KINDS; kind++) { /* the first one warms up */
            bench_add(&step[kind], of[kind].step / steps);
            bench_add(&exposed[kind], of[kind].exposed / steps);
        }
        if (repeat > 0) {
            bench_add(&flown, of[WITH].flown / steps);
            bench_add(&ratio, of[WITH].step / of[WITHOUT].step);
        }
    }
    if (s->c->rank == 0) {
        report(b, name, "step without", "ms", &step[WITHOUT]);
        report(b, name, "step with", "ms", &step[WITH]);
        report_value(b, name, "step with / without", bench_median(&ratio));
        report(b, name, "exposed without", "ms", &exposed[WITHOUT]);
        report(b, name, "exposed with", "ms", &exposed[WITH]);
        report(b, name, "flown", "ms", &flown);
        report_value(b, name, "hidden",
                     1 - bench_median(&exposed[WITH]) / bench_median(&exposed[WITHOUT]));
        if (strcmp(options_text(b->settings, "clock"), "wall") == 0)
            report_value(b, name, "could be hidden",
                         could_hide(s, bench_median(&exposed[WITHOUT])));
        report_value(b, name, "overlap=auto keeps it", keeps > 0.5);
    }
done:
    return result;
}

static status measure_all(const struct bench *b, unsigned rank, unsigned size)
{
    status result = OK;
    struct subject s = {0};
    const char *models = options_text(b->settings, "models");
    char model[64], kind[64];
    while (bench_next_item(&models, model)) {
        const char *kinds = options_text(b->settings, "communicators");
        while (bench_next_item(&kinds, kind)) {
            char name[128];
            TRY(subject_open(&s, b, model, kind, rank, size));
            snprintf(name, sizeof name, "%s %s ranks=%u", model, kind, size);
            TRY(measure(b, &s, name));
            subject_close(&s);
            s = (struct subject){0};
        }
    }
done:
    subject_close(&s);
    return result;
}

/* Checks the names before a process starts. */
static status check_lists(const struct bench *b)
{
    status result = OK;
    const char *models = options_text(b->settings, "models");
    const char *kinds = options_text(b->settings, "communicators");
    const struct about *found;
    char item[64];
    while (bench_next_item(&models, item))
        TRY(registry_require(&model_registry, item, &found));
    while (bench_next_item(&kinds, item))
        TRY(registry_require(&communicator_registry, item, &found));
    if (strcmp(options_text(b->settings, "compute"), "slept") == 0 &&
        strcmp(options_text(b->settings, "clock"), "cpu") == 0)
        FAIL(ERROR_USAGE, "bench overlap: compute=slept takes no processor time, so clock=cpu "
                          "cannot measure it; leave out one of them");
done:
    return result;
}

status bench_overlap(int argc, char **argv)
{
    status result = OK;
    struct bench b = {0};
    TRY(bench_open(&b, "overlap", bench_overlap_keys, argc, argv));
    TRY(check_lists(&b));
    TRY(bench_on_ranks(&b, measure_all, argc, argv));
done:
    bench_close(&b);
    return result;
}
