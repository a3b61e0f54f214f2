/*
 * schedule.c — evaluates the rate at the middle of an update's samples.
 *
 * An update stands for the samples (before, after]. Evaluated at `before`, the first update of a
 * ramp from 0 would have rate 0; evaluated at `after`, the last update of a decay to 0 would. At
 * the middle neither has, unless half or more of the last update lies beyond the end. Where the
 * rate is linear, its integral over an interval equals the middle's value times the length. The sum
 * of rate × samples over a training then does not depend on the samples per update, so runs with
 * small and large updates move equally far.
 *
 * warmup=ramp starts at 0, not at the unscaled rate as in Goyal et al. 2017 (§2.2; warmup=gradual).
 * It therefore has the same meaning for any number of workers, and without scaling.
 */
#include "worker/optimizer/schedule.h"

#include "base/log.h"

#include <math.h>
#include <string.h>

#define SCHEDULE(name) extern const struct schedule_kind schedule_##name;
#include "worker/optimizer/schedule.def"
#undef SCHEDULE

static const struct about *const entries[] = {
#define SCHEDULE(name) &schedule_##name.about,
#include "worker/optimizer/schedule.def"
#undef SCHEDULE
};
const struct registry schedule_registry = {"schedule", entries, COUNT_OF(entries)};

static enum warmup warmup_of(const options *o)
{
    const char *name = options_text(o, "warmup");
    return strcmp(name, "gradual") == 0    ? WARMUP_GRADUAL
           : strcmp(name, "constant") == 0 ? WARMUP_CONSTANT
                                           : WARMUP_RAMP;
}

static unsigned largest_growth_of(const options *o)
{
    bool grows = strcmp(options_text(o, "decay"), "batch") == 0;
    return grows ? (unsigned)options_integer(o, "batch_growth_max") : 1;
}

static status read_warmup(struct schedule *s, const options *o)
{
    status result = OK;
    s->warmup_seconds = options_real(o, "warmup_seconds");
    if (s->warmup_seconds > 0 && s->total_seconds == 0) {
        FAIL(ERROR_USAGE,
             "%s: warmup_seconds requires the length of training in seconds; set seconds, or "
             "warmup_epochs in its place",
             options_origin(o, "warmup_seconds"));
    }
    const int64_t warmup = options_integer(o, "warmup_updates");
    const int64_t updates = options_integer(o, "updates");
    s->warmup_samples = options_real(o, "warmup_epochs") * s->epoch_samples;
    if (warmup == 0)
        return OK;
    if (updates == 0) {
        FAIL(ERROR_USAGE,
             "%s: warmup_updates requires the length of training in updates; set updates, or "
             "warmup_epochs in its place",
             options_origin(o, "warmup_updates"));
    }
    s->warmup_samples = s->total_samples * (double)warmup / (double)updates;
done:
    return result;
}

status schedule_open(struct schedule *out, const options *o, unsigned workers,
                     uint64_t total_samples, uint64_t epoch_samples)
{
    status result = OK;
    const struct about *about = NULL;
    const char *scaling = options_text(o, "lr_scaling");

    REQUIRE(workers > 0);
    memset(out, 0, sizeof *out);
    TRY(registry_require(&schedule_registry, options_text(o, "schedule"), &about));
    out->kind = (const struct schedule_kind *)about;
    if (out->kind->read != NULL)
        TRY(out->kind->read(o, out->parameters));
    out->rate = options_real(o, "lr");
    out->scaling = strcmp(scaling, "linear") == 0 ? workers
                   : strcmp(scaling, "sqrt") == 0 ? sqrt(workers)
                                                  : 1;
    out->warmup = warmup_of(o);
    out->largest_growth = largest_growth_of(o);
    out->epoch_samples = (double)epoch_samples;
    out->total_samples = (double)total_samples;
    out->total_seconds = options_real(o, "seconds");
    TRY(read_warmup(out, o));
done:
    return result;
}

const char *schedule_unended_warmup(const options *o, uint64_t total_samples,
                                    uint64_t epoch_samples)
{
    struct schedule s;
    if (schedule_open(&s, o, 1, total_samples, epoch_samples) != OK)
        return NULL;
    const bool timed = s.warmup_seconds > 0;
    const double length = timed ? s.warmup_seconds : s.warmup_samples;
    if (length <= 0 || length < (timed ? s.total_seconds : s.total_samples))
        return NULL;
    return timed                                      ? "warmup_seconds"
           : options_integer(o, "warmup_updates") > 0 ? "warmup_updates"
                                                      : "warmup_epochs";
}

static double progress_at(const struct schedule *s, double sample)
{
    if (s->total_seconds > 0)
        return fmin(s->seconds / s->total_seconds, 1);
    return sample < s->total_samples ? sample / s->total_samples
                                     : 1; /* the last update may exceed the total */
}

/* lr × warmup */
static double warmed_up(const struct schedule *s, double sample)
{
    const double scaled = s->rate * s->scaling;
    const bool timed = s->warmup_seconds > 0;
    const double at = timed ? s->seconds : sample;
    const double length = timed ? s->warmup_seconds : s->warmup_samples;
    if (!(at < length))
        return scaled;
    const double over = at / length;
    return s->warmup == WARMUP_RAMP      ? scaled * over
           : s->warmup == WARMUP_GRADUAL ? s->rate * (1 + over * (s->scaling - 1))
                                         : s->rate;
}

double schedule_rate(const struct schedule *s, uint64_t before, uint64_t after)
{
    REQUIRE(before <= after);
    double middle = 0.5 * ((double)before + (double)after);
    double shape = s->kind->shape(s->parameters, progress_at(s, middle));
    return warmed_up(s, middle) * shape * schedule_growth(s, before);
}

double schedule_epoch(const struct schedule *s, uint64_t before, uint64_t after)
{
    return 0.5 * ((double)before + (double)after) / s->epoch_samples;
}

unsigned schedule_growth(const struct schedule *s, uint64_t before)
{
    double shape = s->kind->shape(s->parameters, progress_at(s, (double)before));
    if (s->largest_growth == 1 || shape >= 1)
        return 1;
    return shape * s->largest_growth > 1 ? (unsigned)(1 / shape + 0.5) : s->largest_growth;
}

bool schedule_has_fallen(const struct schedule *s, uint64_t samples)
{
    double first = s->kind->shape(s->parameters, 0);
    return s->kind->shape(s->parameters, progress_at(s, (double)samples)) < first;
}
