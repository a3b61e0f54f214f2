/* pipeline_passes.c — see pipeline_passes.h. */
#include "sync/pipeline/pipeline_passes.h"

#include "base/memory.h"
#include "sync/run_metrics.h"

struct pass_row {
    double at_seconds;
    uint64_t update, version;
    float compute_us;
    uint32_t micro_batch, backward;
};

status passes_open(struct pass_log *log, const options *o, communicator *c,
                   const struct sync_metrics *r, uint32_t most)
{
    status result = OK;
    *log = (struct pass_log){0};
    if (options_text(o, "trace")[0] == '\0')
        return OK;
    *log = (struct pass_log){.c = c, .report = r, .room = most};
    TRY(memory_new(&log->rows, most, sizeof *log->rows, "passes"));
    TRY(memory_new(&log->gathered, (size_t)most * c->size, sizeof *log->gathered, "passes"));
    TRY(memory_new(&log->counts, c->size, sizeof *log->counts, "passes"));
    TRY(memory_new(&log->recorded, c->size, sizeof *log->recorded, "passes"));
done:
    return result;
}

void passes_close(struct pass_log *log)
{
    memory_free(log->rows);
    memory_free(log->gathered);
    memory_free(log->counts);
    memory_free(log->recorded);
    *log = (struct pass_log){0};
}

void passes_add(struct pass_log *log, bool backward, uint64_t update, uint32_t micro_batch,
                uint64_t version, uint64_t took_ns)
{
    if (log->c == NULL)
        return;
    REQUIRE(log->count < log->room);
    log->rows[log->count++] = (struct pass_row){.at_seconds = sync_metrics_seconds(log->report),
                                                .update = update,
                                                .version = version,
                                                .compute_us = (float)took_ns * 1e-3f,
                                                .micro_batch = micro_batch,
                                                .backward = backward};
}

bool passes_full(const struct pass_log *log, uint32_t more)
{
    return log->c != NULL && log->count + more > log->room;
}

static void record(struct pass_log *log, recorder *to, uint32_t most)
{
    for (unsigned rank = 0; rank < log->c->size; rank++) {
        for (uint32_t i = 0; i < log->counts[rank]; i++) {
            const struct pass_row *row = &log->gathered[(size_t)rank * most + i];
            struct pass_record pass = {.number = log->recorded[rank]++,
                                       .worker = rank,
                                       .micro_batch = row->micro_batch,
                                       .update_version = row->update,
                                       .version = row->version,
                                       .backward = row->backward != 0,
                                       .compute_us = row->compute_us,
                                       .at_seconds = row->at_seconds};
            recorder_pass(to, &pass);
        }
    }
}

/* Without flushes the first stages are ahead, so ranks have different numbers of passes. */
status passes_record_all(struct pass_log *log, recorder *to)
{
    status result = OK;
    uint32_t most = 0;
    if (log->c == NULL)
        return OK;
    TRY(communicator_gather_all(log->c, &log->count, sizeof log->count, log->counts));
    for (unsigned rank = 0; rank < log->c->size; rank++)
        most = log->counts[rank] > most ? log->counts[rank] : most;
    REQUIRE(most <= log->room);
    if (most > 0)
        TRY(communicator_gather_all(log->c, log->rows, most * sizeof *log->rows, log->gathered));
    if (log->c->rank == 0 && to != NULL)
        record(log, to, most);
    log->count = 0;
done:
    return result;
}
