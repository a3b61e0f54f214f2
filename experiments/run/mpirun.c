#include "experiments/run/mpirun.h"

#include "base/log.h"
#include "base/text.h"
#include "experiments/print_columns.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* The compiled loopback_bind.c, embedded by the Makefile. */
extern const unsigned char loopback_bind_library[];
extern const size_t loopback_bind_bytes;

/* PMIx 4 allocates two files of 4 MiB in mpirun's folder, and more for many ranks. Without that
 * space mpirun hangs forever. */
enum { ROOM_BYTES = 10 << 20, ROOM_BYTES_RANK = 16 << 10 };

static status check_free_space(const char *folder, unsigned ranks)
{
    status result = OK;
    struct statvfs about;
    const double needed = ROOM_BYTES + (double)ROOM_BYTES_RANK * ranks;
    if (folder == NULL)
        folder = getenv("TMPDIR") != NULL ? getenv("TMPDIR") : "/tmp";
    if (statvfs(folder, &about) != 0)
        return OK;
    const double room = (double)about.f_bavail * (double)about.f_frsize;
    if (room < needed) {
        FAIL(ERROR_OTHER,
             "%s has %.0f KiB of free space, but Open MPI needs %.0f KiB to start %u rank%s; set "
             "TMPDIR to a folder on a larger disk, or free some space",
             folder, room / 1024, needed / 1024, ranks, plural(ranks));
    }
done:
    return result;
}

/* Makes mpirun listen on loopback only. The library is a file in memory, because a folder may be
 * mounted noexec. */
static void preload_loopback_bind(struct mpirun *m)
{
    const char *own = getenv("LD_PRELOAD");
    m->preload_fd = memfd_create("gradlag-loopback", 0);
    if (m->preload_fd < 0 || write(m->preload_fd, loopback_bind_library, loopback_bind_bytes) !=
                                 (ssize_t)loopback_bind_bytes) {
        log_warning(
            "mpirun will listen on all addresses of this host, because memfd_create() failed: %s",
            strerror(errno));
        return;
    }
    /* A child reaches the file through /proc; a process that becomes mpirun by exec keeps it open.
     */
    text_add(&m->first, "LD_PRELOAD=/proc/%ld/fd/%d%s%s", (long)getpid(), m->preload_fd,
             own != NULL ? ":" : "", own != NULL ? own : "");
    text_add(&m->second, "LD_PRELOAD=%s", own != NULL ? own : "");
}

static void add_environment(struct mpirun *m, size_t e)
{
    m->environment[e++] = "OMPI_MCA_orte_abort_print_stack=0";
    /* mpirun and each rank would load hwloc's plugins, one of which tries to reach ten X servers;
     * ranks that are bound to no core need none of them. */
    if (getenv("HWLOC_PLUGINS_PATH") == NULL)
        m->environment[e++] = "HWLOC_PLUGINS_PATH=/nonexistent";
    m->environment[e++] = "OMPI_ALLOW_RUN_AS_ROOT=1";
    m->environment[e++] = "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1";
    REQUIRE(e < COUNT_OF(m->environment));
}

/* Open MPI 4.1 and 5: use only this host or those of --host, also inside an allocation. Without the
 * allocation Open MPI 4.1 must not start its daemons through Slurm: its ranks would crash. */
static size_t ignore_allocations(struct mpirun *m, size_t e)
{
    m->environment[e++] = "OMPI_MCA_ras=^slurm,tm,lsf,gridengine,loadleveler,alps";
    m->environment[e++] = "PRTE_MCA_ras=^slurm,tm,pbs,lsf,gridengine,flux";
    if (getenv("SLURM_JOB_ID") != NULL) {
        m->environment[e++] = "OMPI_MCA_plm=^slurm";
        m->environment[e++] = "PRTE_MCA_plm=^slurm";
    }
    return e;
}

status mpirun_open(struct mpirun *m, unsigned ranks, const char *folder, const char *shared)
{
    status result = OK;
    size_t n = 0, e = 0;
    *m = (struct mpirun){.preload_fd = -1};
    TRY(check_free_space(folder, ranks));
    snprintf(m->count, sizeof m->count, "%u", ranks);
    preload_loopback_bind(m);
    const char *const always[] = {"mpirun", "-n", m->count, "--oversubscribe", "--bind-to", "none"};
    for (size_t i = 0; i < COUNT_OF(always); i++)
        m->words[n++] = always[i];
    /* Open MPI's files and shared memory go to folders that are removed with the run. */
    const char *const places[][2] = {{"orte_tmpdir_base", folder},
                                     {"btl_vader_backing_directory", shared},
                                     {"osc_sm_backing_directory", shared}};
    for (size_t i = 0; i < COUNT_OF(places); i++) {
        if (places[i][1] != NULL) {
            m->words[n++] = "--mca";
            m->words[n++] = places[i][0];
            m->words[n++] = places[i][1];
        }
    }
    if (m->first.length > 0) {
        m->words[n++] = "-x";
        m->words[n++] = m->second.at;
        m->environment[e++] = m->first.at;
    }
    /* PMIx 5 binds its port for tools to the address of a network. */
    m->environment[e++] = "PMIX_MCA_ptl_base_if_include=lo";
    REQUIRE(n < COUNT_OF(m->words));
    add_environment(m, ignore_allocations(m, e));
done:
    return result;
}

void mpirun_open_hosts(struct mpirun *m, const struct mpirun_hosts *wanted)
{
    size_t n = 0, e = 0;
    *m = (struct mpirun){.preload_fd = -1};
    snprintf(m->count, sizeof m->count, "%u", wanted->count);
    const char *const always[] = {"mpirun", "-n",        m->count, "--map-by",
                                  "slot",   "--bind-to", "none"};
    for (size_t i = 0; i < COUNT_OF(always); i++)
        m->words[n++] = always[i];
    if (wanted->hosts != NULL) {
        m->words[n++] = "--host";
        m->words[n++] = wanted->hosts;
    }
    if (wanted->folder != NULL) {
        m->words[n++] = "--mca";
        m->words[n++] = "orte_local_tmpdir_base";
        m->words[n++] = wanted->folder;
    }
    if (wanted->survive)
        m->words[n++] = "--enable-recovery";
    for (size_t i = 0; wanted->passed[i] != NULL; i++) {
        m->words[n++] = "-x";
        m->words[n++] = wanted->passed[i];
    }
    if (wanted->interface[0] != '\0') {
        text_add(&m->first, "OMPI_MCA_oob_tcp_if_include=%s", wanted->interface);
        text_add(&m->second, "PRTE_MCA_prte_if_include=%s", wanted->interface);
        m->environment[e++] = m->first.at;
        m->environment[e++] = m->second.at;
    }
    /* Without a terminal ssh must fail instead of asking for a password, and it must not wait for a
     * host that is off. */
    if (getenv("OMPI_MCA_plm_rsh_agent") == NULL && getenv("PRTE_MCA_plm_ssh_agent") == NULL) {
        m->environment[e++] = "OMPI_MCA_plm_rsh_args=-o BatchMode=yes -o ConnectTimeout=10";
        m->environment[e++] = "PRTE_MCA_plm_ssh_args=-o BatchMode=yes -o ConnectTimeout=10";
    }
    REQUIRE(n < COUNT_OF(m->words));
    add_environment(m, wanted->in_allocation ? e : ignore_allocations(m, e));
}

void mpirun_close(struct mpirun *m)
{
    text_free(&m->first);
    text_free(&m->second);
    if (m->words[0] != NULL && m->preload_fd >= 0)
        close(m->preload_fd);
    *m = (struct mpirun){.preload_fd = -1};
}
