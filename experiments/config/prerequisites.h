/*
 * prerequisites.h — checks that the files and the device of a run exist. Called before the run gets
 * a row, so that a mistyped path leaves no row.
 */
#ifndef GRADLAG_EXPERIMENTS_CONFIG_PREREQUISITES_H
#define GRADLAG_EXPERIMENTS_CONFIG_PREREQUISITES_H

#include "base/options.h"

/* ERROR_DATA: the file or folder of dataset.path, initial or pace.path cannot be read, or the
 * dataset is not installed. ERROR_USAGE: this machine lacks the device or the precision. File
 * contents are not checked. */
status prerequisites_check(const options *o) MUST_CHECK;

#endif
