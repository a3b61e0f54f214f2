/*
 * communicator_hierarchical.c — shared memory within a node, MPI between one rank of each node, its
 * leader.
 *
 * Every rank writes its gradient into its slot of the node's memory. The ranks of a node sum their
 * slots into the leader's slot (shared_slots.h). The leaders exchange the sums of the nodes by
 * MPI_Iallreduce, bucket by bucket, and multiply by 1/P. The ranks of a node copy the mean from the
 * leader's slot into all other slots. The first phase begins when all ranks have arrived, each
 * other phase at a gate of the node.
 *
 * With one node it equals communicator=shared: rank order, the same bits.
 *
 * Cost for N nodes of L ranks: the gate of all ranks, 2 gates of the node and 1 per bucket. On a
 * node each slot is read once and written once. Between nodes each *leader* sends and receives 2·(N
 * − 1)/N × bytes; other ranks send nothing. So a host's link carries the gradient once for all its
 * ranks. A flat ring sends as many bytes over the link, but in L times as many steps, and also
 * copies within the host.
 */
#include "base/memory.h"
#include "sync/communicator/shared_slots.h"
#include "base/vector.h"

#include <string.h>

static const char what[] = "the mean gradient";

struct hierarchical_state {
    MPI_Comm node;    /* the ranks of this node; one host may simulate several nodes */
    MPI_Comm leaders; /* MPI_COMM_NULL on other ranks */
    int nodes;
    size_t bucket;             /* elements */
    struct gate gate;          /* of the node */
    struct shared_slots slots; /* of the node */
};

static void hierarchical_close(communicator *c)
{
    struct hierarchical_state *s = c->state;
    if (s == NULL)
        return;
    shared_slots_close(c, &s->slots);
    gate_close(c, &s->gate);
    if (!c->failed) {
        watchdog_arm(c->timeout_s, "closing the communicator");
        if (s->leaders != MPI_COMM_NULL)
            MPI_Comm_free(&s->leaders);
        if (s->node != MPI_COMM_NULL)
            MPI_Comm_free(&s->node);
        watchdog_disarm();
    }
    memory_free(s);
    c->state = NULL;
}

/* A node is a host. With communicator.nodes=N the ranks of one host are cut into N equal parts. */
static status split_into_nodes(communicator *c, const options *o, struct hierarchical_state *s)
{
    status result = OK;
    const char *why = "the ranks of a node";
    const unsigned simulated = options_declared(o, "communicator.nodes")
                                   ? (unsigned)options_integer(o, "communicator.nodes")
                                   : 0;
    int size, index, leads;

    MPI_Comm_size(c->ranks->node, &size);
    MPI_Comm_rank(c->ranks->node, &index);
    if (simulated > c->size)
        FAIL(ERROR_USAGE, "communicator.nodes=%u: there are only %u ranks; use at most %u nodes",
             simulated, c->size, c->size);
    if (simulated > 0 && !c->ranks->one_host) {
        FAIL(ERROR_USAGE,
             "communicator.nodes=%u: the ranks are on several hosts, which are the nodes; leave "
             "communicator.nodes out",
             simulated);
    }
    int part = simulated > 0 ? (int)((unsigned)index * simulated / (unsigned)size) : 0;
    TRY(ranks_check(MPI_Comm_split(c->ranks->node, part, index, &s->node), why));
    MPI_Comm_set_errhandler(s->node, MPI_ERRORS_RETURN);
    MPI_Comm_rank(s->node, &index);
    leads = index == 0;
    TRY(ranks_check(
        MPI_Comm_split(c->ranks->world, leads ? 0 : MPI_UNDEFINED, (int)c->rank, &s->leaders),
        why));
    if (s->leaders != MPI_COMM_NULL)
        MPI_Comm_set_errhandler(s->leaders, MPI_ERRORS_RETURN);
    TRY(ranks_check(MPI_Allreduce(&leads, &s->nodes, 1, MPI_INT, MPI_SUM, c->ranks->world), why));
done:
    return result;
}

static status hierarchical_open(communicator *c, const options *o, size_t count)
{
    status result = OK;
    struct hierarchical_state *s = NULL;
    const size_t bucket = (size_t)options_integer(o, "bucket_kib") * 1024 / sizeof(float);

    TRY(memory_new(&s, 1, sizeof *s, "the communicator"));
    s->node = s->leaders = MPI_COMM_NULL;
    s->slots.window = s->gate.window = MPI_WIN_NULL;
    s->bucket = bucket == 0 || bucket > INT32_MAX ? INT32_MAX : bucket;
    c->state = s;
    TRY(split_into_nodes(c, o, s));
    TRY(gate_open(&s->gate, s->node));
    TRY(shared_slots_open(&s->slots, s->node, count));
    c->buffer = s->slots.at[s->slots.index];
    c->in_rank_order = s->nodes == 1;
done:
    if (result != OK) {
        c->failed = true; /* perhaps on this rank only */
        hierarchical_close(c);
    }
    return result;
}

/* On leaders: the sums of nodes become means over all ranks, in place. The other ranks of a node
 * wait for each bucket, so the time limit is of one bucket on every rank. */
static status exchange_between_nodes(communicator *c, float *sum, size_t count)
{
    status result = OK;
    struct hierarchical_state *s = c->state;
    const float scale = 1.0f / (float)c->size;

    for (size_t from = 0; from < count;) {
        size_t length = count - from < s->bucket ? count - from : s->bucket;
        if (s->leaders != MPI_COMM_NULL) {
            MPI_Request request;
            TRY(ranks_check(MPI_Iallreduce(MPI_IN_PLACE, sum + from, (int)length, MPI_FLOAT,
                                           MPI_SUM, s->leaders, &request),
                            what));
            TRY(ranks_wait(c, &request, 1, what));
            vector_multiply(length, scale, sum + from, sum + from);
        }
        TRY(gate_pass(c, &s->gate, what));
        from += length;
    }
done:
    return result;
}

static status mean_over_nodes(communicator *c, size_t first, size_t count)
{
    status result = OK;
    struct hierarchical_state *s = c->state;

    shared_slots_begin(&s->slots);
    TRY(ranks_gate(c, what));
    shared_slots_sum(&s->slots, first, count);
    TRY(gate_pass(c, &s->gate, what));
    shared_slots_begin(&s->slots);
    TRY(exchange_between_nodes(c, s->slots.at[0] + first, count));
    shared_slots_spread(&s->slots, first, count);
    TRY(gate_pass(c, &s->gate, what));
done:
    return result;
}

static status mean_of_node(communicator *c, size_t first, size_t count)
{
    status result = OK;
    struct hierarchical_state *s = c->state;

    shared_slots_begin(&s->slots);
    TRY(ranks_gate(c, what));
    shared_slots_mean(&s->slots, first, count);
    TRY(gate_pass(c, &s->gate, what));
done:
    return result;
}

static status hierarchical_allreduce_mean(communicator *c, float *data, size_t count)
{
    status result = OK;
    const struct hierarchical_state *s = c->state;
    /* `data` is a part of the slot, or memory of the caller. */
    const bool in_slot = data >= c->buffer && data < c->buffer + c->count;
    const size_t first = in_slot ? (size_t)(data - c->buffer) : 0;

    if (!in_slot)
        memcpy(c->buffer, data, count * sizeof(float));
    if (s->nodes == 1)
        TRY(mean_of_node(c, first, count));
    else
        TRY(mean_over_nodes(c, first, count));
    if (!in_slot)
        memcpy(data, c->buffer, count * sizeof(float));
done:
    return result;
}

static double hierarchical_sent_bytes(const communicator *c, size_t count)
{
    const struct hierarchical_state *s = c->state;
    return 2.0 * (s->nodes - 1) * sizeof(float) * (double)count;
}

static const struct option hierarchical_options[] = {
    {.key = "communicator.nodes",
     .type = OPTION_INTEGER,
     .initial = "0",
     .minimum = 0,
     .maximum = 4096,
     .help = "simulate this many nodes on one host, for tests (0: hosts are nodes)"},
    {0},
};

const struct communicator_kind communicator_hierarchical = {
    .about = {.name = "hierarchical",
              .description = "shared memory within a node, one rank of each between nodes",
              .source = "Goyal et al. 2017, section 4 (the three-phase allreduce)",
              .options = hierarchical_options},
    .open = hierarchical_open,
    .close = hierarchical_close,
    .allreduce_mean = hierarchical_allreduce_mean,
    .sent_bytes = hierarchical_sent_bytes,
};
