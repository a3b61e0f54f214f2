#include "experiments/command.h"

#include "experiments/print.h"
#include "results/export.h"

#include <stdio.h>
#include <string.h>

static const char help[] =
    "gradlag export FORMAT [RUN…] [results=FILE] [-o PATH]\n\n"
    "Runs of a results file for other tools; all of them, unless some are named by number, by the\n"
    "start of their uuid or as 'last'. The results file is only read; runs that go on are written\n"
    "as far as they are.\n\n"
    "  -o PATH  where to (a folder, or a file), in place of the format's own\n\n";

void command_print_exports(FILE *to)
{
    struct export_description e;
    for (size_t i = 0; export_at(i, &e); i++) {
        print_padded(to, e.name, 13);
        fprintf(to, "%s; into %s\n", e.description, e.to);
    }
}

static void print_help(FILE *to)
{
    struct export_description e;
    fputs(help, to);
    for (size_t i = 0; export_at(i, &e); i++) {
        fputs("  ", to);
        print_padded(to, e.name, 13);
        fprintf(to, "%s\n", e.description);
    }
}

/* Takes "-o PATH" out; ERROR_USAGE where the path is missing. */
static status take_target(int *argc, char **argv, const char **out)
{
    status result = OK;
    for (int i = 0; i < *argc; i++) {
        if (strcmp(argv[i], "-o") != 0) {
            continue;
        }
        if (i + 1 == *argc) {
            FAIL(ERROR_USAGE, "export: -o needs a path");
        }
        *out = argv[i + 1];
        memmove(&argv[i], &argv[i + 2], (size_t)(*argc - i - 2) * sizeof *argv);
        *argc -= 2;
        break;
    }
done:
    return result;
}

status command_export(int argc, char **argv)
{
    status result = OK;
    struct export_request request = {.results = "results.db"};
    struct export_outcome outcome;
    const char **runs = NULL;
    if (command_flag(&argc, argv, "--help")) {
        print_help(stdout);
        goto done;
    }
    TRY(take_target(&argc, argv, &request.to));
    TRY(command_no_flags_left(argc, argv, "export", "-o PATH"));
    TRY(memory_new(&runs, (size_t)argc + 1, sizeof *runs, "runs"));
    for (int i = 0; i < argc; i++) {
        if (strncmp(argv[i], "results=", 8) == 0) {
            request.results = argv[i] + 8;
        } else if (request.format == NULL) {
            request.format = argv[i];
        } else {
            runs[request.run_count++] = argv[i];
        }
    }
    if (request.format == NULL) {
        FAIL(ERROR_USAGE, "export: which format? `gradlag list exports` shows them");
    }
    request.runs = runs;
    TRY(export_write(&request, &outcome));
    printf("%zu run%s in %zu file%s: %s\n", outcome.runs, outcome.runs == 1 ? "" : "s",
           outcome.files, outcome.files == 1 ? "" : "s", outcome.to);
done:
    memory_free(runs);
    return result;
}
