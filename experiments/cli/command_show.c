#include "base/terminal.h"
#include "base/text.h"
#include "experiments/command.h"

#include "experiments/run/rerun_command.h"
#include "results/query/show_comparison.h"
#include "results/query/show_run.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

const char command_show_help[] =
    "gradlag show RUN [results=FILE] [--rerun]\n"
    "gradlag show RUN RUN… [results=FILE]\n\n"
    "Prints curve, staleness, time of each phase and settings of one run. RUN is a run's number,\n"
    "the start of its uuid, or 'last' (the default). `gradlag query runs` lists runs.\n\n"
    "Two to eight runs are compared: settings that differ, results, curves, and the mean\n"
    "differences to the first run over all finished runs that have these settings and the same\n"
    "seeds. Curves have at most 26 rows: an evaluation of the first run, and of each other run\n"
    "the one with the nearest number of samples, at most 5 % away.\n"
    "`gradlag query learning-curve run=RUN` prints all evaluations of a run.\n\n"
    "  --rerun  print a shell command that repeats the run: relevant environment variables and\n"
    "           every setting that differs from its default\n\n"
    "  gradlag show 3 7\n"
    "  gradlag show 3 --rerun | sh\n";

status command_show(int argc, char **argv)
{
    status result = OK;
    const char *path = command_results(&argc, argv);
    struct text command = {0};
    bool rerun = command_flag(&argc, argv, "--rerun");
    TRY(command_no_flags_left(argc, argv, "show", "--rerun"));
    TRY(command_no_settings_left(argc, argv, "show", "results=FILE"));
    if (argc > COMPARED_AT_MOST)
        FAIL(ERROR_USAGE, "show: name at most %d runs; '%s' is one more", COMPARED_AT_MOST,
             argv[COMPARED_AT_MOST]);
    if (argc > 1 && rerun)
        FAIL(ERROR_USAGE, "show: --rerun repeats one run; '%s' is a second one", argv[1]);
    if (argc > 1) {
        TRY(show_comparison(path, (const char *const *)argv, (size_t)argc,
                            terminal_columns(STDOUT_FILENO), stdout));
        goto done;
    }
    const char *run = argc > 0 ? argv[0] : "last";
    if (rerun) {
        TRY(rerun_command(path, run, &command));
        puts(command.at);
        goto done;
    }
    TRY(show_run(path, run, stdout));
done:
    text_free(&command);
    return result;
}
