#include "experiments/print_columns.h"

void print_padded(FILE *to, const char *text, int width)
{
    int columns = 0;
    for (const char *c = text; *c != '\0'; c++)
        columns += ((unsigned char)*c & 0xc0) != 0x80; /* UTF-8 continuation bytes have no width */
    fprintf(to, "%s%*s", text, columns < width ? width - columns : 1, "");
}

void print_cell(FILE *to, const char *text)
{
    fputs("| ", to);
    for (; *text != '\0'; text++)
        fprintf(to, "%s%c", *text == '|' ? "\\" : "", *text == '\n' ? ' ' : *text);
    fputc(' ', to);
}
