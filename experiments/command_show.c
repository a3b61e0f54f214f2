#include "experiments/command.h"

#include "experiments/rerun.h"
#include "results/show.h"

#include <stdio.h>
#include <string.h>

static const char help[] =
    "gradlag show RUN [results=FILE] [--rerun]\n\n"
    "RUN is a run's number, the start of its uuid, or 'last'. `gradlag query runs` lists them.\n\n"
    "  --rerun  the command that makes the run once more, for a shell: the environment that\n"
    "           mattered, and every setting that is not the default\n\n"
    "  gradlag show 3 --rerun | sh\n";

status command_show(int argc, char **argv)
{
    status result = OK;
    const char *path = "results.db", *run = NULL;
    struct text command = {0};
    if (command_flag(&argc, argv, "--help")) {
        fputs(help, stdout);
        goto done;
    }
    bool rerun = command_flag(&argc, argv, "--rerun");
    TRY(command_no_flags_left(argc, argv, "show", "--rerun"));
    for (int i = 0; i < argc; i++) {
        if (strncmp(argv[i], "results=", 8) == 0) {
            path = argv[i] + 8;
        } else if (run == NULL) {
            run = argv[i];
        } else {
            FAIL(ERROR_USAGE, "show: one run at a time; '%s' is one too many", argv[i]);
        }
    }
    run = run != NULL ? run : "last";
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
