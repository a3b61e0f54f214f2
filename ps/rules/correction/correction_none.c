/* correction_none.c — the gradient is not changed. */
#include "ps/rules/correction/correction.h"

const struct correction_rule correction_none = {
    .about = {"none", "gradients are not changed", NULL, NULL},
};
