/*
 * The report in headless chromium, if it is installed. The page must fit on a screen and on a
 * phone, log nothing on the console, show every arm, and have a light and a dark style.
 * GRADLAG_BROWSER names another browser.
 */
#include "tests/results/query_rig.h"

#include "results/report/report.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>

enum { LIMIT_S = 120 };

/* A script in a copy of the page measures it. It lists elements that are wider than the window,
 * except inside scrolling elements. */
static const char measuring[] =
    "<script>onload = () => {\n"
    "  const wide = document.documentElement.clientWidth, out = [];\n"
    "  for (const e of document.querySelectorAll('body *')) {\n"
    "    if (e.closest('.scroll, svg, .legend') && !e.matches('.scroll, .plot:not(.scroll *)'))\n"
    "      continue;\n"
    "    const r = e.getBoundingClientRect();\n"
    "    if (r.width > 0 && (r.right > wide + 1 || r.left < -1))\n"
    "      out.push(e.tagName + '.' + e.getAttribute('class'));\n"
    "  }\n"
    "  const seen = [...document.querySelectorAll('svg.plot')].filter(\n"
    "    e => e.getBoundingClientRect().width > 50).length;\n"
    "  const cut = [...document.querySelectorAll('svg.plot > text, svg.plot > g > text')].filter(t "
    "=> {\n"
    "    const a = t.getBoundingClientRect(), b = t.closest('svg').getBoundingClientRect();\n"
    "    return a.width > 0 && (a.left < b.left - 2 || a.right > b.right + 2 || a.top < b.top - 2 "
    "|| a.bottom > b.bottom + 2);\n"
    "  }).map(t => t.textContent);\n"
    "  if (document.documentElement.scrollWidth > wide) out.push('the page');\n"
    "  document.body.setAttribute('data-wide', 'wide:' + out.slice(0, 5).join() + ':');\n"
    "  document.body.setAttribute('data-cut', 'cut:' + cut.slice(0, 5).join() + ':');\n"
    "  document.body.setAttribute('data-seen', 'seen:' + seen + ':');\n"
    "  document.body.setAttribute('data-paper', "
    "'paper:' + getComputedStyle(document.body).backgroundColor + ':');\n"
    "  const bar = document.querySelector('svg.mini .bar'), at = bar.getBoundingClientRect();\n"
    "  bar.dispatchEvent(new PointerEvent('pointermove', {bubbles: true, clientX: at.left, "
    "clientY: at.bottom}));\n"
    "  document.body.setAttribute('data-said', 'said:' + "
    "document.querySelector('.tip').textContent);\n"
    "};</script>";

static const char *browser(void)
{
    static const char *const names[] = {"chromium-headless-shell", "chromium", "chromium-browser",
                                        "google-chrome"};
    static char found[256];
    const char *given = getenv("GRADLAG_BROWSER");
    for (size_t i = 0; found[0] == '\0' && i < COUNT_OF(names) && given == NULL; i++) {
        char path[128], command[160];
        snprintf(command, sizeof command, "command -v %s", names[i]);
        FILE *lines = popen(command, "r");
        assert_non_null(lines);
        if (fscanf(lines, "%127s", path) == 1)
            snprintf(found, sizeof found, "%s", path);
        pclose(lines);
    }
    return given != NULL ? given : found;
}

static void need_browser(void)
{
    if (browser()[0] == '\0') {
        print_message(
            "skipped: no browser; `apt-get install chromium-headless-shell` installs one\n");
        skip();
    }
}

static char *read_all(const char *name)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", rig_folder, name);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    size_t length = (size_t)ftell(file);
    char *text = calloc(1, length + 1);
    assert_non_null(text);
    rewind(file);
    assert_int_equal(fread(text, 1, length, file), length);
    fclose(file);
    return text;
}

/* Writes the report to report.html, and the copy with the script to measured.html. */
static void make_pages(void)
{
    static const char policy[] = "<meta http-equiv=\"Content-Security-Policy\"";
    char path[128];
    /* Several numbers of workers, a very long name, and a name without a break. */
    rig_change("UPDATE run SET workers = 8 WHERE id = 6; "
               "UPDATE run SET experiment = printf('%.*c', 90, 'e') WHERE id IN (3, 4); "
               "UPDATE run SET arm = 'after ' || printf('%.*c', 300, 'n') WHERE id = 5");
    snprintf(path, sizeof path, "%s/report.html", rig_folder);
    assert_int_equal(report_write(&(struct report_request){.path = rig_path}, path, NULL), OK);
    char *page = read_all("report.html"), *at = strstr(page, policy);
    assert_non_null(at);
    memcpy(at, "<meta name=\"x", 13); /* the policy would block the script */
    memset(at + 13, 'x', sizeof policy - 1 - 14);
    at[sizeof policy - 2] = '"';
    snprintf(path, sizeof path, "%s/measured.html", rig_folder);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    char *end = strstr(page, "</body>");
    assert_non_null(end);
    fprintf(file, "%.*s%s%s", (int)(end - page), page, measuring, end);
    assert_int_equal(fclose(file), 0);
    free(page);
}

/* Runs the browser with the option `more`. Its stdout goes to the file dom, its stderr to log. */
static void browse(const char *page, int width, int height, bool dark, const char *more)
{
    char command[1024];
    snprintf(
        command, sizeof command,
        "cd '%s' && HOME='%s' timeout -k 5 %d '%s' --headless --no-sandbox --disable-gpu "
        "--disable-dev-shm-usage --hide-scrollbars --no-first-run --user-data-dir='%s/profile' "
        "--force-device-scale-factor=1 --enable-logging=stderr "
        "--blink-settings=preferredColorScheme=%d --window-size=%d,%d %s "
        "'file://%s/%s' >dom 2>log </dev/null",
        rig_folder, rig_folder, LIMIT_S, browser(), rig_folder, dark ? 0 : 1, width, height, more,
        rig_folder, page);
    int code = system(command);
    if (code != 0)
        fail_msg("the browser ended with %d: %s", code, read_all("log"));
    char *log = read_all("log");
    if (strstr(log, "CONSOLE") != NULL)
        fail_msg("the page logs on the console: %s", strstr(log, "CONSOLE"));
    free(log);
}

static void expect_measured(const char *dom, const char *wanted)
{
    if (strstr(dom, wanted) == NULL) {
        const char *body = strstr(dom, "<body");
        fail_msg("not '%s' but %.400s", wanted, body != NULL ? body : dom);
    }
}

static void the_page_fits_and_the_console_is_empty(void **state)
{
    (void)state;
    static const struct {
        int width;
        bool dark;
        const char *paper;
    } views[] = {{1280, false, "paper:rgb(255, 255, 255):"}, {390, true, "paper:rgb(18, 21, 26):"}};
    need_browser();
    make_pages();
    for (size_t i = 0; i < COUNT_OF(views); i++) {
        browse("measured.html", views[i].width, 900, views[i].dark, "--dump-dom");
        char *dom = read_all("dom");
        expect_measured(dom, "wide::");
        expect_measured(dom, "cut::");
        expect_measured(dom, views[i].paper);
        expect_measured(dom, "said:τ 0: 1.0 %"); /* of the first bar of the first histogram */
        assert_null(strstr(dom, "seen:0:"));
        assert_non_null(strstr(dom, "undamped"));
        assert_non_null(strstr(dom, ">damped"));
        assert_non_null(strstr(dom, ">sync"));
        free(dom);
    }
}

struct picture {
    double brightness, spread; /* mean and standard deviation of grey, 0 to 255 */
};

static struct picture look_at(const char *name)
{
    char path[128];
    struct jpeg_decompress_struct d;
    struct jpeg_error_mgr errors;
    double sum = 0, squares = 0, count = 0;
    snprintf(path, sizeof path, "%s/%s", rig_folder, name);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    d.err = jpeg_std_error(&errors);
    jpeg_create_decompress(&d);
    jpeg_stdio_src(&d, file);
    assert_int_equal(jpeg_read_header(&d, TRUE), JPEG_HEADER_OK);
    d.out_color_space = JCS_GRAYSCALE;
    assert_true(jpeg_start_decompress(&d));
    JSAMPLE *row = malloc(d.output_width);
    assert_non_null(row);
    while (d.output_scanline < d.output_height) {
        assert_int_equal(jpeg_read_scanlines(&d, &row, 1), 1);
        for (unsigned i = 0; i < d.output_width; i++) {
            sum += row[i];
            squares += (double)row[i] * row[i];
            count++;
        }
    }
    free(row);
    jpeg_finish_decompress(&d);
    jpeg_destroy_decompress(&d);
    fclose(file);
    double mean = sum / count;
    return (struct picture){mean, sqrt(squares / count - mean * mean)};
}

static void the_page_has_a_light_and_a_dark_style(void **state)
{
    (void)state;
    need_browser();
    make_pages();
    browse("report.html", 1280, 2000, false, "--screenshot=light.jpeg");
    browse("report.html", 1280, 2000, true, "--screenshot=dark.jpeg");
    struct picture light = look_at("light.jpeg"), dark = look_at("dark.jpeg");
    assert_true(light.brightness > 200 && dark.brightness < 80);
    assert_true(light.spread > 10 && dark.spread > 10); /* not blank */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        SAMPLE_TEST(the_page_fits_and_the_console_is_empty),
        SAMPLE_TEST(the_page_has_a_light_and_a_dark_style),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
