/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs in the VM and times from outside of the governor. Linked statically; polls every half ms.
 *
 *   stopwatch jobs N PROGRAM [ARG...]    N times: exec PROGRAM until /proc/PID/cgroup is ours,
 *                                        then `systemd-run --scope --quiet true`, whole
 *   stopwatch start UNIT PID...          `systemctl start UNIT` until the last PID is ours
 *
 * Prints a line of JSON for each. Ends with 1 where something is not ours after 60 seconds.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

static void pause_ms(double ms)
{
    struct timespec t = {(time_t)(ms / 1e3), (long)(ms * 1e6) % 1000000000L};
    nanosleep(&t, NULL);
}

static int is_ours(pid_t pid)
{
    char path[64], text[4096];
    snprintf(path, sizeof path, "/proc/%d/cgroup", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t length = read(fd, text, sizeof text - 1);
    close(fd);
    text[length > 0 ? length : 0] = 0;
    return strstr(text, "/msswift.slice/") != NULL;
}

/* Starts argv; *began is the moment just before its exec. */
static pid_t launch(char **argv, double *began)
{
    double *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    *shared = 0;
    pid_t pid = fork();
    if (pid == 0) {
        setsid();
        *shared = now_ms();
        execvp(argv[0], argv);
        _exit(127);
    }
    while (*(volatile double *)shared == 0)
        pause_ms(0.1);
    *began = *shared;
    munmap(shared, sizeof *shared);
    return pid;
}

static void stop_waiting(const char *what)
{
    fprintf(stderr, "not ours after 60 s: %s\n", what);
    exit(1);
}

static void one_job(char **argv)
{
    char *scope[] = {"systemd-run", "--scope", "--quiet", "true", NULL};
    double began, contained;
    int status;
    pid_t pid = launch(argv, &began);
    while (!is_ours(pid)) {
        if (now_ms() - began > 60e3)
            stop_waiting(argv[0]);
        pause_ms(0.5);
    }
    contained = now_ms() - began;
    pause_ms(700); /* the tick that follows, and the program's own start, are not to be in its way */
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    pause_ms(700);
    pid = launch(scope, &began);
    waitpid(pid, &status, 0);
    printf("{\"contained_ms\": %.2f, \"systemd_run_ms\": %.2f}\n", contained, now_ms() - began);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        exit(2);
    fflush(stdout);
    pause_ms(300);
}

static void started(char *unit, char **pids, int count)
{
    char *start[] = {"systemctl", "start", unit, NULL};
    double began, first = 0, last = 0, ready = 0;
    int status, ours = 0, ended = 0;
    pid_t pid = launch(start, &began);
    while (ours < count || !ended) {
        ours = 0;
        for (int n = 0; n < count; n++)
            ours += is_ours(atoi(pids[n]));
        if (ours && !first)
            first = now_ms() - began;
        if (ours == count && !last)
            last = now_ms() - began;
        if (!ended && waitpid(pid, &status, WNOHANG) == pid) {
            ended = 1;
            ready = now_ms() - began;
        }
        if (now_ms() - began > 60e3)
            stop_waiting(unit);
        pause_ms(0.5);
    }
    printf("{\"ready_ms\": %.2f, \"first_ms\": %.2f, \"last_ms\": %.2f}\n", ready, first, last);
}

int main(int argc, char **argv)
{
    if (argc > 3 && !strcmp(argv[1], "jobs"))
        for (int n = atoi(argv[2]); n > 0; n--)
            one_job(argv + 3);
    else if (argc > 3 && !strcmp(argv[1], "start"))
        started(argv[2], argv + 3, argc - 3);
    else
        return 64;
    return 0;
}
