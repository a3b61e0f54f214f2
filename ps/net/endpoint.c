/* endpoint.c — see endpoint.h. */
#include "ps/net/endpoint.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>

static bool has_prefix(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

static bool has_port(const char *endpoint)
{
    const char *port = strrchr(endpoint + strlen("tcp:"), ':');
    if (port == NULL)
        return false;
    port++;
    char *end;
    if (strcmp(port, "*") == 0)
        return true;
    unsigned long number = strtoul(port, &end, 10);
    return *port >= '0' && *port <= '9' && *end == '\0' && number >= 1 && number <= 65535;
}

/* "127.x.x.x:PORT" or "[::1]:PORT". Names are not resolved: they could resolve to any address. */
static bool is_loopback(const char *address)
{
    char host[INET_ADDRSTRLEN];
    struct in_addr number;
    if (has_prefix(address, "[::1]:"))
        return strpbrk(address + 6, ":;") == NULL;
    size_t length = strcspn(address, ":");
    if (length >= sizeof host)
        return false;
    memcpy(host, address, length);
    host[length] = '\0';
    return inet_pton(AF_INET, host, &number) == 1 && ntohl(number.s_addr) >> 24 == 127;
}

/* Whether HOST in "HOST:PORT" is not empty. */
static bool has_host(const char *address)
{
    return address[0] != ':' && address[0] != '\0' && strpbrk(address, "/; ") == NULL;
}

status endpoint_check(const char *endpoint, bool anywhere)
{
    status result = OK;
    if (has_prefix(endpoint, "ipc://")) {
        const size_t longest = sizeof((struct sockaddr_un *)NULL)->sun_path - 1;
        if (strlen(endpoint + 6) > longest)
            FAIL(ERROR_USAGE,
                 "endpoint %s: the path of a socket may have at most %zu bytes, this one has %zu: "
                 "choose a shorter path, for example in /tmp",
                 endpoint, longest, strlen(endpoint + 6));
        if (endpoint[6] == '\0')
            FAIL(ERROR_USAGE, "endpoint %s has no path: use for example ipc:///tmp/gradlag.sock",
                 endpoint);
    } else if (has_prefix(endpoint, "tcp://")) {
        if (!anywhere && !is_loopback(endpoint + 6))
            FAIL(ERROR_USAGE,
                 "endpoint %s is not on loopback. Without keys only ipc://, tcp://127.x.x.x:PORT "
                 "and tcp://[::1]:PORT are allowed. Create keys with `gradlag keygen FOLDER` and "
                 "set curve=FOLDER, or, on a private network, set trusted_network=yes",
                 endpoint);
        if (!has_host(endpoint + 6))
            FAIL(ERROR_USAGE, "endpoint %s has no host: write tcp://ADDRESS:PORT", endpoint);
        if (!has_port(endpoint))
            FAIL(ERROR_USAGE, "endpoint %s: the port must be 1 to 65535, or * for a free one",
                 endpoint);
        if (strlen(endpoint) >= ENDPOINT_BYTES)
            FAIL(ERROR_USAGE, "endpoint %s is longer than %d bytes", endpoint, ENDPOINT_BYTES - 1);
    } else {
        FAIL(ERROR_USAGE, "endpoint '%s' is neither ipc://PATH nor tcp://ADDRESS:PORT", endpoint);
    }
done:
    return result;
}
