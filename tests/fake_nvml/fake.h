/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of the fake NVML library share. README.md documents the state file. */
#ifndef FAKE_NVML_H
#define FAKE_NVML_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    MAX_GPUS = 64,
    MAX_PROCESSES = 256, /* of one GPU */
    MAX_ACTIVITIES = 16, /* of one GPU */
};

/* ---- state.c: the state file, read again whenever it has changed ---- */

/* The value of the last line that begins with KEY, or false. The key is made as by printf. */
bool state_text(char *value, size_t size, const char *key_format, ...)
    __attribute__((format(printf, 3, 4)));

/* The same as a number: decimal, 0x..., or a negative one, which wraps. */
bool state_number(uint64_t *value, const char *key_format, ...)
    __attribute__((format(printf, 2, 3)));

/* Calls visit(value, context) for each line with that key, until it returns false. */
void state_each(const char *key, bool (*visit)(const char *value, void *context), void *context);

/* The error that the state file wants FUNCTION to return (gpu < 0: no GPU in question), else 0.
 * "error.FUNCTION CODE CALLS" is used up by CALLS calls. */
int state_error(const char *function, int gpu);

/* Waits as long as the state file wants FUNCTION to take; a hang lasts until its line is gone. */
void state_delay(const char *function, int gpu);

/* ---- activity.c: what trainers wrote through activity.py ---- */

struct trainer {
    uint32_t pid;
    uint64_t memory_bytes;
};

struct activity {
    bool named;                /* the state file has an activity line for this GPU */
    unsigned utilization;      /* per cent of the window in which any live trainer was busy */
    unsigned trainer_count;    /* live ones */
    struct trainer trainers[MAX_ACTIVITIES];
};

void activity_read(int gpu, struct activity *activity);

#endif
