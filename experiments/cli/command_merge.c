#include "base/text.h"
#include "experiments/command.h"

#include "experiments/run/launch.h"
#include "experiments/print_columns.h"
#include "results/store/merge.h"
#include "results/store/recorder.h"

#include <stdio.h>

const char command_merge_help[] =
    "gradlag merge FILE… -o OUT\n\n"
    "Copies the runs of several results files into one, with all their rows. OUT may be there and\n"
    "have runs of its own. Which run is which is said by its uuid: one that is in OUT already is "
    "not\n"
    "copied again, so merging once more takes over what has come since. What is still going on, "
    "or\n"
    "waits in a queue, is left out. A run that is in both and differs is an error. At the end OUT "
    "is\n"
    "checked. A new OUT is there whole, or, on an error or Ctrl-C, not at all; one that was there "
    "has\n"
    "each FILE whole, or nothing of it.\n\n"
    "  gradlag merge node1.db node2.db -o all.db\n";

static bool is_asked_to_stop(void)
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
            printf(", %zu left out that go on or wait", one.left);
        printf("\n");
        fflush(stdout);
    }
    TRY(merge_finish(m, &runs));
    printf("%s: %zu run%s; integrity_check ok\n", out, runs, plural(runs));
    if (repeats > 0) {
        printf("made more than once: %zu run%s, with settings and seed of another that finished\n",
               repeats, plural(repeats));
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
    TRY(command_no_flags_left(argc, argv, "merge", "-o OUT"));
    if (out == NULL || argc == 0) {
        FAIL(ERROR_USAGE,
             "merge: which files, and into which? As in `gradlag merge a.db b.db -o all.db`");
    }
    launch_catch_signals();
    recorder_give_up_when(is_asked_to_stop);
    TRY(merge_open(&m, out));
    result = merge_all(m, argc, argv, out);
    if (result != OK) {
        merge_describe(m, &left);
        result = error_set(result, __FILE__, __LINE__, "%s. %s", error_message(), left.at);
    }
done:
    merge_close(&m);
    text_free(&left);
    return result;
}
