#include "experiments/sweep/plan.h"

#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "experiments/command.h"
#include "experiments/config/config.h"
#include "experiments/config/keys.h"
#include "experiments/run/rerun_command.h"
#include "experiments/run/run_summary_text.h"
#include "experiments/sweep/precision_choice.h"
#include "results/query/query.h"
#include "worker/optimizer/schedule.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_JOBS = 4096, MOST_PARTS = 100000 };

static bool same_text(const struct planned_run *a, const options *b, const char *key)
{
    return strcmp(options_text(a->settings, key), options_text(b, key)) == 0;
}

void plan_vary(struct plan *p, const char *key)
{
    bool known = key_use_of(key) != KEY_BESIDE;
    for (size_t i = 0; i < p->varied_count; i++)
        known = known || strcmp(p->varied[i], key) == 0;
    if (known)
        return;
    REQUIRE(p->varied_count < PLAN_VARIED);
    p->varied[p->varied_count++] = key;
}

static void add_varied(const struct plan *p, const options *o, struct text *out)
{
    text_add(out, "{");
    for (size_t i = 0; i < p->varied_count; i++) {
        if (options_declared(o, p->varied[i])) {
            text_add(out, "%s", out->length > 1 ? "," : "");
            config_member_json(o, p->varied[i], out);
        }
    }
    text_add(out, "}");
}

status plan_choose_precision(const struct plan *p, options *settings)
{
    return precision_choose(settings, p->reads_only ? PRECISION_LOOK_UP : PRECISION_MEASURE);
}

static struct planned_run *append(struct plan *p, options **settings)
{
    struct planned_run *r = memory_append(&p->runs, &p->count, sizeof *r);
    r->settings = *settings;
    config_hash(r->settings, r->hash);
    run_summary_title(r->settings, r->title);
    *settings = NULL;
    return r;
}

void plan_add_waiting(struct plan *p, options **settings, int64_t run_id)
{
    struct planned_run *r = append(p, settings);
    r->run_id = run_id;
    r->waiting = true;
    text_add(&r->varied, "{}");
}

size_t plan_find_or_add(struct plan *p, options **settings)
{
    char hash[65];
    struct text varied = {0};
    config_hash(*settings, hash);
    add_varied(p, *settings, &varied);
    for (size_t i = 0; i < p->count; i++) {
        const struct planned_run *r = &p->runs[i];
        if (strcmp(r->hash, hash) == 0 && same_text(r, *settings, "experiment") &&
            same_text(r, *settings, "arm") && strcmp(r->varied.at, varied.at) == 0) {
            text_free(&varied);
            options_close(settings);
            return i;
        }
    }
    append(p, settings)->varied = varied;
    return p->count - 1;
}

bool plan_add(struct plan *p, options **settings)
{
    size_t before = p->count;
    plan_find_or_add(p, settings);
    return p->count > before;
}

void plan_close(struct plan *p)
{
    for (size_t i = 0; i < p->count; i++) {
        options_close(&p->runs[i].settings);
        text_free(&p->runs[i].varied);
    }
    free(p->runs);
    *p = (struct plan){0};
}

/* Rotates each row of `of` items by one against the previous row. Otherwise one part could get all
 * runs of one arm, or of the largest worker count, if these repeat every `of` items. */
bool plan_part_has(const struct plan_part *part, size_t index)
{
    return part->of == 0 || (index + index / part->of) % part->of == part->number - 1;
}

status plan_position(struct plan *seen, const struct settings *s, size_t *out)
{
    status result = OK;
    options *o = NULL;
    TRY(config_compose_unchecked(&o, s));
    *out = plan_find_or_add(seen, &o);
done:
    options_close(&o);
    return result;
}

void plan_keep_part(struct plan *p, const struct plan_part *part)
{
    size_t kept = 0;
    for (size_t i = 0; i < p->count; i++) {
        if (plan_part_has(part, i)) {
            p->runs[kept++] = p->runs[i];
        } else {
            options_close(&p->runs[i].settings);
            text_free(&p->runs[i].varied);
        }
    }
    p->count = kept;
}

void plan_key(const struct planned_run *r, struct run_key *out)
{
    *out = (struct run_key){.config_hash = r->hash,
                            .experiment = config_text_or_null(r->settings, "experiment"),
                            .arm = config_text_or_null(r->settings, "arm"),
                            .dataset_path = options_text(r->settings, "dataset.path"),
                            .config = r->varied.at};
}

/* dataset.path does not define a run, because hosts may keep the same data in different places. */
static void warn_of_other_path(struct plan *p, const struct planned_run *r)
{
    const options *o = r->settings;
    const bool known =
        options_declared(o, "dataset.sha256") && options_text(o, "dataset.sha256")[0] != '\0';
    if (p->warned_of_path || p->reads_only || known)
        return;
    p->warned_of_path = true;
    log_warning(
        "run %lld counts as one of these runs, but has another dataset.path. If its data differ "
        "from '%s', use another results file; for dataset=text, set dataset.sha256=…",
        (long long)r->run_id, options_text(r->settings, "dataset.path"));
}

static status look_up(struct plan *p, struct planned_run *r)
{
    struct run_key key;
    struct found_run found;
    bool has_row = false;
    const bool reads_only = p->reads_only;
    plan_key(r, &key);
    status result = query_find_run(options_text(r->settings, "results"), &key, &found, &has_row);
    r->state = PLANNED_MISSING;
    if (result == OK && has_row) {
        bool active = strcmp(found.status, "queued") == 0 || strcmp(found.status, "running") == 0;
        r->run_id = found.id;
        r->state = strcmp(found.status, "finished") == 0               ? PLANNED_FINISHED
                   : strcmp(found.status, "diverged") == 0             ? PLANNED_DIVERGED
                   : active && found.taken                             ? PLANNED_ELSEWHERE
                   : reads_only && strcmp(found.status, "failed") == 0 ? PLANNED_FAILED
                                                                       : PLANNED_MISSING;
        if (found.other_path)
            warn_of_other_path(p, r);
    }
    return result;
}

status plan_look_up(struct plan *p)
{
    status result = OK;
    if (plan_missing(p) == 0)
        return OK;
    TRY(query_begin(options_text(p->runs[0].settings, "results")));
    for (size_t i = 0; i < p->count; i++)
        if (p->runs[i].state == PLANNED_MISSING)
            TRY(look_up(p, &p->runs[i]));
done:
    query_end();
    return result;
}

static size_t in_state(const struct plan *p, enum planned_state state)
{
    size_t count = 0;
    for (size_t i = 0; i < p->count; i++)
        count += p->runs[i].state == state;
    return count;
}

static const char *unended_warmup(const options *o)
{
    const bool updates = options_integer(o, "updates") > 0;
    const bool seconds = options_real(o, "seconds") > 0;
    const uint64_t epoch = 1 << 20; /* cancels out, because the units are the same */
    if (options_integer(o, "samples") > 0 ||
        (updates && options_integer(o, "warmup_updates") == 0) ||
        (seconds && options_real(o, "warmup_seconds") == 0))
        return NULL;
    return schedule_unended_warmup(o, (uint64_t)(options_real(o, "epochs") * (double)epoch), epoch);
}

void plan_warn_of_warmup(const struct plan *p)
{
    size_t count = 0;
    const char *key = NULL, *value = NULL;
    for (size_t i = 0; i < p->count; i++) {
        const options *o = p->runs[i].settings;
        const char *of = p->runs[i].state == PLANNED_MISSING ? unended_warmup(o) : NULL;
        if (of != NULL && count++ == 0) {
            key = of;
            value = options_value(o, of);
        }
    }
    if (count > 0) {
        log_warning("training of %zu of %zu runs is not longer than its warm-up (%s=%s), so the "
                    "learning rate never reaches its full value; set a smaller %s, or train for "
                    "longer",
                    count, p->count, key, value, key);
    }
}

size_t plan_missing(const struct plan *p)
{
    return in_state(p, PLANNED_MISSING) + in_state(p, PLANNED_ELSEWHERE);
}

size_t plan_failed(const struct plan *p)
{
    return in_state(p, PLANNED_FAILED);
}

/* A loss that is not a number is stored as NULL, and column not_a_number names it. */
static status check_split(const struct planned_run *r)
{
    status result = OK;
    char sql[192];
    double nan_losses;
    bool known;
    snprintf(sql, sizeof sql,
             "SELECT count(*) FROM evaluation WHERE run_id = %lld AND "
             "instr(',' || not_a_number || ',', ',validation_loss,') > 0",
             (long long)r->run_id);
    TRY(query_number(options_text(r->settings, "results"), sql, NULL, 0, &nan_losses, &known));
    if (nan_losses == 0) {
        FAIL(ERROR_USAGE,
             "run %lld (%s) has no accuracy or loss on a validation split, by which a search "
             "chooses: dataset=%s has no such split. Add one to the data, or set the keys without "
             "'search' and 'tune'",
             (long long)r->run_id, r->title, options_text(r->settings, "dataset"));
    }
done:
    return result;
}

status plan_score(const struct planned_run *r, struct plan_score *out)
{
    static const char *const names[] = {"validation_accuracy", "validation_loss"};
    double *const places[] = {&out->accuracy, &out->loss};
    status result = OK;
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        char sql[160];
        bool known = false;
        snprintf(sql, sizeof sql,
                 "SELECT %s FROM evaluation WHERE run_id = %lld ORDER BY updates DESC LIMIT 1",
                 names[i], (long long)r->run_id);
        TRY(query_number(options_text(r->settings, "results"), sql, NULL, 0, places[i], &known));
        *places[i] = known ? *places[i] : NAN;
    }
    if (isnan(out->accuracy) && isnan(out->loss))
        TRY(check_split(r));
done:
    return result;
}

/* "run 3, run 5" */
static void add_ids(const struct plan *p, enum planned_state state, struct text *out)
{
    for (size_t i = 0; i < p->count; i++)
        if (p->runs[i].state == state)
            text_add(out, "%srun %lld", out->length > 0 ? ", " : "", (long long)p->runs[i].run_id);
}
/* "gradlag query failures results=FILE", with the file of the first run in this state. */
static void add_query(const struct plan *p, enum planned_state state, struct text *out)
{
    const struct planned_run *r = p->runs;
    while (r->state != state)
        r++;
    text_add(out, "gradlag query failures");
    rerun_add_results(out, options_text(r->settings, "results"));
}

status plan_check_failed(const struct plan *p)
{
    status result = OK;
    struct text ids = {0}, query = {0};
    if (plan_failed(p) > 0) {
        add_query(p, PLANNED_FAILED, &query);
        FAIL(ERROR_OTHER,
             "%zu of %zu runs failed; `%s` shows the reasons; run the same command again to repeat "
             "them",
             plan_failed(p), p->count, query.at);
    }
    add_ids(p, PLANNED_ELSEWHERE, &ids);
    if (ids.length > 0) {
        FAIL(ERROR_OTHER,
             "%zu of %zu runs have not ended: another host or container executes %s; run the same "
             "command again after they have ended",
             in_state(p, PLANNED_ELSEWHERE), p->count, ids.at);
    }
    if (in_state(p, PLANNED_DROPPED) > 0) {
        FAIL(ERROR_OTHER,
             "%zu of %zu runs were taken out of the queue by `gradlag sweep --drop`; run the same "
             "command again to execute them",
             in_state(p, PLANNED_DROPPED), p->count);
    }
done:
    text_free(&ids);
    text_free(&query);
    return result;
}

/* A run that diverged is a result: the sweep has succeeded. */
static void explain_diverged(const struct plan *p, FILE *to)
{
    struct text query = {0};
    if (in_state(p, PLANNED_DIVERGED) > 0) {
        add_query(p, PLANNED_DIVERGED, &query);
        fprintf(to,
                "a diverged run is a result, not a failure; the same command does not repeat it; "
                "`%s` shows which value was not finite\n",
                query.at);
        text_free(&query);
    }
}

/* How many of the finished runs collapsed to one class. */
static status count_collapsed(const struct plan *p, size_t *out)
{
    status result = OK;
    *out = 0;
    for (size_t i = 0; i < p->count; i++) {
        const struct planned_run *r = &p->runs[i];
        if (r->state == PLANNED_FINISHED) {
            char sql[80];
            double collapsed = 0;
            bool known = false;
            snprintf(sql, sizeof sql, "SELECT collapsed FROM run WHERE id = %lld",
                     (long long)r->run_id);
            TRY(query_number(options_text(r->settings, "results"), sql, NULL, 0, &collapsed,
                             &known));
            *out += known && collapsed > 0;
        }
    }
done:
    return result;
}

status plan_print_outcome(const struct plan *p, const struct plan_options *o, FILE *to)
{
    status result = OK;
    size_t collapsed;
    TRY(count_collapsed(p, &collapsed));
    fprintf(to, "%zu finished", in_state(p, PLANNED_FINISHED));
    if (collapsed > 0)
        fprintf(to, " (%zu collapsed to one class)", collapsed);
    fprintf(to, ", %zu diverged, %zu failed", in_state(p, PLANNED_DIVERGED),
            in_state(p, PLANNED_FAILED));
    if (in_state(p, PLANNED_ELSEWHERE) > 0)
        fprintf(to, ", %zu running elsewhere", in_state(p, PLANNED_ELSEWHERE));
    if (in_state(p, PLANNED_DROPPED) > 0)
        fprintf(to, ", %zu taken out of the queue", in_state(p, PLANNED_DROPPED));
    if (o->part.of > 0) {
        fprintf(to, "; part %u of %u: `gradlag merge` merges the results files of all parts",
                o->part.number, o->part.of);
    }
    fprintf(to, "\n");
    explain_diverged(p, to);
done:
    return result;
}

void plan_print(const struct plan *p, FILE *to)
{
    static const char *const states[] = {"to run", "finished", "diverged",
                                         "failed", "running",  "dropped"};
    for (size_t i = 0; i < p->count; i++) {
        const struct planned_run *r = &p->runs[i];
        fprintf(to, "%-9s ", states[r->state]);
        if (r->state != PLANNED_MISSING)
            fprintf(to, "run %-5lld ", (long long)r->run_id);
        else
            fprintf(to, "          ");
        fprintf(to, "%s\n", r->title);
    }
}

int plan_by_priority(const void *a, const void *b)
{
    const struct planned_run *const *x = a, *const *y = b;
    int64_t p = options_integer((*x)->settings, "priority");
    int64_t q = options_integer((*y)->settings, "priority");
    return p != q ? (p < q) - (p > q) : (*x > *y) - (*x < *y);
}

static status check_file(const struct plan *p, const char *key)
{
    status result = OK;
    for (size_t i = 0; i < p->count; i++) {
        const char *path = options_text(p->runs[i].settings, key);
        bool unique = path[0] == '\0' || strstr(path, "{run}") != NULL;
        for (size_t j = 0; j < i && !unique; j++) {
            if (strcmp(options_text(p->runs[j].settings, key), path) == 0) {
                FAIL(ERROR_USAGE,
                     "%s=%s names the same file for several runs; put {run} into the name", key,
                     path);
            }
        }
    }
done:
    return result;
}

status plan_check_files(const struct plan *p)
{
    status result = OK;
    if (plan_missing(p) == 0)
        goto done;
    TRY(check_file(p, "checkpoint"));
    TRY(check_file(p, "trace"));
done:
    return result;
}

/* Digits only: strtoul() would accept a sign and spaces. */
static bool read_number(const char **at, unsigned *out)
{
    const char *start = *at;
    *out = 0;
    for (; **at >= '0' && **at <= '9' && *out <= MOST_PARTS; ++*at)
        *out = 10 * *out + (unsigned)(**at - '0');
    return *at > start;
}

static status read_part(struct plan_options *out, int *argc, char **argv)
{
    status result = OK;
    const char *text, *at;
    struct plan_part *part = &out->part;
    TRY(command_value(argc, argv, "--part", &text));
    if ((at = text) == NULL)
        goto done;
    bool read = read_number(&at, &part->number) && *at++ == '/' && read_number(&at, &part->of);
    if (!read || *at != '\0' || part->number < 1 || part->number > part->of ||
        part->of > MOST_PARTS) {
        FAIL(ERROR_USAGE,
             "--part %s is invalid; give K/N, part K of N, for example --part 2/4 (N at most %d)",
             text, MOST_PARTS);
    }
done:
    return result;
}

status plan_options_read(struct plan_options *out, int *argc, char **argv)
{
    status result = OK;
    const char *jobs;
    int64_t number = 1;
    *out = (struct plan_options){.jobs = 1};
    out->oversubscribe = command_flag(argc, argv, "--oversubscribe");
    TRY(command_value(argc, argv, "--jobs", &jobs));
    if (jobs != NULL && (!text_to_integer(jobs, &number) || number < 1 || number > MOST_JOBS))
        FAIL(ERROR_USAGE, "--jobs %s is invalid; give a number of runs from 1 to %d", jobs,
             MOST_JOBS);
    out->jobs = (unsigned)number;
    TRY(read_part(out, argc, argv));
done:
    return result;
}
