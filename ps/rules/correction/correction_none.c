/* correction_none.c — the gradient stays as it is. */
#include "ps/rules/correction/correction.h"

const struct correction_rule correction_none = {
    .about = {"none", "gradients as they come", NULL, NULL},
};
