#include "base/text.h"
#include "experiments/command.h"

#include "experiments/run/rerun_command.h"
#include "results/query/show_run.h"

#include <stdio.h>
#include <string.h>

const char command_show_help[] =
    "gradlag show RUN [results=FILE] [--rerun]\n\n"
    "RUN is a run's number, the start of its uuid, or 'last'. `gradlag query runs` lists them.\n\n"
    "  --rerun  the command that makes the run once more, for a shell: the environment that\n"
    "           mattered, and every setting that is not the default\n\n"
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
        FAIL(ERROR_USAGE, "show: one run at a time; '%s' is one too many", argv[1]);
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
