#include "experiments/recall.h"

#include "experiments/keys.h"

#include <jansson.h>
#include <string.h>

/* Keys whose part in a run is over once its gradients' order is known. */
static bool is_of_the_cluster(const char *key)
{
    static const char *const beginnings[] = {"pace", "network.", "server.", "crash.", "engine"};
    for (size_t i = 0; i < COUNT_OF(beginnings); i++) {
        if (strncmp(key, beginnings[i], strlen(beginnings[i])) == 0) {
            return true;
        }
    }
    return false;
}

/* Of epochs, samples and updates the one that counted, for the others are their defaults. */
static bool is_overruled(const json_t *all, const char *key)
{
    bool counted = json_integer_value(json_object_get(all, "samples")) > 0 ||
                   json_integer_value(json_object_get(all, "updates")) > 0;
    return counted && strcmp(key, "epochs") == 0;
}

static bool is_wanted(const json_t *all, const char *key)
{
    bool needed = strcmp(key, "dataset.path") == 0 || strcmp(key, "probe_every") == 0;
    bool beside = key_use_of(key) != KEY_DEFINES && !needed;
    return !beside && !is_of_the_cluster(key) && !is_overruled(all, key);
}

static void add_text(const json_t *value, struct text *out)
{
    if (json_is_string(value)) {
        text_add(out, "%s", json_string_value(value));
    } else if (json_is_integer(value)) {
        text_add(out, "%lld", (long long)json_integer_value(value));
    } else if (json_is_real(value)) {
        text_add_real(out, json_real_value(value));
    } else {
        text_add(out, "%s", json_is_true(value) ? "true" : "false");
    }
}

status recall_settings(struct settings *out, const char *config, const char *origin)
{
    status result = OK;
    json_error_t error;
    const char *key;
    json_t *value;
    json_t *all = json_loads(config, 0, &error);
    if (!json_is_object(all)) {
        FAIL(ERROR_RESULTS, "%s: its configuration cannot be read (%s)", origin, error.text);
    }
    json_object_foreach(all, key, value)
    {
        struct text text = {0};
        if (is_wanted(all, key)) {
            add_text(value, &text);
            settings_add(out, key, text.at != NULL ? text.at : "", origin);
        }
        text_free(&text);
    }
done:
    json_decref(all);
    return result;
}
