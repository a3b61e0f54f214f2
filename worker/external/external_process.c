/* external_process.c — see external_process.h. */
#include "worker/external/external_process.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    SOCKET_FD = 3, /* in the program */
    PATIENCE = 20, /* as LIVENESS_FACTOR and COMMUNICATOR_PATIENCE */
    END_MS = 2000,
    TAIL_BYTES = 1024,
    ANSWER_BYTES = 64 << 20, /* the longest answer that is read */
    MOST_FILES = 1 << 20,    /* descriptors to close at most; a system may allow 2³⁰ */
};

struct external_process {
    char *command;
    pid_t pid;    /* the leader of its process group; 0: it has ended */
    char end[64]; /* how it ended */
    int socket, output;
    uint64_t limit_ns, longest_ns;
    const volatile sig_atomic_t *stop; /* NULL: nothing sets it */
    uint64_t stop_ns;                  /* when a wait first saw *stop; 0: not yet */
    struct text received;              /* the answer, as far as received */
    char tail[TAIL_BYTES];             /* the end of the program's output, NUL-terminated */
    size_t tail_length;
};

/* ---- the process ---- */

/* Called only after setpgid(): this group contains only the program. */
static void end_group(int signal_number)
{
    (void)signal_number;
    kill(0, SIGKILL);
}

/* Starts the shell and waits for it as the leader of the process group. If gradlag ends, even by
 * SIGKILL, the leader gets SIGTERM and kills the group (end_group). A death signal for the shell
 * alone would miss the processes that the shell started. */
static void lead_program(const char *command)
{
    const pid_t shell = fork();
    pid_t ended = -1;
    int how = 0;
    if (shell == 0) {
        prctl(PR_SET_PDEATHSIG, 0);
        signal(SIGTERM, SIG_DFL);
        execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        _exit(126);
    }
    close(SOCKET_FD); /* so that gradlag reads end of file when the program ends */
    while (shell > 0 && (ended = waitpid(shell, &how, 0)) < 0 && errno == EINTR)
        continue;
    if (ended < 0)
        _exit(126);
    _exit(WIFSIGNALED(how) ? 128 + WTERMSIG(how) : WEXITSTATUS(how));
}

/* After fork(): only calls that are safe in a copy of a process with threads. */
static void become_leader(const char *command, int socket, int output, pid_t parent)
{
    const int null = open("/dev/null", O_RDONLY);
    /* Moves both descriptors above SOCKET_FD, so that dup2() does not overwrite them. */
    socket = fcntl(socket, F_DUPFD, SOCKET_FD + 1);
    output = fcntl(output, F_DUPFD, SOCKET_FD + 1);
    if (null < 0 || socket < 0 || output < 0 || dup2(null, 0) < 0 || dup2(output, 1) < 0 ||
        dup2(output, 2) < 0 || dup2(socket, SOCKET_FD) < 0)
        _exit(126);
    if (syscall(SYS_close_range, SOCKET_FD + 1, ~0U, 0) != 0) { /* before Linux 5.9 */
        const long most = sysconf(_SC_OPEN_MAX);
        for (int fd = SOCKET_FD + 1; fd < MOST_FILES && (most < 0 || fd < most); fd++)
            close(fd);
    }
    setpgid(0, 0);
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, end_group);
    signal(SIGHUP, SIG_DFL);
    signal(SIGPIPE, SIG_DFL);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent)
        _exit(126);
    lead_program(command);
}

static status start(external_process *p)
{
    status result = OK;
    int sockets[2] = {-1, -1}, output[2] = {-1, -1};
    const pid_t parent = getpid();
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0 ||
        pipe2(output, O_CLOEXEC) != 0)
        FAIL(ERROR_OTHER, "cannot start model.command: %s", strerror(errno));
    p->pid = fork();
    if (p->pid < 0) {
        p->pid = 0;
        FAIL(ERROR_OTHER, "cannot start model.command: %s", strerror(errno));
    }
    if (p->pid == 0)
        become_leader(p->command, sockets[1], output[1], parent);
    setpgid(p->pid, p->pid);
    p->socket = sockets[0];
    p->output = output[0];
    sockets[0] = output[0] = -1;
    fcntl(p->output, F_SETFL, O_NONBLOCK);
done:
    for (int i = 0; i < 2; i++) {
        if (sockets[i] >= 0)
            close(sockets[i]);
        if (output[i] >= 0)
            close(output[i]);
    }
    return result;
}

/* Sets variables of this process, because setenv() is not safe between fork() and exec(). Without
 * them, matrix libraries would start one thread for each core in each worker. */
static void set_environment(unsigned threads)
{
    static const char *const counts[] = {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS",
                                         "MKL_NUM_THREADS"};
    char text[16];
    snprintf(text, sizeof text, "%u", threads);
    for (size_t i = 0; i < COUNT_OF(counts); i++)
        setenv(counts[i], text, 0);
    setenv("PYTHONUNBUFFERED", "1", 0); /* a killed Python program loses buffered output */
    setenv("GRADLAG_SOCKET_FD", "3", 1);
}

status external_process_start(external_process **out, const char *command, unsigned threads,
                              double timeout_s, const volatile sig_atomic_t *stop)
{
    status result = OK;
    external_process *p = NULL;
    *out = NULL;
    TRY(memory_new(&p, 1, sizeof *p, "an external model"));
    p->socket = p->output = -1;
    p->command = text_copy(command);
    p->limit_ns = (uint64_t)(timeout_s * 1e9);
    p->stop = stop;
    set_environment(threads);
    TRY(start(p));
    *out = p;
    p = NULL;
done:
    external_process_end(&p);
    return result;
}

/* ---- its output ---- */

static void keep_output(external_process *p, const char *bytes, size_t length)
{
    if (length >= TAIL_BYTES) {
        bytes += length - (TAIL_BYTES - 1);
        length = TAIL_BYTES - 1;
    }
    if (p->tail_length + length >= TAIL_BYTES) {
        const size_t drop = p->tail_length + length - (TAIL_BYTES - 1);
        memmove(p->tail, p->tail + drop, p->tail_length - drop);
        p->tail_length -= drop;
    }
    memcpy(p->tail + p->tail_length, bytes, length);
    p->tail_length += length;
    p->tail[p->tail_length] = '\0';
}

/* Reads the available output, but at most twice the capacity of a pipe, because a program may write
 * faster than gradlag logs. */
static void read_output(external_process *p)
{
    char bytes[2048]; /* fits into a line of the log */
    ssize_t length;
    for (int most = 64; most > 0 && p->output >= 0; most--) {
        length = read(p->output, bytes, sizeof bytes);
        if (length == -1)
            return;
        if (length == 0) {
            close(p->output);
            p->output = -1;
            return;
        }
        for (char *nul = bytes; (nul = memchr(nul, '\0', (size_t)(bytes + length - nul))) != NULL;)
            *nul = ' '; /* it would end the text */
        keep_output(p, bytes, (size_t)length);
        log_debug("model.command: %.*s", (int)length, bytes);
    }
}

/* ---- its end ---- */

/* Waits at most `ms` for the end of the program. True: it has ended. Reads output meanwhile, so
 * that a full pipe does not block the program. */
static bool has_ended(external_process *p, unsigned ms, int *how)
{
    for (const uint64_t until = clock_ns() + ms * 1000000ULL;;) {
        if (waitpid(p->pid, how, WNOHANG) != 0)
            return true;
        if (clock_ns() >= until)
            return false;
        read_output(p);
        clock_sleep_until_ns(clock_ns() + 1000000);
    }
}

/* Waits for END_MS, then kills the process group. Sets p->end. */
static void end_program(external_process *p)
{
    int how = 0;
    snprintf(p->end, sizeof p->end, "closed its socket");
    if (has_ended(p, END_MS, &how)) {
        const int code = WIFSIGNALED(how) ? 128 + WTERMSIG(how) : WEXITSTATUS(how);
        if (code > 128)
            snprintf(p->end, sizeof p->end, "was ended by signal %d", code - 128);
        else
            snprintf(p->end, sizeof p->end, "ended with exit code %d", code);
        kill(-p->pid, SIGKILL); /* processes that the program started */
    } else {
        kill(-p->pid, SIGKILL);
        waitpid(p->pid, &how, 0);
    }
    p->pid = 0;
}

void external_process_end(external_process **out)
{
    external_process *p = *out;
    if (p == NULL)
        return;
    if (p->socket >= 0)
        close(p->socket); /* the program reads the end of its input */
    if (p->pid != 0)
        end_program(p);
    if (p->output >= 0)
        close(p->output);
    text_free(&p->received);
    memory_free(p->command);
    memory_free(p);
    *out = NULL;
}

/* ---- errors ---- */

/* The last whole lines of the program's output, as the end of an error message. */
static const char *last_lines(external_process *p, char out[TAIL_BYTES + 32])
{
    read_output(p);
    while (p->tail_length > 0 && p->tail[p->tail_length - 1] == '\n')
        p->tail[--p->tail_length] = '\0';
    if (p->tail_length == 0)
        return "; it wrote nothing";
    const char *line = p->tail_length >= TAIL_BYTES - 2 ? strchr(p->tail, '\n') : NULL;
    snprintf(out, TAIL_BYTES + 32, "\nIts last lines:\n%s", line != NULL ? line + 1 : p->tail);
    return out;
}

/* Removes a character of which the end of an array has cut a part. */
static void remove_cut_character(char *text)
{
    size_t at = strlen(text);
    for (int rest = 0; rest < 3 && at > 0 && (text[at - 1] & 0xc0) == 0x80; rest++)
        at--;
    if (at > 0 && text_utf8_length(text + at - 1) == 0)
        text[at - 1] = '\0';
}

status external_process_fail(external_process *p, const char *format, ...)
{
    char message[512], lines[TAIL_BYTES + 32];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    remove_cut_character(message);
    return error_set(ERROR_DATA, __FILE__, __LINE__, "model.command '%.200s': %s%s", p->command,
                     message, last_lines(p, lines));
}

static status fail_ended(external_process *p, const char *what)
{
    char lines[TAIL_BYTES + 32];
    if (p->pid != 0)
        end_program(p);
    return error_set(ERROR_PEER, __FILE__, __LINE__,
                     "model.command '%.200s' %s instead of answering '%s'%s", p->command, p->end,
                     what, last_lines(p, lines));
}

/* ---- messages ---- */

/* The deadline (clock_ns) of the answer to a request that began at `since_ns`. */
static uint64_t deadline_ns(external_process *p, uint64_t since_ns)
{
    const uint64_t usual_ns = p->longest_ns > p->limit_ns ? p->longest_ns : p->limit_ns;
    const uint64_t until_ns = since_ns + PATIENCE * usual_ns;
    if (p->stop == NULL || *p->stop == 0)
        return until_ns;
    if (p->stop_ns == 0)
        p->stop_ns = clock_ns();
    const uint64_t from_ns = since_ns > p->stop_ns ? since_ns : p->stop_ns;
    return until_ns < from_ns + p->limit_ns ? until_ns : from_ns + p->limit_ns;
}

/* The program has ended, although a process that it started may still hold the socket. */
static bool is_dead(const external_process *p)
{
    siginfo_t info = {0};
    return p->pid != 0 && waitid(P_PID, (id_t)p->pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           info.si_pid != 0;
}

/* Waits until the socket is ready for `events`, or the program has ended. Reads output meanwhile,
 * so that a full pipe does not block the program. */
static status await_socket(external_process *p, const char *what, short events, uint64_t since_ns)
{
    char lines[TAIL_BYTES + 32];
    for (;;) {
        struct pollfd at[2] = {{.fd = p->socket, .events = events},
                               {.fd = p->output, .events = POLLIN}};
        const uint64_t until_ns = deadline_ns(p, since_ns);
        const uint64_t now_ns = clock_ns();
        const uint64_t left_ms = now_ns < until_ns ? (until_ns - now_ns) / 1000000 : 0;
        const bool dead = is_dead(p); /* before poll(): the last answer of a dead program counts */
        poll(at, 2, dead ? 0 : left_ms < 1000 ? (int)left_ms : 1000);
        if (at[1].revents != 0)
            read_output(p);
        if (at[0].revents != 0)
            return OK;
        if (dead)
            return fail_ended(p, what);
        if (clock_ns() >= until_ns) {
            return error_set(
                ERROR_PEER, __FILE__, __LINE__,
                "model.command '%.200s' has not answered '%s' for %.1f s (limit: %d "
                "times the longer of timeout_s and its longest answer; timeout_s after "
                "a request to stop): does it hang? If it is only slow, set a longer timeout_s%s",
                p->command, what, (double)(clock_ns() - since_ns) * 1e-9, PATIENCE,
                last_lines(p, lines));
        }
    }
}

/* Call it before a request. A surplus line would be read as the answer to that request. */
static status check_silent(external_process *p, const char *what)
{
    char byte;
    if (recv(p->socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0) {
        return external_process_fail(p,
                                     "it sent more than one line in answer to the request "
                                     "before '%s'",
                                     what);
    }
    return OK;
}

static status send_line(external_process *p, const char *what, const char *line, size_t length)
{
    status result = OK;
    const uint64_t since_ns = clock_ns();
    while (length > 0) {
        const ssize_t sent = send(p->socket, line, length, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && (errno == EAGAIN || errno == EINTR)) {
            TRY(await_socket(p, what, POLLOUT, since_ns));
            continue;
        }
        if (sent < 0)
            return fail_ended(p, what);
        line += sent;
        length -= (size_t)sent;
    }
done:
    return result;
}

/* Receives one line into p->received, which keeps it until the next call. */
static status receive_line(external_process *p, const char *what)
{
    status result = OK;
    const uint64_t since_ns = clock_ns();
    char bytes[65536];
    p->received.length = 0;
    for (;;) {
        TRY(await_socket(p, what, POLLIN, since_ns));
        const ssize_t length = recv(p->socket, bytes, sizeof bytes, MSG_DONTWAIT);
        if (length < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        if (length <= 0)
            return fail_ended(p, what);
        text_add_bytes(&p->received, bytes, (size_t)length);
        if (memchr(bytes, '\n', (size_t)length) != NULL)
            break; /* an answer is one line; the parser refuses what follows it */
        if (p->received.length > ANSWER_BYTES)
            return external_process_fail(p,
                                         "its answer to '%s' is too long and has no end of line; "
                                         "end each answer with a newline",
                                         what);
    }
    const uint64_t took_ns = clock_ns() - since_ns;
    p->longest_ns = took_ns > p->longest_ns ? took_ns : p->longest_ns;
done:
    return result;
}

status external_process_ask(external_process *p, const char *what, const json_t *request,
                            json_t **answer)
{
    status result = OK;
    json_error_t error;
    json_t *got = NULL;
    char *line = json_dumps(request, JSON_COMPACT);
    *answer = NULL;
    REQUIRE(line != NULL);
    const size_t length = strlen(line);
    TRY(check_silent(p, what));
    line[length] = '\n'; /* sent together, so that the program wakes up once */
    TRY(send_line(p, what, line, length + 1));
    TRY(receive_line(p, what));
    got = json_loadb(p->received.at, p->received.length, 0, &error);
    if (!json_is_object(got)) {
        result = external_process_fail(p,
                                       "its answer to '%s' is not one JSON object in one line "
                                       "(%s)",
                                       what, got == NULL ? error.text : "another type");
        goto done;
    }
    const char *message = json_string_value(json_object_get(got, "error"));
    if (message != NULL) {
        result = external_process_fail(p, "%s", message);
        goto done;
    }
    *answer = got;
    got = NULL;
done:
    json_decref(got);
    free(line);
    return result;
}
