/* measured.h — a double that tells a value that was not measured from a measured NaN. */
#ifndef GRADLAG_BASE_MEASURED_H
#define GRADLAG_BASE_MEASURED_H

/* A NaN that no computation yields: a quiet one with a payload of its own. */
#define NOT_MEASURED __builtin_nan("0x676c6167")

#endif
