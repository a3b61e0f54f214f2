/* mpi_start.c — a synchronous process from MPI_Init to MPI_Finalize. */
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "sync/communicator/host_networks.h"
#include "sync/communicator/ranks.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

static bool launched(void)
{
    return getenv("OMPI_COMM_WORLD_RANK") != NULL || getenv("PMIX_RANK") != NULL;
}

/* For pipelines. By default a large message moves only while both ranks are inside MPI: a stage
 * would wait until the stage before it has computed the next micro-batch. If the receiver may read
 * the sender's memory (choose_copies), it copies a large message without the sender. Otherwise, and
 * for small messages, the data go through shared memory at once. By default a message needs one of
 * 8 buffers; the ninth message waits until its sender calls MPI.
 *
 * Measured: four stages with 8 micro-batches and steps of 400 ms idle 28.6 % of the time, and 63 %
 * with the defaults (pipeline_bubble: 27.3 %). Two stages with 32 micro-batches idle 5 % with a
 * buffer for each message, and 43 % with 8 buffers (pipeline_bubble: 3.0 %). */
void sync_expect_messages(unsigned in_flight)
{
    enum { BUFFER = 65536, BUFFERS_MOST = 256, OTHERS = 16, ROOM = 4 << 20 };
    const unsigned buffers = (in_flight < BUFFERS_MOST ? in_flight : BUFFERS_MOST) + OTHERS;
    char text[24];
    snprintf(text, sizeof text, "%d", BUFFER);
    setenv("OMPI_MCA_btl_vader_eager_limit", text, 0);
    snprintf(text, sizeof text, "%u", buffers);
    setenv("OMPI_MCA_btl_vader_free_list_num", text, 0);
    snprintf(text, sizeof text, "%u", buffers * BUFFER + ROOM);
    setenv("OMPI_MCA_btl_vader_segment_size", text, 0);
}

/* Parts of a vector are exchanged by non-blocking allreduces in place. Open MPI's default is a
 * tree: each part goes to rank 0 and back, and uses a link in one direction at a time. The
 * algorithms chosen here send as many bytes in both directions at once. Cases that they do not
 * support still use the tree. */
static void choose_allreduce_in_parts(void)
{
    const char *size = getenv("OMPI_COMM_WORLD_SIZE");
    const bool two = size != NULL && strcmp(size, "2") == 0;
    setenv("OMPI_MCA_coll_libnbc_iallreduce_algorithm", two ? "recursive_doubling" : "rabenseifner",
           0);
}

/* By default the receiver of a large message reads it from the sender's memory, which is up to ten
 * times as fast as shared buffers. If a container forbids that system call, Open MPI would print an
 * error for each message; its own check does not notice. */
static void choose_copies(void)
{
    char from = 1, to = 0;
    const struct iovec there = {&from, 1}, here = {&to, 1};
    if (process_vm_readv(getpid(), &here, 1, &there, 1, 0) != 1) {
        setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", 0); /* Open MPI 4 */
        setenv("OMPI_MCA_smsc", "^cma", 0);                            /* Open MPI 5 */
    }
}

/* srun does not set Open MPI's variables: then the number of nodes of the Slurm step counts. */
bool sync_on_one_host(void)
{
    const char *size = getenv("OMPI_COMM_WORLD_SIZE"), *here = getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
    const char *nodes = getenv("SLURM_STEP_NUM_NODES");
    if (size != NULL && here != NULL)
        return strcmp(size, here) == 0;
    return !launched() || (nodes != NULL && strcmp(nodes, "1") == 0);
}

/* Ranks of one host exchange through shared memory. Several components of Open MPI would still open
 * ports on all addresses, so they are excluded. A user's own choice of components is kept. */
static void use_no_network(void)
{
    setenv("OMPI_MCA_pml", "ob1", 0);
    setenv("OMPI_MCA_btl", "^tcp,ofi,openib,uct,usnic,portals4", 0);
    setenv("OMPI_MCA_osc", "^ucx", 0);
    setenv("NCCL_SOCKET_IFNAME", "lo", 0);
}

bool ranks_may_take_turns(void)
{
    int level;
    return MPI_Query_thread(&level) == MPI_SUCCESS && level >= MPI_THREAD_SERIALIZED;
}

/* MPI_Init waits for all ranks. On several hosts it has no time limit of its own, so the watchdog
 * sets one. */
static status init(void)
{
    enum { LIMIT_S = 600 };
    status result = OK;
    int provided;
    const bool has_watchdog = !sync_on_one_host();
    if (has_watchdog) {
        TRY(watchdog_open());
        watchdog_arm(LIMIT_S, "starting MPI");
    }
    result = ranks_check(MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &provided),
                         "starting MPI (was this started by mpirun?)");
    if (has_watchdog) {
        watchdog_disarm();
        watchdog_close();
    }
done:
    return result;
}

status sync_start(unsigned *rank, unsigned *size)
{
    status result = OK;
    int r, s;

    if (launched()) {
        pid_t parent = getppid();
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            FAIL(ERROR_PEER, "the launcher of this rank has ended; start the run again");
    }
    /* By default Linux makes each sleep up to 50 µs longer. Ranks sleep for less between tests for
     * messages. */
    prctl(PR_SET_TIMERSLACK, 1000UL);
    choose_copies();
    /* Blocking calls yield the processor while they wait: on shared processors a rank that spins
     * keeps its peer from sending. */
    setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
    choose_allreduce_in_parts();
    if (sync_on_one_host())
        use_no_network();
    else
        TRY(host_networks_choose(NULL));
    TRY(init());
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_rank(MPI_COMM_WORLD, &r);
    MPI_Comm_size(MPI_COMM_WORLD, &s);
    *rank = (unsigned)r;
    *size = (unsigned)s;
done:
    return result;
}

static const char SETTINGS[] = "comparing settings";

/* Like ranks_wait, for the time without a communicator. */
static status wait_until(MPI_Request *request, double limit_s, const char *what)
{
    status result = OK;
    int complete = 0;
    const uint64_t begun = clock_ns();

    for (;;) {
        TRY(ranks_check(MPI_Test(request, &complete, MPI_STATUS_IGNORE), what));
        if (complete)
            return OK;
        if ((double)(clock_ns() - begun) * 1e-9 > limit_s)
            FAIL(ERROR_PEER, "%s: another rank did not arrive within %.0f s; see its error message",
                 what, limit_s);
        clock_sleep_until_ns(clock_ns() + 500000);
    }
done:
    return result;
}

static status wait_for_all(double limit_s)
{
    status result = OK;
    MPI_Request request;
    TRY(ranks_check(MPI_Ibarrier(MPI_COMM_WORLD, &request), "the end"));
    TRY(wait_until(&request, limit_s, "the end"));
done:
    return result;
}

void sync_end(status result)
{
    /* After a run without an error, rank 0 may still write its results. */
    const double limit_s = result == OK || result == STOPPED ? 60 : 2;
    int initialised = 0, finalised = 0;
    const struct error why = error_save();

    MPI_Initialized(&initialised);
    MPI_Finalized(&finalised);
    if (!initialised || finalised)
        return;
    if (ranks_abandoned()) { /* give the others time to report their errors */
        missing_ranks_leave();
        MPI_Abort(MPI_COMM_WORLD, result == OK ? ERROR_PEER : (int)result);
    }
    if (wait_for_all(limit_s) != OK) {
        if (result == OK)
            log_error("%s; ending all ranks", error_message());
        MPI_Abort(MPI_COMM_WORLD, result == OK ? ERROR_PEER : (int)result);
    }
    error_restore(&why);
    bool has_watchdog = watchdog_open() == OK;
    watchdog_arm(limit_s, "ending MPI");
    MPI_Finalize();
    watchdog_disarm();
    if (has_watchdog)
        watchdog_close();
}

static status broadcast_first(void *bytes, size_t count, double limit_s)
{
    status result = OK;
    MPI_Request request;
    REQUIRE(count <= INT32_MAX);
    TRY(ranks_check(MPI_Ibcast(bytes, (int)count, MPI_BYTE, 0, MPI_COMM_WORLD, &request),
                    SETTINGS));
    TRY(wait_until(&request, limit_s, SETTINGS));
done:
    return result;
}

status sync_compare(const char *own, double limit_s, char **first, unsigned *other)
{
    status result = OK;
    static uint64_t bytes; /* static: a late rank may still write there after a timeout */
    static int differs;
    int rank;
    MPI_Request request;

    *first = NULL;
    bytes = strlen(own) + 1;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    TRY(broadcast_first(&bytes, sizeof bytes, limit_s));
    TRY(memory_new(first, bytes, 1, SETTINGS));
    if (rank == 0)
        memcpy(*first, own, bytes);
    TRY(broadcast_first(*first, bytes, limit_s));
    differs = strcmp(own, *first) != 0 ? rank : 0;
    TRY(ranks_check(
        MPI_Iallreduce(MPI_IN_PLACE, &differs, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD, &request),
        SETTINGS));
    TRY(wait_until(&request, limit_s, SETTINGS));
    *other = (unsigned)differs;
done:
    if (result != OK)
        *first = NULL; /* not freed: it may still arrive */
    return result;
}

const char *sync_library_version(void)
{
    static char version[MPI_MAX_LIBRARY_VERSION_STRING];
    int length = 0;
    if (version[0] == '\0' && MPI_Get_library_version(version, &length) == MPI_SUCCESS)
        version[strcspn(version, ",\n")] = '\0'; /* without the name of the package */
    return version;
}
