/*
 * slice_code.h — the code of one server's slice of a push (key compression).
 *
 * Each slice has a code of its own, so a server decodes without the other servers' slices. With one
 * server the slice is the whole vector.
 */
#ifndef GRADLAG_PS_CORE_SLICE_CODE_H
#define GRADLAG_PS_CORE_SLICE_CODE_H

#include "ps/core/slices.h"
#include "worker/compression/compression.h"

enum slice_code_use { SLICE_CODE_ENCODES, SLICE_CODE_DECODES /* without a residual */ };

/* *out ← NULL with compression=none. `layers`: of the whole vector; each is a tensor, and so is
 * each part of a layer that is cut between servers. No layers: one tensor. Errors: those of
 * compression_open. */
status slice_code_open(compression **out, const options *settings, const struct slices *s,
                       unsigned server, const struct optimizer_layers *layers,
                       enum slice_code_use use) MUST_CHECK;
/* Bytes of a push to this server at that epoch: of the code, or of the floats if `z` is NULL. */
size_t slice_push_bytes(const compression *z, const struct slices *s, unsigned server,
                        double epoch);

#endif
