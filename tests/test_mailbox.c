/* test_mailbox.c — what the processes of a run tell their starter, which may be stopped meanwhile.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/scratch.h"

#include "experiments/mailbox.h"

#include <stdlib.h>

static void how_a_run_ended_finds_room_behind_what_nobody_reads(void **state)
{
    (void)state;
    enum { PROGRESS = 100, WORKERS = 3 };
    struct mailbox box;
    struct mail m = {.kind = MAIL_PROGRESS, .role = ROLE_SERVER}, got;
    unsigned ended = 0;
    assert_int_equal(mailbox_open(&box, scratch_folder()), OK);
    setenv("GRADLAG_MAILBOX", box.path, 1);
    for (unsigned i = 0; i < PROGRESS; i++) {
        mailbox_send(&m);
    }
    for (unsigned w = 0; w < WORKERS; w++) {
        mailbox_send(&(struct mail){.kind = MAIL_ENDED, .role = ROLE_WORKER, .index = w});
    }
    assert_true(mailbox_receive(&box, &got));
    assert_int_equal(got.kind, MAIL_PROGRESS);
    while (mailbox_receive(&box, &got)) {
        ended += got.kind == MAIL_ENDED && got.index == ended;
    }
    assert_int_equal(ended, WORKERS);
    mailbox_close(&box);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(how_a_run_ended_finds_room_behind_what_nobody_reads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
