/* Reads a trace of step times (pace.path). */
#include "tests/fuzz/fuzz.h"
#include "worker/pace/pace_table.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct pace_table t = {0};
    status code = pace_table_read(&t, fuzz_file(data, size));
    REQUIRE(code == OK || code == ERROR_DATA);
    for (unsigned w = 0; code == OK && w < 8; w++) {
        size_t count = 0;
        const struct pace_row *rows = pace_table_of(&t, w, &count);
        REQUIRE(count > 0 && rows[0].worker == rows[count - 1].worker);
    }
    pace_table_free(&t);
    return 0;
}
