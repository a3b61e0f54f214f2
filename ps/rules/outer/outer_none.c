/* outer_none.c — no steps of their own: workers push gradients, and the server's optimizer (key
 * optimizer) applies them. */
#include "ps/rules/outer/outer.h"

const struct outer_rule outer_none = {
    .about = {"none", "no steps of their own: workers push gradients", NULL, NULL},
};
