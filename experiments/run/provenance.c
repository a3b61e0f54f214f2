#include "experiments/run/provenance.h"

#include "base/text.h"
#include "base/thread.h"
#include "experiments/config/config.h"
#include "experiments/run/environment.h"
#include "sync/communicator/communicator.h"
#include "worker/cpu/onednn_instructions.h"

#include <build_info.h> /* written by scripts/build-info */

#include <gnu/libc-version.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>

static void add_field(struct text *out, const char *key, const char *value)
{
    text_add(out, "%s", out->length > 1 ? "," : "");
    text_add_json(out, key);
    text_add(out, ":");
    text_add_json(out, value);
}

/* Adds a member; `add` writes its value as JSON. */
static void add_member(struct text *out, const char *key, void (*add)(struct text *out))
{
    text_add(out, ",");
    text_add_json(out, key);
    text_add(out, ":");
    add(out);
}

static void add_machine(struct text *out)
{
    char cpu[128];
    struct utsname system = {0};
    uname(&system);
    processor_name(cpu, sizeof cpu);
    add_field(out, "cpu", cpu);
    text_add(out, ",\"processors\":%u", processor_count());
    text_add(out, ",\"memory_mib\":%lld", (long long)(memory_bytes() / 1048576));
    add_member(out, "gpu", environment_gpus);
    add_member(out, "gpu_driver", environment_gpu_driver);
    add_field(out, "host", system.nodename);
    add_field(out, "kernel", system.release);
    add_member(out, "system", environment_system);
}

static void add_program(struct text *out)
{
    add_field(out, "libc", gnu_get_libc_version());
    add_field(out, "onednn", BUILD_ONEDNN);
    add_field(out, "onednn_instructions", onednn_instructions());
    add_field(out, "zeromq", BUILD_ZEROMQ);
    add_field(out, "mpi", sync_library_version());
    add_field(out, "cuda", BUILD_CUDA);
    add_field(out, "sqlite", BUILD_SQLITE);
    add_field(out, "libjpeg", BUILD_LIBJPEG);
    add_field(out, "version", BUILD_VERSION);
    add_field(out, "commit", BUILD_COMMIT);
    text_add(out, ",\"dirty\":%s", BUILD_DIRTY ? "true" : "false");
    add_field(out, "compiler", BUILD_COMPILER);
    add_field(out, "build", BUILD_NAME);
    add_field(out, "flags", BUILD_FLAGS);
}

/* The JSON object of run.host. docs/results-file.md describes its members. */
static void add_host(struct text *out)
{
    text_add(out, "{");
    add_machine(out);
    add_program(out);
    add_member(out, "argv", environment_arguments);
    add_member(out, "folder", environment_folder);
    add_member(out, "environment", environment_variables);
    text_add(out, "}");
}

bool provenance_version(size_t i, struct version *out)
{
    const struct version all[] = {
        {"gradlag", BUILD_WHOLE_VERSION},
        {"build", BUILD_NAME},
        {"flags", BUILD_FLAGS},
        {"compiler", BUILD_COMPILER},
        {"C library", gnu_get_libc_version()},
        {"oneDNN", BUILD_ONEDNN},
        {"ZeroMQ", BUILD_ZEROMQ},
        {"MPI", sync_library_version()},
        {"SQLite", BUILD_SQLITE},
        {"libjpeg-turbo", BUILD_LIBJPEG},
        {"CUDA", BUILD_CUDA != NULL ? BUILD_CUDA : "not built in"},
    };
    if (i < COUNT_OF(all))
        *out = all[i];
    return i < COUNT_OF(all);
}

const char *provenance_release(void)
{
    return BUILD_VERSION;
}

const char *provenance_date(void)
{
    return BUILD_DATE;
}

void run_row_open(struct run_row *row, const options *o)
{
    *row = (struct run_row){0};
    config_json(o, &row->config);
    config_settings_json(o, &row->settings);
    config_hash(o, row->hash);
    add_host(&row->host);
    bool async = strcmp(options_text(o, "mode"), "async") == 0;
    row->description = (struct run_description){
        .experiment = config_text_or_null(o, "experiment"),
        .arm = config_text_or_null(o, "arm"),
        .tag = config_text_or_null(o, "tag"),
        .mode = options_text(o, "mode"),
        .engine = options_text(o, "engine"),
        .model = options_text(o, "model"),
        .dataset = options_text(o, "dataset"),
        .device = options_text(o, "device"),
        .optimizer = options_text(o, "optimizer"),
        .consistency = async ? options_text(o, "consistency") : NULL,
        .damping = async ? options_text(o, "damping") : NULL,
        .correction = async ? options_text(o, "correction") : NULL,
        .communicator = async ? NULL : options_text(o, "communicator"),
        .compression = options_text(o, "compression"),
        .workers = (unsigned)options_integer(o, "workers"),
        .batch = (unsigned)options_integer(o, "batch"),
        .seed = (uint64_t)options_integer(o, "seed"),
        .lr = options_real(o, "lr"),
        .momentum = options_real(o, "momentum"),
        .config = row->config.at,
        .settings = row->settings.at,
        .config_hash = row->hash,
        .host = row->host.at,
        .precision = config_text_or_null(o, "precision_trial"),
    };
}

void run_row_close(struct run_row *row)
{
    text_free(&row->config);
    text_free(&row->settings);
    text_free(&row->host);
}
