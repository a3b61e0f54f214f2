/*
 * report_series.h — groups cells into series and names the series. Cells that differ only in the
 * column are one series. The column is the number of workers, or the value of the experiment's
 * axis if all runs of the section have one. Each panel of an experiment with further axes is a
 * section of its own. Internal to results/.
 *
 * An arm of an experiment is one series, even if its settings depend on the column. If an arm
 * has several cells in one column, or if runs have no arm, the name of a series consists of the
 * settings that differ.
 */
#ifndef GRADLAG_RESULTS_REPORT_REPORT_SERIES_H
#define GRADLAG_RESULTS_REPORT_REPORT_SERIES_H

#include "results/report/report_data.h"

/* Fills sections, series and the series of each cell from runs and cells. Copies cells of several
 * panels. Sorts the cells by series and column, and updates the cell index of each run. Cells must
 * be complete. */
status report_series_find(struct report_data *d, const struct report_request *request) MUST_CHECK;
void report_series_free(struct report_data *d);

#endif
