/*
 * Trainings with local steps, compared with the papers' algorithms in double precision: four
 * workers in a random order, every outer rule, both kinds of local steps, and for fedasync the
 * three functions of staleness of its paper.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/ps/rules/outer_bench.h"

enum { D = BENCH_COUNT };

static void setting(char out[64], const char *key, const char *value)
{
    snprintf(out, 64, "%s=%s", key, value);
}

struct plain {
    const char *rule, *damping;
    bool nesterov, adam; /* of the local steps */
    unsigned steps, every, t;
    double alpha, lr, decay, mu, rho;
    unsigned sent[OUTER_WORKERS];  /* the t at which each worker received `read` */
    double theta[D], m[D], sum[D]; /* sum: Δ */
    double read[OUTER_WORKERS][D]; /* parameters each worker received */
    double x[OUTER_WORKERS][D], v[OUTER_WORKERS][D];
    uint64_t batch[OUTER_WORKERS];
};

static double length(const double x[D])
{
    double sum = 0;
    for (size_t i = 0; i < D; i++)
        sum += x[i] * x[i];
    return sqrt(sum);
}

/* Al Asif et al. 2026, equations 7 to 15, with the default constants. */
static void plain_correct(const double d[D], const double m[D], double out[D])
{
    const double is = length(d), was = length(m), conf = is / (is + 3 * was + 1e-8);
    double c = 0, mixed[D];
    memcpy(out, d, D * sizeof *d);
    if (is < 1e-8 || was < 1e-8)
        return;
    for (size_t i = 0; i < D; i++)
        c += d[i] / is * (m[i] / was);
    double lambda = fmin((1 - c) * conf, 1), beta = fmin(0.5 * -c * conf, 0.5);
    for (size_t i = 0; i < D; i++)
        mixed[i] = (1 - lambda) * d[i] / is + lambda * m[i] / was;
    for (size_t i = 0; i < D && c < 0.2; i++)
        out[i] = c < 0 ? d[i] - beta * c * is * m[i] / was : is * mixed[i] / length(mixed);
}

/* Equations 18 and 19 with weight 1/√4. */
static void plain_heloco(struct plain *p, const double d[D])
{
    double corrected[D];
    plain_correct(d, p->m, corrected);
    for (size_t i = 0; i < D; i++) {
        double G = 0.5 * corrected[i];
        p->m[i] = 0.9 * p->m[i] + (1 - 0.9) * G;
        p->theta[i] -= 0.7 * (G + 0.9 * p->m[i]);
    }
}

/* Kingma, Ba 2015, algorithm 1; `sum` holds v. */
static void plain_adam(struct plain *p, const double d[D])
{
    p->t++;
    for (size_t i = 0; i < D; i++) {
        p->m[i] = 0.9 * p->m[i] + 0.1 * d[i];
        p->sum[i] = 0.99 * p->sum[i] + 0.01 * d[i] * d[i];
        double mean = p->m[i] / (1 - pow(0.9, p->t)), square = p->sum[i] / (1 - pow(0.99, p->t));
        p->theta[i] -= 0.7 * mean / (sqrt(square) + 0.001);
    }
}

/* What a worker receives: θ, or θ̄ of equation 5. */
static double plain_released(const struct plain *p, size_t i)
{
    return strcmp(p->rule, "heloco") == 0 ? p->theta[i] - 0.7 * 0.9 * p->m[i] : p->theta[i];
}

/* Liu et al. 2024, algorithm 3 with c = 0, and the Nesterov and plain forms. */
static void plain_nesterov(struct plain *p, const double d[D])
{
    const double epsilon = 0.7, beta = 0.9;
    bool last = (p->t + 1) % p->every == 0;
    for (size_t i = 0; i < D; i++) {
        if (strcmp(p->rule, "sgd") == 0) {
            p->theta[i] -= epsilon * d[i];
            continue;
        }
        p->sum[i] += d[i];
        if (last) {
            p->m[i] = beta * p->m[i] + p->sum[i] / p->every;
            p->theta[i] -= epsilon * (d[i] / p->every + beta * p->m[i]);
            p->sum[i] = 0;
        } else {
            p->theta[i] -= epsilon * d[i] / p->every;
        }
    }
    p->t++;
}

/* Xie, Koyejo, Gupta 2019, algorithm 1 and section 5.2; `delay`: 0 for a fresh model. */
static double mixing_weight(const struct plain *p, double delay)
{
    if (strcmp(p->damping, "polynomial") == 0)
        return p->alpha * pow(delay + 1, -0.5);
    else if (strcmp(p->damping, "hinge") == 0)
        return p->alpha * (delay <= 4 ? 1 : 1 / (10 * (delay - 4) + 1));
    return p->alpha;
}

static void plain_mix(struct plain *p, unsigned w, const double x[D])
{
    double alpha = mixing_weight(p, p->t - p->sent[w]);
    for (size_t i = 0; i < D; i++)
        p->theta[i] = (1 - alpha) * p->theta[i] + alpha * x[i];
    p->sent[w] = ++p->t;
}

/* Loshchilov, Hutter 2019, algorithm 2, for element i at local step t = 1, 2, … */
static double adam_step(const struct plain *p, unsigned t, double g, double *m, double *v)
{
    *m = 0.9 * *m + 0.1 * g;
    *v = 0.999 * *v + 0.001 * g * g;
    return p->lr * (*m / (1 - pow(0.9, t))) / (sqrt(*v / (1 - pow(0.999, t))) + 1e-8);
}

static void plain_round(struct plain *p, unsigned w)
{
    double x[D], v[D] = {0}, s[D] = {0}, d[D];
    memcpy(x, p->read[w], sizeof x);
    for (unsigned j = 0; j < p->steps; j++, p->batch[w]++) {
        for (size_t i = 0; i < D; i++) {
            double g = x[i] - (double)(float)outer_bench_center(w, p->batch[w], i);
            g += p->rho * (x[i] - p->read[w][i]);
            if (p->adam) {
                x[i] -= p->lr * p->decay * x[i] + adam_step(p, j + 1, g, &v[i], &s[i]);
                continue;
            }
            g += p->decay * x[i];
            v[i] = p->mu * v[i] + g;
            x[i] -= p->lr * (p->nesterov ? g + p->mu * v[i] : g);
        }
    }
    for (size_t i = 0; i < D; i++)
        d[i] = p->read[w][i] - x[i];
    if (strcmp(p->rule, "fedasync") == 0)
        plain_mix(p, w, x);
    else if (strcmp(p->rule, "adam") == 0)
        plain_adam(p, d);
    else if (strcmp(p->rule, "heloco") == 0)
        plain_heloco(p, d);
    else
        plain_nesterov(p, d);
    for (size_t i = 0; i < D; i++)
        p->read[w][i] = plain_released(p, i);
}

/* Zhang et al. 2015, algorithm 2 (δ = 0: algorithm 1), from one exchange to just past the next. */
static void plain_elastic(struct plain *p, unsigned w)
{
    double *x = p->x[w], *v = p->v[w], delta = p->nesterov ? p->mu : 0;
    for (unsigned j = 0; j < p->steps; j++, p->batch[w]++) {
        for (size_t i = 0; i < D; i++) {
            double at = x[i] + delta * v[i];
            double g = at - (double)(float)outer_bench_center(w, p->batch[w], i) + p->decay * at;
            if (j == 0)
                x[i] = p->read[w][i]; /* moved by the exchange */
            v[i] = delta * v[i] - p->lr * g;
            x[i] += v[i];
        }
    }
    for (size_t i = 0; i < D; i++) {
        double elastic = p->alpha * (x[i] - p->theta[i]);
        p->read[w][i] = x[i] - elastic;
        p->theta[i] += elastic;
    }
}

static double train_both(const char *rule, const char *damping, const char *local,
                         const char *steps)
{
    enum { PUSHES = 120 };
    static struct outer_bench c;
    static struct plain p;
    char settings[4][64];
    bool elastic = strcmp(rule, "easgd") == 0, mixed = strcmp(rule, "fedasync") == 0;
    setting(settings[0], "outer", rule);
    setting(settings[1], "optimizer", local);
    setting(settings[2], "outer.steps", steps);
    setting(settings[3], "damping", damping);
    outer_bench_open(&c, OUTER_WORKERS, NAN,
                     RIG(settings[0], settings[1], settings[2], settings[3], "momentum=0.8",
                         "lr=0.05", "weight_decay=0.01",
                         elastic ? "outer.moving_rate=0.2"
                         : mixed ? "outer.alpha=0.2"
                                 : "outer.lr=0.7",
                         mixed ? "outer.rho=0.5" : "batch=10"));
    c.centered = true;
    p = (struct plain){.rule = rule,
                       .damping = damping,
                       .rho = mixed ? 0.5 : 0,
                       .nesterov = strcmp(local, "nesterov") == 0,
                       .adam = strcmp(local, "adamw") == 0,
                       .steps = c.plan.outer.steps,
                       .every = strcmp(rule, "delayed-nesterov") == 0 ? OUTER_WORKERS : 1,
                       .alpha = 0.2,
                       .lr = 0.05,
                       .decay = 0.01,
                       .mu = 0.8};
    for (size_t i = 0; i < D; i++) {
        p.theta[i] = (double)bench_latest(&c.b)[i];
        for (unsigned w = 0; w < OUTER_WORKERS; w++)
            p.read[w][i] = p.x[w][i] = p.theta[i];
    }
    uint64_t random_number = 5;
    for (unsigned n = 0; n < PUSHES; n++) {
        unsigned w = (unsigned)(core_rig_random(&random_number) % OUTER_WORKERS);
        outer_bench_round(&c, w);
        if (elastic)
            plain_elastic(&p, w);
        else
            plain_round(&p, w);
    }
    double most = 0, size = 1;
    for (size_t i = 0; i < D; i++) {
        most = fmax(most, fabs((double)bench_latest(&c.b)[i] - plain_released(&p, i)));
        size = fmax(size, fabs(p.theta[i])); /* stale outer momentum may move far */
    }
    outer_bench_close(&c);
    return most / size;
}

static void expect_printed_algorithm(const char *rule, const char *damping)
{
    const char *const optimizers[] = {"sgd", "nesterov", "adamw"}, *const steps[] = {"1", "2", "5"};
    const size_t all = COUNT_OF(optimizers) - (strcmp(rule, "easgd") == 0);
    for (size_t o = 0; o < all; o++) {
        for (size_t s = 0; s < COUNT_OF(steps); s++) {
            double apart = train_both(rule, damping, optimizers[o], steps[s]);
            /* adamw divides by the size of a gradient, so rounding of a small one counts more */
            if (!(apart < (strcmp(optimizers[o], "adamw") == 0 ? 2e-4 : 2e-5))) {
                fail_msg("outer=%s damping=%s optimizer=%s outer.steps=%s: %g apart", rule, damping,
                         optimizers[o], steps[s], apart);
            }
        }
    }
}

static void trainings_equal_the_printed_algorithms(void **state)
{
    (void)state;
    for (size_t i = 1; i < outer_registry.count; i++)
        expect_printed_algorithm(outer_registry.entries[i]->name, "none");
}

static void fedasync_supports_each_weight_function_of_its_paper(void **state)
{
    (void)state;
    expect_printed_algorithm("fedasync", "polynomial");
    expect_printed_algorithm("fedasync", "hinge");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trainings_equal_the_printed_algorithms),
        cmocka_unit_test(fedasync_supports_each_weight_function_of_its_paper),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
