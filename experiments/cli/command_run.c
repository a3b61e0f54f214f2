#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "experiments/command.h"

#include "experiments/config/config.h"
#include "experiments/config/hosts.h"
#include "experiments/run/launch.h"
#include "experiments/config/prerequisites.h"
#include "experiments/run/queued_run.h"
#include "experiments/run/run_checkpoint.h"
#include "experiments/sweep/precision_choice.h"
#include "experiments/sweep/search.h"
#include "experiments/run/run_summary_text.h"
#include "results/query/query.h"
#include "worker/cpu/onednn_instructions.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

const char command_run_help[] =
    "gradlag run [FILE.yaml] key=value… [--dry-run] [--print-config] [--quiet] [--json]\n\n"
    "Trains once. mode=async starts a parameter server and workers, mode=sync starts ranks under\n"
    "mpirun; hosts=a:4,b:4 starts them on other hosts. engine=virtual simulates a cluster of up\n"
    "to 16384 workers, with true gradients, in this process. FILE.yaml has settings, one\n"
    "'key: value' a line. A later setting overrides an earlier one. `gradlag list keys` describes\n"
    "all keys.\n\n"
    "  --print-config  print all settings as YAML, with the origin of each; nothing runs\n"
    "  --dry-run       print in one line what would run\n"
    "  --quiet         no progress on stderr\n"
    "  --json          print the run's row as a JSON object on stdout, also if the run failed\n"
    "  --resume        continue from the last checkpoint of the newest run with these settings,\n"
    "                  if that run did not finish (mode=sync, mode=async); else start from the\n"
    "                  beginning. After a checkpoint of the end of training, only evaluate\n"
    "  --queued RUN    start a queued run, see `gradlag help sweep`\n\n"
    "  gradlag run workers=4 epochs=2\n"
    "  gradlag run workers=16 model.activation=tanh damping=polynomial damping.power=0.5\n"
    "  gradlag run mode=sync workers=4 lr_scaling=linear\n"
    "  gradlag run engine=virtual workers=256 pace=gamma damping=inverse\n";

/* Adds resume=PATH for the checkpoint that the results file names. */
static status find_checkpoint(const options *o, struct settings *read)
{
    status result = OK;
    int64_t running;
    char hash[65], *path = NULL;
    if (strcmp(options_text(o, "mode"), "pipeline") == 0 ||
        strcmp(options_text(o, "engine"), "real") != 0) {
        FAIL(ERROR_USAGE,
             "--resume: only real runs of mode=sync and mode=async can be resumed; initial=FILE "
             "starts a new run from the parameters of a checkpoint");
    }
    config_hash(o, hash);
    TRY(query_find_checkpoint(options_text(o, "results"), hash, &path, &running));
    if (running > 0) {
        FAIL(
            ERROR_USAGE,
            "--resume: run %lld of %s has these settings and is still running; stop it or wait for "
            "it. If its host was lost, give its checkpoint: resume=%s",
            (long long)running, options_text(o, "results"), path != NULL ? path : "FILE");
    }
    if (path == NULL) {
        log_info(
            "--resume: %s has no checkpoint of an unfinished run with these settings; this run "
            "starts from the beginning",
            options_text(o, "results"));
        goto done;
    }
    log_info("resuming from %s", path);
    settings_add(read, "resume", path, "--resume");
done:
    memory_free(path);
    return result;
}

/* Inside a Slurm allocation of several nodes a run uses all of them, unless hosts= or endpoint=
 * says where. Hosts give the number of workers, unless it is set. */
static status add_hosts(options **o, struct settings *read)
{
    status result = OK;
    const size_t before = read->count;
    if (strcmp(options_text(*o, "engine"), "real") != 0)
        return OK;
    if (hosts_in_allocation() && settings_find(read, "hosts") == NULL &&
        options_text(*o, "endpoint")[0] == '\0')
        settings_add(read, "hosts", "slurm", "Slurm's environment");
    TRY(settings_add_workers_of_hosts(read));
    if (read->count > before) {
        options_close(o);
        TRY(config_compose_unchecked(o, read));
    }
done:
    return result;
}

/* If the error is about a list or a range of values, it mentions `gradlag sweep`. */
static status compose_one(options **out, struct settings *read)
{
    struct text why = {0};
    status result = config_compose_unchecked(out, read);
    bool several = false;
    if (result == OK)
        result = add_hosts(out, read);
    if (result == OK)
        result = config_check(*out);
    for (size_t i = 0; result == ERROR_USAGE && i < read->count; i++) {
        const char *value = read->at[i].value;
        several = several || ((strchr(value, ',') != NULL || search_is_range(value)) &&
                              strstr(error_message(), value) != NULL);
    }
    if (several) {
        text_add(&why, "%s", error_message());
        result = error_set(result, __FILE__, __LINE__,
                           "%s. (`gradlag sweep` takes several values: lr=0.01,0.03)", why.at);
    }
    text_free(&why);
    return result;
}

/* Prints the run's row as a JSON object: the only element of the array that `query --json`
 * prints. */
static status print_row_json(const char *results, int64_t run_id)
{
    status result = OK;
    char sql[64], *text = NULL;
    size_t length = 0;
    FILE *to = open_memstream(&text, &length);
    if (to == NULL)
        FAIL(ERROR_OTHER, "out of memory for a run's row");
    snprintf(sql, sizeof sql, "SELECT * FROM run WHERE id = %lld", (long long)run_id);
    result = query_run(
        &(struct query_request){.path = results, .question = sql, .format = QUERY_JSON}, to, NULL);
    fclose(to);
    TRY(result);
    const char *first = strchr(text, '{'), *last = strrchr(text, '}');
    if (first != NULL && last != NULL)
        printf("%.*s\n", (int)(last - first) + 1, first);
done:
    free(text);
    return result;
}

/* After the loss of a process, a synchronous run goes on in its row (launch_restart.c). An
 * asynchronous one goes on in a new row, so that each row can be replayed. If the server never
 * listened, a new run would fail, too. */
static bool starts_new_run(const struct launch_options *launch, status ended, int64_t run_id,
                           int64_t restarts)
{
    const options *o = launch->settings;
    return ended == ERROR_PEER && run_id > 0 && strcmp(options_text(o, "mode"), "async") == 0 &&
           strcmp(options_text(o, "engine"), "real") == 0 &&
           restarts < options_integer(o, "restarts") && *launch->was_ready &&
           launch_stop_requests() == 0;
}

/* Prints the row as JSON, also if the run failed, unless a new run continues it. If printing fails,
 * too, the error of the run is returned. A sweep prints the outcome of its runs itself. */
static status launch_and_print(const struct launch_options *launch, bool json, int64_t restarts,
                               int64_t *id)
{
    status result = OK;
    int64_t run_id = 0;
    const bool of_sweep = getenv(QUEUED_TITLE) != NULL;
    const char *results = options_text(launch->settings, "results");
    result = launch_run(launch, &run_id);
    *id = run_id;
    if (of_sweep && run_id > 0)
        command_error_is_reported();
    if (json && run_id > 0 && !starts_new_run(launch, result, run_id, restarts)) {
        const struct error why = error_save();
        status printed = print_row_json(results, run_id);
        if (printed == OK && result == OK)
            printed = run_summary_warn(results, run_id, launch->settings);
        if (result == OK)
            return printed;
        error_restore(&why);
    }
    TRY(result);
    if (!json && !of_sweep)
        TRY(run_summary_print(results, run_id, launch->settings, stdout));
done:
    return result;
}

/* Sets resume= to the last checkpoint of the run. Without a checkpoint, or after an error, the
 * setting keeps its value. */
static status resume_from(options **o, struct settings *read, int64_t run_id)
{
    status result = OK;
    options *with = NULL;
    char number[32], *path = NULL;
    const char *const settings[] = {number};
    snprintf(number, sizeof number, "run=%lld", (long long)run_id);
    TRY(query_value(options_text(*o, "results"),
                    "SELECT path FROM checkpoint WHERE run_id = :run ORDER BY version DESC LIMIT 1",
                    settings, 1, &path));
    if (path != NULL) {
        TRY(run_checkpoint_check(path, *o, NULL));
        settings_add(read, "resume", path, "restarts");
        TRY(config_compose(&with, read));
        TRY(precision_choose(with, PRECISION_MEASURE)); /* the checkpoint decides */
        options_close(o);
        *o = with;
        with = NULL;
    }
done:
    options_close(&with);
    memory_free(path);
    return result;
}

static status launch_with_restarts(options **o, struct settings *read, const char *title,
                                   bool quiet, bool json)
{
    status result = OK;
    bool was_ready = false;
    for (int64_t restarts = 0;; restarts++) {
        int64_t run_id = 0;
        const struct launch_options launch = {
            .settings = *o, .title = title, .quiet = quiet, .was_ready = &was_ready};
        result = launch_and_print(&launch, json, restarts, &run_id);
        if (!starts_new_run(&launch, result, run_id, restarts))
            return result;
        const struct error lost = error_save();
        log_warning("run %lld: %s", (long long)run_id, error_message());
        status resumed = resume_from(o, read, run_id);
        if (resumed != OK) {
            log_warning("no restart: %s", error_message());
            if (json)
                (void)print_row_json(options_text(*o, "results"), run_id);
            error_restore(&lost);
            return result;
        }
        if (launch_stop_requests() > 0)
            FAIL(STOPPED, "stopped on request before restart %lld", (long long)restarts + 1);
        log_info("restart %lld of %lld, as a new run, from %s", (long long)restarts + 1,
                 (long long)options_integer(*o, "restarts"),
                 options_is_initial(*o, "resume") ? "the beginning" : options_text(*o, "resume"));
    }
done:
    return result;
}

/* Starts a queued run, for the user or for a sweep; a sweep reports the outcome itself. */
static status run_queued(const struct settings *read, const char *number, bool quiet, bool json)
{
    status result = OK;
    const char *title = getenv(QUEUED_TITLE), *results = settings_find(read, "results");
    char own[128];
    options *o = NULL;
    int64_t run_id;
    if (!text_to_integer(number, &run_id) || run_id < 1) {
        FAIL(ERROR_USAGE,
             "--queued %s: not the number of a run; `gradlag sweep --status` lists queued runs",
             number);
    }
    if (read->count > (results != NULL)) {
        FAIL(ERROR_USAGE,
             "--queued: the settings of a queued run are recorded; only results=FILE can be given");
    }
    results = results != NULL ? results : "results.db";
    TRY(queued_settings(&o, results, run_id));
    run_summary_title(o, own);
    launch_catch_signals();
    if (title != NULL)
        signal(SIGTTOU,
               SIG_IGN); /* a background process group writes its progress to the terminal */
    struct launch_options launch = {
        .settings = o, .title = title != NULL ? title : own, .quiet = quiet, .run_id = run_id};
    result = launch_and_print(&launch, json, INT64_MAX, &run_id);
done:
    options_close(&o);
    return result;
}

/* Warns if ONEDNN_MAX_CPU_ISA has no effect: its value is misspelt, or this processor does not have
 * that instruction set. */
static void warn_of_instructions(void)
{
    const char *limit = getenv("ONEDNN_MAX_CPU_ISA"), *used = onednn_instructions();
    if (limit != NULL && used[0] != '\0' && strcasecmp(limit, used) != 0 &&
        strcasecmp(limit, "ALL") != 0 && strcasecmp(limit, "DEFAULT") != 0)
        log_warning("ONEDNN_MAX_CPU_ISA=%s, but oneDNN computes with %s here: the processor does "
                    "not have that set, or the name is wrong",
                    limit, used);
}

status command_run(int argc, char **argv)
{
    status result = OK;
    struct settings read = {0};
    options *o = NULL;
    char title[128], hash[65];
    const char *queued = NULL;
    bool dry = command_flag(&argc, argv, "--dry-run");
    bool print = command_flag(&argc, argv, "--print-config");
    bool quiet = command_flag(&argc, argv, "--quiet");
    bool json = command_flag(&argc, argv, "--json");
    bool resume = command_flag(&argc, argv, "--resume");
    TRY(command_value(&argc, argv, "--queued", &queued));
    TRY(command_no_flags_left(
        argc, argv, "run",
        "--dry-run, --print-config, --quiet, --json, --resume and --queued RUN"));
    TRY(settings_read_arguments(&read, argc, argv));
    TRY(settings_refuse_internal(&read));
    if (queued != NULL && (dry || print || resume))
        FAIL(ERROR_USAGE,
             "--queued %s starts the run; it takes neither --dry-run, --print-config "
             "nor --resume",
             queued);
    if (queued != NULL) {
        TRY(run_queued(&read, queued, quiet, json));
        goto done;
    }
    TRY(compose_one(&o, &read));
    if (resume) {
        TRY(precision_choose(o, PRECISION_MEASURE));
        TRY(find_checkpoint(o, &read));
        options_close(&o);
        TRY(config_compose(&o, &read));
    }
    if (print) {
        config_print(o, stdout);
        goto done;
    }
    TRY(precision_choose(o, PRECISION_MEASURE));
    const char *from = options_text(o, "resume");
    if (from[0] != '\0')
        TRY(run_checkpoint_check(from, o, NULL)); /* before any process starts */
    TRY(run_checkpoint_check_paths(o, 0));
    run_summary_title(o, title);
    if (dry) {
        config_hash(o, hash);
        printf("would run %s into %s (configuration %.12s)\n", title, options_text(o, "results"),
               hash);
        goto done;
    }
    TRY(prerequisites_check(o));
    warn_of_instructions();
    launch_catch_signals();
    TRY(launch_with_restarts(&o, &read, title, quiet, json));
done:
    options_close(&o);
    settings_free(&read);
    return result;
}
