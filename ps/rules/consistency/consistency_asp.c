/*
 * consistency_asp.c — asynchronous parallel: every gradient is applied when it arrives, and its
 * worker is released at once with the new version. No worker is blocked.
 *
 * Dean et al., "Large scale distributed deep networks" (NIPS 2012), section 4.1 (Downpour SGD with
 * n_push = n_fetch = 1, as in its experiments). Checked against the paper's text.
 */
#include "ps/rules/consistency/consistency.h"

const struct consistency_policy consistency_asp = {
    .about = {"asp", "every gradient is applied on arrival; no worker waits",
              "Dean et al. 2012, Large scale distributed deep networks", NULL},
};
