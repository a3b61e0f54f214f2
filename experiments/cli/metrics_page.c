#include "experiments/cli/metrics_page.h"

#include "base/clock.h"
#include "base/log.h"
#include "experiments/run/launch.h"

#include <arpa/inet.h>
#include <errno.h>
#include <math.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    REQUEST_BYTES = 4096,
    CLIENT_MS = 2000, /* for one request and its answer: clients are served one after the other */
    STOP_CHECK_MS = 200,
};

/* ---- the page -----------------------------------------------------------------------------------
 */

/* A label's value: `\`, `"` and line breaks are escaped. */
static void add_value(struct text *out, const char *value)
{
    for (const char *c = value; *c != '\0'; c++)
        if (*c == '\n')
            text_add(out, "\\n");
        else
            text_add(out, "%s%c", *c == '\\' || *c == '"' ? "\\" : "", *c);
}

struct run_metric {
    const char *name, *help;
    double (*of)(const struct live_run *r);
};

#define METRIC(field)                                                                              \
    static double field##_of(const struct live_run *r)                                             \
    {                                                                                              \
        return r->field;                                                                           \
    }
METRIC(part)
METRIC(seconds_left)
METRIC(samples_per_second)
METRIC(updates_per_second)
METRIC(loss)
METRIC(accuracy)
METRIC(staleness)
METRIC(silent_seconds)
METRIC(slowest_factor)

static const struct run_metric run_metrics[] = {
    {"gradlag_run_progress_ratio", "Samples used / all samples of the run.", part_of},
    {"gradlag_run_remaining_seconds", "Remaining time at the speed so far, wall-clock.",
     seconds_left_of},
    {"gradlag_run_samples_per_second", "Training samples per second of training, so far.",
     samples_per_second_of},
    {"gradlag_run_updates_per_second", "Updates of the parameters per second of training, so far.",
     updates_per_second_of},
    {"gradlag_run_loss", "Recent training loss.", loss_of},
    {"gradlag_run_test_accuracy_ratio", "Accuracy of the last evaluation.", accuracy_of},
    {"gradlag_run_staleness_mean", "Mean staleness of the gradients so far, in updates.",
     staleness_of},
    {"gradlag_run_silent_seconds", "Time since the last progress report of the run.",
     silent_seconds_of},
    {"gradlag_run_slowest_worker_ratio", "Recent step time of the slowest worker / the median.",
     slowest_factor_of},
};

static void begin(struct text *out, const char *name, const char *help)
{
    text_add(out, "# HELP %s %s\n# TYPE %s gauge\n", name, help, name);
}

static void add_run_metric(struct text *out, const struct live_runs *l, const struct run_metric *m)
{
    begin(out, m->name, m->help);
    for (size_t i = 0; i < l->running_count; i++) {
        const struct live_run *r = &l->running[i];
        if (isnan(m->of(r)))
            continue;
        text_add(out, "%s{run=\"%lld\",title=\"", m->name, (long long)r->id);
        add_value(out, r->title);
        text_add(out, "\"} %.9g\n", m->of(r));
    }
}

void metrics_page_add(const struct live_runs *l, struct text *out)
{
    const struct {
        const char *status;
        size_t count;
    } counts[] = {{"queued", l->waiting},    {"running", l->running_count + l->more_running},
                  {"finished", l->finished}, {"diverged", l->diverged},
                  {"failed", l->failed},     {"stopped", l->stopped}};
    begin(out, "gradlag_runs", "Runs in the results file.");
    for (size_t i = 0; i < COUNT_OF(counts); i++)
        text_add(out, "gradlag_runs{status=\"%s\"} %zu\n", counts[i].status, counts[i].count);
    for (size_t i = 0; i < COUNT_OF(run_metrics); i++)
        add_run_metric(out, l, &run_metrics[i]);
}

/* ---- the server ---------------------------------------------------------------------------------
 */

static status listen_on(unsigned port, int *out)
{
    status result = OK;
    const int yes = 1;
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)port),
                             .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof at;
    *out = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (*out < 0)
        FAIL(ERROR_OTHER, "cannot open a socket: %s", strerror(errno));
    (void)setsockopt(*out, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(*out, (struct sockaddr *)&at, size) != 0 || listen(*out, 16) != 0 ||
        getsockname(*out, (struct sockaddr *)&at, &size) != 0) {
        FAIL(ERROR_USAGE, "cannot listen on port %u of 127.0.0.1: %s; choose another port", port,
             strerror(errno));
    }
    printf("http://127.0.0.1:%u/metrics\n", ntohs(at.sin_port));
    fflush(stdout);
done:
    return result;
}

/* Waits for `events`; false: the time is over, or the process shall stop. */
static bool await(int fd, short events, uint64_t until_ns)
{
    struct pollfd p = {.fd = fd, .events = events};
    while (launch_stop_requests() == 0 && clock_ns() < until_ns)
        if (poll(&p, 1, STOP_CHECK_MS) > 0)
            return true;
    return false;
}

/* Reads the head of a request up to its empty line, or its first REQUEST_BYTES − 1 bytes. False:
 * the head did not arrive in time, or the client closed the connection. */
static bool receive_request(int client, char request[REQUEST_BYTES], uint64_t until_ns)
{
    size_t length = 0;
    request[0] = '\0';
    while (strstr(request, "\r\n\r\n") == NULL) {
        if (length + 1 == REQUEST_BYTES)
            break;
        if (!await(client, POLLIN, until_ns))
            return false;
        const ssize_t got = recv(client, request + length, REQUEST_BYTES - 1 - length, 0);
        if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR))
            return false;
        length += got > 0 ? (size_t)got : 0;
        request[length] = '\0';
    }
    return true;
}

static void send_all(int client, const struct text *answer, uint64_t until_ns)
{
    for (size_t sent = 0; sent < answer->length;) {
        const ssize_t got =
            send(client, answer->at + sent, answer->length - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (got < 0 && errno != EAGAIN && errno != EINTR)
            return;
        sent += got > 0 ? (size_t)got : 0;
        if (got < 0 && !await(client, POLLOUT, until_ns))
            return;
    }
}

/* Ends the connection and reads what the client still sends: closing with bytes unread would reset
 * the connection, and the client could lose the answer. */
static void end_connection(int client, uint64_t until_ns)
{
    char unread[REQUEST_BYTES];
    shutdown(client, SHUT_WR);
    while (await(client, POLLIN, until_ns)) {
        const ssize_t got = recv(client, unread, sizeof unread, 0);
        if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR))
            return;
    }
}

static void answer(const char *path, int client)
{
    const uint64_t until_ns = clock_ns() + CLIENT_MS * 1000000ull;
    char request[REQUEST_BYTES];
    struct live_runs l = {0};
    struct text page = {0}, whole = {0};
    const char *code = "200 OK";
    if (!receive_request(client, request, until_ns))
        return;
    const bool head = strncmp(request, "HEAD ", 5) == 0;
    const char *target = request + (head ? 5 : 4);
    if (strstr(request, "\r\n\r\n") == NULL) {
        code = "431 Request Header Fields Too Large";
    } else if (!head && strncmp(request, "GET ", 4) != 0) {
        code = "405 Method Not Allowed";
    } else if (strncmp(target, "/metrics", 8) != 0 || (target[8] != ' ' && target[8] != '?')) {
        code = "404 Not Found";
        text_add(&page, "GET /metrics\n");
    } else if (live_runs_read(&l, path, 0) != OK) {
        code = "503 Service Unavailable";
        text_add(&page, "%s\n", error_message());
    } else {
        metrics_page_add(&l, &page);
    }
    text_add(&whole,
             "HTTP/1.1 %s\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
             "Content-Length: %zu\r\nConnection: close\r\n%s\r\n",
             code, page.length, strncmp(code, "405", 3) == 0 ? "Allow: GET, HEAD\r\n" : "");
    if (!head && page.length > 0)
        text_add_bytes(&whole, page.at, page.length);
    send_all(client, &whole, until_ns);
    end_connection(client, until_ns);
    live_runs_free(&l);
    text_free(&page);
    text_free(&whole);
}

status metrics_serve(const char *path, unsigned port)
{
    status result = OK;
    int listener = -1;
    launch_catch_signals();
    TRY(listen_on(port, &listener));
    while (launch_stop_requests() == 0) {
        if (!await(listener, POLLIN, UINT64_MAX))
            continue;
        const int client = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (client < 0) {
            clock_sleep_until_ns(clock_ns() + 100000000); /* out of file descriptors, perhaps */
            continue;
        }
        answer(path, client);
        close(client);
    }
done:
    if (listener >= 0)
        close(listener);
    return result;
}
