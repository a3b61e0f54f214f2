/* schedule_shapes.c — the shapes: a factor on the rate as a function of progress in [0, 1]. */
#include "worker/optimizer/schedule.h"

#include <math.h>
#include <stdlib.h>

static double constant(const double *parameters UNUSED, double progress UNUSED)
{
    return 1;
}

static double linear(const double *parameters UNUSED, double progress)
{
    return 1 - progress;
}

/* From 1 to e = parameters[0]: e + (1 − e) ½ (1 + cos(π p)), where ½ (1 + cos(π p)) =
 * 1 − sin²(π p / 2), which is exact at both ends. */
static double cosine(const double *parameters, double progress)
{
    double s = sin(0.5 * 3.14159265358979323846 * progress);
    return parameters[0] + (1 - parameters[0]) * (progress >= 1 ? 0 : 1 - s * s);
}

static const struct option cosine_options[] = {
    {"schedule.end", OPTION_REAL, "0", 0, 1, NULL, NULL, "factor on the rate at the end"},
    {0},
};

static status read_cosine(const options *o, double parameters[SCHEDULE_PARAMETERS])
{
    parameters[0] = options_real(o, "schedule.end");
    return OK;
}

/* parameters: factor, number of steps, then the steps in ascending order. */
static double step(const double *parameters, double progress)
{
    double rate = 1;
    for (int i = 0; i < (int)parameters[1]; i++)
        if (progress >= parameters[2 + i])
            rate *= parameters[0];
    return rate;
}

static const struct option step_options[] = {
    {"schedule.factor", OPTION_REAL, "0.1", 0, 1, NULL, NULL, "factor on the rate at each step"},
    {"schedule.at", OPTION_TEXT, "0.5,0.75", 0, 0, NULL, NULL,
     "positions of the steps as fractions of training, ascending, comma-separated"},
    {0},
};

static status read_step(const options *o, double parameters[SCHEDULE_PARAMETERS])
{
    status result = OK;
    const char *list = options_text(o, "schedule.at"), *at = list;
    int count = 0;
    double last = 0;
    bool more;

    parameters[0] = options_real(o, "schedule.factor");
    do {
        char *end;
        double value = strtod(at, &end);
        if (end == at || (*end != ',' && *end != '\0') || !(value > last && value < 1)) {
            FAIL(ERROR_USAGE,
                 "%s: schedule.at=%s must be a list of ascending fractions between 0 and 1, for "
                 "example "
                 "schedule.at=0.5,0.75",
                 options_origin(o, "schedule.at"), list);
        }
        if (2 + count == SCHEDULE_PARAMETERS) {
            FAIL(ERROR_USAGE, "%s: schedule.at=%s has more than %d steps; remove some",
                 options_origin(o, "schedule.at"), list, SCHEDULE_PARAMETERS - 2);
        }
        parameters[2 + count++] = last = value;
        more = *end == ',';
        at = end + 1;
    } while (more);
    parameters[1] = count;
done:
    return result;
}

/* The paper's 90 epochs as fractions of training. */
static double slow_start(const double *parameters UNUSED, double progress)
{
    const double epoch = 90 * progress;
    return epoch < 40 ? 0.5 : epoch < 70 ? 0.075 : epoch < 85 ? 0.01 : 0.001;
}

const struct schedule_kind schedule_constant = {
    .about = {"constant", "constant rate", NULL, NULL},
    .shape = constant,
};
const struct schedule_kind schedule_linear = {
    .about = {"linear", "falls linearly to 0 at the end", NULL, NULL},
    .shape = linear,
};
const struct schedule_kind schedule_step = {
    .about = {"step", "multiplied by schedule.factor at each position of schedule.at",
              "He et al. 2016, section 4.2", step_options},
    .shape = step,
    .read = read_step,
};
const struct schedule_kind schedule_cosine = {
    .about = {"cosine", "half a cosine from 1 to schedule.end, without restarts",
              "Loshchilov, Hutter 2017, eq. 5", cosine_options},
    .shape = cosine,
    .read = read_cosine,
};
const struct schedule_kind schedule_slow_start = {
    .about = {"slow-start",
              "0.5, then 0.075, 0.01 and 0.001 from 40/90, 70/90 and 85/90 of training on",
              "Akiba, Suzuki, Fukuda 2017, section 3.1", NULL},
    .shape = slow_start,
};
