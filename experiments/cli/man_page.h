/*
 * man_page.h — the man page and bash's completion, both made of the tables that drive the program:
 * commands and what each says of itself, keys with their ranges, the registries' entries,
 * questions, experiments, exit codes. So neither can say what the program does not.
 */
#ifndef GRADLAG_EXPERIMENTS_CLI_MAN_PAGE_H
#define GRADLAG_EXPERIMENTS_CLI_MAN_PAGE_H

#include <stdio.h>

/* gradlag(1) for man(1), in the macros of man(7); ASCII, with escapes for other characters. */
void man_page_print(FILE *to);

#endif
