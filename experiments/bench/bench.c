#include "experiments/bench/bench.h"

#include "base/text.h"
#include "base/suggestion.h"
#include "experiments/command.h"
#include "experiments/run/mpirun.h"
#include "sync/communicator/communicator.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct option common[] = {
    {"repeats", OPTION_INTEGER, "5", 1, BENCH_REPEATS, NULL, NULL,
     "number of measurements of each case"},
    {0},
};

status bench_open(struct bench *b, const char *name, const struct option *table, int argc,
                  char **argv)
{
    status result = OK;
    *b = (struct bench){.name = name};
    TRY(options_open(&b->settings));
    if (table != NULL)
        TRY(options_declare(b->settings, table));
    if (!options_declared(b->settings, "repeats"))
        TRY(options_declare(b->settings, common));
    for (int i = 0; i < argc; i++) {
        const char *equals = strchr(argv[i], '=');
        if (strcmp(argv[i], "--json") == 0) {
            b->json = true;
            continue;
        }
        if (equals == NULL || equals == argv[i])
            FAIL(ERROR_USAGE, "bench %s: argument '%s' is neither key=value nor --json", name,
                 argv[i]);
        char key[64];
        snprintf(key, sizeof key, "%.*s", (int)(equals - argv[i]), argv[i]);
        TRY(options_set(b->settings, key, equals + 1, "command line"));
    }
    b->repeats = (unsigned)options_integer(b->settings, "repeats");
done:
    if (result != OK)
        bench_close(b);
    return result;
}

void bench_close(struct bench *b)
{
    options_close(&b->settings);
}

status bench_pass_on(const struct bench *b, options *o, const char *key, const char *own)
{
    return options_set(o, key, options_value(b->settings, own), "bench");
}

void bench_add(struct bench_series *s, double value)
{
    REQUIRE(s->count < BENCH_REPEATS);
    s->values[s->count++] = value;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The value at position half_steps / 2 of the sorted series; between two values: their mean. */
static double sorted_value(const struct bench_series *s, unsigned half_steps)
{
    REQUIRE(s->count > 0);
    double sorted[BENCH_REPEATS];
    memcpy(sorted, s->values, s->count * sizeof *sorted);
    qsort(sorted, s->count, sizeof *sorted, ascending);
    return 0.5 * (sorted[half_steps / 2] + sorted[(half_steps + 1) / 2]);
}

double bench_median(const struct bench_series *s)
{
    return sorted_value(s, s->count - 1);
}

static double best_value(const struct bench_series *s, const char *unit)
{
    const size_t length = strlen(unit);
    const bool is_rate = (length >= 2 && strcmp(unit + length - 2, "/s") == 0) ||
                         (length >= 4 && strcmp(unit + length - 4, "/min") == 0);
    return sorted_value(s, is_rate ? 2 * (s->count - 1) : 0);
}

/* One line with these numbers, as text or as JSON members. */
static void print_line(const struct bench *b, const char *what, const char *unit,
                       const struct bench_series *s, double value)
{
    struct text line = {0};
    const double best = s != NULL ? best_value(s, unit) : 0;
    if (b->json) {
        text_add(&line, "{\"benchmark\":");
        text_add_json(&line, b->name);
        text_add(&line, ",\"case\":");
        text_add_json(&line, what);
        text_add(&line, ",\"unit\":");
        text_add_json(&line, unit);
        if (s != NULL)
            text_add(&line, ",\"median\":%.9g,\"best\":%.9g,\"repeats\":%u}", value, best,
                     s->count);
        else
            text_add(&line, ",\"value\":%.9g}", value);
    } else if (s != NULL) {
        text_add(&line, "%-10s %-44s %10.5g %-10s (best %.5g, %u repeats)", b->name, what, value,
                 unit, best, s->count);
    } else {
        text_add(&line, "%-10s %-44s %10.5g %s", b->name, what, value, unit);
    }
    puts(line.at);
    fflush(stdout);
    text_free(&line);
}

void bench_report(const struct bench *b, const char *what, const char *unit,
                  const struct bench_series *s)
{
    print_line(b, what, unit, s, bench_median(s));
}

void bench_report_value(const struct bench *b, const char *what, const char *unit, double value)
{
    print_line(b, what, unit, NULL, value);
}

bool bench_next_item(const char **list, char item[64])
{
    if (*list == NULL || **list == '\0')
        return false;
    const char *comma = strchr(*list, ',');
    size_t length = comma != NULL ? (size_t)(comma - *list) : strlen(*list);
    snprintf(item, 64, "%.*s", (int)length, *list);
    *list = comma != NULL ? comma + 1 : *list + length;
    return true;
}

/* ---- dispatch -----------------------------------------------------------------------------------
 */

struct benchmark {
    const char *name;
    bench_function *run;
    const struct option *keys;
    const char *help;
};

static const struct benchmark benchmarks[] = {
#define BENCH(name, function, keys, help) {name, function, keys, help},
#include "experiments/bench/bench.def"
#undef BENCH
    {0},
};

const char command_bench_help[] = "gradlag bench NAME key=value… [--json]\n\n";

void command_print_benchmarks(FILE *to)
{
    for (const struct benchmark *b = benchmarks; b->name != NULL; b++)
        fprintf(to, "  %-12s %s\n", b->name, b->help);
    fprintf(
        to,
        "\nEach measurement is one line: the median of the repeats, and the best. `gradlag bench "
        "NAME\n--help` lists the keys of a benchmark.\n");
}

static void print_keys(const struct benchmark *b)
{
    bool repeats = false;
    printf("gradlag bench %s key=value… [--json]\n\nMeasures %s.\n\n", b->name, b->help);
    for (const struct option *o = b->keys; o->key != NULL; o++) {
        command_print_option(o, 2);
        repeats |= strcmp(o->key, common[0].key) == 0;
    }
    if (!repeats)
        command_print_option(&common[0], 2);
}

const char *bench_name(size_t i)
{
    return i < COUNT_OF(benchmarks) ? benchmarks[i].name : NULL;
}

/* ---- ranks --------------------------------------------------------------------------------------
 */

/* Replaces this process by mpirun; returns only an error. */
static status become_mpirun(const struct bench *b, int argc, char **argv)
{
    enum { ARGUMENTS = 64 };
    status result = OK;
    char program[4096] = "";
    struct mpirun m = {0};
    const char *words[COUNT_OF(m.words) + 3 + ARGUMENTS] = {NULL};
    size_t n = 0;
    if (argc > ARGUMENTS)
        FAIL(ERROR_USAGE, "bench %s: %d arguments; the limit is %d", b->name, argc, ARGUMENTS);
    /* Resolve the link now: after execvp() /proc/self/exe would be mpirun. */
    if (readlink("/proc/self/exe", program, sizeof program - 1) < 0)
        FAIL(ERROR_OTHER, "bench %s: cannot read /proc/self/exe; mount /proc", b->name);
    TRY(mpirun_open(&m, (unsigned)options_integer(b->settings, "ranks"), NULL, NULL));
    for (; m.words[n] != NULL; n++)
        words[n] = m.words[n];
    words[n++] = program;
    words[n++] = "bench";
    words[n++] = b->name;
    for (int i = 0; i < argc; i++)
        words[n++] = argv[i];
    for (size_t i = 0; m.environment[i] != NULL; i++)
        putenv((char *)m.environment[i]);
#ifdef GRADLAG_SANITIZE
    setenv("ASAN_OPTIONS", "detect_leaks=0", 1); /* MPI_Finalize() of Open MPI leaks */
#endif
    execvp("mpirun", (char *const *)words);
    result = error_set(ERROR_OTHER, __FILE__, __LINE__,
                       "bench %s: cannot start mpirun: install Open MPI (scripts/setup)", b->name);
done:
    return result;
}

status bench_on_ranks(const struct bench *b, bench_rank_function *measure, int argc, char **argv)
{
    unsigned rank, size;
    if (getenv("OMPI_COMM_WORLD_RANK") == NULL)
        return become_mpirun(b, argc, argv);
    status result = sync_start(&rank, &size);
    if (result == OK)
        result = measure(b, rank, size);
    sync_end(result);
    return result;
}

status command_bench(int argc, char **argv)
{
    struct suggestion known = {.wanted = argc > 0 ? argv[0] : ""};
    if (argc == 0) {
        command_print_benchmarks(stderr);
        return error_set(
            ERROR_USAGE, __FILE__, __LINE__,
            "bench: the name is missing; `gradlag bench NAME` with a name of the list");
    }
    for (const struct benchmark *b = benchmarks; b->name != NULL; b++) {
        suggestion_add(&known, b->name);
        if (strcmp(b->name, argv[0]) == 0) {
            int left = argc - 1;
            text_free(&known.all);
            if (command_flag(&left, argv + 1, "--help") || command_flag(&left, argv + 1, "-h")) {
                print_keys(b);
                return OK;
            }
            return b->run(left, argv + 1);
        }
    }
    return suggestion_fail(&known, NULL, "bench: there is no benchmark");
}
