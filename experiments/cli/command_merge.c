#include "base/text.h"
#include "experiments/command.h"

#include "experiments/run/launch.h"
#include "experiments/print_columns.h"
#include "results/store/merge.h"
#include "results/store/recorder.h"

#include <stdio.h>

const char command_merge_help[] =
    "gradlag merge FILE… -o OUT [--summaries]\n\n"
    "Copies the runs of several results files, with all their rows, into OUT, and checks OUT.\n"
    "OUT may exist and may have other runs. Runs are identified by their uuid: a run that OUT\n"
    "has already is not copied again, so a second merge adds only new runs. Runs that are\n"
    "running or queued are not copied. It is an error if a run is in both files and differs.\n"
    "After an error or Ctrl-C an existing OUT has each FILE completely or not at all; a new OUT\n"
    "is not created.\n\n"
    "  --summaries  without the rows of single gradients and steps (tables push and step), which\n"
    "               are most of a file; for publishing. Curves, histograms of staleness and mean\n"
    "               times stay; such runs cannot be replayed\n\n"
    "  gradlag merge node1.db node2.db -o all.db\n";

static bool stop_requested(void)
{
    return launch_stop_requests() > 0;
}

static status merge_all(merge *m, int count, char **files, const char *out)
{
    status result = OK;
    size_t runs, repeats = 0;
    for (int i = 0; i < count; i++) {
        struct merge_outcome one;
        TRY(merge_add(m, files[i], &one));
        repeats += one.repeats;
        printf("%s: %zu run%s copied, %zu there already", files[i], one.copied, plural(one.copied),
               one.there);
        if (one.left > 0)
            printf(", %zu running or queued not copied", one.left);
        printf("\n");
        fflush(stdout);
    }
    TRY(merge_finish(m, &runs));
    printf("%s: %zu run%s; integrity_check ok\n", out, runs, plural(runs));
    if (repeats > 0) {
        printf("%zu run%s repeat settings and seed of another finished run\n", repeats,
               plural(repeats));
    }
done:
    return result;
}

status command_merge(int argc, char **argv)
{
    status result = OK;
    const char *out;
    merge *m = NULL;
    struct text left = {0};
    TRY(command_value(&argc, argv, "-o", &out));
    const bool summaries = command_flag(&argc, argv, "--summaries");
    TRY(command_no_flags_left(argc, argv, "merge", "-o OUT and --summaries"));
    if (out == NULL || argc == 0) {
        FAIL(ERROR_USAGE, "merge: name the files to read and the file to write, as in `gradlag "
                          "merge a.db b.db -o all.db`");
    }
    if (out[0] == '\0')
        FAIL(ERROR_USAGE, "merge: the name after -o is empty; name the file to write");
    launch_catch_signals();
    recorder_give_up_when(stop_requested);
    TRY(merge_open(&m, out, summaries));
    result = merge_all(m, argc, argv, out);
    if (result != OK) {
        merge_describe(m, result, &left);
        result = error_set(result, __FILE__, __LINE__, "%s. %s", error_message(), left.at);
    }
done:
    merge_close(&m);
    text_free(&left);
    return result;
}
