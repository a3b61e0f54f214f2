#include "base/terminal.h"

#include "base/text.h"

#include <limits.h>
#include <locale.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <wchar.h>

unsigned terminal_columns(int fd)
{
    enum { USUAL = 80 };
    struct winsize size;
    const char *variable = getenv("COLUMNS");
    int64_t columns;
    if (isatty(fd) != 1)
        return 0;
    if (ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
        return size.ws_col;
    bool set = variable != NULL && text_to_integer(variable, &columns);
    return set && columns > 0 && columns <= USHRT_MAX ? (unsigned)columns : USUAL;
}

bool terminal_wants_colour(void)
{
    const char *no_colour = getenv("NO_COLOR");
    return no_colour == NULL || no_colour[0] == '\0';
}

/* The program runs in the locale C, whatever the user's locale, so that numbers have a point. The
 * widths of characters come from the C library's UTF-8 locale. */
static locale_t utf8;
static pthread_once_t utf8_once = PTHREAD_ONCE_INIT;

static void open_utf8(void)
{
    utf8 = newlocale(LC_CTYPE_MASK, "C.UTF-8", (locale_t)0);
}

/* A system without the locale C.UTF-8: every byte that starts a character is one column. */
static struct terminal_character without_locale(unsigned char byte)
{
    return (struct terminal_character){1, (byte & 0xc0) != 0x80, true};
}

struct terminal_character terminal_character_at(const char *text)
{
    const unsigned char byte = (unsigned char)*text;
    wchar_t c = 0;
    mbstate_t state = {0};
    if (byte < 0x80)
        return (struct terminal_character){1, 1, byte >= 0x20 && byte != 0x7f};
    pthread_once(&utf8_once, open_utf8);
    if (utf8 == (locale_t)0)
        return without_locale(byte);
    locale_t before = uselocale(utf8);
    size_t bytes = mbrtowc(&c, text, strnlen(text, 4), &state);
    int columns = wcwidth(c);
    uselocale(before);
    if (bytes > 4) /* (size_t)-1 or -2: not UTF-8 */
        return (struct terminal_character){1, 1, false};
    return (struct terminal_character){(unsigned)bytes, columns < 0 ? 1 : (unsigned)columns,
                                       columns >= 0};
}

unsigned terminal_text_columns(const char *text)
{
    unsigned columns = 0;
    while (*text != '\0') {
        struct terminal_character c = terminal_character_at(text);
        columns += c.columns;
        text += c.bytes;
    }
    return columns;
}

size_t terminal_fitting(const char *text, unsigned columns)
{
    const char *end = text;
    while (*end != '\0') {
        const struct terminal_character c = terminal_character_at(end);
        if (c.columns > columns)
            break;
        columns -= c.columns;
        end += c.bytes;
    }
    return (size_t)(end - text);
}
