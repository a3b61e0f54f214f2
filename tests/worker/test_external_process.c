/* The process of an external model, where the system refuses to start another one. */
#include "worker/external/external_process.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <dlfcn.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

static pid_t test_process;

/* Replaces that of libc: only this process can fork, as if a limit were reached then. */
pid_t fork(void)
{
    pid_t (*of_libc)(void) = (pid_t(*)(void))dlsym(RTLD_NEXT, "fork");
    if (getpid() == test_process)
        return of_libc();
    errno = EAGAIN;
    return -1;
}

static void a_leader_that_cannot_start_the_shell_ends(void **state)
{
    (void)state;
    external_process *p;
    json_t *request = json_pack("{s:s}", "type", "open"), *answer;
    test_process = getpid();
    assert_int_equal(external_process_start(&p, "true", 1, 30, NULL), OK);
    assert_int_equal(external_process_ask(p, "open", request, &answer), ERROR_PEER);
    assert_non_null(strstr(error_message(), "ended with exit code 126"));
    external_process_end(&p);
    json_decref(request);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_leader_that_cannot_start_the_shell_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
