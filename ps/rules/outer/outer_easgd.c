/*
 * outer_easgd.c — elastic averaging: every worker keeps its own parameters x, tied to the server's
 * x̃ by an elastic force. After every τ local steps an exchange changes both; it uses their values
 * before it:
 *
 *   x ← x − α (x − x̃);   x̃ ← x̃ + α (x − x̃)            τ = outer.steps, α = outer.moving_rate
 *
 * Zhang, Choromanska, LeCun, "Deep learning with elastic averaging SGD" (NIPS 2015,
 * arXiv:1412.6651): asynchronous EASGD, section 3.1, algorithm 1, with optimizer=sgd; EAMSGD,
 * section 3.2, algorithm 2, with optimizer=nesterov:
 *
 *   v ← δ v − η g(x + δ v);   x ← x + v                    δ = momentum, η from lr and schedule
 *
 * As in the paper, the first gradient after an exchange is computed at the x before it. Elastic
 * symmetry: worker and server move by the same α, and β = W α. The default is the paper's β = 0.9,
 * so α = 0.9 / W.
 *
 * The worker pushes d = x̃_read − x. The server needs α (x̃ − x) with the current x̃. x̃ − x equals
 * d + (now − read_at), which is outer_from_now, and the optimizer applies α. The worker receives
 * x̃' = x̃ + α (x − x̃). Because x − x̃' = (1 − α) (x − x̃), it computes its part of the same exchange
 * as α / (1 − α) (x − x̃'). So an exchange is one event at the server. In the paper's protocol other
 * workers may change x̃ during an exchange. Here the release must follow its push at once and
 * unscaled, which requires consistency=asp, no damping, and α < 1.
 *
 * Where we differ: as described above, and in rounding (the server computes x as x̃_read − d). A
 * worker that joins again after a loss starts with x = x̃, v = 0, like all workers at the start. As
 * in the paper, x̃ is evaluated and saved. The synchronous form is not implemented.
 *
 * Checked against the paper's text (both algorithms; β = 0.9 is in section 5.2), second sources,
 * and the first author's code (mpiT, optim-eamsgd.lua). The exchange, the place of the gradient
 * after it, momentum, and weight decay of x + δ v are the same there. Footnote 8 calls β / τ the
 * effective β, which could be read as α = β / (τ W). The code's α is β / W, with τ = 100
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
     .help = "alpha: share of the distance that worker and server move (0: 0.9 / workers)"},
    {0},
};

#define DEFAULT_BETA 0.9 /* α = β / workers */

static void read(const double *parameters, unsigned workers, struct outer *out)
{
    out->rate = parameters[1] == 0 ? DEFAULT_BETA / workers : parameters[1];
}

const struct outer_rule outer_easgd = {
    .about = {"easgd", "elastic averaging of workers' parameters; optimizer=sgd or nesterov",
              "Zhang, Choromanska, LeCun 2015, algorithms 1 (EASGD) and 2 (EAMSGD)", parameters_of},
    .elastic = true,
    .as_step = &outer_from_now,
    .read = read,
};
