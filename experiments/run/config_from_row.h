/*
 * config_from_row.h — a recorded run's settings again, from the JSON in its row: those that decided
 * what was computed, without those that say where, under what name and how long its steps took.
 */
#ifndef GRADLAG_EXPERIMENTS_RUN_CONFIG_FROM_ROW_H
#define GRADLAG_EXPERIMENTS_RUN_CONFIG_FROM_ROW_H

#include "base/text.h"
#include "experiments/config/config.h"

/* `origin`: what errors call it, say "run 3". ERROR_RESULTS: no JSON object. */
status config_from_row_settings(struct settings *out, const char *config,
                                const char *origin) MUST_CHECK;

/* The same and whatever else one run is made with: all but its names, and where it reads a results
 * file, writes or listens. */
status config_from_row_whole(struct settings *out, const char *config,
                             const char *origin) MUST_CHECK;
/* All of them, but those that `run` sets itself and the results file. */
status config_from_row_all(struct settings *out, const char *config, const char *origin) MUST_CHECK;

/* What decided there and is another one here, "lr is 0.1, was 0.03"; nothing is added where all is
 * alike. What a setting's absence means is its default. ERROR_DATA: no JSON object. */
status config_from_row_differing(const char *config, const options *now,
                                 struct text *out) MUST_CHECK;

#endif
