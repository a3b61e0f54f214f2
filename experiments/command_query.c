#include "experiments/command.h"

#include "results/query.h"

#include <stdio.h>
#include <string.h>

const char command_query_help[] =
    "gradlag query NAME [parameter=value…] [results=FILE] [--csv|--json|--markdown]\n"
    "gradlag query \"SELECT …\"\n"
    "gradlag query --sql NAME          the question as it stands in its file\n\n"
    "Without a question: the named ones.\n";

static enum query_format take_format(int *argc, char **argv)
{
    enum query_format format = QUERY_TABLE;
    if (command_flag(argc, argv, "--csv")) {
        format = QUERY_CSV;
    }
    if (command_flag(argc, argv, "--json")) {
        format = QUERY_JSON;
    }
    if (command_flag(argc, argv, "--markdown")) {
        format = QUERY_MARKDOWN;
    }
    return format;
}

status command_query(int argc, char **argv)
{
    status result = OK;
    struct query_request request = {.path = command_results(&argc, argv)};
    bool sql = command_flag(&argc, argv, "--sql");
    request.format = take_format(&argc, argv);
    TRY(command_no_flags_left(argc, argv, "query", "--csv, --json, --markdown and --sql"));
    if (argc == 0 && !sql) {
        command_print_queries(stdout);
        goto done;
    }
    if (argc == 0) {
        FAIL(ERROR_USAGE, "query: --sql of which question? `gradlag list queries` shows them");
    }
    request.question = argv[0];
    request.settings = (const char *const *)&argv[1];
    request.setting_count = (size_t)argc - 1;
    if (sql) {
        const char *text = query_text(request.question);
        if (text == NULL) {
            FAIL(ERROR_USAGE, "query: no question is called '%s'; see `gradlag list queries`",
                 request.question);
        }
        fputs(text, stdout);
        goto done;
    }
    TRY(query_run(&request, stdout));
done:
    return result;
}
