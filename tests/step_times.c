/* SPDX-License-Identifier: Apache-2.0 */
/* Times each step of a packed model: a shared library that benchmarks/step_times.py loads. */

#define _POSIX_C_SOURCE 200809L

#include <stdint.h>
#include <time.h>

typedef int (*Step)(void* model, const float* x, float* y);

static int64_t Now(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Runs steps on x (steps, stride) and writes the time of each in nanoseconds, at most UINT32_MAX.
 * Returns the last nonzero status, or 0. */
int time_steps(Step step, void* model, const float* x, int64_t stride, float* y, int64_t steps,
               uint32_t* nanoseconds) {
  int error = 0;
  int64_t begin = Now();
  for (int64_t t = 0; t < steps; ++t) {
    const int status = step(model, x + t * stride, y);
    const int64_t end = Now();
    const int64_t taken = end - begin;
    begin = end;
    nanoseconds[t] = taken > UINT32_MAX ? UINT32_MAX : (uint32_t)taken;
    if (status != 0) error = status;
  }
  return error;
}
