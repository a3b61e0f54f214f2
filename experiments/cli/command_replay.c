#include "base/memory.h"
#include "experiments/command.h"

#include "experiments/config/keys.h"
#include "experiments/run/launch.h"
#include "experiments/run/config_from_row.h"
#include "experiments/run/role.h"
#include "experiments/run/run_checkpoint.h"
#include "experiments/run/run_summary_text.h"
#include "ps/rules/outer/outer.h"
#include "ps/virtual/replay.h"
#include "ps/core/slices.h"
#include "results/query/push_reader.h"
#include "worker/cpu/onednn_instructions.h"
#include "base/output_file.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

const char command_replay_help[] =
    "gradlag replay RUN [key=value…] [results=FILE] [--export FILE.csv] [--quiet]\n\n"
    "Repeats a recorded asynchronous run in one process and in the recorded order, and compares\n"
    "the record of every gradient and the final parameters. RUN is a run's number, the start of\n"
    "its uuid, or 'last'. Exit code 0: everything is equal; 1: the first difference is printed.\n\n"
    "With other rules (damping, correction, outer, optimizer, lr, momentum, weight_decay,\n"
    "weight_decay_of, clip_norm, schedule, warmup, warmup_epochs, warmup_updates,\n"
    "warmup_seconds, lr_scaling, evaluate_every and their dotted keys) it answers a \"what if\"\n"
    "question: gradients of the same workers arrive in the same order. The result is recorded as\n"
    "a new run with engine=replay.\n\n"
    "  --export FILE.csv  only write the recorded gradients, one a line, and compute nothing.\n"
    "                     The file can drive a virtual cluster: pace=trace pace.path=FILE.csv\n"
    "  --quiet            no progress on stderr\n\n"
    "  gradlag replay last\n"
    "  gradlag replay 3 damping=polynomial damping.power=0.5\n";

struct request {
    const char *run, *results, *export;
    struct settings changes;
    bool quiet, what_if;
};

/* ---- the command line ----------------------------------------------------------------------- */

static bool is_one_of(const char *const *keys, size_t count, const char *key, size_t length)
{
    for (size_t i = 0; i < count; i++)
        if (strlen(keys[i]) == length && strncmp(keys[i], key, length) == 0)
            return true;
    return false;
}

static bool is_rule(const char *key)
{
    static const char *const rules[] = {
        "damping",       "correction",     "outer",          "optimizer",  "lr",
        "momentum",      "weight_decay",   "schedule",       "lr_scaling", "warmup",
        "warmup_epochs", "warmup_updates", "warmup_seconds", "clip_norm",  "weight_decay_of",
        "evaluate_every"};
    return is_one_of(rules, COUNT_OF(rules), key, strcspn(key, "."));
}

/* Keys that are no rules but have an effect on every replay. */
static bool applies_to_any_replay(const char *key)
{
    static const char *const keys[] = {"results", "dataset.path", "device.index", "virtual.threads",
                                       "probe_every"};
    return is_one_of(keys, COUNT_OF(keys), key, strlen(key));
}

/* Keys that have an effect only if the replay is recorded as a new run. */
static bool applies_to_a_what_if(const char *key)
{
    static const char *const keys[] = {
        "tag", "experiment", "arm", "record", "checkpoint", "checkpoint_every", "on_results_error"};
    return is_one_of(keys, COUNT_OF(keys), key, strlen(key));
}

/* Unknown keys pass here; composition rejects them. */
static status check_setting(const struct request *r, const struct setting *s)
{
    status result = OK;
    if (is_rule(s->key) || applies_to_any_replay(s->key) || keys_find(s->key) == NULL)
        goto done;
    if (key_defines(s->key)) {
        FAIL(
            ERROR_USAGE,
            "%s=%s: a replay keeps the order in which the recorded gradients arrived, and %s would "
            "change the order or the gradients; start a new run with `gradlag run`",
            s->key, s->value, s->key);
    }
    if (!applies_to_a_what_if(s->key))
        FAIL(ERROR_USAGE, "%s=%s has no effect on a replay; leave it out", s->key, s->value);
    if (!r->what_if) {
        FAIL(ERROR_USAGE,
             "%s=%s has no effect: without another rule (damping=…) a replay only compares and "
             "records nothing; add a rule, or leave this out",
             s->key, s->value);
    }
done:
    return result;
}

static status read_settings(struct request *r)
{
    status result = OK;
    const char *results = settings_find(&r->changes, "results");
    r->results = results != NULL ? results : "results.db";
    for (size_t i = 0; i < r->changes.count; i++)
        r->what_if = r->what_if || is_rule(r->changes.at[i].key);
    for (size_t i = 0; i < r->changes.count; i++) {
        if (r->export != NULL && strcmp(r->changes.at[i].key, "results") != 0) {
            FAIL(ERROR_USAGE,
                 "%s=%s has no effect with --export, which writes the recorded gradients; leave "
                 "one of them out",
                 r->changes.at[i].key, r->changes.at[i].value);
        }
        TRY(check_setting(r, &r->changes.at[i]));
    }
done:
    return result;
}

static status read_request(struct request *r, int argc, char **argv)
{
    status result = OK;
    *r = (struct request){.run = NULL};
    r->quiet = command_flag(&argc, argv, "--quiet");
    TRY(command_value(&argc, argv, "--export", &r->export));
    TRY(command_no_flags_left(argc, argv, "replay", "--export FILE.csv and --quiet"));
    for (int i = 0; i < argc; i++)
        if (strchr(argv[i], '=') != NULL)
            TRY(settings_read_arguments(&r->changes, 1, &argv[i]));
        else if (r->run == NULL)
            r->run = argv[i];
        else
            FAIL(ERROR_USAGE, "replay: name one run; '%s' is a second one", argv[i]);
    if (r->run == NULL)
        FAIL(ERROR_USAGE,
             "replay: name a run; `gradlag query runs` lists them, 'last' is the newest");
    TRY(read_settings(r));
done:
    return result;
}

/* ---- CSV ------------------------------------------------------------------------------------ */

static const char *outcome_name(enum push_outcome outcome)
{
    switch (outcome) {
    case PUSH_APPLIED:
        return "applied";
    case PUSH_AGGREGATED:
        return "aggregated";
    case PUSH_DROPPED_STALE:
        return "dropped_stale";
    case PUSH_DROPPED_LATE:
        return "dropped_late";
    case PUSH_NOT_FINITE:
        return "not_finite";
    }
    return "";
}

static status export_csv(const struct recorded_run *run, const char *path)
{
    status result = OK;
    size_t rows = 0;
    struct output_file file = {0};
    TRY(output_file_open(&file, path));
    fputs("number,arrival,worker,sequence,batch,read_version,update_version,staleness,outcome,pull_"
          "us,compute_us,"
          "queue_us,apply_us,at_seconds\n",
          file.to);
    for (size_t i = 0; i < run->push_count; i++) {
        const struct push_record *p = &run->pushes[i].record;
        if (p->server != 0)
            continue; /* a row of the same gradient at another server */
        rows++;
        fprintf(file.to,
                "%" PRIu64 ",%" PRIu64 ",%" PRIu32 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64
                ",%" PRIu64 ",%s,%.0f,%.0f,%.0f,%.0f,%.9f\n",
                run->pushes[i].number, p->arrival, p->worker, p->sequence, p->batch,
                p->read_version, p->update_version, p->staleness, outcome_name(p->outcome),
                p->pull_us, p->compute_us, p->queue_us, p->apply_us, p->at_seconds);
    }
    TRY(output_file_close(&file, false));
    printf("%zu gradients of run %lld written to %s\n", rows, (long long)run->id, path);
done:
    return result;
}

/* ---- replaying ------------------------------------------------------------------------------ */

static status check_run(const struct recorded_run *run)
{
    status result = OK;
    if (strcmp(run->mode, "async") != 0) {
        FAIL(ERROR_USAGE,
             "run %lld is synchronous and has no order of arrival to replay; `gradlag show %lld "
             "--rerun` prints the command that repeats it",
             (long long)run->id, (long long)run->id);
    }
    if (strcmp(run->status, "running") == 0 || strcmp(run->status, "queued") == 0)
        FAIL(ERROR_USAGE, "run %lld has not ended yet; `gradlag watch` shows its progress",
             (long long)run->id);
    if (run->foreign) {
        FAIL(ERROR_USAGE,
             "run %lld cannot be replayed: a program other than gradlag computed some of its "
             "gradients "
             "(event worker_foreign). `gradlag query \"SELECT * FROM event WHERE run_id = %lld\"` "
             "names the workers; --export still writes the order and times of the gradients",
             (long long)run->id, (long long)run->id);
    }
    if (run->push_count == 0) {
        FAIL(ERROR_USAGE,
             "run %lld has no recorded gradients: it ended before its first one, it ran with "
             "record=evaluations, its file has only summaries (`gradlag merge --summaries`), or it "
             "was resumed after its last update",
             (long long)run->id);
    }
done:
    return result;
}

/* A replay must have as many batches in each push as the recording. */
static status check_rounds(const options *recorded, const options *o)
{
    status result = OK;
    struct outer then, now;
    unsigned workers = (unsigned)options_integer(o, "workers");
    TRY(outer_open(&then, recorded, workers));
    TRY(outer_open(&now, o, workers));
    if (then.steps != now.steps) {
        FAIL(ERROR_USAGE,
             "outer=%s: each recorded push has %u batches, but these settings ask for %u; set "
             "outer.steps=%u, or start a new run with `gradlag run`",
             options_text(o, "outer"), then.steps, now.steps, then.steps);
    }
done:
    return result;
}

/* True for a recorded dotted key (damping.power) whose part the changes replace: the new part has
 * its own defaults. outer.steps always stays, because it was recorded. */
static bool is_replaced(const struct setting *recorded, const struct settings *all,
                        const struct settings *changes)
{
    char part[64];
    snprintf(part, sizeof part, "%.*s", (int)strcspn(recorded->key, "."), recorded->key);
    const char *then = settings_find(all, part), *now = settings_find(changes, part);
    return strchr(recorded->key, '.') != NULL && strcmp(recorded->key, "outer.steps") != 0 &&
           then != NULL && now != NULL && strcmp(then, now) != 0;
}

static void apply_changes(struct settings *all, const struct settings *changes)
{
    for (size_t i = all->count; i-- > 0;)
        if (is_replaced(&all->at[i], all, changes))
            settings_remove(all, i);
    settings_add_all(all, changes);
}

static status compose(const struct request *r, const struct recorded_run *run, options **out)
{
    status result = OK;
    struct settings all = {0};
    options *recorded = NULL;
    char origin[48];
    snprintf(origin, sizeof origin, "run %lld", (long long)run->id);
    TRY(config_from_row_settings(&all, run->config, origin));
    settings_add(&all, "engine", "replay", origin);
    TRY(config_compose_unchecked(&recorded, &all));
    TRY(config_check_replay(recorded));
    apply_changes(&all, &r->changes);
    TRY(config_compose_unchecked(out, &all));
    TRY(config_check_replay(*out));
    TRY(check_rounds(recorded, *out));
    if (options_integer(*out, "workers") != run->workers) {
        FAIL(ERROR_USAGE,
             "run %lld has recorded gradients of %u workers, but its settings have workers=%s; its "
             "row was probably edited",
             (long long)run->id, run->workers, options_value(*out, "workers"));
    }
done:
    options_close(&recorded);
    settings_free(&all);
    return result;
}

/* The events of every server, and the rows that they reference. */
struct order {
    struct replay_row *rows; /* server by server */
    struct replay_events *servers;
    struct replay_event **events; /* owned; servers[i].at points to the same events */
    unsigned server_count;
};

static void free_order(struct order *all)
{
    for (unsigned i = 0; all->events != NULL && i < all->server_count; i++)
        memory_free(all->events[i]);
    memory_free(all->events);
    memory_free(all->servers);
    memory_free(all->rows);
}

static size_t rows_of(const struct recorded_run *run, unsigned server, struct replay_row *out)
{
    size_t count = 0;
    for (size_t i = 0; i < run->push_count; i++)
        if (run->pushes[i].record.server == server)
            out[count++] = (struct replay_row){run->pushes[i].record, run->pushes[i].number};
    return count;
}

/* With read=snapshot only server 0 records these events; call it with server 0 for all servers. */
static size_t member_events_of(const struct recorded_run *run, unsigned server,
                               struct replay_member_event *out)
{
    size_t count = 0;
    for (size_t i = 0; i < run->member_event_count; i++) {
        const struct recorded_member_event *c = &run->member_events[i];
        if (c->server == server)
            out[count++] = (struct replay_member_event){c->push_number, c->worker, c->joined};
    }
    return count;
}

static status order_server(struct order *all, const struct recorded_run *run, bool snapshots,
                           unsigned server, struct replay_row *rows, size_t row_count)
{
    status result = OK;
    struct replay_member_event *member_events = NULL;
    TRY(memory_new(&member_events, run->member_event_count + 1, sizeof *member_events,
                   "recorded workers"));
    size_t count = member_events_of(run, snapshots ? 0 : server, member_events);
    bool ended_it = server == 0 && strcmp(run->status, "finished") == 0;
    TRY(replay_order(&(struct replay_recording){.rows = rows,
                                                .member_events = member_events,
                                                .row_count = row_count,
                                                .member_event_count = count,
                                                .workers_max = run->workers_max,
                                                .finished = ended_it},
                     &all->events[server], &all->servers[server].count));
    all->servers[server].at = all->events[server];
done:
    memory_free(member_events);
    return result;
}

static status order_events(const struct recorded_run *run, const options *settings,
                           struct order *all)
{
    status result = OK;
    size_t first = 0;
    unsigned servers = servers_of(settings);
    all->server_count = servers;
    TRY(memory_new(&all->rows, run->push_count, sizeof *all->rows, "recorded gradients"));
    TRY(memory_new(&all->servers, servers, sizeof *all->servers, "recorded servers"));
    TRY(memory_new(&all->events, servers, sizeof *all->events, "recorded servers"));
    for (unsigned i = 0; i < servers; i++) {
        size_t count = rows_of(run, i, all->rows + first);
        TRY(order_server(all, run, reads_snapshots(settings), i, all->rows + first, count));
        first += count;
    }
    if (first != run->push_count) {
        FAIL(ERROR_RESULTS,
             "run %lld has gradients of a server with a number above its %u servers: the results "
             "file is damaged",
             (long long)run->id, servers);
    }
done:
    return result;
}

/* Why a replay computes other bits, and what to do. */
static void describe_cause(const struct recorded_run *run, char *out, size_t size)
{
    const char *now = onednn_instructions();
    if (run->instructions[0] == '\0' || strcmp(run->instructions, now) == 0) {
        snprintf(out, size,
                 "A likely cause is another processor model or another version of gradlag; "
                 "`gradlag show %lld` prints those of the recording",
                 (long long)run->id);
    } else if (onednn_offers(run->instructions)) {
        snprintf(out, size,
                 "A likely cause: it was recorded with %s, and replayed with %s; set "
                 "ONEDNN_MAX_CPU_ISA=%s and replay it again",
                 run->instructions, now, run->instructions);
    } else {
        snprintf(out, size,
                 "A likely cause: it was recorded with %s, but oneDNN has only %s here, which "
                 "rounds in another way; replay it on a processor that has %s",
                 run->instructions, now, run->instructions);
    }
}

static status report_comparison(const struct recorded_run *run, const struct training_outcome *out,
                                const struct replay_difference *difference)
{
    status result = OK;
    if (difference->missing) {
        FAIL(ERROR_RESULTS,
             "run %lld cannot be replayed to its end: rows that gradient %llu needs are missing; "
             "all rows before it are equal. Likely causes: a server failed, or the rows could not "
             "be written",
             (long long)run->id, (unsigned long long)difference->number);
    }
    if (difference->found) {
        char cause[256];
        describe_cause(run, cause, sizeof cause);
        FAIL(ERROR_OTHER, "run %lld differs from its replay: %s. %s", (long long)run->id,
             difference->text, cause);
    }
    if (out->updates < run->updates) {
        FAIL(ERROR_RESULTS,
             "run %lld cannot be replayed to its end: the results file has rows of only %llu of "
             "its %llu updates; these are equal. The other rows could not be written during the "
             "run",
             (long long)run->id, (unsigned long long)out->updates,
             (unsigned long long)run->updates);
    }
    if (run->parameters_sha256[0] != '\0' &&
        strcmp(run->parameters_sha256, out->parameters_sha256) != 0) {
        char cause[256];
        describe_cause(run, cause, sizeof cause);
        FAIL(ERROR_OTHER,
             "run %lld differs from its replay: all rows are equal, but its parameters at the end "
             "have SHA-256 %.12s… in the recording and %.12s… in the replay. %s",
             (long long)run->id, run->parameters_sha256, out->parameters_sha256, cause);
    }
    printf("run %lld replayed: %" PRIu64 " updates from %zu gradients\n"
           "          parameters %s%s\n",
           (long long)run->id, out->updates, run->push_count, out->parameters_sha256,
           run->parameters_sha256[0] != '\0' ? ", as recorded" : "");
done:
    return result;
}

static void print_accuracy(double accuracy, uint64_t samples)
{
    if (isnan(accuracy))
        printf("not measured");
    else
        printf("%.2f%%", 100 * accuracy);
    printf(" after %" PRIu64 " samples", samples);
}

/* The numbers of samples may differ: a rule may drop gradients, a run may stop or diverge. */
static status print_what_if(const struct request *r, const struct recorded_run *run,
                            const struct training_outcome *out, int64_t run_id)
{
    status result = OK;
    struct run_figures f;
    TRY(run_summary_print(r->results, run_id, NULL, stdout));
    TRY(run_summary_read(r->results, run_id, NULL, &f));
    printf("\ntest accuracy of run %lld, as recorded: ", (long long)run->id);
    print_accuracy(run->final_accuracy, run->samples_used);
    printf("; with");
    for (size_t i = 0; i < r->changes.count; i++)
        if (is_rule(r->changes.at[i].key))
            printf(" %s=%s", r->changes.at[i].key, r->changes.at[i].value);
    printf(": ");
    print_accuracy(f.accuracy, out->samples_used);
    printf("\n");
done:
    return result;
}

static void note_origin(const struct role_process *p, const struct recorded_run *run)
{
    char detail[96];
    snprintf(detail, sizeof detail, "run %lld (%s)", (long long)run->id, run->uuid);
    recorder_event(p->recorder, 0, SEVERITY_INFO, "replay_of", -1, detail);
}

/* A resumed run started from the complete state in its checkpoint. */
static status open_start(const struct request *r, const struct recorded_run *run,
                         const struct role_process *p, struct run_checkpoint_file *out)
{
    status result = OK;
    char sha256[65];
    if (run->resumed == NULL)
        return OK;
    if (r->what_if) {
        FAIL(ERROR_USAGE,
             "run %lld was resumed from a checkpoint that holds the state of its own rules, so it "
             "cannot be replayed with other rules; leave the rules out to replay it unchanged",
             (long long)run->id);
    }
    TRY(run_checkpoint_hash(run->resumed, sha256));
    if (strcmp(sha256, run->resumed_sha256) != 0) {
        FAIL(ERROR_DATA,
             "run %lld was resumed from %s, which was overwritten since then, so it cannot be "
             "replayed. In future give each checkpoint its own file, with {run} or {version} in "
             "the name: checkpoint=at-{version}.safetensors",
             (long long)run->id, run->resumed);
    }
    TRY(run_checkpoint_open(out, run->resumed, p->settings, p->worker));
done:
    return result;
}

/* Another program, or other packages, would compute other gradients. */
static status check_program(const struct recorded_run *run, const worker *w)
{
    status result = OK;
    const char *now = worker_program(w);
    if (run->program != NULL && (now == NULL || strcmp(now, run->program) != 0)) {
        FAIL(ERROR_USAGE,
             "run %lld was made by the program %s; model.command starts %s now; restore that "
             "program and its packages",
             (long long)run->id, run->program,
             now != NULL ? now : "one that does not identify itself");
    }
done:
    return result;
}

/* Uses the functions of a role, because a what-if replay writes the row of a run. */
static status replay(const struct request *r, const struct recorded_run *run,
                     struct role_process *p, struct training_outcome *out)
{
    status result = OK;
    struct replay_difference difference = {0};
    struct order all = {0};
    struct run_checkpoint_file start = {0};
    gradient_pool *pool = NULL;
    struct replay_options o = {.settings = p->settings,
                               .workers = run->workers,
                               .workers_max = run->workers_max,
                               .compares = !r->what_if,
                               .lockstep = reads_snapshots(p->settings)};
    TRY(order_events(run, p->settings, &all));
    TRY(gradient_pool_open(&pool, p->settings, run->workers, run->workers_max,
                           (unsigned)options_integer(p->settings, "virtual.threads"),
                           launch_stop_flag()));
    p->worker = gradient_pool_own(pool);
    worker_evaluate_on(p->worker, gradient_pool_threads(pool));
    TRY(check_program(run, p->worker));
    TRY(open_start(r, run, p, &start));
    o.start = run->resumed != NULL ? &start.state : NULL;
    if (r->what_if) {
        TRY(role_open_recorder(p));
        note_origin(p, run);
    }
    o.servers = all.servers;
    o.server_count = all.server_count;
    o.pool = pool;
    o.hooks = p->hooks;
    o.recorder = p->recorder;
    TRY(role_server_length(p->settings, worker_epoch_samples(p->worker), &o.length));
    TRY(replay_run(&o, out, &difference));
    if (!r->what_if)
        TRY(report_comparison(run, out, &difference));
done:
    progress_clear(&p->progress);
    if (p->recorder != NULL && p->run_id > 0)
        result = role_finish_row(p, result, out);
    recorder_close(&p->recorder);
    gradient_pool_close(&pool);
    free_order(&all);
    run_checkpoint_close(&start);
    return result;
}

status command_replay(int argc, char **argv)
{
    status result = OK;
    struct request r = {0};
    struct recorded_run run = {0};
    struct role_process p = {.role = ROLE_SERVER};
    struct training_outcome outcome = {0};
    char title[64];
    TRY(read_request(&r, argc, argv));
    TRY(recorded_run_read(&run, r.results, r.run));
    if (r.export != NULL) {
        TRY(export_csv(&run, r.export));
        goto done;
    }
    TRY(check_run(&run));
    onednn_limit(run.instructions);
    TRY(compose(&r, &run, &p.settings));
    launch_catch_signals();
    p.hooks.stop = launch_stop_flag();
    p.request_stop = launch_request_stop;
    snprintf(title, sizeof title, "replay of run %lld", (long long)run.id);
    progress_open(&p.progress, title, true, r.quiet);
    TRY(replay(&r, &run, &p, &outcome));
    if (r.what_if)
        TRY(print_what_if(&r, &run, &outcome, p.run_id));
done:
    options_close(&p.settings);
    recorded_run_free(&run);
    settings_free(&r.changes);
    return result;
}
