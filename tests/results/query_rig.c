#include "tests/results/query_rig.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- a file with known values ------------------------------------------------------------------
 */

struct sample_run {
    const char *mode, *arm, *damping, *config;
    uint64_t seed;
    double accuracy, train_seconds;
    const char *status;
};

static const struct sample_run sample_runs[] = {
    {"async", "undamped", "none", "{\"damping\": \"none\", \"seed\": 1}", 1, 0.5, 2, "finished"},
    {"async", "undamped", "none", "{\"damping\": \"none\", \"seed\": 2}", 2, 0.7, 2, "finished"},
    {"async", "damped", "polynomial",
     "{\"damping\": \"polynomial\", \"damping.power\": 0.5, \"seed\": 1}", 1, 0.79, 4, "finished"},
    {"async", "damped", "polynomial",
     "{\"damping\": \"polynomial\", \"damping.power\": 0.5, \"seed\": 2}", 2, 0.81, 4, "finished"},
    {"async", "undamped", "none", "{\"damping\": \"none\", \"seed\": 3}", 3, 0.1, 2, "diverged"},
    {"sync", "sync", NULL, NULL, 1, 0.9, 8, "finished"},
};

static void record_sample_rows(recorder *r, const struct sample_run *sample)
{
    for (uint64_t i = 0; i <= 4;
         i++) { /* accuracy grows linearly over 5 evaluations, one per second */
        recorder_evaluation(
            r, &(struct evaluation_record){.updates = 25 * i,
                                           .samples = 800 * i,
                                           .seconds = (double)i,
                                           .train_loss = 1,
                                           .test_loss = 1,
                                           .test_accuracy = sample->accuracy * (double)(i + 1) / 5,
                                           .validation_loss = NOT_MEASURED,
                                           .validation_accuracy = NAN});
    }
    for (uint64_t i = 0; i < 100; i++) {
        if (strcmp(sample->mode, "async") == 0) {
            struct push_record p = rig_push(i);
            p.compute_us = p.worker == 2 ? 4000 : 1000;
            p.pull_us = 500;
            recorder_push(r, &p);
        } else {
            recorder_step(r, &(struct step_record){.update_version = i / 4 + 1,
                                                   .worker = (uint32_t)(i % 4),
                                                   .loss = 1,
                                                   .compute_us = 1000,
                                                   .exchange_us = 300,
                                                   .apply_us = 100});
        }
    }
}

static void record_sample(const struct sample_run *sample)
{
    int64_t id;
    struct run_description run = rig_run;
    struct run_outcome outcome = rig_outcome;
    run.mode = sample->mode;
    run.arm = sample->arm;
    run.damping = sample->damping;
    run.config = sample->config;
    run.seed = sample->seed;
    outcome.status = sample->status;
    outcome.train_seconds = sample->train_seconds;
    outcome.error = strcmp(sample->status, "diverged") == 0 ? "the loss is not finite" : NULL;
    recorder *r = rig_begin(&run, &id);
    record_sample_rows(r, sample);
    rig_finish(r, &outcome);
}

int query_rig_make_file(void **state)
{
    int code = rig_make_folder(state);
    for (size_t i = 0; code == 0 && i < COUNT_OF(sample_runs); i++)
        record_sample(&sample_runs[i]);
    return code;
}

/* ---- helpers -----------------------------------------------------------------------------------
 */

char answer[65536];

status run_query(const char *query, enum query_format format, const char *const *settings,
                 size_t count)
{
    struct query_request request = {.path = rig_path,
                                    .question = query,
                                    .settings = settings,
                                    .setting_count = count,
                                    .format = format};
    FILE *out = fmemopen(answer, sizeof answer, "w");
    assert_non_null(out);
    answer[0] = '\0';
    status result = query_run(&request, out, NULL);
    fclose(out);
    return result;
}

void assert_answer(const char *query, enum query_format format, const char *wanted)
{
    assert_int_equal(run_query(query, format, NULL, 0), OK);
    assert_string_equal(answer, wanted);
}

void assert_contains(const char *text, const char *wanted)
{
    if (strstr(text, wanted) == NULL)
        fail_msg("'%s' is not in:\n%s", wanted, text);
}

char *rig_report(const struct report_request *request)
{
    char path[128];
    struct report_outline outline;
    snprintf(path, sizeof path, "%s/report.html", rig_folder);
    assert_int_equal(report_write(request, path, &outline), OK);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    char *page = calloc(1, outline.bytes + 1);
    assert_non_null(page);
    assert_int_equal(fread(page, 1, outline.bytes + 1, file), outline.bytes);
    fclose(file);
    return page;
}
