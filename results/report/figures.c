#include "results/report/figures.h"

#include "base/memory.h"
#include "base/output_file.h"
#include "results/store/database.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define COLUMN_MM 84.0

enum {
    NAME_PART = 80, /* longer parts of names are cut */
    MARGIN = 2      /* units, because letters and marks may cross the edge of a drawing */
};

/* ---- names --------------------------------------------------------------------------------------
 */

/* Adds the letters and digits of `name` in lower case. One '-' replaces other characters between
 * them. */
static void add_safe(struct text *out, const char *name)
{
    size_t used = 0;
    bool gap = false;
    for (const char *c = name; *c != '\0' && used < NAME_PART; c++) {
        if (!isascii((unsigned char)*c) || !isalnum((unsigned char)*c)) {
            gap = used > 0;
            continue;
        }
        text_add(out, "%s%c", gap ? "-" : "", tolower((unsigned char)*c));
        used += 1 + (size_t)gap;
        gap = false;
    }
}

static bool is_taken(const struct figures *f, const char *name)
{
    for (size_t i = 0; i < f->count; i++)
        if (strcmp(f->at[i].name, name) == 0)
            return true;
    return false;
}

static char *new_name(const struct figures *f, const char *title)
{
    struct text stem = {0}, name = {0};
    add_safe(&stem, f->section);
    text_add(&stem, "%s", stem.length == 0 ? "runs-" : "-");
    if (f->panel[0] != '\0') {
        add_safe(&stem, f->panel);
        text_add(&stem, "-");
    }
    add_safe(&stem, title);
    text_add(&name, "%s.svg", stem.at);
    for (unsigned i = 2; is_taken(f, name.at); i++) {
        name.length = 0;
        text_add(&name, "%s-%u.svg", stem.at, i);
    }
    char *copy = text_copy(name.at);
    text_free(&stem);
    text_free(&name);
    return copy;
}

/* ---- one figure ---------------------------------------------------------------------------------
 */

/* Adds the value of the variable `name` ("--c1)…"): the first one in style.css is the light one. */
static void add_value(struct text *out, const char *name, size_t length)
{
    const char *at = database_text("results/report/style.css");
    while ((at = strstr(at, "--")) != NULL && (strncmp(at, name, length) != 0 || at[length] != ':'))
        at += 2;
    REQUIRE(at != NULL);
    at += length + 1;
    at += strspn(at, " ");
    text_add_bytes(out, at, strcspn(at, ";"));
}

/* plot.css with values in place of its variables. */
static void add_style(struct text *out)
{
    static const char variable[] = "var(";
    const char *css = database_text("results/report/plot.css"), *at;
    while ((at = strstr(css, variable)) != NULL) {
        const char *name = at + sizeof variable - 1;
        size_t length = strcspn(name, ")");
        text_add_bytes(out, css, (size_t)(at - css));
        add_value(out, name, length);
        css = name + length + 1;
    }
    text_add(out, "%s", css);
}

void figures_add(struct figures *f, const char *title, double width, double height,
                 const char *contents)
{
    char *name = new_name(f, title);
    struct figure *made = memory_append(&f->at, &f->count, sizeof *f->at);
    made->name = name;
    const double wide = width + 2 * MARGIN, high = height + 2 * MARGIN;
    const double mm = COLUMN_MM / FIGURE_WIDTH * width; /* width of the figure */
    text_add(
        &made->svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"plot\" width=\"%.2fmm\" "
        "height=\"%.2fmm\" viewBox=\"%d 0 %.0f %.0f\" font-size=\"12\" font-family=\"Helvetica, "
        "Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif\">\n<style>\n",
        mm, mm * high / wide, -MARGIN, wide, high);
    add_style(&made->svg);
    text_add(&made->svg, "</style>\n%s</svg>\n", contents);
}

void figures_free(struct figures *f)
{
    for (size_t i = 0; i < f->count; i++) {
        memory_free(f->at[i].name);
        text_free(&f->at[i].svg);
    }
    free(f->at);
    *f = (struct figures){0};
}

/* ---- files --------------------------------------------------------------------------------------
 */

static status make_folder(const char *folder)
{
    status result = OK;
    struct stat about;
    if (mkdir(folder, 0777) != 0 && errno != EEXIST) {
        FAIL(ERROR_OTHER,
             "%s: the folder for figures cannot be created: %s; create its parent, or "
             "name another folder with --figures",
             folder, strerror(errno));
    }
    if (stat(folder, &about) != 0 || !S_ISDIR(about.st_mode)) {
        FAIL(ERROR_OTHER,
             "%s is no folder, so figures cannot be written into it; name another "
             "one with --figures",
             folder);
    }
done:
    return result;
}

static status write_figure(const struct figure *f, const char *path)
{
    status result = OK;
    struct output_file file = {0};
    TRY(output_file_open(&file, path));
    (void)!fwrite(f->svg.at, 1, f->svg.length, file.to); /* output_file_close() reports errors */
    TRY(output_file_close(&file, false));
done:
    output_file_abandon(&file);
    return result;
}

status figures_write(const struct figures *f, const char *folder,
                     status (*each)(void *context, const char *path), void *context)
{
    status result = OK;
    struct text path = {0};
    TRY(make_folder(folder));
    for (size_t i = 0; i < f->count; i++) {
        path.length = 0;
        text_add(&path, "%s/%s", folder, f->at[i].name);
        TRY(write_figure(&f->at[i], path.at));
        if (each != NULL)
            TRY(each(context, path.at));
    }
done:
    text_free(&path);
    return result;
}
