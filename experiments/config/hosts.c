#include "experiments/config/hosts.h"

#include "base/memory.h"
#include "base/text.h"
#include "sync/communicator/host_networks.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SLOTS_MAX = 4096, LINE_BYTES = 512 };

/* ---- which host is this one ---------------------------------------------------------------------
 */

static bool resolve(const char *name, struct sockaddr_in *out)
{
    const struct addrinfo wanted = {.ai_family = AF_INET, .ai_socktype = SOCK_DGRAM};
    struct addrinfo *found = NULL;
    if (getaddrinfo(name, NULL, &wanted, &found) != 0 || found == NULL)
        return false;
    memcpy(out, found->ai_addr, sizeof *out);
    freeaddrinfo(found);
    return true;
}

static bool is_own_address(const struct sockaddr_in *address)
{
    struct ifaddrs *all = NULL;
    bool found = false;
    if (getifaddrs(&all) != 0)
        return false;
    for (const struct ifaddrs *i = all; i != NULL && !found; i = i->ifa_next) {
        const struct sockaddr_in *own = (const void *)i->ifa_addr;
        found = own != NULL && i->ifa_addr->sa_family == AF_INET &&
                own->sin_addr.s_addr == address->sin_addr.s_addr;
    }
    freeifaddrs(all);
    return found;
}

/* Debian maps a host's own name to 127.0.1.1, which no interface has. */
static bool is_this_host(const char *name)
{
    char own[HOST_NAME_BYTES] = "";
    struct sockaddr_in address;
    (void)gethostname(own, sizeof own - 1);
    const size_t length = strcspn(name, ".");
    const bool is_number = inet_pton(AF_INET, name, &address.sin_addr) == 1;
    if (strcmp(name, "localhost") == 0 || strcmp(name, own) == 0 ||
        (!is_number && strcspn(own, ".") == length && strncmp(name, own, length) == 0 &&
         (name[length] == '\0' || own[length] == '\0')))
        return true;
    return resolve(name, &address) &&
           ((ntohl(address.sin_addr.s_addr) >> 24) == 127 || is_own_address(&address));
}

/* ---- reading ------------------------------------------------------------------------------------
 */

static status add_host(struct hosts *h, const char *name, size_t length, unsigned slots,
                       const char *origin)
{
    status result = OK;
    struct run_host *more = NULL;
    if (length == 0 || length >= HOST_NAME_BYTES)
        FAIL(ERROR_USAGE, "%s: a host has no name, or one longer than %d bytes", origin,
             HOST_NAME_BYTES - 1);
    for (size_t i = 0; i < length; i++)
        if (!isalnum((unsigned char)name[i]) && strchr(".-_", name[i]) == NULL)
            FAIL(ERROR_USAGE,
                 "%s: '%.*s' is not a host's name or IPv4 address; write hosts=a:4,b:4", origin,
                 (int)length, name);
    for (size_t i = 0; i < h->count; i++)
        if (strlen(h->at[i].name) == length && strncasecmp(h->at[i].name, name, length) == 0)
            FAIL(ERROR_USAGE,
                 "%s: host %s is listed twice; list it once, with the sum of its workers", origin,
                 h->at[i].name);
    TRY(memory_new(&more, h->count + 1, sizeof *more, "hosts"));
    if (h->count > 0)
        memcpy(more, h->at, h->count * sizeof *more);
    memory_free(h->at);
    h->at = more;
    more += h->count++;
    memcpy(more->name, name, length);
    more->slots = slots;
    more->is_here = is_this_host(more->name);
    for (size_t i = 0; more->is_here && i + 1 < h->count; i++)
        if (h->at[i].is_here)
            FAIL(ERROR_USAGE,
                 "%s: %s and %s both name this host; list one of them, with the sum of the workers",
                 origin, h->at[i].name, more->name);
done:
    return result;
}

static status read_slots(const char *text, const char *origin, unsigned *out)
{
    status result = OK;
    int64_t number = 0;
    if (!text_to_integer(text, &number) || number < 1 || number > SLOTS_MAX)
        FAIL(ERROR_USAGE, "%s: '%s' is not a number of workers from 1 to %d", origin, text,
             SLOTS_MAX);
    *out = (unsigned)number;
done:
    return result;
}

/* "a:4" or "a". */
static status read_item(struct hosts *h, const char *item, const char *origin)
{
    status result = OK;
    unsigned slots = 1;
    const size_t length = strcspn(item, ":");
    if (item[length] == ':')
        TRY(read_slots(item + length + 1, origin, &slots));
    TRY(add_host(h, item, length, slots, origin));
done:
    return result;
}

static status read_list(struct hosts *h, const char *text)
{
    status result = OK;
    char *copy = text_copy(text), *rest = copy;
    for (char *item = strsep(&rest, ","); item != NULL; item = strsep(&rest, ","))
        TRY(read_item(h, item, "hosts"));
done:
    memory_free(copy);
    return result;
}

/* A line of mpirun's host files: "a", "a:4" or "a slots=4". max_slots= is ignored; any other word
 * is an error. */
static status read_line(struct hosts *h, char *line, const char *origin)
{
    static const char blank[] = " \t\r\n";
    status result = OK;
    unsigned slots = 1;
    char *rest = NULL;
    line[strcspn(line, "#")] = '\0';
    char *name = strtok_r(line, blank, &rest);
    if (name == NULL)
        goto done;
    char *word = strtok_r(NULL, blank, &rest);
    if (word == NULL) {
        TRY(read_item(h, name, origin));
        goto done;
    }
    for (; word != NULL; word = strtok_r(NULL, blank, &rest))
        if (strncmp(word, "slots=", 6) == 0)
            TRY(read_slots(word + 6, origin, &slots));
        else if (strncmp(word, "max_slots=", 10) != 0 && strncmp(word, "max-slots=", 10) != 0)
            FAIL(ERROR_USAGE, "%s: '%s' has no meaning here; write `NAME slots=N`", origin, word);
    TRY(add_host(h, name, strlen(name), slots, origin));
done:
    return result;
}

static status read_file(struct hosts *h, const char *path)
{
    status result = OK;
    char *line = NULL, origin[HOST_NAME_BYTES + 32];
    size_t room = 0;
    FILE *file = fopen(path, "re");
    if (file == NULL)
        FAIL(ERROR_USAGE,
             "hosts=%s: the file cannot be read: %s; correct the path or its permissions", path,
             strerror(errno));
    for (unsigned n = 1; getline(&line, &room, file) >= 0; n++) {
        snprintf(origin, sizeof origin, "%.200s:%u", path, n);
        TRY(read_line(h, line, origin));
    }
    if (h->count == 0)
        FAIL(ERROR_USAGE, "hosts=%s: the file names no host", path);
done:
    free(line);
    if (file != NULL)
        fclose(file);
    return result;
}

/* ---- Slurm --------------------------------------------------------------------------------------
 */

bool hosts_in_allocation(void)
{
    const char *nodes = getenv("SLURM_JOB_NUM_NODES");
    return nodes != NULL && atoi(nodes) > 1;
}

/* Returns the next count of SLURM_TASKS_PER_NODE: "4(x2),3" yields 4, 4, 3. *repeats: how often
 * *count is still to be returned. */
static unsigned next_tasks(const char **at, unsigned *count, unsigned *repeats)
{
    if (*repeats == 0) {
        char *end = NULL;
        *count = (unsigned)strtoul(*at, &end, 10);
        *repeats = 1;
        if (strncmp(end, "(x", 2) == 0) {
            *repeats = (unsigned)strtoul(end + 2, &end, 10);
            end += *end == ')';
        }
        *at = end + (*end == ',');
    }
    *repeats -= *repeats > 0;
    return *count;
}

static status read_slurm(struct hosts *h)
{
    status result = OK;
    const char *tasks = getenv("SLURM_TASKS_PER_NODE");
    char line[LINE_BYTES];
    unsigned count = 0, repeats = 0;
    FILE *names = NULL;
    if (getenv("SLURM_JOB_NODELIST") == NULL || tasks == NULL)
        FAIL(ERROR_USAGE, "hosts=slurm needs a Slurm allocation (sbatch, salloc); the environment "
                          "has no SLURM_JOB_NODELIST or no SLURM_TASKS_PER_NODE");
    /* scontrol expands names such as n[1-4,7]; without arguments it reads SLURM_JOB_NODELIST. */
    names = popen("scontrol show hostnames", "re");
    while (names != NULL && fgets(line, sizeof line, names) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        const unsigned slots = next_tasks(&tasks, &count, &repeats);
        if (slots < 1 || slots > SLOTS_MAX)
            FAIL(ERROR_USAGE, "hosts=slurm: SLURM_TASKS_PER_NODE=%s has no count for node %s",
                 getenv("SLURM_TASKS_PER_NODE"), line);
        TRY(add_host(h, line, strlen(line), slots, "hosts=slurm"));
    }
    const int code = names != NULL ? pclose(names) : -1;
    names = NULL;
    h->are_slurms = true;
    if (code != 0 || h->count == 0)
        FAIL(ERROR_USAGE, "hosts=slurm: `scontrol show hostnames` printed no hosts; is Slurm's "
                          "scontrol on PATH?");
done:
    if (names != NULL)
        pclose(names);
    return result;
}

/* ---- all ----------------------------------------------------------------------------------------
 */

status hosts_read(struct hosts *out, const char *text)
{
    status result = OK;
    struct stat file;
    *out = (struct hosts){0};
    if (text[0] == '\0' || strcmp(text, "localhost") == 0)
        return OK;
    if (strcmp(text, "slurm") == 0)
        TRY(read_slurm(out));
    else if (strchr(text, '/') != NULL || (stat(text, &file) == 0 && S_ISREG(file.st_mode)))
        TRY(read_file(out, text));
    else
        TRY(read_list(out, text));
done:
    if (result != OK)
        hosts_free(out);
    return result;
}

void hosts_free(struct hosts *h)
{
    memory_free(h->at);
    *h = (struct hosts){0};
}

unsigned hosts_slots(const struct hosts *h)
{
    unsigned all = 0;
    for (size_t i = 0; i < h->count; i++)
        all += h->at[i].slots;
    return all;
}

unsigned hosts_workers_of(const struct hosts *h, size_t index, unsigned workers, unsigned *first)
{
    unsigned before = 0;
    for (size_t i = 0; i < index; i++)
        before += h->at[i].slots;
    *first = before;
    const unsigned left = workers > before ? workers - before : 0;
    return left < h->at[index].slots ? left : h->at[index].slots;
}

static status find_route(const struct run_host *host, char out[HOST_ADDRESS_BYTES])
{
    status result = OK;
    struct sockaddr_in to, own;
    socklen_t size = sizeof own;
    int fd = -1;
    if (!resolve(host->name, &to))
        FAIL(ERROR_USAGE,
             "hosts: this host knows no IPv4 address of '%s'; correct the name, or write the "
             "address",
             host->name);
    to.sin_port = htons(9); /* any; connecting a datagram socket sends nothing */
    fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof to) != 0 ||
        getsockname(fd, (struct sockaddr *)&own, &size) != 0 ||
        inet_ntop(AF_INET, &own.sin_addr, out, HOST_ADDRESS_BYTES) == NULL)
        FAIL(ERROR_USAGE, "hosts: there is no route to %s: %s; check its name and the network",
             host->name, strerror(errno));
done:
    if (fd >= 0)
        close(fd);
    return result;
}

status hosts_own_address(const struct run_host *host, const char *chosen,
                         char out[HOST_ADDRESS_BYTES])
{
    char route[HOST_ADDRESS_BYTES] = "";
    status result = find_route(host, route);
    if (chosen[0] == '\0')
        memcpy(out, route, sizeof route);
    else /* mpirun may know a name that this process does not */
        result = host_networks_address(chosen, result == OK ? route : "", out, HOST_ADDRESS_BYTES);
    return result;
}
