/* A model for model=external in C: a line through points, y = 3x − 1 and noise. Link with jansson.
 */
#include <jansson.h>

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { TRAIN = 4000, TEST = 500, REGIONS = 256 };

static char *regions[REGIONS];  /* of gradlag's memory */
static const float *parameters; /* [2]: slope, offset; of the last request that named them */

/* Sample i: always the same point. */
static void sample(long i, double *x, double *y)
{
    const double noise = (double)(i * 7919 % 1000) / 1000 - 0.5;
    *x = (double)(i * 104729 % 2000) / 1000 - 1;
    *y = 3 * *x - 1 + 0.1 * noise;
}

/* Half the mean squared error, and its gradient. `samples`: NULL for those from `first` on. */
static double loss_of(const json_t *samples, long first, long count, double out[2])
{
    double loss = 0;
    out[0] = out[1] = 0;
    for (long k = 0; k < count; k++) {
        double x, y;
        sample(samples != NULL ? json_integer_value(json_array_get(samples, (size_t)k)) : first + k,
               &x, &y);
        const double error = (double)parameters[0] * x + (double)parameters[1] - y;
        loss += 0.5 * error * error / (double)count;
        out[0] += error * x / (double)count;
        out[1] += error / (double)count;
    }
    return loss;
}

/* JSON has no NaN: null means "not finite". */
static json_t *loss_answer(double loss)
{
    return isfinite(loss) ? json_pack("{s:f}", "loss", loss) : json_pack("{s:n}", "loss");
}

/* Maps a region as gradlag asks. Parameters of other steps may lie in it: it may be read-only. */
static json_t *map(const json_t *request)
{
    const json_int_t region = json_integer_value(json_object_get(request, "region"));
    const size_t bytes = (size_t)json_integer_value(json_object_get(request, "bytes"));
    const off_t offset = (off_t)json_integer_value(json_object_get(request, "offset"));
    const int writable = json_is_true(json_object_get(request, "writable"));
    const int fd = open(json_string_value(json_object_get(request, "path")),
                        (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC);
    void *at =
        mmap(NULL, bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, offset);
    close(fd);
    if (at == MAP_FAILED || region >= REGIONS)
        return json_pack("{s:s}", "error", "cannot map gradlag's memory");
    regions[region] = at;
    return json_object();
}

/* The vector at the place [region, offset] that a request names. */
static void *vector_at(const json_t *place)
{
    return regions[json_integer_value(json_array_get(place, 0))] +
           json_integer_value(json_array_get(place, 1));
}

static json_t *answer(const json_t *request)
{
    const char *type = json_string_value(json_object_get(request, "type"));
    const json_t *place = json_object_get(request, "parameters");
    double slope[2];
    if (place != NULL)
        parameters = vector_at(place);
    if (strcmp(type, "open") == 0) {
        if (json_integer_value(json_object_get(request, "protocol")) != 2)
            return json_pack("{s:s}", "error", "external_line speaks protocol 2");
        return json_pack("{s:[{s:s, s:[i]}, {s:s, s:[i]}], s:{s:i, s:i, s:i}, s:i, s:s}",
                         "parameters", "name", "slope", "shape", 1, "name", "offset", "shape", 1,
                         "samples", "train", TRAIN, "validation", 0, "test", TEST, "classes", 0,
                         "description", "external_line");
    }
    if (strcmp(type, "map") == 0)
        return map(request);
    if (strcmp(type, "initial") == 0) {
        memset(vector_at(place), 0, 2 * sizeof(float));
        return json_object();
    }
    if (strcmp(type, "gradient") == 0) {
        const json_t *samples = json_object_get(request, "samples");
        const double loss = loss_of(samples, 0, (long)json_array_size(samples), slope);
        float *gradient = vector_at(json_object_get(request, "gradient"));
        gradient[0] = (float)slope[0];
        gradient[1] = (float)slope[1];
        return loss_answer(loss);
    }
    if (strcmp(type, "evaluate") == 0) {
        const long first = (long)json_integer_value(json_object_get(request, "first"));
        const long count = (long)json_integer_value(json_object_get(request, "count"));
        return loss_answer(loss_of(NULL, TRAIN + first, count, slope));
    }
    return json_object(); /* "prepare": no statistics to estimate */
}

int main(void)
{
    const char *number = getenv("GRADLAG_SOCKET_FD");
    FILE *socket = number != NULL ? fdopen(atoi(number), "r+") : NULL;
    char *line = NULL;
    size_t room = 0;
    if (socket == NULL) {
        fprintf(stderr,
                "gradlag starts this program: gradlag run model=external model.command=…\n");
        return 2;
    }
    while (getline(&line, &room, socket) > 0) {
        json_t *request = json_loads(line, 0, NULL), *said = answer(request);
        json_dumpf(said, socket, JSON_COMPACT);
        fputc('\n', socket);
        fflush(socket);
        json_decref(said);
        json_decref(request);
    }
    free(line);
    return 0;
}
