/* SPDX-License-Identifier: Apache-2.0 */
/* The state file: "KEY VALUE" lines, kept in memory, read again when the file is another one.
 *
 * Tests replace the file by rename(2), so every reading sees either the old state or the new one,
 * whole. A change in place is noticed too (by size and mtime), but may be seen half written.
 */
#include "fake.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#define DEFAULT_PATH "/run/fake-nvml/state"

struct line {
    char *key;
    char *value;
    unsigned long calls_left; /* of an error line; (unsigned long)-1 never runs out */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* for all below */
static struct line *lines;
static size_t line_count;
static struct stat loaded;

static void forget(void) {
    for (size_t i = 0; i < line_count; i++)
        free(lines[i].key); /* the value lives in the same allocation */
    free(lines);
    lines = NULL;
    line_count = 0;
    memset(&loaded, 0, sizeof loaded);
}

static void add(const char *text) {
    char *copy = strdup(text);
    struct line *more = realloc(lines, (line_count + 1) * sizeof *lines);
    if (copy == NULL || more == NULL)
        abort();
    lines = more;
    copy[strcspn(copy, "\n")] = '\0';
    char *value = copy + strcspn(copy, " \t");
    if (*value != '\0')
        *value++ = '\0';
    value += strspn(value, " \t");

    unsigned long calls = 0;
    if (strncmp(copy, "error.", 6) == 0)
        sscanf(value, "%*s %lu", &calls);
    lines[line_count++] = (struct line){copy, value, calls == 0 ? (unsigned long)-1 : calls};
}

static bool same_file(const struct stat *a, const struct stat *b) {
    return a->st_ino == b->st_ino && a->st_dev == b->st_dev && a->st_size == b->st_size &&
           a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

static void refresh(void) {
    const char *path = getenv("FAKE_NVML_STATE");
    if (path == NULL || *path == '\0')
        path = DEFAULT_PATH;
    struct stat now;
    if (stat(path, &now) != 0) {
        forget();
        return;
    }
    if (same_file(&now, &loaded))
        return;
    FILE *file = fopen(path, "re");
    forget();
    if (file == NULL)
        return;
    char text[4096];
    while (fgets(text, sizeof text, file) != NULL)
        if (text[0] != '#' && text[0] != '\n')
            add(text);
    fstat(fileno(file), &loaded); /* of what was read, which a rename may have replaced since */
    fclose(file);
}

static struct line *last_with(const char *key) {
    for (size_t i = line_count; i > 0; i--)
        if (strcmp(lines[i - 1].key, key) == 0)
            return &lines[i - 1];
    return NULL;
}

static bool text_of(char *value, size_t size, const char *key) {
    pthread_mutex_lock(&lock);
    refresh();
    const struct line *line = last_with(key);
    if (line != NULL)
        snprintf(value, size, "%s", line->value);
    pthread_mutex_unlock(&lock);
    return line != NULL;
}

bool state_text(char *value, size_t size, const char *key_format, ...) {
    char key[128];
    va_list arguments;
    va_start(arguments, key_format);
    vsnprintf(key, sizeof key, key_format, arguments);
    va_end(arguments);
    return text_of(value, size, key);
}

bool state_number(uint64_t *value, const char *key_format, ...) {
    char key[128], text[64];
    va_list arguments;
    va_start(arguments, key_format);
    vsnprintf(key, sizeof key, key_format, arguments);
    va_end(arguments);
    if (!text_of(text, sizeof text, key))
        return false;
    *value = strtoull(text, NULL, 0);
    return true;
}

void state_each(const char *key, bool (*visit)(const char *, void *), void *context) {
    pthread_mutex_lock(&lock);
    refresh();
    for (size_t i = 0; i < line_count; i++)
        if (strcmp(lines[i].key, key) == 0 && !visit(lines[i].value, context))
            break;
    pthread_mutex_unlock(&lock);
}

/* The line "KIND.FUNCTION.GPU", or else "KIND.*.GPU", "KIND.FUNCTION" and "KIND.*". */
static struct line *about(const char *kind, const char *function, int gpu) {
    char key[128];
    for (int with_gpu = gpu >= 0; with_gpu >= 0; with_gpu--)
        for (int any = 0; any <= 1; any++) {
            int length = snprintf(key, sizeof key, "%s.%s", kind, any ? "*" : function);
            if (with_gpu)
                snprintf(key + length, sizeof key - (size_t)length, ".%d", gpu);
            struct line *line = last_with(key);
            if (line != NULL && line->calls_left > 0)
                return line;
        }
    return NULL;
}

int state_error(const char *function, int gpu) {
    int code = 0;
    pthread_mutex_lock(&lock);
    refresh();
    struct line *line = about("error", function, gpu);
    if (line != NULL) {
        code = atoi(line->value);
        if (line->calls_left != (unsigned long)-1)
            line->calls_left--;
    }
    pthread_mutex_unlock(&lock);
    return code;
}

static void wait_ms(long milliseconds) {
    struct timespec left = {milliseconds / 1000, milliseconds % 1000 * 1000000};
    while (nanosleep(&left, &left) != 0) {
        /* a signal doesn't shorten a driver call */
    }
}

void state_delay(const char *function, int gpu) {
    for (;;) {
        long milliseconds = 0;
        bool hang = false;
        pthread_mutex_lock(&lock);
        refresh();
        const struct line *line = about("delay", function, gpu);
        if (line != NULL) {
            hang = strcmp(line->value, "hang") == 0;
            milliseconds = hang ? 20 : atol(line->value);
        }
        pthread_mutex_unlock(&lock);
        if (milliseconds > 0)
            wait_ms(milliseconds);
        if (!hang)
            return;
    }
}
