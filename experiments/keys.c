#include "experiments/keys.h"

#include "ps/consistency.h"
#include "ps/correction.h"
#include "ps/damping.h"
#include "sync/communicator.h"
#include "worker/augment.h"
#include "worker/backend.h"
#include "worker/dataset.h"
#include "worker/model.h"
#include "worker/optimizer.h"
#include "worker/pace.h"
#include "worker/schedule.h"

#include <string.h>

#define FLAG(k, value, text)                                                                       \
    {                                                                                              \
        .key = k, .type = OPTION_FLAG, .initial = value, .help = text                              \
    }
#define INTEGER(k, value, low, high, text)                                                         \
    {                                                                                              \
        .key = k, .type = OPTION_INTEGER, .initial = value, .minimum = low, .maximum = high,       \
        .help = text                                                                               \
    }
#define REAL(k, value, low, high, text)                                                            \
    {                                                                                              \
        .key = k, .type = OPTION_REAL, .initial = value, .minimum = low, .maximum = high,          \
        .help = text                                                                               \
    }
#define TEXT(k, value, text)                                                                       \
    {                                                                                              \
        .key = k, .type = OPTION_TEXT, .initial = value, .help = text                              \
    }
#define ONE_OF(k, value, list, text)                                                               \
    {                                                                                              \
        .key = k, .type = OPTION_NAME, .initial = value, .names = list, .help = text               \
    }
#define PART(k, value, r, text)                                                                    \
    {                                                                                              \
        .key = k, .type = OPTION_NAME, .initial = value, .registry = &r, .help = text              \
    }

#define MANY 9007199254740992.0 /* 2^53: whole numbers that a double holds exactly */

const struct option global_keys[] = {
    ONE_OF("mode", "async", "async|sync",
           "parameter server and stale gradients, or allreduce and none"),
    ONE_OF("engine", "real", "real", "processes, sockets and clocks"),
    INTEGER("workers", "1", 1, 4096, "worker processes, or ranks"),
    INTEGER("seed", "1", 0, MANY, "initial weights, order of the data, pace"),
    INTEGER("threads", "1", 1, 256, "threads of one worker"),
    PART("device", "cpu", backend_registry, "where a worker computes"),
    ONE_OF("precision", "fp32", "fp32|tf32|bf16",
           "of the products in forward and backward; parameters stay fp32 (tf32: GPUs alone)"),
    FLAG("deterministic", "true", "the same bits in every run on the same device"),
    PART("dataset", "fashion-mnist", dataset_registry, "what is learnt"),
    TEXT("dataset.path", "", "a folder with the dataset's files; empty: where it is installed"),
    ONE_OF("augment", "none", AUGMENT_NAMES,
           "how training samples are shown; standard: moved by up to 4 pixels, mirrored or not"),
    PART("model", "lenet", model_registry, "what learns"),
    INTEGER("batch", "32", 1, 65536, "samples per gradient of one worker"),
    ONE_OF("sampler", "partition", "partition|whole",
           "each worker its own part of the data, or all of it"),
    REAL("epochs", "5", 0, 1e6, "length of training, in passes over the training split"),
    INTEGER("samples", "0", 0, MANY, "length of training in samples used (0: epochs counts)"),
    INTEGER("updates", "0", 0, MANY, "length of training in updates (0: epochs counts)"),
    PART("optimizer", "momentum", optimizer_registry, "what an update does with a gradient"),
    REAL("lr", "0.03", 0, 1e6, "base learning rate"),
    REAL("momentum", "0.9", 0, 0.999999, "of optimizers that have it"),
    REAL("weight_decay", "0", 0, 1e3, "times the parameters, added to the gradient"),
    PART("schedule", "linear", schedule_registry, "learning rate over the run"),
    REAL("warmup_epochs", "1", 0, 1e6, "the rate rises over this long first"),
    ONE_OF("lr_scaling", "none", "none|linear|sqrt",
           "multiplies lr by 1, by workers, or by its square root"),
    PART("consistency", "asp", consistency_registry,
         "when the server applies and when it lets a worker go on"),
    PART("damping", "none", damping_registry, "scale on the rate of a stale gradient"),
    PART("correction", "none", correction_registry, "change of a stale gradient itself"),
    PART("communicator", "auto", communicator_registry, "how ranks exchange gradients"),
    ONE_OF(
        "reduction", "fast", "fast|ordered",
        "order of the sum over ranks: whatever is fastest, or rank order, the same bits anywhere"),
    INTEGER("bucket_kib", "512", 1, 1048576, "size of one piece of an allreduce"),
    ONE_OF("compression", "none", "none", "of gradients on the wire"),
    PART("pace", "none", pace_registry, "how long a worker's step takes"),
    REAL("evaluate_every", "1", 0, 1e6, "epochs between evaluations (0: only at the end)"),
    TEXT("results", "results.db", "the results file"),
    TEXT("tag", "", "a word of your own, kept with the run"),
    TEXT("experiment", "", "the experiment that a run belongs to"),
    TEXT("arm", "", "the arm of that experiment"),
    ONE_OF("payload", "auto", "auto|shm|frames",
           "gradients and parameters through shared memory, or in messages"),
    ONE_OF("transport", "auto", "auto|ipc|tcp", "sockets between server and workers"),
    TEXT("endpoint", "",
         "where the server listens on this host, tcp://127.0.0.1:PORT or ipc://PATH; empty: chosen "
         "by "
         "`run`"),
    REAL("timeout_s", "30", 0.1, 86400,
         "longest wait for another process, in seconds; 20 times as long for ranks while one of "
         "them "
         "loads, evaluates or writes"),
    ONE_OF("on_lost", "stop", "stop|continue", "what happens when a worker is lost"),
    TEXT("checkpoint", "",
         "path of a .safetensors file to write, {run} and {version} in it stand for their numbers; "
         "empty: none"),
    TEXT("initial", "",
         "a .safetensors checkpoint whose parameters training starts from; empty: drawn from the "
         "seed"),
    REAL("checkpoint_every", "0", 0, 1e6, "epochs between checkpoints (0: only at the end)"),
    ONE_OF("record", "all", "all|evaluations", "every push and step, or the curve alone"),
    INTEGER("run_id", "0", 0, MANY, "row of a run begun by another process (set by `run`)"),
    TEXT("run_token", "",
         "hexadecimal, what peers of a run show each other; empty: as GRADLAG_RUN_TOKEN says"),
    {0},
};

static bool one_of(const char *const *names, size_t count, const char *key)
{
    for (size_t i = 0; i < count; i++) {
        if (strcmp(names[i], key) == 0) {
            return true;
        }
    }
    return false;
}

bool key_decides_outcome(const char *key)
{
    static const char *const beside[] = {
        "results",          "tag",    "experiment", "arm",      "timeout_s",    "checkpoint",
        "checkpoint_every", "run_id", "run_token",  "endpoint", "device.index",
    };
    return !one_of(beside, COUNT_OF(beside), key);
}

bool key_is_internal(const char *key)
{
    static const char *const internal[] = {"run_id", "run_token"};
    return one_of(internal, COUNT_OF(internal), key);
}
