/*
 * Models that another program computes (model=external): the example in C of
 * docs/external-models.md, and shell scripts that fail.
 */
#include "base/clock.h"
#include "base/memory.h"
#include "base/status.h"
#include "base/text.h"
#include "tests/rigs/process_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <signal.h>
#include <unistd.h>

/* This program started as "test_process_external line" is the example; as "… intrude" or "… write"
 * it is hostile. */
static int example_main(void);
#define main example_main
#include "docs/examples/external_line.c"
#undef main

static char line_command[512];

#define EXTERNAL "run", "model=external"
#define LINE     EXTERNAL, line_command, "lr=0.3", "momentum=0", "updates=60", "warmup_epochs=0"
#define VIRTUAL  "engine=virtual", "pace=gamma"

/* ---- it trains wherever a built-in model trains --------------------------------------------- */

static void every_mode_trains_an_external_model(void **state)
{
    struct process_rig *r = *state;
    static const char *const modes[][5] = {
        {"mode=async", "workers=2"},          {"mode=async", "workers=2", "servers=2"},
        {"mode=async", VIRTUAL, "workers=9"}, {"mode=async", VIRTUAL, "workers=2", "outer=sgd"},
        {"mode=sync", "workers=2"},           {"mode=sync", VIRTUAL, "workers=4"},
    };
    for (size_t i = 0; i < COUNT_OF(modes); i++) {
        const char *argv[16] = {LINE};
        size_t count = 0;
        while (argv[count] != NULL)
            count++;
        for (size_t k = 0; k < COUNT_OF(modes[i]); k++)
            argv[count++] = modes[i][k];
        if (process_run(r, argv) != OK)
            fail_msg("%s %s: %s", modes[i][0], modes[i][1], process_errors(r));
    }
    /* The line's own loss is 0.0004; without training it is 2. */
    process_expect_answer(r, "SELECT count(*) FROM run WHERE final_loss < 0.1", "6");
    process_expect_answer(r, "SELECT count(*) FROM run WHERE dataset = 'external'", "6");
    /* Processor time of another program is not in this process. */
    process_expect_answer(r,
                          "SELECT count(*) || ' ' || sum(detail LIKE '%gradients%') FROM event "
                          "WHERE code = 'simulated'",
                          "3 0");
    process_expect_nothing_left(r);
}

static void one_worker_computes_the_same_bits_in_every_mode(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, LINE, "mode=async", "workers=1"), OK);
    assert_int_equal(RIG_RUN(r, LINE, "mode=sync", "workers=1"), OK);
    assert_int_equal(RIG_RUN(r, LINE, "mode=async", VIRTUAL, "workers=1"), OK);
    /* The program uses vectors in place; slices of two servers are copied. */
    assert_int_equal(RIG_RUN(r, LINE, "mode=async", "workers=1", "servers=2"), OK);
    process_expect_answer(r, "SELECT count(DISTINCT parameters_sha256) FROM run", "1");
}

static void a_run_of_an_external_model_replays(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, LINE, "mode=async", "workers=3"), OK);
    assert_int_equal(RIG_RUN(r, "replay", "last"), OK);
    assert_int_equal(RIG_RUN(r, "replay", "last", "damping=inverse"), OK);
}

static void a_checkpoint_of_an_external_model_starts_a_run(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, LINE, "mode=sync", "checkpoint=a.safetensors"), OK);
    assert_int_equal(RIG_RUN(r, LINE, "mode=async", "initial=a.safetensors"), OK);
    process_expect_answer(r, "SELECT test_loss < 0.1 FROM evaluation WHERE run_id = 2 LIMIT 1",
                          "1");
}

/* A command is started once for each thread of a virtual cluster, not once for each worker. */
static void a_virtual_cluster_starts_one_program_a_thread(void **state)
{
    struct process_rig *r = *state;
    char command[600];
    snprintf(command, sizeof command, "model.command=echo x >> started; exec %s",
             line_command + strlen("model.command="));
    assert_int_equal(
        RIG_RUN(r, EXTERNAL, command, VIRTUAL, "workers=40", "virtual.threads=2", "updates=60"),
        OK);
    assert_int_equal(process_shell(r, "wc -l < started"), OK);
    assert_int_equal(atoi(process_output(r)), 2);
}

/* ---- programs in the shell ------------------------------------------------------------------- */

static const char script[] =
    "echo $$ >> pids\n"
    "while read -r line; do echo \"$line\" >>requests; case $line in\n"
    "*'\"type\":\"open\"'*) echo ${OPEN:-'{\"parameters\":[{\"name\":\"w\",\"shape\":[4]}],"
    "\"samples\":{\"train\":100,\"test\":10},\"classes\":0}'} ;;\n"
    "*'\"type\":\"gradient\"'*) eval \"$GRADIENT\" ;;\n"
    "*) echo '{\"loss\":1}' ;;\n"
    "esac; done <&3 >&3\n";

#define ONE "'{\"loss\":1}'"

/* ---- memory that both processes map --------------------------------------------------------- */

/* Counts the requested gradients whose `vector` (parameters or gradient) was copied (region 0), or
 * was not. */
static int gradients_asked(struct process_rig *r, const char *vector, bool copied)
{
    char command[200];
    snprintf(command, sizeof command,
             "grep '\"type\":\"gradient\"' requests | grep -c '\"%s\":\\[%s,'", vector,
             copied ? "0" : "[1-9][0-9]*");
    (void)process_shell(r, command);
    return atoi(process_output(r));
}

static void parameters_and_gradients_are_used_in_place(void **state)
{
    struct process_rig *r = *state;
    static const struct {
        const char *settings[4];
        bool copied; /* the vectors lie in the memory of several servers, or in MPI's */
    } cases[] = {
        {{"mode=async", "workers=2", "servers=1", "transport=ipc"}, false},
        {{"mode=async", "workers=2", "servers=1", "transport=tcp"}, false},
        {{"mode=async", "engine=virtual", "pace=gamma", "workers=9"}, false},
        {{"mode=sync", "engine=virtual", "pace=gamma", "workers=4"}, false},
        {{"mode=sync", "workers=2", "communicator=ring"}, false},
        {{"mode=sync", "workers=2", "communicator=shared"}, true},
        {{"mode=async", "workers=2", "servers=2"}, true},
    };
    process_write(r, "peer.sh", script);
    setenv("GRADIENT", "echo " ONE, 1);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const char *argv[12] = {EXTERNAL, "model.command=sh peer.sh", "updates=20"};
        for (size_t k = 0; k < COUNT_OF(cases[i].settings); k++)
            argv[4 + k] = cases[i].settings[k];
        if (process_run(r, argv) != OK)
            fail_msg("case %zu: %s", i, process_errors(r));
        for (unsigned k = 0; k < 2; k++) {
            const char *vector = k == 0 ? "parameters" : "gradient";
            assert_true(gradients_asked(r, vector, cases[i].copied) >= 20);
            assert_int_equal(gradients_asked(r, vector, !cases[i].copied), 0);
        }
        assert_int_equal(process_shell(r, "rm requests"), OK);
    }
    unsetenv("GRADIENT");
}

/* Tries to change parameters that others own. "intrude" maps the file again and writes to it;
 * "write" writes to the existing mapping. */
static void attack(const json_t *request, const char *how)
{
    const char *path = json_string_value(json_object_get(request, "path"));
    const json_int_t region = json_integer_value(json_object_get(request, "region"));
    if (path == NULL || json_is_true(json_object_get(request, "writable")))
        return;
    if (strcmp(how, "write") == 0) {
        signal(SIGSEGV, SIG_DFL); /* a sanitizer would turn it into an exit code */
        memset(regions[region], 0x55, 16);
        return;
    }
    const size_t bytes = (size_t)json_integer_value(json_object_get(request, "bytes"));
    const int fd = open(path, O_RDWR);
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at != MAP_FAILED)
        memset(at, 0x55, bytes);
    if (mprotect(regions[region], bytes, PROT_READ | PROT_WRITE) == 0)
        memset(regions[region], 0x55, bytes);
    char garbage[8192] = {0x55};
    if (pwrite(fd, garbage, sizeof garbage, 0) > 0 || ftruncate(fd, 0) == 0)
        _exit(77);
    close(fd);
}

static int hostile_main(const char *how)
{
    FILE *socket = fdopen(atoi(getenv("GRADLAG_SOCKET_FD")), "r+");
    char *line = NULL;
    size_t room = 0;
    while (getline(&line, &room, socket) > 0) {
        json_t *request = json_loads(line, 0, NULL), *said = answer(request);
        attack(request, how);
        json_dumpf(said, socket, JSON_COMPACT);
        fputc('\n', socket);
        fflush(socket);
        json_decref(said);
        json_decref(request);
    }
    free(line);
    return 0;
}

static void a_program_cannot_change_parameters(void **state)
{
    struct process_rig *r = *state;
    static const char *const modes[][3] = {
        {"mode=async", "engine=real", "pace=none"},
        {"mode=async", "engine=virtual", "pace=gamma"},
        {"mode=sync", "engine=real", "pace=none"},
    };
    char command[600];
    for (size_t i = 0; i < COUNT_OF(modes); i++) {
        const char *const *m = modes[i];
        snprintf(command, sizeof command, "%.*sintrude", (int)strlen(line_command) - 4,
                 line_command);
        assert_int_equal(RIG_RUN(r, LINE, m[0], m[1], m[2], "workers=1"), OK);
        assert_int_equal(RIG_RUN(r, LINE, command, m[0], m[1], m[2], "workers=1"), OK);
        snprintf(command, sizeof command, "%.*swrite", (int)strlen(line_command) - 4, line_command);
        assert_int_equal(RIG_RUN(r, LINE, command, m[0], m[1], m[2], "workers=1"), ERROR_PEER);
        process_expect_errors_contain(r, "11");
    }
    process_expect_answer(
        r, "SELECT count(DISTINCT parameters_sha256) FROM run WHERE status = 'finished'", "1");
}

/* ---- programs that fail -------------------------------------------------------------------- */

/* The shell commands of `gradient`; the answer to `open` (NULL: a valid one); the exit code; words
 * of the test that the message must contain. */
struct fault {
    const char *gradient, *open;
    int code;
    const char *named;
};
#define TWO_CLASSES                                                                                \
    "{\"parameters\":[{\"name\":\"w\",\"shape\":[4]}],\"samples\":{\"train\":9,\"test\":5},"       \
    "\"classes\":2}"
#define SLICE(shape)                                                                               \
    "{\"parameters\":[{\"name\":\"w\",\"shape\":" shape "}],\"samples\":{\"train\":9}}"

static const struct fault faults[] = {
    {"exit 9", NULL, ERROR_PEER, "9"},
    {"kill -9 $$", NULL, ERROR_PEER, "9"},
    {"sleep 1000", NULL, ERROR_PEER, "timeout_s"},
    {"echo moribund >&2; exit 1", NULL, ERROR_PEER, "moribund"},
    {"echo '{\"error\":\"no such luck\"}'", NULL, ERROR_DATA, "no such luck"},
    {"echo nonsense", NULL, ERROR_DATA, "gradient"},
    {"echo '{}'", NULL, ERROR_DATA, "loss"},
    {"echo '{\"loss\":1,\"correct\":1000}'", NULL, ERROR_DATA, "correct"},
    {"echo '{\"loss\":1,\"correct\":1.0}'", NULL, ERROR_DATA, "correct"},
    {"echo " ONE "; echo " ONE, NULL, ERROR_DATA, "model.command"},
    {"printf '{\"loss\":1}\\n\\0'", NULL, ERROR_DATA, "gradient"}, /* without a wait */
    {"sleep 1000 & exit 7", NULL, ERROR_PEER, "7"},
    {"echo '{\"loss\":null}'", NULL, ERROR_DIVERGED, "loss"},
    {"echo " ONE, "{}", ERROR_DATA, "parameters"},
    {"echo " ONE, SLICE("[]"), ERROR_DATA, "shape"},
    {"echo " ONE, SLICE("[1,1,1,1,1]"), ERROR_DATA, "shape"},
    {"echo " ONE, SLICE("[0]"), ERROR_DATA, "shape"},
    {"echo " ONE, SLICE("[4294967295,4294967295,4294967295]"), ERROR_DATA, "'w'"},
    {"echo " ONE, SLICE("[2,2],\"hidden\":1"), ERROR_DATA, "hidden"},
    {"echo " ONE, "{\"parameters\":[{\"name\":\"w\",\"shape\":[4]}]}", ERROR_DATA, "train"},
    {"echo " ONE,
     "{\"parameters\":[{\"name\":\"w\",\"shape\":[4]},{\"name\":\"w\",\"shape\":[4]}]}", ERROR_DATA,
     "'w'"},
    {"echo " ONE, "{\"parameters\":[{\"name\":\"optimizer0.w\",\"shape\":[4]}]}", ERROR_DATA,
     "'optimizer0.w'"},
    {"echo " ONE, TWO_CLASSES, ERROR_DATA, "correct"},
    {"echo '{\"loss\":1,\"correct\":1}'", TWO_CLASSES, ERROR_DATA, "'evaluate'"},
};

static void a_program_that_fails_is_named_and_leaves_nothing(void **state)
{
    struct process_rig *r = *state;
    process_write(r, "peer.sh", script);
    setenv("GRADIENT", "echo " ONE, 1);
    unsetenv("OPEN");
    assert_int_equal(RIG_RUN(r, EXTERNAL, "model.command=sh peer.sh", "updates=20"), OK);
    setenv("GRADIENT", "echo '{\"loss\":1,\"correct\":null}'", 1); /* it has no classes */
    assert_int_equal(RIG_RUN(r, EXTERNAL, "model.command=sh peer.sh", "updates=20"), OK);
    for (size_t i = 0; i < COUNT_OF(faults); i++) {
        for (unsigned virtual = 0; virtual < 2; virtual ++) {
            /* The run waits for 20 × timeout_s, but only for the program that hangs. */
            const bool hangs = strcmp(faults[i].named, "timeout_s") == 0;
            setenv("GRADIENT", faults[i].gradient, 1);
            if (faults[i].open != NULL)
                setenv("OPEN", faults[i].open, 1);
            const int code = RIG_RUN(r, EXTERNAL, "model.command=sh peer.sh", "updates=20",
                                     hangs ? "timeout_s=0.2" : "timeout_s=10", "workers=2",
                                     virtual ? "engine=virtual" : "engine=real",
                                     virtual ? "pace=constant" : "pace=none");
            if (code != faults[i].code || strstr(process_errors(r), faults[i].named) == NULL)
                fail_msg("%s %s: code %d: %s", faults[i].gradient, faults[i].open, code,
                         process_errors(r));
            process_expect_none_running(r);
        }
    }
    unsetenv("OPEN");
    unsetenv("GRADIENT");
}

/* The server may report the worker's goodbye before the worker's own report comes. */
static void the_row_has_the_error_of_a_program_in_one_line(void **state)
{
    struct process_rig *r = *state;
    process_write(r, "peer.sh", script);
    setenv("GRADIENT", "echo moribund >&2; echo '{\"error\":\"no such luck\"}'", 1);
    assert_int_equal(
        RIG_RUN(r, EXTERNAL, "model.command=sh peer.sh", "workers=1", "updates=20", "mode=async"),
        ERROR_DATA);
    process_expect_errors_contain(r, "moribund");
    process_expect_answer(
        r, "SELECT error LIKE '%no such luck%moribund%' AND instr(error, '?') = 0 FROM run", "1");
    unsetenv("GRADIENT");
}

/* Every rank ends with the error of the one whose program failed. */
static void a_program_that_fails_on_one_rank_is_named(void **state)
{
    struct process_rig *r = *state;
    process_write(r, "peer.sh", script);
    setenv("GRADIENT",
           "case $line in *'\"worker\":1'[,}]*) echo nonsense ;; *) echo " ONE " ;; esac", 1);
    assert_int_equal(
        RIG_RUN(r, EXTERNAL, "model.command=sh peer.sh", "mode=sync", "workers=3", "updates=20"),
        ERROR_DATA);
    process_expect_answer(r, "SELECT status, error LIKE '%rank 1: %gradient%' FROM run",
                          "failed,1");
    unsetenv("GRADIENT");
}

static void a_sweep_names_the_file_of_its_failed_runs_quoted(void **state)
{
    struct process_rig *r = *state;
    process_write(r, "peer.sh", script);
    setenv("GRADIENT", "exit 9", 1);
    assert_int_equal(RIG_RUN(r, "sweep", "model=external", "model.command=sh peer.sh", "updates=5",
                             VIRTUAL, "results=a b.db", "seed=1,2"),
                     ERROR_OTHER);
    process_expect_errors_contain(r, "failures 'results=a b.db'`");
    unsetenv("GRADIENT");
}

/* A logarithm of a density, for example. */
static void a_run_with_negative_losses_resumes(void **state)
{
    struct process_rig *r = *state;
    process_write(r, "peer.sh", script);
    setenv("GRADIENT", "echo '{\"loss\":-3}'", 1);
    assert_int_equal(RIG_RUN(r, EXTERNAL, "model.command=sh peer.sh", "updates=20", "workers=1",
                             "checkpoint=at-{version}.safetensors", "checkpoint_every=1"),
                     OK);
    char *from = text_copy(process_ask(r, "SELECT 'resume=' || path FROM checkpoint LIMIT 1"));
    if (RIG_RUN(r, EXTERNAL, "model.command=sh peer.sh", "updates=20", "workers=1", from) != OK)
        fail_msg("%s", process_errors(r));
    process_expect_answer(r, "SELECT count(*) FROM run WHERE status = 'finished' AND updates = 20",
                          "2");
    memory_free(from);
    unsetenv("GRADIENT");
}

static void a_command_that_cannot_start_is_an_error(void **state)
{
    struct process_rig *r = *state;
    assert_int_equal(RIG_RUN(r, EXTERNAL, "model.command=./not-there"), ERROR_PEER);
    process_expect_error(r, "not-there");
    assert_int_equal(RIG_RUN(r, EXTERNAL), ERROR_USAGE);
    process_expect_error(r, "model.command");
}

static void a_program_ends_with_the_gradlag_that_started_it(void **state)
{
    struct process_rig *r = *state;
    pid_t found[1];
    process_write(r, "peer.sh", script);
    setenv("GRADIENT", "echo here > waiting; (sleep 1000); echo " ONE, 1);
    process_start(r, (const char *const[]){EXTERNAL, "model.command=sh peer.sh", VIRTUAL,
                                           "virtual.threads=1", NULL});
    process_await(r, "1000", found, 1);
    kill(r->pid, SIGKILL);
    assert_int_equal(process_wait(r), 128 + SIGKILL);
    r->ended = 0;
    process_expect_none_running(r);
    unsetenv("GRADIENT");
}

/* The third start of the program is for a worker. It kills this worker before the worker has
 * joined. */
static void a_worker_that_dies_before_it_joins_is_not_awaited(void **state)
{
    struct process_rig *r = *state;
    char command[1200];
    snprintf(command, sizeof command,
             "read -r _ _ _ parent _ < /proc/$PPID/stat\n"
             "if grep -qz '^worker$' /proc/$parent/cmdline && ! mkdir worker 2>/dev/null; then\n"
             "kill -9 $parent; exit 1; fi\n%s",
             script);
    process_write(r, "peer.sh", command);
    setenv("GRADIENT", "echo " ONE, 1);
    assert_int_equal(RIG_RUN(r, EXTERNAL, "model.command=sh peer.sh", "mode=async", "workers=2",
                             "updates=9", "on_lost=continue"),
                     OK);
    process_expect_answer(r, "SELECT updates FROM run", "9");
    process_expect_answer(r, "SELECT count(*) FROM event WHERE code = 'workers_missing'", "1");
    unsetenv("GRADIENT");
}

/* After Ctrl-C the run waits for the program for timeout_s, not for 20 × timeout_s. */
static void ctrl_c_ends_a_run_whose_program_hangs(void **state)
{
    struct process_rig *r = *state;
    pid_t found[1];
    process_write(r, "peer.sh", script);
    setenv("GRADIENT", "(sleep 1000); echo " ONE, 1);
    process_start(r, (const char *const[]){EXTERNAL, "model.command=sh peer.sh", VIRTUAL,
                                           "timeout_s=5", "workers=4", NULL});
    process_await(r, "1000", found, 1);
    const uint64_t asked_ns = clock_ns();
    kill(r->pid, SIGINT);
    assert_int_equal(process_wait(r), ERROR_PEER);
    assert_true(clock_ns() - asked_ns < 50 * 1000000000ULL);
    r->ended = 0;
    process_expect_none_running(r);
    unsetenv("GRADIENT");
}

/* ---- settings ------------------------------------------------------------------------------ */

static void settings_without_effect_are_refused(void **state)
{
    struct process_rig *r = *state;
    static const char *const idle[] = {"device=cuda",         "precision=bf16",
                                       "augment=standard",    "dataset=gaussian",
                                       "label_smoothing=0.1", "mode=pipeline"};
    assert_int_equal(RIG_RUN(r, LINE, "--dry-run"), OK);
    for (size_t i = 0; i < COUNT_OF(idle); i++) {
        char key[32];
        snprintf(key, sizeof key, "%.*s", (int)strcspn(idle[i], "="), idle[i]);
        assert_int_equal(RIG_RUN(r, LINE, idle[i], "--dry-run"), ERROR_USAGE);
        process_expect_error(r, key);
    }
    assert_int_equal(RIG_RUN(r, LINE, "precision=auto", VIRTUAL), OK); /* says why it is fp32 */
    process_expect_answer(r,
                          "SELECT config ->> '$.precision' || ' ' || instr(detail, 'fp32:') FROM "
                          "run JOIN event ON run_id = run.id WHERE code = 'precision'",
                          "fp32 1");
    assert_int_equal(RIG_RUN(r, "run", "dataset=external", "--dry-run"), ERROR_USAGE);
    process_expect_error(r, "external");
}

/* Exactly `times` starts of the program were told this value of key model.x. */
static void expect_told(struct process_rig *r, const char *value, int times)
{
    char command[128];
    snprintf(command, sizeof command, "grep -c '\"x\":\"%s\"' requests", value);
    (void)process_shell(r, command);
    assert_int_equal(atoi(process_output(r)), times);
}

static void keys_reach_the_program_wherever_they_are_written(void **state)
{
    struct process_rig *r = *state;
#define PEER "model.command=sh peer.sh", VIRTUAL, "virtual.threads=1", "updates=5"
    process_write(r, "peer.sh", script);
    setenv("GRADIENT", "echo " ONE, 1);
    assert_int_equal(RIG_RUN(r, "run", "model.x=5", "model=external", PEER), OK);
    expect_told(r, "5", 1);
    assert_int_equal(RIG_RUN(r, "sweep", "model=external", "model.x=6,7", PEER), OK);
    expect_told(r, "6", 1);
    expect_told(r, "7", 1);
    process_expect_answer(r, "SELECT count(DISTINCT config_hash) FROM run", "3");
    /* The choice of another model drops the keys of the model chosen before. */
    process_write(r, "base.yaml", "model: mlp\nmodel.activation: tanh\n");
    assert_int_equal(RIG_RUN(r, "run", "base.yaml", "model=external", PEER, "--dry-run"), OK);
    assert_int_equal(RIG_RUN(r, "run", "model=external", PEER, "model.x=\xe9"), ERROR_USAGE);
    process_expect_error(r, "model.x");
    unsetenv("GRADIENT");
}

/* The line has no validation split. */
static void a_search_without_a_validation_split_ends_after_its_first_trial(void **state)
{
    struct process_rig *r = *state;
    struct text text = {0};
    for (int again = 0; again < 2; again++) {
        assert_int_equal(RIG_RUN(r, "sweep", "model=external", line_command, "updates=20", VIRTUAL,
                                 "warmup_epochs=0", "momentum=0", "search=random",
                                 "search.trials=3", "lr=0.1..0.3"),
                         ERROR_USAGE);
        process_expect_errors_contain(r, "dataset=external");
        assert_null(strstr(process_output(r), "diverged"));
        process_expect_answer(r, "SELECT count(*) FROM run WHERE status = 'finished'", "1");
    }
    text_add(&text,
             "name: line\nquestion: q\nworkers: [2]\nmetric: loss\nsettings: {model: external, "
             "model.command: '%s', engine: virtual, pace: gamma, updates: 20, warmup_epochs: 0, "
             "momentum: 0}\narms: {a: {label: a, tune: {lr: [0.1, 0.2, 0.3]}}}\n",
             strchr(line_command, '=') + 1);
    process_write(r, "line.yaml", text.at);
    text_free(&text);
    assert_int_equal(RIG_RUN(r, "reproduce", "line.yaml", "--quiet"), ERROR_USAGE);
    assert_int_equal(RIG_RUN(r, "reproduce", "line.yaml", "--no-run"), ERROR_USAGE);
    process_expect_errors_contain(r, "dataset=external");
    assert_null(strstr(process_output(r), "diverged"));
    process_expect_answer(r, "SELECT count(*) FROM run WHERE status = 'finished'", "2");
    process_expect_nothing_left(r);
}

/* Its losses at model.x=2 are NaN; it has no classes. */
static const char nan_at_2[] =
    "while read -r line; do case $line in\n"
    "*'\"type\":\"open\"'*) case $line in *'\"x\":\"2\"'*) loss=null ;; *) loss=1 ;; esac\n"
    "echo '{\"parameters\":[{\"name\":\"w\",\"shape\":[4]}],\"samples\":{\"train\":100,"
    "\"validation\":10,\"test\":10}}' ;;\n"
    "*'\"type\":\"evaluate\"'*) echo '{\"loss\":'$loss'}' ;;\n"
    "*) echo '{\"loss\":1}' ;;\n"
    "esac; done <&3 >&3\n";

static void a_trial_whose_validation_loss_is_nan_is_not_the_best(void **state)
{
    struct process_rig *r = *state;
    process_write(r, "nan.sh", nan_at_2);
    process_write(r, "nan.yaml",
                  "name: nan\nquestion: q\nworkers: [1]\nmetric: loss\nsettings: {model: external, "
                  "model.command: sh nan.sh, engine: virtual, pace: gamma, updates: 5}\n"
                  "arms: {a: {label: a, tune: {model.x: [2, 1]}}}\n");
    if (RIG_RUN(r, "reproduce", "nan.yaml", "--quiet") != OK)
        fail_msg("%s", process_errors(r));
    process_expect_answer(r,
                          "SELECT DISTINCT e.not_a_number FROM evaluation AS e JOIN run ON run.id "
                          "= run_id WHERE settings ->> '$.\"model.x\"' = '2'",
                          "\"validation_loss,test_loss\"");
    process_expect_answer(r,
                          "SELECT group_concat(DISTINCT settings ->> '$.\"model.x\"') FROM run "
                          "WHERE experiment = 'nan'",
                          "1");
    assert_int_equal(RIG_RUN(r, EXTERNAL, "model.command=sh nan.sh", "updates=5", "model.x=2"), OK);
    process_expect_line(r, "finished", "accuracy not measured  loss not finite");
}

/* One loss, of the validation split, is all that the program gives. */
static void the_summary_of_a_run_names_its_validation_loss(void **state)
{
    struct process_rig *r = *state;
    process_write(r, "peer.sh", script);
    setenv("GRADIENT", "echo " ONE, 1);
    setenv("OPEN",
           "{\"parameters\":[{\"name\":\"w\",\"shape\":[4]}],\"samples\":{\"train\":100,"
           "\"validation\":10}}",
           1);
    assert_int_equal(RIG_RUN(r, EXTERNAL, "model.command=sh peer.sh", "updates=5"), OK);
    process_expect_line(r, "finished", "accuracy not measured  validation loss 1.0000");
    unsetenv("OPEN");
    unsetenv("GRADIENT");
}

int main(int argc, char **argv)
{
    char self[400] = "";
    if (argc == 2 && strcmp(argv[1], "line") == 0)
        return example_main();
    if (argc == 2 && getenv("GRADLAG_SOCKET_FD") != NULL)
        return hostile_main(argv[1]);
    assert_true(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
    snprintf(line_command, sizeof line_command, "model.command=%s line", self);
#define PROCESS_TEST(name) cmocka_unit_test_setup_teardown(name, process_set_up, process_tear_down)
    const struct CMUnitTest tests[] = {
        PROCESS_TEST(every_mode_trains_an_external_model),
        PROCESS_TEST(one_worker_computes_the_same_bits_in_every_mode),
        PROCESS_TEST(a_run_of_an_external_model_replays),
        PROCESS_TEST(a_checkpoint_of_an_external_model_starts_a_run),
        PROCESS_TEST(a_virtual_cluster_starts_one_program_a_thread),
        PROCESS_TEST(parameters_and_gradients_are_used_in_place),
        PROCESS_TEST(a_program_cannot_change_parameters),
        PROCESS_TEST(a_program_that_fails_is_named_and_leaves_nothing),
        PROCESS_TEST(the_row_has_the_error_of_a_program_in_one_line),
        PROCESS_TEST(a_program_that_fails_on_one_rank_is_named),
        PROCESS_TEST(a_sweep_names_the_file_of_its_failed_runs_quoted),
        PROCESS_TEST(a_run_with_negative_losses_resumes),
        PROCESS_TEST(a_command_that_cannot_start_is_an_error),
        PROCESS_TEST(a_program_ends_with_the_gradlag_that_started_it),
        PROCESS_TEST(a_worker_that_dies_before_it_joins_is_not_awaited),
        PROCESS_TEST(ctrl_c_ends_a_run_whose_program_hangs),
        PROCESS_TEST(settings_without_effect_are_refused),
        PROCESS_TEST(keys_reach_the_program_wherever_they_are_written),
        PROCESS_TEST(a_search_without_a_validation_split_ends_after_its_first_trial),
        PROCESS_TEST(a_trial_whose_validation_loss_is_nan_is_not_the_best),
        PROCESS_TEST(the_summary_of_a_run_names_its_validation_loss),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
