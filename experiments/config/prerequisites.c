#include "experiments/config/prerequisites.h"

#include "worker/backend.h"
#include "worker/data/dataset.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

static bool is_read(const options *o, const char *key)
{
    if (!options_declared(o, key))
        return false;
    const char *path = options_text(o, key);
    return path[0] != '\0' &&
           strpbrk(path, "*?[") == NULL; /* not a pattern, as for cifar10's shards */
}

status prerequisites_check(const options *o)
{
    static const char *const keys[] = {"dataset.path", "initial", "pace.path"};
    status result = OK;
    for (size_t i = 0; i < COUNT_OF(keys); i++) {
        if (is_read(o, keys[i]) && access(options_text(o, keys[i]), R_OK) != 0) {
            FAIL(ERROR_DATA,
                 "%s=%s: %s; correct the path (a relative path starts from the current folder)",
                 keys[i], options_text(o, keys[i]), strerror(errno));
        }
    }
    TRY(dataset_check_installed(o));
    TRY(backend_check(o));
done:
    return result;
}
