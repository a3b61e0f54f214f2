/*
 * yaml_tree.h — a YAML file, read by libyaml, as a tree with line numbers.
 */
#ifndef GRADLAG_EXPERIMENTS_CONFIG_YAML_TREE_H
#define GRADLAG_EXPERIMENTS_CONFIG_YAML_TREE_H

#include "base/status.h"

enum node_kind { NODE_SCALAR, NODE_LIST, NODE_MAP };

struct node {
    enum node_kind kind;
    unsigned line; /* from 1 */
    char *text;    /* NODE_SCALAR */
    /* NODE_LIST and NODE_MAP, in the order of the file. Keys of a map are scalars. */
    struct node *children;
    char **keys; /* NODE_MAP: [count] */
    size_t count;
};

struct yaml_tree {
    char *name; /* file name, for messages */
    struct node root;
};

/* ERROR_USAGE: file missing, malformed ("file:line: …"), or a key occurs twice in one map. */
status yaml_tree_read_file(struct yaml_tree *out, const char *path) MUST_CHECK;
status yaml_tree_read_text(struct yaml_tree *out, const char *name, const char *text) MUST_CHECK;
void yaml_tree_close(struct yaml_tree *d);

/* The child called `key`, or NULL. */
const struct node *node_child(const struct node *map, const char *key);
/* ERROR_USAGE "file:line: …" unless the node has this kind. `what` names the node: "arms". */
status node_require(const struct yaml_tree *d, const struct node *n, enum node_kind kind,
                    const char *what) MUST_CHECK;
/* ERROR_USAGE if a key of `map` is not in `known` (ends with NULL); names the nearest known key. */
status node_known_keys(const struct yaml_tree *d, const struct node *map,
                       const char *const *known) MUST_CHECK;
/* Converts a scalar to a finite number or to a whole number. ERROR_USAGE "file:line: …". */
status node_real(const struct yaml_tree *d, const struct node *n, const char *what,
                 double *out) MUST_CHECK;
status node_integer(const struct yaml_tree *d, const struct node *n, const char *what,
                    int64_t *out) MUST_CHECK;

#endif
