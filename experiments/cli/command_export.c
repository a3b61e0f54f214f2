#include "experiments/command.h"

#include "experiments/print_columns.h"
#include "results/export/export.h"

#include <stdio.h>
#include <string.h>

const char command_export_help[] =
    "gradlag export FORMAT [RUN…] [results=FILE] [-o PATH]\n\n"
    "Writes runs of a results file for another tool. RUN is a run's number, the start of its\n"
    "uuid, or 'last'; without RUN all runs are written. The results file is only read. A run\n"
    "that has not ended is written up to its latest row.\n\n"
    "  -o PATH  the folder or file to write; each format has a default. For a format with one\n"
    "           file, - is standard output\n\n";

void command_print_exports(FILE *to)
{
    struct export_description e;
    for (size_t i = 0; export_at(i, &e); i++) {
        print_padded(to, e.name, 13);
        fprintf(to, "%s; default: %s\n", e.description, e.to);
    }
}

status command_export(int argc, char **argv)
{
    status result = OK;
    struct export_request request = {.results = command_results(&argc, argv)};
    struct export_outcome outcome;
    TRY(command_value(&argc, argv, "-o", &request.to));
    TRY(command_no_flags_left(argc, argv, "export", "-o PATH"));
    TRY(command_no_settings_left(argc, argv, "export", "results=FILE"));
    if (argc == 0)
        FAIL(ERROR_USAGE, "export: name a format; `gradlag list exports` lists them");
    request.format = argv[0];
    request.runs = (const char *const *)&argv[1];
    request.run_count = (size_t)argc - 1;
    TRY(export_write(&request, &outcome));
    if (strcmp(outcome.to, "-") != 0) {
        printf("%zu run%s in %zu file%s: %s\n", outcome.runs, plural(outcome.runs), outcome.files,
               plural(outcome.files), outcome.to);
    }
done:
    return result;
}
