/*
 * documented.h — pages whose examples are compiled and tested: the page shows the very file.
 */
#ifndef GRADLAG_TESTS_RIGS_DOCUMENTED_H
#define GRADLAG_TESTS_RIGS_DOCUMENTED_H

/* Fails the test unless `page` has all of the file `example` in it, to the letter. Both are paths
 * from the root of the tree, where tests run. */
void documented_on(const char *page, const char *example);
/* The page's first block of code that is marked as being in `language`; valid until the next call.
 */
const char *documented_block(const char *page, const char *language);

#endif
