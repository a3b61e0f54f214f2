/* Decodes a frame. If it decodes, encoding must give the same frame, except for texts, which are
 * cleaned. */
#include "ps/net/wire.h"
#include "tests/fuzz/fuzz.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct wire_message m, again;
    uint8_t bytes[WIRE_MAX_BYTES];
    if (wire_decode(&m, data, size) != OK)
        return 0;
    size_t length = wire_encode(&m, bytes);
    REQUIRE(length == size);
    REQUIRE(wire_decode(&again, bytes, length) == OK);
    bool text = m.type == WIRE_END || m.type == WIRE_GOODBYE || m.type == WIRE_REFUSED ||
                m.type == WIRE_FAILED;
    if (m.type == WIRE_LOST) {
        REQUIRE(strlen(m.lost.text) < WIRE_TEXT_BYTES);
    } else if (m.type == WIRE_NOTE) {
        REQUIRE(strlen(m.note.code) < WIRE_CODE_BYTES && strlen(m.note.text) < WIRE_TEXT_BYTES);
    } else if (text) {
        REQUIRE(strlen(m.text.text) < WIRE_TEXT_BYTES);
        REQUIRE(strcmp(m.text.text, again.text.text) == 0);
    } else {
        REQUIRE(memcmp(bytes, data, size) == 0);
    }
    return 0;
}
