#include "experiments/plan.h"

#include "experiments/config.h"
#include "experiments/launch.h"
#include "experiments/print.h"
#include "experiments/progress.h"
#include "experiments/summary.h"
#include "results/query.h"

#include <stdlib.h>
#include <string.h>

static bool same_text(const struct planned_run *a, const options *b, const char *key)
{
    return strcmp(options_text(a->settings, key), options_text(b, key)) == 0;
}

static void add_varied(const struct plan *p, const options *o, struct text *out)
{
    text_add(out, "{");
    for (size_t i = 0; i < p->varied_count; i++) {
        text_add(out, "%s", i > 0 ? "," : "");
        config_member_json(o, p->varied[i], out);
    }
    text_add(out, "}");
}

bool plan_add(struct plan *p, options **settings)
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
            return false;
        }
    }
    if (p->count == p->capacity) {
        p->capacity = p->capacity == 0 ? 32 : 2 * p->capacity;
        p->runs = realloc(p->runs, p->capacity * sizeof *p->runs);
        REQUIRE(p->runs != NULL);
    }
    struct planned_run *r = &p->runs[p->count++];
    *r = (struct planned_run){.settings = *settings, .varied = varied};
    memcpy(r->hash, hash, sizeof hash);
    summary_title(r->settings, r->title);
    *settings = NULL;
    return true;
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

static status look_up(struct planned_run *r)
{
    struct run_key key = {.config_hash = r->hash,
                          .experiment = config_text_or_null(r->settings, "experiment"),
                          .arm = config_text_or_null(r->settings, "arm"),
                          .config = r->varied.at};
    struct found_run found;
    bool is_there = false;
    status result = query_find_run(options_text(r->settings, "results"), &key, &found, &is_there);
    r->state = PLANNED_MISSING;
    if (result == OK && is_there) {
        r->run_id = found.id;
        r->state = strcmp(found.status, "finished") == 0   ? PLANNED_FINISHED
                   : strcmp(found.status, "diverged") == 0 ? PLANNED_DIVERGED
                                                           : PLANNED_MISSING;
    }
    return result;
}

status plan_look_up(struct plan *p)
{
    status result = OK;
    for (size_t i = 0; i < p->count; i++) {
        if (p->runs[i].state == PLANNED_MISSING) {
            TRY(look_up(&p->runs[i]));
        }
    }
done:
    return result;
}

size_t plan_missing(const struct plan *p)
{
    size_t missing = 0;
    for (size_t i = 0; i < p->count; i++) {
        missing += p->runs[i].state == PLANNED_MISSING;
    }
    return missing;
}

void plan_print(const struct plan *p, FILE *to)
{
    static const char *const states[] = {"to run", "finished", "diverged", "failed"};
    for (size_t i = 0; i < p->count; i++) {
        const struct planned_run *r = &p->runs[i];
        fprintf(to, "%-9s ", states[r->state]);
        if (r->state != PLANNED_MISSING) {
            fprintf(to, "run %-5lld ", (long long)r->run_id);
        } else {
            fprintf(to, "          ");
        }
        fprintf(to, "%s\n", r->title);
    }
}

static status report(const struct planned_run *r, status ended, FILE *to)
{
    status result = OK;
    struct text line = {0};
    struct run_figures figures;
    if (ended == OK) {
        TRY(summary_read(options_text(r->settings, "results"), r->run_id, &figures));
        summary_line(&figures, &line);
    } else {
        text_add(&line, "%s: %s", ended == ERROR_DIVERGED ? "diverged" : "failed", error_message());
    }
    fprintf(to, "run %-4lld ", (long long)r->run_id);
    print_padded(to, r->title, 41);
    fprintf(to, "%s\n", line.at);
    fflush(to);
done:
    text_free(&line);
    return result;
}

/* "[3/12, 4:10 left] async ×4 …": what is left is judged by the runs made so far. */
static void title_with_place(const struct planned_run *r, size_t made, size_t missing,
                             double seconds, char out[256])
{
    char left[32] = "";
    if (made > 0) {
        char time[32];
        progress_duration(seconds / (double)made * (double)(missing - made), time);
        snprintf(left, sizeof left, ", %.20s left", time);
    }
    snprintf(out, 256, "[%zu/%zu%s] %s", made + 1, missing, left, r->title);
}

/* Runs that would write over each other's checkpoint. */
static status check_checkpoints(const struct plan *p)
{
    status result = OK;
    for (size_t i = 0; i < p->count; i++) {
        const char *path = options_text(p->runs[i].settings, "checkpoint");
        bool own = path[0] == '\0' || strstr(path, "{run}") != NULL;
        for (size_t j = 0; j < i && !own; j++) {
            if (same_text(&p->runs[j], p->runs[i].settings, "checkpoint")) {
                FAIL(ERROR_USAGE,
                     "checkpoint=%s is the same file for several runs; put {run} into its name",
                     path);
            }
        }
    }
done:
    return result;
}

status plan_make(struct plan *p, bool quiet, FILE *to)
{
    status result = OK;
    size_t missing = plan_missing(p), made = 0;
    double begun = clock_seconds();
    TRY(check_checkpoints(p));
    for (size_t i = 0; i < p->count; i++) {
        struct planned_run *r = &p->runs[i];
        char title[256];
        if (r->state != PLANNED_MISSING) {
            continue;
        }
        title_with_place(r, made, missing, clock_seconds() - begun, title);
        struct launch_options launch = {.settings = r->settings, .title = title, .quiet = quiet};
        status ended = launch_run(&launch, &r->run_id);
        made++;
        r->state = ended == OK               ? PLANNED_FINISHED
                   : ended == ERROR_DIVERGED ? PLANNED_DIVERGED
                                             : PLANNED_FAILED;
        if (ended == STOPPED || ended == ERROR_RESULTS) {
            r->state = PLANNED_MISSING;
            result = error_add_context(ended, "%s (%zu of %zu made)", r->title, made - 1, missing);
            goto done;
        }
        TRY(report(r, ended, to));
        if (launch_stop_requests() > 0) {
            FAIL(STOPPED, "stopped on request after %zu of %zu runs; the same command goes on",
                 made, missing);
        }
    }
done:
    return result;
}
