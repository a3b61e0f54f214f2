#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "experiments/print_columns.h"
#include "experiments/command.h"

#include "experiments/claims/claims_for_report.h"
#include "experiments/run/launch.h"
#include "results/report/report.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

const char command_report_help[] =
    "gradlag report [FILE.yaml…] [-o report.html] [results=FILE] [experiment=NAME] [--watch]\n\n"
    "Writes one HTML page with plots and tables of a results file: claims of experiments and\n"
    "their verdicts; accuracy against samples, time, workers and throughput; staleness; time of\n"
    "each phase; failures; the settings of every run. The page needs no network and no other\n"
    "file. It judges the claims of the built-in experiments and of FILE.yaml.\n\n"
    "  -o FILE          the page to write (default report.html); - is standard output\n"
    "  results=FILE     the results file (default results.db)\n"
    "  experiment=NAME  only runs of this experiment\n"
    "  --watch          rewrite the page while the results file grows, until Ctrl-C; an open\n"
    "                   page reloads itself\n\n"
    "  gradlag report -o study.html results=study.db\n";

/* --watch: rewrites at most every RENEW_AT_LEAST_S and uses at most 1/RENEW_PER_COST of a core. */
enum { WATCH_MS = 500, RENEW_AT_LEAST_S = 2, RENEW_PER_COST = 20, RELOAD_S = 5 };

struct report {
    const char *results, *experiment, *out;
    const char *const *files; /* FILE.yaml arguments */
    size_t file_count;
};

static status write_report(const struct report *r, unsigned reload_s)
{
    status result = OK;
    struct report_claims j = {0};
    struct report_outline outline;
    TRY(report_claims_read(&j, r->results, r->experiment, r->files, r->file_count));
    struct report_request request = {.path = r->results,
                                     .experiment = r->experiment,
                                     .experiments = j.at,
                                     .experiment_count = j.count,
                                     .reload_s = reload_s};
    TRY(report_write(&request, r->out, &outline));
    if (reload_s == 0 && strcmp(r->out, "-") != 0) {
        printf("%s: %zu run%s, %.0f kB\n", r->out, outline.runs, plural(outline.runs),
               (double)outline.bytes / 1000);
    }
done:
    report_claims_close(&j);
    return result;
}

/* True if the results file or its -wal, where SQLite writes first, changed since the last call. */
static bool has_changed(const char *path, struct timespec last[2])
{
    bool changed = false;
    for (int i = 0; i < 2; i++) {
        struct stat about = {0};
        struct text name = {0};
        text_add(&name, "%s%s", path, i == 0 ? "" : "-wal");
        (void)stat(name.at, &about);
        changed = changed || about.st_mtim.tv_sec != last[i].tv_sec ||
                  about.st_mtim.tv_nsec != last[i].tv_nsec;
        last[i] = about.st_mtim;
        text_free(&name);
    }
    return changed;
}

static status watch(const struct report *r)
{
    status result = OK;
    struct timespec last[2] = {0};
    double next = 0;
    launch_catch_signals();
    log_info("rewriting %s whenever %s changes; Ctrl-C ends this", r->out, r->results);
    while (launch_stop_requests() == 0) {
        double now = clock_seconds();
        if (now >= next && (has_changed(r->results, last) || next == 0)) {
            TRY(write_report(r, RELOAD_S));
            double cost = clock_seconds() - now;
            next = now + (cost * RENEW_PER_COST > RENEW_AT_LEAST_S ? cost * RENEW_PER_COST
                                                                   : RENEW_AT_LEAST_S);
        }
        clock_sleep_until_ns(clock_ns() + WATCH_MS * UINT64_C(1000000));
    }
    TRY(write_report(r, 0)); /* the last version does not reload itself */
done:
    return result;
}

static status read_arguments(struct report *r, int argc, char **argv)
{
    status result = OK;
    const char *out = NULL;
    r->results = command_results(&argc, argv);
    TRY(command_value(&argc, argv, "-o", &out));
    r->out = out != NULL ? out : r->out;
    if (r->out[0] == '\0')
        FAIL(ERROR_USAGE, "report: -o needs the name of a file, as in -o report.html");
    int files = 0;
    for (int i = 0; i < argc; i++)
        if (strncmp(argv[i], "experiment=", 11) == 0)
            r->experiment = argv[i] + 11;
        else
            argv[files++] = argv[i];
    TRY(command_no_flags_left(files, argv, "report", "-o FILE and --watch"));
    TRY(command_no_settings_left(files, argv, "report", "results=FILE and experiment=NAME"));
    r->files = (const char *const *)argv;
    r->file_count = (size_t)files;
done:
    return result;
}

status command_report(int argc, char **argv)
{
    status result = OK;
    struct report r = {.out = "report.html"};
    bool watching = command_flag(&argc, argv, "--watch");
    TRY(read_arguments(&r, argc, argv));
    if (watching && strcmp(r.out, "-") == 0) {
        FAIL(ERROR_USAGE, "report: --watch rewrites a file, so it cannot write to standard output; "
                          "name a file, as in -o report.html");
    }
    TRY(watching ? watch(&r) : write_report(&r, 0));
done:
    return result;
}
