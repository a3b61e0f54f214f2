#include "worker/data/dataset_grammar.h"

#include "base/memory.h"
#include "base/random.h"
#include "base/text.h"
#include "worker/data/dataset_store.h"

#include <math.h>
#include <string.h>

static const char opening[] = "([{<", closing[] = ")]}>";
enum { KINDS = 4 };

/* ---- the grammar ---- */

static void fill_zipf(double *out, size_t count)
{
    double sum = 0;
    for (size_t r = 1; r <= count; r++)
        sum += 1.0 / (double)r;
    for (size_t r = 1; r <= count; r++)
        out[r - 1] = 1.0 / (double)r / sum;
}

static void draw_list(uint64_t seed, uint64_t number, char first, uint32_t count, uint8_t *out)
{
    struct random_stream r;
    uint32_t order[GRAMMAR_NOUNS];
    random_open(&r, RANDOM_DATASET, seed, 0, number);
    random_permutation(&r, order, count);
    for (uint32_t i = 0; i < count; i++)
        out[i] = (uint8_t)(first + order[i]);
}

void grammar_open(struct grammar *g, double asides, uint64_t seed)
{
    uint64_t number = 0;
    g->asides = asides;
    fill_zipf(g->of_nouns, GRAMMAR_NOUNS);
    fill_zipf(g->of_verbs, GRAMMAR_VERBS);
    draw_list(seed, number++, 'a', GRAMMAR_NOUNS, g->subjects);
    for (size_t noun = 0; noun < GRAMMAR_NOUNS; noun++)
        draw_list(seed, number++, noun < GRAMMAR_NOUNS / 2 ? 'A' : 'N', GRAMMAR_VERBS,
                  g->verbs[noun]);
    for (size_t verb = 0; verb < COUNT_OF(g->objects); verb++)
        draw_list(seed, number++, 'a', GRAMMAR_NOUNS, g->objects[verb]);
}

static double entropy(const double *p, size_t count)
{
    double sum = 0;
    for (size_t i = 0; i < count; i++)
        sum -= p[i] > 0 ? p[i] * log(p[i]) : 0;
    return sum;
}

double grammar_entropy_rate(double asides)
{
    double nouns[GRAMMAR_NOUNS], verbs[GRAMMAR_VERBS];
    fill_zipf(nouns, GRAMMAR_NOUNS);
    fill_zipf(verbs, GRAMMAR_VERBS);
    const double aside =
        entropy((const double[]){asides, 1 - asides}, 2) + asides * log((double)KINDS);
    const double clause = 1.5 * entropy(nouns, GRAMMAR_NOUNS) + entropy(verbs, GRAMMAR_VERBS) +
                          log(2.0) + 1.5 * aside;
    return clause / (3.5 + 1.5 * asides);
}

static size_t add_words(const uint8_t *words, const double *p, size_t count, double share,
                        struct grammar_choice *out)
{
    for (size_t i = 0; i < count; i++)
        out[i] = (struct grammar_choice){words[i], share * p[i]};
    return count;
}

static size_t add_asides(const struct grammar *g, struct grammar_choice *out)
{
    for (size_t i = 0; i < KINDS; i++)
        out[i] = (struct grammar_choice){(uint8_t)opening[i], g->asides / KINDS};
    return KINDS;
}

static size_t add_end(const struct grammar_state *s, double p, struct grammar_choice *out)
{
    *out = (struct grammar_choice){s->depth > 0 ? s->open[s->depth - 1].close : '.', p};
    return 1;
}

size_t grammar_choices(const struct grammar *g, const struct grammar_state *s,
                       struct grammar_choice out[GRAMMAR_CHOICES])
{
    size_t n = 0;
    switch (s->next) {
    case GRAMMAR_SUBJECT:
        return add_words(g->subjects, g->of_nouns, GRAMMAR_NOUNS, 1, out);
    case GRAMMAR_ASIDE_OR_VERB:
        n = add_asides(g, out);
        return n + add_words(g->verbs[s->word - 'a'], g->of_verbs, GRAMMAR_VERBS, 1 - g->asides,
                             out + n);
    case GRAMMAR_VERB:
        return add_words(g->verbs[s->word - 'a'], g->of_verbs, GRAMMAR_VERBS, 1, out);
    case GRAMMAR_OBJECT_OR_END:
        n = add_words(g->objects[s->word - 'A'], g->of_nouns, GRAMMAR_NOUNS, 0.5, out);
        return n + add_end(s, 0.5, out + n);
    case GRAMMAR_ASIDE_OR_END:
        n = add_asides(g, out);
        return n + add_end(s, 1 - g->asides, out + n);
    case GRAMMAR_END:
        break;
    }
    return add_end(s, 1, out);
}

static void read_opening(struct grammar_state *s, uint8_t byte)
{
    REQUIRE(s->depth < GRAMMAR_DEPTH);
    s->open[s->depth].close = (uint8_t)closing[strchr(opening, byte) - opening];
    s->open[s->depth].word = s->word;
    s->open[s->depth].next = s->next == GRAMMAR_ASIDE_OR_VERB ? GRAMMAR_VERB : GRAMMAR_END;
    s->depth++;
    s->next = GRAMMAR_SUBJECT;
}

void grammar_read(struct grammar_state *s, uint8_t byte)
{
    if (byte >= 'a' && byte <= 'z') {
        s->next = s->next == GRAMMAR_SUBJECT ? GRAMMAR_ASIDE_OR_VERB : GRAMMAR_ASIDE_OR_END;
        s->word = byte;
    } else if (byte >= 'A' && byte <= 'Z') {
        s->next = GRAMMAR_OBJECT_OR_END;
        s->word = byte;
    } else if (byte == '.') {
        s->next = GRAMMAR_SUBJECT;
    } else if (strchr(opening, byte) != NULL) {
        read_opening(s, byte);
    } else {
        REQUIRE(s->depth > 0);
        s->depth--;
        s->word = s->open[s->depth].word;
        s->next = s->open[s->depth].next;
    }
}

void grammar_write(const struct grammar *g, uint64_t seed, uint32_t number, size_t count,
                   uint8_t *out)
{
    struct random_stream r;
    struct grammar_state s = {0};
    struct grammar_choice choice[GRAMMAR_CHOICES];
    random_open(&r, RANDOM_DATASET, seed, 1 + number, 0);
    for (size_t i = 0; i < count; i++) {
        const size_t n = grammar_choices(g, &s, choice);
        size_t k = 0;
        for (double left = random_uniform(&r); k + 1 < n && left >= choice[k].probability; k++)
            left -= choice[k].probability;
        out[i] = choice[k].byte;
        grammar_read(&s, out[i]);
    }
}

/* ---- the dataset ---- */

static const struct option grammar_options[] = {
    {"dataset.context", OPTION_INTEGER, "64", 1, 65536, NULL, NULL, "tokens of a window"},
    {"dataset.samples", OPTION_INTEGER, "16384", 1, 1e9, NULL, NULL,
     "training windows; the validation and test splits have a quarter each"},
    {"dataset.asides", OPTION_REAL, "0.3", 0, 0.5, NULL, NULL,
     "probability that a clause in brackets follows a noun"},
    {"dataset.seed", OPTION_INTEGER, "1", 0, 1e15, NULL, NULL, "seed of the generated data"},
    {0},
};

static status describe(const options *o, struct dataset *out)
{
    status result = OK;
    const uint64_t context = (uint64_t)options_integer(o, "dataset.context");
    const uint64_t samples = (uint64_t)options_integer(o, "dataset.samples");
    if (samples * context >= UINT32_MAX) {
        FAIL(ERROR_USAGE,
             "dataset.samples=%llu windows of dataset.context=%llu tokens are more than %u bytes; "
             "reduce one of them",
             (unsigned long long)samples, (unsigned long long)context, UINT32_MAX);
    }
    for (int s = 0; s < SPLIT_COUNT; s++) {
        const uint64_t windows = s == SPLIT_TRAIN ? samples : (samples + 3) / 4;
        out->length[s] = (uint32_t)(windows * context + 1);
    }
    out->entropy_rate = grammar_entropy_rate(options_real(o, "dataset.asides"));
    dataset_describe_text(out, (uint32_t)context, GRAMMAR_VOCABULARY);
done:
    return result;
}

static status fill(void *context, const struct dataset *d, uint8_t *const images[SPLIT_COUNT],
                   uint32_t *const labels[SPLIT_COUNT])
{
    const options *o = context;
    const uint64_t seed = (uint64_t)options_integer(o, "dataset.seed");
    struct grammar g;
    (void)labels;
    grammar_open(&g, options_real(o, "dataset.asides"), seed);
    for (uint32_t s = 0; s < SPLIT_COUNT; s++)
        grammar_write(&g, seed, s, d->length[s], images[s]);
    return OK;
}

static status load(const options *o, struct dataset *d)
{
    status result = OK;
    struct text identity = {0};
    text_add(&identity, "grammar 1 %u %u %s %s", d->height, d->count[SPLIT_TRAIN],
             options_value(o, "dataset.asides"), options_value(o, "dataset.seed"));
    TRY(dataset_store_load(d, "grammar", identity.at, fill, (void *)(uintptr_t)o));
done:
    text_free(&identity);
    return result;
}

const struct dataset_kind dataset_grammar = {
    .about = {"grammar",
              "text of a made-up language with brackets and agreement, whose entropy rate is known",
              NULL, grammar_options},
    .describe = describe,
    .load = load,
    .tokens = true,
};
