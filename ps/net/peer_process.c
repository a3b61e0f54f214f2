/* peer_process.c — see peer_process.h. */
#include "ps/net/peer_process.h"

#include "ps/net/payload.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

int peer_process_watch(const uint8_t host[WIRE_HOST_BYTES], uint32_t pid)
{
    uint8_t here[WIRE_HOST_BYTES];
    payload_host(here);
    if (!payload_same_host(here, host) || pid == 0 || pid > INT32_MAX)
        return -1;
    return (int)syscall(SYS_pidfd_open, (pid_t)pid, 0);
}

bool peer_process_has_ended(int watch)
{
    struct pollfd process = {.fd = watch, .events = POLLIN};
    return watch >= 0 && poll(&process, 1, 0) > 0;
}

void peer_process_forget(int *watch)
{
    if (*watch >= 0)
        close(*watch);
    *watch = -1;
}
