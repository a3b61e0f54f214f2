/*
 * onednn_instructions.h — which instruction set oneDNN computes with. The same program gives other
 * bits on a processor with another one.
 */
#ifndef GRADLAG_WORKER_CPU_ONEDNN_INSTRUCTIONS_H
#define GRADLAG_WORKER_CPU_ONEDNN_INSTRUCTIONS_H

#include <stdbool.h>

/* A value of oneDNN's variable ONEDNN_MAX_CPU_ISA, such as "AVX2": with it, a processor that has
 * more computes as this one does. "": not x86. */
const char *onednn_instructions(void);
/* Whether oneDNN can compute with that set here. False: the processor lacks it, the variable
 * excludes it, or the name is unknown. */
bool onednn_offers(const char *instructions);
/* oneDNN computes with that set at most, here and in child processes, unless the user has set a
 * limit. Before the first call of oneDNN; "" and unknown names change nothing. */
void onednn_limit(const char *instructions);

#endif
