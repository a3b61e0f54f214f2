/*
 * figures.h — plots as files for a paper: SVG, one column wide, with their styles inside. Internal
 * to results/.
 *
 * A figure is a drawing of plot.h with the light colours of the page as plain values, because
 * converters know no CSS variables. FIGURE_WIDTH units are one column of 84 mm, so that text of 12
 * units is 8 points high.
 */
#ifndef GRADLAG_RESULTS_REPORT_FIGURES_H
#define GRADLAG_RESULTS_REPORT_FIGURES_H

#include "base/text.h"

enum { FIGURE_WIDTH = 350 };

struct figures {                 /* zero-initialise; free with figures_free() */
    const char *section, *panel; /* set by the caller: the first parts of the names; borrowed */
    struct figure *at;
    size_t count;
};
struct figure {
    char *name; /* "stale-gradients-test-accuracy-against-time.svg": a to z, 0 to 9 and '-' */
    struct text svg;
};

/* Adds a figure from the contents of an <svg> of this size; copies them. If the section already has
 * a figure of this title, the name gets a number: NAME-2.svg. */
void figures_add(struct figures *f, const char *title, double width, double height,
                 const char *contents);
/* Writes the files into `folder`, which it creates if only its last part is missing; replaces
 * earlier files. Calls `each` (NULL: none) with the path of each file and stops at its error.
 * ERROR_OTHER: the folder cannot be created, is no folder, or a file cannot be written. */
status figures_write(const struct figures *f, const char *folder,
                     status (*each)(void *context, const char *path), void *context) MUST_CHECK;
void figures_free(struct figures *f);

#endif
