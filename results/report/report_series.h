/*
 * report_series.h — which cells of the report belong together, and what they are called: cells that
 * differ in the number of workers alone are one series. Internal to results/.
 *
 * An arm of an experiment is one series, whatever its settings are at each number of workers. Where
 * a file has several cells of one arm with as many workers, and for runs that have no arm, series
 * are called after the settings that differ.
 */
#ifndef GRADLAG_RESULTS_REPORT_REPORT_SERIES_H
#define GRADLAG_RESULTS_REPORT_REPORT_SERIES_H

#include "results/report/report_data.h"

/* Fills sections, series and each cell's series from runs and cells, and sorts the cells by series
 * and workers; runs keep to their cells. */
status report_series_find(struct report_data *d, const struct report_request *request) MUST_CHECK;
void report_series_free(struct report_data *d);

#endif
