#include "results/export/protobuf.h"

#include "base/text.h"

#include <string.h>

enum wire { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_LENGTH = 2, WIRE_32 = 5 };

static void add_varint(struct text *message, uint64_t value)
{
    char bytes[10];
    size_t count = 0;
    for (; value >= 0x80; value >>= 7)
        bytes[count++] = (char)(value | 0x80);
    bytes[count++] = (char)value;
    text_add_bytes(message, bytes, count);
}

static void add_tag(struct text *message, unsigned field, enum wire wire)
{
    add_varint(message, (uint64_t)field << 3 | (uint64_t)wire);
}

static void add_little_endian(struct text *message, uint64_t value, size_t bytes)
{
    char out[8];
    for (size_t i = 0; i < bytes; i++)
        out[i] = (char)(value >> (8 * i));
    text_add_bytes(message, out, bytes);
}

static void add_double(struct text *message, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    add_little_endian(message, bits, 8);
}

void protobuf_add_integer(struct text *message, unsigned field, uint64_t value)
{
    add_tag(message, field, WIRE_VARINT);
    add_varint(message, value);
}

void protobuf_add_double(struct text *message, unsigned field, double value)
{
    add_tag(message, field, WIRE_64);
    add_double(message, value);
}

void protobuf_add_float(struct text *message, unsigned field, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    add_tag(message, field, WIRE_32);
    add_little_endian(message, bits, 4);
}

static void add_run(struct text *message, unsigned field, const char *bytes, size_t length)
{
    add_tag(message, field, WIRE_LENGTH);
    add_varint(message, length);
    text_add_bytes(message, bytes, length);
}

void protobuf_add_text(struct text *message, unsigned field, const char *value)
{
    add_run(message, field, value, strlen(value));
}

void protobuf_add_bytes(struct text *message, unsigned field, const struct text *value)
{
    add_run(message, field, value->at, value->length);
}

void protobuf_add_doubles(struct text *message, unsigned field, const double *values, size_t count)
{
    add_tag(message, field, WIRE_LENGTH);
    add_varint(message, 8 * count);
    for (size_t i = 0; i < count; i++)
        add_double(message, values[i]);
}
