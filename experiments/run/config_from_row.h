/*
 * config_from_row.h — reads the settings of a recorded run from the JSON in its row. All functions
 * take this JSON object as text (`config`); `origin` names the run in error messages, such as "run
 * 3".
 */
#ifndef GRADLAG_EXPERIMENTS_RUN_CONFIG_FROM_ROW_H
#define GRADLAG_EXPERIMENTS_RUN_CONFIG_FROM_ROW_H

#include "base/text.h"
#include "experiments/config/config.h"

/* For a replay: only keys that define the computation, without pace, network and engine.
 * ERROR_RESULTS: not a JSON object. */
status config_from_row_settings(struct settings *out, const char *config,
                                const char *origin) MUST_CHECK;

/* To repeat the run: all keys except its names (tag, arm, …), and the files and endpoints that it
 * uses. */
status config_from_row_repeat(struct settings *out, const char *config,
                              const char *origin) MUST_CHECK;
/* For a queued run: all keys, except the results file and internal keys. */
status config_from_row_all(struct settings *out, const char *config, const char *origin) MUST_CHECK;

/* Adds each defining key whose value in `config` differs from `now`, "lr is 0.1, was 0.03"; nothing
 * if all are equal. Keys of the cluster (pace, network, …) may differ, unless a run is virtual.
 * dataset.path may differ if the recorded path no longer exists, or if both paths are the same
 * file. A missing key has its default. ERROR_DATA: not a JSON object. */
status config_from_row_differing(const char *config, const options *now,
                                 struct text *out) MUST_CHECK;

#endif
