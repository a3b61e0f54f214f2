/*
 * dataset_grammar.h — a made-up language with brackets and agreement, whose entropy rate is known.
 *
 *   text     = sentence sentence …
 *   sentence = clause "."
 *   clause   = subject [aside] verb [object [aside]]
 *   aside    = "(" clause ")" | "[" clause "]" | "{" clause "}" | "<" clause ">"
 *
 * A word is one byte. Nouns are a … z, the first 13 singular, the others plural. A verb agrees with
 * its subject: A … M after a singular subject, N … Z after a plural one, also after an aside.
 *
 * Probabilities: an aside follows a noun with probability b; its four kinds are equally probable.
 * A verb has an object with probability 1/2. A word is the r-th of the n words of a list with
 * probability (1/r) / (1 + 1/2 + … + 1/n) (Zipf's law). There is one list of the 26 subjects, a
 * list of 13 verbs for each subject, and a list of 26 objects for each verb. The seed permutes the
 * lists.
 *
 * Entropy rate: the derivation of a text can be read from left to right, so a reader who knows the
 * grammar and the whole past is uncertain only where the writer chooses. With Z(n) the entropy of
 * Zipf's law over n words and h(p) that of a yes-or-no choice, one clause has choices of
 *   H = Z(26) + Z(13) + h(1/2) + Z(26)/2 + (3/2) (h(b) + b ln 4)   nats.
 * A clause has 3b/2 asides on average, so a sentence has 1 / (1 − 3b/2) clauses. A clause has
 * 5/2 words and 3b brackets, and a sentence one dot. The rate is therefore
 *   H / (5/2 + 3b + 1 − 3b/2) = H / (7/2 + 3b/2)   nats per byte, the same for every seed.
 * No predictor has a smaller expected loss. One that sees only a window has a larger one.
 */
#ifndef GRADLAG_WORKER_DATA_DATASET_GRAMMAR_H
#define GRADLAG_WORKER_DATA_DATASET_GRAMMAR_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

enum {
    GRAMMAR_NOUNS = 26,
    GRAMMAR_VERBS = 13,   /* singular; as many plural */
    GRAMMAR_CHOICES = 27, /* the most bytes that can follow */
    GRAMMAR_DEPTH = 256,  /* nested asides at most; for b ≤ 1/2 more have probability < 1e-31 */
    GRAMMAR_VOCABULARY = 128 /* all bytes are smaller */
};

struct grammar {
    double asides;                                           /* b */
    double of_nouns[GRAMMAR_NOUNS], of_verbs[GRAMMAR_VERBS]; /* Zipf's law */
    uint8_t subjects[GRAMMAR_NOUNS];                         /* the words of each list, by rank */
    uint8_t verbs[GRAMMAR_NOUNS][GRAMMAR_VERBS];
    uint8_t objects[2 * GRAMMAR_VERBS][GRAMMAR_NOUNS];
};

/* What the next byte can be. */
enum grammar_place {
    GRAMMAR_SUBJECT,
    GRAMMAR_ASIDE_OR_VERB,
    GRAMMAR_VERB,
    GRAMMAR_OBJECT_OR_END,
    GRAMMAR_ASIDE_OR_END,
    GRAMMAR_END,
};

/* Position of a reader in the grammar. All zero: the beginning of a text. */
struct grammar_state {
    enum grammar_place next;
    uint8_t word; /* the subject, or the verb, that decides what follows */
    unsigned depth;
    struct {
        uint8_t close, word;
        enum grammar_place next; /* after the aside */
    } open[GRAMMAR_DEPTH];
};

struct grammar_choice {
    uint8_t byte;
    double probability;
};

/* `asides`: b, from 0 to 1/2. */
void grammar_open(struct grammar *g, double asides, uint64_t seed);
/* Nats per byte. */
double grammar_entropy_rate(double asides);
/* Writes the bytes that can follow and their probabilities; returns their number. */
size_t grammar_choices(const struct grammar *g, const struct grammar_state *s,
                       struct grammar_choice out[GRAMMAR_CHOICES]);
/* Reads one byte, which must be one of the choices. */
void grammar_read(struct grammar_state *s, uint8_t byte);
/* Writes the first `count` bytes of text number `number` of this seed. */
void grammar_write(const struct grammar *g, uint64_t seed, uint32_t number, size_t count,
                   uint8_t *out);

#endif
