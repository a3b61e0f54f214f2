#include "tests/rigs/documented.h"

#include "base/status.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

static void read_file(const char *path, char *out, size_t capacity)
{
    FILE *file = fopen(path, "r");
    if (file == NULL)
        fail_msg("%s: cannot be read; tests run in the root of the tree", path);
    size_t length = fread(out, 1, capacity - 1, file);
    fclose(file);
    out[length] = '\0';
}

void documented_on(const char *page, const char *example)
{
    static char text[1 << 16], code[1 << 14];
    read_file(page, text, sizeof text);
    read_file(example, code, sizeof code);
    assert_true(strlen(code) > 100);
    if (strstr(text, code) == NULL)
        fail_msg("%s does not show %s as it is", page, example);
}

const char *documented_block(const char *page, const char *language)
{
    static char text[1 << 16];
    char fence[32];
    int length = snprintf(fence, sizeof fence, "\n```%s\n", language);
    read_file(page, text, sizeof text);
    char *from = strstr(text, fence);
    char *end = from != NULL ? strstr(from + length, "\n```\n") : NULL;
    if (end == NULL)
        fail_msg("%s has no block in %s", page, language);
    end[1] = '\0';
    return from + length;
}
