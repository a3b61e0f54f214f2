#include "base/thread.h"
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

static struct termios original, ours;
static volatile sig_atomic_t is_open, end_requested;

/* Alternate screen without cursor, and back. */
static const char enter[] = "\033[?1049h\033[?25l", leave[] = "\033[?25h\033[?1049l";

/* Async-signal-safe. */
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

static void restore_terminal(void)
{
    write_all(leave, sizeof leave - 1);
    tcsetattr(STDIN_FILENO, TCSADRAIN, &original);
}

static void set_terminal(void)
{
    tcsetattr(STDIN_FILENO, TCSADRAIN, &ours);
    write_all(enter, sizeof enter - 1);
}

static void end(int number)
{
    (void)number;
    end_requested = 1;
}

/* A change of size only interrupts the wait. */
static void wake(int number)
{
    (void)number;
}

/* Restores the terminal for the shell while this process is suspended. */
static void suspend(int number)
{
    int error = errno;
    (void)number;
    restore_terminal();
    raise(SIGSTOP);
    set_terminal();
    errno = error;
}

static void install_handler(int number, void (*handler)(int))
{
    struct sigaction action = {.sa_handler = handler};
    sigemptyset(&action.sa_mask);
    signal_handle(number, &action);
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
    if (tcgetattr(STDIN_FILENO, &original) != 0)
        FAIL(ERROR_OTHER,
             "the settings of the terminal cannot be read: %s; use `gradlag watch --once`, or send "
             "stdout to a file",
             strerror(errno));
    ours = original;
    ours.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    ours.c_cc[VMIN] = 1;
    ours.c_cc[VTIME] = 0;
    end_requested = 0;
    set_terminal();
    is_open = 1;
    install_handler(SIGINT, end);
    install_handler(SIGTERM, end);
    install_handler(SIGHUP, end);
    install_handler(SIGTSTP, suspend);
    install_handler(SIGWINCH, wake);
done:
    return result;
}

void terminal_screen_close(void)
{
    if (is_open) {
        is_open = 0;
        restore_terminal();
        install_handler(SIGTSTP, SIG_DFL);
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
        text_add(&out,
                 last ? "\033[K" : "\033[K\r\n"); /* a newline after the last line would scroll */
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
    if (end_requested)
        return false;
    int ready = poll(&keys, 1, (int)(seconds * 1000));
    if (ready == 1) {
        ssize_t count = read(STDIN_FILENO, pressed, sizeof pressed);
        bool gone = count == 0 || (count < 0 && errno != EINTR && errno != EAGAIN);
        if (gone || (count > 0 && memchr(pressed, 'q', (size_t)count) != NULL))
            return false;
    }
    return !end_requested;
}
