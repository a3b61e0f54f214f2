/*
 * trainer.h — the loop of one asynchronous worker. Read it beside sync/trainer.c.
 */
#ifndef GRADLAG_PS_TRAINER_H
#define GRADLAG_PS_TRAINER_H

#include "ps/client.h"
#include "worker/training.h"

struct ps_trainer_options {
    const options *settings;
    worker *worker; /* borrowed */
    unsigned index, workers;
    uint64_t total_samples; /* of the run */
    const char *endpoint;
    uint64_t run_token, settings_hash; /* see client.h */
    const volatile sig_atomic_t *stop;
    enum ps_dismissal *dismissal; /* output; set on return */
    bool *joined;                 /* output: the servers have released the worker once */
};

/* Pulls, computes and pushes until the server reports that training is complete. Errors: those of
 * ps_client_open, ps_client_push_pull and the worker. Each call begins anew, as another process
 * would. */
status ps_trainer_run(const struct ps_trainer_options *o) MUST_CHECK;

#endif
