#include "sync/communicator/host_networks.h"

#include "base/memory.h"
#include "base/text.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <dirent.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { ADDRESS_TEXT = INET6_ADDRSTRLEN };

/* ---- the interfaces of this host ---------------------------------------------------------------
 */

/* Writes the address of an interface that is up and not loopback; false: another interface. */
static bool is_external(const struct ifaddrs *i, char address[ADDRESS_TEXT])
{
    if (i->ifa_addr == NULL || (i->ifa_flags & IFF_UP) == 0 || (i->ifa_flags & IFF_LOOPBACK) != 0)
        return false;
    if (i->ifa_addr->sa_family == AF_INET) {
        const struct sockaddr_in *v4 = (const void *)i->ifa_addr;
        return inet_ntop(AF_INET, &v4->sin_addr, address, ADDRESS_TEXT) != NULL;
    }
    if (i->ifa_addr->sa_family == AF_INET6) {
        const struct sockaddr_in6 *v6 = (const void *)i->ifa_addr;
        return !IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr) &&
               inet_ntop(AF_INET6, &v6->sin6_addr, address, ADDRESS_TEXT) != NULL;
    }
    return false;
}

void host_networks_add_interfaces(struct text *out)
{
    char address[ADDRESS_TEXT];
    bool any = false;
    struct ifaddrs *all = NULL;
    if (getifaddrs(&all) != 0)
        all = NULL;
    for (const struct ifaddrs *i = all; i != NULL; i = i->ifa_next) {
        if (is_external(i, address)) {
            text_add(out, "%s%s %s", any ? ", " : "", i->ifa_name, address);
            any = true;
        }
    }
    if (!any)
        text_add(out, "none");
    freeifaddrs(all);
}

double host_networks_nominal_gbps(void)
{
    char address[ADDRESS_TEXT], path[64];
    double most = 0;
    struct ifaddrs *all = NULL;
    if (getifaddrs(&all) != 0)
        return 0;
    for (const struct ifaddrs *i = all; i != NULL; i = i->ifa_next) {
        double megabits = 0;
        snprintf(path, sizeof path, "/sys/class/net/%s/speed", i->ifa_name);
        FILE *file = is_external(i, address) ? fopen(path, "r") : NULL;
        if (file != NULL && fscanf(file, "%lf", &megabits) == 1 && megabits > most)
            most = megabits;
        if (file != NULL)
            fclose(file);
    }
    freeifaddrs(all);
    return most * 1e-3;
}

/* ---- which of them Open MPI may use ------------------------------------------------------------
 */

struct subnet {
    uint32_t base, mask; /* in network byte order */
};

static bool read_subnet(const char *text, struct subnet *out)
{
    char base[ADDRESS_TEXT] = "";
    struct in_addr address;
    const char *slash = strchr(text, '/');
    const long bits = strtol(slash + 1, NULL, 10);
    snprintf(base, sizeof base, "%.*s", (int)(slash - text), text);
    if (inet_pton(AF_INET, base, &address) != 1 || bits < 1 || bits > 32)
        return false;
    *out = (struct subnet){address.s_addr, htonl(UINT32_MAX << (32 - bits))};
    return true;
}

/* Finds the first IPv4 address of this host on interface "eth0" or in subnet "10.0.0.0/8".
 * `wanted`: only this address counts; NULL: any. */
static bool find_address(const char *item, const struct in_addr *wanted, struct in_addr *out)
{
    struct subnet subnet = {0};
    struct ifaddrs *all = NULL;
    bool found = false;
    const bool is_name = strchr(item, '/') == NULL;
    if ((!is_name && !read_subnet(item, &subnet)) || getifaddrs(&all) != 0)
        return false;
    for (const struct ifaddrs *i = all; i != NULL && !found; i = i->ifa_next) {
        if (i->ifa_addr == NULL || i->ifa_addr->sa_family != AF_INET)
            continue;
        const struct sockaddr_in *v4 = (const void *)i->ifa_addr;
        found = is_name ? strcmp(i->ifa_name, item) == 0
                        : ((v4->sin_addr.s_addr ^ subnet.base) & subnet.mask) == 0;
        found = found && (wanted == NULL || v4->sin_addr.s_addr == wanted->s_addr);
        *out = v4->sin_addr;
    }
    freeifaddrs(all);
    return found;
}

static status check_one(const char *item)
{
    status result = OK;
    struct text here = {0};
    char host[64] = "";
    struct in_addr address;
    if (strchr(item, '/') != NULL ? find_address(item, NULL, &address) : if_nametoindex(item) != 0)
        return OK;
    host_networks_add_interfaces(&here);
    (void)gethostname(host, sizeof host - 1);
    FAIL(ERROR_USAGE,
         "network.interface=%s: %s has no such interface or subnet; it has %s. Set names (eth0) or "
         "IPv4 subnets (10.0.0.0/8), separated by commas; use a subnet if the interfaces of the "
         "hosts have different names",
         item, host, here.at);
done:
    text_free(&here);
    return result;
}

status host_networks_address(const char *chosen, const char *wanted, char *out, size_t room)
{
    status result = OK;
    struct in_addr first, route, address;
    const bool has_route = inet_pton(AF_INET, wanted, &route) == 1;
    bool found = false, found_route = false;
    char *copy = text_copy(chosen), *rest = NULL;
    for (char *item = strtok_r(copy, ",", &rest); item != NULL; item = strtok_r(NULL, ",", &rest)) {
        TRY(check_one(item));
        if (!found && find_address(item, NULL, &first))
            found = true;
        if (has_route && find_address(item, &route, &address))
            found_route = true;
    }
    if (found && inet_ntop(AF_INET, found_route ? &route : &first, out, (socklen_t)room) != NULL)
        goto done;
    FAIL(ERROR_USAGE, "network.interface=%s: it has no IPv4 address on this host", chosen);
done:
    memory_free(copy);
    return result;
}

static status use_only(const char *chosen)
{
    status result = OK;
    char *copy = text_copy(chosen), *rest = NULL;
    for (char *item = strtok_r(copy, ",", &rest); item != NULL; item = strtok_r(NULL, ",", &rest))
        TRY(check_one(item));
    unsetenv("OMPI_MCA_btl_tcp_if_exclude"); /* Open MPI refuses both */
    setenv("OMPI_MCA_btl_tcp_if_include", chosen, 1);
    if (strchr(chosen, '/') == NULL)
        setenv("NCCL_SOCKET_IFNAME", chosen, 1);
done:
    memory_free(copy);
    return result;
}

/* Names that Docker, libvirt, LXC, CNI and Podman give to their bridges. */
static bool is_virtual_bridge(const char *name)
{
    static const char *const prefixes[] = {"docker", "virbr", "lxcbr", "lxdbr", "cni", "podman"};
    for (size_t i = 0; i < COUNT_OF(prefixes); i++)
        if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0)
            return true;
    return strncmp(name, "br-", 3) == 0 && strlen(name) == 15 && isxdigit((unsigned char)name[3]);
}

/* Two hosts with the same address on such a bridge would each connect to themselves. */
static void exclude_virtual_bridges(void)
{
    char address[ADDRESS_TEXT];
    struct text without = {0};
    bool any = false, others = false;
    struct ifaddrs *all = NULL;
    if (getifaddrs(&all) != 0)
        return;
    text_add(&without, "127.0.0.1/8,sppp"); /* Open MPI's own default */
    for (const struct ifaddrs *i = all; i != NULL; i = i->ifa_next) {
        if (!is_external(i, address))
            continue;
        if (is_virtual_bridge(i->ifa_name)) {
            text_add(&without, ",%s", i->ifa_name);
            any = true;
        } else {
            others = true;
        }
    }
    if (any && others)
        setenv("OMPI_MCA_btl_tcp_if_exclude", without.at, 1);
    text_free(&without);
    freeifaddrs(all);
}

status host_networks_choose(const char *chosen)
{
    if (chosen != NULL && chosen[0] != '\0')
        return use_only(chosen);
    if (getenv("OMPI_MCA_btl_tcp_if_include") == NULL &&
        getenv("OMPI_MCA_btl_tcp_if_exclude") == NULL)
        exclude_virtual_bridges();
    return OK;
}

/* ---- which of them Open MPI uses ---------------------------------------------------------------
 */

/* Writes both addresses of a TCP connection; false: the descriptor is no connection. */
static bool connection(int fd, struct sockaddr_storage *own, struct sockaddr_storage *peer)
{
    socklen_t own_size = sizeof *own, peer_size = sizeof *peer;
    int type = 0;
    socklen_t size = sizeof type;
    return getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_STREAM &&
           getsockname(fd, (struct sockaddr *)own, &own_size) == 0 &&
           getpeername(fd, (struct sockaddr *)peer, &peer_size) == 0;
}

/* The name of the interface that has this address; NULL: none. */
static const char *interface_of(const struct ifaddrs *all, const struct sockaddr_storage *address)
{
    for (const struct ifaddrs *i = all; i != NULL; i = i->ifa_next) {
        if (i->ifa_addr == NULL || i->ifa_addr->sa_family != address->ss_family ||
            (i->ifa_flags & IFF_LOOPBACK) != 0)
            continue;
        const struct sockaddr_in *v4 = (const void *)i->ifa_addr, *its4 = (const void *)address;
        const struct sockaddr_in6 *v6 = (const void *)i->ifa_addr, *its6 = (const void *)address;
        if (address->ss_family == AF_INET
                ? v4->sin_addr.s_addr == its4->sin_addr.s_addr
                : memcmp(&v6->sin6_addr, &its6->sin6_addr, sizeof v6->sin6_addr) == 0)
            return i->ifa_name;
    }
    return NULL;
}

/* Checks every open descriptor, because Open MPI does not report its connections. */
bool host_networks_add_used(struct text *out)
{
    char named[8][IF_NAMESIZE];
    size_t count = 0;
    struct ifaddrs *all = NULL;
    DIR *open_files = opendir("/proc/self/fd");
    struct dirent *entry;
    if (getifaddrs(&all) != 0)
        all = NULL;
    while (open_files != NULL && (entry = readdir(open_files)) != NULL) {
        struct sockaddr_storage own, peer;
        char address[ADDRESS_TEXT] = "";
        if (!connection(atoi(entry->d_name), &own, &peer) ||
            (own.ss_family != AF_INET && own.ss_family != AF_INET6))
            continue;
        const char *name = interface_of(all, &own);
        bool known = name == NULL;
        for (size_t i = 0; i < count && !known; i++)
            known = strcmp(named[i], name) == 0;
        if (known || count == COUNT_OF(named))
            continue;
        snprintf(named[count++], IF_NAMESIZE, "%s", name);
        const void *bytes = own.ss_family == AF_INET
                                ? (const void *)&((const struct sockaddr_in *)&own)->sin_addr
                                : (const void *)&((const struct sockaddr_in6 *)&own)->sin6_addr;
        (void)inet_ntop(own.ss_family, bytes, address, sizeof address);
        text_add(out, "%s%s (%s)", count == 1 ? "tcp " : ", ", name, address);
    }
    if (open_files != NULL)
        closedir(open_files);
    freeifaddrs(all);
    return count > 0;
}
