/*
 * patience.h — factors for times under a sanitizer. PATIENCE multiplies limits of waiting. STRETCH
 * multiplies times that must be long or short compared to the machine's own (a slow worker's step,
 * an evaluation, a timeout). STRETCHED does the same after a whole number in a text:
 * "pace.mean_ms=2" STRETCHED.
 */
#ifndef GRADLAG_TESTS_RIGS_PATIENCE_H
#define GRADLAG_TESTS_RIGS_PATIENCE_H

#if defined __SANITIZE_THREAD__
enum { PATIENCE = 10, STRETCH = 10 };
#define STRETCHED "0"
#elif defined GRADLAG_SANITIZE
enum { PATIENCE = 3, STRETCH = 1 };
#define STRETCHED ""
#else
enum { PATIENCE = 1, STRETCH = 1 };
#define STRETCHED ""
#endif

#endif
