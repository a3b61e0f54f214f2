#include "base/log.h"
#include "experiments/command.h"

#include "ps/net/curve.h"

#include <stdio.h>

const char command_keygen_help[] =
    "gradlag keygen FOLDER\n\n"
    "Creates random keys for a parameter server and its workers, and writes FOLDER/server.key\n"
    "and FOLDER/worker.key. With curve=FOLDER a server encrypts all messages, accepts only\n"
    "workers that have this worker.key, and may listen off loopback. Copy only worker.key to the\n"
    "workers' hosts. See docs/several-hosts.md.\n\n"
    "  gradlag keygen keys\n";

status command_keygen(int argc, char **argv)
{
    status result = OK;
    TRY(command_no_flags_left(argc, argv, "keygen", NULL));
    if (argc != 1)
        FAIL(ERROR_USAGE, "keygen: name one folder, as in `gradlag keygen keys`");
    TRY(curve_make(argv[0]));
    printf("%s/server.key\n%s/worker.key\n", argv[0], argv[0]);
    log_info("start the server with curve=%s and, for example, 'endpoint=tcp://*:5555'; copy "
             "worker.key to the hosts of the workers",
             argv[0]);
done:
    return result;
}
