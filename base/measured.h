/* measured.h — a double that tells a value that was not measured from a measured NaN. */
#ifndef GRADLAG_BASE_MEASURED_H
#define GRADLAG_BASE_MEASURED_H

/* A quiet NaN with its own payload. No computation yields it. */
#define NOT_MEASURED __builtin_nan("0x676c6167")

#endif
