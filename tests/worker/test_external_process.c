/* The process of an external model: its start where the system refuses another process, its output,
 * its end. */
#include "worker/external/external_process.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static pid_t only; /* 0: every process can fork */

/* Replaces the function of libc. If `only` is set, only that process can fork, as if a limit were
 * reached. */
pid_t fork(void)
{
    pid_t (*of_libc)(void) = (pid_t(*)(void))dlsym(RTLD_NEXT, "fork");
    if (only == 0 || getpid() == only)
        return of_libc();
    errno = EAGAIN;
    return -1;
}

static void a_leader_that_cannot_start_the_shell_ends(void **state)
{
    (void)state;
    external_process *p;
    json_t *request = json_pack("{s:s}", "type", "open"), *answer;
    only = getpid();
    assert_int_equal(external_process_start(&p, "true", 1, 30, NULL), OK);
    assert_int_equal(external_process_ask(p, "open", request, &answer), ERROR_PEER);
    assert_non_null(strstr(error_message(), "ended with exit code 126"));
    external_process_end(&p);
    only = 0;
    json_decref(request);
}

#define ANSWER                                                                                     \
    "exec 0<&$GRADLAG_SOCKET_FD; while read -r line; do sleep 0.3; "                               \
    "echo '{}' >&$GRADLAG_SOCKET_FD; done; "

/* More than a pipe holds. */
static void what_a_program_writes_at_its_end_does_not_block_it(void **state)
{
    (void)state;
    external_process *p;
    char folder[] = "/tmp/glexternal-XXXXXX", command[256], done[64];
    assert_non_null(mkdtemp(folder));
    snprintf(done, sizeof done, "%s/done", folder);
    snprintf(command, sizeof command, ANSWER "head -c 300000 /dev/zero; echo >%s", done);
    assert_int_equal(external_process_start(&p, command, 1, 30, NULL), OK);
    external_process_end(&p);
    assert_int_equal(unlink(done), 0);
    assert_int_equal(rmdir(folder), 0);
}

/* After the request to stop, all answers together take longer than timeout_s, but each one takes
 * less. */
static void answers_after_a_request_to_stop_have_a_limit_each(void **state)
{
    (void)state;
    external_process *p;
    volatile sig_atomic_t stop = 1;
    json_t *request = json_pack("{s:s}", "type", "evaluate"), *answer = NULL;
    assert_int_equal(external_process_start(&p, ANSWER, 1, 1, &stop), OK);
    for (int i = 0; i < 6; i++) {
        assert_int_equal(external_process_ask(p, "evaluate", request, &answer), OK);
        json_decref(answer);
    }
    external_process_end(&p);
    json_decref(request);
}

/* A NUL byte in the output does not end the text, and no error ends within a character. */
static void an_error_has_whole_lines_and_characters(void **state)
{
    (void)state;
    external_process *p;
    char text[701] = "x";
    json_t *request = json_pack("{s:s}", "type", "open"), *answer;
    assert_int_equal(
        external_process_start(&p, "printf 'first\\0rest\\nthe cause\\n'; exit 3", 1, 30, NULL),
        OK);
    assert_int_equal(external_process_ask(p, "open", request, &answer), ERROR_PEER);
    assert_non_null(strstr(error_message(), "first rest\nthe cause"));
    for (int first = 1; first <= 2; first++) { /* an array of either parity ends within one */
        for (size_t i = (size_t)first; i + 2 < sizeof text; i += 2)
            memcpy(text + i, "é", 3);
        text[first - 1] = 'x';
        assert_int_equal(external_process_fail(p, "%s", text), ERROR_DATA);
        assert_non_null(strstr(error_message(), "é\nIts last lines"));
    }
    external_process_end(&p);
    json_decref(request);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_leader_that_cannot_start_the_shell_ends),
        cmocka_unit_test(what_a_program_writes_at_its_end_does_not_block_it),
        cmocka_unit_test(an_error_has_whole_lines_and_characters),
        cmocka_unit_test(answers_after_a_request_to_stop_have_a_limit_each),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
