#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int log_level = -1; /* not yet read from the environment */
static char log_name[64];

void log_set_name(const char *name)
{
    snprintf(log_name, sizeof log_name, "%s", name);
}

/* Returns −1 if GRADLAG_LOG names no level. Empty counts as unset. */
static int log_level_from_environment(void)
{
    static const char *const names[] = {"error", "warning", "info", "debug"};
    const char *wanted = getenv("GRADLAG_LOG");
    for (size_t i = 0; i < COUNT_OF(names); i++)
        if (wanted != NULL && strcmp(wanted, names[i]) == 0)
            return (int)i;
    return wanted == NULL || wanted[0] == '\0' ? LOG_INFO : -1;
}

status log_check_environment(void)
{
    status result = OK;
    if (log_level_from_environment() < 0) {
        FAIL(ERROR_USAGE,
             "GRADLAG_LOG=%s is not a level; set it to error, warning, info or debug, or unset it",
             getenv("GRADLAG_LOG"));
    }
done:
    return result;
}

void log_write(enum log_level level, const char *format, ...)
{
    static const char *const prefix[] = {"error: ", "warning: ", "", "debug: "};
    if (log_level < 0) {
        log_level = log_level_from_environment();
        log_level = log_level < 0 ? LOG_INFO : log_level;
    }
    if ((int)level > log_level)
        return;
    char line[2400];
    int length = snprintf(line, sizeof line, "gradlag%s%s: %s", log_name[0] ? " " : "", log_name,
                          prefix[level]);
    va_list arguments;
    va_start(arguments, format);
    length += vsnprintf(line + length, sizeof line - (size_t)length, format, arguments);
    va_end(arguments);
    size_t end = length < 0 ? 0 : (size_t)length;
    if (end > sizeof line - 2)
        end = sizeof line - 2;
    /* Names from files and peers could contain control sequences of the terminal. */
    for (size_t i = 0; i < end; i++)
        if (((unsigned char)line[i] < 0x20 && line[i] != '\n' && line[i] != '\t') ||
            line[i] == 0x7f)
            line[i] = '?';
    line[end++] = '\n';
    ssize_t written = write(STDERR_FILENO, line, end);
    (void)written; /* an error of stderr cannot be reported */
}
