#include "experiments/run/rerun_command.h"

#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "experiments/run/provenance.h"
#include "experiments/run/config_from_row.h"
#include "results/query/query.h"
#include "worker/cpu/onednn_instructions.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

/* Columns of the run's row as texts; owned. */
struct recorded {
    char *id, *mode, *workers, *engine, *config, *environment, *instructions, *commit, *dirty,
        *replayed;
};

static void free_recorded(struct recorded *r)
{
    char *const all[] = {r->id,          r->mode,         r->workers, r->engine, r->config,
                         r->environment, r->instructions, r->commit,  r->dirty,  r->replayed};
    for (size_t i = 0; i < COUNT_OF(all); i++)
        memory_free(all[i]);
}

static status read_one(const char *results, const char *run, const char *what, char **out)
{
    char sql[256], setting[160];
    const char *const settings[] = {setting};
    snprintf(sql, sizeof sql, "SELECT %s FROM run WHERE id = :run", what);
    snprintf(setting, sizeof setting, "run=%s", run);
    return query_value(results, sql, settings, 1, out);
}

static status read_recorded(const char *results, const char *run, struct recorded *out)
{
    status result = OK;
    TRY(read_one(results, run, "id", &out->id));
    TRY(read_one(results, run, "workers", &out->workers));
    TRY(read_one(results, run, "mode", &out->mode));
    TRY(read_one(results, run, "coalesce(engine, 'real')", &out->engine));
    TRY(read_one(results, run, "config", &out->config));
    TRY(read_one(results, run, "host ->> '$.environment'", &out->environment));
    TRY(read_one(results, run, "nullif(host ->> '$.onednn_instructions', '')", &out->instructions));
    TRY(read_one(results, run, "host ->> '$.commit'", &out->commit));
    TRY(read_one(results, run, "nullif(host ->> '$.dirty', 0)", &out->dirty));
    /* The event says "run 3 (uuid)". Take the uuid, because a merge may change the number. */
    TRY(read_one(results, run,
                 "(SELECT substr(detail, instr(detail, '(') + 1, 36) FROM event"
                 " WHERE run_id = run.id AND code = 'replay_of')",
                 &out->replayed));
    if (out->config == NULL) {
        FAIL(ERROR_RESULTS, "%s: the row of run %s has no settings, so the run cannot be repeated",
             results, out->id);
    }
done:
    return result;
}

/* ---- words --------------------------------------------------------------------------------------
 */

void rerun_add_word(struct text *out, const char *word)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                "_-+=:,./@%{}";
    size_t length = strlen(word);
    if (length > 0 && strspn(word, plain) == length) {
        text_add(out, "%s", word);
        return;
    }
    text_add(out, "'");
    for (const char *c = word; *c != '\0'; c++)
        text_add_bytes(out, *c == '\'' ? "'\\''" : c, *c == '\'' ? 4 : 1);
    text_add(out, "'");
}

static void add_setting(struct text *out, const char *key, const char *value)
{
    struct text word = {0};
    text_add(&word, "%s=%s", key, value);
    text_add(out, " ");
    rerun_add_word(out, word.at);
    text_free(&word);
}

void rerun_add_results(struct text *out, const char *results)
{
    if (strcmp(results, "results.db") != 0)
        add_setting(out, "results", results);
}

/* Adds the recorded environment variables, but no limit of oneDNN's instruction set:
 * add_instructions() adds the set that was used. */
static void add_environment(struct text *out, const struct recorded *r)
{
    const char *name;
    json_t *value;
    json_t *all = r->environment != NULL ? json_loads(r->environment, 0, NULL) : NULL;
    json_object_foreach(all, name, value)
    {
        const bool plain = name[strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789"
                                             "abcdefghijklmnopqrstuvwxyz")] == '\0';
        const bool known = r->instructions != NULL && strstr(name, "MAX_CPU_ISA") != NULL;
        if (plain && !known && json_is_string(value)) {
            text_add(out, "%s=", name);
            rerun_add_word(out, json_string_value(value));
            text_add(out, " ");
        }
    }
    json_decref(all);
}

/* Adds the limit that gives the same bits on a processor with more instructions. */
static void add_instructions(struct text *out, const struct recorded *r)
{
    if (r->instructions != NULL && strcmp(r->instructions, onednn_instructions()) != 0) {
        text_add(out, "ONEDNN_MAX_CPU_ISA=");
        rerun_add_word(out, r->instructions);
        text_add(out, " ");
    }
}

/* ---- the two commands ---------------------------------------------------------------------------
 */

static status add_run(const struct recorded *r, const char *origin, struct text *out)
{
    status result = OK;
    struct settings all = {0};
    options *o = NULL;
    TRY(config_from_row_repeat(&all, r->config, origin));
    TRY(config_compose(&o, &all));
    text_add(out, "gradlag run");
    for (size_t i = 0; i < options_count(o); i++) {
        const char *key = options_at(o, i)->key;
        if (!options_is_initial(o, key))
            add_setting(out, key, options_value(o, key));
    }
done:
    options_close(&o);
    settings_free(&all);
    return result;
}

/* For a what-if replay: the recorded run, and the settings that differ from it. */
static status add_replay(const char *results, const struct recorded *r, const char *origin,
                         struct text *out)
{
    status result = OK;
    struct settings then = {0}, now = {0};
    char *config = NULL;
    if (r->replayed == NULL) {
        FAIL(ERROR_RESULTS,
             "%s: run %s is a replay, but it has no event replay_of that names the recorded run",
             results, r->id);
    }
    TRY(read_one(results, r->replayed, "config", &config));
    if (config == NULL)
        FAIL(ERROR_RESULTS, "%s: the row of run %s has no settings", results, r->replayed);
    TRY(config_from_row_settings(&then, config, origin));
    TRY(config_from_row_settings(&now, r->config, origin));
    text_add(out, "gradlag replay %s", r->replayed);
    for (size_t i = 0; i < now.count; i++) {
        const char *before = settings_find(&then, now.at[i].key);
        if (before == NULL || strcmp(before, now.at[i].value) != 0)
            add_setting(out, now.at[i].key, now.at[i].value);
    }
done:
    memory_free(config);
    settings_free(&then);
    settings_free(&now);
    return result;
}

/* Logs why the command may give another result. */
static void warn(const struct recorded *r, const char *results)
{
    if (r->instructions != NULL && !onednn_offers(r->instructions)) {
        log_warning("run %s was computed with %s, but oneDNN has only %s here, which rounds in "
                    "another way; the bits will differ",
                    r->id, r->instructions, onednn_instructions());
    }
    struct version program;
    bool known = provenance_version(0, &program) && r->commit != NULL;
    if (known && (strstr(program.value, r->commit) == NULL || r->dirty != NULL)) {
        log_warning("run %s is from commit %s%s, but this is gradlag %s; results may differ", r->id,
                    r->commit, r->dirty != NULL ? " with local changes" : "", program.value);
    }
    if (strcmp(r->engine, "real") == 0 && strcmp(r->mode, "async") == 0 &&
        strcmp(r->workers, "1") != 0) {
        struct text replay = {0};
        text_add(&replay, "gradlag replay %s", r->id);
        rerun_add_results(&replay, results);
        log_info(
            "gradients of several asynchronous workers arrive in another order each time; `%s` "
            "repeats run %s bit for bit",
            replay.at, r->id);
        text_free(&replay);
    }
}

status rerun_command(const char *results, const char *run, struct text *out)
{
    status result = OK;
    struct recorded r = {0};
    struct text origin = {0};
    TRY(read_recorded(results, run, &r));
    text_add(&origin, "run %s", r.id);
    add_instructions(out, &r);
    add_environment(out, &r);
    if (strcmp(r.engine, "replay") == 0)
        TRY(add_replay(results, &r, origin.at, out));
    else
        TRY(add_run(&r, origin.at, out));
    rerun_add_results(out, results);
    warn(&r, results);
done:
    text_free(&origin);
    free_recorded(&r);
    return result;
}
