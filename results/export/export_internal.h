/*
 * export_internal.h — functions for all formats: the selected runs, and files that appear only when
 * they are complete. Internal to results/.
 */
#ifndef GRADLAG_RESULTS_EXPORT_EXPORT_INTERNAL_H
#define GRADLAG_RESULTS_EXPORT_EXPORT_INTERNAL_H

#include "base/text.h"
#include "results/store/database.h"
#include "base/output_file.h"

struct export
{
    sqlite3 *db; /* within one transaction */
    const char *to;
    bool all;
    struct text ids;  /* JSON array of the ids of the runs */
    struct text keys; /* JSON array: keys in which these runs differ, and the common keys */
    size_t runs, files;
};

typedef status export_function(struct export *e);
#define EXPORT(name, description, to) export_function export_##name;
#include "results/export/export.def"
#undef EXPORT

/* Calls `each` for every selected run: `sql` selects from run; ?1 is the array of ids. */
typedef status export_row(struct export *e, sqlite3_stmt *s, void *context);
status export_each(struct export *e, const char *sql, export_row *each, void *context) MUST_CHECK;
#define EXPORT_CHOSEN "run.id IN (SELECT value FROM json_each(?1))"
/* Calls `each` for every row of one run; ?1 is the run, ?2 is e->keys. */
status export_each_of(struct export *e, const char *sql, int64_t run, export_row *each,
                      void *context) MUST_CHECK;

/* Opens a file below e->to, or e->to itself if the name is empty; creates its folders. After an
 * error, call output_file_abandon(). */
status export_open(struct export *e, struct output_file *f, const char *name) MUST_CHECK;
/* Renames the complete file to its name. */
status export_close(struct export *e, struct output_file *f) MUST_CHECK;

/* Creates a folder below e->to, and its parents. */
status export_make_folder(struct export *e, const char *name) MUST_CHECK;

/* Appends `name` as one part of a path: without separators, blanks and a leading dot. */
void export_add_name(struct text *out, const char *name);

#endif
