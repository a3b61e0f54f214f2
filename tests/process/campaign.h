/*
 * campaign.h — one random run of the real program with one random fault, and what must hold
 * afterwards. The seed of the episode determines everything random. Only the timing of the
 * processes depends on the machine.
 */
#ifndef GRADLAG_TESTS_PROCESS_CAMPAIGN_H
#define GRADLAG_TESTS_PROCESS_CAMPAIGN_H

#include "tests/rigs/process_rig.h"
#include "base/random.h"

enum { CAMPAIGN_SETTINGS = 48, CAMPAIGN_TEXT = 64, CAMPAIGN_LATE = 3 };

struct campaign_episode {
    struct random_stream random;
    struct process_rig *rig;
    char text[CAMPAIGN_SETTINGS][CAMPAIGN_TEXT]; /* "key=value", in order */
    size_t count;
    bool async, processes; /* mode=async; engine=real */
    unsigned servers, workers;
    unsigned late; /* late workers that this test starts; numbers from `workers` on */
    pid_t attending[CAMPAIGN_LATE];     /* one process of this test for each late worker */
    const struct campaign_fault *fault; /* of the current run; NULL: none */
    bool tcp;                           /* async: sockets instead of ipc */
    bool checkpoint;                    /* the run writes at.safetensors */
    bool repeats;                       /* the settings determine the bits */
    double seconds;                     /* approximate training time */
    bool faulty;                        /* a fault will be injected */
};

/* Draws settings that the program accepts; --dry-run checks them. */
void campaign_draw(struct campaign_episode *e);
/* `command` first, the settings, then `last` unless it is NULL; valid until the next call. */
const char *const *campaign_arguments(struct campaign_episode *e, const char *command,
                                      const char *last);
/* Whether "key=value" is one of the settings. */
bool campaign_has(const struct campaign_episode *e, const char *setting);
/* Starts the run. `last` as in campaign_arguments(). Late workers join it at random moments; with
 * on_lost=continue they also leave and come back. */
void campaign_start(struct campaign_episode *e, const char *last);
/* Waits for the run and its late workers, and returns the exit code of the run. Fails the test if a
 * late worker ends with an exit code that is not explained. If the run finishes and its fault does
 * not disturb messages, a late worker that takes part at the end must not end with ERROR_PEER. */
int campaign_wait(struct campaign_episode *e);
/* Adds one setting, or replaces the setting of the same key. */
void campaign_set(struct campaign_episode *e, const char *format, ...) PRINTF_LIKE(2, 3);

/* Whether a checkpoint holds the complete state of a run with these settings. */
bool campaign_may_resume(const struct campaign_episode *e);

/* A fault: its name, its precondition, and the function that injects it into the process
 * e->rig->pid. */
struct campaign_fault {
    const char *name;
    bool (*possible)(const struct campaign_episode *e);
    void (*make)(struct campaign_episode *e);
    /* Allowed exit codes besides 0 (finished) and 6 (diverged); -1 ends the list. */
    int codes[6];
};
/* Draws a fault whose precondition holds. */
const struct campaign_fault *campaign_draw_fault(struct campaign_episode *e);
/* Whether the fault of the current run explains this exit code. */
bool campaign_explains(const struct campaign_episode *e, int code);

/* If the process may create them: a network namespace with loopback, and a small file system
 * over the rig's folder. Links then go down and disks fill only there. */
void campaign_isolate(struct campaign_episode *e);
void campaign_leave(struct process_rig *r);
/* Whether campaign_isolate() created each of them. */
bool campaign_has_network(void);
bool campaign_has_disk(void);

/* Draws a number of seconds. */
double campaign_between(struct campaign_episode *e, double least, double most);
bool campaign_chance(struct campaign_episode *e, double probability);
void campaign_sleep(double seconds);

#endif
