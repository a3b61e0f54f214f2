#include "experiments/run/resume_record.h"

#include "base/log.h"
#include "base/text.h"
#include "experiments/print_columns.h"
#include "experiments/run/run_checkpoint.h"
#include "results/query/query.h"

struct origin {
    const char *path;
    char sha256[65];
    uint64_t version, lost; /* lost: versions after the checkpoint; 0 if the run is unknown */
    bool asynchronous;
    uint64_t computed; /* samples computed up to the checkpoint, of an asynchronous run */
    struct origin_run run;
};

static status find(const struct role_process *p, struct origin *out)
{
    status result = OK;
    char hash[65];
    TRY(run_checkpoint_hash(out->path, out->sha256));
    config_hash(p->settings, hash);
    TRY(query_find_origin(options_text(p->settings, "results"), hash, out->path, out->sha256,
                          p->run_id, &out->run));
    out->lost = out->run.updates > out->version ? out->run.updates - out->version : 0;
done:
    return result;
}

static void describe(const struct origin *from, struct text *out)
{
    text_add(out, "from update %llu ", (unsigned long long)from->version);
    if (from->run.id > 0) {
        text_add(out, "of run %lld: rolled back by %s%llu version%s", (long long)from->run.id,
                 from->run.was_killed ? "at least " : "", (unsigned long long)from->lost,
                 plural(from->lost));
    } else {
        text_add(out, "of a run that is not in this results file; the number of versions rolled "
                      "back is unknown");
    }
}

static void write_json(const struct origin *from, struct text *out)
{
    text_add(out, "{\"path\":");
    text_add_json(out, from->path);
    text_add(out, ",\"sha256\":\"%s\",\"version\":%llu", from->sha256,
             (unsigned long long)from->version);
    if (from->asynchronous)
        text_add(out, ",\"computed\":%llu", (unsigned long long)from->computed);
    if (from->run.id > 0) {
        text_add(out, ",\"run\":\"%s\",\"lost\":%llu", from->run.uuid,
                 (unsigned long long)from->lost);
    }
    text_add(out, "}");
}

status resume_record(const struct role_process *p, const char *path,
                     const struct training_state *start)
{
    status result = OK;
    struct origin from = {.path = path,
                          .version = start->updates,
                          .asynchronous = start->batches != NULL,
                          .computed = start->computed};
    struct text words = {0}, json = {0};
    TRY(find(p, &from));
    describe(&from, &words);
    write_json(&from, &json);
    recorder_event(p->recorder, start->seconds, SEVERITY_INFO, "resumed", -1, words.at);
    recorder_origin(p->recorder, json.at);
    log_info("resuming %s", words.at);
done:
    text_free(&words);
    text_free(&json);
    return result;
}
