#include "experiments/run/status_pipe.h"

#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

_Static_assert(sizeof(struct status_message) <= PIPE_BUF,
               "a message is written completely or not at all");

const char *role_name(enum role role)
{
    static const char *const names[] = {"server", "worker", "rank"};
    return names[role];
}

/* Slurm gives the variables to processes on other hosts, too. */
static bool is_of_this_host(void)
{
    char own[256] = "";
    const char *host = getenv(STATUS_PIPE_HOST);
    (void)gethostname(own, sizeof own - 1);
    return host == NULL || strcmp(host, own) == 0;
}

bool status_pipe_exists(void)
{
    const char *path = getenv(STATUS_PIPE_VARIABLE);
    return path != NULL && path[0] != '\0' && is_of_this_host();
}

static int open_for_writing(void)
{
    static int fd = -1;
    if (fd < 0 && status_pipe_exists())
        fd = open(getenv(STATUS_PIPE_VARIABLE), O_WRONLY | O_NONBLOCK | O_CLOEXEC);
    return fd;
}

bool status_pipe_has_reader(void)
{
    return open_for_writing() >= 0; /* a FIFO without a reader cannot be opened for writing */
}

/* Progress may fill only half of the pipe, so that STATUS_ENDED fits although a suspended starter
 * (Ctrl-Z) reads nothing. A message may occupy a whole page. */
static bool has_room_for_progress(int fd)
{
    int waiting = 0;
    return ioctl(fd, FIONREAD, &waiting) != 0 || (size_t)waiting / sizeof(struct status_message) <=
                                                     (size_t)fcntl(fd, F_GETPIPE_SZ) / PIPE_BUF / 2;
}

void status_pipe_send(const struct status_message *m)
{
    int fd = open_for_writing();
    if (fd >= 0 && m->kind == STATUS_PROGRESS && !has_room_for_progress(fd))
        return;
    uint64_t until = clock_ns() + 5000000000u;
    while (fd >= 0) {
        if (write(fd, m, sizeof *m) == (ssize_t)sizeof *m)
            return;
        if (errno != EINTR && (errno != EAGAIN || m->kind == STATUS_PROGRESS))
            return; /* the reader is gone */
        if (clock_ns() > until)
            return;
        struct pollfd room = {.fd = fd, .events = POLLOUT};
        poll(&room, 1, 100);
    }
}

static void end_path(const char *pipe_path, unsigned index, char out[160])
{
    snprintf(out, 160, "%s.%u-ended", pipe_path, index);
}

bool status_pipe_worker_ended(unsigned index)
{
    char path[160];
    end_path(getenv(STATUS_PIPE_VARIABLE), index, path);
    return access(path, F_OK) == 0;
}

static void gate_path(const char *pipe_path, char out[160])
{
    snprintf(out, 160, "%s.gate", pipe_path);
}

/* The gate is a FIFO: its end of file tells all readers at once, also when the starter dies. A
 * process that starts later finds no FIFO and does not wait. */
bool status_pipe_await_gate(unsigned limit_s, const volatile sig_atomic_t *stop)
{
    enum { CHECK_STOP_MS = 100 };
    if (!status_pipe_exists())
        return true;
    char path[160];
    gate_path(getenv(STATUS_PIPE_VARIABLE), path);
    const int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    const uint64_t until = clock_ns() + limit_s * UINT64_C(1000000000);
    struct pollfd end = {.fd = fd};
    while (fd >= 0 && !*stop && poll(&end, 1, CHECK_STOP_MS) <= 0 && clock_ns() < until)
        continue;
    if (fd >= 0)
        close(fd);
    return fd < 0 || *stop || end.revents != 0;
}

void status_pipe_open_gate(struct status_pipe *m)
{
    char path[160];
    if (m->gate < 0)
        return;
    gate_path(m->path, path);
    unlink(path); /* first, so that a process that opens the FIFO finds a writer */
    close(m->gate);
    m->gate = -1;
}

void status_pipe_forget_end(const struct status_pipe *m, unsigned index)
{
    char path[160];
    end_path(m->path, index, path);
    unlink(path);
}

void status_pipe_note_end(const struct status_pipe *m, unsigned index)
{
    char path[160];
    end_path(m->path, index, path);
    const int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (fd >= 0) /* else the server waits for its usual limit */
        close(fd);
}

status status_pipe_open(struct status_pipe *m, const char *folder)
{
    status result = OK;
    char gate[160];
    m->fd = m->gate = -1;
    snprintf(m->path, sizeof m->path, "%s/status-pipe", folder);
    if (mkfifo(m->path, 0600) != 0)
        FAIL(ERROR_OTHER, "the FIFO %s cannot be created: %s; check that the disk is not full",
             m->path, strerror(errno));
    /* Open for reading and writing: with a writer always present, read() never returns end of file.
     */
    m->fd = open(m->path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
    if (m->fd < 0)
        FAIL(ERROR_OTHER, "the FIFO %s cannot be opened: %s", m->path, strerror(errno));
    gate_path(m->path, gate);
    if (mkfifo(gate, 0600) != 0 || (m->gate = open(gate, O_RDWR | O_NONBLOCK | O_CLOEXEC)) < 0)
        FAIL(ERROR_OTHER, "the FIFO %s cannot be made: %s", gate, strerror(errno));
done:
    return result;
}

void status_pipe_close(struct status_pipe *m)
{
    if (m->path[0] != '\0') {
        status_pipe_open_gate(m);
        close(m->fd);
        unlink(m->path);
        m->path[0] = '\0';
    }
}

bool status_pipe_receive(struct status_pipe *m, struct status_message *out)
{
    ssize_t got = read(m->fd, out, sizeof *out);
    if (got != (ssize_t)sizeof *out)
        return false;
    out->text[sizeof out->text - 1] = '\0';
    return out->kind <= STATUS_ENDED && out->role <= ROLE_RANK;
}
