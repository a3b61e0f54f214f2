/*
 * documented.h — pages that show a compiled and tested example file.
 */
#ifndef GRADLAG_TESTS_RIGS_DOCUMENTED_H
#define GRADLAG_TESTS_RIGS_DOCUMENTED_H

/* Fails the test unless `page` contains the whole text of the file `example`. Both paths are
 * relative to the root of the tree. */
void documented_on(const char *page, const char *example);
/* The page's first code block in `language`; valid until the next call. */
const char *documented_block(const char *page, const char *language);

#endif
