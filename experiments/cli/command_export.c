#include "experiments/command.h"

#include "base/memory.h"
#include "base/text.h"
#include "experiments/print_columns.h"
#include "results/export_csv.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char command_export_help[] =
    "gradlag export csv|parquet [RUN…] [results=FILE] [-o FOLDER]\n\n"
    "Writes every table of a results file as a file of its own: FOLDER/run.csv, push.csv, ….\n"
    "RUN is a run's number, the start of its uuid, or 'last'; without RUN all runs are written.\n"
    "The results file is only read. A run that has not ended is written up to its latest row.\n\n"
    "  csv        for pandas, R or a spreadsheet\n"
    "  parquet    smaller and with types; needs the Python package gradlag and pyarrow, in\n"
    "             python3 or in the Python that GRADLAG_PYTHON names\n"
    "  -o FOLDER  default: results-csv, results-parquet\n\n"
    "For TensorBoard, MLflow and Optuna: python3 -m gradlag export --help\n";

struct export
{
    const char *results, *folder;
    char **runs;
    size_t run_count;
};

static status write_csv(const struct export *e)
{
    status result = OK;
    const char *folder = e->folder != NULL ? e->folder : "results-csv";
    const struct csv_export request = {.results = e->results,
                                       .runs = (const char *const *)e->runs,
                                       .run_count = e->run_count,
                                       .folder = folder};
    size_t runs;
    TRY(export_csv(&request, &runs));
    printf("%zu run%s: %s\n", runs, plural(runs), folder);
done:
    return result;
}

/* Becomes Python. Nothing is imported from the current folder, where anything may lie. */
static status write_parquet(const struct export *e)
{
    static const char script[] =
        "import sys\n"
        "sys.path[:] = [folder for folder in sys.path if folder]\n"
        "try:\n"
        "    from gradlag.__main__ import main\n"
        "except ModuleNotFoundError as missing:\n"
        "    sys.exit(f'gradlag: error: export parquet: {sys.executable} has no package "
        "{missing.name}; in a source tree of gradlag: {sys.executable} -m pip install "
        "\"./python[parquet]\"')\n"
        "sys.exit(main(sys.argv[1:]))\n";
    status result = OK;
    const char *python = getenv("GRADLAG_PYTHON");
    const char *const begin[] = {python != NULL && python[0] != '\0' ? python : "python3",
                                 "-c",
                                 script,
                                 "export",
                                 "parquet",
                                 "-o",
                                 e->folder != NULL ? e->folder : "results-parquet",
                                 e->results};
    const char **words = NULL;
    TRY(memory_new(&words, COUNT_OF(begin) + e->run_count + 1, sizeof *words, "a command"));
    memcpy(words, begin, sizeof begin);
    for (size_t i = 0; i < e->run_count; i++)
        words[COUNT_OF(begin) + i] = e->runs[i];
    execvp(words[0], (char *const *)words);
    FAIL(ERROR_OTHER,
         "export parquet: %s cannot be started: %s; install Python 3.9 or later, or name it in "
         "GRADLAG_PYTHON",
         words[0], strerror(errno));
done:
    memory_free(words);
    return result;
}

static bool is_of_python(const char *format)
{
    return strcmp(format, "tensorboard") == 0 || strcmp(format, "mlflow") == 0 ||
           strcmp(format, "optuna") == 0;
}

status command_export(int argc, char **argv)
{
    status result = OK;
    struct export e = {.results = command_results(&argc, argv)};
    TRY(command_value(&argc, argv, "-o", &e.folder));
    TRY(command_no_flags_left(argc, argv, "export", "-o FOLDER"));
    TRY(command_no_settings_left(argc, argv, "export", "results=FILE"));
    const char *format = argc > 0 ? argv[0] : "";
    if (is_of_python(format)) {
        FAIL(ERROR_USAGE,
             "export: Python writes for %s: python3 -m gradlag export %s %s (docs/exports.md)",
             format, format, e.results);
    }
    bool csv = strcmp(format, "csv") == 0;
    if (!csv && strcmp(format, "parquet") != 0)
        FAIL(ERROR_USAGE, "export: '%s' is no format; name csv or parquet", format);
    if (e.folder != NULL && e.folder[0] == '\0')
        FAIL(ERROR_USAGE, "export: -o is empty; name a folder, as in -o results-%s", format);
    if (e.folder != NULL && strcmp(e.folder, "-") == 0) {
        FAIL(ERROR_USAGE,
             "export: %s is a folder of files, which cannot go to standard output; "
             "name a folder with -o",
             format);
    }
    e.runs = &argv[1];
    e.run_count = (size_t)argc - 1;
    TRY(csv ? write_csv(&e) : write_parquet(&e));
done:
    return result;
}
