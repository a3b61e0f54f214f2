/* text.h — a growing text buffer for JSON, query output and messages; numbers from text. */
#ifndef GRADLAG_BASE_TEXT_H
#define GRADLAG_BASE_TEXT_H

#include "base/status.h"

#include <stdio.h>

struct text {
    char *at; /* NUL-terminated, or NULL while empty */
    size_t length, capacity;
};
void text_add(struct text *t, const char *format, ...) PRINTF_LIKE(2, 3);
void text_add_integer(struct text *t, int64_t value);
/* Adds the shortest decimal that reads back as the same finite number. */
void text_add_real(struct text *t, double value);
void text_add_bytes(struct text *t, const char *bytes, size_t length);
/* Adds the rest of the file. ERROR_DATA: a read failed; the message is the system's. */
status text_add_file(struct text *t, FILE *file) MUST_CHECK;
/* The first line of a file, without newline, cut to `room` − 1 bytes; "" if there is no such file.
 */
void text_first_line(const char *path, char *out, size_t room);
/* Bytes of the UTF-8 character at `at`, which is not the end; 0: not UTF-8, or U+FFFE or U+FFFF,
 * which XML excludes. */
size_t text_utf8_length(const char *at);
/* Adds a JSON string literal with quotes and escapes; NULL becomes null. Bytes that are not UTF-8
 * become U+FFFD. */
void text_add_json(struct text *t, const char *value);
void text_free(struct text *t);
/* A copy of s owned by the caller (memory_free). */
char *text_copy(const char *s);
/* True if the whole text is an integer, or a finite real number. */
bool text_to_integer(const char *text, int64_t *out);
bool text_to_real(const char *text, double *out);

#endif
