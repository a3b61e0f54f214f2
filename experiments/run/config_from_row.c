#include "experiments/run/config_from_row.h"

#include "base/text.h"
#include "experiments/config/keys.h"

#include <jansson.h>
#include <string.h>
#include <sys/stat.h>

/* Keys of the cluster: they decide the order of gradients, which a replay takes from the record. */
static bool is_of_the_cluster(const char *key)
{
    static const char *const beginnings[] = {"pace", "network.", "server.", "crash.", "engine"};
    for (size_t i = 0; i < COUNT_OF(beginnings); i++)
        if (strncmp(key, beginnings[i], strlen(beginnings[i])) == 0)
            return true;
    return false;
}

/* `epochs` has no effect if `samples`, `updates` or `seconds` is set. */
static bool is_overruled(const json_t *all, const char *key)
{
    bool counted = json_integer_value(json_object_get(all, "samples")) > 0 ||
                   json_integer_value(json_object_get(all, "updates")) > 0 ||
                   json_number_value(json_object_get(all, "seconds")) > 0;
    return counted && strcmp(key, "epochs") == 0;
}

static bool is_for_replay(const json_t *all, const char *key)
{
    bool needed = strcmp(key, "dataset.path") == 0 || strcmp(key, "probe_every") == 0;
    bool beside = !key_defines(key) && !needed;
    return !beside && !is_of_the_cluster(key) && !is_overruled(all, key);
}

static bool is_virtual(const char *engine)
{
    return engine != NULL && strcmp(engine, "virtual") == 0;
}

/* Whether the key decides what a run computes. Keys of the cluster decide the order of gradients
 * only in a virtual run. In a real run the machines do, and a resumed run may have other
 * machines. */
static bool is_compared(const json_t *then, const options *now, const char *key)
{
    const char *engine = json_string_value(json_object_get(then, "engine"));
    const bool by_keys = is_virtual(engine) || is_virtual(options_text(now, "engine"));
    return (key_defines(key) || strcmp(key, "dataset.path") == 0) && !is_overruled(then, key) &&
           (by_keys || !is_of_the_cluster(key));
}

/* Names, files and endpoints, which a repetition must not share. */
static bool is_of_the_run(const char *key)
{
    static const char *const own[] = {"results",         "tag",    "experiment", "arm",
                                      "endpoint",        "curve",  "checkpoint", "checkpoint_every",
                                      "trace",           "resume", "priority",   "retries",
                                      "trusted_network", "hosts",  "restarts",   "trial_of"};
    for (size_t i = 0; i < COUNT_OF(own); i++)
        if (strcmp(key, own[i]) == 0)
            return true;
    return false;
}

static bool is_repeated(const json_t *all, const char *key)
{
    return !is_of_the_run(key) && !is_overruled(all, key);
}

static void add_text(const json_t *value, struct text *out)
{
    if (json_is_string(value))
        text_add(out, "%s", json_string_value(value));
    else if (json_is_integer(value))
        text_add(out, "%lld", (long long)json_integer_value(value));
    else if (json_is_real(value))
        text_add_real(out, json_real_value(value));
    else
        text_add(out, "%s", json_is_true(value) ? "true" : "false");
}

static bool is_any(const json_t *all, const char *key)
{
    return key_use_of(key) != KEY_INTERNAL && strcmp(key, "results") != 0 &&
           !is_overruled(all, key);
}

static status read_settings(struct settings *out, const char *config, const char *origin,
                            bool (*wanted)(const json_t *all, const char *key))
{
    status result = OK;
    json_error_t error;
    const char *key;
    json_t *value;
    json_t *all = json_loads(config, 0, &error);
    if (!json_is_object(all))
        FAIL(ERROR_RESULTS, "%s: the settings in its row are not valid JSON (%s)", origin,
             error.text);
    json_object_foreach(all, key, value)
    {
        struct text text = {0};
        if (wanted(all, key)) {
            add_text(value, &text);
            settings_add(out, key, text.at != NULL ? text.at : "", origin);
        }
        text_free(&text);
    }
done:
    json_decref(all);
    return result;
}

status config_from_row_settings(struct settings *out, const char *config, const char *origin)
{
    return read_settings(out, config, origin, is_for_replay);
}

status config_from_row_repeat(struct settings *out, const char *config, const char *origin)
{
    return read_settings(out, config, origin, is_repeated);
}

status config_from_row_all(struct settings *out, const char *config, const char *origin)
{
    return read_settings(out, config, origin, is_any);
}

/* The value of `key` as JSON; NULL: this program has no such key. */
static json_t *value_now(const options *o, const char *key)
{
    struct text text = {0};
    json_t *all = NULL, *value = NULL;
    text_add(&text, "{");
    config_member_json(o, key, &text);
    text_add(&text, "}");
    all = json_loads(text.at, 0, NULL);
    value = json_incref(json_object_get(all, key));
    json_decref(all);
    text_free(&text);
    return value;
}

static bool equal_values(const json_t *a, const json_t *b)
{
    return json_is_number(a) && json_is_number(b) ? json_number_value(a) == json_number_value(b)
                                                  : json_equal(a, b) != 0;
}

/* The data may have moved: if the recorded path no longer exists, it counts as the same place. */
static bool is_same_place(const json_t *then, const json_t *now)
{
    struct stat a, b;
    const char *was = json_string_value(then), *is = json_string_value(now);
    if (was == NULL || is == NULL || was[0] == '\0' || is[0] == '\0') /* empty: the usual place */
        return false;
    if (stat(was, &a) != 0)
        return true;
    return stat(is, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

static bool is_equal(const char *key, const json_t *then, const json_t *now)
{
    return equal_values(then, now) ||
           (strcmp(key, "dataset.path") == 0 && is_same_place(then, now));
}

static void add_difference(const char *key, const json_t *was, const json_t *is, struct text *out)
{
    text_add(out, "%s%s is ", out->length > 0 ? ", " : "", key);
    if (is != NULL)
        add_text(is, out);
    else
        text_add(out, "not set");
    text_add(out, ", was ");
    add_text(was, out);
}

status config_from_row_differing(const char *config, const options *now, struct text *out)
{
    status result = OK;
    json_error_t error;
    const char *key;
    json_t *value;
    json_t *all = json_loads(config, 0, &error);
    if (!json_is_object(all))
        FAIL(ERROR_DATA, "the recorded settings are not valid JSON (%s)", error.text);
    json_object_foreach(all, key, value)
    {
        json_t *is = value_now(now, key);
        if (is_compared(all, now, key) && !is_equal(key, value, is))
            add_difference(key, value, is, out);
        json_decref(is);
    }
    for (size_t i = 0; i < options_count(now); i++) {
        key = options_at(now, i)->key;
        if (json_object_get(all, key) == NULL && is_compared(all, now, key) &&
            !options_is_initial(now, key)) {
            text_add(out, "%s%s is %s, was not set", out->length > 0 ? ", " : "", key,
                     options_value(now, key));
        }
    }
done:
    json_decref(all);
    return result;
}
