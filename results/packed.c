#include "results/packed.h"

#include <math.h>

enum { MANTISSA_BITS = 25, SHIFT_BITS = 6, SHIFT_MOST = 62 };

bool packed_fraction(double value, int64_t *out)
{
    int exponent = 0;
    if (!isfinite(value) || (value == 0 && signbit(value))) {
        return false;
    }
    double mantissa = ldexp(frexp(value, &exponent), MANTISSA_BITS);
    if (mantissa != (double)(int64_t)mantissa) {
        return false;
    }
    int64_t m = (int64_t)mantissa;
    int shift = m == 0 ? 0 : MANTISSA_BITS - exponent;
    while (m != 0 && m % 2 == 0 && shift > 0) {
        m /= 2;
        shift--;
    }
    *out = m * (1 << SHIFT_BITS) + shift;
    return shift >= 0 && shift <= SHIFT_MOST;
}

bool packed_seconds(double value, int64_t *out)
{
    if (!(fabs(value) < 4e6)) { /* beyond, a double does not tell nanoseconds apart */
        return false;
    }
    *out = llrint(value * 1e9);
    return true;
}

bool packed_rate(double rate, double scale, int64_t *out)
{
    double billionths = nearbyint(rate / scale * 1e9);
    if (!(fabs(billionths) <= INT32_MAX) || billionths / 1e9 * scale != rate) {
        return false;
    }
    *out = (int64_t)billionths;
    return true;
}

/* ---- in SQL -------------------------------------------------------------------------------------
 */

static void answer(sqlite3_context *context, sqlite3_value *value, bool packed, int64_t number)
{
    if (packed) {
        sqlite3_result_int64(context, number);
    } else {
        sqlite3_result_value(context, value);
    }
}

static bool is_number(sqlite3_value *value)
{
    return sqlite3_value_type(value) == SQLITE_FLOAT || sqlite3_value_type(value) == SQLITE_INTEGER;
}

static void fraction(sqlite3_context *context, int count, sqlite3_value **values)
{
    int64_t number = 0;
    (void)count;
    bool packed = is_number(values[0]) && packed_fraction(sqlite3_value_double(values[0]), &number);
    answer(context, values[0], packed, number);
}

static void nanoseconds(sqlite3_context *context, int count, sqlite3_value **values)
{
    int64_t number = 0;
    (void)count;
    bool packed = is_number(values[0]) && packed_seconds(sqlite3_value_double(values[0]), &number);
    answer(context, values[0], packed, number);
}

static void base_rate(sqlite3_context *context, int count, sqlite3_value **values)
{
    int64_t number = 0;
    (void)count;
    bool packed =
        is_number(values[0]) && is_number(values[1]) &&
        packed_rate(sqlite3_value_double(values[0]), sqlite3_value_double(values[1]), &number);
    answer(context, values[0], packed, number);
}

status packed_offer_functions(sqlite3 *db)
{
    static const struct {
        const char *name;
        int arguments;
        void (*function)(sqlite3_context *, int, sqlite3_value **);
    } all[] = {
        {"gradlag_fraction", 1, fraction},
        {"gradlag_nanoseconds", 1, nanoseconds},
        {"gradlag_base_rate", 2, base_rate},
    };
    status result = OK;
    for (size_t i = 0; i < COUNT_OF(all); i++) {
        int code = sqlite3_create_function(db, all[i].name, all[i].arguments,
                                           SQLITE_UTF8 | SQLITE_DETERMINISTIC, NULL,
                                           all[i].function, NULL, NULL);
        TRY(database_check(db, code, "read an older file"));
    }
done:
    return result;
}
