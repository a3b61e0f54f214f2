#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "experiments/print_columns.h"
#include "experiments/command.h"

#include "experiments/claims/claims_for_report.h"
#include "experiments/run/child_process.h"
#include "experiments/run/launch.h"
#include "results/report/report.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

const char command_report_help[] =
    "gradlag report [FILE.yaml…] [-o report.html] [results=FILE] [experiment=NAME]\n"
    "               [--figures FOLDER | --watch]\n\n"
    "Writes one HTML page with plots and tables of a results file: claims of experiments and\n"
    "their verdicts; accuracy against samples, time, workers and throughput; staleness; time of\n"
    "each phase; failures; the settings of every run. The page needs no network and no other\n"
    "file. It judges the claims of the built-in experiments and of FILE.yaml.\n\n"
    "  -o FILE          the page to write (default report.html); - is standard output\n"
    "  results=FILE     the results file (default results.db)\n"
    "  experiment=NAME  only runs of this experiment\n"
    "  --figures FOLDER writes each plot into FOLDER, too: for a paper, one column (84 mm) wide,\n"
    "                   as SVG and, if rsvg-convert is installed, as PDF\n"
    "  --watch          rewrite the page while the results file grows, until Ctrl-C; an open\n"
    "                   page reloads itself\n\n"
    "  gradlag report -o study.html --figures figures results=study.db\n";

/* --watch: rewrites at most every RENEW_AT_LEAST_S and uses at most 1/RENEW_PER_COST of a core. */
enum { WATCH_MS = 500, RENEW_AT_LEAST_S = 2, RENEW_PER_COST = 20, RELOAD_S = 5 };

struct report {
    const char *results, *experiment, *out, *figures;
    const char *const *files; /* FILE.yaml arguments */
    size_t file_count;
};

/* ---- figures ------------------------------------------------------------------------------------
 */

enum { CONVERT_LIMIT_S = 60 };
#define CONVERTER "rsvg-convert"

/* Waits for the converter. `missing`: it is not installed. */
static status await_converter(struct child *c, const char *svg, bool *missing)
{
    status result = OK;
    const double limit = clock_seconds() + CONVERT_LIMIT_S;
    char how[96];
    while (!child_poll(c)) {
        if (clock_seconds() > limit) {
            child_kill(c);
            FAIL(ERROR_OTHER, "%s: " CONVERTER " made no PDF of it within %d s and was ended", svg,
                 CONVERT_LIMIT_S);
        }
        clock_sleep_until_ns(clock_ns() + UINT64_C(2000000));
    }
    *missing = WIFEXITED(c->wait_status) && WEXITSTATUS(c->wait_status) == CHILD_NOT_STARTED;
    if (!*missing && c->wait_status != 0) {
        child_describe(c->wait_status, how);
        FAIL(ERROR_OTHER,
             "%s: " CONVERTER " made no PDF of it and %s; see its message, or try `" CONVERTER
             " -f pdf %s -o figure.pdf`",
             svg, how, svg);
    }
done:
    return result;
}

/* Writes the PDF beside an SVG; context: bool, whether the converter is missing. */
static status convert(void *context, const char *svg)
{
    status result = OK;
    bool *missing = context;
    struct text pdf = {0}, part = {0};
    if (*missing)
        goto done;
    text_add(&pdf, "%.*s.pdf", (int)(strlen(svg) - strlen(".svg")), svg);
    text_add(&part, "%s.part", pdf.at);
    const char *const argv[] = {CONVERTER, "--format=pdf", "--output", part.at, "--", svg, NULL};
    struct child child;
    TRY(child_start(&child, argv, NULL, -1));
    TRY(await_converter(&child, svg, missing));
    if (!*missing && rename(part.at, pdf.at) != 0)
        FAIL(ERROR_OTHER, "%s cannot be written: %s", pdf.at, strerror(errno));
done:
    if (part.at != NULL)
        (void)remove(part.at); /* of a failed conversion */
    text_free(&pdf);
    text_free(&part);
    return result;
}

static void print_outline(const struct report *r, const struct report_outline *o, bool without_pdf)
{
    FILE *to = strcmp(r->out, "-") == 0 ? stderr : stdout;
    if (to == stdout)
        printf("%s: %zu run%s, %.0f kB\n", r->out, o->runs, plural(o->runs),
               (double)o->bytes / 1000);
    if (r->figures == NULL)
        return;
    fprintf(to, "%s: %zu figure%s as SVG%s\n", r->figures, o->figures, plural(o->figures),
            without_pdf ? "" : " and PDF");
    if (without_pdf)
        fprintf(to, "no PDFs: " CONVERTER " is not installed (Debian: librsvg2-bin)\n");
}

/* ---- the page -----------------------------------------------------------------------------------
 */

static status write_report(const struct report *r, unsigned reload_s)
{
    status result = OK;
    struct report_claims j = {0};
    struct report_outline outline;
    bool without_pdf = false;
    TRY(report_claims_read(&j, r->results, r->experiment, r->files, r->file_count));
    struct report_request request = {.path = r->results,
                                     .experiment = r->experiment,
                                     .experiments = j.at,
                                     .experiment_count = j.count,
                                     .reload_s = reload_s,
                                     .figures = r->figures,
                                     .each_figure = convert,
                                     .context = &without_pdf};
    TRY(report_write(&request, r->out, &outline));
    if (reload_s == 0)
        print_outline(r, &outline, without_pdf);
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
    TRY(command_value(&argc, argv, "--figures", &r->figures));
    if (r->figures != NULL && r->figures[0] == '\0')
        FAIL(ERROR_USAGE, "report: --figures needs the name of a folder, as in --figures figures");
    int files = 0;
    for (int i = 0; i < argc; i++)
        if (strncmp(argv[i], "experiment=", 11) == 0)
            r->experiment = argv[i] + 11;
        else
            argv[files++] = argv[i];
    TRY(command_no_flags_left(files, argv, "report", "-o FILE, --figures FOLDER and --watch"));
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
    if (watching && r.figures != NULL) {
        FAIL(ERROR_USAGE, "report: --watch rewrites only the page; give --figures without --watch "
                          "after the last run");
    }
    if (strcmp(r.out, "-") == 0)
        signal(SIGPIPE, SIG_DFL); /* end if the reader of stdout exits, as `query` does */
    TRY(watching ? watch(&r) : write_report(&r, 0));
done:
    return result;
}
