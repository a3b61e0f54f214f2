/*
 * trainer_late.c — key double_buffering: the gradient made before travels while the next one is
 * computed, and is applied after it, one update late (ChainerMN's double buffering: Akiba, Fukuda &
 * Suzuki 2017). When there are no more to compute, it is the last.
 */
#include "sync/trainer_loop.h"

status trainer_late_step(struct trainer_loop *l)
{
    status result = OK;
    struct made now = l->waiting, next = {0};
    if (now.batches > 0 && !now.exchanged)
        replica_send(l->replica);
    if (trainer_wants_more(l) && now.own == OK)
        TRY(trainer_compute(l, &next));
    l->waiting = next; /* for a checkpoint in trainer_use */
    if (now.batches > 0)
        TRY(trainer_use(l, &now, next.stats.watch_ns));
done:
    return result;
}
