#include "experiments/command.h"

#include "experiments/print.h"
#include "results/merge.h"

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
    "checked.\n\n"
    "  gradlag merge node1.db node2.db -o all.db\n";

status command_merge(int argc, char **argv)
{
    status result = OK;
    const char *out;
    size_t runs, repeats = 0;
    TRY(command_value(&argc, argv, "-o", &out));
    TRY(command_no_flags_left(argc, argv, "merge", "-o OUT"));
    if (out == NULL || argc == 0) {
        FAIL(ERROR_USAGE,
             "merge: which files, and into which? As in `gradlag merge a.db b.db -o all.db`");
    }
    for (int i = 0; i < argc; i++) {
        struct merge_outcome m;
        TRY(merge_file(out, argv[i], &m));
        repeats += m.repeats;
        printf("%s: %zu run%s copied, %zu there already", argv[i], m.copied, plural(m.copied),
               m.there);
        if (m.left > 0) {
            printf(", %zu left out that go on or wait", m.left);
        }
        printf("\n");
        fflush(stdout);
    }
    TRY(merge_check(out, &runs));
    printf("%s: %zu run%s; integrity_check ok\n", out, runs, plural(runs));
    if (repeats > 0) {
        printf("made more than once: %zu run%s, with settings and seed of another that finished\n",
               repeats, plural(repeats));
    }
done:
    return result;
}
