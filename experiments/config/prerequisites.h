/*
 * prerequisites.h — whether what a run's settings name is there: its files and its device. Asked
 * before the run has a row, so that a mistyped path leaves none behind.
 */
#ifndef GRADLAG_EXPERIMENTS_CONFIG_PREREQUISITES_H
#define GRADLAG_EXPERIMENTS_CONFIG_PREREQUISITES_H

#include "base/options.h"

/* ERROR_DATA: dataset.path, initial or pace.path names no file or folder that can be read.
 * ERROR_USAGE: this machine lacks the device or the precision. Contents of files are not looked at.
 */
status prerequisites_check(const options *o) MUST_CHECK;

#endif
