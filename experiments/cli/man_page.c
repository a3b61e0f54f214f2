#include "experiments/cli/man_page.h"

#include "base/text.h"
#include "experiments/command.h"
#include "experiments/claims/experiment.h"
#include "experiments/config/keys.h"
#include "experiments/run/provenance.h"
#include "experiments/run/environment.h"
#include "results/query/query.h"

#include <stdlib.h>
#include <string.h>

/* ---- text with roff escapes
 * ----------------------------------------------------------------------
 */

/* Returns the code point at *c and moves *c behind it; '?' for a byte that is not UTF-8. */
static unsigned next_character(const char **c)
{
    const unsigned char *at = (const unsigned char *)*c;
    unsigned first = *at, more = first >= 0xf0 ? 3 : first >= 0xe0 ? 2 : first >= 0xc0 ? 1 : 0;
    unsigned code = more == 0 ? first : first & (0x3fu >> more);
    for (unsigned i = 1; i <= more; i++) {
        if ((at[i] & 0xc0) != 0x80) {
            *c += 1;
            return '?';
        }
        code = code << 6 | (at[i] & 0x3fu);
    }
    *c += 1 + more;
    return first >= 0x80 && more == 0 ? '?' : code;
}

/* Escapes for characters that roff would interpret or replace; NULL: none needed. */
static const char *escape_of(unsigned code)
{
    switch (code) {
    case '\\':
        return "\\e";
    case '-':
        return "\\-";
    case '\'':
        return "\\(aq";
    case '`':
        return "\\(ga";
    case '^':
        return "\\(ha";
    case '~':
        return "\\(ti";
    case '"':
        return "\\(dq";
    case '|':
        return "|\\:"; /* allows a line break in lists of names */
    default:
        return NULL;
    }
}

/* Writes escaped text. "\\&" keeps a line that begins with '.' from being a roff request. */
static void put(FILE *to, const char *text)
{
    bool at_start = true;
    for (const char *c = text; *c != '\0';) {
        unsigned code = next_character(&c);
        const char *escape = escape_of(code);
        if (at_start && code == '.')
            fputs("\\&", to);
        if (escape != NULL)
            fputs(escape, to);
        else if (code >= 0x80)
            fprintf(to, "\\[u%04X]", code);
        else
            fputc((int)code, to);
        at_start = code == '\n';
    }
}

static void put_line(FILE *to, const char *text)
{
    put(to, text);
    fputc('\n', to);
}

/* Keeps line breaks and spaces (.nf). */
static void put_verbatim(FILE *to, const char *text)
{
    fputs(".nf\n", to);
    put(to, text);
    fputs(text[0] != '\0' && text[strlen(text) - 1] == '\n' ? ".fi\n" : "\n.fi\n", to);
}

/* A tagged paragraph: the bold tag and `rest` on one line, then the text. */
static void put_item(FILE *to, const char *tag, const char *rest, const char *text)
{
    fputs(".TP\n\\fB", to);
    put(to, tag);
    fputs("\\fR", to);
    put_line(to, rest);
    put_line(to, text);
}

/* ---- the parts of the page ----------------------------------------------------------------------
 */

static void put_commands(FILE *to)
{
    struct command_about c;
    struct text help = {0};
    fputs(".SH COMMANDS\n", to);
    for (size_t i = 0; command_at(i, &c); i++) {
        fputs(".SS gradlag ", to);
        put_line(to, c.name);
        put_line(to, c.help);
        fputs(".PP\n", to);
        help.length = 0;
        command_help_of(i, &help);
        put_verbatim(to, help.at);
    }
    text_free(&help);
}

static void add_range(struct text *out, const struct option *o)
{
    if (o->type == OPTION_INTEGER) {
        text_add(out, "%.0f to %.0f: ", o->minimum, o->maximum);
    } else if (o->type == OPTION_REAL) {
        text_add(out, "%.15g to %.15g: ", o->minimum, o->maximum);
    } else if (o->type != OPTION_TEXT) {
        key_add_names(o, "|", out);
        text_add(out, ": ");
    }
}

/* `help`: NULL for the option's own text. */
static void put_option(FILE *to, const struct option *o, const char *help)
{
    struct text rest = {0}, about = {0};
    text_add(&rest, "=%s", o->initial[0] == '\0' ? "\"\"" : o->initial);
    add_range(&about, o);
    text_add(&about, "%s", help != NULL ? help : o->help);
    put_item(to, o->key, rest.at, about.at);
    text_free(&rest);
    text_free(&about);
}

static void put_keys_that(FILE *to, const char *title, bool define)
{
    fprintf(to, ".SS %s\n", title);
    for (const struct option *o = global_keys; o->key != NULL; o++) {
        struct text help = {0};
        if (key_use_of(o->key) != KEY_INTERNAL && key_defines(o->key) == define) {
            key_add_help(o, &help);
            put_option(to, o, help.at);
        }
        text_free(&help);
    }
}

static void put_keys(FILE *to)
{
    fputs(".SH SETTINGS\n", to);
    put_line(to, "Written key=value on the command line, or key: value in a YAML file. A later "
                 "setting overrides an earlier one. Each key is shown with its default.");
    put_keys_that(to, "Keys that define the computation", true);
    put_keys_that(to, "Other keys", false);
}

static void put_part(FILE *to, const struct about *about)
{
    struct text text = {0};
    text_add(&text, "%s%s%s%s", about->description, about->source != NULL ? " (" : "",
             about->source != NULL ? about->source : "", about->source != NULL ? ")" : "");
    put_item(to, about->name, "", text.at);
    if (about->options != NULL) {
        fputs(".RS\n", to);
        for (const struct option *o = about->options; o->key != NULL; o++)
            put_option(to, o, NULL);
        fputs(".RE\n", to);
    }
    text_free(&text);
}

/* The entries of registries, with their own keys. */
static void put_parts(FILE *to)
{
    fputs(".SH PARTS\n", to);
    put_line(to, "The values of some keys, each with the dotted keys that it adds.");
    for (const struct option *o = global_keys; o->key != NULL; o++) {
        if (o->registry != NULL) {
            fputs(".SS ", to);
            put_line(to, o->key);
            for (size_t i = 0; i < o->registry->count; i++)
                put_part(to, o->registry->entries[i]);
        }
    }
}

static void put_queries(FILE *to)
{
    struct query_description q;
    fputs(".SH QUERIES\n", to);
    put_line(to, "Named queries of gradlag query:");
    for (size_t i = 0; query_at(i, &q); i++)
        put_item(to, q.name, "", q.description);
}

static void put_environment(FILE *to)
{
    static const struct variable own[] = {
        {"GRADLAG_LOG",
         "error, warning, info or debug: the least severe message on stderr (default info)"},
        {"GRADLAG_PYTHON", "the Python that gradlag export parquet starts (default python3)"},
        {"GRADLAG_RUN_TOKEN", "the run's token where key run_token is not set; other users can "
                              "read a command line, but not the environment"},
        {"NO_COLOR", "if not empty: no colours"},
        {"TMPDIR", "folder for the sockets and temporary files of a run; /tmp if unset, longer "
                   "than 48 bytes, relative, or with a comma"},
        {"XDG_CACHE_HOME", "folder in which gradlag/ keeps decoded datasets (default ~/.cache)"},
    };
    struct variable v;
    fputs(".SH ENVIRONMENT\n", to);
    for (size_t i = 0; i < COUNT_OF(own); i++)
        put_item(to, own[i].name, "", own[i].meaning);
    fputs(".PP\n", to);
    put_line(to, "The row of a run records these variables if they are set, because they may "
                 "change results:");
    for (size_t i = 0; environment_variable(i, &v); i++)
        put_item(to, v.name, "", v.meaning);
}

static void put_exit_codes(FILE *to)
{
    int code;
    const char *meaning;
    fputs(".SH EXIT STATUS\n", to);
    for (size_t i = 0; command_exit_code_at(i, &code, &meaning); i++) {
        char number[16];
        snprintf(number, sizeof number, "%d", code);
        put_item(to, number, "", meaning);
    }
}

static void put_experiments(FILE *to)
{
    char *names = NULL;
    size_t length = 0;
    FILE *memory = open_memstream(&names, &length);
    REQUIRE(memory != NULL);
    experiment_print_all(memory);
    REQUIRE(fclose(memory) == 0);
    fputs(".SH EXPERIMENTS\n", to);
    put_line(to, "Experiments of gradlag reproduce:");
    fputs(".PP\n", to);
    put_verbatim(to, names);
    free(names);
}

static void put_header(FILE *to)
{
    fprintf(to, ".TH GRADLAG 1 \"%s\" \"gradlag ", provenance_date());
    put(to, provenance_release());
    fputs("\" \"User Commands\"\n.ad l\n.nh\n.SH NAME\n", to);
    fputs("gradlag \\- measures what stale gradients cost in asynchronous training, and what "
          "recovers it\n",
          to);
    fputs(".SH SYNOPSIS\n\\fBgradlag\\fR \\fICOMMAND\\fR [\\fIkey=value\\fR]...\n.br\n"
          "\\fBgradlag\\fR \\fICOMMAND\\fR \\fB\\-\\-help\\fR\n.br\n"
          "\\fBgradlag \\-\\-version\\fR\n",
          to);
    fputs(".SH DESCRIPTION\n", to);
    put_line(to, "Trains one model on the same workers in two ways: with an asynchronous parameter "
                 "server and with synchronous allreduce. It records accuracy, throughput and the "
                 "staleness of every gradient in one SQLite file, results.db by default (key "
                 "results).");
}

void man_page_print(FILE *to)
{
    put_header(to);
    put_commands(to);
    put_keys(to);
    put_parts(to);
    put_queries(to);
    put_experiments(to);
    put_exit_codes(to);
    put_environment(to);
    fputs(".SH SEE ALSO\n.BR sqlite3 (1),\n.BR mpirun (1)\n", to);
}
