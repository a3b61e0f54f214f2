/* core_model_step.c — every optimizer's update, element by element; see core_model.h. */
#include "tests/ps/core/core_model.h"

#include "base/vector.h"

#include <math.h>
#include <string.h>

/* The scalars of an update. */
struct how {
    float scale, lr, momentum, decay;
    double rate;     /* of the call, in double precision */
    uint64_t number; /* of the update: 1, 2, … */
    double epoch;
    double of_gradient, of_momentum; /* heloco: what the layer's gradient and momentum count */
};

static bool is(const struct core_model *m, const char *kind)
{
    return strcmp(m->optimizer.kind, kind) == 0;
}

bool model_scale_free(const struct core_model *m)
{
    return is(m, "adamw") || is(m, "lars") || is(m, "lion") || is(m, "muon") || is(m, "nadamw");
}

/* ---- adamw, outer-adam ---- */

static void adamw(struct core_model *m, const struct how *h, size_t i, float gradient)
{
    struct model_optimizer *o = &m->optimizer;
    double b1 = o->option[0], b2 = o->option[1], n = (double)h->number;
    float g = h->scale * gradient;
    o->velocity[i] = (float)b1 * o->velocity[i] + (float)(1 - b1) * g;
    o->squares[i] = (float)b2 * o->squares[i] + (float)(1 - b2) * (g * g);
    float root = (float)(1 / sqrt(1 - pow(b2, n))) * sqrtf(o->squares[i]);
    float kept = (float)(1 - h->rate * (double)o->weight_decay);
    float rate = (float)(h->rate / (1 - pow(b1, n)));
    m->theta[i] = kept * m->theta[i] - rate * (o->velocity[i] / (root + (float)o->option[2]));
}

/* ---- nadamw: options beta1, beta2, epsilon, momentum_decay ---- */

static double nadamw_momentum(const struct model_optimizer *o, uint64_t number)
{
    return o->option[0] * (1 - 0.5 * pow(0.96, (double)number * o->option[3]));
}

static void nadamw(struct core_model *m, const struct how *h, size_t i, float gradient)
{
    struct model_optimizer *o = &m->optimizer;
    const double b1 = o->option[0], b2 = o->option[1];
    const double next = nadamw_momentum(o, h->number + 1);
    double product = 1, root = sqrt(1 - pow(b2, (double)h->number));
    for (uint64_t k = 1; k <= h->number; k++)
        product *= nadamw_momentum(o, k);
    const float now_rate =
        (float)(h->rate * root * (1 - nadamw_momentum(o, h->number)) / (1 - product));
    const float mean_rate = (float)(h->rate * root * next / (1 - product * next));
    const float g = h->scale * gradient;
    o->velocity[i] = (float)b1 * o->velocity[i] + (float)(1 - b1) * g;
    o->squares[i] = (float)b2 * o->squares[i] + (float)(1 - b2) * (g * g);
    const float kept = (float)(1 - h->rate * (double)o->weight_decay);
    m->theta[i] = kept * m->theta[i] - (now_rate * g + mean_rate * o->velocity[i]) /
                                           (sqrtf(o->squares[i]) + (float)(o->option[2] * root));
}

/* ---- muon: options beta1, beta2, epsilon, momentum ---- */

/* out[n × n] ← YᵀY of Y[m × n]. */
static void gram(size_t m, size_t n, const float *y, float *out)
{
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++) {
            float sum = 0;
            for (size_t k = 0; k < m; k++)
                sum += y[k * n + i] * y[k * n + j];
            out[i * n + j] = sum;
        }
}

/* y[m × n] ← a step of the iteration towards its orthogonal factor; m ≥ n. */
static void newton_schulz_step(size_t m, size_t n, float *y)
{
    float first[MODEL_COUNT], second[MODEL_COUNT], old[MODEL_COUNT];
    memcpy(old, y, m * n * sizeof *y);
    gram(m, n, y, first);
    gram(n, n, first, second);
    for (size_t i = 0; i < n * n; i++)
        second[i] = -4.7750f * first[i] + 2.0315f * second[i];
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < n; j++) {
            float sum = 0;
            for (size_t k = 0; k < n; k++)
                sum += old[i * n + k] * second[k * n + j];
            y[i * n + j] = 3.4445f * old[i * n + j] + sum;
        }
}

/* Moves one hidden matrix, which begins at element `at`. */
static void muon_matrix(struct core_model *m, const struct how *h, size_t at,
                        const struct optimizer_layer *l, const float *gradient)
{
    struct model_optimizer *o = &m->optimizer;
    const bool tall = l->rows > l->columns;
    const size_t columns = tall ? l->columns : l->rows, rows = l->count / columns;
    const float mu = (float)o->option[3];
    float u[MODEL_COUNT], y[MODEL_COUNT];
    for (size_t i = 0; i < l->count; i++) {
        const float g = h->scale * gradient[at + i];
        float *v = &o->velocity[at + i];
        *v = mu * *v + g;
        u[i] = g + mu * *v;
    }
    const float by = (float)(1 / (sqrt(vector_sum_of_squares(l->count, u)) + 1e-7));
    for (size_t i = 0; i < l->count; i++)
        y[i] = by * u[tall ? i : i % columns * rows + i / columns];
    for (int k = 0; k < 5; k++)
        newton_schulz_step(rows, columns, y);
    const float rate = (float)(0.2 * sqrt((double)rows) * (double)h->lr);
    const float kept = (float)(1 - h->rate * (double)o->weight_decay);
    for (size_t i = 0; i < l->count; i++) {
        float *theta = &m->theta[at + (tall ? i : i % columns * rows + i / columns)];
        *theta = kept * *theta - rate * y[i];
    }
}

/* ---- lion ---- */

static void lion(struct core_model *m, const struct how *h, size_t i, float gradient)
{
    struct model_optimizer *o = &m->optimizer;
    const double b1 = o->option[0], b2 = o->option[1];
    float g = h->scale * gradient;
    float mean = (float)b1 * o->velocity[i] + (float)(1 - b1) * g;
    float moved = mean > 0 ? h->lr : mean < 0 ? -h->lr : 0;
    o->velocity[i] = (float)b2 * o->velocity[i] + (float)(1 - b2) * g;
    m->theta[i] = (float)(1 - h->rate * (double)o->weight_decay) * m->theta[i] - moved;
}

/* ---- rmsprop-warmup: options mu2, epsilon, rmsprop_lr, center, period ---- */

static double share_of_sgd(const double option[], double epoch)
{
    double periods = (epoch - option[3]) / option[4];
    return periods < 0 ? 0.5 * exp(2 * periods) : fmin(1, 0.5 + periods);
}

static void rmsprop_warmup(struct core_model *m, const struct how *h, size_t i, float gradient)
{
    struct model_optimizer *o = &m->optimizer;
    float g = h->scale * gradient + h->decay * m->theta[i];
    double sgd = share_of_sgd(o->option, h->epoch);
    double rms = h->rate > 0 ? (1 - sgd) * o->option[2] / h->rate : 0;
    o->squares[i] = (float)o->option[0] * o->squares[i] + (float)(1 - o->option[0]) * (g * g);
    float by = (float)sgd + (float)rms / (sqrtf(o->squares[i]) + (float)o->option[1]);
    o->velocity[i] = h->momentum * o->velocity[i] + by * g;
    m->theta[i] = m->theta[i] - h->lr * o->velocity[i];
}

/* ---- sgd, momentum, nesterov, lars; outer rules with options momentum, every ---- */

static void delayed_nesterov(struct core_model *m, const struct how *h, size_t i, float gradient)
{
    struct model_optimizer *o = &m->optimizer;
    uint64_t every = (uint64_t)o->option[1];
    float kept = h->number % every == 1 % every ? (float)o->option[0] : 1;
    float ahead = h->number % every == 0 ? (float)o->option[0] : 0;
    float g = (float)(1 / o->option[1]) * (h->scale * gradient + h->decay * m->theta[i]);
    o->velocity[i] = kept * o->velocity[i] + g;
    m->theta[i] = m->theta[i] - h->lr * (g + ahead * o->velocity[i]);
}

static void plain(struct core_model *m, const struct how *h, size_t i, float gradient)
{
    REQUIRE(is(m, "sgd") || is(m, "momentum") || is(m, "nesterov") ||
            is(m, "lars")); /* add a new optimizer here */
    float *v = &m->optimizer.velocity[i];
    float g = h->scale * gradient + h->decay * m->theta[i], direction = g;
    if (!is(m, "sgd")) {
        *v = h->momentum * *v + g;
        direction = is(m, "nesterov") ? g + h->momentum * *v : *v;
    }
    m->theta[i] = m->theta[i] - h->lr * direction;
}

/* ---- heloco: options momentum, keep, shrink, shrink_most, turn, caution, weight ---- */

static void blend(struct how *h, const double option[], size_t count, const float *gradient,
                  const float *momentum)
{
    double is = sqrt(vector_sum_of_squares(count, gradient));
    double was = sqrt(vector_sum_of_squares(count, momentum));
    h->of_gradient = 1;
    h->of_momentum = 0;
    if (is < 1e-8 || was < 1e-8)
        return;
    double c = fmax(-1, fmin(1, vector_inner_product(count, gradient, momentum) / (is * was)));
    double conf = is / (is + option[5] * was + 1e-8), lambda = fmin(option[4] * (1 - c) * conf, 1);
    if (c >= option[1])
        return;
    if (c < 0) {
        h->of_momentum = -c * (is / was) * fmin(option[2] * -c * conf, option[3]);
    } else {
        double kept = 1 - lambda, n = sqrt(kept * kept + lambda * lambda + 2 * lambda * kept * c);
        h->of_gradient = kept / n;
        h->of_momentum = lambda * (is / was) / n;
    }
}

static void heloco(struct core_model *m, const struct how *h, double scale, size_t i,
                   float gradient)
{
    float *v = &m->optimizer.velocity[i];
    const double *option = m->optimizer.option, mu = option[0];
    float g = (float)(option[6] * h->of_gradient) * (h->scale * gradient) +
              (float)(option[6] * scale * h->of_momentum) * *v;
    float theta = m->theta[i] + (float)(h->rate * mu) * *v;
    *v = (float)mu * *v + (float)(1 - mu) * g;
    m->theta[i] = theta - (h->lr * g + (float)(2 * h->rate * mu) * *v);
}

/* ---- all ---- */

/* λ of one layer; 1 if its weights or its gradient are 0. */
static double trust(const struct core_model *m, size_t at, const struct optimizer_layer *layer,
                    const float *gradient, double scale)
{
    double decay = (double)m->optimizer.weight_decay;
    double weights = sqrt(vector_sum_of_squares(layer->count, m->theta + at));
    double norm = fabs(scale) * sqrt(vector_sum_of_squares(layer->count, gradient + at));
    return !layer->excluded && weights > 0 && norm > 0
               ? m->optimizer.option[0] * weights / (norm + decay * weights)
               : 1;
}

void model_step(struct core_model *m, const float *gradient, double scale, double rate,
                uint64_t before, uint64_t after)
{
    const struct model_optimizer *o = &m->optimizer;
    size_t at = 0;
    m->states.rate = rate;
    m->states.largest_rate = fmax(m->states.largest_rate, rate);
    rate *= model_scale_free(m) ? m->mean_scale : 1;
    for (size_t l = 0; l < o->layers; l++) {
        double inside = is(m, "lars") ? rate * trust(m, at, &o->layer[l], gradient, scale) : rate;
        double decay = is(m, "lars") && o->layer[l].excluded ? 0 : (double)o->weight_decay;
        struct how h = {.scale = (float)(o->rate_inside ? scale * inside : scale),
                        .lr = o->rate_inside ? 1 : (float)rate,
                        .decay = (float)(o->rate_inside ? decay * inside : decay),
                        .momentum = o->momentum,
                        .rate = rate,
                        .number = m->version + 1,
                        .epoch = schedule_epoch(&m->schedule, before, after)};
        if (is(m, "muon") && o->layer[l].rows > 0) {
            muon_matrix(m, &h, at, &o->layer[l], gradient);
            at += o->layer[l].count;
            continue;
        }
        if (is(m, "heloco"))
            blend(&h, o->option, o->layer[l].count, gradient + at, o->velocity + at);
        for (size_t end = at + o->layer[l].count; at < end; at++)
            if (is(m, "adamw") || is(m, "outer-adam") || is(m, "muon"))
                adamw(m, &h, at, gradient[at]);
            else if (is(m, "nadamw"))
                nadamw(m, &h, at, gradient[at]);
            else if (is(m, "lion"))
                lion(m, &h, at, gradient[at]);
            else if (is(m, "rmsprop-warmup"))
                rmsprop_warmup(m, &h, at, gradient[at]);
            else if (is(m, "delayed-nesterov"))
                delayed_nesterov(m, &h, at, gradient[at]);
            else if (is(m, "heloco"))
                heloco(m, &h, scale, at, gradient[at]);
            else
                plain(m, &h, at, gradient[at]);
    }
    REQUIRE(at == m->count);
}
