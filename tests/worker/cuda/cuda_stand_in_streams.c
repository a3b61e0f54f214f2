/* cuda_stand_in_streams.c — streams and events of the stand-in. */
#include "tests/worker/cuda/cuda_stand_in_queue.h"

/* ---- streams ------------------------------------------------------------------------------------
 */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags)
{
    ENTER();
    HOLD_TO(non_blocking, flags == cudaStreamNonBlocking);
    *out = stand_in_make(&stand_in_queues.streams, sizeof **out);
    (*out)->device = stand_in_device;
    (*out)->queue.stream = *out;
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    ENTER();
    HOLD_TO(known, stand_in_is_known(stand_in_queues.streams, s));
    HOLD_TO(wait_in_capture, s->captured == NULL);
    stand_in_finish_all(); /* other streams may wait for this one */
    for (struct handle *h = stand_in_queues.events; h != NULL; h = h->next) {
        cudaEvent_t e = (cudaEvent_t)h;
        e->lane = e->lane == &s->queue ? NULL : e->lane;
    }
    stand_in_unmake(&stand_in_queues.streams, s);
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    ENTER();
    HOLD_TO(own_stream, s != NULL);
    HOLD_TO(known, stand_in_is_known(stand_in_queues.streams, s));
    HOLD_TO(wait_in_capture, s->captured == NULL);
    stand_in_finish(s);
    return stand_in_fault;
}

/* The first query returns "not ready". */
cudaError_t cudaStreamQuery(cudaStream_t s)
{
    ENTER();
    HOLD_TO(own_stream, s != NULL);
    HOLD_TO(known, stand_in_is_known(stand_in_queues.streams, s));
    HOLD_TO(wait_in_capture, s->captured == NULL);
    if (s->queue.at == NULL)
        return cudaSuccess;
    stand_in_finish(s);
    return stand_in_fault != cudaSuccess ? stand_in_fault : cudaErrorNotReady;
}

/* ---- events -------------------------------------------------------------------------------------
 */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
    ENTER();
    *out = stand_in_make(&stand_in_queues.events, sizeof **out);
    (*out)->device = stand_in_device;
    (*out)->timed = (flags & cudaEventDisableTiming) == 0;
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *out)
{
    return cudaEventCreateWithFlags(out, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    ENTER();
    HOLD_TO(known, stand_in_is_known(stand_in_queues.events, e));
    if (e->lane != NULL && e->capture == 0)
        stand_in_run_until((struct lane *)e->lane,
                           e->place); /* the event stores its time when it passes */
    stand_in_unmake(&stand_in_queues.events, e);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
    ENTER();
    HOLD_TO(own_stream, s != NULL);
    HOLD_TO(known, stand_in_is_known(stand_in_queues.events, e) &&
                       stand_in_is_known(stand_in_queues.streams, s));
    HOLD_TO(same_device, e->device == s->device);
    struct lane *l = stand_in_lane(s);
    if (s->captured == NULL)
        stand_in_give(l, &(struct work){.passes = e});
    e->lane = l;
    e->place = l->given;
    e->capture = s->captured != NULL ? stand_in_queues.capture : 0;
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags)
{
    ENTER();
    (void)flags;
    HOLD_TO(own_stream, s != NULL);
    HOLD_TO(known, stand_in_is_known(stand_in_queues.events, e) &&
                       stand_in_is_known(stand_in_queues.streams, s));
    if (e->lane == NULL)
        return cudaSuccess;
    HOLD_TO(captured_event, e->capture == 0 || (stand_in_queues.origin != NULL &&
                                                e->capture == stand_in_queues.capture));
    HOLD_TO(isolation, e->capture != 0 || s->captured == NULL);
    if (e->capture != 0 && s->captured == NULL)
        stand_in_join(s);
    if (s == stand_in_queues.origin && e->capture != 0 &&
        e->lane->stream->captured->joined < e->place)
        e->lane->stream->captured->joined = e->place;
    stand_in_give(stand_in_lane(s), &(struct work){.until = e->lane, .count = e->place});
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
    ENTER();
    HOLD_TO(known, stand_in_is_known(stand_in_queues.events, e));
    HOLD_TO(wait_in_capture, e->capture == 0);
    if (e->lane != NULL)
        stand_in_wait_for((struct lane *)e->lane, e->place);
    return stand_in_fault;
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    ENTER();
    HOLD_TO(known, stand_in_is_known(stand_in_queues.events, from) &&
                       stand_in_is_known(stand_in_queues.events, to));
    if (!from->timed || !to->timed || from->lane == NULL || to->lane == NULL)
        return cudaErrorInvalidResourceHandle;
    if (from->lane->done < from->place || to->lane->done < to->place)
        return cudaErrorNotReady;
    *ms = (float)(to->passed_ms - from->passed_ms);
    return cudaSuccess;
}
