/* Reads a safetensors file and looks up tensors and notes that the seeds contain. */
#include "base/memory.h"
#include "tests/fuzz/fuzz.h"
#include "worker/checkpoint.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    float matrix[6], vector[3], one[1];
    const struct checkpoint_tensor all[] = {
        {.name = "matrix", .rank = 2, .shape = {2, 3}, .data = matrix},
        {.name = "vector", .rank = 1, .shape = {3}, .data = vector},
        {.name = "scalar", .rank = 0, .data = one},
    };
    struct checkpoint_note notes[] = {{.key = "model"}, {.key = "updates"}};
    const char *path = fuzz_file(data, size);
    for (size_t count = 0; count <= COUNT_OF(all); count++) {
        status code = checkpoint_read(path, all, count, notes, COUNT_OF(notes));
        REQUIRE(code == OK || code == ERROR_DATA || code == ERROR_OTHER);
        for (size_t i = 0; i < COUNT_OF(notes); i++) {
            REQUIRE(code == OK || notes[i].value == NULL);
            memory_free((void *)notes[i].value);
        }
        if (code != OK)
            break;
    }
    return 0;
}
