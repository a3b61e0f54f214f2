#include "experiments/config/yaml_tree.h"

#include "base/text.h"
#include "base/memory.h"
#include "base/suggestion.h"

#include <yaml.h>

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Limits of a file. Nodes behind an alias (*name) count each time, because nested aliases can
 * expand to any amount of memory. */
enum { DEEPEST = 16, MOST_NODES = 20000 };

struct conversion {
    const char *name;
    yaml_document_t *from;
    size_t nodes; /* so far */
};

static status convert(struct conversion *c, const yaml_node_t *node, struct node *out, int depth);

static status convert_list(struct conversion *c, const yaml_node_t *node, struct node *out,
                           int depth)
{
    status result = OK;
    const yaml_node_item_t *first = node->data.sequence.items.start;
    size_t count = (size_t)(node->data.sequence.items.top - first);
    TRY(memory_new(&out->children, count, sizeof *out->children, "a YAML list"));
    for (size_t i = 0; i < count; i++) {
        out->count = i + 1;
        TRY(convert(c, yaml_document_get_node(c->from, first[i]), &out->children[i], depth + 1));
    }
done:
    return result;
}

static status convert_map(struct conversion *c, const yaml_node_t *node, struct node *out,
                          int depth)
{
    status result = OK;
    const yaml_node_pair_t *first = node->data.mapping.pairs.start;
    size_t count = (size_t)(node->data.mapping.pairs.top - first);
    TRY(memory_new(&out->children, count, sizeof *out->children, "a YAML map"));
    TRY(memory_new(&out->keys, count, sizeof *out->keys, "a YAML map's keys"));
    for (size_t i = 0; i < count; i++) {
        const yaml_node_t *key = yaml_document_get_node(c->from, first[i].key);
        unsigned line = (unsigned)key->start_mark.line + 1;
        if (key->type != YAML_SCALAR_NODE)
            FAIL(ERROR_USAGE, "%s:%u: a key must be a single word", c->name, line);
        const char *word = (const char *)key->data.scalar.value;
        if (node_child(out, word) != NULL) {
            FAIL(ERROR_USAGE, "%s:%u: '%s' occurs twice in this map; keep one of them", c->name,
                 line, word);
        }
        out->keys[i] = text_copy(word);
        out->count = i + 1;
        TRY(convert(c, yaml_document_get_node(c->from, first[i].value), &out->children[i],
                    depth + 1));
    }
done:
    return result;
}

static status convert(struct conversion *c, const yaml_node_t *node, struct node *out, int depth)
{
    status result = OK;
    out->line = (unsigned)node->start_mark.line + 1;
    if (depth > DEEPEST)
        FAIL(ERROR_USAGE, "%s:%u: lists and maps are nested deeper than %d levels", c->name,
             out->line, DEEPEST);
    if (++c->nodes > MOST_NODES) {
        FAIL(ERROR_USAGE, "%s:%u: more than %d values, lists and maps (aliases count each time)",
             c->name, out->line, MOST_NODES);
    }
    switch (node->type) {
    case YAML_SCALAR_NODE:
        out->kind = NODE_SCALAR;
        out->text = text_copy((const char *)node->data.scalar.value);
        break;
    case YAML_SEQUENCE_NODE:
        out->kind = NODE_LIST;
        TRY(convert_list(c, node, out, depth));
        break;
    case YAML_MAPPING_NODE:
        out->kind = NODE_MAP;
        TRY(convert_map(c, node, out, depth));
        break;
    default:
        FAIL(ERROR_USAGE, "%s:%u: this YAML node is not supported; write a value, a list or a map",
             c->name, out->line);
    }
done:
    return result;
}

static status fail_to_parse(const char *name, const yaml_parser_t *parser)
{
    return error_set(ERROR_USAGE, __FILE__, __LINE__,
                     "%s:%zu: not valid YAML: %s. Check that keys of one map have the same "
                     "indentation, without tabs, and that a space follows each ':'",
                     name, parser->problem_mark.line + 1,
                     parser->problem != NULL ? parser->problem : "unreadable");
}

/* Reads one event; *more is false after the last one or an error. */
static status check_event(const char *name, yaml_parser_t *parser, int *depth, bool *more)
{
    status result = OK;
    yaml_event_t event;
    *more = false;
    if (!yaml_parser_parse(parser, &event))
        return fail_to_parse(name, parser);
    const unsigned line = (unsigned)event.start_mark.line + 1;
    const bool begins =
        event.type == YAML_SEQUENCE_START_EVENT || event.type == YAML_MAPPING_START_EVENT;
    const bool ends = event.type == YAML_SEQUENCE_END_EVENT || event.type == YAML_MAPPING_END_EVENT;
    *depth += begins - ends;
    *more = event.type != YAML_STREAM_END_EVENT && event.type != YAML_DOCUMENT_END_EVENT;
    yaml_event_delete(&event);
    if (*depth > DEEPEST) {
        *more = false;
        FAIL(ERROR_USAGE, "%s:%u: lists and maps are nested deeper than %d levels", name, line,
             DEEPEST);
    }
done:
    return result;
}

static void set_input(yaml_parser_t *parser, const struct text *text)
{
    const char *at = text->at != NULL ? text->at : "";
    yaml_parser_set_input_string(parser, (const unsigned char *)at, text->length);
}

/* After the end of a document. */
static status check_last_document(const char *name, yaml_parser_t *parser)
{
    status result = OK;
    yaml_event_t event;
    if (!yaml_parser_parse(parser, &event))
        return fail_to_parse(name, parser);
    const unsigned line = (unsigned)event.start_mark.line + 1;
    const bool another = event.type == YAML_DOCUMENT_START_EVENT;
    yaml_event_delete(&event);
    if (another) {
        FAIL(ERROR_USAGE,
             "%s:%u: a second YAML document begins here, but only one is read; remove the line "
             "'---' or '...' before it, or put it in a file of its own",
             name, line);
    }
done:
    return result;
}

/* libyaml's time grows with the square of the depth. So check the depth event by event before
 * building the tree. */
static status check_depth(const char *name, const struct text *text)
{
    status result = OK;
    yaml_parser_t parser;
    int depth = 0;
    bool more = true;
    REQUIRE(yaml_parser_initialize(&parser) == 1);
    set_input(&parser, text);
    while (more)
        TRY(check_event(name, &parser, &depth, &more));
    TRY(check_last_document(name, &parser));
done:
    yaml_parser_delete(&parser);
    return result;
}

static status read_from(struct yaml_tree *out, const char *name, const struct text *text)
{
    status result = OK;
    yaml_parser_t parser;
    yaml_document_t loaded;
    bool have = false;
    REQUIRE(yaml_parser_initialize(&parser) == 1);
    set_input(&parser, text);
    *out = (struct yaml_tree){.name = text_copy(name)};
    TRY(check_depth(name, text));
    if (!yaml_parser_load(&parser, &loaded))
        TRY(fail_to_parse(name, &parser));
    have = true;
    const yaml_node_t *root = yaml_document_get_root_node(&loaded);
    if (root == NULL)
        FAIL(ERROR_USAGE, "%s: the file is empty", name);
    TRY(convert(&(struct conversion){name, &loaded, 0}, root, &out->root, 0));
done:
    if (have)
        yaml_document_delete(&loaded);
    yaml_parser_delete(&parser);
    if (result != OK)
        yaml_tree_close(out);
    return result;
}

status yaml_tree_read_file(struct yaml_tree *out, const char *path)
{
    static const char database[] = "SQLite format 3";
    status result = OK;
    struct text text = {0};
    *out = (struct yaml_tree){0};
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        FAIL(ERROR_USAGE, "%s: %s", path, strerror(errno));
    if (text_add_file(&text, file) != OK) {
        const struct error why = error_save();
        FAIL(ERROR_USAGE, "%s: cannot be read: %s", path, why.message);
    }
    if (text.length >= strlen(database) && memcmp(text.at, database, strlen(database)) == 0)
        FAIL(ERROR_USAGE, "%s is a results file; name it with results=%s", path, path);
    TRY(read_from(out, path, &text));
done:
    text_free(&text);
    if (file != NULL)
        fclose(file);
    return result;
}

status yaml_tree_read_text(struct yaml_tree *out, const char *name, const char *text)
{
    struct text all = {0};
    text_add_bytes(&all, text, strlen(text));
    status result = read_from(out, name, &all);
    text_free(&all);
    return result;
}

static void node_free(struct node *n)
{
    for (size_t i = 0; i < n->count; i++) {
        node_free(&n->children[i]);
        if (n->keys != NULL)
            memory_free(n->keys[i]);
    }
    memory_free(n->children);
    memory_free(n->keys);
    memory_free(n->text);
}

void yaml_tree_close(struct yaml_tree *d)
{
    node_free(&d->root);
    memory_free(d->name);
    *d = (struct yaml_tree){0};
}

const struct node *node_child(const struct node *map, const char *key)
{
    for (size_t i = 0; map->kind == NODE_MAP && i < map->count; i++)
        if (strcmp(map->keys[i], key) == 0)
            return &map->children[i];
    return NULL;
}

status node_require(const struct yaml_tree *d, const struct node *n, enum node_kind kind,
                    const char *what)
{
    static const char *const names[] = {"one word or number", "a list", "a map of 'key: value'"};
    if (n->kind != kind) {
        return error_set(ERROR_USAGE, __FILE__, __LINE__, "%s:%u: %s must be %s", d->name, n->line,
                         what, names[kind]);
    }
    return OK;
}

status node_known_keys(const struct yaml_tree *d, const struct node *map, const char *const *known)
{
    for (size_t i = 0; i < map->count; i++) {
        struct suggestion names = {.wanted = map->keys[i]};
        bool found = false;
        for (const char *const *k = known; *k != NULL; k++) {
            found = found || strcmp(*k, map->keys[i]) == 0;
            suggestion_add(&names, *k);
        }
        if (!found) {
            return suggestion_fail(&names, NULL, "%s:%u: there is no key", d->name,
                                   map->children[i].line);
        }
        text_free(&names.all);
    }
    return OK;
}

status node_real(const struct yaml_tree *d, const struct node *n, const char *what, double *out)
{
    status result = OK;
    TRY(node_require(d, n, NODE_SCALAR, what));
    if (!text_to_real(n->text, out)) {
        FAIL(ERROR_USAGE, "%s:%u: %s is '%s', which is not a number", d->name, n->line, what,
             n->text);
    }
done:
    return result;
}

status node_integer(const struct yaml_tree *d, const struct node *n, const char *what, int64_t *out)
{
    status result = OK;
    TRY(node_require(d, n, NODE_SCALAR, what));
    if (!text_to_integer(n->text, out)) {
        FAIL(ERROR_USAGE, "%s:%u: %s is '%s', which is not a whole number", d->name, n->line, what,
             n->text);
    }
done:
    return result;
}
