/* log.h — log lines on stderr. stdout carries data only. */
#ifndef GRADLAG_BASE_LOG_H
#define GRADLAG_BASE_LOG_H

#include "base/status.h"

enum log_level { LOG_ERROR, LOG_WARNING, LOG_INFO, LOG_DEBUG };
/* ERROR_USAGE: the value of GRADLAG_LOG is not a level. */
status log_check_environment(void) MUST_CHECK;
/* A name printed in front of each line, e.g. "worker 3"; copied. */
void log_set_name(const char *name);
/* Writes one whole line (with newline) with one write(2), so that lines of several processes do
 * not interleave. Control characters are replaced by '?'. Lines above the level of
 * GRADLAG_LOG=error|warning|info|debug (unset: info) are dropped. */
void log_write(enum log_level level, const char *format, ...) PRINTF_LIKE(2, 3);
#define log_error(...)   log_write(LOG_ERROR, __VA_ARGS__)
#define log_warning(...) log_write(LOG_WARNING, __VA_ARGS__)
#define log_info(...)    log_write(LOG_INFO, __VA_ARGS__)
#define log_debug(...)   log_write(LOG_DEBUG, __VA_ARGS__)

#endif
