#include "base/forked_call.h"

#include "base/clock.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PATIENCE = 20, LOGGED_AFTER_S = 5, CHECK_MS = 500 };

/* One write() of at most PIPE_BUF bytes, so the parent reads all or nothing. */
struct answer {
    status code;
    struct error error;
    _Alignas(max_align_t) unsigned char out[FORKED_CALL_BYTES];
};
_Static_assert(sizeof(struct answer) <= PIPE_BUF, "an answer is one write()");

static _Noreturn void run_child(const struct forked_call *c, int to, pid_t parent)
{
    struct answer a = {0};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(ERROR_PEER); /* the parent died before prctl() */
    a.code = c->call(c->argument, a.out);
    if (a.code != OK)
        a.error = error_save();
    _exit(write(to, &a, sizeof a) == (ssize_t)sizeof a ? OK : ERROR_PEER);
}

/* Waits until the child has written or ended. */
static status await(const struct forked_call *c, int from)
{
    status result = OK;
    const double began = clock_seconds();
    bool logged = false;
    struct pollfd source = {.fd = from, .events = POLLIN};
    while (poll(&source, 1, CHECK_MS) <= 0) {
        const double waited = clock_seconds() - began;
        if (c->stop != NULL && *c->stop != 0)
            FAIL(STOPPED, "stopped on request during %s", c->what);
        if (waited > PATIENCE * c->timeout_s) {
            FAIL(ERROR_PEER, "%s has not ended after %.0f s (%d × timeout_s); %s", c->what, waited,
                 PATIENCE, c->advice);
        }
        if (waited > LOGGED_AFTER_S && !logged) {
            log_info("waiting for %s, which %s", c->what, c->work);
            logged = true;
        }
    }
done:
    return result;
}

static status read_answer(const struct forked_call *c, int from, void *out, size_t bytes)
{
    status result = OK;
    struct answer a;
    if (read(from, &a, sizeof a) != (ssize_t)sizeof a)
        FAIL(ERROR_PEER, "the process of %s ended without a result; %s", c->what, c->advice);
    if (a.code != OK) {
        error_restore(&a.error);
        result = a.code;
    } else if (bytes > 0) {
        memcpy(out, a.out, bytes);
    }
done:
    return result;
}

status forked_call(const struct forked_call *c, void *out, size_t bytes)
{
    status result = OK;
    int ends[2] = {-1, -1};
    pid_t child = -1, self = getpid();
    REQUIRE(bytes <= FORKED_CALL_BYTES);
    fflush(NULL);
    if (pipe2(ends, O_CLOEXEC) != 0 || (child = fork()) < 0)
        FAIL(ERROR_OTHER, "%s cannot be started: %s; %s", c->what, strerror(errno), c->advice);
    if (child == 0)
        run_child(c, ends[1], self);
    close(ends[1]);
    ends[1] = -1;
    TRY(await(c, ends[0]));
    TRY(read_answer(c, ends[0], out, bytes));
done:
    if (child > 0) {
        kill(child, SIGKILL);
        while (waitpid(child, NULL, 0) < 0 && errno == EINTR) {
        }
    }
    for (int i = 0; i < 2; i++)
        if (ends[i] >= 0)
            close(ends[i]);
    return result;
}
