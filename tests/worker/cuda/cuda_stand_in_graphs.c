/* cuda_stand_in_graphs.c — captures and graphs of the stand-in. */
#include "tests/worker/cuda/cuda_stand_in_queue.h"

void stand_in_join(cudaStream_t s)
{
    struct lane *l = stand_in_new(sizeof *l);
    l->stream = s;
    l->keeps = true;
    l->leads = s == stand_in_queues.origin;
    l->next = stand_in_queues.captured;
    stand_in_queues.captured = s->captured = l;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode mode)
{
    ENTER();
    (void)mode;
    HOLD_TO(own_stream, s != NULL);
    HOLD_TO(known, stand_in_is_known(stand_in_queues.streams, s));
    HOLD_TO(nested, stand_in_queues.origin == NULL);
    stand_in_queues.origin = s;
    stand_in_queues.capture++;
    stand_in_join(s);
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *out)
{
    ENTER();
    HOLD_TO(known, stand_in_is_known(stand_in_queues.streams, s));
    HOLD_TO(unmatched, s == stand_in_queues.origin);
    for (struct lane *l = stand_in_queues.captured; l != NULL; l = l->next) {
        HOLD_TO(unjoined, l->stream == stand_in_queues.origin || l->joined == l->given);
        l->stream->captured = NULL;
    }
    *out = stand_in_make(&stand_in_queues.graphs, sizeof **out);
    (*out)->lanes = stand_in_queues.captured;
    stand_in_queues.captured = NULL;
    stand_in_queues.origin = NULL;
    stand_in.seen.captures++;
    return cudaSuccess;
}

/* Moves the work of the graph to the executable graph. A graph may be instantiated once. */
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t g, unsigned long long flags)
{
    ENTER();
    (void)flags;
    HOLD_TO(known, stand_in_is_known(stand_in_queues.graphs, g));
    if (stand_in.set.refuses_graphs)
        return cudaErrorNotSupported;
    struct CUgraph_st *exec = stand_in_make(&stand_in_queues.graphs, sizeof *exec);
    exec->lanes = g->lanes;
    g->lanes = NULL;
    *out = (cudaGraphExec_t)exec;
    return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t e, cudaStream_t s)
{
    ENTER();
    HOLD_TO(known, stand_in_is_known(stand_in_queues.graphs, e) &&
                       stand_in_is_known(stand_in_queues.streams, s));
    return cudaSuccess;
}

static struct lane *reversed(struct lane *l)
{
    struct lane *last = NULL;
    for (struct lane *next; l != NULL; l = next) {
        next = l->next;
        l->next = last;
        last = l;
    }
    return last;
}

/* One stream runs as early as possible, the others as late as possible. The next launch selects
 * another stream. */
static void run_graph(void *data)
{
    struct CUgraph_st *g = *(struct CUgraph_st **)data;
    const struct lane *leader = NULL;
    g->lanes = stand_in_queues.launches++ % 2 == 0 ? g->lanes : reversed(g->lanes);
    for (struct lane *l = g->lanes; l != NULL; l = l->next) {
        l->at = l->first;
        l->done = 0;
        leader = l->leads ? l : leader;
    }
    for (struct lane *l = g->lanes; l != NULL;) {
        const bool ahead = !l->leads && leader->at != NULL && l->at != NULL && l->at->run != NULL;
        const bool moved = stand_in_advance(l);
        stand_in.seen.ahead += moved && ahead;
        l = moved ? g->lanes : l->next;
    }
    stand_in.seen.graph_launches++;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t e, cudaStream_t s)
{
    ENTER();
    HOLD_TO(own_stream, s != NULL);
    HOLD_TO(known, stand_in_is_known(stand_in_queues.graphs, e) &&
                       stand_in_is_known(stand_in_queues.streams, s));
    HOLD_TO(same_device, s->device == stand_in_device);
    struct CUgraph_st **data = stand_in_new(sizeof *data);
    *data = (struct CUgraph_st *)e;
    return stand_in_queue(s, run_graph, data);
}

static cudaError_t destroy_graph(void *graph)
{
    ENTER();
    HOLD_TO(known, stand_in_is_known(stand_in_queues.graphs, graph));
    stand_in_finish_all();
    stand_in_free_lanes(((struct CUgraph_st *)graph)->lanes);
    stand_in_unmake(&stand_in_queues.graphs, graph);
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t e)
{
    return destroy_graph(e);
}

cudaError_t cudaGraphDestroy(cudaGraph_t g)
{
    return destroy_graph(g);
}
