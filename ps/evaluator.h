/*
 * evaluator.h — evaluates parameters, and probes gradients (ps/probe.h), in a thread of its own, so
 * that the server goes on answering its peers meanwhile. One of them at a time; the hooks are
 * always called from that one thread.
 */
#ifndef GRADLAG_PS_EVALUATOR_H
#define GRADLAG_PS_EVALUATOR_H

#include "worker/training.h"

typedef struct evaluator evaluator;

/* Copies `hooks`. */
status evaluator_open(evaluator **out, const struct training_hooks *hooks) MUST_CHECK;
/* An evaluation that is under way is waited for, but not for long: then its thread is abandoned
 * (worker/base.h). NULL-safe. */
void evaluator_close(evaluator **e);
/* Readable when an evaluation is done. */
int evaluator_fd(const evaluator *e);
/* `parameters` must stay as they are until it is done. */
void evaluator_begin(evaluator *e, const float *parameters);
/* True once, when done: *code is the hook's status (its message becomes this thread's). */
bool evaluator_take(evaluator *e, struct evaluation *out, status *code);

/* A gradient, and what a fresh one is computed from, into `fresh`. */
struct evaluator_probe {
    unsigned worker;
    uint64_t batch;
    const float *parameters, *gradient; /* stay as they are until it is done */
    float *fresh;
    size_t count;
};
void evaluator_begin_probe(evaluator *e, const struct evaluator_probe *probe);
bool evaluator_take_probe(evaluator *e, double *cosine, status *code);

/* Nanoseconds since what is under way began; 0: nothing is. */
uint64_t evaluator_busy_ns(evaluator *e);
/* For so long the whole process stood still: that does not count. */
void evaluator_excuse(evaluator *e, uint64_t away_ns);
/* What the longest one so far took. */
uint64_t evaluator_longest_ns(evaluator *e);

#endif
