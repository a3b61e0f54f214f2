#include "base/status.h"

#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local struct error current;

status error_set(status code, const char *file, int line, const char *format, ...)
{
    /* The arguments may point into the old message, so build the new one in another buffer. */
    char fresh[sizeof current.message];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(fresh, sizeof fresh, format, arguments);
    va_end(arguments);
    memcpy(current.message, fresh, sizeof fresh);
    snprintf(current.origin, sizeof current.origin, "%s:%d", file, line);
    return code;
}

status error_add_context(status code, const char *format, ...)
{
    char context[sizeof current.message];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(context, sizeof context, format, arguments);
    va_end(arguments);
    if (length >= 0 && (size_t)length < sizeof context)
        snprintf(context + length, sizeof context - (size_t)length, ": %s", current.message);
    memcpy(current.message, context, sizeof context);
    return code;
}

const char *error_message(void)
{
    return current.message;
}

const char *error_origin(void)
{
    return current.origin;
}

struct error error_save(void)
{
    return current;
}

void error_restore(const struct error *kept)
{
    current = *kept;
}

const char *status_name(status code)
{
    switch (code) {
    case OK:
        return "ok";
    case ERROR_OTHER:
        return "error";
    case ERROR_USAGE:
        return "usage";
    case ERROR_DATA:
        return "data";
    case ERROR_PEER:
        return "peer lost";
    case ERROR_PROTOCOL:
        return "protocol";
    case ERROR_DIVERGED:
        return "diverged";
    case ERROR_RESULTS:
        return "results file";
    case STOPPED:
        return "stopped";
    }
    return "unknown";
}

void contract_broken(const char *text, const char *file, int line, const char *function)
{
    log_write(LOG_ERROR,
              "%s:%d: %s: broken contract: %s. This is a bug in gradlag; please report it with the "
              "command line that led here",
              file, line, function, text);
    abort();
}
