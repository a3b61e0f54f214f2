/*
 * export_internal.h — what formats share: the runs asked for, and files that are there whole or not
 * at all. Internal to results/.
 */
#ifndef GRADLAG_RESULTS_EXPORT_EXPORT_INTERNAL_H
#define GRADLAG_RESULTS_EXPORT_EXPORT_INTERNAL_H

#include "base/text.h"
#include "results/store/database.h"
#include "base/output_file.h"

struct export
{
    sqlite3 *db; /* in a transaction: all is read as of one moment */
    const char *to;
    bool all;
    struct text ids;  /* JSON array of the runs' ids */
    struct text keys; /* JSON array: the settings in which these runs differ, and the usual ones */
    size_t runs, files;
};

typedef status export_function(struct export *e);
#define EXPORT(name, description, to) export_function export_##name;
#include "results/export/export.def"
#undef EXPORT

/* For every run asked for: `sql` selects from run, with the runs' ids as ?1. */
typedef status export_row(struct export *e, sqlite3_stmt *s, void *context);
status export_each(struct export *e, const char *sql, export_row *each, void *context) MUST_CHECK;
#define EXPORT_CHOSEN "run.id IN (SELECT value FROM json_each(?1))"
/* For every row of one run, which is ?1; ?2 is e->keys. */
status export_each_of(struct export *e, const char *sql, int64_t run, export_row *each,
                      void *context) MUST_CHECK;

/* A file below e->to, or with an empty name e->to itself; its folders are made. It is given up by
 * output_file_abandon(). */
status export_open(struct export *e, struct output_file *f, const char *name) MUST_CHECK;
/* Puts it in its place. */
status export_close(struct export *e, struct output_file *f) MUST_CHECK;

/* A folder below e->to, with those that it lies in. */
status export_make_folder(struct export *e, const char *name) MUST_CHECK;

/* `name` as one part of a path: no separators, nothing hidden, no blanks. */
void export_add_name(struct text *out, const char *name);

#endif
