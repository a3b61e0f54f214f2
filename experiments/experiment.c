#include "experiments/experiment.h"

#include "experiments/document.h"
#include "worker/embedded.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FOLDER "experiments/"
#define ENDING ".yaml"

/* ---- parts of a file ----------------------------------------------------------------------------
 */

static status read_text(const struct document *d, const struct node *map, const char *key,
                        bool wanted, char **out)
{
    status result = OK;
    const struct node *n = node_child(map, key);
    *out = NULL;
    if (n == NULL && wanted) {
        FAIL(ERROR_USAGE, "%s:%u: '%s' is missing here", d->name, map->line, key);
    }
    if (n != NULL) {
        TRY(node_require(d, n, NODE_SCALAR, key));
        *out = text_copy(n->text);
        /* Folded YAML text ends in a newline. */
        for (size_t end = strlen(*out); end > 0 && (*out)[end - 1] == '\n'; end--) {
            (*out)[end - 1] = '\0';
        }
    }
done:
    return result;
}

static status read_list(const struct document *d, const struct node *n, const char *key,
                        struct int_list *out)
{
    status result = OK;
    TRY(node_require(d, n, NODE_LIST, key));
    if (n->count == 0) {
        FAIL(ERROR_USAGE, "%s:%u: %s is empty", d->name, n->line, key);
    }
    TRY(memory_new(&out->at, n->count, sizeof *out->at, key));
    for (size_t i = 0; i < n->count; i++) {
        TRY(node_integer(d, &n->children[i], key, &out->at[i]));
        out->count++;
    }
done:
    return result;
}

static status read_integers(const struct document *d, const struct node *map, const char *key,
                            struct int_list *out)
{
    const struct node *n = node_child(map, key);
    return n != NULL ? read_list(d, n, key, out) : OK;
}

static status read_settings(const struct document *d, const struct node *map, struct settings *out)
{
    status result = OK;
    if (map == NULL) {
        goto done;
    }
    TRY(node_require(d, map, NODE_MAP, "settings"));
    for (size_t i = 0; i < map->count; i++) {
        struct text origin = {0};
        TRY(node_require(d, &map->children[i], NODE_SCALAR, map->keys[i]));
        text_add(&origin, "%s:%u", d->name, map->children[i].line);
        settings_add(out, map->keys[i], map->children[i].text, origin.at);
        text_free(&origin);
    }
done:
    return result;
}

/* The i-th key of a map whose keys are worker counts. */
static status read_worker_count(const struct document *d, const struct node *map, size_t i,
                                int64_t *out)
{
    status result = OK;
    char *end = NULL;
    *out = strtoll(map->keys[i], &end, 10);
    if (*end != '\0' || *out < 1) {
        FAIL(ERROR_USAGE, "%s:%u: '%s' is not a worker count", d->name, map->children[i].line,
             map->keys[i]);
    }
done:
    return result;
}

/* at: {8: {lr: 0.1}, 16: {lr: 0.05}} */
static status read_at(const struct document *d, const struct node *map, struct at_workers **out,
                      size_t *count)
{
    status result = OK;
    if (map == NULL) {
        goto done;
    }
    TRY(node_require(d, map, NODE_MAP, "at"));
    TRY(memory_new(out, map->count, sizeof **out, "at"));
    for (size_t i = 0; i < map->count; i++) {
        TRY(read_worker_count(d, map, i, &(*out)[i].workers));
        *count = i + 1;
        TRY(read_settings(d, &map->children[i], &(*out)[i].settings));
    }
done:
    return result;
}

/* quick: false, [16] or {4: [1, 2, 3], 16: [1]} */
static status read_arm_quick(const struct document *d, const struct node *n, struct arm *out)
{
    status result = OK;
    struct int_list workers = {0};
    out->quick = true;
    if (n == NULL) {
        goto done;
    }
    if (n->kind == NODE_SCALAR && strcmp(n->text, "false") == 0) {
        out->quick = false;
        goto done;
    }
    if (n->kind == NODE_SCALAR || n->count == 0) {
        FAIL(ERROR_USAGE,
             "%s:%u: an arm's quick is false, a list of worker counts, or {workers: [seeds]}",
             d->name, n->line);
    }
    TRY(memory_new(&out->quick_at, n->count, sizeof *out->quick_at, "quick"));
    out->quick_at_count = n->count;
    if (n->kind == NODE_LIST) {
        TRY(read_list(d, n, "quick", &workers));
    }
    for (size_t i = 0; i < n->count; i++) {
        struct at_seeds *at = &out->quick_at[i];
        if (n->kind == NODE_LIST) {
            at->workers = workers.at[i];
        } else {
            TRY(read_worker_count(d, n, i, &at->workers));
            TRY(read_list(d, &n->children[i], "quick", &at->seeds));
        }
    }
done:
    memory_free(workers.at);
    return result;
}

static status read_arm(const struct document *d, const char *name, const struct node *n,
                       struct arm *out)
{
    status result = OK;
    static const char *const known[] = {"label", "settings", "workers", "at", "quick", NULL};
    TRY(node_require(d, n, NODE_MAP, name));
    TRY(node_known_keys(d, n, known));
    out->name = text_copy(name);
    TRY(read_text(d, n, "label", true, &out->label));
    TRY(read_settings(d, node_child(n, "settings"), &out->settings));
    TRY(read_integers(d, n, "workers", &out->workers));
    TRY(read_at(d, node_child(n, "at"), &out->at, &out->at_count));
    TRY(read_arm_quick(d, node_child(n, "quick"), out));
done:
    return result;
}

static status read_band(const struct document *d, const struct node *n, const char *what,
                        double *low, double *high)
{
    status result = OK;
    TRY(node_require(d, n, NODE_LIST, what));
    if (n->count != 2) {
        FAIL(ERROR_USAGE, "%s:%u: a %s is two numbers, [low, high]", d->name, n->line, what);
    }
    TRY(node_real(d, &n->children[0], what, low));
    TRY(node_real(d, &n->children[1], what, high));
    if (*low > *high) {
        FAIL(ERROR_USAGE, "%s:%u: the %s's low end is above its high end", d->name, n->line, what);
    }
done:
    return result;
}

static status read_claim(const struct document *d, const struct node *n, struct claim *out)
{
    status result = OK;
    static const char *const known[] = {"claim", "source", "value", "sql", "band", "quick", NULL};
    TRY(node_require(d, n, NODE_MAP, "a claim"));
    TRY(node_known_keys(d, n, known));
    out->line = n->line;
    TRY(read_text(d, n, "claim", true, &out->text));
    TRY(read_text(d, n, "source", false, &out->source));
    TRY(read_text(d, n, "value", false, &out->value));
    TRY(read_text(d, n, "sql", false, &out->sql));
    if ((out->value == NULL) == (out->sql == NULL)) {
        FAIL(ERROR_USAGE, "%s:%u: a claim has either a value or sql", d->name, n->line);
    }
    const struct node *band = node_child(n, "band"), *quick = node_child(n, "quick");
    if (band == NULL) {
        FAIL(ERROR_USAGE, "%s:%u: a claim needs a band, [low, high]", d->name, n->line);
    }
    TRY(read_band(d, band, "band", &out->low, &out->high));
    out->quick_low = out->low;
    out->quick_high = out->high;
    if (quick != NULL) {
        TRY(read_band(d, quick, "quick band", &out->quick_low, &out->quick_high));
    }
done:
    return result;
}

static status known_arm(const struct experiment *e, const struct document *d, const struct node *n,
                        const char *name)
{
    if (experiment_arm(e, name) == NULL) {
        return error_set(ERROR_USAGE, __FILE__, __LINE__, "%s:%u: there is no arm '%s' above",
                         d->name, n->line, name);
    }
    return OK;
}

static status read_verdict(const struct document *d, const struct node *n, struct experiment *e)
{
    status result = OK;
    static const char *const known[] = {"workers", "alone",       "undamped", "damped",
                                        "tuned",   "synchronous", NULL};
    struct verdict_arms *v = &e->verdict;
    const struct node *workers, *damped;
    if (n == NULL) {
        goto done;
    }
    TRY(node_require(d, n, NODE_MAP, "verdict"));
    TRY(node_known_keys(d, n, known));
    workers = node_child(n, "workers");
    if (workers == NULL) {
        FAIL(ERROR_USAGE, "%s:%u: the verdict needs workers, the count it speaks of", d->name,
             n->line);
    }
    TRY(node_integer(d, workers, "workers", &v->workers));
    TRY(read_text(d, n, "alone", false, &v->alone));
    TRY(read_text(d, n, "undamped", false, &v->undamped));
    TRY(read_text(d, n, "tuned", false, &v->tuned));
    TRY(read_text(d, n, "synchronous", false, &v->synchronous));
    char *const single[] = {v->alone, v->undamped, v->tuned, v->synchronous};
    for (size_t i = 0; i < COUNT_OF(single); i++) {
        if (single[i] != NULL) {
            TRY(known_arm(e, d, n, single[i]));
        }
    }
    damped = node_child(n, "damped");
    if (damped != NULL) {
        TRY(node_require(d, damped, NODE_LIST, "damped"));
        TRY(memory_new(&v->damped, damped->count, sizeof *v->damped, "damped"));
        for (size_t i = 0; i < damped->count; i++) {
            TRY(node_require(d, &damped->children[i], NODE_SCALAR, "an arm"));
            TRY(known_arm(e, d, damped, damped->children[i].text));
            v->damped[v->damped_count++] = text_copy(damped->children[i].text);
        }
    }
done:
    return result;
}

static status read_quick(const struct document *d, const struct node *n, struct experiment *e)
{
    status result = OK;
    static const char *const known[] = {"workers", "seeds", "settings", NULL};
    if (n == NULL) {
        goto done;
    }
    TRY(node_require(d, n, NODE_MAP, "quick"));
    TRY(node_known_keys(d, n, known));
    TRY(read_integers(d, n, "workers", &e->quick_workers));
    TRY(read_integers(d, n, "seeds", &e->quick_seeds));
    TRY(read_settings(d, node_child(n, "settings"), &e->quick_settings));
done:
    return result;
}

static status read_lists(const struct document *d, struct experiment *e)
{
    status result = OK;
    const struct node *arms = node_child(&d->root, "arms");
    const struct node *claims = node_child(&d->root, "claims");
    if (arms == NULL) {
        FAIL(ERROR_USAGE, "%s:%u: 'arms' is missing", d->name, d->root.line);
    }
    TRY(node_require(d, arms, NODE_MAP, "arms"));
    TRY(memory_new(&e->arms, arms->count, sizeof *e->arms, "arms"));
    for (size_t i = 0; i < arms->count; i++) {
        e->arm_count = i + 1;
        TRY(read_arm(d, arms->keys[i], &arms->children[i], &e->arms[i]));
    }
    if (claims != NULL) {
        TRY(node_require(d, claims, NODE_LIST, "claims"));
        TRY(memory_new(&e->claims, claims->count, sizeof *e->claims, "claims"));
        for (size_t i = 0; i < claims->count; i++) {
            e->claim_count = i + 1;
            TRY(read_claim(d, &claims->children[i], &e->claims[i]));
        }
    }
done:
    return result;
}

static status read_experiment(const struct document *d, struct experiment *e)
{
    status result = OK;
    static const char *const known[] = {"name",   "question", "source", "settings",
                                        "at",     "workers",  "seeds",  "arms",
                                        "claims", "verdict",  "quick",  NULL};
    TRY(node_require(d, &d->root, NODE_MAP, "an experiment"));
    TRY(node_known_keys(d, &d->root, known));
    TRY(read_text(d, &d->root, "name", true, &e->name));
    TRY(read_text(d, &d->root, "question", true, &e->question));
    TRY(read_text(d, &d->root, "source", false, &e->source));
    TRY(read_settings(d, node_child(&d->root, "settings"), &e->settings));
    TRY(read_at(d, node_child(&d->root, "at"), &e->at, &e->at_count));
    TRY(read_integers(d, &d->root, "workers", &e->workers));
    TRY(read_integers(d, &d->root, "seeds", &e->seeds));
    if (e->workers.count == 0 || e->seeds.count == 0) {
        FAIL(ERROR_USAGE, "%s: 'workers' and 'seeds' are wanted, each a list as in [1, 2, 4]",
             d->name);
    }
    TRY(read_lists(d, e));
    TRY(read_verdict(d, node_child(&d->root, "verdict"), e));
    TRY(read_quick(d, node_child(&d->root, "quick"), e));
done:
    return result;
}

/* ---- whole files --------------------------------------------------------------------------------
 */

/* The next compiled-in experiment from *index on, or NULL. */
static const struct embedded_file *next_embedded(size_t *index)
{
    for (; embedded_files[*index].path != NULL; ++*index) {
        const char *path = embedded_files[*index].path;
        size_t length = strlen(path), ending = strlen(ENDING);
        if (strncmp(path, FOLDER, strlen(FOLDER)) == 0 && length > ending &&
            strcmp(path + length - ending, ENDING) == 0) {
            return &embedded_files[(*index)++];
        }
    }
    return NULL;
}

static void embedded_name(const struct embedded_file *f, char name[64])
{
    const char *start = f->path + strlen(FOLDER);
    snprintf(name, 64, "%.*s", (int)(strlen(start) - strlen(ENDING)), start);
}

bool experiment_at(size_t index, char name[64])
{
    size_t at = 0;
    const struct embedded_file *f;
    while ((f = next_embedded(&at)) != NULL) {
        if (index-- == 0) {
            embedded_name(f, name);
            return true;
        }
    }
    return false;
}

static status open_document(struct document *d, const char *name)
{
    status result = OK;
    size_t at = 0;
    const struct embedded_file *f;
    struct text all = {0};
    char each[64];
    *d = (struct document){0};
    if (strchr(name, '/') != NULL || access(name, R_OK) == 0) {
        TRY(document_read_file(d, name));
        goto done;
    }
    while ((f = next_embedded(&at)) != NULL) {
        embedded_name(f, each);
        text_add(&all, "%s%s", all.length > 0 ? ", " : "", each);
        if (strcmp(each, name) == 0) {
            TRY(document_read_text(d, f->path, f->text));
            goto done;
        }
    }
    FAIL(ERROR_USAGE, "there is no experiment '%s' and no file of that name. There is: %s", name,
         all.at != NULL ? all.at : "none");
done:
    text_free(&all);
    return result;
}

status experiment_open(struct experiment *out, const char *name_or_path)
{
    status result = OK;
    struct document d;
    *out = (struct experiment){0};
    TRY(open_document(&d, name_or_path));
    out->file = text_copy(d.name);
    TRY(read_experiment(&d, out));
done:
    document_close(&d);
    if (result != OK) {
        experiment_close(out);
    }
    return result;
}

static void at_free(struct at_workers *at, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        settings_free(&at[i].settings);
    }
    memory_free(at);
}

static void texts_free(char **const *texts, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        memory_free(*texts[i]);
    }
}

void experiment_close(struct experiment *e)
{
    struct verdict_arms *v = &e->verdict;
    char **const own[] = {&e->name,  &e->file,     &e->question, &e->source,
                          &v->alone, &v->undamped, &v->tuned,    &v->synchronous};
    texts_free(own, COUNT_OF(own));
    for (size_t i = 0; i < v->damped_count; i++) {
        memory_free(v->damped[i]);
    }
    memory_free(v->damped);
    for (size_t i = 0; i < e->arm_count; i++) {
        struct arm *a = &e->arms[i];
        memory_free(a->name);
        memory_free(a->label);
        memory_free(a->workers.at);
        for (size_t k = 0; k < a->quick_at_count; k++) {
            memory_free(a->quick_at[k].seeds.at);
        }
        memory_free(a->quick_at);
        settings_free(&a->settings);
        at_free(a->at, a->at_count);
    }
    for (size_t i = 0; i < e->claim_count; i++) {
        struct claim *c = &e->claims[i];
        char **const texts[] = {&c->text, &c->source, &c->value, &c->sql};
        texts_free(texts, COUNT_OF(texts));
    }
    at_free(e->at, e->at_count);
    memory_free(e->arms);
    memory_free(e->claims);
    struct int_list *const lists[] = {&e->workers, &e->seeds, &e->quick_workers, &e->quick_seeds};
    for (size_t i = 0; i < COUNT_OF(lists); i++) {
        memory_free(lists[i]->at);
    }
    settings_free(&e->settings);
    settings_free(&e->quick_settings);
    *e = (struct experiment){0};
}

const struct arm *experiment_arm(const struct experiment *e, const char *name)
{
    for (size_t i = 0; i < e->arm_count; i++) {
        if (strcmp(e->arms[i].name, name) == 0) {
            return &e->arms[i];
        }
    }
    return NULL;
}

static bool holds(const struct int_list *list, int64_t number)
{
    for (size_t i = 0; i < list->count; i++) {
        if (list->at[i] == number) {
            return true;
        }
    }
    return false;
}

bool experiment_arm_has(const struct experiment *e, const struct arm *arm, int64_t workers)
{
    return holds(arm->workers.count > 0 ? &arm->workers : &e->workers, workers);
}

const struct int_list *experiment_workers(const struct experiment *e, bool quick)
{
    return quick && e->quick_workers.count > 0 ? &e->quick_workers : &e->workers;
}

static const struct int_list *own_seeds(const struct experiment *e, bool quick)
{
    return quick && e->quick_seeds.count > 0 ? &e->quick_seeds : &e->seeds;
}

static void add_seeds(struct int_list *out, const struct int_list *more)
{
    out->at = realloc(out->at, (out->count + more->count) * sizeof *out->at);
    REQUIRE(out->at != NULL || out->count + more->count == 0);
    for (size_t i = 0; i < more->count; i++) {
        if (!holds(out, more->at[i])) {
            out->at[out->count++] = more->at[i];
        }
    }
}

void experiment_seeds(const struct experiment *e, bool quick, struct int_list *out)
{
    *out = (struct int_list){0};
    add_seeds(out, own_seeds(e, quick));
    for (size_t a = 0; quick && a < e->arm_count; a++) {
        for (size_t i = 0; i < e->arms[a].quick_at_count; i++) {
            add_seeds(out, &e->arms[a].quick_at[i].seeds);
        }
    }
}

bool experiment_has(const struct experiment *e, const struct arm *arm, int64_t workers,
                    int64_t seed, bool quick)
{
    const struct int_list *seeds = own_seeds(e, quick);
    bool has = experiment_arm_has(e, arm, workers);
    if (quick && arm->quick_at_count > 0) {
        const struct at_seeds *at = arm->quick_at, *end = at + arm->quick_at_count;
        while (at < end && at->workers != workers) {
            at++;
        }
        has = has && at < end;
        seeds = has && at->seeds.count > 0 ? &at->seeds : seeds;
    }
    return has && (!quick || arm->quick) && holds(seeds, seed);
}

/* Settings of all arms, from `first` on: those that an arm has no use for fall away there. */
static void mark_shared(struct settings *s, size_t first)
{
    for (size_t i = first; i < s->count; i++) {
        s->at[i].shared = true;
    }
}

static void add_at(const struct at_workers *at, size_t count, int64_t workers, struct settings *out)
{
    for (size_t i = 0; i < count; i++) {
        if (at[i].workers == workers) {
            settings_add_all(out, &at[i].settings);
        }
    }
}

void experiment_settings(const struct experiment *e, const struct arm *arm, int64_t workers,
                         int64_t seed, bool quick, const struct settings *more,
                         struct settings *out)
{
    char number[32];
    settings_add_all(out, &e->settings);
    add_at(e->at, e->at_count, workers, out);
    mark_shared(out, 0);
    settings_add_all(out, &arm->settings);
    add_at(arm->at, arm->at_count, workers, out);
    if (quick) {
        size_t own = out->count;
        settings_add_all(out, &e->quick_settings);
        mark_shared(out, own);
    }
    settings_add_all(out, more);
    snprintf(number, sizeof number, "%lld", (long long)workers);
    settings_add(out, "workers", number, e->file);
    snprintf(number, sizeof number, "%lld", (long long)seed);
    settings_add(out, "seed", number, e->file);
    settings_add(out, "experiment", e->name, e->file);
    settings_add(out, "arm", arm->name, e->file);
}

void experiment_print_all(FILE *to)
{
    char name[64];
    for (size_t i = 0; experiment_at(i, name); i++) {
        struct experiment e;
        if (experiment_open(&e, name) == OK) {
            fprintf(to, "%-24s %s\n", name, e.question);
            experiment_close(&e);
        } else {
            fprintf(to, "%-24s %s\n", name, error_message());
        }
    }
}
