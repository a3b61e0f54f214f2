/*
 * onednn_instructions.h — which instruction set oneDNN computes with. The same program gives other
 * bits on a processor with another one.
 */
#ifndef GRADLAG_WORKER_CPU_ONEDNN_INSTRUCTIONS_H
#define GRADLAG_WORKER_CPU_ONEDNN_INSTRUCTIONS_H

#include <stdbool.h>

/* The instruction set that oneDNN uses here, as a value of oneDNN's variable ONEDNN_MAX_CPU_ISA,
 * such as "AVX2". With this value, a processor with more instructions computes the same bits. "":
 * not x86. */
const char *onednn_instructions(void);
/* True: oneDNN can compute with this instruction set here. False: the processor lacks it, the
 * variable excludes it, or the name is unknown. */
bool onednn_offers(const char *instructions);
/* Limits oneDNN to this instruction set, here and in child processes, unless the user has set a
 * limit. Call it before the first call of oneDNN. "" and unknown names change nothing. */
void onednn_limit(const char *instructions);

#endif
