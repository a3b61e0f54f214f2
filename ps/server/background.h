/*
 * background.h — a thread that does the server's long work while the server's loop goes on: it
 * evaluates parameters, computes a fresh gradient for a probe (ps/server/probe.h), or writes a
 * checkpoint.
 *
 * One object does one piece of work at a time, and calls the hooks from its one thread. All
 * functions below are called from the server's thread. What a piece of work reads is borrowed, and
 * must not change until the piece is taken.
 */
#ifndef GRADLAG_PS_SERVER_BACKGROUND_H
#define GRADLAG_PS_SERVER_BACKGROUND_H

#include "worker/training.h"

typedef struct background background;

/* Copies `hooks`. */
status background_open(background **out, const struct training_hooks *hooks) MUST_CHECK;
/* Waits up to 5 s for work under way. Then it abandons the thread and all that it uses
 * (base/thread.h). NULL-safe. */
void background_close(background **b);
/* Readable when a piece of work is done; owned by `b`. */
int background_fd(const background *b);
bool background_is_busy(background *b);

/* A gradient, and the batch and parameters from which to compute a fresh one, into `fresh`. */
struct background_probe {
    unsigned worker;
    uint64_t batch;
    const float *parameters, *gradient; /* [count] */
    float *fresh;                       /* [count] */
    size_t count;
};

/* Begin a piece of work. Contract: the last one has been taken. */
void background_evaluate(background *b, const float *parameters, unsigned threads);
void background_probe(background *b, const struct background_probe *probe);
/* Copies `now`, not what it points to. */
void background_save(background *b, const struct training_state *now);

/* True once, when the piece is done. *code is the hook's status; with an error its message becomes
 * this thread's (error_message()). */
bool background_take_evaluation(background *b, struct evaluation *out, status *code);
bool background_take_probe(background *b, double *cosine, status *code);
bool background_take_saved(background *b, status *code);

#endif
