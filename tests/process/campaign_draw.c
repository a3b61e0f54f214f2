/* campaign_draw.c — random settings; see campaign.h. */
#include "tests/process/campaign.h"

#include "experiments/config/config.h"
#include "ps/server/resume.h"
#include "sync/communicator/communicator.h"
#include "tests/ps/rules/rule_combinations.h"
#include "worker/cpu/onednn_compat.h"
#include "worker/optimizer/optimizer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

double campaign_between(struct campaign_episode *e, double least, double most)
{
    return least + (most - least) * random_uniform(&e->random);
}

bool campaign_chance(struct campaign_episode *e, double probability)
{
    return random_uniform(&e->random) < probability;
}

void campaign_sleep(double seconds)
{
    struct timespec left = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&left, NULL);
}

static unsigned draw(struct campaign_episode *e, unsigned least, unsigned most)
{
    return least + random_below(&e->random, most - least + 1);
}

void campaign_set(struct campaign_episode *e, const char *format, ...)
{
    char line[CAMPAIGN_TEXT];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    size_t key = strcspn(line, "=") + 1, at = 0;
    while (at < e->count && strncmp(e->text[at], line, key) != 0)
        at++;
    assert_true(at < CAMPAIGN_SETTINGS);
    memcpy(e->text[at], line, sizeof line);
    e->count += at == e->count;
}

const char *const *campaign_arguments(struct campaign_episode *e, const char *command,
                                      const char *last)
{
    static const char *all[CAMPAIGN_SETTINGS + 3];
    size_t count = 0;
    all[count++] = command;
    for (size_t i = 0; i < e->count; i++)
        all[count++] = e->text[i];
    all[count++] = last;
    all[count] = NULL;
    return all;
}

static void set_named(struct campaign_episode *e, const char *key, const struct registry *r)
{
    campaign_set(e, "%s=%s", key, r->entries[random_below(&e->random, (uint32_t)r->count)]->name);
}

/* ---- model and data: 1 KB to 40 MB of parameters ---- */

static void draw_model(struct campaign_episode *e)
{
    /* Steps of one worker. Large models make fewer steps, so that an episode stays short. */
    static const struct {
        const char *model, *size, *width;
        unsigned weight, steps;
    } models[] = {
        {"softmax", "8", NULL, 8, 150}, {"mlp", "28", NULL, 4, 100},
        {"lenet", "28", NULL, 3, 80},   {"cnn", "28", NULL, 2, 25},
        {"resnet8", "32", NULL, 1, 20}, {"wide", "28", "1024", 2, 25},
        {"wide", "28", "2700", 1, 8},
    };
    unsigned place = draw(e, 0, 20), i = 0;
    while (place >= models[i].weight)
        place -= models[i++].weight;
    unsigned batch = draw(e, 2, 16), pace_ms = draw(e, 2, 12);
    campaign_set(e, "dataset=gaussian");
    campaign_set(e, "dataset.samples=1000");
    campaign_set(e, "dataset.size=%s", models[i].size);
    campaign_set(e, "model=%s", models[i].model);
    if (models[i].width != NULL)
        campaign_set(e, "model.width=%s", models[i].width);
    campaign_set(e, "batch=%u", batch);
    campaign_set(e, "pace=gamma");
    campaign_set(e, "pace.mean_ms=%u", pace_ms);
    campaign_set(e, "pace.cv=%s", campaign_chance(e, 0.5) ? "0.2" : "1");
    e->seconds = 0.3 + 0.001 * pace_ms * models[i].steps;
    campaign_set(e, "samples=%u", batch * models[i].steps);
    campaign_set(e, "evaluate_every=%s", campaign_chance(e, 0.5) ? "0" : "0.3");
    campaign_set(e, "warmup_epochs=0");
    campaign_set(e, "lr=0.01");
    campaign_set(e, "seed=%u", draw(e, 1, 1000));
    if (campaign_chance(e, 0.1) && onednn_has_bf16())
        campaign_set(e, "precision=bf16");
}

static void multiply_samples(struct campaign_episode *e, unsigned by)
{
    unsigned samples = 0;
    for (size_t i = 0; i < e->count; i++)
        (void)sscanf(e->text[i], "samples=%u", &samples);
    campaign_set(e, "samples=%u", samples * by);
}

/* `samples` counts all workers' batches. */
static void set_workers(struct campaign_episode *e, unsigned workers)
{
    campaign_set(e, "workers=%u", workers);
    e->workers = workers;
    multiply_samples(e, workers);
}

static bool is_large(const struct campaign_episode *e)
{
    return campaign_has(e, "model=wide") || campaign_has(e, "model=cnn") ||
           campaign_has(e, "model=resnet8");
}

/* ---- modes ---- */

static void draw_async(struct campaign_episode *e)
{
    struct combination c = combination_of(random_below(&e->random, (uint32_t)combinations()));
    if (campaign_chance(e, 0.4)) /* the simple rules, which are used most */
        c = combination_at(random_below(&e->random, 8), 0, 0);
    struct combination_settings rules = settings_of(&c);
    unsigned workers = campaign_chance(e, 0.2) ? draw(e, 7, 16) : draw(e, 1, 6);
    unsigned servers = campaign_chance(e, 0.35) ? draw(e, 2, 3) : 1;
    if (campaign_has(e, "model=softmax") && servers > 2)
        servers = 2; /* softmax has two layers, and some rules need whole layers */
    campaign_set(e, "mode=async");
    set_workers(e, workers);
    campaign_set(e, "servers=%u", servers);
    if (servers > 1)
        campaign_set(e, "read=%s", campaign_chance(e, 0.5) ? "snapshot" : "torn");
    for (size_t i = 0; i < COMBINATION_SETTINGS; i++)
        campaign_set(e, "%s", rules.text[i]);
    if (c.outer != NULL)
        campaign_set(e, "outer.steps=3");
    e->async = true;
    e->servers = servers;
    if (!c.policy->holds && campaign_chance(e, 0.5)) { /* as late_workers_check() requires */
        e->late = draw(e, 1, CAMPAIGN_LATE);
        campaign_set(e, "workers.max=%u", workers + e->late);
    }
    /* A resumed run begins with residual 0, so it has other bits. */
    static const char *const codes[] = {"fp16", "bf16", "topk", "sign"};
    const bool elastic = c.outer != NULL && c.outer->elastic;
    const bool coded = !elastic && campaign_chance(e, 0.3);
    if (coded)
        campaign_set(e, "compression=%s", codes[draw(e, 0, COUNT_OF(codes) - 1)]);
    if (!elastic && campaign_chance(e, 0.3))
        campaign_set(e, "pull_precision=%s", codes[draw(e, 0, 1)]);
    e->repeats = workers == 1 && servers == 1 && !coded && e->late == 0;
}

static void draw_sockets(struct campaign_episode *e)
{
    static const char *const payloads[] = {"auto", "shm", "frames"};
    e->tcp = campaign_chance(e, 0.5);
    campaign_set(e, "transport=%s", e->tcp ? "tcp" : "auto");
    campaign_set(e, "payload=%s", payloads[draw(e, 0, 2)]);
    campaign_set(e, "on_lost=%s", campaign_chance(e, 0.5) ? "continue" : "stop");
    if (e->tcp && campaign_chance(e, 0.4))
        campaign_set(e, "curve=keys");
    if (campaign_chance(e, 0.15))
        campaign_set(e, "probe_every=%u", draw(e, 1, 20));
    if (campaign_chance(e, 0.4))
        campaign_set(e, "evaluation_pause=no");
}

static void draw_real_async(struct campaign_episode *e)
{
    draw_async(e);
    draw_sockets(e);
    e->processes = true;
    if (e->late > 0 && !is_large(e)) { /* time to leave and come back */
        multiply_samples(e, 3);
        e->seconds *= 3;
    }
}

static void draw_virtual(struct campaign_episode *e)
{
    if (campaign_chance(e, 0.8)) {
        draw_async(e);
        if (e->late > 0) /* they join by themselves */
            campaign_set(e, "join.after_s=%.2f", campaign_between(e, 0.05, e->seconds));
        e->late = 0;
        if (campaign_chance(e, 0.5)) {
            campaign_set(e, "crash.mtbf_s=%.1f", campaign_between(e, 0.2, 3));
            campaign_set(e, "crash.down_s=0.1");
        }
    } else {
        campaign_set(e, "mode=sync");
        set_workers(e, draw(e, 1, 16));
    }
    if (campaign_chance(e, 0.5)) {
        campaign_set(e, "network.gbps=%.2f", campaign_between(e, 0.1, 10));
        campaign_set(e, "network.latency_ms=%.2f", campaign_between(e, 0, 2));
    }
    campaign_set(e, "engine=virtual");
    e->repeats = true;
}

static void draw_sync(struct campaign_episode *e)
{
    static const char *const communicators[] = {"auto",   "mpi",          "ring",
                                                "shared", "hierarchical", "naive"};
    static const char *const codes[] = {"none", "fp16", "bf16", "topk", "sign"};
    campaign_set(e, "mode=sync");
    set_workers(e, draw(e, 1, 4));
    campaign_set(e, "communicator=%s", communicators[draw(e, 0, COUNT_OF(communicators) - 1)]);
    set_named(e, "optimizer", &optimizer_registry);
    if (campaign_chance(e, 0.3))
        campaign_set(e, "compression=%s", codes[draw(e, 0, COUNT_OF(codes) - 1)]);
    if (campaign_chance(e, 0.3))
        campaign_set(e, "delay=%u", draw(e, 1, 4));
    if (campaign_chance(e, 0.2))
        campaign_set(e, "local_steps=%u", draw(e, 2, 5));
    if (campaign_chance(e, 0.3))
        campaign_set(e, "overlap=yes");
    e->repeats = campaign_chance(e, 0.5);
    if (e->repeats)
        campaign_set(e, "reduction=ordered");
    e->processes = true;
}

static void draw_pipeline(struct campaign_episode *e)
{
    static const char *const orders[] = {"gpipe", "1f1b", "pipedream"};
    campaign_set(e, "mode=pipeline");
    set_workers(e, draw(e, 2, 3));
    campaign_set(e, "pipeline=%s", orders[draw(e, 0, 2)]);
    campaign_set(e, "micro_batches=%u", draw(e, 1, 2));
    campaign_set(e, "pace=none");
    e->processes = true;
}

bool campaign_has(const struct campaign_episode *e, const char *setting)
{
    size_t at = 0;
    while (at < e->count && strcmp(e->text[at], setting) != 0)
        at++;
    return at < e->count;
}

static void draw_settings(struct campaign_episode *e)
{
    e->count = 0;
    e->async = e->processes = e->tcp = e->checkpoint = e->repeats = false;
    e->late = 0;
    draw_model(e);
    double kind = random_uniform(&e->random);
    kind < 0.55   ? draw_real_async(e)
    : kind < 0.7  ? draw_virtual(e)
    : kind < 0.93 ? draw_sync(e)
                  : draw_pipeline(e);
    if (campaign_chance(e, 0.5)) {
        campaign_set(e, "checkpoint=at.safetensors");
        campaign_set(e, "checkpoint_every=%s", campaign_chance(e, 0.7) ? "0.2" : "0");
        e->checkpoint = true;
    }
    /* Large models need a longer timeout, so that a busy machine is not judged a lost peer. */
    campaign_set(e, "timeout_s=%s",
                 !e->faulty                 ? "30"
                 : is_large(e)              ? "10"
                 : campaign_chance(e, 0.85) ? "2"
                                            : "6");
}

static bool may_have_late_workers(const struct campaign_episode *e)
{
    bool has = false;
    for (size_t i = 0; i < e->count; i++)
        has = has || strncmp(e->text[i], "workers.max=", strlen("workers.max=")) == 0;
    return has;
}

void campaign_draw(struct campaign_episode *e)
{
    const bool late = getenv("GRADLAG_CAMPAIGN_LATE") != NULL;
    int code = ERROR_USAGE;
    for (unsigned tries = 0; code == ERROR_USAGE && tries < 200; tries++) {
        do {
            draw_settings(e);
        } while (late && !may_have_late_workers(e));
        code = process_run_inside(e->rig, campaign_arguments(e, "run", "--dry-run"));
    }
    assert_int_equal(code, OK);
}

bool campaign_may_resume(const struct campaign_episode *e)
{
    struct settings all = {0};
    options *o = NULL;
    char line[CAMPAIGN_TEXT];
    for (size_t i = 0; i < e->count; i++) {
        snprintf(line, sizeof line, "%s", e->text[i]);
        char *value = strchr(line, '=');
        *value++ = '\0';
        settings_add(&all, line, value, "the campaign");
    }
    assert_int_equal(config_compose(&o, &all), OK);
    status result = e->async ? resume_check(o) : OK;
    options_close(&o);
    settings_free(&all);
    return result == OK;
}
