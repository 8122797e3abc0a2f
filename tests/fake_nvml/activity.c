/* SPDX-License-Identifier: Apache-2.0 */
/* Utilisation from the intervals that trainers write through activity.py (see its table).
 *
 * As in the driver, a GPU is busy while at least one process runs something on it, and the reading
 * is the busy share of the last window: here one second, or N.window_ms.
 */
#include "fake.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { SLOTS = 256, ATTEMPTS = 100 };

struct interval {
    uint64_t begin_ns, end_ns;
};

struct file { /* as activity.py lays it out */
    char magic[8];
    uint64_t sequence, pid, start_ticks, busy_total_ns, busy_since_ns, memory_bytes, intervals;
    struct interval ring[SLOTS];
};

struct gathering {
    struct activity *result;
    uint64_t from_ns, now_ns; /* the window */
    size_t count;
    struct interval busy[MAX_ACTIVITIES * (SLOTS + 1)];
};

/* A consistent copy. read(2) and not mmap: a file cut short under us is then no SIGBUS. A writer
 * stopped half way through a change is not waited for: at most one interval is wrong then. */
static bool read_file(const char *path, struct file *file) {
    int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0)
        return false;
    bool good = false;
    for (int i = 0; i < ATTEMPTS; i++) {
        uint64_t after = 0;
        good = pread(descriptor, file, sizeof *file, 0) == (ssize_t)sizeof *file &&
               memcmp(file->magic, "FNVMLAC1", sizeof file->magic) == 0 &&
               pread(descriptor, &after, sizeof after, offsetof(struct file, sequence)) ==
                   (ssize_t)sizeof after;
        if (!good || (after % 2 == 0 && after == file->sequence))
            break;
        sched_yield();
    }
    close(descriptor);
    return good;
}

/* Whether the process is still the one that wrote the file: pids are reused. */
static bool alive(uint64_t pid, uint64_t start_ticks) {
    char path[48], text[1024];
    snprintf(path, sizeof path, "/proc/%llu/stat", (unsigned long long)pid);
    FILE *stat = fopen(path, "re");
    if (stat == NULL)
        return access("/proc/1/stat", F_OK) != 0; /* hidepid: nobody can tell */
    size_t size = fread(text, 1, sizeof text - 1, stat);
    fclose(stat);
    text[size] = '\0';
    const char *after_comm = strrchr(text, ')'); /* a comm may hold ")" and blanks itself */
    char state = 'X';
    unsigned long long started = 0;
    if (after_comm == NULL ||
        sscanf(after_comm + 1,
               " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu",
               &state, &started) != 2)
        return false;
    return started == start_ticks && state != 'Z' && state != 'X';
}

static void add_interval(struct gathering *all, uint64_t begin_ns, uint64_t end_ns) {
    if (begin_ns < all->from_ns)
        begin_ns = all->from_ns;
    if (end_ns > all->now_ns)
        end_ns = all->now_ns;
    if (begin_ns < end_ns)
        all->busy[all->count++] = (struct interval){begin_ns, end_ns};
}

static bool gather(const char *path, void *context) {
    struct gathering *all = context;
    struct file file;
    all->result->named = true;
    if (!read_file(path, &file) || file.pid == 0 || !alive(file.pid, file.start_ticks))
        return true;
    all->result->trainers[all->result->trainer_count++] =
        (struct trainer){(uint32_t)file.pid, file.memory_bytes};

    /* Intervals so short that the ring doesn't cover the window: the window begins later. */
    const struct interval *oldest = &file.ring[file.intervals % SLOTS];
    if (file.intervals >= SLOTS && oldest->begin_ns > all->from_ns)
        all->from_ns = oldest->begin_ns;
    for (size_t i = 0; i < SLOTS && i < file.intervals; i++)
        add_interval(all, file.ring[i].begin_ns, file.ring[i].end_ns);
    if (file.busy_since_ns != 0)
        add_interval(all, file.busy_since_ns, all->now_ns);
    return all->result->trainer_count < MAX_ACTIVITIES;
}

static int by_begin(const void *a, const void *b) {
    uint64_t x = ((const struct interval *)a)->begin_ns;
    uint64_t y = ((const struct interval *)b)->begin_ns;
    return x < y ? -1 : x > y;
}

void activity_read(int gpu, struct activity *activity) {
    static _Thread_local struct gathering all; /* 64 KiB: not on a caller's small stack */
    char key[32];
    uint64_t window_ms = 1000;
    struct timespec now;

    memset(activity, 0, sizeof *activity);
    state_number(&window_ms, "%d.window_ms", gpu);
    clock_gettime(CLOCK_MONOTONIC, &now);
    all.result = activity;
    all.now_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    all.from_ns = window_ms < all.now_ns / 1000000u ? all.now_ns - window_ms * 1000000u : 0;
    all.count = 0;
    snprintf(key, sizeof key, "%d.activity", gpu);
    state_each(key, gather, &all);

    qsort(all.busy, all.count, sizeof *all.busy, by_begin);
    uint64_t busy_ns = 0, covered_until = all.from_ns;
    for (size_t i = 0; i < all.count; i++) {
        const struct interval *interval = &all.busy[i];
        uint64_t begin = interval->begin_ns > covered_until ? interval->begin_ns : covered_until;
        if (interval->end_ns > begin) {
            busy_ns += interval->end_ns - begin;
            covered_until = interval->end_ns;
        }
    }
    uint64_t window_ns = all.now_ns - all.from_ns;
    activity->utilization =
        window_ns == 0 ? 0 : (unsigned)((busy_ns * 100 + window_ns / 2) / window_ns);
}
