#include "base/text.h"
#include "experiments/command.h"

#include "experiments/run/rerun_command.h"
#include "results/query/show_run.h"

#include <stdio.h>
#include <string.h>

const char command_show_help[] =
    "gradlag show RUN [results=FILE] [--rerun]\n\n"
    "Prints curve, staleness, time of each phase and settings of one run. RUN is a run's number,\n"
    "the start of its uuid, or 'last' (the default). `gradlag query runs` lists runs.\n\n"
    "  --rerun  print a shell command that repeats the run: relevant environment variables and\n"
    "           every setting that differs from its default\n\n"
    "  gradlag show 3 --rerun | sh\n";

status command_show(int argc, char **argv)
{
    status result = OK;
    const char *path = command_results(&argc, argv);
    struct text command = {0};
    bool rerun = command_flag(&argc, argv, "--rerun");
    TRY(command_no_flags_left(argc, argv, "show", "--rerun"));
    TRY(command_no_settings_left(argc, argv, "show", "results=FILE"));
    if (argc > 1)
        FAIL(ERROR_USAGE, "show: name one run; '%s' is a second one", argv[1]);
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
