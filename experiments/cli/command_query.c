#include "base/log.h"
#include "base/terminal.h"
#include "experiments/command.h"

#include "results/query/query.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

const char command_query_help[] =
    "gradlag query NAME [parameter=value…] [results=FILE] [FORMAT]\n"
    "gradlag query \"SELECT …\"\n"
    "gradlag query --sql NAME\n\n"
    "Runs a named query or a SELECT statement on the results file (results.db) and prints a\n"
    "table. Without arguments it lists the named queries.\n\n"
    "A table that is wider than the terminal is fitted to it, and a line below it names the\n"
    "columns that are shortened or left out. A file or a pipe gets the complete table.\n\n"
    "  --csv, --json, --markdown  the FORMAT of the output; numbers of CSV and JSON are in full\n"
    "  -v                         the FORMAT with one line per column\n"
    "  --sql                      print the SQL text of a named query\n\n"
    "  gradlag query runs\n"
    "  gradlag query \"SELECT workers, final_accuracy FROM run\" --csv\n";

static status read_format(int *argc, char **argv, enum query_format *out)
{
    static const struct {
        const char *flag;
        enum query_format format;
    } formats[] = {{"--csv", QUERY_CSV},
                   {"--json", QUERY_JSON},
                   {"--markdown", QUERY_MARKDOWN},
                   {"-v", QUERY_VERTICAL}};
    status result = OK;
    *out = QUERY_TABLE;
    for (size_t i = 0; i < COUNT_OF(formats); i++) {
        if (!command_flag(argc, argv, formats[i].flag))
            continue;
        if (*out != QUERY_TABLE)
            FAIL(ERROR_USAGE, "query: use only one of --csv, --json, --markdown and -v");
        *out = formats[i].format;
    }
done:
    return result;
}

status command_query(int argc, char **argv)
{
    status result = OK;
    struct query_request request = {.path = command_results(&argc, argv),
                                    .width = terminal_columns(STDOUT_FILENO)};
    size_t rows = 0;
    char why[256];
    bool sql = command_flag(&argc, argv, "--sql");
    TRY(read_format(&argc, argv, &request.format));
    TRY(command_no_flags_left(argc, argv, "query", "--csv, --json, --markdown, -v and --sql"));
    if (argc == 0 && !sql) {
        command_print_queries(stdout);
        goto done;
    }
    if (argc == 0)
        FAIL(ERROR_USAGE,
             "query: --sql needs the name of a query; `gradlag list queries` lists them");
    request.question = argv[0];
    request.settings = (const char *const *)&argv[1];
    request.setting_count = (size_t)argc - 1;
    if (sql) {
        const char *text;
        TRY(query_find(request.question, &text));
        fputs(text, stdout);
        goto done;
    }
    TRY(query_run(&request, stdout, &rows));
    if (rows == 0 && (request.format == QUERY_TABLE || request.format == QUERY_VERTICAL)) {
        const char *nothing = query_no_rows_reason(request.question, why);
        fflush(stdout);
        log_info("no rows%s%s", nothing != NULL ? ": " : "", nothing != NULL ? nothing : "");
    }
done:
    return result;
}
