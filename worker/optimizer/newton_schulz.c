/*
 * newton_schulz.c — see newton_schulz.h.
 *
 * The iteration holds Y = Xᵀ, which has at least as many rows as columns:
 *
 *   A ← Yᵀ Y;  B ← b A + c A²;  Y ← a Y + Y B
 *
 * A and B are symmetric, and A² = Aᵀ A. So one function computes both products, and only the tiles
 * on and above the diagonal.
 *
 * Matrices are stored in panels of 16 columns: panel p has rows [0, height) of columns 16 p to
 * 16 p + 15, row by row. Columns beyond the last, and rows up to a whole tile, are 0. They add +0
 * to sums, which changes no bit. All operands of a tile are then contiguous.
 */
#include "worker/optimizer/newton_schulz.h"

#include "base/vector.h"

#include <math.h>
#include <string.h>

enum {
    LANES = VECTOR_LANES,
    TILE = 4,          /* rows of a tile; its sums stay in registers */
    ROWS_AT_ONCE = 64, /* of Y B that a thread takes at once */
    STEPS = 5,
};
/* Multiplications of a product above which threads share it. */
#define SHARE_ABOVE ((size_t)1 << 22)

static const float a = 3.4445f, b = -4.7750f, c = 2.0315f;

struct panels {
    size_t height, panels;
    float *at;
};

struct iteration {
    size_t rows, columns; /* of Y: rows ≥ columns */
    struct panels y, next, gram, factor;
};

static size_t whole(size_t count, size_t unit)
{
    return (count + unit - 1) / unit * unit;
}

static float *row_of(const struct panels *p, size_t panel, size_t row)
{
    return p->at + (panel * p->height + row) * LANES;
}

/* ---- tiles --------------------------------------------------------------------------------- */

/* With these GCC keeps the sums of a tile in registers, which is 15 times faster. */
#if defined(__clang__)
#define UNROLLED_TILE
#define VECTORISED
#else
#define UNROLLED_TILE _Pragma("GCC unroll 4")
#define VECTORISED    _Pragma("GCC unroll 1")
#endif

/* sum[r][l] = Σ left[k][r] · right[k][l] over rows k. */
VECTOR_CLONES
static void gram_tile(size_t count, const float *restrict left, const float *restrict right,
                      float sum[TILE][LANES])
{
    float s[TILE][LANES] = {{0}};
    for (size_t k = 0; k < count; k++)
        UNROLLED_TILE for (size_t r = 0; r < TILE; r++)
            VECTORISED for (size_t l = 0; l < LANES; l++) s[r][l] +=
            left[k * LANES + r] * right[k * LANES + l];
    memcpy(sum, s, sizeof s);
}

/* sum[r][l] = Σ left[r][k] · right[k][l]; left's columns k are in panels of `height` rows. */
VECTOR_CLONES
static void product_tile(size_t panels, const float *restrict left, size_t height,
                         const float *restrict right, float sum[TILE][LANES])
{
    float s[TILE][LANES] = {{0}};
    for (size_t p = 0; p < panels; p++, left += height * LANES)
        for (size_t k = 0; k < LANES; k++, right += LANES)
            UNROLLED_TILE for (size_t r = 0; r < TILE; r++)
                VECTORISED for (size_t l = 0; l < LANES; l++) s[r][l] +=
                left[r * LANES + k] * right[l];
    memcpy(sum, s, sizeof s);
}

/* ---- products ------------------------------------------------------------------------------ */

/* out ← inᵀ in; `count` rows of `in`. */
struct gram {
    const struct panels *in, *out;
    size_t count;
};

/* The tiles whose rows are columns 16 `left` to 16 `left` + 15, and their mirror images. */
static void gram_panel(void *context, size_t left)
{
    const struct gram *g = context;
    float sum[TILE][LANES];
    for (size_t right = left; right < g->out->panels; right++) {
        for (size_t row = 0; row < LANES; row += TILE) {
            gram_tile(g->count, row_of(g->in, left, 0) + row, row_of(g->in, right, 0), sum);
            memcpy(row_of(g->out, right, left * LANES + row), sum, sizeof sum);
            for (size_t r = 0; r < TILE; r++)
                for (size_t l = 0; l < LANES; l++)
                    row_of(g->out, left, right * LANES + l)[row + r] = sum[r][l];
        }
    }
}

/* Some rows of next ← a Y + Y B. */
static void advance_rows(void *context, size_t block)
{
    const struct iteration *n = context;
    const size_t begin = block * ROWS_AT_ONCE;
    const size_t end = n->y.height - begin < ROWS_AT_ONCE ? n->y.height : begin + ROWS_AT_ONCE;
    float sum[TILE][LANES];
    for (size_t panel = 0; panel < n->y.panels; panel++) {
        for (size_t row = begin; row < end; row += TILE) {
            product_tile(n->y.panels, row_of(&n->y, 0, row), n->y.height,
                         row_of(&n->factor, panel, 0), sum);
            const float *y = row_of(&n->y, panel, row);
            float *next = row_of(&n->next, panel, row);
            for (size_t i = 0; i < TILE * LANES; i++)
                next[i] = a * y[i] + sum[i / LANES][i % LANES];
        }
    }
}

static void step(struct iteration *n, helpers *threads)
{
    const size_t size = n->gram.height * n->gram.height;
    struct gram of_y = {&n->y, &n->gram, n->rows}, of_gram = {&n->gram, &n->factor, n->columns};
    helpers_run(threads, n->gram.panels, gram_panel, &of_y);
    helpers_run(threads, n->gram.panels, gram_panel, &of_gram);
    for (size_t i = 0; i < size; i++)
        n->factor.at[i] = b * n->gram.at[i] + c * n->factor.at[i];
    helpers_run(threads, (n->y.height + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE, advance_rows, n);
    const struct panels y = n->y;
    n->y = n->next;
    n->next = y;
}

/* ---- the iteration ------------------------------------------------------------------------- */

static struct iteration shape_of(uint32_t rows, uint32_t columns)
{
    const size_t m = rows > columns ? rows : columns, n = rows > columns ? columns : rows;
    const size_t height = whole(m, TILE), panels = whole(n, LANES) / LANES;
    return (struct iteration){
        .rows = m,
        .columns = n,
        .y = {.height = height, .panels = panels},
        .next = {.height = height, .panels = panels},
        .gram = {.height = panels * LANES, .panels = panels},
        .factor = {.height = panels * LANES, .panels = panels},
    };
}

static size_t size_of(const struct panels *p)
{
    return p->height * p->panels * LANES;
}

size_t newton_schulz_scratch(uint32_t rows, uint32_t columns)
{
    const struct iteration n = shape_of(rows, columns);
    return 2 * size_of(&n.y) + 2 * size_of(&n.gram);
}

/* Elements between neighbours of u along the rows and the columns of Y. */
struct strides {
    size_t row, column;
};

static void read_matrix(struct iteration *n, const float *u, struct strides by, float factor)
{
    memset(n->y.at, 0, size_of(&n->y) * sizeof *n->y.at);
    for (size_t panel = 0; panel < n->y.panels; panel++) {
        const size_t first = panel * LANES, left = n->columns - first;
        for (size_t row = 0; row < n->rows; row++)
            for (size_t l = 0; l < LANES && l < left; l++)
                row_of(&n->y, panel, row)[l] = factor * u[row * by.row + (first + l) * by.column];
    }
}

static void write_matrix(const struct iteration *n, float *u, struct strides by)
{
    for (size_t panel = 0; panel < n->y.panels; panel++) {
        const size_t first = panel * LANES, left = n->columns - first;
        for (size_t row = 0; row < n->rows; row++)
            for (size_t l = 0; l < LANES && l < left; l++)
                u[row * by.row + (first + l) * by.column] = row_of(&n->y, panel, row)[l];
    }
}

void newton_schulz(uint32_t rows, uint32_t columns, float *u, float *scratch, helpers *threads)
{
    struct iteration n = shape_of(rows, columns);
    const struct strides by =
        rows > columns ? (struct strides){columns, 1} : (struct strides){1, columns};
    const double norm = sqrt(vector_sum_of_squares((size_t)rows * columns, u));
    const bool large = n.rows * n.columns * n.columns >= SHARE_ABOVE;
    n.y.at = scratch;
    n.next.at = n.y.at + size_of(&n.y);
    n.gram.at = n.next.at + size_of(&n.next);
    n.factor.at = n.gram.at + size_of(&n.gram);
    read_matrix(&n, u, by, (float)(1 / (norm + 1e-7)));
    for (int k = 0; k < STEPS; k++)
        step(&n, large ? threads : NULL);
    write_matrix(&n, u, by);
}
