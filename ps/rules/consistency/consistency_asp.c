/*
 * consistency_asp.c — asynchronous parallel: every gradient is applied when it comes, and its
 * worker goes on at once with the version that it made. Nobody waits for anybody.
 *
 * Dean et al., "Large scale distributed deep networks" (NIPS 2012), section 4.1 (Downpour SGD with
 * n_push = n_fetch = 1, as in its experiments). Held against its text.
 */
#include "ps/rules/consistency/consistency.h"

const struct consistency_policy consistency_asp = {
    .about = {"asp", "every gradient is applied when it comes; nobody waits",
              "Dean et al. 2012, Large scale distributed deep networks", NULL},
};
