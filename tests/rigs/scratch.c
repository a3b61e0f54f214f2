#include "tests/rigs/scratch.h"

#include <stdlib.h>
#include <string.h>

const char *scratch_folder(void)
{
    const char *folder = getenv("TMPDIR");
    return folder != NULL && folder[0] == '/' && strlen(folder) < SCRATCH_BYTES ? folder : "/tmp";
}
