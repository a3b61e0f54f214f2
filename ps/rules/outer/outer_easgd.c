/*
 * outer_easgd.c — elastic averaging: every worker has parameters x of its own, tied to the server's
 * x̃ by a spring. After every τ local steps, with the x and x̃ of before:
 *
 *   x ← x − α (x − x̃);   x̃ ← x̃ + α (x − x̃)            τ = outer.steps, α = outer.moving_rate
 *
 * Zhang, Choromanska, LeCun, "Deep learning with elastic averaging SGD" (NIPS 2015,
 * arXiv:1412.6651): asynchronous EASGD, section 3.1, algorithm 1, with optimizer=sgd; EAMSGD,
 * section 3.2, algorithm 2, with optimizer=nesterov:
 *
 *   v ← δ v − η g(x + δ v);   x ← x + v                    δ = momentum, η from lr and schedule
 *
 * As there, the first gradient after an exchange is that at the x of before it. Elastic symmetry:
 * both sides move by the same α, β = W α; the default is their β = 0.9, α = 0.9 / W.
 *
 * What travels is d = x̃_read − x. The server needs α (x̃ − x) with the x̃ of now, which is
 * d + (now − read_at): outer_from_now, and the optimizer moves by α times that. The worker is
 * given x̃' = x̃ + α (x − x̃), and as x − x̃' = (1 − α) (x − x̃) it takes its own half of the very same
 * exchange as α / (1 − α) (x − x̃'). So an exchange is one event at the server and nobody comes in
 * between; in the paper's own protocol others may have moved x̃ meanwhile. For this the release must
 * follow its push at once and in full: consistency=asp, no damping, and α < 1.
 *
 * Where we differ: that, and in rounding (x is x̃_read − d at the server). A worker that comes back
 * after a loss begins anew with x = x̃, v = 0, as all do at first. Evaluated and saved is x̃, as in
 * the paper. Its synchronous form is not here.
 *
 * Held against second sources and the paper's text (both algorithms; β = 0.9 is section 5.2's) and
 * the first author's own code (mpiT, optim-eamsgd.lua): the exchange, the place of the gradient
 * after it, momentum and weight decay, which is of x + δ v, are the same there. Footnote 8 calls β
 * / τ the effective β, which could be read as α = β / (τ W); the code's α is β / W, with τ = 100
 * (mlaunch.lua).
 */
#include "ps/rules/outer/outer.h"
#include "ps/rules/outer/outer_options.h"

static const struct option parameters_of[] = {
    OUTER_STEPS,
    {.key = "outer.moving_rate",
     .type = OPTION_REAL,
     .initial = "0",
     .minimum = 0,
     .maximum = 0.999,
     .help = "alpha: the share of the way to each other that both sides go (0: 0.9 / workers)"},
    {0},
};

#define DEFAULT_BETA 0.9 /* α = β / workers */

static void read(const double *parameters, unsigned workers, struct outer *out)
{
    out->rate = parameters[1] == 0 ? DEFAULT_BETA / workers : parameters[1];
}

const struct outer_rule outer_easgd = {
    .about = {"easgd", "workers' own parameters, tied to the server's; optimizer=sgd or nesterov",
              "Zhang, Choromanska, LeCun 2015, algorithms 1 (EASGD) and 2 (EAMSGD)", parameters_of},
    .elastic = true,
    .as_step = &outer_from_now,
    .read = read,
};
