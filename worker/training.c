#include "worker/training.h"

#include "base/text.h"

#include <math.h>
#include <string.h>

/* Rounds to whole samples; a positive number of epochs is at least one sample. */
static uint64_t samples_of(double epochs, uint64_t epoch_samples)
{
    const uint64_t samples = (uint64_t)floor(epochs * (double)epoch_samples + 0.5);
    return epochs > 0 && samples == 0 ? 1 : samples;
}

uint64_t training_checkpoint_every(const options *o, uint64_t epoch_samples)
{
    return samples_of(options_real(o, "checkpoint_every"), epoch_samples);
}

static bool length_is_set(const options *o, const char *key)
{
    return strcmp(key, "epochs") == 0    ? options_was_set(o, key) && options_real(o, key) > 0
           : strcmp(key, "seconds") == 0 ? options_real(o, key) > 0
                                         : options_integer(o, key) > 0;
}

static status refuse_lengths(const options *o)
{
    static const char *const keys[] = {"epochs", "samples", "updates", "seconds"};
    struct text set = {0};
    for (size_t i = 0; i < COUNT_OF(keys); i++) {
        if (length_is_set(o, keys[i])) {
            text_add(&set, "%s%s=%s (%s)", set.length > 0 ? ", " : "", keys[i],
                     options_value(o, keys[i]), options_origin(o, keys[i]));
        }
    }
    status result =
        error_set(ERROR_USAGE, __FILE__, __LINE__,
                  "several keys set the length of training: %s; keep one of them", set.at);
    text_free(&set);
    return result;
}

status training_length_of(const options *o, uint64_t epoch_samples, double update_samples,
                          struct training_length *out)
{
    status result = OK;
    uint64_t samples = (uint64_t)options_integer(o, "samples");
    uint64_t updates = (uint64_t)options_integer(o, "updates");
    double epochs = options_real(o, "epochs");
    const double seconds = options_real(o, "seconds");
    int set = (samples > 0) + (updates > 0) + (seconds > 0) + length_is_set(o, "epochs");

    REQUIRE(epoch_samples > 0 && update_samples > 0);
    if (set > 1)
        TRY(refuse_lengths(o));
    double total = samples > 0   ? (double)samples
                   : updates > 0 ? floor((double)updates * update_samples + 0.5)
                                 : floor(epochs * (double)epoch_samples + 0.5);
    double every = options_real(o, "evaluate_every") * (double)epoch_samples;
    total = seconds > 0 ? 1 : total;
    if (total < 1) {
        FAIL(ERROR_USAGE,
             "training would use 0 samples: set epochs, samples, updates or seconds to "
             "a value above 0");
    }
    if (!(total < 0x1p62 && every >= 0 && every < 0x1p62)) {
        FAIL(ERROR_USAGE,
             "training would use %.0f samples and evaluate every %.0f samples, but both must be "
             "below "
             "2^62; change epochs, samples, updates or evaluate_every",
             total, every);
    }
    out->seconds = seconds;
    out->total_samples = seconds > 0 ? TRAINING_ENDLESS : (uint64_t)total;
    out->evaluate_every = samples_of(options_real(o, "evaluate_every"), epoch_samples);
done:
    return result;
}
