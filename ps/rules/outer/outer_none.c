/* outer_none.c — no local steps: workers push gradients, and key optimizer describes the server's
 * update. */
#include "ps/rules/outer/outer.h"

const struct outer_rule outer_none = {
    .about = {"none", "no local steps: workers push gradients", NULL, NULL},
};
