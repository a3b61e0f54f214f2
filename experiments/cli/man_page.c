/* man_page.c — see man_page.h; completion is in command_completion.c. */
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

/* ---- text as roff reads it ----------------------------------------------------------------------
 */

/* The code point at *c, which moves past it; a byte that is no UTF-8 becomes '?'. */
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

/* Characters that roff would take for its own, or set as typographic ones. */
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
        return "|\\:"; /* lists of names may be broken here */
    default:
        return NULL;
    }
}

/* Running text, or lines kept as they are; a line that would begin as a request does not. */
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

/* Lines whose breaks and blanks stay. */
static void put_as_it_is(FILE *to, const char *text)
{
    fputs(".nf\n", to);
    put(to, text);
    fputs(text[0] != '\0' && text[strlen(text) - 1] == '\n' ? ".fi\n" : "\n.fi\n", to);
}

/* A tagged paragraph: the tag in bold, what follows it on its line, then the text. */
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
        put_as_it_is(to, help.at);
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

/* `help`: NULL for the option's own. */
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
    put_line(to, "Written key=value, on the command line or as key: value in a YAML file; what "
                 "stands later wins. Shown with their defaults.");
    put_keys_that(to, "What is computed", true);
    put_keys_that(to, "Where and how", false);
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

/* What keys choose from, with settings of their own. */
static void put_parts(FILE *to)
{
    fputs(".SH PARTS\n", to);
    put_line(to, "What some settings choose from, each with the settings that it brings.");
    for (const struct option *o = global_keys; o->key != NULL; o++) {
        if (o->registry != NULL) {
            fputs(".SS ", to);
            put_line(to, o->key);
            for (size_t i = 0; i < o->registry->count; i++)
                put_part(to, o->registry->entries[i]);
        }
    }
}

static void put_questions(FILE *to)
{
    struct query_description q;
    fputs(".SH QUESTIONS\n", to);
    put_line(to, "Of gradlag query:");
    for (size_t i = 0; query_at(i, &q); i++)
        put_item(to, q.name, "", q.description);
}

static void put_environment(FILE *to)
{
    static const struct variable own[] = {
        {"GRADLAG_LOG", "error, warning, info or debug: what is told on stderr (info)"},
        {"NO_COLOR", "not empty: no colours"},
        {"TMPDIR",
         "where the processes of a run meet; /tmp if it is not set, has more than 48 bytes or "
         "a comma"},
    };
    struct variable v;
    fputs(".SH ENVIRONMENT\n", to);
    for (size_t i = 0; i < COUNT_OF(own); i++)
        put_item(to, own[i].name, "", own[i].meaning);
    fputs(".PP\n", to);
    put_line(to, "A run's row also keeps, where they are set, for they may change what it does:");
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
    put_line(to, "Of gradlag reproduce:");
    fputs(".PP\n", to);
    put_as_it_is(to, names);
    free(names);
}

static void put_beginning(FILE *to)
{
    fprintf(to, ".TH GRADLAG 1 \"%s\" \"gradlag ", provenance_date());
    put(to, provenance_release());
    fputs("\" \"User Commands\"\n.ad l\n.nh\n.SH NAME\n", to);
    fputs("gradlag \\- what stale gradients cost, and what gives it back\n", to);
    fputs(".SH SYNOPSIS\n\\fBgradlag\\fR \\fICOMMAND\\fR [\\fIkey=value\\fR]...\n.br\n"
          "\\fBgradlag\\fR \\fICOMMAND\\fR \\fB\\-\\-help\\fR\n.br\n"
          "\\fBgradlag \\-\\-version\\fR\n",
          to);
    fputs(".SH DESCRIPTION\n", to);
    put_line(to, "Trains the same model on the same workers in two ways: with an asynchronous "
                 "parameter server, the staleness of every gradient recorded, and with synchronous "
                 "allreduce. Accuracy, throughput and staleness of every run go into one SQLite "
                 "file, results.db unless results= names another, that can be queried.");
}

void man_page_print(FILE *to)
{
    put_beginning(to);
    put_commands(to);
    put_keys(to);
    put_parts(to);
    put_questions(to);
    put_experiments(to);
    put_exit_codes(to);
    put_environment(to);
    fputs(".SH SEE ALSO\n.BR sqlite3 (1),\n.BR mpirun (1)\n", to);
}
