#include "experiments/config/precision_trial.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "experiments/config/config.h"
#include "worker/worker.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ROUNDS = 99, FEW_ROUNDS = 3, SIDES = 2 };
static const double GAIN = 1.05;
/* A turn is one step, or as many as fit into TURN_S. The rounds end after SHORT_S if there were
 * FEW_ROUNDS; after LONG_S one is enough. If the first turns, which create primitives, take longer
 * than LONG_S, they are the only ones. */
static const double TURN_S = 2e-3, SHORT_S = 0.4, LONG_S = 2;

bool precision_is_auto(const options *o)
{
    return strcmp(options_text(o, "precision"), "auto") == 0;
}

status precision_check_chosen(const options *o, const char *what)
{
    status result = OK;
    if (precision_is_auto(o)) {
        FAIL(ERROR_USAGE,
             "%s: precision=auto: %s makes no trial, because all processes of a run need the same "
             "format; set precision=fp32 or precision=bf16. `gradlag check precision=auto` with "
             "the same settings shows the faster one, `gradlag bench step precision=bf16` a rate",
             options_origin(o, "precision"), what);
    }
done:
    return result;
}

bool precision_prefers_bf16(const struct precision_trial *t)
{
    return t->why[0] == '\0' && t->fp32_s >= GAIN * t->bf16_s;
}

/* ---- measuring ----------------------------------------------------------------------------------
 */

struct side {
    options *settings;
    worker *worker;
    uint64_t batch;
    double seconds[ROUNDS]; /* of one step */
};

struct measured_steps {
    struct side sides[SIDES]; /* fp32, bf16 */
    float *parameters, *gradient;
};

static void close_steps(struct measured_steps *m)
{
    for (int i = 0; i < SIDES; i++) {
        worker_close(&m->sides[i].worker);
        options_close(&m->sides[i].settings);
    }
    memory_free(m->parameters);
    memory_free(m->gradient);
}

/* Without pace, because a delayed step would hide the computation. */
static status open_side(struct side *s, const options *o, const char *precision)
{
    status result = OK;
    struct settings all = {0};
    config_arguments(o, &all);
    settings_add(&all, "precision", precision, "precision=auto");
    settings_add(&all, "pace", "none", "precision=auto");
    TRY(config_compose_unchecked(&s->settings, &all));
    TRY(worker_open(&s->worker,
                    &(struct worker_options){.settings = s->settings,
                                             .count = (unsigned)options_integer(o, "workers")}));
    worker_hold_memory(s->worker);
done:
    settings_free(&all);
    return result;
}

static status open_vectors(struct measured_steps *m)
{
    status result = OK;
    worker *w = m->sides[0].worker;
    const size_t count = worker_parameter_count(w);
    TRY(memory_new(&m->parameters, count, sizeof(float), "parameters"));
    TRY(memory_new(&m->gradient, count, sizeof(float), "a gradient"));
    TRY(worker_initial_parameters(w, m->parameters, count));
done:
    return result;
}

static status turn(struct measured_steps *m, struct side *s, unsigned round)
{
    status result = OK;
    const double began = clock_seconds();
    double took = 0;
    unsigned steps = 0;
    for (; took < TURN_S; took = clock_seconds() - began) {
        struct step_stats stats;
        TRY(worker_gradient(s->worker, m->parameters, s->batch++, m->gradient, &stats));
        steps++;
    }
    s->seconds[round] = took / steps;
done:
    return result;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, unsigned count)
{
    qsort(values, count, sizeof *values, ascending);
    return values[count / 2];
}

/* After the first turn of each. */
static status measure_both(struct measured_steps *m, struct precision_trial *out)
{
    status result = OK;
    const double began = clock_seconds();
    struct side *fp32 = &m->sides[0], *bf16 = &m->sides[1];
    const bool first_only = fp32->seconds[0] + bf16->seconds[0] > LONG_S;
    unsigned rounds = first_only ? 1 : 0;
    for (double took = 0; !first_only && rounds < ROUNDS; took = clock_seconds() - began) {
        if (took > LONG_S || (took > SHORT_S && rounds >= FEW_ROUNDS))
            break;
        TRY(turn(m, fp32, rounds));
        TRY(turn(m, bf16, rounds));
        rounds++;
    }
    out->fp32_s = median(fp32->seconds, rounds);
    out->bf16_s = median(bf16->seconds, rounds);
done:
    return result;
}

static status measure(const options *o, struct precision_trial *out)
{
    status result = OK;
    struct measured_steps *m = NULL;
    *out = (struct precision_trial){0};
    TRY(memory_new(&m, 1, sizeof *m, "a trial"));
    TRY(open_side(&m->sides[0], o, "fp32"));
    TRY(open_vectors(m));
    TRY(turn(m, &m->sides[0], 0));
    if (open_side(&m->sides[1], o, "bf16") != OK || turn(m, &m->sides[1], 0) != OK)
        snprintf(out->why, sizeof out->why, "%s", error_message());
    else
        TRY(measure_both(m, out));
done:
    if (m != NULL)
        close_steps(m);
    memory_free(m);
    return result;
}

/* ---- the child ----------------------------------------------------------------------------------
 */

/* One write() of at most PIPE_BUF bytes, so the parent reads all or nothing. */
struct answer {
    status code;
    struct precision_trial trial;
    char message[1024];
};

static _Noreturn void run_child(const options *o, int to, pid_t parent)
{
    struct answer a = {0};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(ERROR_PEER); /* the parent died before prctl() */
    a.code = measure(o, &a.trial);
    if (a.code != OK)
        snprintf(a.message, sizeof a.message, "%s", error_message());
    _exit(write(to, &a, sizeof a) == (ssize_t)sizeof a ? OK : ERROR_PEER);
}

/* Waits until the child has written or ended. */
static status await(int from, double limit_s, const volatile sig_atomic_t *stop)
{
    enum { LOGGED_AFTER_S = 5, CHECK_MS = 500 };
    status result = OK;
    const double began = clock_seconds();
    bool logged = false;
    struct pollfd source = {.fd = from, .events = POLLIN};
    while (poll(&source, 1, CHECK_MS) <= 0) {
        const double waited = clock_seconds() - began;
        if (stop != NULL && *stop != 0)
            FAIL(STOPPED, "stopped on request during the trial of precision=auto");
        if (waited > limit_s) {
            FAIL(ERROR_PEER,
                 "the trial of precision=auto has not ended after %.0f s (20 × timeout_s); set "
                 "precision=fp32 or precision=bf16",
                 waited);
        }
        if (waited > LOGGED_AFTER_S && !logged) {
            log_info("waiting for the trial of precision=auto, which loads the dataset and "
                     "measures steps in fp32 and bf16");
            logged = true;
        }
    }
done:
    return result;
}

static status read_answer(int from, struct precision_trial *out)
{
    status result = OK;
    struct answer a;
    const ssize_t got = read(from, &a, sizeof a);
    if (got != (ssize_t)sizeof a) {
        FAIL(ERROR_PEER, "the process of the trial of precision=auto ended without a result; set "
                         "precision=fp32 or precision=bf16");
    }
    if (a.code != OK)
        FAIL(a.code, "%s", a.message);
    *out = a.trial;
done:
    return result;
}

status precision_trial_run(const options *o, const volatile sig_atomic_t *stop,
                           struct precision_trial *out)
{
    status result = OK;
    int ends[2] = {-1, -1};
    pid_t child = -1, self = getpid();
    fflush(NULL);
    if (pipe2(ends, O_CLOEXEC) != 0 || (child = fork()) < 0) {
        FAIL(ERROR_OTHER, "the trial of precision=auto cannot be started: %s; set precision=fp32",
             strerror(errno));
    }
    if (child == 0)
        run_child(o, ends[1], self);
    close(ends[1]);
    ends[1] = -1;
    TRY(await(ends[0], 20 * options_real(o, "timeout_s"), stop));
    TRY(read_answer(ends[0], out));
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
