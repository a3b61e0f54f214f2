/* pipeline_orders.c — the order of forwards and backwards in each kind of pipeline. */
#include "sync/pipeline/pipeline.h"

#include "worker/model/stage.h"

#define PIPELINE(name) extern const struct pipeline_kind pipeline_##name;
#include "sync/pipeline/pipeline.def"
#undef PIPELINE

static const struct about *const entries[] = {
#define PIPELINE(name) &pipeline_##name.about,
#include "sync/pipeline/pipeline.def"
#undef PIPELINE
};
const struct registry pipeline_registry = {"pipeline", entries, COUNT_OF(entries)};

double pipeline_bubble(unsigned stages, uint64_t micro_batches)
{
    return (stages - 1) / ((double)micro_batches + stages - 1);
}

status pipeline_shape(const options *o, unsigned *stages, uint32_t *micro_batches)
{
    status result = OK;
    const int64_t workers = options_integer(o, "workers"), set = options_integer(o, "stages");
    const int64_t batch = options_integer(o, "batch"), micro = options_integer(o, "micro_batches");
    const struct pipeline_kind *kind = (const struct pipeline_kind *)registry_find(
        &pipeline_registry, options_text(o, "pipeline"));
    *stages = (unsigned)(set == 0 ? workers : set);
    *micro_batches = (uint32_t)micro;
    if (*stages > STAGE_MOST) {
        FAIL(ERROR_USAGE,
             "workers=%lld with stages=0 makes %u stages, but a pipeline has at most %d; set "
             "stages= to a divisor of workers up to %d, or reduce workers",
             (long long)workers, *stages, STAGE_MOST, STAGE_MOST);
    }
    if (workers % *stages != 0) {
        FAIL(ERROR_USAGE,
             "workers=%lld is not a multiple of stages=%u; workers counts all ranks, stages × "
             "replicas",
             (long long)workers, *stages);
    }
    if (batch % micro != 0) {
        FAIL(ERROR_USAGE, "batch=%lld is not a multiple of micro_batches=%lld; change one of them",
             (long long)batch, (long long)micro);
    }
    if (micro > 1 && !kind->flushes) {
        FAIL(ERROR_USAGE,
             "pipeline=%s makes one update of each whole batch; leave micro_batches out, or set "
             "pipeline=1f1b",
             kind->about.name);
    }
done:
    return result;
}

/* ---- gpipe --------------------------------------------------------------------------------------
 */

static struct pipeline_action gpipe_action(unsigned k UNUSED, unsigned stages UNUSED,
                                           uint64_t units, uint64_t n)
{
    return (struct pipeline_action){n >= units, n < units ? n : n - units};
}

static uint64_t gpipe_in_flight(unsigned k UNUSED, unsigned stages UNUSED, uint64_t units)
{
    return units;
}

const struct pipeline_kind pipeline_gpipe = {
    .about = {"gpipe", "all forwards, then all backwards; one update after both",
              "Huang et al. 2019, section 2.3", NULL},
    .flushes = true,
    .action = gpipe_action,
    .in_flight = gpipe_in_flight,
};

/* ---- 1f1b ---------------------------------------------------------------------------------------
 */

static uint64_t at_most(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Stage k: first as many forwards as stages follow, then one forward and one backward alternately.
 */
static struct pipeline_action one_forward_one_backward(unsigned k, unsigned stages, uint64_t units,
                                                       uint64_t n)
{
    uint64_t ahead = at_most(stages - 1 - k, units);
    if (n < ahead)
        return (struct pipeline_action){false, n};
    if (n >= 2 * units - ahead)
        return (struct pipeline_action){true, n - units};
    uint64_t turn = n - ahead;
    return (struct pipeline_action){turn % 2 == 1, turn / 2 + (turn % 2 == 1 ? 0 : ahead)};
}

static uint64_t stages_ahead(unsigned k, unsigned stages, uint64_t units)
{
    return at_most(stages - k, units);
}

const struct pipeline_kind pipeline_1f1b = {
    .about =
        {"1f1b",
         "one forward and one backward alternately: gpipe's updates, fewer activations in memory",
         "Narayanan et al. 2021, section 2.2.1 (PipeDream-flush)", NULL},
    .flushes = true,
    .action = one_forward_one_backward,
    .in_flight = stages_ahead,
};

/* ---- pipedream ----------------------------------------------------------------------------------
 */

/* 1f1b whose units are the run's mini-batches; each backward is an update. */
const struct pipeline_kind pipeline_pipedream = {
    .about =
        {"pipedream",
         "no flush: every mini-batch is an update; its backward uses the weights of its forward; "
         "stage k of K is K - 1 - k updates late",
         "Narayanan et al. 2019, sections 3.2 and 3.3 (1F1B, weight stashing)", NULL},
    .flushes = false,
    .action = one_forward_one_backward,
    .in_flight = stages_ahead,
};
