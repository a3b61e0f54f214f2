/*
 * patience.h — how much longer things take under a sanitizer. Limits of waiting are multiplied by
 * PATIENCE. Times that a test sets, for they are to be long or short beside what the machine takes
 * (a slow worker's step, an evaluation, a timeout), by STRETCH; STRETCHED goes behind a whole
 * number in a text and does the same: "pace.mean_ms=2" STRETCHED.
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
