/*
 * campaign.h — one random run of the real program, one random fault in it, and what must hold
 * afterwards. Everything random follows from the episode's seed, but for the moment at which a
 * process is at a given place: that is the machine's.
 */
#ifndef GRADLAG_TESTS_PROCESS_CAMPAIGN_H
#define GRADLAG_TESTS_PROCESS_CAMPAIGN_H

#include "tests/rigs/process_rig.h"
#include "base/random.h"

enum { CAMPAIGN_SETTINGS = 48, CAMPAIGN_TEXT = 64 };

struct campaign_episode {
    struct random_stream random;
    struct process_rig *rig;
    char text[CAMPAIGN_SETTINGS][CAMPAIGN_TEXT]; /* "key=value", in order */
    size_t count;
    bool async, processes; /* mode=async; engine=real */
    unsigned servers;
    bool tcp;        /* async: sockets instead of ipc */
    bool checkpoint; /* it writes at.safetensors */
    bool repeats;    /* the same settings lead to the same bits */
    double seconds;  /* about how long it trains */
    bool faulty;     /* a fault will be made */
};

/* Draws settings that the program accepts (as --dry-run says). */
void campaign_draw(struct campaign_episode *e);
/* `command` first, the settings, then `last` unless it is NULL; valid until the next call. */
const char *const *campaign_arguments(struct campaign_episode *e, const char *command,
                                      const char *last);
/* Adds one setting; replaces one of the same key. */
void campaign_set(struct campaign_episode *e, const char *format, ...) PRINTF_LIKE(2, 3);

/* Whether a checkpoint holds all that a run under these settings keeps. */
bool campaign_may_resume(const struct campaign_episode *e);

/* A fault: what it is called, what it needs, what it does to the program that r->pid is. */
struct campaign_fault {
    const char *name;
    bool (*possible)(const struct campaign_episode *e);
    void (*make)(struct campaign_episode *e);
    /* Exit codes with which the run may end besides 0 (finished) and 6 (diverged); ended by -1. */
    int codes[6];
};
/* One that is possible here. */
const struct campaign_fault *campaign_draw_fault(struct campaign_episode *e);

/* A network namespace with loopback and a small file system over the rig's folder, if the process
 * may make them: links go down and disks fill there alone. */
void campaign_isolate(struct campaign_episode *e);
void campaign_leave(struct process_rig *r);
/* What campaign_isolate() could do. */
bool campaign_has_network(void);
bool campaign_has_disk(void);

/* Seconds until `e` is disturbed and for how long; drawn. */
double campaign_between(struct campaign_episode *e, double least, double most);
bool campaign_chance(struct campaign_episode *e, double probability);
void campaign_sleep(double seconds);

#endif
