/* outer_options.h — options that several outer rules share. */
#ifndef GRADLAG_PS_RULES_OUTER_OUTER_OPTIONS_H
#define GRADLAG_PS_RULES_OUTER_OUTER_OPTIONS_H

#define OUTER_STEPS                                                                                \
    {                                                                                              \
        .key = "outer.steps", .type = OPTION_INTEGER, .initial = "10", .minimum = 1,               \
        .maximum = 10000, .help = "batches that a worker trains on between two pushes"             \
    }
#define OUTER_RATE(value)                                                                          \
    {                                                                                              \
        .key = "outer.lr", .type = OPTION_REAL, .initial = value, .minimum = 0, .maximum = 100,    \
        .help = "learning rate of the server's update; constant"                                   \
    }
#define OUTER_MOMENTUM                                                                             \
    {                                                                                              \
        .key = "outer.momentum", .type = OPTION_REAL, .initial = "0.9", .minimum = 0,              \
        .maximum = 0.999999, .help = "momentum of the server's update"                             \
    }

#endif
