/*
 * test_ring.c — communicator=ring obeys MPI's rule: until a request is complete, the memory of a
 * send is not written, and the memory of a receive is neither read nor written. A breach rarely
 * does harm on one host, so this test checks the memory ranges instead of the result.
 */
#include "tests/sync/sync_rig.h"

#include <mpi.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

enum { LARGEST = 300001, MOST = 64 };
static const size_t SIZES[] = {1, 2, 3, 17, 1000, 131071, LARGEST};

static struct under_way {
    const char *from, *to; /* bytes */
    MPI_Request request;
    bool receives;
} messages[MOST];
static unsigned count_of, clashes, seen;

/* Two sends of the same bytes do not clash. */
static void begin(const void *at, int floats, bool receives, MPI_Request request)
{
    const char *from = at, *to = from + (size_t)floats * sizeof(float);
    for (unsigned i = 0; i < count_of; i++) {
        const struct under_way *m = &messages[i];
        clashes += (receives || m->receives) && from < m->to && m->from < to;
    }
    REQUIRE(count_of < MOST);
    messages[count_of++] = (struct under_way){from, to, request, receives};
    seen++;
}

/* Removes the oldest message of this request: messages that complete at once may share a handle. */
static void end(MPI_Request request)
{
    unsigned i = 0;
    while (i < count_of && messages[i].request != request)
        i++;
    if (i == count_of)
        return; /* not a recorded message */
    count_of--;
    for (; i < count_of; i++)
        messages[i] = messages[i + 1];
}

int MPI_Isend(const void *data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
              MPI_Request *request)
{
    int code = PMPI_Isend(data, count, type, to, tag, comm, request);
    begin(data, count, false, *request);
    return code;
}

int MPI_Irecv(void *data, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm,
              MPI_Request *request)
{
    int code = PMPI_Irecv(data, count, type, from, tag, comm, request);
    begin(data, count, true, *request);
    return code;
}

int MPI_Testany(int count, MPI_Request requests[], int *index, int *complete, MPI_Status *how)
{
    MPI_Request before[2] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL};
    REQUIRE(count <= 2);
    for (int i = 0; i < count; i++)
        before[i] = requests[i];
    int code = PMPI_Testany(count, requests, index, complete, how);
    if (*complete && *index != MPI_UNDEFINED)
        end(before[*index]);
    return code;
}

static status case_ring(unsigned rank, unsigned size)
{
    status result = OK;
    communicator *c = NULL;
    options *o = sync_rig_settings();
    TRY(sync_rig_set(o, "communicator", "ring"));
    TRY(communicator_open(&c, o, LARGEST, NULL));
    float *data = communicator_buffer(c);
    for (size_t k = 0; k < COUNT_OF(SIZES); k++) {
        for (size_t i = 0; i < SIZES[k]; i++)
            data[i] = (float)(rank * size + i % 100);
        TRY(communicator_allreduce_mean(c, data, SIZES[k]));
    }
    if (seen == 0 || count_of != 0 || clashes != 0)
        FAIL(ERROR_OTHER, "of %u messages, %u are not complete at the end and %u shared memory",
             seen, count_of, clashes);
done:
    communicator_close(&c);
    options_close(&o);
    return result;
}

static const struct sync_case cases[] = {{"ring", case_ring}, {NULL, NULL}};

static void no_message_shares_memory_with_another_one(void **state UNUSED)
{
    for (unsigned ranks = 2; ranks <= 5; ranks++)
        sync_rig_expect_ok(ranks, "ring");
}

int main(int argc, char **argv)
{
    int code;
    if (sync_rig_is_rank(argc, argv, cases, &code))
        return code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_message_shares_memory_with_another_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
