/*
 * stage_internal.h — shared by stage.c (running) and stage_plan.c (cutting).
 */
#ifndef GRADLAG_WORKER_MODEL_STAGE_INTERNAL_H
#define GRADLAG_WORKER_MODEL_STAGE_INTERNAL_H

#include "worker/model/model.h"
#include "worker/model/stage.h"

/* A model and the shape of its data. */
struct blueprint {
    struct dataset data;
    struct model model;
};
status blueprint_open(struct blueprint *b, const options *o, bool with_data) MUST_CHECK;
void blueprint_close(struct blueprint *b);
/* Finds the layers of calls first + 1 .. last. */
status blueprint_part(const struct blueprint *b, size_t first, size_t last,
                      parameter_table **out) MUST_CHECK;

#endif
