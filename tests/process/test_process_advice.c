/* `gradlag advise` with maps in CSV. The advice from a results file is in test_process_axes.c. */
#include "base/status.h"
#include "tests/rigs/process_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

/* In a map in CSV, the cells of the requested model count; those of another experiment do not. */
static void cells_of_the_requested_model_are_found_in_csv(void **state)
{
    struct process_rig *r = *state;
    static const char small[] =
        "experiment,model,dataset,workers,worker_cv,slow_workers,slow_factor,mean_ms,gbps,"
        "latency_ms,ahead,margin,interval,n,metric,sync_arm,sync_score,async_arm,async_score,"
        "commit\n"
        "a,gpt,text,32,0,1,5,40,10,0.05,synchronous,0.25,0.125,3,loss,sync,2.25,async,2.5,abc\n"
        "b,lenet,\"a \"\"small\"\", "
        "set\",32,0,1,5,10,10,0.05,asynchronous,0.25,0.125,3,accuracy,local,0.5,"
        "ssp,0.75,abc\n"
        "b,lenet,\"a \"\"small\"\", "
        "set\",32,0,0,1,10,10,0.05,undecided,0.0625,0.125,3,accuracy,sync,0.75,"
        "async,0.75,abc\n";
    process_write(r, "small.csv", small);
    assert_int_equal(RIG_RUN(r, "advise", "results=small.csv", "workers=32", "network.gbps=10",
                             "pace.slow_workers=1", "pace.worker=0", "model=lenet"),
                     OK);
    process_expect_line(r, "asynchronous", "25.00 ± 12.50 (3)");
    process_expect_line(r, "asynchronous", "ssp");
    process_expect_line(r, "Of 1 cell: ", "asynchronous 1");
    process_expect_line(r, "a \"small\", set", "");
    assert_null(strstr(process_output(r), "Not in the map"));
    assert_int_equal(RIG_RUN(r, "advise", "results=small.csv", "workers=32"), OK);
    process_expect_line(r, "synchronous", "0.25 ± 0.12 (3)"); /* loss */
    assert_int_equal(RIG_RUN(r, "advise", "results=small.csv", "model=external",
                             "model.command=true", "network.gbps=10"),
                     OK);
    process_expect_line(r, "model=external: ", "does not start your program");
    assert_null(strstr(process_output(r), "network.gbps")); /* it is not scaled */
    assert_int_equal(RIG_RUN(r, "advise", "results=small.csv", "experiment=b"), OK);
    process_expect_line(r, "Of 2 cells: ", "undecided 1");
    /* The requested value lies between two cells that also differ in another axis. */
    process_write(r, "sides.csv",
                  "experiment,model,dataset,workers,worker_cv,slow_workers,slow_factor,mean_ms,"
                  "gbps,latency_ms,ahead,margin,interval,n,metric,sync_arm,sync_score,async_arm,"
                  "async_score,commit\n"
                  "a,lenet,text,8,0,0,1,,1,0.3,synchronous,0,0,3,loss,sync,1,async,1,abc\n"
                  "a,lenet,text,8,0,0,1,,10,0.05,asynchronous,0,0,3,loss,sync,1,async,1,abc\n");
    assert_int_equal(
        RIG_RUN(r, "advise", "results=sides.csv", "network.gbps=5", "network.latency_ms=0.05"), OK);
    process_expect_line(r, "Of 2 cells: ", "synchronous 1, asynchronous 1");
    process_expect_line(r, "network.gbps=5 ", "between 1 and 10");
    assert_null(strstr(process_output(r), "nan"));
    /* Cells with another dataset or another step time belong to another map. */
    process_write(r, "steps.csv",
                  "experiment,model,dataset,workers,mean_ms,gbps,ahead,margin,interval,n,metric\n"
                  "a,lenet,cifar10,8,4,10,synchronous,0,0,3,loss\n"
                  "a,lenet,fashion-mnist,8,4,10,synchronous,0,0,3,loss\n"
                  "a,lenet,fashion-mnist,8,40,10,asynchronous,0,0,3,loss\n"
                  "b,gpt,text,8,30,10,undecided,0,0,3,loss\n");
    assert_int_equal(RIG_RUN(r, "advise", "results=steps.csv", "dataset=fashion-mnist",
                             "network.gbps=10", "pace.mean_ms=40"),
                     OK);
    process_expect_line(r, "Of 1 cell: ", "asynchronous 1");
    assert_null(strstr(process_output(r), "Not in the map"));
    assert_int_equal(RIG_RUN(r, "advise", "results=steps.csv", "pace.mean_ms=40"), OK);
    process_expect_line(r, "Ahead: ", "lenet on cifar10");
    assert_int_equal(RIG_RUN(r, "advise", "results=small.csv", "experiment=c"), ERROR_USAGE);
    assert_int_equal(RIG_RUN(r, "advise", "results=none.csv"), ERROR_RESULTS);
    process_write(r, "short.csv", "experiment,model,workers\na,gpt,4\na,4\n");
    assert_int_equal(RIG_RUN(r, "advise", "results=short.csv"), ERROR_RESULTS);
    process_write(r, "other.csv", "workers,ahead\n2,foo\n");
    assert_int_equal(RIG_RUN(r, "advise", "results=other.csv"), ERROR_RESULTS);
    process_expect_error(r, "'experiment'");
    process_write(r, "external.csv",
                  "experiment,model,dataset,workers,ahead\na,external,external,32,\n");
    assert_int_equal(RIG_RUN(r, "advise", "results=external.csv", "model=lenet"), OK);
    process_expect_line(r, "model=lenet: ", "does not start the map's program");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, process_set_up, process_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(cells_of_the_requested_model_are_found_in_csv),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
