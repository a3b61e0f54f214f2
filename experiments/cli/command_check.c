/*
 * command_check.c — `gradlag check`: can this machine run gradlag, and how fast is it?
 *
 * It prints one row per fact. A missing thing is an error only if the user requested it: a GPU by
 * device=cuda, a dataset or a results file by its key. Rows of GPUs are in check_gpu.c.
 */
#include "base/clock.h"
#include "base/memory.h"
#include "base/text.h"
#include "base/thread.h"
#include "experiments/bench/onednn_bound.h"
#include "experiments/cli/check.h"
#include "experiments/run/child_process.h"
#include "experiments/command.h"
#include "experiments/config/config.h"
#include "experiments/print_columns.h"
#include "experiments/run/provenance.h"
#include "experiments/run/role.h"
#include "experiments/sweep/precision_choice.h"
#include "results/store/recorder.h"
#include "sync/communicator/communicator.h"
#include "worker/data/dataset.h"
#include "worker/model/model.h"
#include "worker/worker.h"

#include <errno.h>
#include <libgen.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
    COPY_BYTES = 1 << 28,
    COPIES = 5,
    PRODUCT = 1024, /* m, n and k of the measured matrix product */
    PRODUCTS = 10,
    LINKS_LIMIT_S = 60,
};

const char command_check_help[] =
    "gradlag check [key=value…] [--quick] [--links] [--json]\n"
    "mpirun -n 2 -H A,B gradlag check --links\n"
    "gradlag check --listen [endpoint=…] [curve=FOLDER|trusted_network=yes]\n"
    "gradlag check endpoint=tcp://HOST:5555 [curve=FOLDER|trusted_network=yes]\n\n"
    "Prints versions, processor, memory, every visible GPU, the dataset and the results file,\n"
    "and measures matrix products and copies. The exit code is 0 unless something that you\n"
    "requested (device=cuda, dataset=…, results=…) is missing.\n\n"
    "  --quick  only inspect, measure nothing but what --links asks for\n"
    "  --links  also measure an allreduce of 2 ranks, a push and pull between 2 processes, and\n"
    "           messages with and without encryption.\n"
    "           Under mpirun on several hosts: latency and bandwidth of each pair of hosts,\n"
    "           and an allreduce over all ranks\n"
    "  --listen wait for one `gradlag check endpoint=…` on another host and answer it\n"
    "  --json   print one JSON object per line\n\n"
    "precision=auto prints which number format `gradlag run` would choose with these settings.\n\n"
    "  gradlag check --quick device=cuda\n";

/* ---- rows ---------------------------------------------------------------------------------------
 */

static void print_row(const char *about, const char *what, const char *value)
{
    print_padded(stdout, about, 14);
    print_padded(stdout, what, 26);
    printf("%s\n", value);
}

void check_text(const struct check *c, const char *about, const char *what, const char *value)
{
    struct text line = {0};
    if (!c->json) {
        print_row(about, what, value);
        return;
    }
    text_add(&line, "{\"check\":");
    text_add_json(&line, about);
    text_add(&line, ",\"what\":");
    text_add_json(&line, what);
    text_add(&line, ",\"text\":");
    text_add_json(&line, value);
    text_add(&line, "}");
    puts(line.at);
    text_free(&line);
}

void check_number(const struct check *c, const char *about, const char *what, double value,
                  const char *unit)
{
    struct text line = {0};
    if (!c->json) {
        text_add(&line, "%.4g %s", value, unit);
        print_row(about, what, line.at);
    } else {
        text_add(&line, "{\"check\":");
        text_add_json(&line, about);
        text_add(&line, ",\"what\":");
        text_add_json(&line, what);
        text_add(&line, ",\"value\":%.6g,\"unit\":", value);
        text_add_json(&line, unit);
        text_add(&line, "}");
        puts(line.at);
    }
    text_free(&line);
    fflush(stdout);
}

int check_ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void check_failed(struct check *c, const char *about, status code, bool wanted)
{
    const char *what = code == ERROR_RESULTS ? "cannot be used" : "not there";
    check_text(c, about, wanted ? "MISSING" : what, error_message());
    if (wanted && c->verdict == OK) {
        c->verdict = code;
        c->why = text_copy(error_message());
    }
}

/* ---- program and processor ----------------------------------------------------------------------
 */

static void check_versions(const struct check *c)
{
    struct version v;
    for (size_t i = 0; provenance_version(i, &v); i++)
        check_text(c, "version", v.name, v.value != NULL ? v.value : "unknown");
    check_text(c, "version", "NCCL", sync_nccl_version());
}

static void check_processor(const struct check *c)
{
    char name[128];
    struct text sets = {0};
    processor_name(name, sizeof name);
    check_text(c, "cpu", "model", name);
    check_number(c, "cpu", "processors", processor_count(), "");
#if defined(__x86_64__)
    const struct {
        const char *name;
        int there;
    } known[] = {
        {"avx2", __builtin_cpu_supports("avx2")},
        {"fma", __builtin_cpu_supports("fma")},
        {"avx512f", __builtin_cpu_supports("avx512f")},
        {"avx512vnni", __builtin_cpu_supports("avx512vnni")},
        {"avx512bf16", __builtin_cpu_supports("avx512bf16")},
    };
    for (size_t i = 0; i < COUNT_OF(known); i++)
        if (known[i].there)
            text_add(&sets, "%s%s", sets.length > 0 ? " " : "", known[i].name);
#endif
    check_text(c, "cpu", "vector instructions",
               sets.length > 0 ? sets.at : "none of avx2, fma, avx512*");
    text_free(&sets);
    const double total = memory_bytes() / (1 << 30);
    const double page = (double)sysconf(_SC_PAGESIZE) / (1 << 30);
    check_number(c, "memory", "total", total, "GiB");
    check_number(c, "memory", "free", fmin((double)sysconf(_SC_AVPHYS_PAGES) * page, total), "GiB");
}

/* The copy rate of one thread, bytes read + written. A parameter server applies on one thread. */
static status check_copy(const struct check *c)
{
    status result = OK;
    char *from = NULL, *to = NULL;
    double best = 0;
    TRY(memory_new(&from, COPY_BYTES, 1, "the copy benchmark"));
    TRY(memory_new(&to, COPY_BYTES, 1, "the copy benchmark"));
    memset(from, 1, COPY_BYTES);
    for (int i = 0; i <= COPIES; i++) {
        double began = clock_seconds();
        memcpy(to, from, COPY_BYTES);
        /* Keeps the compiler from removing the copy. */
        __asm__ volatile("" : : "r"(to) : "memory");
        double rate = 2.0 * COPY_BYTES / (clock_seconds() - began);
        best = i > 0 && rate > best ? rate : best;
    }
    check_number(c, "memory", "copy, one thread", best * 1e-9, "GB/s");
done:
    memory_free(from);
    memory_free(to);
    return result;
}

static status check_products(const struct check *c, unsigned threads)
{
    status result = OK;
    onednn_bound *products = NULL;
    char what[64];
    double best = 0;
    const struct op_description d = {
        .kind = OP_LINEAR,
        .flags = OP_TRAINING | OP_INPUT_GRADIENT,
        .batch = PRODUCT,
        .input = {PRODUCT, 1, 1},
        .output = {PRODUCT, 1, 1},
    };
    TRY(onednn_bound_open(&products, &d, 1, true, &(struct backend_options){.threads = threads}));
    for (int i = 0; i <= PRODUCTS; i++) {
        double began = clock_seconds();
        TRY(onednn_bound_run(products));
        double rate = 3 * 2.0 * PRODUCT * PRODUCT * PRODUCT / (clock_seconds() - began);
        best = i > 0 && rate > best ? rate : best;
    }
    snprintf(what, sizeof what, "products fp32, %u thread%s", threads, plural(threads));
    check_number(c, "cpu", what, best * 1e-9, "GFLOP/s");
done:
    onednn_bound_close(&products);
    return result;
}

/* ---- files --------------------------------------------------------------------------------------
 */

/* Starts the program of model=external and asks for its parameters and data. */
static void check_external_model(struct check *c, const options *o)
{
    worker *w = NULL;
    const double began = clock_seconds();
    const status opened = worker_open(
        &w, &(struct worker_options){.settings = o, .count = 1, .parameters_only = true});
    if (opened != OK) {
        check_failed(c, "model", opened, true);
        return;
    }
    struct text line = {0};
    text_add(&line, "%zu parameters, %llu training samples, opened in %.2f s",
             worker_parameter_count(w), (unsigned long long)worker_epoch_samples(w),
             clock_seconds() - began);
    check_text(c, "model", worker_device_description(w), line.at);
    text_free(&line);
    worker_close(&w);
}

static void check_dataset(struct check *c, const options *o)
{
    struct dataset data = {0};
    double began = clock_seconds();
    const char *name = options_text(o, "dataset");
    bool wanted = options_was_set(o, "dataset") || options_was_set(o, "dataset.path");
    status found = dataset_open(&data, o, true);
    if (found != OK) {
        check_failed(c, "dataset", found, wanted);
        return;
    }
    struct text line = {0};
    text_add(&line, "%u + %u + %u samples of ", data.count[SPLIT_TRAIN],
             data.count[SPLIT_VALIDATION], data.count[SPLIT_TEST]);
    if (data.tokens)
        text_add(&line, "%u tokens", data.height);
    else
        text_add(&line, "%u×%u×%u", data.channels, data.height, data.width);
    if (data.entropy_rate > 0)
        text_add(&line, ", entropy rate %.4f nats per token", data.entropy_rate);
    text_add(&line, ", opened in %.2f s", clock_seconds() - began);
    check_text(c, "dataset", name, line.at);
    text_free(&line);
    dataset_close(&data);
}

/* Opens an existing file as a run does; for a new file checks that its folder is writable. */
static status results_ready(const char *path)
{
    status result = OK;
    recorder *r = NULL;
    char copy[4096];
    if (access(path, F_OK) == 0) {
        TRY(recorder_open(&r, path));
        goto done;
    }
    snprintf(copy, sizeof copy, "%s", path);
    const char *folder = dirname(copy);
    if (access(folder, W_OK | X_OK) != 0) {
        FAIL(ERROR_RESULTS,
             "%s cannot be created in folder %s: %s; set results= to a file in another folder",
             path, folder, strerror(errno));
    }
done:
    recorder_close(&r);
    return result;
}

static void check_results(struct check *c, const options *o)
{
    const char *path = options_text(o, "results");
    bool there = access(path, F_OK) == 0;
    status ready = results_ready(path);
    if (ready != OK) {
        check_failed(c, "results", ready, options_was_set(o, "results"));
        return;
    }
    check_text(c, "results", path, there ? "writable" : "can be created");
}

/* ---- links --------------------------------------------------------------------------------------
 */

/* Runs `gradlag bench …` as a child process, which starts ranks and prints its own rows. */
static void check_link(struct check *c, const char *what, const char *const *arguments)
{
    enum { MOST = 12 };
    const char *argv[MOST + 1] = {role_program(), "bench"};
    int n = 2;
    for (; *arguments != NULL && n < MOST - 1; arguments++)
        argv[n++] = *arguments;
    if (c->json)
        argv[n++] = "--json";
    argv[n] = NULL;
    struct child child;
    uint64_t limit = clock_ns() + LINKS_LIMIT_S * 1000000000ull;
    fflush(stdout);
    status ended = child_start_with_stdout(&child, argv, NULL, -1);
    while (ended == OK && child.running && !child_poll(&child)) {
        if (clock_ns() > limit) {
            child_kill(&child);
            ended = error_set(ERROR_PEER, __FILE__, __LINE__,
                              "`gradlag bench %s` did not end within %d s", what, LINKS_LIMIT_S);
            break;
        }
        clock_sleep_until_ns(clock_ns() + 10000000);
    }
    if (ended == OK && child.wait_status != 0) {
        char how[96];
        child_describe(child.wait_status, how);
        ended = error_set(ERROR_PEER, __FILE__, __LINE__, "`gradlag bench %s` %s", what, how);
    }
    if (ended != OK)
        check_failed(c, what, ended, true);
}

static void check_links(struct check *c)
{
    check_link(c, "allreduce",
               (const char *const[]){"allreduce", "ranks=2", "repeats=3", "variants=mpi,shared",
                                     "sizes=1000,100000,4000000", NULL});
    const status encryption = check_encryption(c);
    if (encryption != OK)
        check_failed(c, "zeromq", encryption, true);
    check_link(c, "push-pull",
               (const char *const[]){"push-pull", "repeats=3", "window_s=0.1", "counts=1",
                                     "sizes=400000", "cases=small,shm", NULL});
}

/* ---- the command --------------------------------------------------------------------------------
 */

static status check_all(struct check *c, const options *o)
{
    status result = OK;
    check_versions(c);
    check_processor(c);
    if (!c->quick) {
        unsigned threads = options_was_set(o, "threads") ? (unsigned)options_integer(o, "threads")
                                                         : processor_count();
        TRY(check_copy(c));
        TRY(check_products(c, 1));
        if (threads > 1)
            TRY(check_products(c, threads));
    }
    check_gpus(c, strcmp(options_text(o, "device"), "cuda") == 0);
    if (model_is_external(o))
        check_external_model(c, o);
    else
        check_dataset(c, o);
    check_results(c, o);
    const char *chosen = config_text_or_null(o, "precision_trial");
    if (chosen != NULL)
        check_text(c, "precision", options_text(o, "model"), chosen);
    if (c->links)
        check_links(c);
done:
    return result;
}

static status check_requested(struct check *c, const options *o, bool listen)
{
    if (listen)
        return check_listen(o);
    if (options_text(o, "endpoint")[0] != '\0')
        return check_peer(c, o);
    return c->links && check_is_rank() ? check_between_ranks(c, o) : check_all(c, o);
}

status command_check(int argc, char **argv)
{
    status result = OK;
    struct check c = {0};
    struct settings read = {0};
    options *o = NULL;
    c.json = command_flag(&argc, argv, "--json");
    c.quick = command_flag(&argc, argv, "--quick");
    c.links = command_flag(&argc, argv, "--links");
    bool listen = command_flag(&argc, argv, "--listen");
    TRY(command_no_flags_left(argc, argv, "check", "--quick, --links, --listen and --json"));
    if (listen && (c.quick || c.links))
        FAIL(ERROR_USAGE, "--listen only answers another host: leave --quick and --links out");
    TRY(settings_read_arguments(&read, argc, argv));
    TRY(config_compose(&o, &read));
    TRY(precision_choose(o, PRECISION_MEASURE)); /* before this process opens a GPU */
    TRY(check_requested(&c, o, listen));
    if (c.verdict != OK)
        FAIL(c.verdict, "check: %s", c.why);
done:
    memory_free(c.why);
    options_close(&o);
    settings_free(&read);
    return result;
}
