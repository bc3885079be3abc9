/* SPDX-License-Identifier: Apache-2.0 */
/* Checks what the header of a model promises: bad input changes nothing, states are independent, a
 * copy of a state is a saved state, and a reset starts anew. Ends with the line of the first check
 * that fails, or 0. */

#include <string.h>

#include "model.h"

#define CHECK(condition) \
  if (!(condition)) return __LINE__ & 255

static void fill(float* x, int t) {
  for (int i = 0; i < MODEL_INPUT; ++i) x[i] = 0.1f * (float)((7 * t + 3 * i) % 19 - 9);
}

int main(void) {
  static ModelState first, second, saved;
  float x[MODEL_INPUT], y[MODEL_OUTPUT], again[MODEL_OUTPUT];
  const float zero = 0.0f;
  model_reset(&first);
  model_reset(&second);
  CHECK(model_updates(&first) == 0);
  for (int t = 0; t < 9; ++t) {
    fill(x, t);
    CHECK(model_step(&first, x, y) == MODEL_OK);
    CHECK(model_updates(&first) >= 0 && model_updates(&first) <= MODEL_NEURONS);
  }
  saved = first;
  x[MODEL_INPUT - 1] = zero / zero;
  memcpy(again, y, sizeof y);
  CHECK(model_step(&first, x, y) == MODEL_BAD_INPUT);
  x[MODEL_INPUT - 1] = 1.0f / zero;
  CHECK(model_step(&first, x, y) == MODEL_BAD_INPUT);
  CHECK(memcmp(&first, &saved, sizeof first) == 0 && memcmp(again, y, sizeof y) == 0);
  fill(x, 9);
  CHECK(model_step(&first, x, y) == MODEL_OK && model_step(&saved, x, again) == MODEL_OK);
  CHECK(memcmp(y, again, sizeof y) == 0);
  CHECK(model_step(&second, x, again) == MODEL_OK);
  CHECK(memcmp(y, again, sizeof y) != 0);
  model_reset(&first);
  CHECK(model_step(&first, x, y) == MODEL_OK);
  CHECK(memcmp(y, again, sizeof y) == 0);
  return 0;
}
