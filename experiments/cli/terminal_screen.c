#include "experiments/cli/terminal_screen.h"

#include "base/text.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

static struct termios kept, lent;
static volatile sig_atomic_t is_open, asked_to_end;

/* Other screen, no cursor; and back. */
static const char enter[] = "\033[?1049h\033[?25l", leave[] = "\033[?25h\033[?1049l";

/* Only what may be called from a signal handler. */
static void write_all(const char *bytes, size_t length)
{
    while (length > 0) {
        ssize_t written = write(STDOUT_FILENO, bytes, length);
        if (written < 0 && errno != EINTR)
            return;
        bytes += written > 0 ? written : 0;
        length -= written > 0 ? (size_t)written : 0;
    }
}

static void give_back(void)
{
    write_all(leave, sizeof leave - 1);
    tcsetattr(STDIN_FILENO, TCSADRAIN, &kept);
}

static void take(void)
{
    tcsetattr(STDIN_FILENO, TCSADRAIN, &lent);
    write_all(enter, sizeof enter - 1);
}

static void end(int number)
{
    (void)number;
    asked_to_end = 1;
}

/* A change of size only has to end the wait. */
static void wake(int number)
{
    (void)number;
}

/* The shell gets its terminal while we are stopped. */
static void suspend(int number)
{
    int error = errno;
    (void)number;
    give_back();
    raise(SIGSTOP);
    take();
    errno = error;
}

static void handle(int number, void (*handler)(int))
{
    struct sigaction action = {.sa_handler = handler};
    sigemptyset(&action.sa_mask);
    sigaction(number, &action, NULL);
}

bool terminal_screen_is_terminal(void)
{
    const char *term = getenv("TERM");
    return isatty(STDIN_FILENO) == 1 && isatty(STDOUT_FILENO) == 1 && term != NULL &&
           term[0] != '\0' && strcmp(term, "dumb") != 0;
}

status terminal_screen_open(void)
{
    status result = OK;
    REQUIRE(!is_open);
    if (tcgetattr(STDIN_FILENO, &kept) != 0)
        FAIL(ERROR_OTHER, "the terminal does not say how it is set: %s", strerror(errno));
    lent = kept;
    lent.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    lent.c_cc[VMIN] = 1;
    lent.c_cc[VTIME] = 0;
    asked_to_end = 0;
    take();
    is_open = 1;
    handle(SIGINT, end);
    handle(SIGTERM, end);
    handle(SIGHUP, end);
    handle(SIGTSTP, suspend);
    handle(SIGWINCH, wake);
done:
    return result;
}

void terminal_screen_close(void)
{
    if (is_open) {
        is_open = 0;
        give_back();
        handle(SIGTSTP, SIG_DFL);
    }
}

void terminal_screen_size(unsigned *width, unsigned *height)
{
    struct winsize size = {0};
    bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0;
    *width = known && size.ws_col >= 20 ? size.ws_col : 80;
    *height = known && size.ws_row >= 4 ? size.ws_row : 24;
}

void terminal_screen_show(const char *page, size_t length)
{
    struct text out = {0};
    text_add(&out, "\033[H");
    for (const char *line = page; line < page + length;) {
        size_t size = strcspn(line, "\n");
        bool last = line + size + 1 >= page + length;
        text_add_bytes(&out, line, size);
        text_add(&out, last ? "\033[K" : "\033[K\r\n"); /* a line more would scroll a full page */
        line += size + 1;
    }
    text_add(&out, "\033[J");
    write_all(out.at, out.length);
    text_free(&out);
}

bool terminal_screen_wait(double seconds)
{
    struct pollfd keys = {.fd = STDIN_FILENO, .events = POLLIN};
    char pressed[64];
    if (asked_to_end)
        return false;
    int ready = poll(&keys, 1, (int)(seconds * 1000));
    if (ready == 1) {
        ssize_t count = read(STDIN_FILENO, pressed, sizeof pressed);
        bool gone = count == 0 || (count < 0 && errno != EINTR && errno != EAGAIN);
        if (gone || (count > 0 && memchr(pressed, 'q', (size_t)count) != NULL))
            return false;
    }
    return !asked_to_end;
}
