#include "worker/data/augment.h"
#include "base/random.h"

#include <string.h>

bool augment_wanted(const options *o)
{
    return strcmp(options_text(o, "augment"), "standard") == 0;
}

void augment_draw(uint64_t seed, unsigned worker, uint64_t batch, uint32_t n, struct crop *out)
{
    enum { WAYS = 2 * AUGMENT_SHIFT + 1 };
    struct random_stream r;
    random_open(&r, RANDOM_AUGMENTATION, seed, worker, batch);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t drawn = random_below(&r, 2 * WAYS * WAYS);
        out[i] = (struct crop){
            .dx = (int8_t)((int)(drawn / 2 % WAYS) - AUGMENT_SHIFT),
            .dy = (int8_t)((int)(drawn / 2 / WAYS) - AUGMENT_SHIFT),
            .flip = drawn % 2,
        };
    }
}
