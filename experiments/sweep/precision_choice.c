#include "experiments/sweep/precision_choice.h"

#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "experiments/config/config.h"
#include "experiments/config/precision_trial.h"
#include "experiments/run/launch.h"
#include "experiments/run/run_checkpoint.h"
#include "results/query/query.h"
#include "worker/model/model.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define ORIGIN "precision=auto"

/* The answers of this process. A reason begins with the chosen format. */
struct known_answer {
    char *results, *computation, *reason; /* owned, until the process ends */
    bool confirmed;
};
static struct known_answer *answers;
static size_t answer_count;

/* Keys that determine the work of a step. */
static bool is_of_computation(const char *key)
{
    static const char *const keys[] = {"model",
                                       "batch",
                                       "device",
                                       "threads",
                                       "dataset",
                                       "dataset.size",
                                       "dataset.channels",
                                       "dataset.classes",
                                       "dataset.context",
                                       "dataset.vocabulary"};
    for (size_t i = 0; i < COUNT_OF(keys); i++)
        if (strcmp(keys[i], key) == 0)
            return true;
    return strncmp(key, "model.", 6) == 0;
}

static void describe_computation(const options *o, struct text *out)
{
    text_add(out, "{");
    for (size_t i = 0; i < options_count(o); i++) {
        const char *key = options_at(o, i)->key;
        if (is_of_computation(key)) {
            text_add(out, "%s", out->length > 1 ? "," : "");
            config_member_json(o, key, out);
        }
    }
    text_add(out, "}");
}

static bool is_answer(const char *reason, const char *precision)
{
    const size_t length = strlen(precision);
    return strncmp(reason, precision, length) == 0 && reason[length] == ':';
}

/* *reason (owned by the caller): of the first run of this computation; NULL: there is none. */
static status look_up(const char *results, const char *computation, char **reason)
{
    static const char sql[] =
        "SELECT detail FROM event JOIN run ON run.id = event.run_id WHERE code = 'precision'"
        " AND (detail LIKE 'fp32:%' OR detail LIKE 'bf16:%')"
        " AND NOT EXISTS (SELECT 1 FROM json_each(:of) AS wanted WHERE"
        "  wanted.value IS NOT (SELECT value FROM json_each(run.config) AS its"
        "   WHERE its.key = wanted.key)) ORDER BY run.id LIMIT 1";
    struct text of = {0};
    *reason = NULL;
    if (access(results, F_OK) != 0)
        return OK;
    text_add(&of, "of=%s", computation);
    status result = query_value(results, sql, (const char *const[]){of.at}, 1, reason);
    text_free(&of);
    return result;
}

static struct known_answer *find(const char *results, const char *computation)
{
    for (size_t i = 0; i < answer_count; i++) {
        struct known_answer *a = &answers[i];
        if (strcmp(a->results, results) == 0 && strcmp(a->computation, computation) == 0)
            return a;
    }
    return NULL;
}

/* Takes ownership of `reason`. */
static struct known_answer *keep(const char *results, const char *computation, char *reason,
                                 bool recorded)
{
    struct known_answer *a = memory_append(&answers, &answer_count, sizeof *a);
    *a = (struct known_answer){.results = text_copy(results),
                               .computation = text_copy(computation),
                               .reason = reason,
                               .confirmed = recorded};
    return a;
}

static void describe_trial(const struct precision_trial *t, struct text *out)
{
    if (t->why[0] != '\0') {
        text_add(out, "fp32: no bf16 here: %s", t->why);
    } else {
        text_add(out, "%s: a step takes %.4g ms in fp32, %.4g ms in bf16",
                 precision_prefers_bf16(t) ? "bf16" : "fp32", 1e3 * t->fp32_s, 1e3 * t->bf16_s);
    }
}

static status measure(const options *o, char **reason)
{
    status result = OK;
    struct precision_trial trial;
    struct text text = {0};
    TRY(precision_trial_run(o, launch_stop_flag(), &trial));
    describe_trial(&trial, &text);
    *reason = text_copy(text.at);
done:
    text_free(&text);
    return result;
}

static status set(options *o, const char *reason)
{
    status result = OK;
    TRY(options_set(o, "precision", is_answer(reason, "bf16") ? "bf16" : "fp32", ORIGIN));
    TRY(options_set(o, "precision_trial", reason, ORIGIN));
done:
    return result;
}

/* Chooses bf16 if the settings in the checkpoint agree with it, else fp32. */
static status choose_of_checkpoint(options *o)
{
    status result = OK;
    struct text reason = {0};
    const char *path = options_text(o, "resume");
    TRY(options_set(o, "precision", "bf16", ORIGIN));
    const bool is_bf16 = run_checkpoint_check(path, o, NULL) == OK;
    text_add(&reason, "%s: as in the checkpoint %s", is_bf16 ? "bf16" : "fp32", path);
    TRY(set(o, reason.at));
done:
    text_free(&reason);
    return result;
}

static status choose_of_computation(options *o, enum precision_effort effort)
{
    status result = OK;
    struct text computation = {0};
    char *reason = NULL;
    const char *results = options_text(o, "results");
    describe_computation(o, &computation);
    const struct known_answer *a = find(results, computation.at);
    if (a == NULL) {
        TRY(look_up(results, computation.at, &reason));
        const bool recorded = reason != NULL;
        if (!recorded && effort == PRECISION_LOOK_UP) {
            TRY(options_set(o, "precision", "fp32", ORIGIN));
            goto done;
        }
        if (!recorded)
            TRY(measure(o, &reason));
        a = keep(results, computation.at, reason, recorded);
        if (effort == PRECISION_MEASURE)
            log_info("precision=auto: %s%s", reason,
                     recorded ? ", as recorded in the results file" : "");
    }
    TRY(set(o, a->reason));
done:
    text_free(&computation);
    return result;
}

status precision_choose(options *o, enum precision_effort effort)
{
    if (!precision_is_auto(o))
        return OK;
    if (model_is_external(o))
        return set(o, "fp32: model=external computes in its own program");
    if (options_text(o, "resume")[0] != '\0')
        return choose_of_checkpoint(o);
    return choose_of_computation(o, effort);
}

status precision_confirm(const options *o)
{
    status result = OK;
    struct text computation = {0};
    char *recorded = NULL;
    const char *results = options_text(o, "results");
    if (options_text(o, "precision_trial")[0] == '\0')
        return OK;
    describe_computation(o, &computation);
    struct known_answer *a = find(results, computation.at);
    if (a == NULL || a->confirmed)
        goto done;
    TRY(look_up(results, computation.at, &recorded));
    if (recorded != NULL && !is_answer(recorded, options_text(o, "precision"))) {
        FAIL(ERROR_RESULTS,
             "%s: precision=auto chose %s here, and another process has recorded at the same time: "
             "%s; run the same command again, which then uses the recorded choice",
             results, options_text(o, "precision"), recorded);
    }
    a->confirmed = true;
done:
    text_free(&computation);
    memory_free(recorded);
    return result;
}
