/*
 * protobuf.h — encodes fields in the wire format of Protocol Buffers. Each function appends a field
 * to a message. https://protobuf.dev/programming-guides/encoding
 */
#ifndef GRADLAG_RESULTS_EXPORT_PROTOBUF_H
#define GRADLAG_RESULTS_EXPORT_PROTOBUF_H

#include "base/text.h"

void protobuf_add_integer(struct text *message, unsigned field, uint64_t value); /* and enums */
void protobuf_add_double(struct text *message, unsigned field, double value);
void protobuf_add_float(struct text *message, unsigned field, float value);
void protobuf_add_text(struct text *message, unsigned field, const char *value);
/* A nested message, or bytes. */
void protobuf_add_bytes(struct text *message, unsigned field, const struct text *value);
/* A packed `repeated double`. */
void protobuf_add_doubles(struct text *message, unsigned field, const double *values, size_t count);

#endif
