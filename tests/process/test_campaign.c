/*
 * Random runs of the real program, one random fault in each, and what must hold afterwards:
 *   1. the run ends, with an exit code that its fault explains, and its row has the same outcome;
 *   2. each gradient was applied at most once, versions have no gap, counts add up;
 *   3. no process, no private folder and no shared memory is left;
 *   4. an asynchronous run replays to the same bits;
 *   5. a run that was stopped or killed resumes from its checkpoint with --resume; if the settings
 *      determine the bits, it ends with the bits of an undisturbed run.
 *
 * Each episode runs in its own process, and its seed determines it:
 *   GRADLAG_CAMPAIGN_SEED   this episode alone, in this process, with its whole output
 *   GRADLAG_CAMPAIGN_RUNS   how many (8; `make nightly`: 500)
 *   GRADLAG_CAMPAIGN_FIRST  the seed of the first episode (1; `make nightly`: the date)
 *   GRADLAG_CAMPAIGN_JOBS   how many at a time (2)
 *   GRADLAG_CAMPAIGN_LATE   if set, every run is asynchronous and has workers.max
 */
#include "tests/process/campaign.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- one episode: what must hold ---- */

static const char *settings_text(const struct campaign_episode *e)
{
    static char text[CAMPAIGN_SETTINGS * CAMPAIGN_TEXT];
    size_t length = 0;
    for (size_t i = 0; i < e->count; i++)
        length += (size_t)snprintf(text + length, sizeof text - length, " %s", e->text[i]);
    return text;
}

static const char *status_of(int code)
{
    return code == OK               ? "finished"
           : code == STOPPED        ? "stopped"
           : code == ERROR_DIVERGED ? "diverged"
                                    : "failed";
}

/* A run that was stopped or killed before it wrote its row has none. */
static bool has_row(struct process_rig *r)
{
    return strcmp(process_ask(r, "SELECT count(*) FROM run"), "1") == 0;
}

static void expect_row_agrees(struct process_rig *r, int code)
{
    if (has_row(r)) {
        char row[16];
        snprintf(row, sizeof row, "%s", process_ask(r, "SELECT status FROM run"));
        /* After the row is complete, the disk may become full, or the starter may be killed. */
        const bool complete = strcmp(row, "finished") == 0 || strcmp(row, "diverged") == 0;
        const bool late = complete && (code == ERROR_RESULTS || code > 128);
        if (strcmp(row, status_of(code)) != 0 && !late)
            fail_msg("exit code %d, but the row says %s: %s", code, row, process_errors(r));
    } else if (code == OK || code == ERROR_DIVERGED)
        fail_msg("exit code %d, and no row of a run", code);
}

static void expect_none(struct process_rig *r, const char *what, const char *sql)
{
    const char *count = process_ask(r, sql);
    if (strcmp(count, "0") != 0)
        fail_msg("%s: %s", what, count);
}

#define USED_AT_ANY "run_id = 1 AND outcome IN ('applied', 'aggregated')"
#define USED        USED_AT_ANY " AND server = 0"

/* `whole`: the run wrote all of its rows. */
static void expect_exactly_once(struct process_rig *r, bool whole)
{
    expect_none(r, "gradients applied twice",
                "SELECT count(*) FROM (SELECT 1 FROM push WHERE " USED_AT_ANY
                " GROUP BY server, worker, batch HAVING count(*) > 1)");
    expect_none(r, "gradients older than what their worker had read",
                "SELECT count(*) FROM push WHERE run_id = 1 AND staleness < 0");
    if (whole) {
        expect_none(r, "updates without a gradient",
                    "SELECT coalesce(updates, 0) - (SELECT count(DISTINCT update_version) FROM "
                    "push WHERE " USED ") FROM run WHERE id = 1");
        expect_none(r, "updates above the last version",
                    "SELECT coalesce(updates, 0) - (SELECT coalesce(max(update_version), 0) FROM "
                    "push WHERE " USED ") FROM run WHERE id = 1");
    }
}

static void expect_steps(struct process_rig *r, bool whole)
{
    if (whole) {
        expect_none(
            r, "updates that some ranks did not make",
            "SELECT count(*) FROM (SELECT 1 FROM step WHERE run_id = 1 GROUP BY update_version "
            "HAVING count(*) <> (SELECT workers FROM run WHERE id = 1))");
    }
}

/* Whether rows may be missing: the writer was killed, or could not write. A full disk may also fail
 * the checkpoint, which is reported first (ERROR_OTHER). */
static bool is_incomplete(struct process_rig *r, int code)
{
    const char *unhashed = process_ask(r, "SELECT parameters_sha256 IS NULL FROM run");
    return code > 128 || code == ERROR_RESULTS || code == ERROR_OTHER || strcmp(unhashed, "1") == 0;
}

static bool expect_replay(struct campaign_episode *e, int code)
{
    if (!e->async || atoi(process_ask(e->rig, "SELECT count(*) FROM push")) == 0)
        return false;
    int replayed = RIG_RUN_INSIDE(e->rig, "replay", "1", "--quiet");
    bool refused = replayed == ERROR_USAGE || replayed == ERROR_RESULTS;
    if (replayed != OK && !(refused && is_incomplete(e->rig, code)))
        fail_msg("replay: %d: %s", replayed, process_errors(e->rig));
    return replayed == OK;
}

/* Repeats the run without a fault in a second results file and compares the bits. */
static void expect_undisturbed_bits(struct campaign_episode *e)
{
    char resumed[80];
    snprintf(resumed, sizeof resumed, "%s",
             process_ask(e->rig, "SELECT parameters_sha256 FROM run ORDER BY id DESC LIMIT 1"));
    assert_int_equal(strlen(resumed), 64);
    char moved[256];
    snprintf(moved, sizeof moved, "%s", process_path(e->rig, "disturbed.db"));
    rename(process_path(e->rig, "results.db"), moved);
    campaign_set(e, "checkpoint=other.safetensors");
    campaign_set(e, "timeout_s=30");
    int code = process_run(e->rig, campaign_arguments(e, "run", NULL));
    assert_true(code == OK || code == ERROR_DIVERGED);
    process_expect_answer(e->rig, "SELECT parameters_sha256 FROM run", resumed);
}

static bool can_resume(struct campaign_episode *e, int code)
{
    bool cut_off = code == STOPPED || code == ERROR_PEER || code > 128;
    return cut_off && e->processes && e->checkpoint &&
           access(process_path(e->rig, "at.safetensors"), F_OK) == 0;
}

static bool expect_resume(struct campaign_episode *e, int code)
{
    if (!can_resume(e, code))
        return false;
    campaign_set(e, "timeout_s=30");
    e->fault = NULL;
    campaign_start(e, "--resume");
    int resumed = campaign_wait(e);
    /* If the writer was killed before it wrote the checkpoint's row, --resume does not find the
     * checkpoint and starts a new run. */
    if (resumed == ERROR_USAGE && !campaign_may_resume(e))
        return false;
    if (resumed != OK && resumed != ERROR_DIVERGED)
        fail_msg("--resume: %d: %s", resumed, process_errors(e->rig));
    process_expect_nothing_left(e->rig);
    process_expect_answer(e->rig, "SELECT status FROM run ORDER BY id DESC LIMIT 1",
                          status_of(resumed));
    if (resumed == OK && e->repeats)
        expect_undisturbed_bits(e);
    return true;
}

/* A starter killed by SIGKILL leaves its private folder; the next run removes it. */
static void expect_nothing_left(struct campaign_episode *e, int code)
{
    process_expect_none_running(e->rig);
    if (code > 128)
        assert_int_equal(RIG_RUN(e->rig, "run", RIG_SMALL, "mode=async", "results=other.db"), OK);
    process_expect_nothing_left(e->rig);
}

/* A signal that arrives before the handlers are installed ends the program before it has begun
 * anything. */
static bool ended_before_its_beginning(struct process_rig *r, int code)
{
    return (code == 128 + SIGTERM || code == 128 + SIGINT) &&
           access(process_path(r, "results.db"), F_OK) != 0;
}

static void expect_sound(struct campaign_episode *e, int code, bool *replayed, bool *resumed)
{
    bool recorded = code == OK || code == STOPPED;
    if (!campaign_explains(e, code) && !ended_before_its_beginning(e->rig, code))
        fail_msg("exit code %d: %s", code, process_errors(e->rig));
    expect_row_agrees(e->rig, code);
    expect_nothing_left(e, code);
    if (has_row(e->rig)) {
        e->async ? expect_exactly_once(e->rig, recorded) : expect_steps(e->rig, recorded);
        *replayed = expect_replay(e, code);
        *resumed = expect_resume(e, code);
    }
}

static const char *setting(const struct campaign_episode *e, const char *key)
{
    size_t length = strlen(key);
    for (size_t i = 0; i < e->count; i++)
        if (strncmp(e->text[i], key, length) == 0 && e->text[i][length] == '=')
            return e->text[i] + length + 1;
    return "";
}

/* The number of gradients of late workers in the first run of the file. */
static int late_gradients(struct campaign_episode *e)
{
    return atoi(process_ask(e->rig, "SELECT count(*) FROM push JOIN run ON run.id = run_id WHERE "
                                    "run.id = 1 AND server = 0 AND worker >= workers"));
}

static void one_run_meets_its_invariants_after_a_fault(void **state)
{
    struct campaign_episode e = {.rig = *state};
    bool replayed = false, resumed = false;
    random_open(&e.random, RANDOM_TEST, strtoull(getenv("GRADLAG_CAMPAIGN_SEED"), NULL, 10), 0, 0);
    campaign_isolate(&e);
    assert_int_equal(RIG_RUN_INSIDE(e.rig, "keygen", "keys"), OK);
    e.faulty = campaign_chance(&e, 0.95);
    campaign_draw(&e);
    const struct campaign_fault *fault = e.fault = campaign_draw_fault(&e);
    /* A busy machine may pause a process for two seconds. */
    if (e.faulty && !campaign_explains(&e, ERROR_PEER))
        campaign_set(&e, "timeout_s=30");
    double at_s = campaign_between(&e, 0, 0.3 + 1.2 * e.seconds);
    print_message("settings:%s\nfault: %s at %.2f s\n", settings_text(&e), fault->name, at_s);
    campaign_start(&e, NULL);
    campaign_sleep(at_s);
    fault->make(&e);
    int code = campaign_wait(&e);
    print_message("exit code %d\n", code);
    const int late = late_gradients(&e);
    expect_sound(&e, code, &replayed, &resumed);
    print_message("held: %s %s %s %d %d %d %d\n", fault->name, setting(&e, "mode"),
                  e.processes ? "real" : "virtual", code, replayed, resumed, late);
    e.rig->ended = 0;
}

/* A mounted folder cannot be removed. */
static int leave(void **state)
{
    struct process_rig *r = *state;
    if (r->ended != 0) {
        print_message("the last run ended in %d: %.800s\n", r->ended, process_errors(r));
        r->ended = 0;
    }
    campaign_leave(r);
    return process_tear_down(state);
}

/* ---- many, several at a time ---- */

static uint64_t number_from(const char *variable, uint64_t otherwise)
{
    const char *text = getenv(variable);
    return text != NULL && *text != '\0' ? strtoull(text, NULL, 10) : otherwise;
}

struct campaign_series {
    struct process_rig *rig;
    uint64_t first, runs, begun, failed;
    pid_t pids[64];
    uint64_t seeds[64];
    uint64_t held, finished, stopped, diverged, replayed, resumed, late;
};

static const char *output_of(struct campaign_series *s, uint64_t seed)
{
    char name[32];
    snprintf(name, sizeof name, "episode-%" PRIu64, seed);
    return process_path(s->rig, name);
}

static void begin(struct campaign_series *s, unsigned job)
{
    char seed[24];
    s->seeds[job] = s->first + s->begun++;
    snprintf(seed, sizeof seed, "%" PRIu64, s->seeds[job]);
    fflush(NULL);
    s->pids[job] = fork();
    assert_true(s->pids[job] >= 0);
    if (s->pids[job] == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        setenv("GRADLAG_CAMPAIGN_SEED", seed, 1);
        if (freopen(output_of(s, s->seeds[job]), "w", stdout) != NULL &&
            dup2(STDOUT_FILENO, STDERR_FILENO) >= 0)
            execl("/proc/self/exe", "test_campaign", (char *)NULL);
        _exit(127);
    }
}

static void show(const char *path)
{
    char line[4096];
    FILE *file = fopen(path, "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        print_message("    %s", line);
    if (file != NULL)
        fclose(file);
}

/* Adds the figures that an episode printed. */
static bool count_held(struct campaign_series *s, const char *path)
{
    char line[4096];
    bool held = false;
    int code = 0, replayed = 0, resumed = 0, late = 0;
    FILE *file = fopen(path, "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        held = held || sscanf(line, "held: %*s %*s %*s %d %d %d %d", &code, &replayed, &resumed,
                              &late) == 4;
    if (file != NULL)
        fclose(file);
    s->held += held;
    s->finished += held && code == OK;
    s->stopped += held && code == STOPPED;
    s->diverged += held && code == ERROR_DIVERGED;
    s->replayed += held && replayed;
    s->resumed += held && resumed;
    s->late += held && late > 0;
    return held;
}

static void end(struct campaign_series *s, unsigned job, int how)
{
    const char *path = output_of(s, s->seeds[job]);
    if (!count_held(s, path) || how != 0) {
        s->failed++;
        print_message("GRADLAG_CAMPAIGN_SEED=%" PRIu64 " failed:\n", s->seeds[job]);
        show(path);
    }
    remove(path);
    s->pids[job] = 0;
}

static unsigned await_one(struct campaign_series *s, unsigned jobs)
{
    int how = 0;
    pid_t pid = wait(&how);
    unsigned job = 0;
    assert_true(pid > 0);
    while (job < jobs && s->pids[job] != pid)
        job++;
    assert_true(job < jobs);
    end(s, job, how);
    return job;
}

static void random_runs_meet_their_invariants_after_faults(void **state)
{
    struct campaign_series s = {.rig = *state,
                                .first = number_from("GRADLAG_CAMPAIGN_FIRST", 1),
                                .runs = number_from("GRADLAG_CAMPAIGN_RUNS", 8)};
    unsigned jobs = (unsigned)number_from("GRADLAG_CAMPAIGN_JOBS", 2), busy = 0;
    assert_true(jobs > 0 && jobs <= COUNT_OF(s.pids));
    while (busy < jobs && s.begun < s.runs)
        begin(&s, busy++);
    for (uint64_t ended = 0; ended < s.runs; ended++) {
        unsigned job = await_one(&s, jobs);
        if (s.begun < s.runs)
            begin(&s, job);
    }
    print_message("%" PRIu64 " runs from seed %" PRIu64 ": %" PRIu64 " held (%" PRIu64
                  " finished, %" PRIu64 " stopped, %" PRIu64 " diverged), %" PRIu64
                  " replayed, %" PRIu64 " resumed, %" PRIu64 " with late workers, %" PRIu64
                  " failed\n",
                  s.runs, s.first, s.held, s.finished, s.stopped, s.diverged, s.replayed, s.resumed,
                  s.late, s.failed);
    assert_int_equal(s.failed, 0);
}

int main(void)
{
    const struct CMUnitTest one[] = {cmocka_unit_test_setup_teardown(
        one_run_meets_its_invariants_after_a_fault, process_set_up, leave)};
    const struct CMUnitTest many[] = {cmocka_unit_test_setup_teardown(
        random_runs_meet_their_invariants_after_faults, process_set_up, process_tear_down)};
    return getenv("GRADLAG_CAMPAIGN_SEED") != NULL ? cmocka_run_group_tests(one, NULL, NULL)
                                                   : cmocka_run_group_tests(many, NULL, NULL);
}
