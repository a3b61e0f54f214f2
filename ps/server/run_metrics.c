#include "ps/server/run_metrics.h"

#include <math.h>
#include <string.h>

static const double SMOOTHING = 0.02; /* weight of a new loss in the loss that is shown */

void ps_metrics_open(struct ps_metrics *t, const options *settings, recorder *r)
{
    *t = (struct ps_metrics){.recorder = r,
                             .record_pushes = strcmp(options_text(settings, "record"), "all") == 0,
                             .skips = strcmp(options_text(settings, "on_nonfinite"), "skip") == 0,
                             .smooth_loss = NAN,
                             .test_accuracy = NAN};
}

void ps_metrics_push(struct ps_metrics *t, const struct push_record *row)
{
    if (row->outcome == PUSH_APPLIED || row->outcome == PUSH_AGGREGATED) {
        t->loss_sum += row->loss;
        t->loss_count++;
        t->smooth_loss = isnan(t->smooth_loss)
                             ? row->loss
                             : t->smooth_loss + SMOOTHING * (row->loss - t->smooth_loss);
        t->staleness.sum += (double)row->staleness;
        t->staleness.gradients++;
        if (row->staleness > t->staleness.most)
            t->staleness.most = row->staleness;
    }
    if (t->recorder != NULL && t->skips && row->outcome == PUSH_NOT_FINITE)
        recorder_event(t->recorder, row->at_seconds, SEVERITY_WARNING, "skipped", (int)row->worker,
                       "its gradient or loss is not finite (on_nonfinite=skip)");
    if (t->recorder != NULL && t->record_pushes)
        recorder_push(t->recorder, row);
}

void ps_metrics_begin_evaluation(struct ps_metrics *t, struct training_state *where)
{
    where->loss_sum = t->loss_sum;
    where->loss_count = t->loss_count;
    t->loss_sum = 0;
    t->loss_count = 0;
}

void ps_metrics_drop_evaluation(struct ps_metrics *t, const struct training_state *where)
{
    t->loss_sum += where->loss_sum;
    t->loss_count += where->loss_count;
}

void ps_metrics_evaluation(struct ps_metrics *t, const struct training_state *where,
                           double took_seconds, const struct evaluation *e)
{
    struct evaluation_record row = {.updates = where->updates,
                                    .samples = where->samples,
                                    .seconds = where->seconds,
                                    .train_loss = where->loss_count > 0
                                                      ? where->loss_sum / (double)where->loss_count
                                                      : NOT_MEASURED,
                                    .validation_loss = e->validation_loss,
                                    .validation_accuracy = e->validation_accuracy,
                                    .test_loss = e->test_loss,
                                    .test_accuracy = e->test_accuracy,
                                    .top_class_share = e->top_class_share,
                                    .took_seconds = took_seconds};
    t->test_accuracy = e->test_accuracy;
    if (t->recorder != NULL)
        recorder_evaluation(t->recorder, &row);
}

double ps_metrics_mean_staleness(const struct ps_metrics *t)
{
    return t->staleness.gradients > 0 ? t->staleness.sum / (double)t->staleness.gradients : 0;
}
