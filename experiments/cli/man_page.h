/*
 * man_page.h — the man page, generated from the tables that drive the program: commands and their
 * help, keys with ranges, registry entries, queries, experiments, exit codes. So it cannot
 * contradict the program.
 */
#ifndef GRADLAG_EXPERIMENTS_CLI_MAN_PAGE_H
#define GRADLAG_EXPERIMENTS_CLI_MAN_PAGE_H

#include <stdio.h>

/* Prints gradlag(1) with the macros of man(7), in ASCII; other characters are escaped. */
void man_page_print(FILE *to);

#endif
