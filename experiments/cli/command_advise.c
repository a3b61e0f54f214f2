#include "experiments/claims/advice.h"
#include "experiments/command.h"
#include "worker/model/model.h"

#include <stdio.h>
#include <string.h>

const char command_advise_help[] =
    "gradlag advise key=value… [results=FILE]\n\n"
    "Says which mode, synchronous or asynchronous, was ahead at equal time on clusters like "
    "yours,\n"
    "and what is not known about yours. The keys are those of a run. Two maps are built in:\n\n"
    "  crossover              lenet on images; points of test accuracy\n"
    "  crossover-transformer  gpt on text; nats of test loss\n\n"
    "model=gpt chooses the second, and so does experiment=crossover-transformer. Axes of a map:\n"
    "workers, pace.slow_workers, pace.factor, pace.worker_cv, network.gbps, network.latency_ms.\n"
    "A value between two values of the map selects both. Without a key, all its values count.\n"
    "model and pace.mean_ms scale the network: what counts is the time of a message relative to\n"
    "a step.\n\n"
    "A margin is a mean ± half of its 95 % interval. The arms, each tuned: sync (mode=sync),\n"
    "backup (mode=async consistency=backup; crossover: an eighth of the workers, at least one;\n"
    "crossover-transformer: one), local (mode=sync local_steps=8), async (mode=async), damped\n"
    "(damping=inverse), softsync (consistency=softsync), ssp (consistency=ssp, slack 3);\n"
    "muon-…: with Muon instead of AdamW.\n\n"
    "  experiment=NAME  the map of this experiment\n"
    "  results=FILE     the map of a results file instead of the built-in ones, or a map that\n"
    "                   `gradlag query crossover` wrote as CSV, FILE.csv\n\n"
    "  gradlag advise workers=32 network.gbps=10 pace.slow_workers=1 model=lenet\n"
    "  gradlag advise workers=16 network.gbps=10 model=resnet8 pace.mean_ms=40\n"
    "  gradlag advise workers=16 pace.worker_cv=0.3 model=gpt\n";

/* Removes results=FILE; NULL: it is not there. */
static const char *results_of(int *argc, char **argv)
{
    for (int i = 0; i < *argc; i++)
        if (strncmp(argv[i], "results=", strlen("results=")) == 0)
            return command_results(argc, argv);
    return NULL;
}

static const char *experiment_of(int *argc, char **argv)
{
    const char *name = NULL;
    int kept = 0;
    for (int i = 0; i < *argc; i++)
        if (strncmp(argv[i], "experiment=", strlen("experiment=")) == 0)
            name = strchr(argv[i], '=') + 1;
        else
            argv[kept++] = argv[i];
    *argc = kept;
    return name;
}

static status count_parameters(const char *model, const char *dataset, const struct settings *more,
                               double *out)
{
    status result = OK;
    struct settings all = {0};
    struct dataset data = {0};
    struct model m;
    options *o = NULL;
    parameter_table *table = NULL;
    settings_add(&all, "model", model, COMMAND_LINE);
    settings_add(&all, "dataset", dataset, COMMAND_LINE);
    if (more != NULL)
        settings_add_all(&all, more);
    TRY(config_compose_unchecked(&o, &all));
    TRY(dataset_open(&data, o, false));
    TRY(model_open(&m, o, &data));
    TRY(parameter_table_open(&table));
    TRY(model_discover(&m, (struct shape){data.channels, data.height, data.width}, table));
    *out = (double)parameter_table_count(table);
done:
    parameter_table_close(&table);
    dataset_close(&data);
    options_close(&o);
    settings_free(&all);
    return result;
}

static bool is_external(const char *model)
{
    return strcmp(model, "external") == 0;
}

/* The size of an external model is known only to its program. */
static status compare_sizes(struct advice *a, const struct settings *s, struct advice_sizes *out)
{
    status result = OK;
    const struct advice_cell *map = &a->cells[0];
    const char *model = settings_find(s, "model");
    *out = (struct advice_sizes){1, 1};
    if (model == NULL)
        goto done;
    if (is_external(model) || is_external(map->model)) {
        text_add(&a->unknown,
                 "model=%s: advise does not start %s program; the margins are those of a model as "
                 "large as the map's\n",
                 model, is_external(model) ? "your" : "the map's");
    } else if (strcmp(model, map->model) != 0) {
        TRY(count_parameters(map->model, map->dataset, NULL, &out->of_map));
        TRY(count_parameters(model, map->dataset, s, &out->own));
    }
done:
    return result;
}

status command_advise(int argc, char **argv)
{
    status result = OK;
    struct advice a = {0};
    struct advice_sizes sizes;
    struct settings s = {0};
    options *o = NULL;
    const char *results = results_of(&argc, argv), *experiment = experiment_of(&argc, argv);
    TRY(command_no_flags_left(argc, argv, "advise", NULL));
    settings_add(&s, "pace", "gamma", "advise"); /* which has all keys of the axes */
    TRY(settings_read_arguments(&s, argc, argv));
    TRY(config_compose_unchecked(&o, &s));
    TRY(advice_open(&a, results, experiment));
    advice_choose(&a, &s);
    TRY(compare_sizes(&a, &s, &sizes));
    advice_ask(&a, &s, &sizes);
    advice_print(&a, stdout);
done:
    advice_close(&a);
    options_close(&o);
    settings_free(&s);
    return result;
}
