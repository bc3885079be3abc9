/* SPDX-License-Identifier: Apache-2.0 */
/* Steps the C files of a model: reads x (T, I) from stdin, and writes y (T, O) and then the number
 * of updated neurons (T,) of each step to stdout, all as 32-bit numbers; with HOLDS, then the
 * number of steps with bad samples. */

#include <stdio.h>

#include "model.h"

#define MOST_STEPS 1000

static int32_t updates[MOST_STEPS];

#if defined(MODEL_VOCABULARY)
typedef int32_t Input;
#define MODEL_INPUT 1
#define FIRST(x) (x)[0]
#else
typedef float Input;
#define FIRST(x) (x)
#endif

int main(void) {
  static ModelState model;
  Input x[MODEL_INPUT];
  float y[MODEL_OUTPUT];
  int32_t steps = 0;
  model_reset(&model);
  while (steps < MOST_STEPS && fread(x, sizeof x, 1, stdin) == 1) {
    if (model_step(&model, FIRST(x), y) != MODEL_OK) return 2;
    fwrite(y, sizeof y, 1, stdout);
    updates[steps++] = model_updates(&model);
  }
  fwrite(updates, sizeof *updates, (size_t)steps, stdout);
#if defined(HOLDS)
  updates[0] = model_nonfinite(&model);
  fwrite(updates, sizeof *updates, 1, stdout);
#endif
  return 0;
}
