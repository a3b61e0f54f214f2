/* Messages from the processes of a run to their starter, which may be suspended meanwhile. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/rigs/scratch.h"

#include "experiments/run/status_pipe.h"

#include <stdlib.h>

static void the_end_of_a_process_arrives_though_the_pipe_is_full_of_progress(void **state)
{
    (void)state;
    enum { PROGRESS = 100, WORKERS = 3 };
    struct status_pipe box;
    struct status_message m = {.kind = STATUS_PROGRESS, .role = ROLE_SERVER}, got;
    unsigned ended = 0;
    assert_int_equal(status_pipe_open(&box, scratch_folder()), OK);
    setenv("GRADLAG_MAILBOX", box.path, 1);
    for (unsigned i = 0; i < PROGRESS; i++)
        status_pipe_send(&m);
    for (unsigned w = 0; w < WORKERS; w++) {
        status_pipe_send(
            &(struct status_message){.kind = STATUS_ENDED, .role = ROLE_WORKER, .index = w});
    }
    assert_true(status_pipe_receive(&box, &got));
    assert_int_equal(got.kind, STATUS_PROGRESS);
    while (status_pipe_receive(&box, &got))
        ended += got.kind == STATUS_ENDED && got.index == ended;
    assert_int_equal(ended, WORKERS);
    status_pipe_close(&box);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_end_of_a_process_arrives_though_the_pipe_is_full_of_progress),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
