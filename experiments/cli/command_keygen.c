#include "base/log.h"
#include "experiments/command.h"

#include "ps/net/curve.h"

#include <stdio.h>

const char command_keygen_help[] =
    "gradlag keygen FOLDER\n\n"
    "Draws keys for a parameter server and its workers, and writes FOLDER/server.key and\n"
    "FOLDER/worker.key. A server that is given curve=FOLDER talks to nobody but workers with that\n"
    "worker.key, in encrypted messages, and may then listen off loopback. Workers' hosts need a\n"
    "folder with worker.key alone. See docs/several-hosts.md.\n";

status command_keygen(int argc, char **argv)
{
    status result = OK;
    TRY(command_no_flags_left(argc, argv, "keygen", "a folder's name"));
    if (argc != 1)
        FAIL(ERROR_USAGE, "keygen takes one folder, as in `gradlag keygen keys`");
    TRY(curve_make(argv[0]));
    printf("%s/server.key\n%s/worker.key\n", argv[0], argv[0]);
    log_info("start the server with curve=%s and, say, 'endpoint=tcp://*:5555'; copy worker.key to "
             "the workers' hosts",
             argv[0]);
done:
    return result;
}
